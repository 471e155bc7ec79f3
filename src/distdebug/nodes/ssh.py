"""
How does a command run on hosts that ssh reaches?
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import attrs

from .._text import clean
from ..errors import NodesError
from .process import Door, open_channel, run_errand
from .results import Arrival, Bound, Ended, NodeStatus, Trouble
from .run import side_by_side


# No option, and nothing that a shell would understand.
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]{0,254}")
_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=2"),
)
# What ssh itself ends with; commands seldom do.
_FAILED = 255


def _hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys([hosts] if isinstance(hosts, str) else hosts))
    for host in found:
        if not _HOST.fullmatch(host):
            msg = f"{clean(host)!r} is no name of a host"
            raise NodesError(msg, remedy="write them as for ssh: node-1")
    return found


@attrs.frozen
class Ssh:
    """
    Hosts on which we can log in without a password.

    What stands in the configuration of ssh is respected: names, users, keys,
    and hosts to jump over.

    Attributes:
        hosts: Their names, as ``ssh`` takes them.

        python: The Python that runs functions; by default one that is where
            this one is.

        at_once: How many hosts are asked at the same time.
    """

    hosts: tuple[str, ...] = attrs.field(converter=_hosts)
    python: str = attrs.field(default=sys.executable, kw_only=True)
    at_once: int = attrs.field(default=32, kw_only=True)

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[Arrival]:
        """
        What does a command leave on each host, as they come?

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take on each host, in seconds.

        Yields:
            One answer per host.

        Raises:
            NodesError: There is no ssh.
        """
        bound = Bound(timeout_s=timeout_s)

        def ask(command: Sequence[str]) -> Ended:
            ended = run_errand(
                command, environment=os.environ, bound=bound, data=data
            )
            return ended._replace(trouble=ended.trouble or _trouble(ended))

        commands = {host: self._ssh(host, argv) for host in self.hosts}
        yield from side_by_side(
            ask, commands, at_once=self.at_once, stop=bound.stop
        )

    @contextmanager
    def doors(self, argv: Sequence[str]) -> Iterator[Mapping[str, Door]]:
        """
        On which hosts can a program be started?

        Args:
            argv: The command.

        Yields:
            What starts it, by host.

        Raises:
            NodesError: There is no ssh.
        """
        yield {
            host: partial(
                open_channel,
                self._ssh(host, argv),
                environment=os.environ,
                explain=_trouble,
            )
            for host in self.hosts
        }

    def _ssh(self, host: str, argv: Sequence[str]) -> tuple[str, ...]:
        path = shutil.which("ssh")
        if path is None:
            msg = "there is no ssh on PATH"
            raise NodesError(msg, remedy="install an OpenSSH client")
        # A shell reads it there.
        return (path, *_OPTIONS, "--", host, shlex.join(argv))


def _trouble(ended: Ended) -> Trouble | None:
    if ended.status != _FAILED:
        return None
    lines = map(clean, ended.complaint.decode("utf-8", "replace").splitlines())
    last = [line for line in lines if line][-1:]
    return Trouble(
        NodeStatus.DEAD,
        ": ".join(["ssh does not reach the host", *last]),
        "see whether `ssh -o BatchMode=yes HOST true` works",
    )

"""
Run commands and streams on hosts, with ``ssh``.
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
from .process import Connector, open_channel, try_run_process
from .results import (
    CommandLimits,
    CompletedCommand,
    NodeFailure,
    NodeReply,
    NodeStatus,
)
from .run import parallel_map


# Neither an option nor shell syntax.
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]{0,254}")
_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=2"),
)
# The exit status of ssh itself; commands seldom use it.
_SSH_FAILED = 255


def _check_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys([hosts] if isinstance(hosts, str) else hosts))
    for host in found:
        if not _HOST.fullmatch(host):
            msg = f"{clean(host)!r} is no name of a host"
            raise NodesError(msg, remedy="write them as for ssh: node-1")
    return found


@attrs.frozen
class Ssh:
    """
    Hosts that accept a login without a password.

    The configuration of ssh applies: host names, users, keys, and jump hosts.

    Attributes:
        hosts: The host names, as ``ssh`` takes them.

        python: The Python that runs functions; by default the same path as
            here.

        at_once: How many hosts run the command at the same time.
    """

    hosts: tuple[str, ...] = attrs.field(converter=_check_hosts)
    python: str = attrs.field(default=sys.executable, kw_only=True)
    at_once: int = attrs.field(default=32, kw_only=True)

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[NodeReply]:
        """
        Run a command on each host and yield the replies as they arrive.

        Args:
            data: Its standard input; ``None`` for an empty one.

            timeout_s: How long it may take on each host, in seconds.

        Raises:
            NodesError: There is no ssh.
        """
        limits = CommandLimits(timeout_s=timeout_s)

        def run_one(command: Sequence[str]) -> CompletedCommand:
            completed = try_run_process(
                command, environment=os.environ, limits=limits, data=data
            )
            return completed._replace(
                failure=completed.failure or _ssh_failure(completed)
            )

        commands = {host: self._ssh_command(host, argv) for host in self.hosts}
        yield from parallel_map(
            run_one, commands, at_once=self.at_once, stop=limits.stop
        )

    @contextmanager
    def connectors(
        self, argv: Sequence[str]
    ) -> Iterator[Mapping[str, Connector]]:
        """
        Yield a connector for each host.

        Raises:
            NodesError: There is no ssh.
        """
        yield {
            host: partial(
                open_channel,
                self._ssh_command(host, argv),
                environment=os.environ,
                explain=_ssh_failure,
            )
            for host in self.hosts
        }

    def _ssh_command(self, host: str, argv: Sequence[str]) -> tuple[str, ...]:
        path = shutil.which("ssh")
        if path is None:
            msg = "there is no ssh on PATH"
            raise NodesError(msg, remedy="install an OpenSSH client")
        # The remote shell splits the command.
        return (path, *_OPTIONS, "--", host, shlex.join(argv))


def _ssh_failure(completed: CompletedCommand) -> NodeFailure | None:
    if completed.status != _SSH_FAILED:
        return None
    lines = map(
        clean, completed.stderr.decode("utf-8", "replace").splitlines()
    )
    last = [line for line in lines if line][-1:]
    return NodeFailure(
        NodeStatus.DEAD,
        ": ".join(["ssh does not reach the host", *last]),
        "see whether `ssh -o BatchMode=yes HOST true` works",
    )

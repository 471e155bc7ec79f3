"""
Run commands and streams on hosts, with ``ssh``.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys

from collections.abc import Sequence

import attrs

from .._text import clean
from ..errors import NodesError
from .process import CommandEngine
from .results import (
    CompletedCommand,
    NodeFailure,
    NodeStatus,
)


# Neither an option nor shell syntax.
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]{0,254}")
_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=2"),
)
# The exit status of ssh itself, and of commands that end with -1.
_SSH_FAILED = 255
# What ssh says of itself, and commands do not.
_SSH_ERROR = re.compile(
    r"ssh: |ssh_|kex_exchange|banner exchange|client_loop: |packet_write_wait"
    r"|Connection (to|closed|reset|timed out)|Shared connection to|Timeout, "
    r"|Host key|.*Permission denied \(|Received disconnect|Disconnected from"
    r"|Too many authentication|Unable to negotiate|No .* host key is known"
    r"|Bad (owner|configuration)|.*: Bad configuration|Could not|mux_client"
    r"|channel \d+: |stdio forwarding"
)


def _check_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys([hosts] if isinstance(hosts, str) else hosts))
    for host in found:
        if not _HOST.fullmatch(host):
            msg = f"{clean(host)!r} is no name of a host"
            raise NodesError(msg, remedy="write them as for ssh: node-1")
    return found


@attrs.frozen
class Ssh(CommandEngine):
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

    def commands(self, argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """
        Return the ``ssh`` command for each host.

        Raises:
            NodesError: There is no ssh.
        """
        path = shutil.which("ssh")
        if path is None:
            msg = "there is no ssh on PATH"
            raise NodesError(msg, remedy="install an OpenSSH client")
        # The remote shell splits the command.
        command = shlex.join(argv)
        return {x: (path, *_OPTIONS, "--", x, command) for x in self.hosts}

    def explain(self, completed: CompletedCommand) -> NodeFailure | None:
        """
        Return the failure if ssh does not reach the host.
        """
        lines = completed.stderr.decode("utf-8", "replace").splitlines()
        last = next(filter(None, map(clean, reversed(lines))), "")
        if completed.status != _SSH_FAILED or not _SSH_ERROR.match(last):
            return None
        return NodeFailure(
            NodeStatus.DEAD,
            f"ssh does not reach the host: {last}",
            "see whether `ssh -o BatchMode=yes HOST true` works",
        )

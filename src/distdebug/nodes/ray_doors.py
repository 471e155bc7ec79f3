"""
How do we come to talk to programs on the nodes of a Ray cluster?

One child process is connected to Ray.  It is handed one end of a socket for
each node, so that here each node is a socket of its own.
"""

from __future__ import annotations

import json
import socket
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from .channel import Channel, Door
from .conversation import Conversation
from .model import NodeStatus, Trouble


__all__ = ["hand_out", "handing"]

_REAP_S = 0.5


@contextmanager
def handing() -> Iterator[tuple[socket.socket, socket.socket]]:
    """
    What are sockets handed over with?

    Yields:
        Our end, and that of the child process; who started it closes it here.
    """
    kind = socket.SOCK_SEQPACKET
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        yield ours, theirs


def hand_out(
    talk: Conversation,
    hosts: Iterable[str],
    argv: Sequence[str],
    doors: socket.socket,
) -> Mapping[str, Door]:
    """
    What starts a program on each node?

    Args:
        talk: What the child process says.

        hosts: The names of the nodes.

        argv: The command.

        doors: Where sockets are handed over.

    Returns:
        It, by the name of the node.
    """
    troubles: dict[str, Trouble] = {}
    return {
        host: partial(_open, talk, host, argv, doors, troubles)
        for host in hosts
    }


def _open(
    talk: Conversation,
    host: str,
    argv: Sequence[str],
    doors: socket.socket,
    troubles: dict[str, Trouble],
) -> Channel:
    ours, theirs = socket.socketpair()
    question = json.dumps({"host": host, "argv": list(argv)}).encode()
    with theirs:
        try:
            socket.send_fds(doors, [question], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise

    return Channel(
        socket=ours,
        why=lambda: _why(talk, host, troubles),
        wait=lambda _: None,
    )


def _why(
    talk: Conversation, host: str, troubles: dict[str, Trouble]
) -> Trouble:
    until = time.monotonic() + _REAP_S
    line: bytes | None = b""
    with suppress(TimeoutError, ValueError):
        while host not in troubles and line is not None:
            line = talk.hear(until)
            told = json.loads(line or b"{}")
            if "trouble" in told:
                status, reason, remedy = told["trouble"]
                troubles[told["host"]] = Trouble(
                    NodeStatus(status), reason, remedy
                )
    broken = Trouble(NodeStatus.FAILED, "the connection to Ray broke")
    return troubles.pop(host, broken)

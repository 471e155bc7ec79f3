"""
Relay that connects a client on another node to the ranks of this one.

The launcher of the nodes starts it as
``python -m distdebug.debugger.client.relay SECONDS [FOLDER]``.  It uses its
standard input and output, so no port is opened.  It forwards requests to the
sockets of the job, and sends the answers back.  It ends when its input ends,
and after some seconds without a request, because a broken connection may look
open for ever.  No rank is affected.

A request with the key *to* is for a rank.  Other requests are for the relay:
*who* lists the ranks, *outside* captures stacks with py-spy, and *hang up*
disconnects from a rank.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import sys

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from ...errors import DebuggerError
from ..protocol import Message, MessageDecoder, encode_answer, socket_paths
from .connections import Peer
from .local import LocalTransport, choose_folder
from .model import Listing, SilentProcess


VERSION = 1

_READ_BYTES = 1 << 16
# A socket accepts at once, or its process is stuck.
_CONNECT_S = 2.0


def main(
    arguments: Sequence[str],
    stdin: int,
    stdout: int,
    alarm: Callable[[int], object] = signal.alarm,
) -> int:
    """
    Relay requests of a client until it hangs up.

    Args:
        arguments: The seconds without a request after which to end, and the
            folder of the sockets, if the user named it.

        stdin: The file descriptor for requests.

        stdout: The file descriptor for answers.

        alarm: Ends this process after a number of seconds; 0 cancels that.

    Returns:
        The exit status.
    """
    seconds, *folder = arguments
    relay, decoder = _Relay(stdout, *folder), MessageDecoder()
    try:
        alarm(int(seconds))
        relay.send({"relay": VERSION, "host": socket.gethostname()})
        while data := relay.receive(stdin):
            for request in decoder.decode(data):
                # The connection may break while the client waits for a slow answer.
                alarm(int(seconds) + math.ceil(_requested_wait_s(request)))
                relay.handle(request)
    except (DebuggerError, OSError, ValueError):
        return 1
    finally:
        alarm(0)
        relay.close()
    return 0


def _requested_wait_s(request: Message) -> float:
    wait = request.get("wait")
    if not isinstance(wait, int | float):
        return 0.0
    return min(max(wait, 0.0), 86400.0)


@attrs.define
class _Relay:
    """
    The connections to the ranks, and the open requests of each.
    """

    stdout: int
    folder: str | None = None
    local: LocalTransport | None = attrs.field(default=None, init=False)
    peers: dict[str, Peer] = attrs.field(factory=dict, init=False)

    def send(self, message: Message) -> None:
        """
        Send a message to the client.
        """
        data = encode_answer(message)
        while data:
            data = data[os.write(self.stdout, data) :]

    def receive(self, stdin: int) -> bytes:
        """
        Forward answers of ranks until the client sends something.

        Returns:
            What it sent; ``b""`` at the end of the input.
        """
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(stdin, selectors.EVENT_READ)
                for name, peer in self.peers.items():
                    one = peer.connection
                    if one.pending:
                        selector.register(one.socket, one.events, name)
                ready = [key.data for key, _ in selector.select()]
            for name in filter(None, ready):
                self._forward_answers(name)
            if None in ready:
                return os.read(stdin, _READ_BYTES)

    def handle(self, request: Message) -> None:
        """
        Handle a request of the client.
        """
        number, op = request.get("id"), str(request.get("op"))
        if "to" in request:
            self._forward_request(request)
        elif op == "hang up":
            self._disconnect(str(request.get("rank")))
        elif op in {"who", "outside"}:
            find = self._find_ranks if op == "who" else self._external_stacks
            try:
                answer = find(request)
            except (DebuggerError, OSError) as exc:
                answer = {"error": str(exc)}
            self.send({"id": number, **answer})
        else:
            self.send({"id": number, "error": "a relay does not do this"})

    def close(self) -> None:
        """
        Disconnect from all ranks.
        """
        if self.local:
            self.local.close()

    def _forward_answers(self, name: str) -> None:
        connection = self.peers[name].connection
        for number, answer in connection.answers():
            self.send({**answer, "id": number})
        if connection.is_closed:
            self._disconnect(name)

    def _forward_request(self, request: Message) -> None:
        name, number = str(request.pop("to")), request.pop("id", None)
        # Only ranks found in the folder have a name.
        if name not in self.peers:
            self.send({"id": number, "gone": True})
            return
        connection = self.peers[name].connection
        connection.pending[connection.ask(request)] = number

    def _disconnect(self, name: str) -> None:
        if name not in self.peers:
            return
        connection = self.peers.pop(name).connection
        connection.close()
        for number in connection.pending.values():
            self.send({"id": number, "gone": True})

    def _find_ranks(self, _: Message) -> Message:
        peers: dict[str, Peer] = {}
        listing = Listing()
        with suppress(FileNotFoundError):  # no rank on this node yet
            if self.local is None and (folder := choose_folder(self.folder)):
                self.local = LocalTransport(folder, _CONNECT_S)
            if self.local:
                peers, listing = self.local.peers()
        self.peers = {Path(path).name: peer for path, peer in peers.items()}
        return {
            "folder": str(self.local.folder) if self.local else "",
            "ranks": {k: [p.pid, p.uid] for k, p in self.peers.items()},
            "silent": [one.pid for one in listing.silent],
        }

    def _external_stacks(self, request: Message) -> Message:
        pids = request.get("pids")
        if not (self.local and isinstance(pids, list)):
            return {"told": []}
        # Only ranks of this job may be captured.
        ranks = {pid for _, pid in socket_paths(self.local.folder)}
        silent = [SilentProcess(host="", pid=p) for p in ranks if p in pids]
        return {"told": self.local.external_stacks(silent)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], 0, 1))

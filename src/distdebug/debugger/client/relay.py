"""
How does a client on another node reach the ranks of this one?

It is started as ``python -m distdebug.debugger.client.relay SECONDS [FOLDER]`` by
whatever brings commands to nodes, and talks over its standard input and
output, so that no port is opened.  It hands requests on to the sockets of the
job, and answers back.  It ends when its input does, and after some seconds
without a question, because a connection that was cut may seem to be there for
ever.  No rank minds.

A request that says *to* whom is for a rank.  Others are for the relay: *who*
listens, where are they as seen from *outside*, and *hang up*.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import sys

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ...errors import DebuggerError
from ..protocol import Feed, WireError, pack, socket_paths
from .calls import Peer, Reached
from .local import Here, choose_folder, stacks_from_outside


VERSION = 1

_BLOCK = 1 << 16
# A socket answers at once, or nobody does.
_CONNECT_S = 2.0
_GONE: Mapping[str, Any] = {"gone": True}


def main(
    arguments: Sequence[str],
    stdin: int,
    stdout: int,
    alarm: Callable[[int], object] = signal.alarm,
) -> int:
    """
    Hand on what a client asks until it hangs up.

    Args:
        arguments: After how many seconds without a question to end, and the
            folder of the sockets, if it was chosen.

        stdin: Where requests come from.

        stdout: Where answers go.

        alarm: Ends this process after so many seconds; with 0 it does not.

    Returns:
        The exit status.
    """
    seconds, *folder = arguments
    with selectors.DefaultSelector() as selector:
        relay = _Relay(stdout, folder[0] if folder else None, selector)
        selector.register(stdin, selectors.EVENT_READ)
        try:
            alarm(int(seconds))
            relay.say({"relay": VERSION, "host": socket.gethostname()})
            for request in _requests(stdin, selector, relay):
                # Also one who waits for a slow answer may be cut off.
                alarm(int(seconds) + math.ceil(_wait_of(request)))
                relay.obey(request)
        except (OSError, ValueError):
            return 1
        finally:
            alarm(0)
            relay.close()
    return 0


def _requests(
    stdin: int, selector: selectors.BaseSelector, relay: _Relay
) -> Iterator[dict[str, Any]]:
    feed = Feed()
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                relay.hand_back(key.data)
            elif data := os.read(stdin, _BLOCK):
                yield from feed.take(data)
            else:
                return


def _wait_of(request: dict[str, Any]) -> float:
    wait = request.get("wait")
    if not isinstance(wait, int | float):
        return 0.0
    return min(max(wait, 0.0), 86400.0)


@attrs.define
class _Relay:
    """
    The connections to the ranks, and which questions are open at each.
    """

    stdout: int
    chosen: str | None
    selector: selectors.BaseSelector
    here: Here | None = None
    peers: dict[str, Peer] = attrs.field(factory=dict)
    asked: dict[str, dict[int, int]] = attrs.field(factory=dict)

    def say(self, message: dict[str, Any]) -> None:
        """
        Tell the client something.
        """
        try:
            data = pack(message)
        except WireError as exc:
            data = pack({"id": message.get("id"), "error": str(exc)})
        while data:
            data = data[os.write(self.stdout, data) :]

    def obey(self, request: dict[str, Any]) -> None:
        """
        Do what a client asks for.
        """
        number, op = request.get("id"), str(request.get("op"))
        if "to" in request:
            self._hand_on(request)
        elif op == "hang up":
            self._drop(str(request.get("rank")))
        elif op in {"who", "outside"}:
            try:
                answer = self._who() if op == "who" else self._outside(request)
            except (DebuggerError, OSError) as exc:
                answer = {"error": str(exc)}
            self.say({"id": number, **answer})
        else:
            self.say({"id": number, "error": "a relay does not do this"})

    def hand_back(self, name: str) -> None:
        """
        Tell the client what a rank answers.
        """
        if name not in self.peers:
            return
        line, asked = self.peers[name].line, self.asked[name]
        line.flush()
        messages = line.hear()
        for message in messages or ():
            ours = message.get("id")
            if ours is None:
                # It did not understand us, and hangs up.
                self._drop(name, message)
                return
            if type(ours) is int and ours in asked:
                self.say({**message, "id": asked.pop(ours)})
        if messages is None:
            self._drop(name)
        else:
            self.selector.modify(line.socket, line.events, name)

    def close(self) -> None:
        """
        Hang up on all ranks.
        """
        if self.here:
            self.here.close()

    def _hand_on(self, request: dict[str, Any]) -> None:
        name, number = str(request.pop("to")), request.pop("id", None)
        # Only those that were found in the folder are known by a name.
        if name not in self.peers:
            self.say({"id": number, "gone": True})
            return
        line = self.peers[name].line
        self.asked[name][line.ask(request)] = number
        self.selector.modify(line.socket, line.events, name)

    def _drop(self, name: str, message: Mapping[str, Any] = _GONE) -> None:
        if name not in self.peers:
            return
        line = self.peers.pop(name).line
        self.selector.unregister(line.socket)
        line.close()
        for number in self.asked.pop(name).values():
            self.say({**message, "id": number})

    def _who(self) -> dict[str, Any]:
        try:
            if self.here is None and (folder := choose_folder(self.chosen)):
                self.here = Here(folder, _CONNECT_S)
            reached = self.here.peers() if self.here else Reached()
        except FileNotFoundError:  # there may be no rank on this node, yet
            reached = Reached()
        self._know({Path(k).name: peer for k, peer in reached.peers.items()})
        return {
            "folder": str(self.here.folder) if self.here else "",
            "ranks": {k: [p.pid, p.uid] for k, p in self.peers.items()},
            "silent": [one.pid for one in reached.silent],
        }

    def _know(self, peers: dict[str, Peer]) -> None:
        for name, peer in self.peers.items():
            if peers.get(name) is not peer:
                self.selector.unregister(peer.line.socket)
        for name, peer in peers.items():
            if self.peers.get(name) is not peer:
                line = peer.line
                self.selector.register(line.socket, line.events, name)
        self.asked = {name: self.asked.get(name, {}) for name in peers}
        self.peers = peers

    def _outside(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = request.get("pids")
        if not (self.here and isinstance(asked, list)):
            return {"told": []}
        # Nobody else is looked into.
        ranks = {pid for _, pid in socket_paths(self.here.folder)}
        return {"told": stacks_from_outside(p for p in ranks if p in asked)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], 0, 1))

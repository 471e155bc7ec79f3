"""
Who listens on other nodes?

Sockets cannot be reached from elsewhere, and no port is opened.  So each node
runs a relay, brought there by whatever brings commands to nodes.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import time

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import attrs

from ..._text import clean
from ...errors import DebuggerError
from ...nodes import Channel, Door, Talks, close_channels
from ...processes import Worker
from .calls import Line, Peer, Reached, ask_all
from .model import Known, LostNode, Silent, ranks_known, texts_told
from .relay import VERSION


# Shells and launchers may greet as well, before the relay does.
_MOST_GREETING = 1 << 16
_OTHER_FILES = 256
_GREETING = b'{"relay":'


class Relayed(NamedTuple):
    """
    A relay that can be asked.

    Attributes:
        channel: What holds it.

        line: The connection to it.
    """

    channel: Channel
    line: Line


def open_relays(
    doors: Mapping[str, Door], *, timeout_s: float, at_once: int = 64
) -> tuple[dict[str, Relayed], dict[str, LostNode]]:
    """
    Start a relay on each node.

    Args:
        doors: What starts it, by node.

        timeout_s: How long each may take until it greets, in seconds.

        at_once: How many are started at the same time.

    Returns:
        Those that greeted, and why others did not; by node.
    """
    _make_room(len(doors))
    opening = _Opening(timeout_s)
    todo = list(doors.items())[::-1]
    try:
        with selectors.DefaultSelector() as selector:
            while todo or opening.waiting:
                while todo and len(opening.waiting) < at_once:
                    opening.start(*todo.pop(), selector)
                for key, _ in selector.select(opening.left_s()):
                    opening.hear(key.data, selector)
                opening.give_up(selector)
    except BaseException:
        opened = (relay.channel for relay in opening.open.values())
        close_channels((*opening.waiting.values(), *opened))
        raise
    close_channels(opening.useless)
    return opening.open, opening.lost


def _make_room(count: int) -> None:
    """
    Each node takes a socket, and a pipe for complaints.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@attrs.define
class _Opening:
    """
    Which relays are about to greet, by node.
    """

    timeout_s: float
    open: dict[str, Relayed] = attrs.field(factory=dict)
    lost: dict[str, LostNode] = attrs.field(factory=dict)
    waiting: dict[str, Channel] = attrs.field(factory=dict)
    until: dict[str, float] = attrs.field(factory=dict)
    heard: dict[str, bytes] = attrs.field(factory=dict)
    useless: list[Channel] = attrs.field(factory=list)

    def start(
        self, host: str, door: Door, selector: selectors.BaseSelector
    ) -> None:
        """
        Start one.
        """
        try:
            channel = door()
        except OSError as exc:
            self.lost[host] = LostNode(host=host, reason=clean(str(exc)))
            return
        channel.socket.settimeout(0.0)
        self.waiting[host] = channel
        self.until[host] = time.monotonic() + self.timeout_s
        self.heard[host] = b""
        selector.register(channel.socket, selectors.EVENT_READ, host)

    def left_s(self) -> float:
        """
        For how long nobody has to be given up?
        """
        if not self.waiting:
            return 0.0
        # All have the same time, so that the first to start is the first.
        first = next(iter(self.waiting))
        return max(self.until[first] - time.monotonic(), 0.0)

    def hear(self, host: str, selector: selectors.BaseSelector) -> None:
        """
        Take what one says.
        """
        channel = self.waiting[host]
        try:
            data = channel.socket.recv(_MOST_GREETING)
        except OSError:
            data = b""
        *lines, rest = (self.heard[host] + data).split(b"\n")
        self.heard[host] = rest
        greeting = next((x for x in lines if x.startswith(_GREETING)), None)
        if greeting is not None:
            self._greeted(host, greeting)
        elif not data:
            self._lose(host, None)
        elif len(rest) > _MOST_GREETING:
            self._lose(host, "what answers there is no relay")
        else:
            return
        selector.unregister(channel.socket)

    def give_up(self, selector: selectors.BaseSelector) -> None:
        """
        Wait no more for those that take too long.
        """
        now = time.monotonic()
        for host in [h for h in self.waiting if self.until[h] <= now]:
            selector.unregister(self.waiting[host].socket)
            self._lose(host, f"no relay after {self.timeout_s:g} s")

    def _greeted(self, host: str, greeting: bytes) -> None:
        try:
            version = json.loads(greeting).get("relay")
        except (ValueError, RecursionError):
            version = "?"
        if version != VERSION:
            reason = f"its relay is of version {version!r:.20}, not {VERSION}"
            self._lose(host, reason, "install the same distdebug there")
            return
        channel = self.waiting.pop(host)
        self.open[host] = Relayed(channel, Line(channel.socket))

    def _lose(self, host: str, reason: str | None, remedy: str = "") -> None:
        channel = self.waiting.pop(host)
        self.useless.append(channel)
        self.lost[host] = (
            loss(host, channel)
            if reason is None
            else LostNode(host=host, reason=reason, remedy=remedy)
        )


def loss(host: str, channel: Channel) -> LostNode:
    """
    Why can a node not be asked, whose relay ended?

    Args:
        host: The node.

        channel: What held the relay.

    Returns:
        The node, and what is known.
    """
    trouble = channel.why()
    return LostNode(
        host=host, reason=clean(trouble.reason), remedy=clean(trouble.remedy)
    )


# Longer than py-spy may take there.
_OUTSIDE_S = 60.0


_RELAY = "distdebug.debugger.client.relay"
# So long may a person think, before the relays end and are started again.
_IDLE_S = 300


def reach_nodes(
    talks: Talks,
    folder: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 2.0,
    open_s: float = 30.0,
) -> There:
    """
    Start a relay on each node of a job.

    Args:
        talks: What brings it there.

        folder: The folder of the sockets on each node, if it was chosen.

        timeout_s: How long a relay, or a rank, may take to answer, in seconds.

        open_s: How long it may take to start a relay, in seconds.

    Returns:
        What can be asked.

    Raises:
        DebuggerError: No node can be reached.

        NodesError: The nodes are not known.
    """
    where = [] if folder is None else [os.fspath(folder)]
    # Not even a json.py in the folder of the job gets in between.
    argv = [talks.python, "-P", "-m", _RELAY, str(_IDLE_S), *where]
    with ExitStack() as kept:
        doors = kept.enter_context(talks.doors(argv))
        there = There(doors, kept, timeout_s, open_s)
        kept.callback(there.end)
        there.open()
        there.kept = kept.pop_all()
    return there


@attrs.define
class There:
    """
    The ranks behind the relays of many nodes.

    Args:
        doors: What starts the relay of each node.

        kept: What has to be closed in the end.

        timeout_s: How long a relay, or a rank, may take to answer, in seconds.

        open_s: How long it may take to start a relay, in seconds.
    """

    doors: Mapping[str, Door]
    kept: ExitStack
    timeout_s: float = 2.0
    open_s: float = 30.0
    _relays: dict[str, Relayed] = attrs.field(factory=dict, init=False)
    _lost: dict[str, LostNode] = attrs.field(factory=dict, init=False)

    def open(self) -> None:
        """
        Start the relays of all nodes that are not lost, or have one.
        """
        # If nobody is left, there is nothing better to do than to try again.
        if not self._relays:
            self._lost.clear()
        todo = {
            host: door
            for host, door in self.doors.items()
            if host not in self._lost and host not in self._relays
        }
        relays, lost = open_relays(todo, timeout_s=self.open_s)
        relays |= self._relays
        # In the order of the nodes, not in that in which they greeted.
        self._relays = {h: relays[h] for h in self.doors if h in relays}
        self._lost.update(lost)
        if self.doors and not self._relays:
            reasons = "; ".join(map(str, sorted(self._lost.values())[:4]))
            msg = f"no node can be asked: {reasons}"
            raise DebuggerError(msg, remedy="see whether they are up")

    def peers(self) -> Reached:
        """
        Ask all relays who is there.
        """
        # A relay that ended, because nobody asked for long, is started again.
        self._forget()
        self.open()
        relays = {host: Peer(r.line) for host, r in self._relays.items()}
        answers = ask_all(
            relays, {h: {"op": "who"} for h in relays}, self.timeout_s
        )
        peers: dict[str, Peer] = {}
        silent: list[Silent] = []
        lost: list[LostNode] = []
        idle: list[str] = []
        for host, answer in answers.items():
            if answer is None:
                lost.append(self._silent_relay(host))
            elif problem := answer.get("error"):
                lost.append(LostNode(host=host, reason=clean(str(problem))))
            elif (known := ranks_known(answer)) is None:
                reason = "its relay says what is no answer"
                lost.append(LostNode(host=host, reason=reason))
            elif not (known.ranks or known.silent):
                idle.append(host)
            else:
                peers.update(_peers(host, self._relays[host], known))
                silent += (Silent(host=host, pid=p) for p in known.silent)
        return Reached(
            peers=peers,
            silent=tuple(silent),
            lost=(*self._lost.values(), *lost),
            idle=tuple(idle),
        )

    def broken(self) -> tuple[LostNode, ...]:
        """
        Which relays ended since they were asked, and why?
        """
        return tuple(
            loss(host, relay.channel)
            for host, relay in self._relays.items()
            if not relay.line.is_open()
        )

    def outside(self, silent: Iterable[Silent]) -> tuple[str, ...]:
        """
        Ask the relays where those are that do not answer.
        """
        pids: dict[str, list[int]] = {}
        for one in silent:
            pids.setdefault(one.host, []).append(one.pid)
        relays = {host: Peer(self._relays[host].line) for host in pids}
        requests = {h: {"op": "outside", "pids": pids[h]} for h in pids}
        answers = ask_all(relays, requests, _OUTSIDE_S)
        return tuple(
            f"{host}: {text}"
            for host, answer in answers.items()
            for text in texts_told(answer)
        )

    def unarmed(self) -> tuple[Worker, ...]:
        """
        On other nodes, nobody looks for them.
        """
        return ()

    def close(self) -> None:
        """
        Let all relays end.
        """
        self.kept.close()

    def end(self) -> None:
        """
        Hang up on the relays.
        """
        channels = [relay.channel for relay in self._relays.values()]
        self._relays.clear()
        close_channels(channels)

    def _forget(self) -> None:
        gone = [h for h, r in self._relays.items() if not r.line.is_open()]
        close_channels(self._relays.pop(host).channel for host in gone)

    def _silent_relay(self, host: str) -> LostNode:
        relay = self._relays[host]
        if relay.line.is_over:
            return loss(host, relay.channel)

        reason = f"its relay does not answer within {self.timeout_s:g} s"
        return LostNode(host=host, reason=reason)


def _peers(
    host: str, relay: Relayed, known: Known
) -> Iterable[tuple[str, Peer]]:
    for name, (pid, uid) in known.ranks.items():
        path = f"{host}:{known.folder}/{name}"
        yield path, Peer(relay.line, pid, uid, host, name)

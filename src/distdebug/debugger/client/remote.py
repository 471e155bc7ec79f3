"""
Relays on other nodes, and the connections to the ranks behind them.

The sockets of ranks are local to their node, and no port is opened.  So a
relay runs on each node, started over ssh, by Slurm, or by Ray.
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
from ...nodes import Channel, Connector, StreamExecutor, close_channels
from ...processes import Worker
from .connections import Connection, DiscoveredPeers, Peer, ask_all
from .model import (
    LostNode,
    RelayRanks,
    SilentProcess,
    parse_relay_ranks,
    parse_stack_texts,
)
from .relay import VERSION


# Shells and launchers may print text before the relay greets.
_MAX_GREETING_BYTES = 1 << 16
_RESERVED_FILES = 256
# How many relays start at a time, and how long each may take to greet.
_MAX_STARTING, _OPEN_S = 64, 30.0
_GREETING = b'{"relay":'


class OpenRelay(NamedTuple):
    """
    A relay that has greeted.

    Attributes:
        channel: The process that runs it.
    """

    channel: Channel
    connection: Connection


def open_relays(
    connectors: Mapping[str, Connector],
) -> tuple[dict[str, OpenRelay], dict[str, LostNode]]:
    """
    Start a relay on each node, many at the same time.

    Returns:
        The open relays and the lost nodes, by node.
    """
    _raise_file_limit(len(connectors))
    starter = _RelayStarter()
    todo = list(connectors.items())[::-1]
    try:
        with selectors.DefaultSelector() as selector:
            while todo or starter.waiting:
                while todo and len(starter.waiting) < _MAX_STARTING:
                    starter.start(*todo.pop(), selector)
                for key, _ in selector.select(starter.remaining_s()):
                    starter.receive(key.data, selector)
                starter.expire(selector)
    except BaseException:
        opened = (relay.channel for relay in starter.open.values())
        close_channels((*starter.waiting.values(), *opened))
        raise
    close_channels(starter.failed)
    return starter.open, starter.lost


def _raise_file_limit(count: int) -> None:
    """
    Raise the limit of open files: each node needs a socket and a pipe.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * count + _RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft_limit = (
            needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard))


@attrs.define
class _RelayStarter:
    """
    The relays that are starting, by node.
    """

    open: dict[str, OpenRelay] = attrs.field(factory=dict)
    lost: dict[str, LostNode] = attrs.field(factory=dict)
    waiting: dict[str, Channel] = attrs.field(factory=dict)
    deadlines: dict[str, float] = attrs.field(factory=dict)
    buffers: dict[str, bytes] = attrs.field(factory=dict)
    failed: list[Channel] = attrs.field(factory=list)

    def start(
        self, host: str, connector: Connector, selector: selectors.BaseSelector
    ) -> None:
        """
        Start the relay of a node.
        """
        try:
            channel = connector()
        except OSError as exc:
            self.lost[host] = LostNode(host=host, reason=clean(str(exc)))
            return
        channel.socket.settimeout(0.0)
        self.waiting[host] = channel
        self.deadlines[host] = time.monotonic() + _OPEN_S
        self.buffers[host] = b""
        selector.register(channel.socket, selectors.EVENT_READ, host)

    def remaining_s(self) -> float:
        """
        Return the seconds until the next deadline.
        """
        if not self.waiting:
            return 0.0
        # All have the same timeout: the first to start is the first to expire.
        first = next(iter(self.waiting))
        return max(self.deadlines[first] - time.monotonic(), 0.0)

    def receive(self, host: str, selector: selectors.BaseSelector) -> None:
        """
        Read the greeting of a relay.
        """
        channel = self.waiting[host]
        try:
            data = channel.socket.recv(_MAX_GREETING_BYTES)
        except OSError:
            data = b""
        *lines, rest = (self.buffers[host] + data).split(b"\n")
        self.buffers[host] = rest
        greeting = next((x for x in lines if x.startswith(_GREETING)), None)
        if greeting is not None:
            self._accept_greeting(host, greeting)
        elif not data:
            self._mark_lost(lost_node(host, channel))
        elif len(rest) > _MAX_GREETING_BYTES:
            reason = "what answers there is no relay"
            self._mark_lost(LostNode(host=host, reason=reason))
        else:
            return
        selector.unregister(channel.socket)

    def expire(self, selector: selectors.BaseSelector) -> None:
        """
        Give up relays whose deadline has passed.
        """
        now = time.monotonic()
        for host in [h for h in self.waiting if self.deadlines[h] <= now]:
            selector.unregister(self.waiting[host].socket)
            reason = f"no relay after {_OPEN_S:g} s"
            self._mark_lost(LostNode(host=host, reason=reason))

    def _accept_greeting(self, host: str, greeting: bytes) -> None:
        try:
            version = json.loads(greeting).get("relay")
        except (ValueError, RecursionError):
            version = "?"
        if version != VERSION:
            reason = f"its relay is of version {version!r:.20}, not {VERSION}"
            remedy = "install the same distdebug there"
            self._mark_lost(LostNode(host=host, reason=reason, remedy=remedy))
            return
        channel = self.waiting.pop(host)
        self.open[host] = OpenRelay(channel, Connection(channel.socket))

    def _mark_lost(self, node: LostNode) -> None:
        self.failed.append(self.waiting.pop(node.host))
        self.lost[node.host] = node


def lost_node(host: str, channel: Channel) -> LostNode:
    """
    Return a lost node, with the reason why its relay ended.
    """
    failure = channel.failure()
    return LostNode(
        host=host, reason=clean(failure.reason), remedy=clean(failure.remedy)
    )


# Longer than py-spy may take on the node.
_EXTERNAL_STACKS_S = 60.0


_RELAY_MODULE = "distdebug.debugger.client.relay"
# An idle relay ends after this time; the next request starts it again.
_RELAY_IDLE_S = 300


def connect_nodes(
    executor: StreamExecutor,
    folder: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 2.0,
) -> RemoteTransport:
    """
    Start a relay on each node of a job.

    Args:
        folder: The folder of the sockets on each node, if the user named it.

        timeout_s: How long a relay or rank may take to answer, in seconds.

    Raises:
        DebuggerError: No node can be reached.

        NodesError: The nodes are unknown.
    """
    where = [] if folder is None else [os.fspath(folder)]
    # -P: a json.py in the working folder must not shadow the library's.
    argv = [
        executor.python,
        "-P",
        "-m",
        _RELAY_MODULE,
        str(_RELAY_IDLE_S),
        *where,
    ]
    with ExitStack() as resources:
        connectors = resources.enter_context(executor.connectors(argv))
        transport = RemoteTransport(connectors, resources, timeout_s)
        resources.callback(transport.end)
        transport.open()
        transport.resources = resources.pop_all()
    return transport


@attrs.define
class RemoteTransport:
    """
    The connections to the ranks of other nodes, through relays.

    Args:
        resources: The resources to close at the end.

        timeout_s: How long a relay or rank may take to answer, in seconds.
    """

    connectors: Mapping[str, Connector]
    resources: ExitStack
    timeout_s: float
    _relays: dict[str, OpenRelay] = attrs.field(factory=dict, init=False)
    _lost: dict[str, LostNode] = attrs.field(factory=dict, init=False)

    def open(self) -> None:
        """
        Start a relay on each node that has none and is not lost.
        """
        # Without any relay, try the lost nodes again.
        if not self._relays:
            self._lost.clear()
        todo = {
            host: connector
            for host, connector in self.connectors.items()
            if host not in self._lost and host not in self._relays
        }
        relays, lost = open_relays(todo)
        relays |= self._relays
        # Keep the order of the nodes, not the order of the greetings.
        self._relays = {h: relays[h] for h in self.connectors if h in relays}
        self._lost.update(lost)
        if self.connectors and not self._relays:
            reasons = "; ".join(map(str, sorted(self._lost.values())[:4]))
            msg = f"no node can be asked: {reasons}"
            raise DebuggerError(msg, remedy="see whether they are up")

    def peers(self) -> DiscoveredPeers:
        """
        Ask all relays for their ranks.
        """
        # Restart relays that ended because they were idle.
        self._close_ended()
        self.open()
        relays = {host: Peer(r.connection) for host, r in self._relays.items()}
        answers = ask_all(
            relays, {h: {"op": "who"} for h in relays}, self.timeout_s
        )
        peers: dict[str, Peer] = {}
        silent: list[SilentProcess] = []
        lost: list[LostNode] = []
        idle: list[str] = []
        for host, answer in answers.items():
            if answer is None:
                lost.append(self._unanswered_relay(host))
            elif problem := answer.get("error"):
                lost.append(LostNode(host=host, reason=clean(str(problem))))
            elif (relay_ranks := parse_relay_ranks(answer)) is None:
                reason = "its relay says what is no answer"
                lost.append(LostNode(host=host, reason=reason))
            elif not (relay_ranks.ranks or relay_ranks.silent):
                idle.append(host)
            else:
                peers.update(_peers(host, self._relays[host], relay_ranks))
                silent += (
                    SilentProcess(host=host, pid=p) for p in relay_ranks.silent
                )
        return DiscoveredPeers(
            peers=peers,
            silent=tuple(silent),
            lost=(*self._lost.values(), *lost),
            idle=tuple(idle),
        )

    def lost_nodes(self) -> tuple[LostNode, ...]:
        """
        Return the nodes whose relay has ended, and why.
        """
        return tuple(
            lost_node(host, relay.channel)
            for host, relay in self._relays.items()
            if not relay.connection.is_open()
        )

    def external_stacks(
        self, silent: Iterable[SilentProcess]
    ) -> tuple[str, ...]:
        """
        Ask the relays for the stacks of silent processes.
        """
        pids: dict[str, list[int]] = {}
        for one in silent:
            pids.setdefault(one.host, []).append(one.pid)
        relays = {host: Peer(self._relays[host].connection) for host in pids}
        requests = {h: {"op": "outside", "pids": pids[h]} for h in pids}
        answers = ask_all(relays, requests, _EXTERNAL_STACKS_S)
        return tuple(
            f"{host}: {text}"
            for host, answer in answers.items()
            for text in parse_stack_texts(answer)
        )

    def unarmed(self) -> tuple[Worker, ...]:
        """
        Return nothing: other nodes are not searched.
        """
        return ()

    def close(self) -> None:
        """
        End all relays, and close the resources.
        """
        self.resources.close()

    def end(self) -> None:
        """
        Close the connections to the relays.
        """
        channels = [relay.channel for relay in self._relays.values()]
        self._relays.clear()
        close_channels(channels)

    def _close_ended(self) -> None:
        ended = [
            h for h, r in self._relays.items() if not r.connection.is_open()
        ]
        close_channels(self._relays.pop(host).channel for host in ended)

    def _unanswered_relay(self, host: str) -> LostNode:
        relay = self._relays[host]
        if relay.connection.is_closed:
            return lost_node(host, relay.channel)

        reason = f"its relay does not answer within {self.timeout_s:g} s"
        return LostNode(host=host, reason=reason)


def _peers(
    host: str, relay: OpenRelay, relay_ranks: RelayRanks
) -> Iterable[tuple[str, Peer]]:
    for name, (pid, uid) in relay_ranks.ranks.items():
        path = f"{host}:{relay_ranks.folder}/{name}"
        yield path, Peer(relay.connection, pid, uid, host, name)

"""
How are relays started on many nodes at the same time?
"""

from __future__ import annotations

import json
import resource
import selectors
import time

from collections.abc import Mapping
from typing import NamedTuple

import attrs

from ..._text import clean
from ...nodes.stream import Channel, Door, close_channels
from ..relay import VERSION
from .calls import Line
from .model import LostNode


__all__ = ["Relayed", "loss", "open_relays"]

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

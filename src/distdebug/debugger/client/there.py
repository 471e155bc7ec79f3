"""
Who listens on other nodes?

Sockets cannot be reached from elsewhere, and no port is opened.  So each node
runs a relay, brought there by whatever brings commands to nodes.
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import attrs

from ..._text import clean
from ...errors import DebuggerError
from ...nodes.stream import Door, Talks, close_channels
from ...processes.model import Worker
from .calls import Peer, ask_all
from .model import LostNode, Silent
from .opening import Relayed, loss, open_relays
from .reach import Reached
from .reading import Known, ranks_known, texts_told


__all__ = ["There", "reach_nodes"]

# Longer than py-spy may take there.
_OUTSIDE_S = 60.0


_RELAY = "distdebug.debugger.relay"
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

"""
Who listens, and what do those that are selected answer?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import attrs

from ...ranks import RankSelection
from .calls import Peer, Reach, ask_all, choose, sources_to_lend
from .local import unreadable_told
from .model import (
    Answers,
    Listing,
    LostNode,
    Output,
    Process,
    Session,
    Silent,
    outputs_of,
    process_key,
    process_of,
    read_output,
)


__all__ = ["Ranks"]

# What an answer may take longer than the rank was told to wait.
_SLACK_S = 1.0


@attrs.define
class Ranks:
    """
    All ranks that can be reached.

    Args:
        reach: Where they are looked for.
    """

    reach: Reach
    _lent: set[str] = attrs.field(factory=set, init=False)

    def close(self) -> None:
        """
        Hang up.
        """
        self.reach.close()

    def listing(self) -> Listing:
        """
        Find out who listens, and who is stopped.
        """
        with unreadable_told():
            reached = self.reach.peers()
        peers = reached.peers
        answers = ask_all(
            peers, {k: {"op": "list"} for k in peers}, self.reach.timeout_s
        )
        self._lend(peers, answers)
        broken = self.reach.broken()
        return Listing(
            processes=_processes(peers, answers),
            silent=(*reached.silent, *_silent(peers, answers, broken)),
            lost=_once((*reached.lost, *broken)),
            idle=reached.idle,
        )

    def ask_processes(
        self,
        ranks: RankSelection | str | None,
        group: str | None,
        request: dict[str, Any],
        *,
        wait_s: float = 0.0,
        among: Iterable[Process] | None = None,
    ) -> Answers:
        """
        Ask processes, whatever their threads are doing.

        Args:
            ranks: Which.

            group: Their group.

            request: What to ask.

            wait_s: How long they may take, in seconds.

            among: Ask only these, which have been selected already.

        Returns:
            What they answered.
        """
        listing = Listing()
        if among is None:
            listing = self.listing()
            among = _chosen(listing, ranks, group)
        chosen = {p.path: p for p in among}
        told = self._ask(dict.fromkeys(chosen, request), wait_s)
        return Answers(
            outputs=tuple(
                read_output(chosen[path], answer)
                for path, answer in told.answers.items()
                if answer is not None
            ),
            silent=(*listing.silent, *told.silent),
            lost=_once((*listing.lost, *told.lost)),
        )

    def ask_stopped(
        self,
        ranks: RankSelection | str | None,
        group: str | None,
        request: dict[str, Any],
    ) -> Answers:
        """
        Ask all threads that are held in some ranks.

        Args:
            ranks: Which ranks.

            group: Their group; it may be left out as well if only one has
                threads that are held.

            request: What to ask.

        Returns:
            What they answered, and which ranks are not stopped.
        """
        listing = self.listing()
        if ranks is not None and group is None:
            group = _only_held_group(listing)
        chosen = _chosen(listing, ranks, group)
        held = [(p, s) for p in chosen for s in p.sessions]
        answers = self.ask_sessions(held, request)
        return attrs.evolve(
            answers,
            not_stopped=tuple(p for p in chosen if not p.sessions),
            silent=(*listing.silent, *answers.silent),
            lost=_once((*listing.lost, *answers.lost)),
        )

    def ask_sessions(
        self,
        held: Iterable[tuple[Process, Session]],
        request: dict[str, Any],
    ) -> Answers:
        """
        Ask threads that are held, each once.

        Args:
            held: Which threads, of which processes.

            request: What to ask.

        Returns:
            What they answered.
        """
        by_path: dict[str, dict[str, tuple[Process, Session]]] = {}
        for process, session in held:
            keys = by_path.setdefault(process.path, {})
            keys[session.key] = process, session
        told = self._ask(
            {path: {**request, "keys": [*k]} for path, k in by_path.items()},
            float(request.get("wait", 0.0)),
        )
        outputs: list[Output] = []
        for path, answer in told.answers.items():
            if answer is not None:
                outputs += [
                    read_output(p, outputs_of(answer, key), session=s)
                    for key, (p, s) in by_path[path].items()
                ]
        return Answers(
            outputs=tuple(outputs), silent=told.silent, lost=told.lost
        )

    def _ask(
        self, requests: dict[str, dict[str, Any]], wait_s: float
    ) -> _Told:
        if not requests:
            return _Told()

        with unreadable_told():
            reached = self.reach.peers()
        peers = reached.peers
        there = {p: r for p, r in requests.items() if p in peers}
        answers = ask_all(
            peers, there, wait_s + self.reach.timeout_s + _SLACK_S
        )
        broken = self.reach.broken()
        return _Told(
            answers={path: answers.get(path) for path in requests},
            silent=_silent(peers, answers, broken),
            lost=broken,
        )

    def _lend(
        self, peers: Mapping[str, Peer], answers: Mapping[str, Any]
    ) -> None:
        """
        Send sources to those that miss them, each once.
        """
        lent = {}
        for path, answer in answers.items():
            missing = (answer or {}).get("missing")
            if missing and f"{path} {missing}" not in self._lent:
                self._lent.add(f"{path} {missing}")
                peer = peers[path]
                lent[path] = sources_to_lend(
                    peer.uid, missing, is_elsewhere=bool(peer.host)
                )
        while requests := {
            path: request
            for path, sources in lent.items()
            if (request := next(sources, None))
        }:
            ask_all(peers, requests, self.reach.timeout_s)


class _Told(NamedTuple):
    """
    What was answered, by whom not, and from where nothing can be.
    """

    answers: Mapping[str, dict[str, Any] | None] = {}
    silent: tuple[Silent, ...] = ()
    lost: tuple[LostNode, ...] = ()


def _chosen(
    listing: Listing, ranks: RankSelection | str | None, group: str | None
) -> tuple[Process, ...]:
    # If nobody answers at all, that is what there is to say.
    if not listing.processes and (listing.silent or listing.lost):
        return ()

    return choose(listing, ranks, group)


def _only_held_group(listing: Listing) -> str | None:
    groups = {process.group for process, _ in listing.sessions}
    return groups.pop() if len(groups) == 1 else None


def _once(lost: Iterable[LostNode]) -> tuple[LostNode, ...]:
    """
    Each node with what was known of it first.
    """
    found: dict[str, LostNode] = {}
    for node in lost:
        found.setdefault(node.host, node)
    return tuple(found.values())


def _silent(
    peers: Mapping[str, Peer],
    answers: Mapping[str, object],
    broken: Iterable[LostNode],
) -> tuple[Silent, ...]:
    lost = {node.host for node in broken}
    return tuple(
        Silent(host=peers[path].host, pid=peers[path].pid)
        for path, answer in answers.items()
        if answer is None and peers[path].host not in lost
    )


def _processes(
    peers: Mapping[str, Peer],
    answers: Mapping[str, dict[str, Any] | None],
) -> tuple[Process, ...]:
    """
    Whoever answered, each once: two names of a node may lead to one.
    """
    found: dict[object, Process] = {}
    for path, answer in answers.items():
        if answer is not None:
            process = process_of(path, answer)
            # It is known by the name under which it was asked.
            host = peers[path].host or process.host
            found.setdefault(
                process_key(process, answer), attrs.evolve(process, host=host)
            )
    return _told_apart(sorted(found.values(), key=attrgetter("place")))


def _told_apart(processes: Iterable[Process]) -> tuple[Process, ...]:
    """
    Name those that a rank has started: they come after it, by their numbers.
    """
    seen: set[tuple[str, int | None, str]] = set()
    named = []
    for p in processes:
        key = p.group, p.rank, p.host
        is_another = p.rank is not None and key in seen
        seen.add(key)
        name = "other process" if is_another else ""
        named.append(attrs.evolve(p, name=name))
    return tuple(named)

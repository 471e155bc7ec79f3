"""
How are the ranks of a job asked, and steered?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import attrs

from ...errors import DebuggerError
from ...ranks import RankSelection
from ..protocol import base_folder
from .calls import (
    Peer,
    Reach,
    ask_all,
    choose,
    choose_session,
    choose_workers,
    sources_to_lend,
)
from .local import Here, choose_folder, stacks_of_unarmed, unreadable_told
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
    ranks_told,
    read_output,
)
from .remote import reach_nodes


if TYPE_CHECKING:
    from ...nodes import Talks


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


@attrs.frozen
class Attached:
    """
    One thread of one rank, talked to alone.

    Args:
        ranks: All that can be asked.

        process: The process.

        session: Its thread.
    """

    ranks: Ranks
    process: Process
    session: Session

    def send(self, line: str, *, wait_s: float = 5.0) -> Output:
        """
        Let it obey one command of pdb.

        Args:
            line: The command; an empty one repeats the last.

            wait_s: How long to wait until it stops again, in seconds.

        Returns:
            What it printed, and whether it is stopped, running, or goes on.

        Raises:
            DebuggerError: It does not answer.
        """
        return self._ask({"op": "command", "line": line, "wait": wait_s})

    def last(self) -> Output:
        """
        Ask what it printed last, which tells where it is.

        Raises:
            DebuggerError: It does not answer.
        """
        return self._ask({"op": "last", "wait": 0.0})

    def _ask(self, request: dict[str, Any]) -> Output:
        answers = self.ranks.ask_sessions(
            [(self.process, self.session)], request
        )
        for output in answers.outputs:
            return output

        msg = f"{ranks_told([self.process.rank])} does not answer"
        raise DebuggerError(msg, remedy="see: list")


_Ranks = RankSelection | str | None


def connect(  # noqa: PLR0913 most can be left out
    folder: str | os.PathLike[str] | None = None,
    *,
    slurm: str | int | None = None,
    ray: str | None = None,
    hosts: Iterable[str] | None = None,
    nodes: Talks | None = None,
    timeout_s: float = 2.0,
) -> DebugClient:
    """
    Ask the ranks of a job, on this node or on all of its nodes.

    Ranks that begin to listen later are found as well.  On other nodes, each
    of which needs *distdebug*, a relay is started, which ends with this
    client, or when it is not used for some minutes.

    Args:
        folder: The folder of their sockets, on every node; by default
            ``DISTDEBUG_DIR``, or that of the only job of this user that
            listens there.

        slurm: The nodes of this running Slurm job, by its number.

        ray: The nodes of the Ray cluster at this address; ``"auto"`` is the
            one that this node belongs to.

        hosts: Hosts that ssh reaches without a password.

        nodes: Or whatever brings programs to nodes, such as
            ``Slurm(job=1234, container_name="train")``.

        timeout_s: How long a rank may take to answer, in seconds.

    Returns:
        The client.  It holds no rank; if it ends, all stay as they are.

    Raises:
        DebuggerError: The folder cannot be read or is not ours alone, several
            jobs listen, or no node can be reached.

        NodesError: The nodes are not known.
    """
    given = [x for x in (slurm, ray, hosts, nodes) if x is not None]
    if len(given) > 1:
        msg = "either slurm, ray, hosts, or nodes can be given"
        raise DebuggerError(msg, remedy="give one of them")
    if given:
        talks = nodes or _talks(slurm=slurm, ray=ray, hosts=hosts)
        reach = reach_nodes(talks, folder, timeout_s=timeout_s)
        return DebugClient(Ranks(reach))

    with unreadable_told():
        path = choose_folder(folder, timeout_s)
    if path is None:
        msg = f"no job of yours listens on this node, below {base_folder()}"
        raise DebuggerError(
            msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
        )
    return DebugClient(Ranks(Here(path, timeout_s)))


def _talks(
    *,
    slurm: str | int | None,
    ray: str | None,
    hosts: Iterable[str] | None,
) -> Talks:
    if slurm is not None:
        from ...nodes import Slurm

        return Slurm(job=str(slurm))
    if ray is not None:
        from ...nodes import Ray

        return Ray(ray)

    from ...nodes import Ssh

    return Ssh(tuple(hosts or ()))


@attrs.frozen
class DebugClient:
    """
    Asks the ranks of one job: see :func:`connect`.

    Selections are written as ``"ranks(dp=1)"``; `None` means every rank.  The
    group may be left out if there is only one.

    Args:
        ranks: The connections to them.
    """

    ranks: Ranks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """
        Hang up.  Ranks that are stopped stay so, until their limit.
        """
        self.ranks.close()

    # -- questions that stop nobody

    def list(self) -> Listing:
        """
        Find out which ranks listen, and which of them are stopped.

        Returns:
            All of them, also those that run.

        Raises:
            DebuggerError: The folder of their sockets is gone, or cannot be
                read.
        """
        return self.ranks.listing()

    def eval(  # noqa: PLR0913 most can be left out
        self,
        ranks: _Ranks,
        expression: str,
        *,
        group: str | None = None,
        wait_s: float = 5.0,
        copy: bool = False,
        up: int = 0,
    ) -> Answers:
        """
        Evaluate an expression in ranks, whatever they are doing.

        It sees the variables of the innermost line of the user's own code, and
        runs beside the main thread.  So it works in a rank that is blocked.

        Args:
            ranks: Which ranks.

            expression: A Python expression.

            group: Their group.

            wait_s: How long it may take, in seconds.

            copy: Whether to copy tensors from a device to show them, which
                may wait for the collective that hangs.

            up: How many callers further out to look.

        Returns:
            The values as text.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {
            "op": "eval",
            "expression": expression,
            "wait": wait_s,
            "copy": copy,
            "up": up,
        }
        return self.ranks.ask_processes(ranks, group, request, wait_s=wait_s)

    def stack(
        self,
        ranks: _Ranks = None,
        *,
        group: str | None = None,
        all_threads: bool = False,
    ) -> Answers:
        """
        Ask where ranks are, whatever they are doing.

        Of a rank that does not answer, because native code holds its
        interpreter, py-spy tells the stack, if it may; so it does of ranks of
        the same job on this node that are not armed.

        Args:
            ranks: Which ranks.

            group: Their group.

            all_threads: Whether to tell of other threads than the one that
                works, and those that are stopped.

        Returns:
            Their stacks.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "stack", "all": all_threads}
        with unreadable_told():
            others = self.ranks.reach.unarmed()
        unarmed = choose_workers(others, ranks, group)
        try:
            answers = self.ranks.ask_processes(ranks, group, request)
        except DebuggerError:
            if not unarmed:
                raise
            answers = Answers()
        notes = self.ranks.reach.outside(answers.silent)
        return attrs.evolve(
            answers, notes=(*notes, *stacks_of_unarmed(unarmed))
        )

    # -- what stops ranks, or lets them go on

    def cast(
        self,
        ranks: _Ranks,
        line: str,
        *,
        group: str | None = None,
        wait_s: float = 5.0,
    ) -> Answers:
        """
        Let all stopped threads of some ranks obey one command of pdb.

        Each obeys once, however often the selection names it.

        Args:
            ranks: Which ranks.

            line: The command, such as ``"p loss"`` or ``"next"``.

            group: Their group.

            wait_s: How long to wait until all stop again, in seconds.

        Returns:
            What each printed.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "command", "line": line, "wait": wait_s}
        return self.ranks.ask_stopped(ranks, group, request)

    def attach(
        self,
        rank: int | None = None,
        *,
        group: str | None = None,
        number: int | None = None,
    ) -> Attached:
        """
        Talk to one stopped thread alone.

        Args:
            rank: Its rank.

            group: The group of that.

            number: Or its number in the listing, counted from 1.

        Returns:
            The thread.  To let go of it, do nothing.

        Raises:
            DebuggerError: It is not stopped, or more than one of that rank is.
        """
        found = choose_session(
            self.list(), rank=rank, group=group, number=number
        )
        return Attached(self.ranks, *found)

    def interrupt(
        self,
        ranks: _Ranks = None,
        *,
        group: str | None = None,
        wait_s: float = 1.0,
    ) -> Answers:
        """
        Stop the main thread of ranks at the next line they come to.

        No signal is sent.  A rank that is blocked in native code stops when
        that returns.

        Args:
            ranks: Which ranks.

            group: Their group.

            wait_s: How long to wait for them, in seconds.

        Returns:
            Who stopped, and who is blocked where.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "interrupt", "wait": wait_s}
        return self.ranks.ask_processes(ranks, group, request, wait_s=wait_s)

    def resume(
        self, ranks: _Ranks = None, *, group: str | None = None
    ) -> Answers:
        """
        Let ranks go on, without breakpoints, and stop none that was to be.

        Args:
            ranks: Which ranks.

            group: Their group.

        Returns:
            Who goes on.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "command", "line": "detach", "wait": 1.0}
        stopped = self.ranks.ask_stopped(ranks, group, request)
        waiting = self.ranks.ask_processes(
            ranks, group, {"op": "resume"}, among=stopped.not_stopped
        )
        return Answers(
            outputs=(*stopped.outputs, *waiting.outputs),
            silent=tuple(dict.fromkeys((*stopped.silent, *waiting.silent))),
            lost=tuple(dict.fromkeys((*stopped.lost, *waiting.lost))),
        )

    def extend(
        self, seconds: float, ranks: _Ranks = None, *, group: str | None = None
    ) -> Answers:
        """
        Let ranks wait longer for the next command.

        Args:
            seconds: For how long from now on.

            ranks: Which ranks.

            group: Their group.

        Returns:
            Who does so.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "extend", "seconds": seconds}
        return self.ranks.ask_stopped(ranks, group, request)

    def abort(
        self, ranks: RankSelection | str, *, group: str | None = None
    ) -> Answers:
        """
        End ranks that are stopped, by an exception at the line where they are.

        Args:
            ranks: Which ranks.

            group: Their group.

        Returns:
            Who ends.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "command", "line": "abort", "wait": 1.0}
        return self.ranks.ask_stopped(ranks, group, request)

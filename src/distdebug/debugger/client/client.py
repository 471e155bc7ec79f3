"""
Client for the ranks of a job: `connect` and `DebugClient`.
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import attrs

from ..._text import clean
from ...errors import DebuggerError
from ...ranks import RankSelection
from ..protocol import Message, base_folder, socket_rank
from .connections import Peer, ask_all, source_requests
from .local import (
    LocalTransport,
    choose_folder,
    unarmed_stacks,
    wrap_folder_errors,
)
from .model import (
    Answers,
    Listing,
    LostNode,
    Output,
    Process,
    RankSelector,
    Session,
    SilentProcess,
    format_rank_phrase,
    parse_process,
    process_key,
    read_output,
    select_processes,
    select_session,
    select_workers,
    thread_answer,
)
from .remote import RemoteTransport, connect_nodes


if TYPE_CHECKING:
    from ...nodes import StreamExecutor


# How much longer an answer may take than the wait asked of the rank.
_ANSWER_MARGIN_S = 1.0


@attrs.define
class RankConnections:
    """
    The connections to all ranks of a job.
    """

    transport: LocalTransport | RemoteTransport
    _sent_sources: set[str] = attrs.field(factory=set, init=False)

    def close(self) -> None:
        """
        Close all connections.
        """
        self.transport.close()

    def listing(self) -> Listing:
        """
        List the ranks that listen, and their stopped threads.
        """
        with wrap_folder_errors():
            discovered = self.transport.peers()
        peers = discovered.peers
        answers = ask_all(
            peers, {k: {"op": "list"} for k in peers}, self.transport.timeout_s
        )
        self._send_sources(peers, answers)
        lost_nodes = self.transport.lost_nodes()
        listed = {k: a for k, a in answers.items() if a and not _is_refusal(a)}
        others = {k: a for k, a in answers.items() if k not in listed}
        return Listing(
            processes=_processes(peers, listed),
            silent=(
                *discovered.silent,
                *_silent_processes(peers, others, lost_nodes),
            ),
            lost=_unique_nodes((*discovered.lost, *lost_nodes)),
            idle=discovered.idle,
        )

    def ask_processes(
        self,
        ranks: RankSelector,
        group: str | None,
        request: Message,
        *,
        among: Iterable[Process] | None = None,
    ) -> Answers:
        """
        Send a request to processes, whether their threads are stopped or not.

        Args:
            ranks: The selected ranks; ``None`` for all.

            among: Processes to ask instead of a selection.
        """
        listing = Listing()
        if among is None:
            listing = self.listing()
            among = _select(listing, ranks, group)
        answers = self.ask_sessions(((p, None) for p in among), request)
        return _add_unasked(answers, listing)

    def ask_stopped(
        self, ranks: RankSelector, group: str | None, request: Message
    ) -> Answers:
        """
        Send a request to all stopped threads of the selected ranks.

        Args:
            ranks: The selected ranks; ``None`` for all.

            group: May be ``None`` if only one group has stopped threads.

        Returns:
            The answers, and the selected ranks that are not stopped.
        """
        listing = self.listing()
        if ranks is not None and group is None:
            group = _only_stopped_group(listing)
        chosen = _select(listing, ranks, group)
        stopped = [(p, s) for p in chosen for s in p.sessions]
        answers = self.ask_sessions(stopped, request)
        others = tuple(p for p in chosen if not p.sessions)
        return _add_unasked(attrs.evolve(answers, not_stopped=others), listing)

    def ask_sessions(
        self,
        targets: Iterable[tuple[Process, Session | None]],
        request: Message,
    ) -> Answers:
        """
        Send a request to stopped threads or processes, to each one once.

        Args:
            targets: Processes, each with the thread to ask; ``None`` asks the
                process itself.

            request: *wait* is how long it may take in the rank, in seconds.
        """
        by_path: dict[str, dict[str, tuple[Process, Session | None]]] = {}
        for process, session in targets:
            key = session.key if session else ""
            by_path.setdefault(process.path, {})[key] = process, session
        if not by_path:
            return Answers()

        with wrap_folder_errors():
            peers = self.transport.peers().peers
        requests = {
            path: {**request, "keys": [*filter(None, keys)]}
            for path, keys in by_path.items()
            if path in peers
        }
        wait_s = float(request.get("wait", 0.0)) + _ANSWER_MARGIN_S
        answers = ask_all(peers, requests, wait_s + self.transport.timeout_s)
        lost_nodes = self.transport.lost_nodes()
        outputs = (
            read_output(p, thread_answer(answer, key), session=s)
            for path, answer in answers.items()
            if answer is not None
            for key, (p, s) in by_path[path].items()
        )
        unanswered = {k: None for k, a in answers.items() if a is None}
        return Answers(
            outputs=tuple(outputs),
            silent=_silent_processes(peers, unanswered, lost_nodes),
            lost=lost_nodes,
        )

    def _send_sources(
        self, peers: Mapping[str, Peer], answers: Mapping[str, Any]
    ) -> None:
        """
        Send missing source files to the ranks, each list of files once.
        """
        sources_by_path = {}
        for path, answer in answers.items():
            missing = (answer or {}).get("missing")
            if missing and f"{path} {missing}" not in self._sent_sources:
                self._sent_sources.add(f"{path} {missing}")
                peer = peers[path]
                sources_by_path[path] = source_requests(
                    peer.uid, missing, is_remote=bool(peer.host)
                )
        while requests := {
            path: request
            for path, sources in sources_by_path.items()
            if (request := next(sources, None))
        }:
            ask_all(peers, requests, self.transport.timeout_s)


def _is_refusal(answer: Mapping[str, Any]) -> bool:
    return "error" in answer and "process" not in answer


def _select(
    listing: Listing, ranks: RankSelector, group: str | None
) -> tuple[Process, ...]:
    # Without any answer, report the silent processes and lost nodes instead.
    if not listing.processes and (listing.silent or listing.lost):
        return ()

    return select_processes(listing, ranks, group)


def _add_unasked(answers: Answers, listing: Listing) -> Answers:
    """
    Add the silent processes and lost nodes of a listing.
    """
    return attrs.evolve(
        answers,
        silent=(*listing.silent, *answers.silent),
        lost=_unique_nodes((*listing.lost, *answers.lost)),
    )


def _only_stopped_group(listing: Listing) -> str | None:
    groups = {process.group for process, _ in listing.sessions}
    return groups.pop() if len(groups) == 1 else None


def _unique_nodes(lost: Iterable[LostNode]) -> tuple[LostNode, ...]:
    """
    Keep the first entry of each node.
    """
    found: dict[str, LostNode] = {}
    for node in lost:
        found.setdefault(node.host, node)
    return tuple(found.values())


def _silent_processes(
    peers: Mapping[str, Peer],
    answers: Mapping[str, Mapping[str, Any] | None],
    lost_nodes: Iterable[LostNode],
) -> tuple[SilentProcess, ...]:
    """
    Return the processes that sent no answer, or refused to.
    """
    lost = {node.host for node in lost_nodes}
    return tuple(
        SilentProcess(
            host=peers[path].host,
            pid=peers[path].pid,
            rank=socket_rank(path),
            reason=clean(str((answer or {}).get("error", "")), limit=300),
        )
        for path, answer in answers.items()
        if peers[path].host not in lost
    )


def _processes(
    peers: Mapping[str, Peer], answers: Mapping[str, Message]
) -> tuple[Process, ...]:
    """
    Return the processes that answered, each once.

    Two names of a node may lead to the same process.
    """
    found: dict[object, Process] = {}
    for path, answer in answers.items():
        process = parse_process(path, answer)
        # Show the host name that was used to ask it.
        host = peers[path].host or process.host
        found.setdefault(
            process_key(process, answer), attrs.evolve(process, host=host)
        )
    return _name_child_processes(
        sorted(found.values(), key=attrgetter("place"))
    )


def _name_child_processes(processes: Iterable[Process]) -> tuple[Process, ...]:
    """
    Name the processes that a rank has started; they follow it in order of PID.
    """
    named_keys: set[tuple[str, int | None, str]] = set()
    result = []
    for p in processes:
        key = p.group, p.rank, p.host
        is_another = p.rank is not None and key in named_keys
        named_keys.add(key)
        name = "other process" if is_another else ""
        result.append(attrs.evolve(p, name=name))
    return tuple(result)


@attrs.frozen
class AttachedThread:
    """
    One stopped thread of one rank.
    """

    ranks: RankConnections
    process: Process
    session: Session

    def send(self, line: str, *, wait_s: float = 5.0) -> Output:
        """
        Run one command of pdb in the thread.

        Args:
            line: The command; an empty one repeats the last.

            wait_s: How long to wait until the thread stops again, in seconds.

        Returns:
            The output, and whether the thread is stopped, running, or
            continues.

        Raises:
            DebuggerError: The rank does not answer.
        """
        return self._ask({"op": "command", "line": line, "wait": wait_s})

    def last(self) -> Output:
        """
        Return the last output, which shows where the thread is.

        Raises:
            DebuggerError: The rank does not answer.
        """
        return self._ask({"op": "last", "wait": 0.0})

    def _ask(self, request: Message) -> Output:
        answers = self.ranks.ask_sessions(
            [(self.process, self.session)], request
        )
        for output in answers.outputs:
            return output

        msg = f"{format_rank_phrase([self.process.rank])} does not answer"
        raise DebuggerError(msg, remedy="see: list")


def connect(  # noqa: PLR0913 most can be left out
    folder: str | os.PathLike[str] | None = None,
    *,
    slurm: str | int | None = None,
    ray: str | None = None,
    hosts: Iterable[str] | None = None,
    nodes: StreamExecutor | None = None,
    timeout_s: float = 2.0,
) -> DebugClient:
    """
    Connect to the ranks of a job, on this node or on all of its nodes.

    Ranks that start to listen later are found, too.  On each other node a
    relay is started, which needs *distdebug* there.  It ends with this client,
    or when it is idle for some minutes.

    Args:
        folder: The folder of the sockets, on every node; by default
            ``DISTDEBUG_DIR``, or the folder of the only job of this user that
            listens there.

        slurm: The ID of a running Slurm job.

        ray: The address of a Ray cluster; ``"auto"`` is the cluster of this
            node.

        hosts: Hosts that ssh reaches without a password.

        nodes: An object that starts programs on nodes, such as
            ``Slurm(job=1234, container_name="train")``.

        timeout_s: How long a rank may take to answer, in seconds.

    Returns:
        The client.  It stops no rank; when it ends, all ranks stay as they
        are.

    Raises:
        DebuggerError: The folder cannot be read or is not private, several
            jobs listen, or no node can be reached.

        NodesError: The nodes are unknown.
    """
    node_sources = [x for x in (slurm, ray, hosts, nodes) if x is not None]
    if len(node_sources) > 1:
        msg = "either slurm, ray, hosts, or nodes can be given"
        raise DebuggerError(msg, remedy="give one of them")
    if node_sources:
        executor = nodes or _node_executor(slurm, ray, hosts)
        transport = connect_nodes(executor, folder, timeout_s=timeout_s)
        return DebugClient(RankConnections(transport))

    with wrap_folder_errors():
        path = choose_folder(folder, timeout_s)
    if path is None:
        msg = f"no job of yours listens on this node, below {base_folder()}"
        raise DebuggerError(
            msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
        )
    return DebugClient(RankConnections(LocalTransport(path, timeout_s)))


def _node_executor(
    slurm: str | int | None, ray: str | None, hosts: Iterable[str] | None
) -> StreamExecutor:
    from ...nodes import Ray, Slurm, Ssh

    if slurm is not None:
        return Slurm(job=str(slurm))
    if ray is not None:
        return Ray(ray)
    return Ssh(tuple(hosts or ()))


@attrs.frozen
class DebugClient:
    """
    Client for the ranks of one job: see :func:`connect`.

    Selections are written as ``"ranks(dp=1)"``; `None` selects every rank.
    The group may be left out if there is only one.
    """

    ranks: RankConnections

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Disconnect.  Stopped ranks stay stopped, until their limit.
        """
        self.ranks.close()

    # -- requests that stop no rank

    def list(self) -> Listing:
        """
        List the ranks that listen, and their stopped threads.
        """
        return self.ranks.listing()

    def eval(  # noqa: PLR0913 most can be left out
        self,
        ranks: RankSelector,
        expression: str,
        *,
        group: str | None = None,
        wait_s: float = 5.0,
        copy: bool = False,
        up: int = 0,
    ) -> Answers:
        """
        Evaluate an expression in ranks, whether they are stopped or not.

        It sees the variables of the innermost line of the user's code, and
        runs beside the main thread.  So it works in a rank that is blocked.

        Args:
            wait_s: How long it may take, in seconds.

            copy: Whether to copy tensors from a device, which may block behind
                a collective that hangs.

            up: How many frames above the user's innermost line to evaluate.

        Returns:
            The values as text.

        Raises:
            DebuggerError: The selection is empty.
        """
        request = {
            "op": "eval",
            "expression": expression,
            "wait": wait_s,
            "copy": copy,
            "up": up,
        }
        return self.ranks.ask_processes(ranks, group, request)

    def stack(
        self,
        ranks: RankSelector = None,
        *,
        group: str | None = None,
        all_threads: bool = False,
    ) -> Answers:
        """
        Return the stacks of ranks, whether they are stopped or not.

        A rank does not answer while native code holds its interpreter; then
        its stack comes from py-spy, if permitted.  So do the stacks of unarmed
        ranks of the same job on this node.

        Args:
            all_threads: Whether to include all threads, and not only the one
                that works and the stopped ones.

        Raises:
            DebuggerError: The selection is empty.
        """
        request = {"op": "stack", "all": all_threads}
        with wrap_folder_errors():
            others = self.ranks.transport.unarmed()
        unarmed = select_workers(others, ranks, group)
        try:
            answers = self.ranks.ask_processes(ranks, group, request)
        except DebuggerError:
            if not unarmed:
                raise
            answers = Answers()
        notes = self.ranks.transport.external_stacks(answers.silent)
        return attrs.evolve(answers, notes=(*notes, *unarmed_stacks(unarmed)))

    # -- requests that stop or continue ranks

    def cast(
        self,
        ranks: RankSelector,
        line: str,
        *,
        group: str | None = None,
        wait_s: float = 5.0,
    ) -> Answers:
        """
        Run one command of pdb in all stopped threads of the selected ranks.

        Each thread runs it once, however often the selection names its rank.

        Args:
            line: The command, such as ``"p loss"`` or ``"next"``.

            wait_s: How long to wait until all threads stop again, in seconds.

        Returns:
            The output of each thread.

        Raises:
            DebuggerError: The selection is empty.
        """
        request = {"op": "command", "line": line, "wait": wait_s}
        return self.ranks.ask_stopped(ranks, group, request)

    def attach(
        self,
        rank: int | None = None,
        *,
        group: str | None = None,
        number: int | None = None,
    ) -> AttachedThread:
        """
        Return one stopped thread, to send commands to it alone.

        Nothing is needed to detach from it.

        Args:
            rank: Its rank.

            group: The group of that rank.

            number: Its number in the listing, from 1; replaces *rank*.

        Raises:
            DebuggerError: No such thread is stopped, or more than one is.
        """
        found = select_session(
            self.list(), rank=rank, group=group, number=number
        )
        return AttachedThread(self.ranks, *found)

    def interrupt(
        self,
        ranks: RankSelector = None,
        *,
        group: str | None = None,
        wait_s: float = 1.0,
    ) -> Answers:
        """
        Stop the main thread of ranks at the next line of the user's code.

        No signal is sent.  A rank that is blocked in native code stops when
        that code returns.

        Args:
            wait_s: How long to wait for the stops, in seconds.

        Returns:
            Which ranks stopped, and where the others are blocked.

        Raises:
            DebuggerError: The selection is empty.
        """
        request = {"op": "interrupt", "wait": wait_s}
        return self.ranks.ask_processes(ranks, group, request)

    def resume(
        self, ranks: RankSelector = None, *, group: str | None = None
    ) -> Answers:
        """
        Let ranks continue without breakpoints, and cancel interrupts.

        Raises:
            DebuggerError: The selection is empty.
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
        self,
        seconds: float,
        ranks: RankSelector = None,
        *,
        group: str | None = None,
    ) -> Answers:
        """
        Extend the time limit of stopped ranks.

        Args:
            seconds: The new limit, counted from now.

        Raises:
            DebuggerError: The selection is empty.
        """
        request = {"op": "extend", "seconds": seconds}
        return self.ranks.ask_stopped(ranks, group, request)

    def abort(
        self, ranks: RankSelection | str, *, group: str | None = None
    ) -> Answers:
        """
        Abort stopped ranks: raise ``bdb.BdbQuit`` at their current line.

        Raises:
            DebuggerError: The selection is empty.
        """
        request = {"op": "command", "line": "abort", "wait": 1.0}
        return self.ranks.ask_stopped(ranks, group, request)

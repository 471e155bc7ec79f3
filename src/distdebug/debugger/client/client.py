"""
Client for the ranks of a job: `connect` and `DebugClient`.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import time

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

import attrs

from ..._text import clean
from ...errors import DebuggerError
from ...nodes import Channel, Connector, StreamExecutor, close_channels
from ...processes import Worker
from ...ranks import RankSelection
from ..protocol import Message, base_folder, socket_rank
from .connections import (
    Connection,
    Peer,
    ask_all,
    parse_relay_ranks,
    source_requests,
)
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
    parse_stack_texts,
    process_key,
    read_output,
    select_processes,
    select_session,
    select_workers,
    thread_answer,
)
from .relay import VERSION


# How much longer an answer may take than the wait asked of the rank.
_ANSWER_MARGIN_S = 1.0


def _select(
    listing: Listing, ranks: RankSelector, group: str | None
) -> tuple[Process, ...]:
    # Without any answer, report the silent processes and lost nodes instead.
    if not listing.processes and (listing.silent or listing.lost):
        return ()

    return select_processes(listing, ranks, group)


def _add_unasked(answers: Answers, *before: Listing | Answers) -> Answers:
    """
    Add the silent processes and lost nodes of what was asked before.
    """
    every = (*before, answers)
    return attrs.evolve(
        answers,
        silent=tuple(one for x in every for one in x.silent),
        lost=_unique_nodes(node for x in every for node in x.lost),
    )


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
    return tuple(
        attrs.evolve(p, name="other process")
        if number and p.rank is not None
        else p
        for _, alike in groupby(processes, key=lambda p: p.place[:3])
        for number, p in enumerate(alike)
    )


@attrs.frozen
class AttachedThread:
    """
    One stopped thread of one rank.
    """

    client: DebugClient
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
        answers = self.client.ask_sessions(
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
        return DebugClient(transport)

    with wrap_folder_errors():
        path = choose_folder(folder, timeout_s)
    if path is None:
        msg = f"no job of yours listens on this node, below {base_folder()}"
        raise DebuggerError(
            msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
        )
    return DebugClient(LocalTransport(path, timeout_s))


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

    transport: LocalTransport | RemoteTransport
    _sent_sources: set[str] = attrs.field(factory=set, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Disconnect.  Stopped ranks stay stopped, until their limit.
        """
        self.transport.close()

    def list(self) -> Listing:
        """
        List the ranks that listen, and their stopped threads.
        """
        with wrap_folder_errors():
            peers, listing = self.transport.peers()
        answers = ask_all(
            peers, {k: {"op": "list"} for k in peers}, self.transport.timeout_s
        )
        self._send_sources(peers, answers)
        lost_nodes = self.transport.lost_nodes()
        listed = {
            k: a
            for k, a in answers.items()
            if a and ("process" in a or "error" not in a)
        }
        others = {k: a for k, a in answers.items() if k not in listed}
        silent = _silent_processes(peers, others, lost_nodes)
        return attrs.evolve(
            listing,
            processes=_processes(peers, listed),
            silent=(*listing.silent, *silent),
            lost=_unique_nodes((*listing.lost, *lost_nodes)),
        )

    def ask_processes(
        self, ranks: RankSelector, group: str | None, request: Message
    ) -> Answers:
        """
        Send a request to processes, whether their threads are stopped or not.

        Args:
            ranks: The selected ranks; ``None`` for all.
        """
        listing = self.list()
        chosen = _select(listing, ranks, group)
        answers = self.ask_sessions(((p, None) for p in chosen), request)
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
        listing = self.list()
        if ranks is not None and group is None:
            groups = {process.group for process, _ in listing.sessions}
            group = groups.pop() if len(groups) == 1 else None
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
            peers, _ = self.transport.peers()
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

    # -- requests that stop no rank

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
        return self.ask_processes(ranks, group, request)

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
            others = self.transport.unarmed()
        unarmed = select_workers(others, ranks, group)
        try:
            answers = self.ask_processes(ranks, group, request)
        except DebuggerError:
            if not unarmed:
                raise
            answers = Answers()
        notes = self.transport.external_stacks(answers.silent)
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
        return self.ask_stopped(ranks, group, request)

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
        return AttachedThread(self, *found)

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
        return self.ask_processes(ranks, group, request)

    def resume(
        self, ranks: RankSelector = None, *, group: str | None = None
    ) -> Answers:
        """
        Let ranks continue without breakpoints, and cancel interrupts.

        Raises:
            DebuggerError: The selection is empty.
        """
        stopped = self.cast(ranks, "detach", group=group, wait_s=1.0)
        others = ((process, None) for process in stopped.not_stopped)
        waiting = self.ask_sessions(others, {"op": "resume"})
        outputs = (*stopped.outputs, *waiting.outputs)
        return _add_unasked(Answers(outputs=outputs), stopped, waiting)

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
        return self.ask_stopped(ranks, group, request)

    def abort(
        self, ranks: RankSelection | str, *, group: str | None = None
    ) -> Answers:
        """
        Abort stopped ranks: raise ``bdb.BdbQuit`` at their current line.

        Raises:
            DebuggerError: The selection is empty.
        """
        return self.cast(ranks, "abort", group=group, wait_s=1.0)


# Shells and launchers may print text before the relay greets.
_MAX_GREETING_BYTES = 1 << 16
_RESERVED_FILES = 256
# How many relays start at a time, and how long each may take to greet.
_MAX_STARTING, _OPEN_S = 64, 30.0
_GREETING = b'{"relay":'


@attrs.define(eq=False)
class _Relay:
    """
    A relay on another node.

    Attributes:
        channel: The process that runs it.

        deadline: When it must have greeted, on the monotonic clock.

        received: What has arrived of the current line, until it has greeted.

        lost: Why its node cannot be asked, if the relay did not greet.
    """

    host: str
    channel: Channel
    connection: Connection
    deadline: float
    received: bytes = b""
    has_greeted: bool = False
    lost: LostNode | None = None

    def receive_greeting(self) -> None:
        """
        Read what has arrived of its greeting.
        """
        try:
            data = self.channel.socket.recv(_MAX_GREETING_BYTES)
        except OSError:
            data = b""
        *lines, self.received = (self.received + data).split(b"\n")
        greeting = next((x for x in lines if x.startswith(_GREETING)), None)
        if greeting is not None:
            self._accept(greeting)
        elif not data:
            self.lost = self.ended()
        elif len(self.received) > _MAX_GREETING_BYTES:
            self._refuse("what answers there is no relay")

    def expire(self) -> None:
        """
        Give it up if its deadline has passed.
        """
        if not self.has_greeted and self.deadline <= time.monotonic():
            self._refuse(f"no relay after {_OPEN_S:g} s")

    def ended(self) -> LostNode:
        """
        Return its node as a lost one, with the reason why the relay ended.
        """
        failure = self.channel.failure()
        return LostNode(
            host=self.host,
            reason=clean(failure.reason),
            remedy=clean(failure.remedy),
        )

    def _accept(self, greeting: bytes) -> None:
        try:
            version = json.loads(greeting).get("relay")
        except (ValueError, RecursionError):
            version = "?"
        self.has_greeted = version == VERSION
        if not self.has_greeted:
            self._refuse(
                f"its relay is of version {version!r:.20}, not {VERSION}",
                "install the same distdebug there",
            )

    def _refuse(self, reason: str, remedy: str = "") -> None:
        self.lost = LostNode(host=self.host, reason=reason, remedy=remedy)


def _open_relays(
    connectors: Mapping[str, Connector],
) -> tuple[dict[str, _Relay], dict[str, LostNode]]:
    """
    Start a relay on each node, many at the same time.

    Returns:
        The open relays and the lost nodes, by node.
    """
    _raise_file_limit(len(connectors))
    todo = list(connectors.items())[::-1]
    relays: list[_Relay] = []
    starting: list[_Relay] = []
    lost: dict[str, LostNode] = {}
    try:
        while todo or starting:
            while todo and len(starting) < _MAX_STARTING:
                host, connector = todo.pop()
                try:
                    relay = _start_relay(host, connector)
                except OSError as exc:
                    lost[host] = LostNode(host=host, reason=clean(str(exc)))
                else:
                    relays.append(relay)
                    starting.append(relay)
            starting = _await_greetings(starting)
    except BaseException:
        close_channels(relay.channel for relay in relays)
        raise
    close_channels(relay.channel for relay in relays if relay.lost)
    lost |= {relay.host: relay.lost for relay in relays if relay.lost}
    return {r.host: r for r in relays if not r.lost}, lost


def _start_relay(host: str, connector: Connector) -> _Relay:
    channel = connector()
    deadline = time.monotonic() + _OPEN_S
    return _Relay(host, channel, Connection(channel.socket), deadline)


def _await_greetings(relays: list[_Relay]) -> list[_Relay]:
    """
    Wait for a greeting or a deadline; return the relays that still start.
    """
    deadline = min((relay.deadline for relay in relays), default=0.0)
    with selectors.DefaultSelector() as selector:
        for relay in relays:
            selector.register(
                relay.channel.socket, selectors.EVENT_READ, relay
            )
        for key, _ in selector.select(max(deadline - time.monotonic(), 0.0)):
            key.data.receive_greeting()
    for relay in relays:
        relay.expire()
    return [r for r in relays if not (r.has_greeted or r.lost)]


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
    _relays: dict[str, _Relay] = attrs.field(factory=dict, init=False)
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
        relays, lost = _open_relays(todo)
        relays |= self._relays
        # Keep the order of the nodes, not the order of the greetings.
        self._relays = {h: relays[h] for h in self.connectors if h in relays}
        self._lost.update(lost)
        if self.connectors and not self._relays:
            reasons = "; ".join(map(str, sorted(self._lost.values())[:4]))
            msg = f"no node can be asked: {reasons}"
            raise DebuggerError(msg, remedy="see whether they are up")

    def peers(self) -> tuple[dict[str, Peer], Listing]:
        """
        Ask all relays for their ranks.

        Returns:
            The ranks by node and socket path, and what cannot be asked.
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
            elif (
                found := parse_relay_ranks(relays[host], host, answer)
            ) is None:
                reason = "its relay says what is no answer"
                lost.append(LostNode(host=host, reason=reason))
            elif any(found):
                peers |= found[0]
                silent += found[1]
            else:
                idle.append(host)
        return peers, Listing(
            silent=tuple(silent),
            lost=(*self._lost.values(), *lost),
            idle=tuple(idle),
        )

    def lost_nodes(self) -> tuple[LostNode, ...]:
        """
        Return the nodes whose relay has ended, and why.
        """
        return tuple(
            relay.ended()
            for relay in self._relays.values()
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
            return relay.ended()

        reason = f"its relay does not answer within {self.timeout_s:g} s"
        return LostNode(host=host, reason=reason)

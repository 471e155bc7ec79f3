"""
Classify processes: framework, role, rank, and mesh coordinates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

from .._secrets import redact_arguments
from .._text import clean
from ..identity import Identity, coordinates_in_title, identify
from .model import Role, Worker
from .process_memory import Maps, read_environ, read_maps
from .procfs import (
    list_numbers,
    parse_stat,
    parse_status,
    read_link,
    read_proc,
    whole_number,
)
from .scan import (
    COMPILE_WORKER,
    DATA_WORKER,
    ENGINE,
    LAUNCHER_NAME,
    MEGATRON,
    MULTIPROCESSING,
    MULTIPROCESSING_HELPER,
    PYTHON_TOOLS,
    RANK_THREADS,
    Process,
    load_rules,
    parse_option_number,
    parse_program,
    skip_blocked,
)
from .threads import tcp_inodes


_MAX_THREADS = 1024
_MAX_DESCRIPTORS = 1024


@attrs.frozen(kw_only=True)
class ProcessEvidence:
    """
    Environment of a process, and whether it has loaded torch.

    Attributes:
        environ: Its environment.

        source: Source of the environment; ``""`` if it could not be read.

        identity: Rank, world size, and job by its environment.

        has_torch: Whether torch is loaded.
    """

    environ: Mapping[str, str] = MappingProxyType({})
    source: str = ""
    identity: Identity = identify({})  # noqa: RUF009 it cannot be changed
    has_torch: bool = False


def read_process_evidence(pid: int, root: str = "/proc") -> ProcessEvidence:
    """
    Read the environment and loaded images of a process.

    Args:
        root: Mount point of procfs.
    """
    maps = read_maps(pid, root) or Maps()
    environ, source = read_environ(pid, root, maps=maps)
    return ProcessEvidence(
        environ=environ,
        source=source,
        identity=identify(environ),
        has_torch=maps.has_torch,
    )


def has_rank_threads(pid: int, root: str = "/proc") -> bool:
    """
    Return whether a process has threads that run collectives.

    A forked child does not inherit them.

    Args:
        root: Mount point of procfs.
    """
    folder = f"{root}/{pid}/task"
    for thread in list_numbers(folder)[:_MAX_THREADS]:
        name = read_proc(f"{folder}/{thread}/comm", limit=64) or b""
        if RANK_THREADS.match(name.decode(errors="replace")):
            return True
    return False


def has_connection(pid: int, root: str = "/proc") -> bool:
    """
    Return whether a process has a TCP socket, such as one to the rendezvous.

    Args:
        root: Mount point of procfs.
    """
    folder = f"{root}/{pid}/fd"
    links = (
        read_link(f"{folder}/{number}")
        for number in list_numbers(folder)[:_MAX_DESCRIPTORS]
    )
    inodes = {x[8:-1] for x in links if x.startswith("socket:[")}
    return bool(inodes) and not inodes.isdisjoint(tcp_inodes(pid, root))


@attrs.frozen
class ProcessTree:
    """
    The processes of a node as a tree.

    Attributes:
        processes: Processes by PID.
    """

    processes: Mapping[int, Process]

    @cached_property
    def _children(self) -> Mapping[int, Sequence[int]]:
        children = defaultdict[int, list[int]](list)
        for process in self.processes.values():
            parent = self.parent(process)
            if parent is not None and parent is not process:
                children[parent.pid].append(process.pid)
        return children

    def parent(self, process: Process) -> Process | None:
        """
        Return the parent of a process; ``None`` if it has ended.
        """
        parent = self.processes.get(process.parent_pid)
        # PIDs are reused; a real parent is older.
        if parent and parent.start_ticks <= process.start_ticks:
            return parent
        return None

    def ancestors(self, process: Process) -> Iterator[Process]:
        """
        Yield the ancestors of a process, nearest first.
        """
        seen = {process.pid}
        ancestor = self.parent(process)
        while ancestor is not None and ancestor.pid not in seen:
            yield ancestor
            seen.add(ancestor.pid)
            ancestor = self.parent(ancestor)

    def python_parent(self, process: Process) -> Process | None:
        """
        Return the nearest ancestor that is a Python process, if there is one.

        Shells and other wrappers between them do not count, nor do helper
        processes of *multiprocessing*.
        """
        interpreters = (x for x in self.ancestors(process) if x.is_python)
        workers = (
            x for x in interpreters if not self.is_multiprocessing_helper(x)
        )
        return next(workers, None)

    def is_multiprocessing_helper(self, process: Process) -> bool:
        """
        Return whether a process is a resource tracker or fork server.

        Children of a fork server have the same command line as the server.
        """
        if MULTIPROCESSING_HELPER.search(process.text) is None:
            return False
        parent = self.parent(process)
        return parent is None or parent.text != process.text

    def walk(self) -> Iterator[Process]:
        """
        Yield every process, parents before their children.
        """
        # Processes without parent are last, so they are popped first.
        return self._walk(
            *sorted(
                self.processes,
                key=lambda pid: self.parent(self.processes[pid]) is None,
            )
        )

    def descendants(self, pid: int) -> Iterator[Process]:
        """
        Yield the descendants of a process, parents before their children.
        """
        return islice(self._walk(pid), 1, None)

    def _walk(self, *pids: int) -> Iterator[Process]:
        waiting, seen = list(pids), set[int]()
        while waiting:
            pid = waiting.pop()
            if pid not in seen:
                seen.add(pid)
                yield self.processes[pid]
                waiting.extend(self._children.get(pid, ()))


_NO_EVIDENCE = ProcessEvidence()


class ProcessKind(NamedTuple):
    """
    Framework and role of a process.
    """

    framework: str
    role: Role


@attrs.frozen
class Candidate:
    """
    A process that may be a worker, and the Python process that started it.

    Attributes:
        process: The process.

        evidence: Its environment and libraries.

        parent: The nearest Python process above it; ``None`` if there is none.

        parent_evidence: That of its parent.

        parent_kind: The kind of its parent; ``None`` if it is in no job.

        root: Mount point of procfs.
    """

    process: Process
    evidence: ProcessEvidence
    parent: Process | None
    parent_evidence: ProcessEvidence
    parent_kind: ProcessKind | None
    root: str

    @property
    def program(self) -> str:
        """
        The program that its interpreter runs, or ``""``.
        """
        return parse_program(self.process.arguments)

    @property
    def has_rank_threads(self) -> bool:
        """
        Whether it has threads that run collectives.
        """
        return has_rank_threads(self.process.pid, self.root)

    @property
    def has_inherited_rank(self) -> bool:
        """
        Whether it has the same rank as its Python parent.
        """
        own, inherited = self.evidence, self.parent_evidence
        return (
            self.parent is not None
            and own.identity[:2] == inherited.identity[:2]
        )

    @property
    def is_multiprocessing_child(self) -> bool:
        """
        Whether *multiprocessing* spawned or forked it.
        """
        process, parent = self.process, self.parent
        if parent is None:
            return False
        is_zombie = not process.arguments
        return (
            MULTIPROCESSING.search(process.text) is not None
            or (is_zombie and process.name == parent.name)
            or process.text == parent.text
        )

    @property
    def is_collective_member(self) -> bool:
        """
        Whether a child of *multiprocessing* takes part in collectives.
        """
        process, parent = self.process, self.parent
        if parent is None or not self.evidence.has_torch:
            return False
        if self.has_rank_threads:
            return True
        # A forked process inherits the sockets of its parent.
        is_new = MULTIPROCESSING.search(process.text) is not None
        return has_connection(process.pid, self.root) and (
            is_new or not has_connection(parent.pid, self.root)
        )

    def classify(self) -> ProcessKind | None:
        """
        Return the kind of the process; ``None`` if it is in no job.
        """
        above = self.parent_kind
        if self.process.is_python:
            kind = self._kind_by_command() or self._kind_by_environment()
            if kind is not None:
                return kind
            return (
                self._kind_by_threads()
                if above is None
                else self._as_child(above)
            )
        if above is not None and above.role == "rank":
            return ProcessKind(above.framework, "child")
        return None

    def _kind_by_command(self) -> ProcessKind | None:
        """
        Classify it by its title and command line.
        """
        process, parent, above = self.process, self.parent, self.parent_kind
        role: Role | None = None
        if COMPILE_WORKER.search(process.text) or (
            above is not None and above.role == "compile"
        ):
            role = "compile"
        elif process.name == DATA_WORKER:
            role = "dataloader"
        if role is not None:
            return ProcessKind(above.framework, role) if above else None

        # A forked child keeps the title of its parent.
        if parent is None or parent.text != process.text:
            kind = self._match_rules()
            if kind is not None:
                return kind
        if above is not None and above.role == "launcher":
            return ProcessKind(above.framework, "rank")
        return None

    def _match_rules(self) -> ProcessKind | None:
        for kind, text in (
            ("title", self.process.text),
            ("launcher", self.program),
        ):
            for rule in load_rules(kind):
                if rule.pattern.search(text):
                    return ProcessKind(rule.framework, rule.role)
        is_launcher = self.process.name == LAUNCHER_NAME
        return ProcessKind("torchrun", "launcher") if is_launcher else None

    def _kind_by_environment(self) -> ProcessKind | None:
        """
        Classify it as a rank if its environment has a rank of its own.
        """
        identity, program = self.evidence.identity, self.program
        if identity.rank is None or self.has_inherited_rank:
            return None

        # Slurm sets a rank in every process that it starts.
        least = 0 if identity.source == "torchrun" else 1
        has_peers = (identity.world_size or 0) > least
        if PYTHON_TOOLS.search(program) or not (
            has_peers or self.evidence.has_torch
        ):
            return None
        if MEGATRON.search(program):
            return ProcessKind("megatron", "rank")
        if self.is_multiprocessing_child:
            return ProcessKind("multiprocessing", "rank")
        return ProcessKind(_launcher_name(self.evidence), "rank")

    def _kind_by_threads(self) -> ProcessKind | None:
        """
        Classify it by its threads, options, or the kind of its program.
        """
        if PYTHON_TOOLS.search(self.program):
            return None
        if self.is_multiprocessing_child:
            has_peers = self.is_collective_member
            return (
                ProcessKind("multiprocessing", "rank") if has_peers else None
            )
        for rule in load_rules("fallback"):
            if rule.pattern.search(self.process.text):
                return ProcessKind(rule.framework, rule.role)

        options = self.process.arguments
        named = parse_option_number(options, "rank", "local-rank")
        has_peers = self.evidence.has_torch and (
            named is not None or self.has_rank_threads
        )
        return ProcessKind("torch", "rank") if has_peers else None

    def _as_child(self, above: ProcessKind) -> ProcessKind:
        """
        Classify it by the worker that is its Python parent.
        """
        framework, is_child = above.framework, self.is_multiprocessing_child
        if is_child and above.role == "server":
            has_torch = self.evidence.has_torch
            return ProcessKind(framework, "rank" if has_torch else "child")
        if self.parent is None or not is_child or above.role != "rank":
            return ProcessKind(framework, "child")
        if has_rank_threads(self.parent.pid, self.root):
            # It may have a process group of its own, as checkpoint savers do.
            is_loader = not self.has_rank_threads
            return ProcessKind(
                framework, "dataloader" if is_loader else "child"
            )
        if not self.is_collective_member:
            return ProcessKind(framework, "dataloader")
        known = framework != "pattern"
        return ProcessKind(framework if known else "multiprocessing", "rank")

    def placement(self, kind: ProcessKind) -> dict[str, Any]:
        """
        Return rank, world size, coordinates, and job, with the source.

        Returns:
            Keyword arguments of :class:`Worker`.
        """
        placement: dict[str, Any] = {"job": clean(self.evidence.identity.job)}
        if kind.framework in _RANK_IN_TITLE and kind.role in {
            "rank",
            "server",
        }:
            return placement | _placement_from_title(self.process, kind)
        if kind.role != "rank":
            return placement

        placement |= self._placement_from_environment(kind)
        # Options are needed only if the rank is unknown.
        if placement.get("rank") is None:
            options = _placement_from_options(self.process)
            sources = (x.get("source") for x in (placement, options))
            source = " + ".join(filter(None, sources))
            placement |= options | {"source": source}
        return placement

    def _placement_from_environment(self, kind: ProcessKind) -> dict[str, Any]:
        evidence, identity = self.evidence, self.evidence.identity
        # The variables of Slurm belong to Ray of this node, not to its actors.
        is_foreign = kind.framework == "ray" and identity.source != "torchrun"
        if is_foreign or self.has_inherited_rank:
            size = identity.world_size if identity.rank is None else None
            identity = identity._replace(
                rank=None, local_rank=None, world_size=size
            )
        return _known(
            evidence.source,
            rank=identity.rank,
            world_size=identity.world_size,
            local_rank=identity.local_rank,
            local_world_size=_local_world_size(evidence, identity),
        )


def _launcher_name(evidence: ProcessEvidence) -> str:
    if "TORCHELASTIC_RUN_ID" in evidence.environ:
        return "torchrun"
    # Many scripts copy the variables of Slurm to those of torch.
    if evidence.environ.get("SLURM_PROCID") == str(evidence.identity.rank):
        return "slurm"
    return "torch" if evidence.identity.source == "torchrun" else "mpi"


class Survey:
    """
    The processes of a node, classified.

    Args:
        tree: The processes.

        is_selected: Return whether a pattern of the user matches a process.

        root: Mount point of procfs.

    Attributes:
        kinds: Kinds by PID, without processes that belong to no job.
    """

    def __init__(
        self,
        tree: ProcessTree,
        is_selected: Callable[[Process], bool],
        root: str,
    ) -> None:
        self.kinds: dict[int, ProcessKind] = {}
        self._tree, self._root = tree, root
        interpreters = [
            process.pid
            for process in tree.processes.values()
            if process.is_python
            and process.arguments
            and not tree.is_multiprocessing_helper(process)
        ]
        self._evidence = skip_blocked(
            interpreters, lambda pid: read_process_evidence(pid, root)
        )
        for process in tree.walk():
            kind = None
            if not tree.is_multiprocessing_helper(process):
                kind = self._candidate(process).classify()
                if kind is None and is_selected(process):
                    kind = ProcessKind("pattern", "rank")
            if kind is not None:
                self.kinds[process.pid] = kind
        self._correct_kinds()

    def _candidate(self, process: Process) -> Candidate:
        parent = self._tree.python_parent(process)
        pid = parent.pid if parent else -1
        return Candidate(
            process,
            self._evidence.get(process.pid, _NO_EVIDENCE),
            parent,
            self._evidence.get(pid, _NO_EVIDENCE),
            self.kinds.get(pid),
            self._root,
        )

    def _correct_kinds(self) -> None:
        """
        Correct the kinds of processes by those of their children.
        """
        kinds, processes = self.kinds, self._tree.processes
        for pid, kind in list(kinds.items()):
            self._mark_launcher(self._candidate(processes[pid]), kind)
        for pid, kind in list(kinds.items()):
            # It matches a user's pattern and starts ranks.
            if kind == ("pattern", "rank") and self._has_ranks(pid):
                kinds[pid] = ProcessKind("pattern", "launcher")
        for pid, kind in list(kinds.items()):
            if kind.role == "launcher":
                self._mark_sibling_ranks(processes[pid], kind.framework)
        for pid, kind in list(kinds.items()):
            # An engine without ranks runs the model itself.
            if (
                kind.role == "server"
                and ENGINE.search(processes[pid].text)
                and not self._has_ranks(pid)
            ):
                kinds[pid] = kind._replace(role="rank")
        self._drop_inherited_ranks()

    def _mark_launcher(self, child: Candidate, kind: ProcessKind) -> None:
        """
        Mark the parent of a rank or of another launcher as a launcher.
        """
        parent, above = child.parent, child.parent_kind
        if parent is None or kind.role not in {"launcher", "rank"}:
            return
        # Other programs may call the launcher of torch.
        is_torchrun = "TORCHELASTIC_RUN_ID" in child.evidence.environ
        is_own = is_torchrun and not child.has_inherited_rank
        if kind.role == "rank" and not (
            is_own or child.is_multiprocessing_child
        ):
            return
        if above is None and kind.role == "launcher":
            return  # a script that calls a launcher is not part of the job
        rules = load_rules("title")
        has_title = any(r.pattern.match(parent.text) for r in rules)
        if above is not None and (above.role != "rank" or has_title):
            return
        if not has_rank_threads(parent.pid, self._root):
            known = above if above and above.framework != "pattern" else kind
            self.kinds[parent.pid] = ProcessKind(known.framework, "launcher")

    def _has_ranks(self, pid: int) -> bool:
        below = (self.kinds.get(x.pid) for x in self._tree.descendants(pid))
        return any(kind.role == "rank" for kind in below if kind)

    def _mark_sibling_ranks(self, launcher: Process, framework: str) -> None:
        """
        Mark ranks of a launcher that have not yet joined the others.
        """
        for process in self._tree.descendants(launcher.pid):
            kind, child = self.kinds.get(process.pid), self._candidate(process)
            if (
                child.parent is launcher
                and child.is_multiprocessing_child
                and process.name != DATA_WORKER
                and (kind is None or kind.role == "dataloader")
                and child.evidence.has_torch
            ):
                self.kinds[process.pid] = ProcessKind(framework, "rank")

    def _drop_inherited_ranks(self) -> None:
        """
        Drop processes without torch that share the rank of one with torch.

        All processes of a container may have inherited the environment of a
        rank.
        """
        twins: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for pid, kind in self.kinds.items():
            evidence = self._evidence.get(pid)
            is_rank = kind.role == "rank"
            if evidence and is_rank and kind.framework in _ENVIRONMENT_ONLY:
                twins[evidence.identity.rank, evidence.identity.job].append(
                    pid
                )

        for pids in twins.values():
            with_torch = {p for p in pids if self._evidence[p].has_torch}
            if with_torch:
                for pid in set(pids) - with_torch:
                    del self.kinds[pid]

    def describe_workers(self, pids: Collection[int]) -> tuple[Worker, ...]:
        """
        Return workers for some PIDs.

        Returns:
            Ranks first, by rank and coordinates, and then the others; without
            processes that ended meanwhile.
        """
        found = map(self._describe_worker, pids)
        return tuple(sorted(filter(None, found), key=_sort_key))

    def _describe_worker(self, pid: int) -> Worker | None:
        process, kind = self._tree.processes[pid], self.kinds[pid]
        folder = f"{self._root}/{pid}"
        stat = parse_stat(read_proc(f"{folder}/stat"))
        if stat is None or stat.start_ticks != process.start_ticks:
            return None

        uids = (
            parse_status(read_proc(f"{folder}/status")).get("Uid", "").split()
        )
        title = redact_arguments(process.arguments) or process.name
        return Worker(
            pid=pid,
            start_ticks=process.start_ticks,
            parent_pid=stat.parent_pid,
            uid=whole_number("".join(uids[1:2])) or 0,
            title=clean(title[: 4 * _MAX_TITLE_CHARS], limit=_MAX_TITLE_CHARS),
            framework=kind.framework,
            role=kind.role,
            **self._candidate(process).placement(kind),
        )


# Frameworks whose ranks are known by their environment only.
_ENVIRONMENT_ONLY = frozenset({"mpi", "slurm", "torch"})


def rank_from_coordinates(
    coordinates: tuple[tuple[str, int], ...],
) -> int | None:
    """
    Return the rank at some mesh coordinates, or ``None`` if it is unknown.

    It is known only where the job has no dimension but tensor parallelism;
    experts are spread over the same ranks.  Titles do not say how large the
    other dimensions are.
    """
    known = dict(coordinates)
    return known.get("tp") if known.keys() <= {"tp", "ep"} else None


# Workers of these frameworks have their coordinates in their title; their
# environment is that of the shell that started the server.
_RANK_IN_TITLE = frozenset({"sglang", "vllm"})


def _placement_from_title(
    process: Process, kind: ProcessKind
) -> dict[str, Any]:
    coordinates = coordinates_in_title(process.text)
    if not coordinates:
        return {}
    rank = rank_from_coordinates(coordinates) if kind.role == "rank" else None
    return {"coordinates": coordinates, "rank": rank, "source": "title"}


def _local_world_size(
    evidence: ProcessEvidence, identity: Identity
) -> int | None:
    if identity.rank is None:
        return None

    text = evidence.environ.get("LOCAL_WORLD_SIZE", "")
    if text.isascii() and text.isdigit() and len(text) < 6:
        return int(text)
    # On a single node, the local world size is the world size.
    nodes = evidence.environ.get("SLURM_NNODES")
    size = evidence.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if identity.world_size is None:
        return None
    if (identity.source == "Slurm" and nodes == "1") or (
        identity.source == "Open MPI" and size == str(identity.world_size)
    ):
        return identity.world_size
    return None


def _placement_from_options(process: Process) -> dict[str, Any]:
    return _known(
        "command line",
        rank=parse_option_number(process.arguments, "rank"),
        local_rank=parse_option_number(process.arguments, "local-rank"),
        world_size=parse_option_number(process.arguments, "world-size"),
    )


def _known(source: str, **numbers: int | None) -> dict[str, Any]:
    found = {key: value for key, value in numbers.items() if value is not None}
    return found | ({"source": source} if found else {})


_MAX_TITLE_CHARS = 4096
_ROLE_ORDER: tuple[Role, ...] = (
    *("rank", "launcher", "server"),
    *("dataloader", "compile", "child"),
)


def _sort_key(worker: Worker) -> tuple[object, ...]:
    rank = worker.rank
    return (
        _ROLE_ORDER.index(worker.role),
        rank is None,
        rank or 0,
        worker.coordinates,
        worker.pid,
    )

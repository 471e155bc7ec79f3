"""
Classify processes: framework, role, rank, and mesh coordinates.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

from .._text import clean
from ..identity import Identity, identify
from .environ import Maps, read_environ, read_maps
from .model import Role, Worker
from .procfs import (
    list_numbers,
    map_with_timeout,
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
    FALLBACK_RULES,
    LAUNCHER_NAME,
    LAUNCHER_RULES,
    MEGATRON,
    MULTIPROCESSING,
    MULTIPROCESSING_HELPER,
    PYTHON_TOOLS,
    RANK_THREADS,
    TITLE_RULES,
    Process,
    parse_option_number,
    parse_program,
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

        children: PIDs of the children of a process, by its PID.
    """

    processes: Mapping[int, Process]
    children: Mapping[int, tuple[int, ...]]

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
        for ancestor in self.ancestors(process):
            if ancestor.is_python and not self.is_multiprocessing_helper(
                ancestor
            ):
                return ancestor
        return None

    def is_multiprocessing_helper(self, process: Process) -> bool:
        """
        Return whether a process is a resource tracker or fork server.

        Children of a fork server have the same command line as the server.
        """
        if MULTIPROCESSING_HELPER.search(process.text) is None:
            return False
        parent = self.parent(process)
        return parent is None or parent.text != process.text

    def is_multiprocessing_child(
        self, process: Process, python_parent: Process
    ) -> bool:
        """
        Return whether *multiprocessing* spawned or forked a process.
        """
        if MULTIPROCESSING.search(process.text):
            return True
        is_zombie = not process.arguments
        same = process.name == python_parent.name if is_zombie else False
        return same or process.text == python_parent.text

    def walk(self) -> Iterator[Process]:
        """
        Yield every process, parents before their children.
        """
        # Processes without parent are last, so they are popped first.
        waiting = sorted(
            self.processes,
            key=lambda pid: self.parent(self.processes[pid]) is None,
        )
        seen: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid not in seen:
                seen.add(pid)
                yield self.processes[pid]
                waiting.extend(self.children.get(pid, ()))

    def descendants(self, pid: int) -> Iterator[Process]:
        """
        Yield the descendants of a process, parents before their children.
        """
        waiting, seen = list(self.children.get(pid, ())), {pid}
        while waiting:
            child = waiting.pop()
            if child not in seen:
                seen.add(child)
                yield self.processes[child]
                waiting.extend(self.children.get(child, ()))


def build_process_tree(processes: Mapping[int, Process]) -> ProcessTree:
    """
    Build the process tree from processes by PID.
    """
    children: dict[int, list[int]] = {}
    tree = ProcessTree(processes, {})
    for process in processes.values():
        parent = tree.parent(process)
        if parent is not None and parent.pid != process.pid:
            children.setdefault(parent.pid, []).append(process.pid)
    return ProcessTree(
        processes, {pid: tuple(found) for pid, found in children.items()}
    )


_NO_EVIDENCE = ProcessEvidence()


class ProcessKind(NamedTuple):
    """
    Framework and role of a process.
    """

    framework: str
    role: Role


@attrs.frozen
class Survey:
    """
    The process tree of a node, with evidence for its Python processes.

    Attributes:
        tree: The processes.

        evidence: Environment and libraries of each Python process, by PID.

        is_selected: Return whether a pattern of the user matches a process.

        root: Mount point of procfs.
    """

    tree: ProcessTree
    evidence: Mapping[int, ProcessEvidence]
    is_selected: Callable[[Process], bool]
    root: str = "/proc"

    def evidence_of(self, process: Process) -> ProcessEvidence:
        """
        Return the evidence of a process; empty if there is none.
        """
        return self.evidence.get(process.pid, _NO_EVIDENCE)


def has_inherited_rank(
    survey: Survey, process: Process, python_parent: Process | None
) -> bool:
    """
    Return whether a process has the same rank as its Python parent.
    """
    if python_parent is None:
        return False
    own_identity = survey.evidence_of(process).identity
    return survey.evidence_of(python_parent).identity[:2] == own_identity[:2]


def is_collective_member(
    survey: Survey, process: Process, python_parent: Process
) -> bool:
    """
    Return whether a child of *multiprocessing* takes part in collectives.
    """
    if not survey.evidence_of(process).has_torch:
        return False
    if has_rank_threads(process.pid, survey.root):
        return True
    # A forked process inherits the sockets of its parent.
    is_new = MULTIPROCESSING.search(process.text) is not None
    return has_connection(process.pid, survey.root) and (
        is_new or not has_connection(python_parent.pid, survey.root)
    )


def classify_by_command(
    process: Process,
    python_parent: Process | None,
    parent_kind: ProcessKind | None,
) -> ProcessKind | None:
    """
    Classify a process by its title and command line.
    """
    if COMPILE_WORKER.search(process.text) or (
        parent_kind is not None and parent_kind.role == "compile"
    ):
        return (
            ProcessKind(parent_kind.framework, "compile")
            if parent_kind
            else None
        )
    if process.name == DATA_WORKER:
        return (
            ProcessKind(parent_kind.framework, "dataloader")
            if parent_kind
            else None
        )

    # A forked child keeps the title of its parent.
    if python_parent is None or python_parent.text != process.text:
        kind = _match_rules(process)
        if kind is not None:
            return kind
    if parent_kind is not None and parent_kind.role == "launcher":
        return ProcessKind(parent_kind.framework, "rank")
    return None


def _match_rules(process: Process) -> ProcessKind | None:
    program = parse_program(process.arguments)
    for table, text in (
        (TITLE_RULES, process.text),
        (LAUNCHER_RULES, program),
    ):
        for rule in table:
            if rule.pattern.search(text):
                return ProcessKind(rule.framework, rule.role)
    is_launcher = process.name == LAUNCHER_NAME
    return ProcessKind("torchrun", "launcher") if is_launcher else None


def classify_by_environment(
    survey: Survey, process: Process, python_parent: Process | None
) -> ProcessKind | None:
    """
    Classify a process as a rank if its environment has a rank of its own.
    """
    evidence = survey.evidence_of(process)
    identity = evidence.identity
    if identity.rank is None or has_inherited_rank(
        survey, process, python_parent
    ):
        return None

    program = parse_program(process.arguments)
    # Slurm sets a rank in every process that it starts.
    least = 0 if identity.source == "torchrun" else 1
    has_peers = identity.world_size is not None and identity.world_size > least
    if PYTHON_TOOLS.search(program) or not (has_peers or evidence.has_torch):
        return None
    if MEGATRON.search(program):
        return ProcessKind("megatron", "rank")
    if python_parent is not None and survey.tree.is_multiprocessing_child(
        process, python_parent
    ):
        return ProcessKind("multiprocessing", "rank")
    return ProcessKind(_launcher_name(evidence), "rank")


def _launcher_name(evidence: ProcessEvidence) -> str:
    if "TORCHELASTIC_RUN_ID" in evidence.environ:
        return "torchrun"
    # Many scripts copy the variables of Slurm to those of torch.
    if evidence.environ.get("SLURM_PROCID") == str(evidence.identity.rank):
        return "slurm"
    return "torch" if evidence.identity.source == "torchrun" else "mpi"


def classify_by_threads(
    survey: Survey, process: Process, python_parent: Process | None
) -> ProcessKind | None:
    """
    Classify a process by its threads, options, or the kind of its program.
    """
    if PYTHON_TOOLS.search(parse_program(process.arguments)):
        return None
    if python_parent is not None and survey.tree.is_multiprocessing_child(
        process, python_parent
    ):
        has_peers = is_collective_member(survey, process, python_parent)
        return ProcessKind("multiprocessing", "rank") if has_peers else None
    for rule in FALLBACK_RULES:
        if rule.pattern.search(process.text):
            return ProcessKind(rule.framework, rule.role)

    named = parse_option_number(process.arguments, "rank", "local-rank")
    has_peers = survey.evidence_of(process).has_torch and (
        named is not None or has_rank_threads(process.pid, survey.root)
    )
    return ProcessKind("torch", "rank") if has_peers else None


def classify_workers(survey: Survey) -> dict[int, ProcessKind]:
    """
    Classify every process, from parents to children.

    Returns:
        Kinds by PID, parents first, without processes that belong to no job.
    """
    kinds: dict[int, ProcessKind] = {}
    for process in survey.tree.walk():
        python_parent = survey.tree.python_parent(process)
        parent_kind = kinds.get(python_parent.pid) if python_parent else None
        kind = _classify(survey, process, python_parent, parent_kind)
        if kind is not None:
            kinds[process.pid] = kind
    return kinds


def _classify(
    survey: Survey,
    process: Process,
    python_parent: Process | None,
    parent_kind: ProcessKind | None,
) -> ProcessKind | None:
    if survey.tree.is_multiprocessing_helper(process):
        return None

    kind = None
    if process.is_python:
        kind = classify_by_command(
            process, python_parent, parent_kind
        ) or classify_by_environment(survey, process, python_parent)
        if (
            kind is None
            and parent_kind is not None
            and python_parent is not None
        ):
            kind = _classify_by_parent(
                survey, process, python_parent, parent_kind
            )
        elif kind is None:
            kind = classify_by_threads(survey, process, python_parent)
    elif parent_kind is not None and parent_kind.role == "rank":
        kind = ProcessKind(parent_kind.framework, "child")
    if kind is None and survey.is_selected(process):
        kind = ProcessKind("pattern", "rank")
    return kind


def _classify_by_parent(
    survey: Survey,
    process: Process,
    python_parent: Process,
    parent_kind: ProcessKind,
) -> ProcessKind:
    """
    Classify a process by the worker that is its Python parent.
    """
    framework = parent_kind.framework
    is_child = survey.tree.is_multiprocessing_child(process, python_parent)
    if is_child and parent_kind.role == "server":
        has_torch = survey.evidence_of(process).has_torch
        return ProcessKind(framework, "rank" if has_torch else "child")
    if not is_child or parent_kind.role != "rank":
        return ProcessKind(framework, "child")
    if has_rank_threads(python_parent.pid, survey.root):
        # It may have a process group of its own, as checkpoint savers do.
        has_peers = has_rank_threads(process.pid, survey.root)
        return ProcessKind(framework, "child" if has_peers else "dataloader")
    if not is_collective_member(survey, process, python_parent):
        return ProcessKind(framework, "dataloader")
    known = framework != "pattern"
    return ProcessKind(framework if known else "multiprocessing", "rank")


def correct_kinds(survey: Survey, kinds: dict[int, ProcessKind]) -> None:
    """
    Correct the kinds of processes by those of their children, in place.
    """
    for pid, kind in list(kinds.items()):
        process = survey.tree.processes[pid]
        python_parent = survey.tree.python_parent(process)
        if python_parent is not None and (
            kind.role == "launcher"
            or (
                kind.role == "rank"
                and _is_launched(survey, process, python_parent)
            )
        ):
            _mark_launcher(survey, kinds, python_parent, kind)

    _mark_pattern_launchers(survey, kinds)
    _mark_sibling_ranks(survey, kinds)
    _mark_engine_ranks(survey, kinds)
    _drop_inherited_ranks(survey, kinds)


def _is_launched(
    survey: Survey, process: Process, python_parent: Process
) -> bool:
    # Other programs may call the launcher of torch.
    is_torchrun = "TORCHELASTIC_RUN_ID" in survey.evidence_of(process).environ
    is_own = is_torchrun and not has_inherited_rank(
        survey, process, python_parent
    )
    return is_own or survey.tree.is_multiprocessing_child(
        process, python_parent
    )


def _mark_launcher(
    survey: Survey,
    kinds: dict[int, ProcessKind],
    python_parent: Process,
    child: ProcessKind,
) -> None:
    kind = kinds.get(python_parent.pid)
    has_title = any(
        rule.pattern.match(python_parent.text) for rule in TITLE_RULES
    )
    if kind is None and child.role == "launcher":
        return  # a script that calls a launcher is not part of the job
    if kind is not None and (kind.role != "rank" or has_title):
        return
    if not has_rank_threads(python_parent.pid, survey.root):
        known = kind if kind and kind.framework != "pattern" else child
        kinds[python_parent.pid] = ProcessKind(known.framework, "launcher")


def _mark_pattern_launchers(
    survey: Survey, kinds: dict[int, ProcessKind]
) -> None:
    """
    Mark processes that match a user's pattern and start ranks as launchers.
    """
    for pid, kind in list(kinds.items()):
        if kind == ("pattern", "rank") and any(
            kinds[child.pid].role == "rank"
            for child in survey.tree.descendants(pid)
            if child.pid in kinds
        ):
            kinds[pid] = ProcessKind("pattern", "launcher")


def _mark_sibling_ranks(survey: Survey, kinds: dict[int, ProcessKind]) -> None:
    """
    Mark ranks that have not yet joined the others, for every launcher.
    """
    for pid, kind in list(kinds.items()):
        if kind.role == "launcher":
            _mark_child_ranks(survey, kinds, pid)


def _mark_child_ranks(
    survey: Survey, kinds: dict[int, ProcessKind], pid: int
) -> None:
    launcher = survey.tree.processes[pid]
    for child in survey.tree.descendants(pid):
        python_parent = survey.tree.python_parent(child)
        kind = kinds.get(child.pid)
        if (
            python_parent is launcher
            and survey.tree.is_multiprocessing_child(child, launcher)
            and child.name != DATA_WORKER
            and (kind is None or kind.role == "dataloader")
            and survey.evidence_of(child).has_torch
        ):
            kinds[child.pid] = ProcessKind(kinds[pid].framework, "rank")


def _mark_engine_ranks(survey: Survey, kinds: dict[int, ProcessKind]) -> None:
    for pid, kind in list(kinds.items()):
        if kind.role == "server" and ENGINE.search(
            survey.tree.processes[pid].text
        ):
            roles = {
                kinds[child.pid].role
                for child in survey.tree.descendants(pid)
                if child.pid in kinds
            }
            if "rank" not in roles:
                kinds[pid] = kind._replace(role="rank")


def _drop_inherited_ranks(
    survey: Survey, kinds: dict[int, ProcessKind]
) -> None:
    """
    Drop processes without torch that share the rank of one with torch.

    All processes of a container may have inherited the environment of a rank.
    """
    twins: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for pid, kind in kinds.items():
        identity = (
            survey.evidence[pid].identity if pid in survey.evidence else None
        )
        if (
            kind.role == "rank"
            and identity
            and kind.framework in _ENVIRONMENT_ONLY
        ):
            twins[identity.rank, identity.job].append(pid)

    for pids in twins.values():
        with_torch = [p for p in pids if survey.evidence[p].has_torch]
        if with_torch:
            for pid in set(pids) - set(with_torch):
                del kinds[pid]


# Frameworks whose ranks are known by their environment only.
_ENVIRONMENT_ONLY = frozenset({"mpi", "slurm", "torch"})


# scheduler_PP2_TP1, scheduler_TP0_PP0_DP0_EP0, Worker_TP3, EngineCore_DP1:
# in any order, without dimensions of size 1.
_MESH_COORDINATE = re.compile(
    r"(?<![A-Za-z])(TP|PP|DP|EP|CP|SP|CFG|DCP|PCP|ETP|EDP|MOE_EP|MOE_DP"
    r"|ATTN_TP|ATTN_DP|ATTN_CP)_?(\d{1,6})(?![A-Za-z0-9])"
)
# No mesh has more dimensions; a title may hold anything.
_MAX_DIMENSIONS = 16


def parse_coordinates(title: str) -> tuple[tuple[str, int], ...]:
    """
    Parse mesh coordinates from a process title.

    Returns:
        Names of dimensions in lower case, each with an index, in the order of
        the title; the first if a dimension occurs twice.
    """
    coordinates: dict[str, int] = {}
    for name, number in _MESH_COORDINATE.findall(title[:4096])[
        :_MAX_DIMENSIONS
    ]:
        coordinates.setdefault(name.lower(), int(number))
    return tuple(coordinates.items())


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


def read_placement(
    survey: Survey, process: Process, kind: ProcessKind
) -> dict[str, Any]:
    """
    Return rank, world size, coordinates, and job of a worker, with the source.

    Returns:
        Keyword arguments of :class:`Worker`.
    """
    evidence = survey.evidence_of(process)
    placement: dict[str, Any] = {"job": clean(evidence.identity.job)}
    if kind.framework in _RANK_IN_TITLE and kind.role in {"rank", "server"}:
        return placement | _placement_from_title(process, kind)
    if kind.role != "rank":
        return placement

    placement |= _placement_from_environment(survey, process, kind)
    # Options are needed only if the rank is unknown.
    if placement.get("rank") is None:
        options = _placement_from_options(process)
        sources = [
            x["source"] for x in (placement, options) if x.get("source")
        ]
        placement |= options | {"source": " + ".join(sources)}
    return placement


def _placement_from_title(
    process: Process, kind: ProcessKind
) -> dict[str, Any]:
    coordinates = parse_coordinates(process.text)
    if not coordinates:
        return {}
    rank = rank_from_coordinates(coordinates) if kind.role == "rank" else None
    return {"coordinates": coordinates, "rank": rank, "source": "title"}


def _placement_from_environment(
    survey: Survey, process: Process, kind: ProcessKind
) -> dict[str, Any]:
    evidence = survey.evidence_of(process)
    identity = evidence.identity
    python_parent = survey.tree.python_parent(process)
    # The variables of Slurm belong to Ray of this node, not to its actors.
    is_foreign = kind.framework == "ray" and identity.source != "torchrun"
    if is_foreign or has_inherited_rank(survey, process, python_parent):
        size = identity.world_size if identity.rank is None else None
        identity = identity._replace(
            rank=None, local_rank=None, world_size=size
        )
    known = {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "local_world_size": _local_world_size(evidence, identity),
    }
    found = {key: value for key, value in known.items() if value is not None}
    return found | ({"source": evidence.source} if found else {})


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
    known = {
        "rank": parse_option_number(process.arguments, "rank"),
        "local_rank": parse_option_number(process.arguments, "local-rank"),
        "world_size": parse_option_number(process.arguments, "world-size"),
    }
    found = {key: value for key, value in known.items() if value is not None}
    return found | ({"source": "command line"} if found else {})


_MAX_TITLE_CHARS = 4096
_ROLE_ORDER: tuple[Role, ...] = (
    "rank",
    "launcher",
    "server",
    "dataloader",
    "compile",
    "child",
)


def classify_processes(
    tree: ProcessTree, is_selected: Callable[[Process], bool], root: str
) -> tuple[Survey, dict[int, ProcessKind]]:
    """
    Survey and classify the processes of a node.

    Args:
        is_selected: Return whether a pattern of the user matches a process.

        root: Mount point of procfs.

    Returns:
        The survey, and kinds by PID.
    """
    interpreters = [
        process.pid
        for process in tree.processes.values()
        if process.is_python
        and process.arguments
        and not tree.is_multiprocessing_helper(process)
    ]
    evidence = map_with_timeout(
        interpreters, lambda pid: read_process_evidence(pid, root)
    )
    survey = Survey(tree, evidence, is_selected, root)
    kinds = classify_workers(survey)
    correct_kinds(survey, kinds)
    return survey, kinds


def describe_workers(
    survey: Survey, kinds: Mapping[int, ProcessKind], pids: Collection[int]
) -> tuple[Worker, ...]:
    """
    Return workers for some PIDs.

    Args:
        kinds: Kinds by PID.

        pids: PIDs to return workers for.

    Returns:
        Ranks first, by rank and coordinates, and then the others; without
        processes that ended meanwhile.
    """
    found = (
        _describe_worker(survey, survey.tree.processes[p], kinds[p])
        for p in pids
    )
    return tuple(sorted(filter(None, found), key=_sort_key))


def _describe_worker(
    survey: Survey, process: Process, kind: ProcessKind
) -> Worker | None:
    folder = f"{survey.root}/{process.pid}"
    stat = parse_stat(read_proc(f"{folder}/stat"))
    if stat is None or stat.start_ticks != process.start_ticks:
        return None

    uids = parse_status(read_proc(f"{folder}/status")).get("Uid", "").split()
    return Worker(
        pid=process.pid,
        start_ticks=process.start_ticks,
        parent_pid=stat.parent_pid,
        uid=whole_number("".join(uids[1:2])) or 0,
        title=clean(
            process.text[: 4 * _MAX_TITLE_CHARS], limit=_MAX_TITLE_CHARS
        ),
        framework=kind.framework,
        role=kind.role,
        **read_placement(survey, process, kind),
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

"""
Group processes by job, find their roles, and join dumps of the same process.

A node may run several jobs, each with a rank 0, and no rank waits for a rank
of another job.  If nothing names the jobs, but a rank occurs twice, processes
with the same parent are taken for one job.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import attrs

from .._lazy import late_pattern
from ..findings import Finding
from ..processes import ENDED_STATES
from .headings import parse_coordinates
from .model import ProcessStacks, StackFrame, ThreadStack, callsite
from .rules import builtin_rules


_MOST_ANCESTORS = 16


def split_jobs(
    processes: Iterable[ProcessStacks],
) -> dict[str, list[ProcessStacks]]:
    """
    Group processes by job.

    A process without a job name gets that of its ancestors, its children, or its
    siblings.  A rank without one joins the only job there is, unless that job
    already has another process of this rank.

    Returns:
        The processes of each job, by job name, such as ``"of parent 4711"``;
        ``""`` if nothing names it.  The order is that of *processes*.
    """
    known = tuple(processes)
    families = _Families(known, [(p, p.job) for p in known if p.job])
    found = set(families.names.values())
    only_job = found.pop() if len(found) == 1 else ""
    taken_ranks = {
        p.rank
        for p in _rank_processes(known)
        if only_job and families.name_of(p)
    }

    jobs: dict[str, list[ProcessStacks]] = defaultdict(list)
    for process in known:
        name = families.name_of(process)
        if not name and process.rank is not None:
            name = only_job
            # Pasted stacks have no pid, and may show the same rank twice.
            if process.rank in taken_ranks:
                parent = process.parent_pid if process.pid else None
                name = "" if parent is None else f"of parent {parent}"
        jobs[name].append(process)
    unnamed = jobs.get("", [])
    ranks = [p.rank for p in _rank_processes(unnamed)]
    if len(ranks) > len(set(ranks)):
        del jobs[""]
        jobs |= _split_by_parent(unnamed)
    return jobs


def drop_foreign_processes(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    Drop dead processes that are not related to any rank.

    A zombie has lost its environment, so that only its ancestors show which
    job it belonged to.

    Returns:
        All other processes, and every process on nodes without ranks.
    """
    known = tuple(processes)
    related = [
        (p, "related")
        for p in known
        if p.rank is not None and p.parent_pid is not None
    ]
    families = _Families(known, related)
    hosts = {p.host for p, _ in related}
    return tuple(
        p
        for p in known
        if p.host not in hosts
        or not _is_unattributed(p)
        or families.name_of(p)
    )


def _is_unattributed(process: ProcessStacks) -> bool:
    """
    Return whether a process has ended and nothing names its job.
    """
    if process.job or process.state not in ENDED_STATES:
        return False
    # The main thread may end before the others.
    lives = any(
        t.frames or t.state not in {"", *ENDED_STATES} for t in process.threads
    )
    return process.rank is None and not lives


def members_of_job(
    finding: Finding, processes: Iterable[ProcessStacks]
) -> tuple[ProcessStacks, ...]:
    """
    Return the processes of the job that a finding is about.

    Args:
        finding: Its evidence names the files of the job.

        processes: The processes of any number of jobs.

    Returns:
        The members of that job; all processes if the evidence names none.
    """
    known = tuple(processes)
    quoted = {evidence.source for evidence in finding.evidence}
    jobs = [
        members
        for members in split_jobs(known).values()
        if any(p.source in quoted for p in members)
    ]
    return tuple(p for members in jobs for p in members) or known


def is_same_job(
    one: Finding, other: Finding, processes: Iterable[ProcessStacks]
) -> bool:
    """
    Return whether two findings may be about the same job.

    Args:
        processes: The processes of any number of jobs.
    """
    known = tuple(processes)
    own = {p.source for p in members_of_job(one, known)}
    others = {p.source for p in members_of_job(other, known)}
    return not known or not own.isdisjoint(others)


def _rank_processes(processes: Iterable[ProcessStacks]) -> list[ProcessStacks]:
    """
    Return the ranks themselves; their children may carry the same rank.
    """
    known = [p for p in processes if p.role == "rank" and p.rank is not None]
    places = {(p.host, p.pid) for p in known}
    return [p for p in known if (p.host, p.parent_pid) not in places]


def _split_by_parent(
    processes: list[ProcessStacks],
) -> dict[str, list[ProcessStacks]]:
    """
    Group ranks by parent process, and the others by their relatives.
    """
    has_hosts = len({p.host for p in processes}) > 1
    named = []
    for rank in _rank_processes(processes):
        if rank.parent_pid is not None:
            host = f" on {rank.host}" if has_hosts and rank.host else ""
            named.append((rank, f"of parent {rank.parent_pid}{host}"))
    if len({name for _, name in named}) < 2:
        return {"": processes}

    families = _Families(processes, named)
    split = defaultdict(list)
    for process in processes:
        split[families.name_of(process)].append(process)
    return split


class _Families:
    """
    Names that processes share with their relatives.

    Args:
        processes: All processes, with their parents.

        named: Those with a name of their own, which their launcher and their
            siblings get, too.
    """

    def __init__(
        self,
        processes: Iterable[ProcessStacks],
        named: Sequence[tuple[ProcessStacks, str]],
    ) -> None:
        self._parents = {(p.host, p.pid): p.parent_pid for p in processes}
        self.names = {(p.host, p.pid): name for p, name in named}
        for process, name in named:
            if process.parent_pid is not None:
                self.names.setdefault((process.host, process.parent_pid), name)

    def name_of(self, process: ProcessStacks) -> str:
        """
        Return the name of a process, or of its nearest ancestor with one.
        """
        pid: int | None = process.pid
        # Forged files may contain a cycle of parents.
        for _ in range(_MOST_ANCESTORS):
            if pid is None:
                break
            if name := self.names.get((process.host, pid)):
                return name
            pid = self._parents.get((process.host, pid))
        return ""


_CHILD_ROLES = frozenset({"dataloader", "compile", "child"})

# Inference servers set the titles of their processes.
_TITLE = late_pattern(
    r"(?P<rank>sglang::(gpu_worker|\w*scheduler)|VLLM::Worker)|sglang::|VLLM::"
)


@attrs.frozen
class ProcessTree:
    """
    The processes of a job, by role.

    Attributes:
        ranks: Processes that take part in collectives, by rank; if there are
            none, all processes that are not children.

        servers: Processes that hand work to ranks.

        children: The children of each process, by host and pid.
    """

    ranks: tuple[ProcessStacks, ...]
    servers: tuple[ProcessStacks, ...]
    children: Mapping[tuple[str | None, int | None], Sequence[ProcessStacks]]

    def children_of(self, process: ProcessStacks) -> Sequence[ProcessStacks]:
        """
        Return the child processes of a process.
        """
        return self.children.get((process.host, process.pid), [])


def build_process_tree(processes: Iterable[ProcessStacks]) -> ProcessTree:
    """
    Separate ranks from launchers, servers, and child processes.

    Args:
        processes: All known processes of one job.
    """
    roles = [(_with_coordinates(p), _process_role(p)) for p in processes]
    starters = {"launcher", "server"}
    pids = {(p.host, p.pid) for p, role in roles if role not in starters}
    ranks, servers = [], []
    children = defaultdict(list)
    for process, role in roles:
        parent = (process.host, process.parent_pid)
        if role in _CHILD_ROLES or (not role and parent in pids):
            children[parent].append(process)
        elif role == "server":
            servers.append(process)
        elif role != "launcher":
            ranks.append(process)

    if not ranks:
        ranks = servers or [p for p, _ in roles]
        servers = []
    ranks.sort(key=lambda p: (p.rank is None, p.rank or 0))
    return ProcessTree(tuple(ranks), tuple(servers), children)


def _process_role(process: ProcessStacks) -> str:
    if process.rank is not None and process.role not in _CHILD_ROLES:
        return "rank"
    if role := process.role or _title_role(process):
        return role

    main = process.main_thread
    lines = [":".join(callsite(f)) for f in (main.frames if main else ())]
    roles = builtin_rules().roles
    for role in ("child", "launcher"):
        if any(x.endswith(roles[role]) for x in lines):
            return role
    return ""


def _title_role(process: ProcessStacks) -> str:
    match = _TITLE.match(process.command)
    return "" if match is None else "rank" if match["rank"] else "server"


def _with_coordinates(process: ProcessStacks) -> ProcessStacks:
    """
    Read the mesh coordinates of a rank from its title, if not yet known.
    """
    if process.coordinates or _title_role(process) != "rank":
        return process
    found = parse_coordinates(process.command)
    return attrs.evolve(process, coordinates=found)


# Containers reuse pids, but at most this many share one.
_MOST_CANDIDATES = 8


def join_threads(
    threads: Iterable[ThreadStack], native_threads: Iterable[ThreadStack]
) -> tuple[ThreadStack, ...]:
    """
    Join the stacks that two tools took of the threads of one process.

    Args:
        threads: From a tool that shows Python frames.

        native_threads: From a second tool that also shows native frames.

    Returns:
        The threads of the first tool, with the stacks of the second as
        *native*; then those that only the second tool saw.
    """
    known = tuple(threads)
    others: dict[object, ThreadStack] = {
        ("unknown", number) if t.thread_id is None else t.thread_id: t
        for number, t in enumerate(native_threads)
    }
    main = next((t for t in known if t.is_main), None)
    if main and others.keys().isdisjoint(t.thread_id for t in known):
        # The two tools number threads differently.
        others = {
            main.thread_id if t.is_main else key: t
            for key, t in others.items()
        }
    joined = [_merge_threads(t, others.pop(t.thread_id, None)) for t in known]
    # These have no Python frame, or the first tool would have seen them.
    joined += (
        attrs.evolve(t, frames=(), native=t.native or t.frames, is_main=False)
        if known
        else t
        for t in others.values()
    )
    return tuple(joined)


def _merge_threads(
    thread: ThreadStack, other: ThreadStack | None
) -> ThreadStack:
    if other is None:
        return thread
    owns = thread.owns_gil
    return attrs.evolve(
        thread,
        native=other.native or other.frames,
        owns_gil=other.owns_gil if owns is None else owns,
        waits_for_gil=thread.waits_for_gil or other.waits_for_gil,
    )


def join_processes(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    Join dumps of the same process.

    Dumps with the same pid on the same node are one process, unless something
    else differs.  Native stacks are added to Python stacks; of two dumps of
    the same kind, the later one counts.

    Args:
        processes: Oldest first.

    Returns:
        Each process once, in the order of its first dump.
    """
    found: list[ProcessStacks] = []
    indices: dict[object, deque[int]] = {}
    for process in processes:
        keys = _identity_keys(process)
        candidates = (
            index
            for key in keys
            for index in indices.get(key, ())
            if _is_same_process(found[index], process)
        )
        index = next(candidates, len(found))
        if index < len(found):
            found[index] = _merge_processes(found[index], process)
        else:
            found.append(process)
        for key in keys:
            known = indices.setdefault(key, deque(maxlen=_MOST_CANDIDATES))
            if index not in known:
                known.append(index)
    return tuple(found)


def _identity_keys(process: ProcessStacks) -> tuple[object, ...]:
    if process.pid >= 0:
        return (process.pid,)
    # Thread addresses of two processes are never the same in practice.
    return tuple(
        ("thread", t.thread_id) for t in process.threads if t.thread_id
    )


# Dumps of one process agree in these, as far as they are known.
_IDENTIFYING = ("host", "rank", "command", "job")
# What one dump may know, and another one not.
_FILLED = (
    *("world_size", "job", "host", "role", "command", "coordinates"),
    *("kernels", "fatal_error"),
)


def _is_same_process(one: ProcessStacks, other: ProcessStacks) -> bool:
    return all(
        len({getattr(one, name), getattr(other, name)} - {None, ""}) < 2
        for name in _IDENTIFYING
    )


def _merge_processes(
    one: ProcessStacks, other: ProcessStacks
) -> ProcessStacks:
    """
    Merge two dumps of one process, the older one first.
    """
    are_alike = _has_python(one) == _has_python(other)
    # The later one counts, or the one with Python frames.
    keeps_one = not are_alike and _has_python(one)
    base, more = (one, other) if keeps_one else (other, one)
    threads = base.threads or more.threads
    if not are_alike or (_has_native(more) and not _has_native(base)):
        threads = join_threads(base.threads, more.threads)
    filled = {
        name: getattr(base, name) or getattr(more, name) for name in _FILLED
    }
    rank = more.rank if base.rank is None else base.rank
    return attrs.evolve(base, threads=threads, rank=rank, **filled)


def _all_frames(process: ProcessStacks) -> Iterable[StackFrame]:
    return (f for thread in process.threads for f in thread.frames)


def _has_python(process: ProcessStacks) -> bool:
    return any(not frame.is_native for frame in _all_frames(process))


def _has_native(process: ProcessStacks) -> bool:
    return any(frame.is_native for frame in _all_frames(process)) or any(
        thread.native for thread in process.threads
    )

"""
Which processes belong to the same job?

On a node there may be several jobs, each with a rank 0.  Nobody waits for a
rank of another job.  If nothing names the jobs, but a rank is there twice, then
those with the same parent are taken for one.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..findings import Finding
from .model import ProcessStacks, StackFrame, ThreadStack
from .places import last_name


_MOST_ANCESTORS = 16
_DEAD = frozenset({"Z", "X", "x"})

_Place = tuple[str | None, int]


def split_jobs(
    processes: Iterable[ProcessStacks],
) -> dict[str, tuple[ProcessStacks, ...]]:
    """
    Sort processes by job.

    A process that does not know its job belongs to that of its parent, its
    children, or its siblings; and a rank to the only job that there is, unless
    that has another process of this rank.

    Args:
        processes: The processes of any number of jobs.

    Returns:
        The processes of each job, by what tells it from others, such as
        ``"of parent 4711"``; ``""`` if nothing does.  The order is that of
        *processes*.
    """
    known = tuple(processes)
    names = {(p.host, p.pid): p.job for p in known if p.job}
    for process in known:
        if process.job and process.parent_pid is not None:
            # That is how its launcher and its siblings know it.
            names.setdefault((process.host, process.parent_pid), process.job)
    all_names = set(names.values())
    only = all_names.pop() if len(all_names) == 1 else ""
    taken = {p.rank for p in _ranks(known) if only and _name(p, names)}

    jobs: dict[str, list[ProcessStacks]] = {}
    for process in known:
        name = _name(process, names)
        if not name and process.rank is not None:
            name = only if process.rank not in taken else _stranger(process)
        jobs.setdefault(name, []).append(process)
    split = {name: tuple(members) for name, members in jobs.items()}
    if _has_twins(nameless := split.get("", ())):
        del split[""]
        split.update(_by_parent(nameless))
    return split


def without_strangers(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    Leave out the dead that have nothing to do with any rank.

    A zombie has lost its environment, so that only its ancestors tell whose it
    was.

    Args:
        processes: The processes of any number of jobs.

    Returns:
        All the others, and everybody on nodes without ranks.
    """
    known = tuple(processes)
    kin: dict[_Place, str] = {}
    for rank in known:
        if rank.rank is not None and rank.parent_pid is not None:
            kin[rank.host, rank.pid] = kin[rank.host, rank.parent_pid] = "kin"
    hosts = {host for host, _ in kin}
    parents = {(p.host, p.pid): p.parent_pid for p in known}
    return tuple(
        p
        for p in known
        if p.host not in hosts
        or not _is_nameless(p)
        or _inherited(p, parents, kin)
    )


def _is_nameless(process: ProcessStacks) -> bool:
    """
    Whether a process has ended, and does not tell whose it was.
    """
    if process.job or process.state not in _DEAD:
        return False
    # The first thread may end before the others do.
    lives = any(
        t.frames or t.state not in {"", *_DEAD} for t in process.threads
    )
    return process.rank is None and not lives


def members_of_job(
    finding: Finding, processes: Iterable[ProcessStacks]
) -> tuple[ProcessStacks, ...]:
    """
    Which processes belong to the job that a finding is about?

    Args:
        finding: Any finding.  The files that it quotes tell.

        processes: The processes of any number of jobs.

    Returns:
        Those of its job; all of them if it quotes none.
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
    Whether two findings may be about the same job.

    Args:
        one: A finding.

        other: Another one.

        processes: The processes of any number of jobs.
    """
    known = tuple(processes)
    own = {p.source for p in members_of_job(one, known)}
    others = {p.source for p in members_of_job(other, known)}
    return not known or not own.isdisjoint(others)


def _stranger(process: ProcessStacks) -> str:
    # Pasted stacks, which have no process, may show the same rank twice.
    is_known = process.pid and process.parent_pid is not None
    return f"of parent {process.parent_pid}" if is_known else ""


def _has_twins(processes: Iterable[ProcessStacks]) -> bool:
    ranks = [p.rank for p in _ranks(processes)]
    return len(ranks) > len(set(ranks))


def _ranks(processes: Iterable[ProcessStacks]) -> list[ProcessStacks]:
    """
    Those that are ranks themselves; their children may carry their number.
    """
    known = [p for p in processes if p.role == "rank" and p.rank is not None]
    places = {(p.host, p.pid) for p in known}
    return [p for p in known if (p.host, p.parent_pid) not in places]


def _by_parent(
    processes: Sequence[ProcessStacks],
) -> dict[str, tuple[ProcessStacks, ...]]:
    """
    Sort ranks by who started them, and the others by whose relatives they are.
    """
    names: dict[_Place, str] = {}
    has_hosts = len({p.host for p in processes}) > 1
    for rank in _ranks(processes):
        if rank.parent_pid is not None:
            host = f" on {rank.host}" if has_hosts and rank.host else ""
            name = f"of parent {rank.parent_pid}{host}"
            names[rank.host, rank.pid] = name
            names[rank.host, rank.parent_pid] = name
    if len(set(names.values())) < 2:
        return {"": tuple(processes)}

    parents = {(p.host, p.pid): p.parent_pid for p in processes}
    split: dict[str, list[ProcessStacks]] = {}
    for process in processes:
        split.setdefault(_inherited(process, parents, names), []).append(
            process
        )
    return {name: tuple(members) for name, members in split.items()}


def _inherited(
    process: ProcessStacks,
    parents: Mapping[_Place, int | None],
    names: Mapping[_Place, str],
) -> str:
    """
    The name of the job of a process, or of its nearest ancestor that has one.
    """
    pid: int | None = process.pid
    # Hostile files may name each other as parents.
    for _ in range(_MOST_ANCESTORS):
        if pid is None:
            break
        if name := names.get((process.host, pid)):
            return name
        pid = parents.get((process.host, pid))
    return ""


def _name(
    process: ProcessStacks, names: Mapping[tuple[str | None, int], str]
) -> str:
    own = names.get((process.host, process.pid), "")
    if own or process.parent_pid is None:
        return own

    return names.get((process.host, process.parent_pid), "")


_CHILDREN = frozenset({"dataloader", "compile", "child"})

# Functions that only run in processes that work for others, or that start
# others and wait for them.
_WORKERS = (
    ("utils/data/_utils/worker.py", {"_worker_loop"}),
    ("stateful_dataloader/worker.py", {"_worker_loop"}),
    ("concurrent/futures/process.py", {"_process_worker"}),
    ("multiprocessing/pool.py", {"worker"}),
    ("multiprocessing/resource_tracker.py", {"main"}),
    ("multiprocessing/forkserver.py", {"main"}),
    ("torch/_inductor/compile_worker/__main__.py", {"main", "<module>"}),
)
_LAUNCHERS = (
    ("torch/distributed/elastic/agent/server/api.py", {"_invoke_run"}),
    ("torch/multiprocessing/spawn.py", {"join"}),
    ("torch/distributed/run.py", {"main"}),
    ("deepspeed/launcher/launch.py", {"main"}),
    ("deepspeed/launcher/runner.py", {"main"}),
    ("accelerate/commands/launch.py", {"launch_command"}),
)

# Servers of models name their processes; so do those who took their place.
_TITLES = (
    (re.compile(r"^sglang::(gpu_worker|\w*scheduler)"), "rank"),
    (re.compile(r"^sglang::"), "server"),
    (re.compile(r"^VLLM::Worker"), "rank"),
    (re.compile(r"^VLLM::"), "server"),
)
_PLACES = re.compile(r"(?<![A-Za-z])(TP|PP|DP|EP|CP)(\d{1,6})(?![0-9])")

Key = tuple[str | None, int]


@attrs.frozen
class Family:
    """
    The processes of a job, by what they are.

    Attributes:
        ranks: Those that take part in collectives, by rank; if there are
            none, all that are nobody's children.

        servers: Those that hand work to ranks.

        children: The children of each process, by host and number.
    """

    ranks: tuple[ProcessStacks, ...]
    servers: tuple[ProcessStacks, ...]
    children: dict[Key, list[ProcessStacks]]

    def children_of(self, process: ProcessStacks) -> Sequence[ProcessStacks]:
        """
        Which processes work for this one?

        Args:
            process: A rank.
        """
        return self.children.get((process.host, process.pid), [])


def find_family(processes: Iterable[ProcessStacks]) -> Family:
    """
    Tell ranks from those that work for them.

    Args:
        processes: All that is known of a job.
    """
    roles = [(_placed(p), _role(p)) for p in processes]
    starters = {
        (p.host, p.pid) for p, role in roles if role in {"launcher", "server"}
    }
    pids = {(p.host, p.pid) for p, _ in roles} - starters
    ranks, servers = [], []
    children: dict[Key, list[ProcessStacks]] = {}
    for process, role in roles:
        parent = (process.host, process.parent_pid)
        if role in _CHILDREN or (not role and parent in pids):
            if process.parent_pid is not None:
                children.setdefault(
                    (process.host, process.parent_pid), []
                ).append(process)
        elif role == "server":
            servers.append(process)
        elif role != "launcher":
            ranks.append(process)

    if not ranks:
        ranks = servers or [p for p, _ in roles]
        servers = []
    ranks.sort(key=lambda p: (p.rank is None, p.rank or 0))
    return Family(tuple(ranks), tuple(servers), children)


def _role(process: ProcessStacks) -> str:
    if process.rank is not None and process.role not in _CHILDREN:
        return "rank"
    if process.role:
        return process.role

    for title, role in _TITLES:
        if title.match(process.command):
            return role

    main = process.main_thread
    lines = [
        (last_name(f.name), f.filename.replace("\\", "/"))
        for f in (main.frames if main else ())
    ]
    for role, places in (("child", _WORKERS), ("launcher", _LAUNCHERS)):
        for end, names in places:
            if any(n in names and path.endswith(end) for n, path in lines):
                return role
    return ""


def _placed(process: ProcessStacks) -> ProcessStacks:
    """
    Read from its title where a rank is in the mesh, if nobody did so yet.
    """
    is_rank = any(
        title.match(process.command)
        for title, role in _TITLES
        if role == "rank"
    )
    if process.coordinates or not is_rank:
        return process

    found = _PLACES.findall(process.command[:200].replace("_", " "))
    return attrs.evolve(
        process, coordinates=tuple((k.lower(), int(n)) for k, n in found)
    )


# Numbers are used again in every container, but not by so many.
_MOST_ALIKE = 8


def join_threads(
    threads: Iterable[ThreadStack], seen: Iterable[ThreadStack]
) -> tuple[ThreadStack, ...]:
    """
    What do two tools together say of the threads of a process?

    Args:
        threads: What a tool for Python saw.

        seen: What a second tool saw of the same process, that also shows
            machine code.

    Returns:
        The threads of the first, with the stacks of the second as *native*;
        then those that only the second saw.
    """
    known = tuple(threads)
    others = {_key(t, n): t for n, t in enumerate(seen)}
    if not others.keys() & {_key(t, -1) for t in known}:
        others = _renamed(known, others)

    joined = []
    for thread in known:
        other = others.pop(_key(thread, -1), None)
        joined.append(thread if other is None else _both(thread, other))
    # They have no frame of Python, or the first tool would have seen them.
    joined += (
        attrs.evolve(t, frames=(), native=t.native or t.frames, is_main=False)
        if known
        else t
        for t in others.values()
    )
    return tuple(joined)


def _key(thread: ThreadStack, position: int) -> tuple[int, int]:
    if thread.thread_id is None:
        return -1, position
    return thread.thread_id, 0


def _renamed(
    known: Sequence[ThreadStack], others: dict[tuple[int, int], ThreadStack]
) -> dict[tuple[int, int], ThreadStack]:
    """
    Tools that count threads in different ways agree on the main one.
    """
    main = next((t for t in known if t.is_main), None)
    return {
        _key(main, -1) if main is not None and other.is_main else key: other
        for key, other in others.items()
    }


def _both(thread: ThreadStack, other: ThreadStack) -> ThreadStack:
    owns, waits = thread.owns_gil, thread.waits_for_gil
    return attrs.evolve(
        thread,
        native=other.native or other.frames,
        owns_gil=other.owns_gil if owns is None else owns,
        waits_for_gil=waits or other.waits_for_gil,
    )


def join_processes(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    Which processes are these, each once?

    Those with the same number on the same node are one, if nothing else
    speaks against it.  What a tool for machine code saw is added to what a
    tool for Python saw; of two that saw the same, the later one counts.

    Args:
        processes: Processes, oldest first.

    Returns:
        The processes, in the order in which each came first.
    """
    found: list[ProcessStacks] = []
    places: dict[object, list[int]] = {}
    for process in processes:
        keys = _identities(process)
        alike = (
            place
            for key in keys
            for place in places.get(key, [])[-_MOST_ALIKE:]
            if _is_same(found[place], process)
        )
        place = next(alike, len(found))
        if place < len(found):
            found[place] = _joined(found[place], process)
        else:
            found.append(process)
        for key in keys:
            known = places.setdefault(key, [])
            if place not in known:
                known.append(place)
    return tuple(found)


def _identities(process: ProcessStacks) -> tuple[object, ...]:
    if process.pid >= 0:
        return (process.pid,)
    # Addresses of threads of two processes are never the same in practice.
    return tuple(
        ("thread", t.thread_id) for t in process.threads if t.thread_id
    )


def _is_same(one: ProcessStacks, other: ProcessStacks) -> bool:
    return all(
        mine == its or mine in {None, ""} or its in {None, ""}
        for mine, its in (
            (one.host, other.host),
            (one.rank, other.rank),
            (one.command, other.command),
            (one.job, other.job),
        )
    )


def _joined(one: ProcessStacks, other: ProcessStacks) -> ProcessStacks:
    """
    The older one, and what the newer one adds.
    """
    base, more = one, other
    if _has_python(one) == _has_python(other):
        base, more = other, one
        threads = base.threads or more.threads
        if _has_native(more) and not _has_native(base):
            threads = join_threads(base.threads, more.threads)
    else:
        if not _has_python(one):
            base, more = other, one
        threads = join_threads(base.threads, more.threads)
    return attrs.evolve(
        base,
        threads=threads,
        rank=more.rank if base.rank is None else base.rank,
        world_size=base.world_size or more.world_size,
        job=base.job or more.job,
        host=base.host or more.host,
        role=base.role or more.role,
        command=base.command or more.command,
        coordinates=base.coordinates or more.coordinates,
        kernels=base.kernels or more.kernels,
    )


def _frames(process: ProcessStacks) -> Iterable[StackFrame]:
    return (f for thread in process.threads for f in thread.frames)


def _has_python(process: ProcessStacks) -> bool:
    return any(not frame.is_native for frame in _frames(process))


def _has_native(process: ProcessStacks) -> bool:
    return any(frame.is_native for frame in _frames(process)) or any(
        thread.native for thread in process.threads
    )

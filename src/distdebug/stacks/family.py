"""
Who is a rank, and who works for one?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence

import attrs

from .model import ProcessStacks
from .places import last_name


__all__ = ["Family", "find_family"]

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

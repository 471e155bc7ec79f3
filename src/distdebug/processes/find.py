"""
Which processes of this node are the workers of a job?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable

from .model import Worker
from .roles.family import Family, family_of
from .roles.patterns import compile_patterns, is_match
from .roles.scan import Process, list_processes
from .roles.survey import describe_workers, survey


__all__ = ["find_workers"]

_COLLECTOR = re.compile(
    r"(-m |/)distdebug( (stacks|preflight|snapshot|watch)"
    r"|\.(nodes|watching)\.child)\b"
    r"|/guard_program\.py "
)
_CHILDREN = frozenset({"child", "compile", "dataloader"})


def find_workers(
    patterns: Iterable[str] = (),
    *,
    include_children: bool = True,
    include_ancestors: bool = False,
    root: str = "/proc",
) -> tuple[Worker, ...]:
    """
    Which processes of this node are the workers of a job?

    Workers of SGLang, vLLM, Ray, torchrun, accelerate, DeepSpeed, Slurm, MPI,
    Megatron, and *multiprocessing* are known, and every other process in
    Python that says which rank it is, or has the threads of a rank.  No
    process is stopped or changed.  This process is left out.

    Args:
        patterns: Regular expressions, to be searched in command lines.  If
            there are any, only processes that match are found, and what
            descends from them.

        include_children: Whether to include what ranks started: readers of
            data, compilers, and others.

        include_ancestors: Whether to include those that this process descends
            from.  They are its shells, and name what it looks for, unless a
            rank has started it.

        root: Where the kernel's files are.

    Returns:
        Ranks first, by rank, and then the others.  A process that ends
        meanwhile is left out; what may not be read of the others is unknown.

    Raises:
        PatternError: If a pattern is no regular expression.
    """
    wanted = compile_patterns(patterns)
    family = family_of(list_processes(root))
    own = family.processes.get(_own_number(root))
    hidden = _other_collectors(family)
    if own is not None:
        hidden |= {own.pid}
        if not include_ancestors:
            hidden |= {above.pid for above in family.ancestors(own)}

    def is_wanted(process: Process) -> bool:
        return process.pid not in hidden and is_match(process, wanted)

    scene, claims = survey(family, is_wanted, root)
    chosen = claims.keys() - hidden
    if wanted:
        matching = {p for p in chosen if is_wanted(family.processes[p])}
        below = {p.pid for pid in matching for p in family.below(pid)}
        chosen &= matching | below
    if not include_children:
        chosen = {p for p in chosen if claims[p].role not in _CHILDREN}
    return describe_workers(scene, claims, chosen)


def _own_number(root: str) -> int:
    """
    The number that this process has there, or -1 if it is not there.

    In the files of another container, ours belongs to somebody else.
    """
    try:
        return int(os.readlink(f"{root}/self"))  # noqa: PTH115 a text
    except (OSError, ValueError):
        return -1


def _other_collectors(family: Family) -> set[int]:
    """
    Those who look at processes as we do, with the tools that they started.
    """
    found = {
        pid for pid, p in family.processes.items() if _COLLECTOR.search(p.text)
    }
    return found | {p.pid for pid in found for p in family.below(pid)}

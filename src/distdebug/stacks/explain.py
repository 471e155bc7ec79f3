"""
What is the main thread waiting for?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..findings import Cause, Evidence, Finding, Location
from ..location import user_location
from ..ranks import fold_ranks
from .model import ProcessStacks, StackFrame, ThreadStack
from .rules import CODE_RULES, DOING, NAME_RULES, RULES, Rule


__all__ = ["explain_stacks", "explain_threads"]

_MOST_SOURCE = 1 << 22
_MOST_LINE = 500

ReadLine = Callable[[str, int], str]
Key = tuple[Cause, Location | None]


def _source_line(filename: str, line: int) -> str:
    """
    Read a line of source code, if the file happens to be on this machine.

    The name may come from a forged stack: only ordinary files of ordinary
    length are opened.
    """
    path = Path(filename)
    try:
        # Relative to where?  The process ran in another folder.
        if not path.is_absolute() or not path.is_file():
            return ""
        with path.open("rb") as file:
            lines = file.read(_MOST_SOURCE).splitlines()
    except (OSError, ValueError):
        return ""

    found = lines[line - 1] if 0 < line <= len(lines) else b""
    return found[:_MOST_LINE].decode("utf-8", "replace")


def explain_threads(
    threads: Iterable[ThreadStack],
    *,
    read_line: ReadLine = _source_line,
) -> tuple[Cause, StackFrame] | None:
    """
    What is the main thread of a process waiting for?

    Args:
        threads: The threads of one process; the main thread is looked at, or
            the first one if none is marked.

        read_line: Returns the code of a file and line, or ``""``.  Calls of
            functions in C, such as ``time.sleep``, are told by nothing else.

    Returns:
        What it is doing, and the line of the stack that says so; ``None`` if
        no rule fits.
    """
    main = _main_thread(threads)
    if main is None:
        return None

    if (found := _first_fit(RULES, main)) is not None:
        return found

    innermost = main.frames[0]
    code = read_line(innermost.filename, innermost.line)
    for known in CODE_RULES:
        if known.code.search(code):
            return known.cause, innermost

    if (found := _first_fit(NAME_RULES, main)) is not None:
        return found

    return (Cause.PYTHON_LOOP, innermost) if main.active else None


def _first_fit(
    rules: Iterable[Rule], thread: ThreadStack
) -> tuple[Cause, StackFrame] | None:
    for rule in rules:
        for frame in thread.frames[: rule.within]:
            if _fits(rule, frame):
                return rule.cause, frame

    return None


def explain_stacks(stacks: Iterable[ProcessStacks]) -> tuple[Finding, ...]:
    """
    What are these processes waiting for?

    Processes that do the same at the same line are one finding.  Those that
    wait in a collective wait for the others, so they are left out unless
    there are no others; so are children of other processes in *stacks*.

    Args:
        stacks: Processes, of one job.

    Returns:
        The findings, those about the fewest processes first.
    """
    known = tuple(stacks)
    pids = {(process.host, process.pid) for process in known}
    alike: dict[Key, list[ProcessStacks]] = {}
    for process in known:
        explained = explain_threads(process.threads)
        if explained and (process.host, process.parent_pid) not in pids:
            main = _main_thread(process.threads)
            where = user_location(main.frames) if main else None
            alike.setdefault((explained[0], where), []).append(process)

    others = [k for k in alike if k[0] is not Cause.COLLECTIVE_WAIT]
    chosen = sorted(others or alike, key=lambda k: len(alike[k]))
    return tuple(_finding(key, alike[key]) for key in chosen)


def _main_thread(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    filled = [thread for thread in threads if thread.frames]
    main = [thread for thread in filled if thread.is_main]
    return next(iter(main or filled), None)


def _fits(rule: Rule, frame: StackFrame) -> bool:
    # Without the class, and without the version of a native symbol.
    name = frame.name.partition("@")[0].rpartition(".")[2]
    return bool(
        rule.file.search(frame.filename)
        and (not rule.function.pattern or rule.function.fullmatch(name))
    )


def _finding(key: Key, processes: Sequence[ProcessStacks]) -> Finding:
    cause, where = key
    ranks = sorted({p.rank for p in processes if p.rank is not None})
    names = fold_ranks(ranks) or ", ".join(str(p.pid) for p in processes)
    kind = "rank" if ranks else "process"
    place = f" in {where}" if where else ""
    return Finding(
        cause=cause,
        ranks=tuple(ranks),
        summary=f"{kind} {names} {DOING[cause]}{place}",
        confidence="likely",
        location=where,
        evidence=tuple(_evidence(p) for p in processes[:4]),
    )


def _evidence(process: ProcessStacks) -> Evidence:
    main = _main_thread(process.threads)
    frames = main.frames[:3] if main else ()
    return Evidence(
        kind="stack",
        source=process.source,
        location=f"pid {process.pid}"
        if process.rank is None
        else f"rank {process.rank}",
        quote=" ← ".join(map(str, frames)),
    )

"""
Which of these stacks are of one process?

Several tools look at a process, and the same tool several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from .model import ProcessStacks, StackFrame, ThreadStack


__all__ = ["join_processes", "join_threads"]

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

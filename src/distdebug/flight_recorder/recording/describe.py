"""
What does this process know about itself that its dump does not say?

Everything is read from a torch that is already loaded, and whatever a torch
does differently costs only the field that needs it.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback

from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ..sidecar import Sidecar, SidecarFrame, SidecarGroup
from .current import Recording


__all__ = ["THREAD_PREFIX", "describe_process", "traceback_frames"]

T = TypeVar("T")

# Threads of ours are called so, and not shown.
THREAD_PREFIX = "distdebug"

# Nobody wants to know that it is us who look.
_OURS = str(Path(__file__).parents[1]) + os.sep

_MOST_THREADS = 100
_MOST_FRAMES = 100


def describe_process(
    recording: Recording, reason: str, *, dump: str = "", stacks: bool = True
) -> Sidecar | None:
    """
    What belongs into the side-car of this process, right now?

    Args:
        recording: The recording of this process.

        reason: Why it is written.

        dump: File name of the dump beside the side-car.

        stacks: Whether to note where every thread is.

    Returns:
        The side-car, or ``None`` as long as nobody told this process which
        rank it is.
    """
    identity = recording.identity
    if identity.rank is None:
        return None

    groups: tuple[SidecarGroup, ...] = _or_default(_groups, ())
    return Sidecar(
        path="",
        rank=identity.rank,
        world_size=max(identity.world_size or 0, identity.rank + 1),
        host=socket.gethostname(),
        pid=os.getpid(),
        started=recording.started,
        written=time.time(),
        reason=reason,
        error=recording.error,
        dump=dump,
        job=identity.job,
        torch=_or_default(_torch_version, ""),
        groups=groups,
        mesh=_mesh(groups),
        threads=(
            _or_default(lambda: _threads(recording.died_at), ())
            if stacks
            else ()
        ),
    )


def _or_default(read: Callable[[], T], default: T) -> T:
    try:
        return read()
    except Exception:  # noqa: BLE001 torch's internals may change any day
        return default


def _torch_version() -> str:
    return str(sys.modules["torch"].__version__)


def _groups() -> tuple[SidecarGroup, ...]:
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    world = c10d._world  # noqa: SLF001 torch keeps memberships only there
    groups = []
    for pg in list(world.pg_map):
        members = world.pg_group_ranks[pg]
        backend = str(world.pg_map[pg][0])
        if backend == "undefined":
            backend = str(world.pg_backend_config.get(pg, ""))
        groups.append(
            SidecarGroup(
                name=str(world.pg_names[pg]),
                desc=str(getattr(pg, "group_desc", "")),
                ranks=tuple(sorted(members, key=members.__getitem__)),
                backend=_short_backend(backend),
            )
        )
    return tuple(groups)


def _short_backend(config: str) -> str:
    """
    ``"cpu:gloo,cuda:gloo"`` is ``"gloo"`` on whatever device.
    """
    names = {part.rpartition(":")[2] for part in config.split(",")}
    return names.pop() if len(names) == 1 else config


def _mesh(groups: Collection[SidecarGroup]) -> tuple[tuple[str, int], ...]:
    """
    The dimensions of the device mesh, which names its groups after them.

    A rank is in one group per dimension, and the further apart the members
    of a group are, the further out its dimension is.
    """
    found: dict[str, tuple[int, int]] = {}
    for group in groups:
        name = group.desc.removeprefix("mesh_")
        if name == group.desc or len(group.ranks) == 0:
            continue
        stride = group.ranks[1] - group.ranks[0] if group.ranks[1:] else 0
        found.setdefault(name, (stride, len(group.ranks)))
    outermost_first = sorted(found.items(), key=lambda x: -x[1][0])
    return tuple((name, size) for name, (_, size) in outermost_first)


def traceback_frames(trace: TracebackType) -> tuple[SidecarFrame, ...]:
    """
    Where was an exception raised?  Innermost line first.

    Args:
        trace: Its traceback.
    """
    lines = list(traceback.walk_tb(trace))[-_MOST_FRAMES:]
    return tuple(
        SidecarFrame(frame.f_code.co_name, frame.f_code.co_filename, line or 0)
        for frame, line in reversed(lines)
    )


def _threads(
    died_at: tuple[SidecarFrame, ...],
) -> tuple[tuple[str, tuple[SidecarFrame, ...]], ...]:
    main = threading.main_thread().ident
    names = {t.ident: t.name for t in threading.enumerate()}
    names[main] = "MainThread"
    threads: dict[str, tuple[SidecarFrame, ...]] = {}
    frames = sys._current_frames()  # noqa: SLF001 there is no other way
    for ident in sorted(frames, key=lambda i: i != main)[:_MOST_THREADS]:
        name = names.get(ident, f"thread {ident}")
        if name.startswith(THREAD_PREFIX):
            continue
        if name in threads:
            name = f"{name} ({ident})"
        # After an exception the main thread is only in our hook any more.
        is_dead = ident == main and died_at
        threads[name] = died_at if is_dead else _stack(frames[ident])
    return tuple(threads.items())


def _stack(frame: FrameType | None) -> tuple[SidecarFrame, ...]:
    stack: list[SidecarFrame] = []
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    while frame is not None and len(stack) < _MOST_FRAMES:
        code = frame.f_code
        line = frame.f_lineno or 0
        stack.append(SidecarFrame(code.co_name, code.co_filename, line))
        frame = frame.f_back
    return tuple(stack)

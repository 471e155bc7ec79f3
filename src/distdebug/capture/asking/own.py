"""
Where is this very process?
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from types import FrameType

from ...identity import current_identity
from ...stacks.model import ProcessStacks, StackFrame, ThreadStack


__all__ = ["own_stacks"]

_MOST_THREADS = 512
_MOST_FRAMES = 200


def own_stacks() -> ProcessStacks:
    """
    Where are the Python threads of this process?

    To be called by a thread that watches; it is left out, unless it is the
    main thread.  Nothing is stopped, and no right is needed; but while native
    code holds the interpreter lock, the thread that calls has to wait.

    Returns:
        The threads, the main thread first, 512 at most, with the innermost
        200 frames of each.
    """
    identity = current_identity()
    return ProcessStacks(
        pid=os.getpid(),
        source="python",
        threads=_threads(),
        rank=identity.rank,
        world_size=identity.world_size,
        host=socket.gethostname(),
        command=" ".join(sys.orig_argv),
        parent_pid=os.getppid(),
        taken=time.time(),
    )


def _threads() -> tuple[ThreadStack, ...]:
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 there is no other way
    if own != main:
        del frames[own]
    known = {t.ident: t for t in threading.enumerate()}
    chosen = sorted(frames, key=lambda ident: ident != main)[:_MOST_THREADS]
    return tuple(
        _thread(known.get(ident), frames[ident], is_main=ident == main)
        for ident in chosen
    )


def _thread(
    thread: threading.Thread | None, frame: FrameType, *, is_main: bool
) -> ThreadStack:
    name = thread.name if thread is not None else ""
    return ThreadStack(
        name="MainThread" if is_main else name,
        frames=_stack(frame),
        thread_id=thread.native_id if thread is not None else None,
        is_main=is_main,
    )


def _stack(frame: FrameType | None) -> tuple[StackFrame, ...]:
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    found: list[StackFrame] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append(
            StackFrame(code.co_qualname, code.co_filename, frame.f_lineno or 0)
        )
        frame = frame.f_back
    return tuple(found)

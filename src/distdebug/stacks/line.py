"""
Which line of a process is it that a person should look at?
"""

from __future__ import annotations

from collections.abc import Iterable

from ..findings import Cause, Location
from .around import own_frames
from .model import ProcessStacks, StackFrame
from .places import is_native, is_users, user_frame, where
from .telling import Said


__all__ = ["is_of_user", "location_of", "note_of", "python_line"]

_MOST_NAME = 80
# What these wait for, the kernel knows.
_BY_KERNEL = frozenset({Cause.IO_WAIT, Cause.LOCK_DEADLOCK})


def location_of(
    process: ProcessStacks, said: Said, main: Said
) -> Location | None:
    """
    Find the line of the user, or the next best one.

    Args:
        process: The process.

        said: What the thread tells that tells most.

        main: What the main thread tells.
    """
    best = python_line(own_frames(said.thread, process))
    if said is not main and (best is None or not is_users(best)):
        # A backward pass runs in a thread that knows nothing of the user.
        outer = python_line(own_frames(main.thread, process))
        if outer is not None and (best is None or is_users(outer)):
            best = outer
    return where(best)


def is_of_user(location: Location | None) -> bool:
    """
    Whether a place is in the code of the user.

    Args:
        location: The place, if it is known.
    """
    if location is None:
        return False
    return is_users(
        StackFrame(location.function, location.file, location.line)
    )


def python_line(frames: Iterable[StackFrame]) -> StackFrame | None:
    """
    Find the line of Python that a person can do something about.

    Args:
        frames: Innermost first.
    """
    best = user_frame(frames)
    return None if best is None or is_native(best) else best


def note_of(said: Said) -> str:
    """
    Name what is known of a wait that has no line of Python, or goes on in
    the kernel.

    Args:
        said: What the thread tells.
    """
    call = said.thread.system_call
    if said.cause in _BY_KERNEL and call is not None and call.target:
        return f"({call.name} of {call.target})"
    frames = said.thread.frames
    has_python = not all(map(is_native, frames))
    if said.frame is None or has_python or not is_native(said.frame):
        return ""
    return f"(in {said.frame.name[:_MOST_NAME]})"

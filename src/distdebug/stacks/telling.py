"""
Which thread of a process tells most?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ..findings import Cause, Confidence
from .model import StackFrame, ThreadStack
from .motion import Motion
from .places import is_users
from .rules import Rule


__all__ = [
    "IDLES",
    "LEAVES_IT",
    "Said",
    "explains_itself",
    "has_say",
    "least_sure",
    "lock_waits",
    "tell_more",
]

# Actors of Ray train in a thread of their own.
_ACTOR = "Ray worker"

# Who waits so, waits for another thread, which may tell more.
LEAVES_IT = frozenset(
    {
        Cause.FUTURE_WAIT,
        Cause.QUEUE_WAIT,
        Cause.LOCK_DEADLOCK,
        Cause.IDLE,
        Cause.EVENT_LOOP_IDLE,
        Cause.SLEEPING,
    }
)

# What another thread may tell that is more than that somebody waits for it.
_TELLS_MORE = frozenset(
    {
        Cause.COLLECTIVE_WAIT,
        Cause.RENDEZVOUS_WAIT,
        Cause.GPU_SYNC_WAIT,
        Cause.LAUNCH_BLOCKED,
        Cause.COMPILING,
        Cause.CHECKPOINTING,
        Cause.DATALOADER_WAIT,
        Cause.IMPORT_LOCK,
    }
)

# Rules that tell of a lock, and not of an event or a file.
_LOCKS = frozenset(
    {
        "lock",
        "lock, in the kernel",
        "lock, in native code",
        "line that locks",
        "line that locks, and waits",
    }
)

IDLES = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})


@attrs.frozen
class Said:
    """
    What one thread tells.

    Attributes:
        thread: The thread.

        cause: What it is doing; ``None`` if no rule fits.

        rule: The rule that fits.

        frame: The line that says so.

        motion: Whether it moves.
    """

    thread: ThreadStack
    cause: Cause | None
    rule: Rule | None
    frame: StackFrame | None
    motion: Motion


def has_say(said: Said) -> bool:
    """
    Whether a thread is more than one of a library that waits, as usual.

    Args:
        said: What it tells.
    """
    return said.cause in _TELLS_MORE or any(map(is_users, said.thread.frames))


def tell_more(main: Said, others: Iterable[Said]) -> Said:
    """
    Find the thread that tells more than that the main thread waits for it.

    Args:
        main: What the main thread tells.

        others: What those tell that are no helpers.

    Returns:
        One of the others, or that of the main thread.
    """
    is_backward = main.rule is not None and "backward" in main.rule.name
    if main.cause in LEAVES_IT or main.cause is None or is_backward:
        for other in others:
            if other.cause in _TELLS_MORE:
                return other
    is_actor = main.rule is not None and main.rule.name.startswith(_ACTOR)
    if main.cause in IDLES:
        for other in others:
            if other.cause not in IDLES and (other.cause or is_actor):
                return other
    return main


def explains_itself(main: Said, owner: ThreadStack) -> bool:
    """
    Whether the main thread holds the lock in a wait that has a better name.

    Args:
        main: What the main thread tells.

        owner: Who holds the lock of the interpreter.
    """
    return (
        owner is main.thread
        and main.rule is not None
        and main.rule.file is not None
    )


def lock_waits(all_said: Iterable[Said]) -> Sequence[Said]:
    """
    The threads that wait for a lock that somebody else holds.

    Args:
        all_said: What all threads tell.
    """
    return [
        said
        for said in all_said
        if said.cause is Cause.LOCK_DEADLOCK
        and said.rule is not None
        and said.rule.name in _LOCKS
        and said.motion is not Motion.MOVING
    ]


def least_sure(all_said: Iterable[Said]) -> Confidence:
    """
    How sure is what several threads tell together?

    Args:
        all_said: What they tell.
    """
    sure = all(
        s.rule is not None and s.rule.confidence == "likely" for s in all_said
    )
    return "likely" if sure else "possible"

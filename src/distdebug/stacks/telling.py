"""
Which thread of a process tells most?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ..findings import Cause, Confidence
from .gil import wants_gil
from .model import StackFrame, ThreadStack
from .motion import Motion
from .places import is_native, is_plumbing, is_users
from .rules import Rule


__all__ = [
    "EVENT",
    "IDLES",
    "LEAVES_IT",
    "Said",
    "explains_itself",
    "has_say",
    "joined_by",
    "least_sure",
    "lock_waits",
    "tell_more",
    "waits_for_work",
    "worker_of",
]

# The rule of those who wait until another thread wakes them.
EVENT = "event"

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

# Rules of those who wait for a thread, or for what it was asked for.
_JOINS = frozenset(
    {"end of a thread", "end of the program", "line that waits for a thread"}
)
# They say no more than the join itself.
_UNTOLD = frozenset({None, Cause.FUTURE_WAIT, Cause.UNKNOWN})
_ASKS = frozenset(
    {"future inside a pool", "answer of a pool of vLLM, Ray, or the like"}
)

# So does a thread wait that nobody gave anything to do.
_WORKLESS = frozenset(
    {
        Cause.IDLE,
        Cause.EVENT_LOOP_IDLE,
        Cause.QUEUE_WAIT,
        Cause.SLEEPING,
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


def waits_for_work(said: Said) -> bool:
    """
    Whether a thread waits in the very function that it was made for.

    That is how a server or a pool waits, in every job that is well.

    Args:
        said: What it tells.
    """
    python = [f for f in said.thread.frames if not is_native(f)]
    own = [f for f in python if not is_plumbing(f)]
    if not own:
        return bool(python) and said.cause not in _TELLS_MORE
    is_event = said.rule is not None and said.rule.name == EVENT
    selects = python[0].filename.endswith("selectors.py")
    is_wait = said.cause in _WORKLESS or is_event or selects
    return is_wait and len(own) == 1


def joined_by(main: Said, others: Iterable[Said]) -> Said | None:
    """
    Find the thread that the main thread waits for.

    Args:
        main: What the main thread tells.

        others: What those tell that are no helpers.

    Returns:
        What that thread tells; ``None`` if the main thread waits for none, or
        it is not clear for which.
    """
    name = main.rule.name if main.rule is not None else ""
    if name not in _JOINS | _ASKS:
        return None

    known = [o for o in others if o.cause not in _UNTOLD]
    if name in _ASKS:
        # Whoever has nothing to do, has nothing that is waited for.
        known = [o for o in known if not waits_for_work(o)]
    busy = [o for o in known if o.cause not in LEAVES_IT]
    causes = {o.cause for o in known}
    if busy:
        return busy[0]
    return known[0] if len(causes) == 1 else None


def worker_of(main: Said, others: Iterable[Said]) -> Said | None:
    """
    Find the thread of the user that works while the main thread is to be
    woken.

    Args:
        main: What the main thread tells.

        others: What those tell that are no helpers.

    Returns:
        What that thread tells; ``None`` if the main thread does not wait so,
        or nobody works.
    """
    if main.rule is None or main.rule.name != EVENT:
        return None

    return next((o for o in others if _works(o)), None)


def _works(said: Said) -> bool:
    if waits_for_work(said) or not any(map(is_users, said.thread.frames)):
        return False
    return said.motion in {Motion.MOVING, Motion.SPINNING} or (
        said.rule is None and said.cause is not None
    )


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
        and not wants_gil(owner)
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

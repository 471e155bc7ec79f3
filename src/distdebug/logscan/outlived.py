"""
Did the job go on after that?

A launcher may start the workers again, a program may try again with less, and
code that a model wrote may fail in its sandbox.  What a job survived does not
explain why it stands still now.
"""

from __future__ import annotations

import re

from collections.abc import Mapping, Sequence

import attrs

from .._lines import open_log
from ..findings import Cause
from .blocks import is_packed


__all__ = ["Sequel", "is_mortal", "read_sequels"]

_PIECE = 1 << 16
_MOST_FILES = 20
# So many different numbers of steps tell that a job goes on.
_MANY_STEPS, _SOME_STEPS = 20, 3
# What a process has printed and not written yet follows its last words.
_BUFFER = 1 << 13

_MORTAL = frozenset(
    {
        Cause.ACTOR_DIED,
        Cause.COLLECTIVE_TIMEOUT,
        Cause.GPU_OUT_OF_MEMORY,
        Cause.HOST_OUT_OF_MEMORY,
        Cause.KILLED,
        Cause.NATIVE_CRASH,
        Cause.NETWORK_FAILURE,
        Cause.NODE_MISCONFIGURED,
        Cause.RANK_CRASHED,
        Cause.RAY_WORKER_START_TIMEOUT,
        Cause.RENDEZVOUS_TIMEOUT,
        Cause.START_UP_STALLED,
    }
)
# In small letters, as other than ignoring case that takes no time.
_STEP = re.compile(
    rb"(?:step|iteration|iter|epoch|batch)[\"']?[ :=\[(]{1,12}"
    rb"(\d{1,9}(?:\.\d{1,6})?)|\b(\d{1,9})/\d{1,9} \[\d"
)
_WELL = re.compile(
    rb"(?:training|fine-?tuning)(?: run| job)? (?:is |has |was )?"
    rb"(?:successfully )?(?:completed?|finished|done|succeeded)\b"
    rb"(?![^\n]{0,60}(?:fail|error))|saved final"
)
_BEST = re.compile(
    rb"'train_runtime': \d|`trainer\.fit` stopped: `max_"
    rb"|\n=+ \d{1,6} passed\b(?![^\n]{0,60}failed)"
)
_AGAIN = (
    b"will restart worker group",
    b"requeue",
    b"restart count",
    b"restarting from",
    b"resume from",
    b"resumed from",
    b"resuming from",
    b"resuming training from",
    b"restored from",
    b"restoring from",
    b"restoring states from",
    b"loading checkpoint from",
    b"loaded checkpoint from",
)


@attrs.frozen(kw_only=True)
class Sequel:
    """
    What a log tells of the time after an error.

    Attributes:
        is_over: Whether it was surely survived: the job was started again, or
            ended well.

        goes_on: Whether the job made steps, which others may do for a while.
    """

    is_over: bool = False
    goes_on: bool = False


def is_mortal(cause: Cause) -> bool:
    """
    Whether a job that goes on shows that this did not matter.

    Args:
        cause: What went wrong.  A loss that is not a number stays one.
    """
    return cause in _MORTAL


def read_sequels(places: Sequence[Mapping[str, int]]) -> list[Sequel]:
    """
    Look at what logs tell behind errors.

    Args:
        places: For each error where it stands last in each file, in bytes.

    Returns:
        What holds for all files, for each error.
    """
    ends: dict[str, _End] = {}
    return [_sequel(files, ends) for files in places]


@attrs.frozen(kw_only=True)
class _End:
    """
    The last lines of a file, in small letters, with where things stand there.
    """

    start: int = 0
    size: int = 0
    steps: tuple[tuple[int, bytes], ...] = ()
    well: int = -1
    best: int = -1


def _sequel(files: Mapping[str, int], ends: dict[str, _End]) -> Sequel:
    if not files or len(files) > _MOST_FILES or any(map(is_packed, files)):
        return Sequel()

    sequels = []
    for path, offset in files.items():
        try:
            if path not in ends:
                ends[path] = _end_of(path)
            sequels.append(_behind(path, offset, ends[path]))
        except (OSError, ValueError):  # rotated away meanwhile
            return Sequel()
    return Sequel(
        is_over=all(x.is_over for x in sequels),
        goes_on=all(x.goes_on for x in sequels),
    )


def _end_of(path: str) -> _End:
    with open_log(path) as file:
        size = file.seek(0, 2)
        start = max(size - _PIECE, 0)
        file.seek(start)
        text = file.read(_PIECE).lower()
    return _End(
        start=start,
        size=size,
        steps=tuple(
            (start + x.start(), x[1] or x[2]) for x in _STEP.finditer(text)
        ),
        well=max(
            (start + x.start() for x in _WELL.finditer(text)), default=-1
        ),
        best=max(
            (start + x.start() for x in _BEST.finditer(text)), default=-1
        ),
    )


def _behind(path: str, offset: int, end: _End) -> Sequel:
    steps = {step for at, step in end.steps if at > offset}
    # What a script prints in its end, it prints after a failure too.
    is_done = end.well > offset and len(steps) >= _SOME_STEPS
    if is_done or end.best > offset:
        return Sequel(is_over=True, goes_on=True)
    if len(steps) < _MANY_STEPS:
        return Sequel()

    with open_log(path) as file:
        file.seek(offset)
        text = file.read(_PIECE).lower()
    return Sequel(
        is_over=any(words in text for words in _AGAIN),
        goes_on=end.size - offset > _BUFFER,
    )

"""
What is demanded of every parser, whatever it is fed?

It returns something that can be shown without harm to a terminal, or raises
what its documentation tells of; and it takes bounded time and memory.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import threading
import time

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from distdebug.errors import DistdebugError

from .target import Target


__all__ = ["MIB", "Cost", "DefectError", "check_cost", "cost_of", "feed"]

# Whoever takes longer is taken to hang: seconds of a processor, because those
# of a clock depend on what else the machine does.
HANG_S = 20.0

MIB = 1 << 20
# For less, a machine that others use tells nothing.
LEAST_S = 1.0
# What one round of words takes on the processor that limits are meant for: two
# threads of an AMD EPYC, with nothing beside it.
_USUAL_S = 0.05
_WORTH_A_LOOK_S = 0.5
_WORD = re.compile(r"\w+")
# A fuzzer that follows each line is slow by itself.
_PATIENCE = 10
_TRIES = 3
# What a terminal obeys, what turns the direction of writing, and what no
# encoding knows, so that it cannot be printed.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class DefectError(AssertionError):
    """
    A parser did what it must not do.
    """


class _HangError(BaseException):
    """
    Nobody catches it on the way.
    """


class Cost(NamedTuple):
    """
    What an input costs.

    Attributes:
        seconds: Time of the processor, of all threads.

        mebibytes: How far memory grew; ``None`` where nobody tells.
    """

    seconds: float
    mebibytes: float | None


def feed(target: Target, data: bytes) -> str:
    """
    Feed a parser, and look at what it shows.

    Returns:
        What it shows, or why it refuses.

    Raises:
        DefectError: It raised something else, hung, took far too much time or
            memory, or shows what only a terminal understands.
    """
    begin, before = time.process_time(), _peak()
    try:
        with _no_hang():
            result = target.parse(data)
            shown = show(result)
    except target.allowed as exc:
        shown = _told(exc)
    except _HangError as exc:
        msg = f"{target.name}: hangs with {data[:200]!r}"
        raise DefectError(msg) from exc
    except MemoryError as exc:
        msg = f"{target.name}: takes all memory with {data[:200]!r}"
        raise DefectError(msg) from exc
    except Exception as exc:
        msg = f"{target.name}: {type(exc).__name__}: {exc!s:.300}"
        raise DefectError(msg) from exc
    if found := _CONTROLS.search(shown):
        around = shown[max(found.start() - 40, 0) : found.end() + 40]
        msg = f"{target.name}: shows {found[0]!r} in {around!r}"
        raise DefectError(msg)
    cost = Cost(time.process_time() - begin, _peak() - before)
    _check(target, data, cost, patience=_PATIENCE)
    return shown


def _told(exc: BaseException) -> str:
    """
    What people see of an error, if it is one of ours.
    """
    return f"{exc}\n{exc.remedy}" if isinstance(exc, DistdebugError) else ""


def show(result: object) -> str:
    """
    What people see of a result: of several, each.

    What programs see of it has to be JSON.
    """
    if result is None or isinstance(result, bytes | bytearray):
        return ""
    if type(result) in {list, tuple, set, frozenset}:
        return "\n".join(map(show, result))
    if isinstance(result, str):
        return result
    if type(result) in {dict, int, float, bool}:
        return ""
    plain = getattr(result, "to_dict", None) or getattr(
        result, "to_records", None
    )
    if plain is not None:
        # Programs read it, and those of others know no NaN.
        json.dumps(plain(), allow_nan=False).encode()
    return str(result)


def cost_of(target: Target, data: bytes) -> Cost:
    """
    Feed a parser, and tell what that costs on a processor of usual speed.
    """
    is_told = _forget_peak()
    before = _status("VmRSS") if is_told else 0
    begin = time.process_time()
    feed(target, data)
    seconds = time.process_time() - begin
    if seconds > _WORTH_A_LOOK_S:
        seconds /= slowness()
    grown = (_status("VmHWM") - before) / 1024 if is_told else None
    return Cost(seconds, grown)


def slowness() -> float:
    """
    How much slower is this processor now than the one limits are meant for?

    One that is shared may take twice as long from one second to the next.

    Returns:
        A factor of at least 1.
    """
    begin = time.process_time()
    counts: dict[str, int] = {}
    for number in range(20_000):
        for word in _WORD.findall(f"rank {number} waits in call {number % 7}"):
            counts[word] = counts.get(word, 0) + 1
    return max((time.process_time() - begin) / _USUAL_S, 1.0)


def check_cost(target: Target, data: bytes) -> Cost:
    """
    Does an input cost no more than its size allows?

    Only what is seen several times counts.

    Returns:
        What it costs.

    Raises:
        DefectError: It takes too much time or memory.
    """
    costs = [cost_of(target, data)]
    while _excess(target, data, costs[-1]) and len(costs) < _TRIES:
        costs.append(cost_of(target, data))
    _check(target, data, costs[-1])
    return costs[-1]


def _check(
    target: Target, data: bytes, cost: Cost, *, patience: int = 1
) -> None:
    if excess := _excess(target, data, cost, patience=patience):
        msg = f"{target.name}: takes {excess} for {data[:200]!r}"
        raise DefectError(msg)


def _excess(
    target: Target, data: bytes, cost: Cost, *, patience: int = 1
) -> str:
    """
    What is taken too much of, if anything?
    """
    most_s = max(target.seconds * len(data) / MIB, LEAST_S) * patience
    if cost.seconds > most_s:
        return f"{cost.seconds:.1f} s instead of {most_s:.1f}"
    if (cost.mebibytes or 0) > target.mebibytes:
        return f"{cost.mebibytes:.0f} MiB instead of {target.mebibytes:.0f}"
    return ""


def _peak() -> float:
    """
    How much memory did this process ever have?
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _no_hang() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _HangError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _forget_peak() -> bool:
    try:
        _RESET.write_text("5", encoding="ascii")
        return _STATUS.exists()
    except OSError:  # not on every system
        return False


def _status(name: str) -> int:
    text = _STATUS.read_text(encoding="ascii", errors="replace")
    _, _, rest = text.partition(f"{name}:")
    return int(rest.split()[0])

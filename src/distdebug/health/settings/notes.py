"""
Which settings make a job slow, or tell less than they could when it hangs?

None of them is why a job hangs, so that these notes never become a verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..._text import list_text
from ...findings import Cause, Evidence, Finding
from .processes import Settings


__all__ = ["judge_notes"]

_Test = Callable[[str | None], bool]


class _Note(NamedTuple):
    """
    What to say if a variable has such a value.
    """

    name: str
    test: _Test
    says: str
    advice: str


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() in {"1", "true", "y", "yes", "on"}


def _is_set(value: str | None) -> bool:
    return value is not None


def _has(*words: str) -> _Test:
    return lambda value: (value or "").strip().upper() in words


_NOTES = (
    _Note(
        "CUDA_LAUNCH_BLOCKING",
        _is_on,
        "waits for every kernel, which is slow, and can hang jobs that "
        "overlap collectives",
        "unset it when the error is found",
    ),
    _Note(
        "TORCH_DISTRIBUTED_DEBUG",
        _has("DETAIL"),
        "compares every collective before it starts, which is slow",
        "unset it, or set it to INFO, when the error is found",
    ),
    _Note(
        "NCCL_DEBUG",
        _has("TRACE"),
        "writes a line for every call, which is slow and fills disks",
        "set it to INFO or WARN",
    ),
    _Note(
        "TORCHSPEC_LOG_LEVEL",
        _has("DEBUG", "TRACE"),
        "writes details of every step",
        "set it to INFO when the error is found",
    ),
    _Note(
        "TORCH_NCCL_BLOCKING_WAIT",
        _is_on,
        "makes the program wait for each collective, and turns off the "
        "handling of errors in the background",
        "unset it",
    ),
    _Note(
        "NCCL_BLOCKING_WAIT",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_BLOCKING_WAIT, if it is meant",
    ),
    _Note(
        "NCCL_ASYNC_ERROR_HANDLING",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    _Note(
        "NCCL_DESYNC_DEBUG",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_DESYNC_DEBUG",
    ),
    _Note(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        _has("0"),
        "lets ranks hang for ever when a collective fails or times out",
        "unset it",
    ),
    _Note(
        "TORCH_NCCL_ENABLE_MONITORING",
        _has("0", "FALSE"),
        "turns off the watch that ends a job whose watchdog hangs",
        "unset it",
    ),
    _Note(
        "NCCL_P2P_DISABLE",
        _is_on,
        "lets GPUs of a node talk by way of the memory of the host, which is "
        "slow",
        "unset it, unless it is meant to work around a fault",
    ),
    _Note(
        "NCCL_SHM_DISABLE",
        _is_on,
        "lets ranks of a node talk by sockets, which is slow",
        "unset it, and give the container enough shared memory",
    ),
)


def judge_notes(
    settings: Iterable[Settings], *, may_use_nccl: bool = True
) -> tuple[Finding, ...]:
    """
    Tell which settings are worth a note.

    Args:
        settings: The variables of all processes.

        may_use_nccl: Whether there is a GPU for which NCCL could be of use.

    Returns:
        Findings that say that nothing is wrong.
    """
    every = tuple(settings)
    found = []
    for note in _NOTES:
        users: dict[str, list[Settings]] = defaultdict(list)
        for x in every:
            value = x.variables.get(note.name)
            if note.test(value):
                users[value or ""].append(x)
        for value, who in users.items():
            says = f"{note.name}={value} {note.says}"
            found.append(_finding(says, note.advice, who))
    silent = [x for x in every if _records_nothing(x.variables)]
    if silent:
        says = "the Flight Recorder of torch is off (its buffer has size 0)"
        advice = "set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_TRACE_BUFFER_SIZE"
        found.append(_finding(says, f"{advice} to 2000 or more", silent))
    tells = any(_tells_of_nccl(x.variables) for x in every)
    if every and may_use_nccl and not tells:
        says = "NCCL_DEBUG is not set, so NCCL says little of its errors"
        found.append(_finding(says, "set NCCL_DEBUG=WARN, or INFO", every))
    return tuple(found)


def _records_nothing(variables: Mapping[str, str]) -> bool:
    # The first that is set counts.
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    return next((variables[x] for x in names if x in variables), "") == "0"


def _tells_of_nccl(variables: Mapping[str, str]) -> bool:
    return bool(variables.get("NCCL_DEBUG"))


def _finding(says: str, advice: str, who: Iterable[Settings]) -> Finding:
    users = tuple(who)
    return Finding(
        cause=Cause.HEALTHY,
        ranks=tuple(sorted({x.rank for x in users if x.rank is not None})),
        summary=f"note: {says}",
        confidence="possible",
        remedy=advice,
        evidence=(
            Evidence(
                kind="environment",
                source=list_text(sorted({x.host for x in users})),
                location=list_text(x.name for x in users),
            ),
        ),
    )

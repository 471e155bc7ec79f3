"""
What does the output of a driver mean, as findings?
"""

from __future__ import annotations

import re

from collections.abc import Mapping

import attrs

from .._text import clean, size_text
from ..findings import Cause, Evidence, Finding
from .driver_model import DriverLog, Failure, FailureKind


_CAUSES: Mapping[FailureKind, Cause] = {
    "task_error": Cause.RANK_CRASHED,
    "out_of_memory": Cause.HOST_OUT_OF_MEMORY,
    "start_timeout": Cause.RAY_WORKER_START_TIMEOUT,
    "not_started": Cause.NODE_MISCONFIGURED,
}
# Of Gloo, NCCL, and what torch makes of them.  Words that others use too count
# only where they stand by the name of such a library.
_TIMED_OUT = re.compile(
    r"Watchdog caught collective|NCCL communicator was aborted"
    r"|Timed out waiting \d{1,12} ?ms for (?:recv|send)"
    r"|Application timeout caused pair closure"
    r"|watchdog thread terminated with exception"
    r"|(?:collective|NCCL) (?:operation )?time(?:d )?[ -]?out"
    r"|(?:gloo|NCCL|monitoredBarrier|Dist(?:Backend)?Error)[^\n]{0,200}"
    r"(?i:\btimed out|\btimeout)"
)
_LOST_PEER = re.compile(
    r"Connection closed by peer \[|remote process exited|ncclRemoteError"
    r"|(?:gloo|NCCL|ProcessGroup|TCPStore|Dist(?:Backend|Network)?Error)"
    r"[^\n]{0,200}(?:Connection (?:closed|reset) by peer|Broken pipe"
    r"|Socket closed|[Ff]ailed to recv)"
)
_ERRORS = (
    (
        re.compile(r"CUDA out of memory|HIP out of memory"),
        Cause.GPU_OUT_OF_MEMORY,
    ),
    (re.compile(r"No space left on device"), Cause.DISK_FULL),
    (
        re.compile(r"waiting for clients|client socket has timed out"),
        Cause.RENDEZVOUS_TIMEOUT,
    ),
    (_TIMED_OUT, Cause.COLLECTIVE_TIMEOUT),
    (_LOST_PEER, Cause.NETWORK_FAILURE),
)
#: Whoever is told of these waited for somebody else.
WAITED = frozenset({Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE})


def cause_of(failure: Failure, signal: str | None = None) -> Cause:
    """
    What is wrong, in the words of findings?

    Args:
        failure: What failed.

        signal: The one that its process printed, if any.

    Returns:
        The cause; what was raised may tell more than that it was.
    """
    cause = _CAUSES.get(failure.kind, Cause.ACTOR_DIED)
    if signal is not None and failure.kind in {"actor_died", "worker_crashed"}:
        return Cause.NATIVE_CRASH
    if failure.kind in {"task_error", "init_error"}:
        text = f"{failure.error}: {failure.message}"
        causes = (cause for x, cause in _ERRORS if x.search(text))
        return next(causes, cause)
    return cause


def is_waiting(failure: Failure) -> bool:
    """
    Whether somebody else is at fault.

    Args:
        failure: What failed.

    Returns:
        Whether it tells only that somebody else did not answer.
    """
    return failure.kind == "actor_unavailable" or cause_of(failure) in WAITED


# Who raised these only waited for somebody who died.
_OF_OTHERS = frozenset(
    {
        *("RayActorError", "ActorDiedError", "ActorUnavailableError"),
        *("NodeDiedError", "OwnerDiedError", "WorkerCrashedError"),
        *("ObjectLostError", "RayTaskError", "TaskCancelledError"),
    }
)
_REMEDIES: Mapping[FailureKind, str] = {
    "task_error": "mend what raised; its own log does not show the traceback, "
    "the output of the driver does",
    "init_error": "mend what raised",
    "actor_died": "look at the end of worker-*-{pid}.err on its node; "
    "distdebug logs --deaths SESSION, with the session folder of Ray, tells "
    "who died first and how",
    "out_of_memory": "let it need less memory, or give the node more",
    "node_died": "look at the kernel's log and at raylet.out of that node",
    "not_started": "mend the runtime environment, or ask for what the nodes "
    "have: runtime_env_setup-*.log and ray status tell more",
    "start_timeout": "see what the new processes print: raylet.err and "
    "runtime_env_setup-*.log of that node",
}
_OF_WAITERS = (
    "find whom it waited for: distdebug logs --deaths SESSION, with the "
    "session folder of Ray, tells who died before; if nobody did, take the "
    "stacks of the others, and look at the network between their nodes"
)
# The begin of Ray's sentence alone tells nothing.
_CUT = "Worker unexpectedly exits"
# A driver that goes on for so many lines has outlived a failure.
_LONG_BEFORE = 100
_GUESSES = re.compile(r"Some common causes|There are some potential root")
_MOST = 20


def driver_findings(log: DriverLog) -> tuple[Finding, ...]:
    """
    Tell what the output of a driver means.

    Args:
        log: What :func:`~distdebug.ray.driver_output.read_driver_log` returned.

    Returns:
        What failed.  The first one comes first, but one that ended the driver
        before those that it outlived for long, and who only waited for
        somebody else last.  Nothing if nothing failed, or all that ended was
        meant to.
    """
    signals = {
        (x.origin.pid, x.origin.ip): x.signal for x in log.sources if x.signal
    }
    # Other lines of the same death say more than that a worker crashed.
    told = {x.pid for x in log.failures if x.kind != "worker_crashed"}
    own = [
        x
        for x in _culprits(log)
        if not x.is_intended
        and not (x.kind == "task_error" and x.error in _OF_OTHERS)
        and not (x.kind == "worker_crashed" and _is_known(x, told))
        and x.kind != "owner_died"
    ]
    own.sort(key=lambda x: (is_waiting(x), x.line))
    own = _ending_first(own)
    return tuple(
        _finding(log, x, _when(x, own[0]), _signal_of(x, signals))
        for x in own[:_MOST]
    )


def _ending_first(own: list[Failure]) -> list[Failure]:
    """
    A driver that outlived all that failed before ended for another reason.
    """
    ending = next((x for x in own if x.ended_driver), None)
    if ending is None or is_waiting(ending):
        return own

    outlived = {
        x.line
        for x in own
        if x.pid != ending.pid and ending.line - x.line > _LONG_BEFORE
    }
    return sorted(own, key=lambda x: (is_waiting(x), x.line in outlived))


def _is_known(failure: Failure, told: set[int | None]) -> bool:
    return failure.pid in told or (failure.pid is None and len(told) > 0)


def _culprits(log: DriverLog) -> list[Failure]:
    """
    All failures, but of those killed for memory the one that had the most.
    """
    starved = [x for x in log.failures if x.kind == "out_of_memory"]
    most: dict[str | None, Failure] = {}
    for failure in starved:
        known = most.get(failure.node_id)
        if known is None or (failure.memory or 0) > (known.memory or 0):
            most[failure.node_id] = failure
    return [
        x
        for x in log.failures
        if x.kind != "out_of_memory" or most.get(x.node_id) is x
    ]


def _signal_of(
    failure: Failure, signals: Mapping[tuple[int | None, str | None], str]
) -> str | None:
    places = ((failure.pid, failure.ip), (failure.pid, None))
    return next((signals[x] for x in places if x in signals), None)


def _when(failure: Failure, first: Failure) -> str:
    if failure is first:
        return ""
    return "Earlier, " if failure.line < first.line else "Later, "


def _finding(
    log: DriverLog, failure: Failure, when: str, signal: str | None
) -> Finding:
    cause = cause_of(failure, signal)
    remedy = _REMEDIES.get(failure.kind, _REMEDIES["actor_died"])
    story = _story(failure, signal)
    if cause in WAITED:
        # Whom it waited for is not told, so nobody is blamed.
        remedy, failure = _OF_WAITERS, attrs.evolve(failure, rank=None)
    return Finding(
        cause=cause,
        ranks=() if failure.rank is None else (failure.rank,),
        summary=f"{when}{story}.",
        confidence="possible" if when else "likely",
        remedy=remedy.replace("{pid}", str(failure.pid or "*")),
        location=failure.frames[0] if failure.frames else None,
        evidence=(
            Evidence(
                kind="log",
                source=log.path,
                location=f"line {failure.line}",
                quote=failure.quote,
            ),
        ),
    )


def _story(failure: Failure, signal: str | None) -> str:
    who = clean(failure.label)
    raised = ": ".join(filter(None, (failure.error, failure.message)))
    raised = clean(raised, limit=200).rstrip(".") or "an exception"
    held = failure.memory and size_text(failure.memory)
    # What Ray adds to each of them says nothing of this one.
    detail = _GUESSES.split(clean(failure.detail, limit=400))[0].rstrip(". ")
    detail = "" if _CUT.startswith(detail) else detail
    match failure.kind:
        case "task_error" | "init_error" if cause_of(failure) in WAITED:
            story = f"{who} waited in vain for another rank in "
            story += f"{clean(failure.function)}(): {raised}"
        case "task_error":
            story = f"{clean(failure.function)}() on {who} raised {raised}"
        case "init_error":
            story = f"{who} died of an exception in its __init__, {raised}"
        case "out_of_memory":
            story = f"{who} was killed by Ray since its node ran out of memory"
            story += f", of which it held {held}" if held else ""
        case "node_died":
            place = failure.ip or failure.node_id or "of unknown name"
            story = f"the node {place} was lost"
        case "start_timeout":
            story = "worker processes did not register with Ray in time"
        case "not_started":
            story = f"Ray could not start a task or actor: {raised}"
        case "actor_unavailable":
            story = f"actor {failure.actor_id or ''} did not answer any more"
        case _:
            story = f"{who} crashed with {signal}" if signal else f"{who} died"
            story += f": {detail}" if detail and not signal else ""
    return story

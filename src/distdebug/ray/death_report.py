"""
What do the deaths of a cluster mean, as findings?
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from .._text import clean, size_text
from ..findings import Cause, Confidence, Evidence, Finding
from .death_model import Death, DeathKind, Deaths, clock, memory_notes


_CAUSES: Mapping[DeathKind, Cause] = {
    "native_crash": Cause.NATIVE_CRASH,
    "collective_timeout": Cause.COLLECTIVE_TIMEOUT,
    "killed_or_exited": Cause.KILLED,
    "terminated": Cause.KILLED,
    "ray_oom": Cause.HOST_OUT_OF_MEMORY,
    "host_oom": Cause.HOST_OUT_OF_MEMORY,
}
# What an exception says may be more telling than that there was one.
_ERRORS = (
    (
        re.compile(
            r"CUDA out of memory|OutOfMemoryError: CUDA|HIP out of mem"
        ),
        Cause.GPU_OUT_OF_MEMORY,
    ),
    (re.compile(r"No space left on device"), Cause.DISK_FULL),
    (
        re.compile(
            r"DistStoreError|waiting for clients|client socket has tim"
        ),
        Cause.RENDEZVOUS_TIMEOUT,
    ),
)
_CONFIDENCE: Mapping[DeathKind, Confidence] = {
    "native_crash": "certain",
    "init_error": "certain",
    "ray_oom": "certain",
    "host_oom": "certain",
}
_REMEDIES: Mapping[DeathKind, str] = {
    "native_crash": "look at the innermost lines of its stack and at what its "
    "error log says before; CUDA_LAUNCH_BLOCKING=1 makes errors of kernels "
    "appear where they are made",
    "collective_timeout": "find the rank that did not join the collective: "
    "read the Flight Recorder dumps, or the watchdog's lines of all ranks",
    "killed_or_exited": "look for this process in the kernel's log (dmesg, "
    "memory.events of its cgroup), since want of memory is the most common "
    "reason; else search its code and libraries for os._exit",
    "exit_code": "look who calls sys.exit at the end of its error log",
    "terminated": "find out who sent it: the scheduler at a limit of time or "
    "for a preemption, a script, or somebody by hand",
    "init_error": "mend what the traceback in its error log shows",
    "ray_oom": "let it need less memory (smaller batches, fewer workers of "
    "data loaders, no copies on the host), or give the node more",
    "host_oom": "let the node need less memory, or give it more; Ray's own "
    "monitor did not act in time",
    "node_died": "look at the node itself: its kernel's log, its hardware, "
    "the scheduler; raylet.out there ends where it happened",
}
_DID: Mapping[DeathKind, str] = {
    "native_crash": "crashed",
    "collective_timeout": "was aborted by torch's watchdog: a collective took "
    "too long",
    "killed_or_exited": "vanished without a trace, by SIGKILL or os._exit",
    "exit_code": "left by sys.exit",
    "terminated": "was ended by SIGTERM",
    "init_error": "died of an exception in its __init__",
    "ray_oom": "was killed by Ray since its node ran out of memory",
    "host_oom": "was killed by the kernel since its node ran out of memory",
    "node_died": "was lost",
}
FOLDED: Mapping[DeathKind, str] = {
    "owner_died": "by the loss of the owner",
    "ray_oom": "killed by Ray to regain memory that another one held",
    "node_died": "on a node that was lost",
    "terminated": "ended with the node or the job",
}


def cause_of(death: Death) -> Cause:
    """
    What is wrong, in the words of findings?

    Args:
        death: One that nobody intended.

    Returns:
        The cause.
    """
    if death.kind == "init_error":
        text = f"{death.error or ''}\n{death.detail}"
        for pattern, cause in _ERRORS:
            if pattern.search(text):
                return cause
    return _CAUSES.get(death.kind, Cause.ACTOR_DIED)


def confidence_in(death: Death) -> Confidence:
    """
    How sure is it that a death happened in this way?

    Args:
        death: One that nobody intended.

    Returns:
        How sure.
    """
    return _CONFIDENCE.get(death.kind, "likely")


def story_of(death: Death) -> str:
    """
    What happened to whom, in one sentence?

    Args:
        death: One that nobody intended.

    Returns:
        The sentence, without its full stop.
    """
    story = f"{clean(_capital(death.label))} {_DID[death.kind]}"
    if death.kind == "native_crash" and death.signal:
        story += f" with {death.signal}"
        if death.python_frames:
            story += f" in {clean(death.python_frames[0].brief)}"
    if death.kind == "exit_code":
        story += f" with code {death.exit_code}"
    if death.kind == "node_died" and death.detail and not death.worker_id:
        story += f" ({clean(death.detail, limit=100)})"
    if death.memory:
        story += f", of which it held {size_text(death.memory)}"
        story += _greater(death)
    if death.error and death.kind in {"init_error", "native_crash"}:
        story += f": {clean(death.error, limit=160).rstrip('.')}"
    return story


def remedy_of(death: Death) -> str:
    """
    What helps?

    Args:
        death: One that nobody intended.

    Returns:
        What to do, and where to look.
    """
    remedy = _REMEDIES[death.kind]
    return f"{remedy} ({death.log})" if death.log else remedy


def _greater(death: Death) -> str:
    """
    Ray kills only workers, while anybody may have the memory.
    """
    notes = memory_notes(death.detail)
    most = max(notes, key=lambda note: note.size, default=None)
    if most is None or most.size <= (death.memory or 0):
        return ""
    who = f"process {most.pid} ({clean(most.command, limit=60)})"
    return f", while {who} held {size_text(most.size)}"


def _capital(text: str) -> str:
    # Names of the user's own stay as they are.
    words = ("node ", "worker ", "driver ")
    return text[0].upper() + text[1:] if text.startswith(words) else text


_MOST_OTHERS = 20
_MOST_QUOTES = 4


def death_findings(deaths: Deaths) -> tuple[Finding, ...]:
    """
    Tell what the deaths of a Ray cluster mean.

    Args:
        deaths: What :func:`~distdebug.ray.deaths.find_deaths` returned.

    Returns:
        The cause first, then deaths of their own, those that follow from
        others, and workers that never started; nothing if all ends were
        intended.
    """
    found: list[Finding] = []
    first = deaths.first
    if first is not None:
        found.append(_of_first(first, deaths))
    found += _of_others(deaths)
    follows = [
        x for x in deaths.deaths if x.is_collateral and x.kind != "job_ended"
    ]
    if follows and first is not None:
        found.append(_of_followers(follows, first))
    if deaths.not_started:
        found.append(_of_not_started(deaths.not_started))
    return tuple(found)


def _of_first(first: Death, deaths: Deaths) -> Finding:
    when = f" at {clock(first.time)} UTC" if first.time is not None else ""
    others = sum(not x.is_intended for x in deaths.deaths) - 1
    before = f", before {others} others died" if others > 0 else ""
    partial = any("gcs_server" in x.reason for x in deaths.missing)
    sure = confidence_in(first)
    return Finding(
        cause=cause_of(first),
        ranks=() if first.rank is None else (first.rank,),
        summary=f"{story_of(first)}{when}{before}.",
        confidence="likely" if partial and others > 0 else sure,
        remedy=remedy_of(first),
        location=first.python_frames[0] if first.python_frames else None,
        evidence=_evidence(first),
    )


def _evidence(death: Death) -> tuple[Evidence, ...]:
    quotes = [
        Evidence(
            kind=x.kind,
            source=x.source,
            location=x.location,
            quote=clean(x.quote, limit=400),
        )
        for x in death.evidence[:_MOST_QUOTES]
    ]
    if death.last_lines and death.log is not None:
        quotes.append(
            Evidence(
                kind="log",
                source=str(death.log),
                location="last lines",
                quote=" | ".join(death.last_lines[-3:]),
            )
        )
    return tuple(quotes)


def _of_others(deaths: Deaths) -> Iterator[Finding]:
    """
    Those that neither came first nor follow: alike ones together.
    """
    alike: dict[tuple[DeathKind, str], list[Death]] = {}
    for death in deaths.unintended:
        if death.is_first or death.is_collateral or death.is_intended:
            continue
        key = death.kind, death.actor_class or death.actor
        alike.setdefault(key, []).append(death)
    for group in list(alike.values())[:_MOST_OTHERS]:
        death = group[0]
        more = f", and {len(group) - 1} more alike" if len(group) > 1 else ""
        yield Finding(
            cause=cause_of(death),
            ranks=_ranks(group),
            summary=f"Later, {story_of(death)}{more}; whether it follows from "
            "the first death is not told.",
            confidence="possible",
            remedy=remedy_of(death),
            location=death.python_frames[0] if death.python_frames else None,
            evidence=_evidence(death),
        )


def _of_followers(follows: list[Death], first: Death) -> Finding:
    counts = Counter(
        FOLDED.get(x.kind, "after another one, or complaining of it")
        for x in follows
    )
    told = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    names = ", ".join(clean(x.label) for x in follows[:3])
    more = ", …" if len(follows) > 3 else ""
    noun = "death follows" if len(follows) == 1 else "deaths follow"
    return Finding(
        cause=Cause.ACTOR_DIED,
        ranks=(),  # none of them is at fault
        summary=f"{len(follows)} {noun} from another one ({told}): "
        f"{names}{more}.",
        confidence="likely",
        remedy=f"nothing to be done here; see to {clean(first.label)} first",
        evidence=tuple(e for x in follows[:3] for e in _evidence(x)[:1]),
    )


def _of_not_started(seen: tuple[Evidence, ...]) -> Finding:
    times = "once" if len(seen) == 1 else f"{len(seen)} times"
    return Finding(
        cause=Cause.RAY_WORKER_START_TIMEOUT,
        ranks=(),
        summary=f"Worker processes did not register with Ray in time {times}: "
        "they hang or die before they run any code of the job.",
        confidence="likely",
        remedy="see what the new processes print (raylet.err, worker-*.err, "
        "runtime_env_setup-*.log): a wrong interpreter of the runtime "
        "environment, imports from a slow file system, too few processors, or "
        "a profiler in front of the interpreter; "
        "RAY_worker_register_timeout_seconds is how long Ray waits",
        evidence=tuple(
            Evidence(
                kind=x.kind,
                source=x.source,
                location=x.location,
                quote=clean(x.quote, limit=400),
            )
            for x in seen[:_MOST_QUOTES]
        ),
    )


def _ranks(deaths: Iterable[Death]) -> tuple[int, ...]:
    return tuple(sorted({x.rank for x in deaths if x.rank is not None}))

"""
What does each way to die mean, and what helps?
"""

from __future__ import annotations

import re

from collections.abc import Mapping

from ..._text import clean, size_text
from ...findings import Cause, Confidence
from .memory import memory_notes
from .model import Death, DeathKind


__all__ = ["FOLDED", "cause_of", "confidence_in", "remedy_of", "story_of"]

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

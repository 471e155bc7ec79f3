"""
What does the log of the kernel say about the job?

Time counts: what happened before the job began is not why it fails, but a GPU
or a disk that broke then may still be broken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from ..._text import time_text
from ...findings import Cause, Confidence, Evidence, Finding
from ..gpu.model import Gpu, bus_key
from .events import EventRule, KernelEvent, event_rules
from .xids import Xid, explain_xid


__all__ = ["Circumstances", "judge_events"]

# So long before the first worker started, something may have to do with it.
_MARGIN_S = 60.0
# Without knowing when the job began.
_RECENT_S = 600.0
_WINDOW_S = 86_400.0
_PYTHON = ("python", "pt_", "ray::", "torchrun", "vllm", "sglang", "uvicorn")
_GPU_RULES = frozenset({"xid", "gpu lost", "gpu start", "sxid", "pci express"})


@attrs.frozen(kw_only=True)
class Circumstances:
    """
    On whose behalf is a node looked at?

    Attributes:
        host: The node.

        now: The time, in seconds since the epoch.

        since: When the job began; ``None`` if unknown.

        ranks: The rank of each process that is known, by its number on the
            node.

        pids: The processes of the job.

        gpus: The GPUs of the node.
    """

    host: str = ""
    now: float
    since: float | None = None
    ranks: Mapping[int, int] = attrs.field(factory=dict)
    pids: Collection[int] = frozenset()
    gpus: tuple[Gpu, ...] = ()

    @property
    def begin(self) -> float:
        """
        What is older did not happen to the job.
        """
        if self.since is None:
            return self.now - _WINDOW_S
        return self.since - _MARGIN_S


def judge_events(
    events: Iterable[KernelEvent], about: Circumstances
) -> tuple[Finding, ...]:
    """
    Tell what the kernel's messages mean for a job.

    Args:
        events: What the kernel told of.

        about: The node and the job.

    Returns:
        What was found, nothing for what is over or none of the job's
        business.
    """
    found = (_finding(event, about) for event in events)
    return tuple(finding for finding in found if finding is not None)


def _finding(event: KernelEvent, about: Circumstances) -> Finding | None:
    rule = event_rules()[event.rule]
    xid = None if event.rule != "xid" else explain_xid(event.xid or 0)
    confidence = _weigh(rule, event, xid, about)
    if confidence is None:
        return None

    gpu = _gpu(event, about)
    ranks = _ranks(event, gpu, about)
    return Finding(
        cause=_cause(rule, event, gpu),
        ranks=ranks,
        summary=_summary(rule, event, xid, gpu, about),
        confidence=confidence,
        remedy=xid.action if xid else rule.remedy,
        evidence=(
            Evidence(
                kind="kernel",
                source=about.host,
                location="kernel log",
                quote=event.quote,
            ),
        ),
    )


def _weigh(
    rule: EventRule,
    event: KernelEvent,
    xid: Xid | None,
    about: Circumstances,
) -> Confidence | None:
    """
    How sure is it that this matters; `None` if it does not.
    """
    is_rank = event.pid is not None and event.pid in about.ranks
    is_ours = is_rank or _is_ours(event, about)
    if rule.ours and not is_ours:
        return None

    is_lasting = rule.lasting and (xid is None or xid.kind in _BROKEN)
    is_before = event.time is not None and event.time < about.begin
    if is_before and not is_lasting:
        return None
    if event.time is None or is_before or _is_note(xid):
        return "possible"
    if is_rank:
        return "certain"
    is_now = about.since is not None or about.now - event.time < _RECENT_S
    is_other = event.pid is not None and not (is_now and is_ours)
    is_sure = (is_now or is_lasting) and not is_other
    return rule.confidence if is_sure else "possible"


def _is_note(xid: Xid | None) -> bool:
    return xid is not None and xid.kind in {"note", "result"}


_BROKEN = frozenset({"hardware", "driver", "unknown"})


def _is_ours(event: KernelEvent, about: Circumstances) -> bool:
    if event.pid in about.pids:
        return True
    # Who is dead is in no list of those that run.
    return event.rule == "xid" or event.name.lower().startswith(_PYTHON)


def _gpu(event: KernelEvent, about: Circumstances) -> Gpu | None:
    place = bus_key(event.bus_id) if event.bus_id else None
    gpus = (x for x in about.gpus if place and bus_key(x.bus_id) == place)
    return next(gpus, None)


def _cause(rule: EventRule, event: KernelEvent, gpu: Gpu | None) -> Cause:
    # An error of the bus is one of the GPU if that is what sits there.
    if gpu is not None and event.rule in _GPU_RULES:
        return Cause.GPU_FAULT
    return rule.cause


def _ranks(
    event: KernelEvent, gpu: Gpu | None, about: Circumstances
) -> tuple[int, ...]:
    if event.pid is not None:
        return (about.ranks[event.pid],) if event.pid in about.ranks else ()
    users = [] if gpu is None else [x.pid for x in gpu.processes]
    return tuple(sorted({about.ranks[x] for x in users if x in about.ranks}))


def _summary(
    rule: EventRule,
    event: KernelEvent,
    xid: Xid | None,
    gpu: Gpu | None,
    about: Circumstances,
) -> str:
    says = rule.says.format(
        pid=event.pid,
        name=event.name or "unknown",
        device=event.device or "unknown",
        seconds=event.seconds,
        xid=event.xid,
    )
    if xid is not None:
        says = f"{says}: {xid.means}"
    place = f" on GPU {gpu.index}" if gpu else ""
    if event.bus_id and not gpu:
        place = f" on {event.bus_id}"
    where = f"{about.host}: " if about.host else ""
    often = f", {event.count} times" if event.count > 1 else ""
    return f"{where}{says}{place}{often}{_when(event, about)}"


def _when(event: KernelEvent, about: Circumstances) -> str:
    if event.time is None:
        return ""
    if about.since is not None and event.time < about.begin:
        return f", {time_text(about.since - event.time)} before the job began"

    ago = max(about.now - event.time, 0.0)
    return f", {time_text(ago)} ago"

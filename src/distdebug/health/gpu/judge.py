"""
Which of these GPUs are not fit for work?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..._text import list_text, size_text
from ...findings import Cause, Evidence, Finding
from ..judged import Judged, as_finding, known_ranks
from .model import Gpu
from .reasons import IDLE, SEVERE


__all__ = ["judge_gpus"]

# Less than this is not enough for a context and the kernels of a program.
_LEAST_FREE = 256 << 20
_SLOW_CLOCK = 0.6
_BUSY = 50

_Judge = Callable[[Gpu], Judged | None]


def judge_gpus(
    gpus: Iterable[Gpu],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
) -> tuple[Finding, ...]:
    """
    Tell what is wrong with GPUs.

    Args:
        gpus: All of a node.

        host: The node.

        ranks: The rank of each process that is known.

    Returns:
        What was found, nothing for GPUs that are well.
    """
    found = []
    for gpu in gpus:
        # The first tells why the others are as they are.
        judged = next(filter(None, (judge(gpu) for judge in _JUDGES)), None)
        if judged is not None:
            found.append(_finding(gpu, judged, host, ranks or {}))
    return tuple(found)


def _finding(
    gpu: Gpu, judged: Judged, host: str, ranks: Mapping[int, int]
) -> Finding:
    name = f"GPU {gpu.index}" if gpu.index >= 0 else f"GPU at {gpu.bus_id}"
    names = [x for x in (gpu.name, gpu.bus_id, gpu.uuid) if x]
    return as_finding(
        judged._replace(
            says=f"{name} {judged.says}",
            ranks=known_ranks((x.pid for x in gpu.processes), ranks),
        ),
        host=host,
        evidence=Evidence(
            kind="gpu",
            source=host,
            location=name,
            quote=", ".join(names),
        ),
    )


def _lost(gpu: Gpu) -> Judged | None:
    if not gpu.problem:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "certain",
        f"does not answer: {gpu.problem}",
        (
            "take the node out, reset the GPU or reboot, and look for Xid "
            "messages in the kernel log"
        ),
    )


def _recovery(gpu: Gpu) -> Judged | None:
    if not gpu.recovery:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "likely",
        f"is not fit for work: its driver asks for {gpu.recovery!r}",
        "end the job on this node, and do what the driver asks for",
    )


def _worn_out(gpu: Gpu) -> Judged | None:
    if not gpu.is_worn_out:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "likely",
        "has bad memory that could not be replaced",
        "take the node out, and have the GPU exchanged",
    )


def _errors(gpu: Gpu) -> Judged | None:
    if not gpu.uncorrected_errors:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "likely" if gpu.needs_reset else "possible",
        (
            f"had {gpu.uncorrected_errors} memory errors that could not be "
            "corrected since its driver was loaded"
        ),
        "reset the GPU or reboot the node before the next job",
    )


def _needs_reset(gpu: Gpu) -> Judged | None:
    if not gpu.needs_reset:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "possible",
        "has bad memory that is replaced at the next reset",
        "reset the GPU when the job is over",
    )


def _fabric(gpu: Gpu) -> Judged | None:
    if gpu.fabric not in {"Not Started", "In Progress"}:
        return None
    return Judged(
        Cause.NODE_MISCONFIGURED,
        "likely",
        (
            "did not join the NVSwitch fabric, so CUDA does not start "
            f"(state: {gpu.fabric})"
        ),
        "start nvidia-fabricmanager, of the same version as the driver",
    )


def _slow(gpu: Gpu) -> Judged | None:
    severe = [x for x in gpu.slowed_by if x in SEVERE]
    if not severe or IDLE in gpu.slowed_by:
        return None
    clock, most = gpu.clock_mhz, gpu.most_clock_mhz
    speed = f" to {clock} of {most} MHz" if clock and most else ""
    is_slow = bool(clock and most and clock < _SLOW_CLOCK * most)
    is_busy = (gpu.utilization or 0) >= _BUSY
    return Judged(
        Cause.STRAGGLER,
        "likely" if is_slow and is_busy else "possible",
        f"is slowed down{speed}: {list_text(severe)}",
        "check the cooling and the power supply of the node",
    )


def _full(gpu: Gpu) -> Judged | None:
    used, total = gpu.memory_used, gpu.memory_total
    if not used or not total or total - used >= min(_LEAST_FREE, total // 50):
        return None
    return Judged(
        Cause.GPU_OUT_OF_MEMORY,
        "possible",
        f"has only {size_text(total - used)} of {size_text(total)} left",
        "see who holds its memory; frameworks that reserve it all are fine",
    )


_JUDGES: tuple[_Judge, ...] = (
    *(_lost, _recovery, _worn_out, _errors),
    *(_needs_reset, _fabric, _slow, _full),
)

"""
What does it mean that GPUs cannot be asked?
"""

from __future__ import annotations

from ...findings import Cause, Evidence, Finding
from ..judged import Judged, as_finding


__all__ = ["judge_driver"]

# GPUs that nobody uses take some seconds to wake up.
_LONG_S = 8.0


def judge_driver(
    problem: str, *, host: str = "", waited_s: float = 0.0
) -> tuple[Finding, ...]:
    """
    Tell what it means that the GPUs could not be asked.

    Args:
        problem: Why not, in the words of whoever was asked.

        host: The node.

        waited_s: How long an answer was waited for, in seconds; 0 if it came,
            and was an error.

    Returns:
        What was found, nothing where there is no driver at all.
    """
    judged = None
    if "version mismatch" in problem.lower():
        judged = Judged(
            Cause.NODE_MISCONFIGURED,
            "certain",
            "the driver of the GPUs and its libraries have different versions",
            "load the new driver (reboot the node), or use the libraries of "
            "the driver that is loaded",
        )
    elif waited_s > 0:
        judged = Judged(
            Cause.GPU_FAULT,
            "likely" if waited_s >= _LONG_S else "possible",
            f"the driver of the GPUs does not answer within {waited_s:.0f} s",
            "look for Xid messages in the kernel log; a driver that hangs "
            "needs a reset of the GPU, or a reboot",
        )
    if judged is None:
        return ()

    evidence = Evidence(kind="gpu", source=host, quote=problem)
    return (as_finding(judged, host=host, evidence=evidence),)

"""
Why are the clocks of a GPU low?

The bits are those of ``nvmlClocksEventReasons`` (earlier
``nvmlClocksThrottleReasons``) in the reference of NVIDIA's management library.
"""

from __future__ import annotations


__all__ = ["IDLE", "SEVERE", "reason_names"]

IDLE = "idle"
_REASONS = {
    0x1: IDLE,
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "clocks of a display",
}
#: Those that no healthy node shows for long.  A power cap is usual at work.
SEVERE = frozenset(
    {
        "hardware slowdown",
        "software thermal slowdown",
        "hardware thermal slowdown",
        "hardware power brake",
    }
)


def reason_names(bits: int) -> tuple[str, ...]:
    """
    Name the reasons.

    Args:
        bits: All of them, as the driver tells them.

    Returns:
        Their names; bits that are not known are left out.
    """
    return tuple(name for bit, name in _REASONS.items() if bits & bit)

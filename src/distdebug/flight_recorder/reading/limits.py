"""
How much may decoding one file take?

It runs in the child processes that decode dumps, and needs nothing but the
standard library.
"""

from __future__ import annotations

import sys


__all__ = ["SIZE_LIMIT", "limit_process"]

_MIB = 1 << 20

# A ring of 20,000 records makes a file of 3 MB.
SIZE_LIMIT = 128 * _MIB

# Genuine dumps take 10 to 15 times their size, and 10 ms per MB.
_MEMORY_BASE = 512 * _MIB
_MEMORY_PER_BYTE = 40
_MEMORY_MOST = 2048 * _MIB
_SECONDS_BASE = 5
_SECONDS_PER_MIB = 0.5


def limit_process(size: int) -> bool:
    """
    Limit what this process may take, for a file of *size* bytes.

    A process that takes more memory gets a :exc:`MemoryError`; one that takes
    more processor time is ended by the system, without a core file.

    Returns:
        Whether memory is limited; on some systems that is not possible.
    """
    try:
        import resource
    except ImportError:
        return False

    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime + _SECONDS_BASE
    seconds += _SECONDS_PER_MIB * size / _MIB
    memory = min(_MEMORY_BASE + _MEMORY_PER_BYTE * size, _MEMORY_MOST)
    _lower(resource.RLIMIT_CPU, int(seconds) + 1)
    _lower(resource.RLIMIT_CORE, 0)
    # Elsewhere the limit can be set, but nobody minds it.
    is_limited = _lower(resource.RLIMIT_AS, memory)
    return is_limited and sys.platform.startswith("linux")


def _lower(which: int, limit: int) -> bool:
    import resource

    try:
        _, most = resource.getrlimit(which)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(which, (limit, most))
    except (OSError, ValueError):
        return False

    return True

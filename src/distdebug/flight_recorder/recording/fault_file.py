"""
Does :mod:`faulthandler` still write where we told it to?

It does not say.  But it holds what it was given: so we give it something that
nobody else holds, and see whether that is still there.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import weakref


__all__ = ["FaultFile", "IsHeld"]


class FaultFile:
    """
    As much of a file as *faulthandler* needs.

    Args:
        fd: Where to write.  It is not closed with this.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """
        Where to write.
        """
        return self._fd

    def flush(self) -> None:
        """
        Nothing is kept back.
        """


IsHeld = weakref.ref[FaultFile]
"""Returns ``None`` once *faulthandler* has let go."""

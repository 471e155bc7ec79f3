"""
Which exception did a program in Python raise, and where?
"""

from __future__ import annotations

import re

import attrs


__all__ = ["PyError", "PyFrame"]

# They tell only of what went wrong elsewhere.
_WRAPPERS = re.compile(
    r"RayTaskError|RemoteTraceback|_?RemoteError|ChildFailedError"
    r"|ProcessRaisedException|WorkerCrashedError|_?ExceptionWithTraceback"
)
_LIBRARIES = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[.\d]{0,4})/|^<"
)


@attrs.frozen(kw_only=True)
class PyFrame:
    """
    One line of a traceback.
    """

    function: str
    file: str
    line: int


@attrs.frozen(kw_only=True)
class PyError:
    """
    One exception of a traceback.

    Attributes:
        type: Its class, with its module if that is told.

        message: The first line of what it says.

        frames: Where it came through, the innermost last.
    """

    type: str
    message: str = ""
    frames: tuple[PyFrame, ...] = ()

    @property
    def is_wrapper(self) -> bool:
        """
        Whether it only passes on what went wrong elsewhere.
        """
        return bool(_WRAPPERS.search(self.type))

    @property
    def place(self) -> PyFrame | None:
        """
        The innermost line that belongs to no library, else the innermost.
        """
        own = (x for x in self.frames[::-1] if not _LIBRARIES.search(x.file))
        return next(own, self.frames[-1] if self.frames else None)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

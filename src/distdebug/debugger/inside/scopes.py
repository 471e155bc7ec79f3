"""
Where does debugging end by itself?

Whoever steps past the end of an endpoint, a step, or a task comes into the loop
of a framework, which must not be held.  So stops end with the scope they are in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .prompt import release_thread


__all__ = ["scope"]


@contextmanager
def scope(name: str = "") -> Iterator[None]:
    """
    End the debugging of this thread when a block ends.

    It can decorate a function as well.  Breakpoints set by a client are
    cleared, and the thread runs at its own speed again.

    Args:
        name: What the block is called, for whoever reads the code.
    """
    del name
    try:
        yield
    finally:
        release_thread()

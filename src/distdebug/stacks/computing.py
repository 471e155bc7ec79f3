"""
How is it said what a thread computes?

That a thread is in the same native code at every look does not mean that it
never returns: it may call it again and again.
"""

from __future__ import annotations

import re

from ..findings import Cause
from .model import ThreadStack
from .motion import Motion
from .places import native_name
from .telling import Said


__all__ = ["computing_of", "is_computing", "looks_of", "remedy_of"]

_COMPUTES = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})
_ASK_AGAIN = re.compile(r"take native stacks \(--native\)[^,;]*, or ")
_SEE_WHY = "see why this function does not come to its end: what it is given"
_MOST_NAME = 80


def is_computing(said: Said) -> bool:
    """
    Whether a thread computes, and no rule knows what.

    Args:
        said: What it tells.
    """
    return said.rule is None and said.cause in _COMPUTES


def computing_of(said: Said, *, with_name: bool = True) -> str:
    """
    Say what a thread is doing that computes, as a predicate.

    Args:
        said: What it tells.

        with_name: Whether to name the native function, if it is known.
    """
    name = _function(said.thread)
    named = f" ({name})" if name and with_name else ""
    if said.cause is Cause.PYTHON_LOOP:
        return f"is running Python code{named}"
    if said.motion is Motion.MOVING:
        return f"is running native code{named}, again and again"
    if name:
        return f"is running native code{named} that does not return"
    return "is in native code"


def looks_of(said: Said) -> str:
    """
    Say how often a thread was seen in native code without a name, if often.

    Args:
        said: What it tells.
    """
    is_nameless = said.cause is Cause.NATIVE_SPIN and not _function(
        said.thread
    )
    is_same = said.motion is Motion.SPINNING
    return "at every look" if is_nameless and is_same else ""


def remedy_of(said: Said, remedy: str) -> str:
    """
    Leave out of a remedy what was done already.

    Args:
        said: What a thread tells.

        remedy: What is to be done about its cause.
    """
    if not said.thread.native and not _function(said.thread):
        return remedy
    if said.cause is Cause.NATIVE_SPIN and "--native" in remedy:
        return _SEE_WHY
    return _ASK_AGAIN.sub("", remedy)


def _function(thread: ThreadStack) -> str:
    return native_name(thread.native or thread.frames)[:_MOST_NAME]

"""
How is a value of a rank shown, without waiting for a device?

To show a tensor of a GPU, it is copied from there, and a copy queues behind the
collective that hangs.  So such a tensor is described instead.
"""

from __future__ import annotations

import itertools
import pprint
import reprlib
import sys

from collections.abc import Callable
from typing import Any


__all__ = ["pretty_text", "value_text"]

_LONGEST = 50_000
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_ON_HOST = frozenset({"cpu", "meta"})


def value_text(value: object, *, copy: bool = False) -> str:
    """
    How does a value look?

    Args:
        value: Anything.

        copy: Whether to show what lies on a device too, which may wait.

    Returns:
        Its ``repr()``, cut if it is very long.
    """
    if _is_large(value) or (_has_device() and not copy):
        return _cut(_far(value))
    return _cut(repr(value))


def pretty_text(value: object) -> str:
    """
    How does a value look on several lines?

    Args:
        value: Anything.

    Returns:
        What :func:`pprint.pformat` says, if there is no device.
    """
    is_far = _has_device() or _is_large(value)
    return _cut(_far(value) if is_far else pprint.pformat(value))


def _is_large(value: object) -> bool:
    """
    Whether the text of a value would take much more memory than is shown.
    """
    rest, count = [value], 0
    while rest and count <= _LONGEST:
        one = rest.pop()
        if type(one) in _CONTAINERS:
            count += 1 + len(one)  # type: ignore[arg-type]
            if count <= _LONGEST:
                parts = one.items() if isinstance(one, dict) else [one]
                rest += itertools.chain.from_iterable(parts)  # type: ignore[arg-type]
    return count > _LONGEST


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _has_device() -> bool:
    """
    Whether this process has ever used an accelerator; asking must not do so.
    """
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if getattr(device, "is_initialized", bool)():
            return True

    return False


class _Far(reprlib.Repr):
    """
    Shows containers itself, so that it sees each tensor in them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 20
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 1000
        self.maxfrozenset = self.maxdeque = self.maxarray = 1000
        self.maxstring = self.maxlong = self.maxother = _LONGEST

    def repr1(self, x: Any, level: int) -> str:
        """
        Show one value within another.
        """
        tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
        if isinstance(tensor, type) and isinstance(x, tensor):
            return _described(x) or repr(x)

        return super().repr1(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        """
        Show what is no plain container; a named tuple is one in disguise.
        """
        if isinstance(x, tuple) and type(x).__repr__ is not tuple.__repr__:
            inner = super().repr1(tuple(x), level)
            return f"{type(x).__name__}{inner}"

        return super().repr_instance(x, level)


_far: Callable[[object], str] = _Far().repr


def _described(tensor: Any) -> str:
    """
    What is known of a tensor without reading it; ``""`` if it is here.
    """
    if tensor.device.type in _ON_HOST:
        return ""

    return (
        f"<{type(tensor).__name__} on {tensor.device}, shape "
        f"{tuple(tensor.shape)}, {tensor.dtype}, not copied from there>"
    )

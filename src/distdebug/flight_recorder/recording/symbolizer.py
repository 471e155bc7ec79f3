"""
How are stacks dumped without importing a compiler?

To name the frames of compiled code, torch asks ``torch._inductor``, and just
asking imports it: more than 800 modules and a second or more, in a process
that is about to die.  Where it is not loaded there is no compiled code to
name, so for the time of a dump a stand-in says that nobody is there.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import importlib
import threading

from collections.abc import Iterator
from types import ModuleType
from typing import Any


__all__ = ["without_inductor"]


class _Absent(ModuleType):
    """
    ``torch._inductor`` for the thread that dumps; the real one for others.
    """

    def __init__(self, torch: ModuleType) -> None:
        super().__init__("torch._inductor")
        self.__dict__["_torch"] = torch
        self.__dict__["_dumper"] = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self.__dict__["_dumper"]:
            raise AttributeError(name)

        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def without_inductor(torch: ModuleType) -> Iterator[None]:
    """
    Keep torch from importing its compiler within this block and thread.

    Other threads that need the compiler meanwhile get it.  Nothing happens
    where it is already loaded.

    Args:
        torch: The loaded torch.
    """
    absent = _Absent(torch)
    vars(torch).setdefault("_inductor", absent)
    try:
        yield
    finally:
        # Else the real one was there, or another thread has imported it.
        if vars(torch).get("_inductor") is absent:
            vars(torch).pop("_inductor", None)

"""
Which tools are there, in which version, and are they known to fail?
"""

from __future__ import annotations

import re

from ..tool import find_tool, run_tool
from .check import Check
from .status import remedy_for_missing


__all__ = ["tool_check"]

_TIMEOUT_S = 5.0
_VERSION = re.compile(r"\b(\d{1,4}(?:\.\d{1,6}){1,3})\b")

# What one cannot do without; the others only show more.
_NEEDED = {"py-spy"}
_FOR = {
    "pystack": "native stacks with the least pause",
    "gdb": "native stacks of programs that are not Python",
    "cuda-gdb": "kernels on GPUs",
}


def tool_check(name: str) -> Check:
    """
    Is this tool there, and does it start?

    Args:
        name: Such as ``"gdb"``.
    """
    ok = False if name in _NEEDED else None
    path = find_tool(name)
    if path is None:
        use = f", for {_FOR[name]}" if name in _FOR else ""
        return Check(name, ok, f"not there{use}", remedy_for_missing(name))

    try:
        got = run_tool([path, "--version"], timeout_s=_TIMEOUT_S)
    except OSError as exc:
        return Check(name, ok, f"cannot be run: {exc}", f"reinstall {name}")

    found = _VERSION.search(got.output)
    if got.status != 0 or found is None:
        detail = f"{path} does not tell its version"
        return Check(name, ok, detail, f"reinstall {name}")

    version = found[1]
    if name == "cuda-gdb" and version.startswith("11."):
        return Check(
            name,
            ok=True,
            detail=f"{version}, whose unwinder is broken; it is replaced",
        )
    return Check(name, ok=True, detail=version)

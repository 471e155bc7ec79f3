"""
What does the source of Ray's nsight plugin do, and how is it mended?
"""

from __future__ import annotations

import ast

from .model import PatchState


__all__ = ["judge_source", "mend_source", "unmend_source"]

# Exactly as Ray has it since 2.7, and as NeMo RL patches it: both see each
# other's work.
_BROKEN = b'context.py_executable = " ".join(self.nsight_cmd) + " python"'
_MENDED = (
    b'context.py_executable = " ".join(self.nsight_cmd) + '
    b'f" {context.py_executable}"'
)
# What keeps the interpreter, in whatever form.
_KEEPERS = frozenset({"context.py_executable", "sys.executable"})


def judge_source(source: bytes) -> PatchState:
    """
    With which Python does this plugin start workers?

    Args:
        source: The text of ``nsight.py``.

    Returns:
        ``"needs_patch"``, ``"patched"``, ``"fixed_upstream"``, or
        ``"unknown"``.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "unknown"

    found = [
        (function, line)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for line in ast.walk(function)
        if isinstance(line, ast.Assign) and _sets_executable(line)
    ]
    if len(found) != 1:
        return "unknown"

    ((function, line),) = found
    code = ast.unparse(line).encode()
    if code == _normal(_BROKEN):
        return "needs_patch" if source.count(_BROKEN) == 1 else "unknown"
    if code == _normal(_MENDED):
        return "patched" if source.count(_MENDED) == 1 else "fixed_upstream"
    return "fixed_upstream" if _keeps(function, line) else "unknown"


def mend_source(source: bytes) -> bytes:
    """
    Let the plugin start workers with the Python that they should have.

    Args:
        source: A text that needs it.

    Returns:
        The mended text; nothing else is changed.

    Raises:
        ValueError: The text is not one that can be mended.
    """
    return _swapped(source, _BROKEN, _MENDED, "patched")


def unmend_source(source: bytes) -> bytes:
    """
    Take the mending back.

    Args:
        source: A text that was mended.

    Returns:
        The text from before, byte by byte.

    Raises:
        ValueError: The text is not one that was mended.
    """
    return _swapped(source, _MENDED, _BROKEN, "needs_patch")


def _swapped(
    source: bytes, old: bytes, new: bytes, wanted: PatchState
) -> bytes:
    swapped = source.replace(old, new)
    if source.count(old) != 1 or judge_source(swapped) != wanted:
        msg = "the text is not one that is known"
        raise ValueError(msg)

    return swapped


def _normal(code: bytes) -> bytes:
    return ast.unparse(ast.parse(code)).encode()


def _sets_executable(line: ast.Assign) -> bool:
    return any(ast.unparse(x) == "context.py_executable" for x in line.targets)


def _keeps(function: ast.FunctionDef, line: ast.Assign) -> bool:
    """
    Does what is assigned come from the Python there was, through any names?
    """
    reached = _names(line.value)
    for node in reversed(list(ast.walk(function))):
        if isinstance(node, ast.Assign) and node is not line:
            targets = {ast.unparse(x) for x in node.targets}
            reached |= _names(node.value) if targets & reached else set()
    return bool(_KEEPERS & reached)


def _names(value: ast.AST) -> set[str]:
    kinds = (ast.Name, ast.Attribute)
    return {ast.unparse(x) for x in ast.walk(value) if isinstance(x, kinds)}

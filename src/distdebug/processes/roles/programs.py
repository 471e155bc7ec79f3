"""
Which program does a command line run?
"""

from __future__ import annotations

import re

from collections.abc import Sequence


__all__ = ["is_python_name", "option_number", "program_of"]

_PYTHON = re.compile(r"(?:^|/)-?(?:python|pypy)[\d.]*[a-z]?(?:-dbg)?$")
# Options of the interpreter that take their value from the next argument.
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_LAST = re.compile(r"-[a-zA-Z]*([cm])(.*)", re.DOTALL)


def is_python_name(path: str) -> bool:
    """
    Whether this is what interpreters of Python are called.
    """
    return _PYTHON.search(path) is not None


def program_of(arguments: Sequence[str]) -> str:
    """
    Which program does an interpreter run?

    Args:
        arguments: Its command line.

    Returns:
        The path of a script, the name of a module (``python -m``), or
        ``"-c"``; ``""`` if it runs none, or if this is no interpreter.
    """
    if not arguments or not is_python_name(arguments[0]):
        return ""

    rest = iter(arguments[1:])
    for argument in rest:
        if argument in _WITH_VALUE:
            next(rest, None)
        elif not argument.startswith("-") or argument == "-":
            return argument
        elif not argument.startswith("--"):
            last = _LAST.fullmatch(argument)
            if last and not argument.startswith(("-W", "-X")):
                kind, attached = last.groups()
                return "-c" if kind == "c" else attached or next(rest, "")
    return ""


def option_number(arguments: Sequence[str], *names: str) -> int | None:
    """
    Which number does an option have?

    Args:
        arguments: The command line.

        names: What the option may be called, with ``-`` between words.

    Returns:
        The number; ``None`` if the option is not there, or is no number.
    """
    for argument, following in zip(
        arguments, [*arguments[1:], ""], strict=False
    ):
        if argument.startswith("--"):
            name, sign, value = argument[2:].partition("=")
            if name.replace("_", "-") in names:
                return _number(value if sign else following)
    return None


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_number else None

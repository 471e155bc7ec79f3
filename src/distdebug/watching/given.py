"""
Does what a user gave make sense?

A mistake is told when it is made, and not when the job hangs.
"""

from __future__ import annotations

import math
import os

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from .._text import clean
from ..errors import ConfigError
from .config import ONLY_PROGRESS, HangDebugConfig, wrong_value


__all__ = [
    "MOST_S",
    "a_config",
    "a_folder",
    "a_function",
    "a_number",
    "several_functions",
    "several_paths",
]

# Longer than any job, and no clock overflows.
MOST_S = 1e6


def a_number(
    value: object,
    name: str,
    *,
    least: float,
    most: float = MOST_S,
    unit: str = " s",
) -> float:
    """
    Take a number.

    Args:
        value: What was given.

        name: What it was given for.

        least: The smallest that makes sense.

        most: The largest that makes sense.

        unit: What to write after a number.

    Returns:
        The number.

    Raises:
        ConfigError: It is none, or makes no sense.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        number = math.inf
        with suppress(OverflowError):
            number = float(value)
        if least <= number <= most:
            return number

    raise wrong_value(
        value, name, f"a number from {least:g}{unit} to {most:,.0f}{unit}"
    )


def a_folder(value: object, name: str) -> Path:
    """
    Take the path of a file or folder.

    Args:
        value: What was given.

        name: What it was given for.

    Returns:
        Where it is, also after the program goes to another folder.

    Raises:
        ConfigError: It is no path.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise wrong_value(value, name, "a path")

    try:
        return Path(text).absolute()
    except OSError as error:  # the folder where we are is gone
        msg = f"{name}: {clean(text, limit=80)} is nowhere: {error.strerror}"
        raise ConfigError(msg, remedy="give a whole path") from None


def several_paths(value: object, name: str) -> tuple[Path, ...]:
    """
    Take one path, or several.

    Args:
        value: What was given.

        name: What it was given for.

    Returns:
        As :func:`a_folder` does.

    Raises:
        ConfigError: One of them is no path.
    """
    if isinstance(value, (str, os.PathLike)):
        value = (value,)
    if not isinstance(value, Iterable):
        raise wrong_value(value, name, "a path, or several")

    return tuple(a_folder(path, name) for path in value)


def a_function(value: Any, name: str) -> Callable[..., Any]:
    """
    Take something that can be called.

    Args:
        value: What was given.

        name: What it was given for.

    Returns:
        The same.

    Raises:
        ConfigError: It cannot be called.
    """
    if callable(value):
        return value  # type: ignore[no-any-return]

    is_command = name == "on_hang" and isinstance(value, str)
    raise wrong_value(
        value,
        name,
        "a function",
        remedy='command_hook("…") runs a command' if is_command else None,
    )


def several_functions(value: object, name: str) -> tuple[Any, ...]:
    """
    Take one function, or several, or none.

    Args:
        value: What was given.

        name: What it was given for.

    Returns:
        All of them.

    Raises:
        ConfigError: One of them cannot be called.
    """
    if value is None:
        return ()

    is_one = callable(value) or isinstance(value, str)
    many = (value,) if is_one or not isinstance(value, Iterable) else value
    return tuple(a_function(one, name) for one in many)


def a_config(value: object) -> HangDebugConfig:
    """
    Take a configuration.

    Args:
        value: One, or the ``debug:`` section of a job file, or the path of
            that file.

    Returns:
        The configuration; if there is none, only a lack of progress counts.

    Raises:
        ConfigError: It cannot be used.
    """
    if value is None:
        return ONLY_PROGRESS
    if isinstance(value, HangDebugConfig):
        return value
    if isinstance(value, Mapping):
        return HangDebugConfig.from_dict(value)
    if isinstance(value, (str, os.PathLike)):
        return HangDebugConfig.from_file(a_folder(value, "config"))

    expected = "a HangDebugConfig, a debug: section, or the path of a job file"
    raise wrong_value(value, "config", expected)

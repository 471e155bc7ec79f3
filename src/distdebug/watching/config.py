"""
What did the user ask for, in the ``debug:`` section of a job file?

The section has three keys, all of them optional::

    debug:
      enabled: true
      wait_seconds: [1800, 2400]
      output_dir: "{log_dir}/backtraces"

A job file runs on thousands of nodes, so a word that is not understood is
refused before the job starts, and never ignored.
"""

from __future__ import annotations

import math
import os
import re

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any

import attrs

from .._io import read_ordinary
from .._text import clean
from ..errors import ConfigError, MissingDependencyError


_MOST_BYTES = 1 << 18
_REMEDY = "write a section, such as: debug: {enabled: true}"
_MOST_VALUES = 100_000
_MOST_DEPTH = 1000
_BRACKETS = re.compile(rb"[][{}]")


def read_job_file(path: str | os.PathLike[str]) -> Mapping[object, object]:
    """
    Read a job file in YAML.

    Args:
        path: The file, of at most 256 KiB.

    Returns:
        The sections by name; nothing for an empty file.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or is not made of
            sections.

        MissingDependencyError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        msg = "to read job files, PyYAML is needed, which is not installed"
        raise MissingDependencyError(
            msg, remedy="pip install pyyaml"
        ) from None

    name = clean(os.fspath(path), limit=400)
    try:
        data = read_ordinary(path, _MOST_BYTES)
        _check_depth(data)
        document = _build(yaml.SafeLoader(data))
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror}"
        raise ConfigError(
            msg, remedy="see that it is there, and that you may read it"
        ) from None
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        msg = f"{name}: cannot be understood: {clean(str(error), limit=300)}"
        raise ConfigError(msg, remedy=_REMEDY) from None

    if document is None:
        return {}
    if not isinstance(document, Mapping):
        msg = f"{name}: must be made of sections with names"
        raise ConfigError(msg, remedy=_REMEDY)
    return document


def _check_depth(data: bytes) -> None:
    """
    Refuse brackets in brackets: at each, PyYAML looks at all that are open.
    """
    depth = 0
    for bracket in _BRACKETS.findall(data):
        depth = max(depth + (1 if bracket in b"[{" else -1), 0)
        if depth > _MOST_DEPTH:
            msg = f"more than {_MOST_DEPTH:,} brackets are open"
            raise ValueError(msg)


def _build(loader: Any) -> object:
    try:
        root = loader.get_single_node()
        if root is None:
            return None

        _check_size(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_size(root: Any) -> None:
    """
    Refuse values that are many, counting those again that have an alias.
    """
    waiting, count = [root], 0
    while waiting:
        count += 1
        if count + len(waiting) > _MOST_VALUES:
            msg = f"more than {_MOST_VALUES:,} values"
            raise ValueError(msg)

        value = waiting.pop().value
        if isinstance(value, list):  # of nodes, or of pairs of nodes
            for part in value:
                waiting.extend(part if isinstance(part, tuple) else (part,))


_SECTION = "debug"
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_MOST_WAITS = 100


def _as_waits(value: float | Iterable[float]) -> tuple[float, ...]:
    # Text is iterable too, and "600" is three numbers then.
    is_many = isinstance(value, Iterable) and not isinstance(
        value, (str, bytes, Mapping)
    )
    values = tuple(value) if is_many else (value,)  # type: ignore[arg-type]
    if not 0 < len(values) <= _MOST_WAITS:
        raise wrong_value(
            len(values), "wait_seconds", f"1 to {_MOST_WAITS} waits"
        )

    return tuple(sorted({_as_seconds(x) for x in values}))


def _as_seconds(value: object) -> float:
    # `true` is a number to Python, and a mistake here.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if 0 < seconds < math.inf:
            return seconds

    raise wrong_value(value, "wait_seconds", "seconds, more than 0")


def _as_folder(value: str | os.PathLike[str]) -> str:
    folder: object = value
    if isinstance(value, os.PathLike):
        folder = os.fspath(value)
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise wrong_value(value, "output_dir", "the path of a folder")

    for name in _PLACEHOLDER.findall(folder):
        if name != "log_dir":
            msg = f"output_dir has {{{name}}}, which is not known"
            raise ConfigError(msg, remedy="the only one is {log_dir}")
    return folder


def _check_enabled(_: object, __: object, value: object) -> None:
    if not isinstance(value, bool):
        raise wrong_value(value, "enabled", "true or false")


@attrs.frozen(kw_only=True)
class HangDebugConfig:
    """
    When to look at a job that may hang, and where to put what was found.

    Attributes:
        enabled: Whether to watch at all.

        wait_seconds: After how many seconds to look in any case, in order;
            one number or several.

        output_dir: The folder for what is found; ``{log_dir}`` stands for the
            folder of the job's logs.

    Raises:
        ConfigError: A value is none that this key can have.
    """

    enabled: bool = attrs.field(default=False, validator=_check_enabled)
    wait_seconds: tuple[float, ...] = attrs.field(
        default=(600.0,), converter=_as_waits
    )
    output_dir: str = attrs.field(
        default="{log_dir}/backtraces", converter=_as_folder
    )

    @classmethod
    def from_dict(cls, section: Mapping[str, object]) -> HangDebugConfig:
        """
        Take the values from a ``debug:`` section that was already read.

        Args:
            section: The values by key; what is left out has its default.

        Returns:
            The configuration.

        Raises:
            ConfigError: A key is not known, or a value is none that it can
                have.
        """
        if not isinstance(section, Mapping):
            raise wrong_value(section, _SECTION, "keys with values")

        known = [field.name for field in attrs.fields(cls)]
        for key in section:
            if key not in known:
                raise _unknown(key, known)
        return cls(**section)  # type: ignore[arg-type]

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> HangDebugConfig:
        """
        Take the values from the ``debug:`` section of a job file.

        Args:
            path: A file in YAML; its other sections are not looked at.

        Returns:
            The configuration.  A file that has no such section, or an empty
            one, does not ask for anything: the defaults.

        Raises:
            ConfigError: The file cannot be used, a key is not known, or a
                value is none that it can have.

            MissingDependencyError: PyYAML is not installed.
        """
        section = read_job_file(path).get(_SECTION)
        try:
            return cls.from_dict({} if section is None else section)  # type: ignore[arg-type]
        except ConfigError as error:
            msg = f"{clean(os.fspath(path), limit=400)}: {error}"
            raise ConfigError(msg, remedy=error.remedy) from None

    def resolve(self, log_dir: str | os.PathLike[str]) -> Path:
        """
        Tell where to put what is found.

        Args:
            log_dir: The folder of the job's logs.

        Returns:
            *output_dir* with its placeholder filled in.  Nothing is created.
        """
        # Not by `format`, which gives the text access to attributes.
        return Path(self.output_dir.replace("{log_dir}", os.fspath(log_dir)))


# Whoever names no wait wants none; every job is over before this one.
ONLY_PROGRESS = HangDebugConfig(enabled=True, wait_seconds=1e9)


def _unknown(key: object, known: list[str]) -> ConfigError:
    word = key.lower() if isinstance(key, str) else ""
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    remedy = f"{near[0]}, perhaps" if near else f"one of {', '.join(known)}"
    return ConfigError(f"unknown key {_show(key)}", remedy=remedy)


def wrong_value(
    value: object, name: str, expected: str, *, remedy: str | None = None
) -> ConfigError:
    """
    Say that a value is none that something can have.

    Args:
        value: What was given.

        name: What it was given for.

        expected: What could be given.

        remedy: What to do about it.

    Returns:
        The error, to be raised.
    """
    msg = f"{name} must be {expected}, not {_show(value)}"
    return ConfigError(msg, remedy=remedy)


def _show(value: object) -> str:
    # Even to show a number fails if it has too many digits.
    is_short = value is None or isinstance(value, (str, bytes, float, bool))
    if isinstance(value, int) and abs(value) < 10**18:
        is_short = True
    if is_short:
        return clean(repr(value), limit=80)
    return f"a value of type {type(value).__name__}"


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

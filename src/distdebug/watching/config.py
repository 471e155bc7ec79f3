"""
Configuration of hang debugging: the ``debug:`` section of a job file.

The section has three optional keys::

    debug:
      enabled: true
      wait_seconds: [1800, 2400]
      output_dir: "{log_dir}/backtraces"

A job file runs on thousands of nodes, so an unknown key is an error before the
job starts, and never ignored.
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


_MAX_BYTES = 1 << 18
_REMEDY = "write a section, such as: debug: {enabled: true}"
_MAX_VALUES = 100_000
_MAX_DEPTH = 1000
_BRACKETS = re.compile(rb"[][{}]")


def read_job_file(path: str | os.PathLike[str]) -> Mapping[object, object]:
    """
    Read a job file in YAML, of at most 256 KiB.

    Returns:
        The sections by name; nothing for an empty file.

    Raises:
        ConfigError: The file cannot be read, is invalid YAML, or is not a
            mapping of sections.

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
        data = read_ordinary(path, _MAX_BYTES)
        _check_depth(data)
        # The one of libyaml is seven times as fast; not every wheel has it.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = _construct(loader(data))
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror}"
        remedy = "see that it is there, and that you may read it"
        raise ConfigError(msg, remedy=remedy) from None
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as x:
        msg = f"{name}: cannot be parsed: {clean(str(x), limit=300)}"
        raise ConfigError(msg, remedy=_REMEDY) from None

    if document is None:
        return {}
    if not isinstance(document, Mapping):
        msg = f"{name}: must be made of sections with names"
        raise ConfigError(msg, remedy=_REMEDY)
    return document


def _check_depth(data: bytes) -> None:
    """
    Refuse deeply nested brackets: PyYAML is quadratic in their depth.
    """
    depth = 0
    for bracket in _BRACKETS.findall(data):
        depth = max(depth + (1 if bracket in b"[{" else -1), 0)
        if depth > _MAX_DEPTH:
            msg = f"more than {_MAX_DEPTH:,} brackets are open"
            raise ValueError(msg)


def _construct(loader: Any) -> object:
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
    Refuse too many values, with those behind aliases counted each time.
    """
    stack, count = [root], 0
    while stack:
        count += 1
        if count + len(stack) > _MAX_VALUES:
            msg = f"more than {_MAX_VALUES:,} values"
            raise ValueError(msg)

        value = stack.pop().value
        if isinstance(value, list):  # of nodes, or of pairs of nodes
            for part in value:
                stack.extend(part if isinstance(part, tuple) else (part,))


_SECTION = "debug"
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_MAX_WAITS = 100


def _parse_waits(value: float | Iterable[float]) -> tuple[float, ...]:
    # Text is iterable too: "600" would be three numbers.
    is_many = isinstance(value, Iterable) and not isinstance(
        value, (str, bytes, Mapping)
    )
    values = tuple(value) if is_many else (value,)  # type: ignore[arg-type]
    if not 0 < len(values) <= _MAX_WAITS:
        raise invalid_value(
            len(values), "wait_seconds", f"1 to {_MAX_WAITS} waits"
        )

    return tuple(sorted({_parse_seconds(x) for x in values}))


def _parse_seconds(value: object) -> float:
    if 0 < (seconds := _as_float(value)) < math.inf:
        return seconds

    raise invalid_value(value, "wait_seconds", "seconds, more than 0")


def _as_float(value: object) -> float:
    """
    Return a number; NaN if it is none, infinity if it is too large.
    """
    # `true` is a number in Python, but a mistake here.
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    with suppress(OverflowError):
        return float(value)
    return math.inf


def _path_text(value: object, name: str, expected: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise invalid_value(value, name, expected)

    return text


def _parse_folder(value: str | os.PathLike[str]) -> str:
    folder = _path_text(value, "output_dir", "the path of a folder")
    for name in _PLACEHOLDER.findall(folder):
        if name != "log_dir":
            msg = f"output_dir has {{{name}}}, which is not known"
            raise ConfigError(msg, remedy="the only one is {log_dir}")
    return folder


def _check_enabled(_: object, __: object, value: object) -> None:
    if not isinstance(value, bool):
        raise invalid_value(value, "enabled", "true or false")


@attrs.frozen(kw_only=True)
class HangDebugConfig:
    """
    When to capture a job that may hang, and where to put the snapshots.

    Attributes:
        enabled: Whether to watch at all.

        wait_seconds: Fixed times after the start, in seconds, at which to
            capture in any case; one number or several.

        output_dir: The folder for the snapshots; ``{log_dir}`` stands for the
            folder of the job's logs.

    Raises:
        ConfigError: A value is invalid for its key.
    """

    enabled: bool = attrs.field(default=False, validator=_check_enabled)
    wait_seconds: tuple[float, ...] = attrs.field(
        default=(600.0,), converter=_parse_waits
    )
    output_dir: str = attrs.field(
        default="{log_dir}/backtraces", converter=_parse_folder
    )

    @classmethod
    def from_dict(cls, section: Mapping[str, object]) -> HangDebugConfig:
        """
        Return the configuration of a parsed ``debug:`` section.

        Args:
            section: The values by key; a missing key has its default.

        Raises:
            ConfigError: A key is unknown, or a value is invalid.
        """
        if not isinstance(section, Mapping):
            raise invalid_value(section, _SECTION, "keys with values")

        known = [field.name for field in attrs.fields(cls)]
        for key in section:
            if key not in known:
                raise _unknown_key(key, known)
        return cls(**section)  # type: ignore[arg-type]

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> HangDebugConfig:
        """
        Return the configuration in the ``debug:`` section of a job file.

        Args:
            path: A file in YAML; its other sections are ignored.

        Returns:
            The configuration; the defaults if the section is missing or empty.

        Raises:
            ConfigError: The file cannot be used, a key is unknown, or a value
                is invalid.

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
        Return the folder for the snapshots; it is not created.

        Args:
            log_dir: The folder of the job's logs, for ``{log_dir}``.
        """
        # `format` would give the text access to attributes.
        return Path(self.output_dir.replace("{log_dir}", os.fspath(log_dir)))


# Without fixed waits: every job ends before this one.
ONLY_PROGRESS = HangDebugConfig(enabled=True, wait_seconds=1e9)


def _unknown_key(key: object, known: list[str]) -> ConfigError:
    lowered = key.lower() if isinstance(key, str) else ""
    remedy = f"one of {', '.join(known)}"
    for match in get_close_matches(lowered, known, n=1, cutoff=0.5):
        remedy = f"{match}, perhaps"
    return ConfigError(f"unknown key {_format_value(key)}", remedy=remedy)


def invalid_value(
    value: object, name: str, expected: str, *, remedy: str | None = None
) -> ConfigError:
    """
    Return the error for an invalid value.

    Args:
        name: The name of the argument or key.

        expected: What is valid, as a noun phrase.
    """
    msg = f"{name} must be {expected}, not {_format_value(value)}"
    return ConfigError(msg, remedy=remedy)


def _format_value(value: object) -> str:
    # repr() of an integer with too many digits fails.
    is_short = value is None or isinstance(value, (str, bytes, float, bool))
    if isinstance(value, int) and abs(value) < 10**18:
        is_short = True
    if is_short:
        return clean(repr(value), limit=80)
    return f"a value of type {type(value).__name__}"


# In seconds: longer than any job, and no clock overflows.
MAX_S = 1e6


def check_number(
    value: object,
    name: str,
    *,
    least: float,
    most: float = MAX_S,
    unit: str = " s",
) -> float:
    """
    Return *value* as a number within limits.

    Args:
        name: The name of the argument, for the error.

        unit: The text after a number, for the error.

    Raises:
        ConfigError: It is not a number, or out of range.
    """
    if least <= (number := _as_float(value)) <= most:
        return number

    raise invalid_value(
        value, name, f"a number from {least:g}{unit} to {most:,.0f}{unit}"
    )


def check_path(value: object, name: str) -> Path:
    """
    Return *value* as an absolute path of a file or folder.

    Raises:
        ConfigError: It is no path.
    """
    text = _path_text(value, name, "a path")
    try:
        return Path(text).absolute()
    except OSError as error:  # the working folder was deleted
        msg = f"{name}: {clean(text, limit=80)} is nowhere: {error.strerror}"
        raise ConfigError(msg, remedy="give a whole path") from None


def check_paths(value: object, name: str) -> tuple[Path, ...]:
    """
    Return one or several paths as absolute paths.

    Raises:
        ConfigError: One of them is no path.
    """
    if isinstance(value, (str, os.PathLike)):
        value = (value,)
    if not isinstance(value, Iterable):
        raise invalid_value(value, name, "a path, or several")

    return tuple(check_path(path, name) for path in value)


def check_callable(value: Any, name: str) -> Callable[..., Any]:
    """
    Return *value* if it can be called.

    Raises:
        ConfigError: It cannot be called.
    """
    if callable(value):
        return value  # type: ignore[no-any-return]

    is_command = name == "on_hang" and isinstance(value, str)
    raise invalid_value(
        value,
        name,
        "a function",
        remedy='command_hook("…") runs a command' if is_command else None,
    )


def check_callables(value: object, name: str) -> tuple[Any, ...]:
    """
    Return one or several functions as a tuple; ``None`` gives an empty one.

    Raises:
        ConfigError: One of them cannot be called.
    """
    if value is None:
        return ()

    if callable(value) or not isinstance(value, Iterable):
        value = (value,)
    values = (value,) if isinstance(value, str) else value
    return tuple(check_callable(one, name) for one in values)


def check_config(value: object) -> HangDebugConfig:
    """
    Return the configuration that *value* describes.

    Args:
        value: A configuration, a ``debug:`` section, the path of a job file,
            or ``None`` for :data:`ONLY_PROGRESS`.

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
        return HangDebugConfig.from_file(check_path(value, "config"))

    expected = "a HangDebugConfig, a debug: section, or the path of a job file"
    raise invalid_value(value, "config", expected)

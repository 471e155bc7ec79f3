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

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import attrs

from .._text import clean
from ..errors import ConfigError
from .job_file import read_job_file


__all__ = ["ONLY_PROGRESS", "HangDebugConfig", "wrong_value"]

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

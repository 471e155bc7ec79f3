"""
What has to be set so that this torch records, and dumps when it hangs?

The answer is worked out from an environment and a version without touching
either.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...identity import identify
from .folder import default_root
from .settings import RecorderSettings, Setting
from .variables import (
    VARIABLES,
    Variable,
    lookup,
    parse_version,
    spellings,
)


__all__ = ["Options", "new_token", "plan_flight_recorder"]

DUMP_DIR = "DISTDEBUG_DUMP_DIR"

# A prefix that another process of the job got from us and handed down.  Names
# are per process, so that no restart writes over an earlier dump.
_OURS = re.compile(r"\d{9,11}-\d{1,10}_(?:rank|nccl)_")

_FALSE = {"", "0", "n", "no", "off", "f", "false"}


class Options(NamedTuple):
    """
    What the user asked for; see :func:`enable_flight_recorder`.
    """

    dump_dir: str | None = None
    buffer_size: int = 2000
    dump_on_timeout: bool = True
    cpp_stacks: bool = False
    timing: bool = False
    fast_symbolize: bool = True
    pipe: bool = True
    override: bool = False
    keep: frozenset[str] = frozenset()


def new_token() -> str:
    """
    What do the file names of this process start with?

    Returns:
        Second of now and process id: unique on this node, and sorted by time.
    """
    return f"{int(time.time())}-{os.getpid()}"


def plan_flight_recorder(  # noqa: PLR0913 each may be asked for
    environ: Mapping[str, str],
    torch_version: str | None,
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    buffer_size: int = 2000,
    dump_on_timeout: bool = True,
    cpp_stacks: bool = False,
    timing: bool = False,
    fast_symbolize: bool = True,
    pipe: bool = True,
    override: bool = False,
    keep: Collection[str] = (),
    token: str | None = None,
) -> RecorderSettings:
    """
    What would :func:`enable_flight_recorder` set?

    Nothing is touched: neither the environment nor the disk.

    Args:
        environ: Environment variables of the job.

        torch_version: Such as ``"2.13.0"``; ``None`` sets the names of every
            torch from 2.5 on.

        dump_dir, buffer_size, dump_on_timeout, cpp_stacks, timing,
            fast_symbolize, pipe, override, keep: As for
            :func:`enable_flight_recorder`.

        token: Starts the file names; :func:`new_token` by default.

    Returns:
        The settings.

    Raises:
        ValueError: An argument makes no sense.
    """
    options = Options(
        dump_dir=None if dump_dir is None else os.fspath(dump_dir),
        buffer_size=buffer_size,
        dump_on_timeout=dump_on_timeout,
        cpp_stacks=cpp_stacks,
        timing=timing,
        fast_symbolize=fast_symbolize,
        pipe=pipe,
        override=override,
        keep=frozenset(keep),
    )
    return make_plan(environ, torch_version, options, token or new_token())


def make_plan(
    environ: Mapping[str, str],
    torch_version: str | None,
    options: Options,
    token: str,
) -> RecorderSettings:
    """
    :func:`plan_flight_recorder` for options that are already packed.
    """
    _check(options)
    folder = _choose_dir(environ, options).absolute()
    job = _Job(
        environ,
        parse_version(torch_version),
        options,
        _wishes(options, str(folder / token)),
    )
    rows: list[Setting] = []
    for variable in VARIABLES:
        rows += _SPECIAL.get(variable.key, _plan_wish)(variable, job)

    return RecorderSettings(
        variables=tuple(rows),
        dump_dir=folder,
        dump_prefix=_outcome("dump_prefix", rows),
        pipe_prefix=_outcome("pipe_prefix", rows),
        token=token,
    )


class _Job(NamedTuple):
    environ: Mapping[str, str]
    version: tuple[int, int] | None
    options: Options
    wishes: Mapping[str, str]


def _check(options: Options) -> None:
    size, folder = options.buffer_size, options.dump_dir
    if isinstance(size, bool) or not isinstance(size, int):
        msg = f"buffer_size must be an integer, not {size!r}"
        raise ValueError(msg)  # noqa: TRY004 one type for every bad argument
    if not 0 < size < 2**31:
        msg = f"buffer_size must be from 1 to {2**31 - 1}, not {size}"
        raise ValueError(msg)
    if folder is not None and (not folder or "\0" in folder):
        msg = f"dump_dir must be the path of a folder, not {folder!r}"
        raise ValueError(msg)


def _choose_dir(environ: Mapping[str, str], options: Options) -> Path:
    if options.dump_dir is not None:
        return Path(options.dump_dir)
    if environ.get(DUMP_DIR):
        return Path(environ[DUMP_DIR])

    found = lookup(_VARIABLE["dump_prefix"], environ)
    if found is not None and found[1]:
        return Path(found[1]).parent

    job = re.sub(r"[^\w.-]+", "_", identify(environ).job)[:100].lstrip(".")
    return default_root() / (job or "job")


def _wishes(options: Options, stem: str) -> dict[str, str]:
    flag = str(int(options.dump_on_timeout))
    wishes = {
        "buffer_size": str(options.buffer_size),
        "dump_prefix": f"{stem}_rank_",
        "dump_on_timeout": flag,
        "extra_dump": flag,
    }
    if options.cpp_stacks:
        wishes["cpp_stacks"] = "1"
        if options.fast_symbolize:
            wishes["symbolize"] = "fast"
    if options.timing:
        wishes["timing"] = "1"
    if options.pipe:
        wishes["pipe_prefix"] = f"{stem}_nccl_"
    return wishes


def _plan_wish(variable: Variable, job: _Job) -> list[Setting]:
    wish = job.wishes.get(variable.key)
    names = spellings(variable, job.version)
    found = lookup(variable, job.environ)
    if found is not None and _is_users(*found, job.options):
        return _follow(variable, names, found, job)
    if wish is None:
        return []
    if not names:
        name = variable.spellings[0].name
        reason = "this torch does not know it"
        return [Setting(name, None, "ignored", reason)]

    # An old name that this torch does not need is still read where it is.
    there = [s.name for s in variable.spellings if s.name in job.environ]
    return [
        Setting(name, wish, "set", variable.meaning)
        for name in dict.fromkeys([*names, *there])
    ]


def _is_users(name: str, value: str, options: Options) -> bool:
    if name in options.keep:
        return True
    return not (options.override or _OURS.fullmatch(Path(value).name))


def _follow(
    variable: Variable,
    names: Iterable[str],
    found: tuple[str, str],
    job: _Job,
) -> list[Setting]:
    harm = "" if _is_on(found[1]) else _HARM.get(variable.key, "")
    reason = harm or "was set before"
    rows = [
        Setting(s.name, job.environ[s.name], "kept", reason, bool(harm))
        for s in variable.spellings
        if s.name in job.environ
    ]
    rows += [
        Setting(name, found[1], "set", f"follows {found[0]}")
        for name in names
        if name not in job.environ
    ]
    return rows


def _plan_error_handling(variable: Variable, job: _Job) -> list[Setting]:
    name = variable.spellings[0].name
    value = job.environ.get(name)
    if value is None or value == _SKIP_CLEANUP:
        return []

    if job.options.override and name not in job.options.keep:
        return [Setting(name, _SKIP_CLEANUP, "set", "override was asked for")]

    # torchrun exports 1 where the user exported nothing.  Whoever did export
    # 1 can say so with keep=.
    inherited = value == "1" and "TORCHELASTIC_RUN_ID" in job.environ
    if inherited and name not in job.options.keep:
        reason = "torchrun's 1 aborts before the dump is written"
        return [Setting(name, _SKIP_CLEANUP, "set", reason)]

    reason = "may abort before the dump is written; 3 does not"
    return [Setting(name, value, "kept", reason, is_harmful=True)]


def _plan_monitoring(variable: Variable, job: _Job) -> list[Setting]:
    found = lookup(variable, job.environ)
    if found is None or _is_on(found[1]):
        return []

    return _object(found, "without it NCCL never dumps", job)


def _plan_blocking_wait(variable: Variable, job: _Job) -> list[Setting]:
    found = lookup(variable, job.environ)
    if found is None or not _is_on(found[1]):
        return []

    return _object(found, "there is no watchdog, and so no dump", job)


def _object(found: tuple[str, str], reason: str, job: _Job) -> list[Setting]:
    name, value = found
    if job.options.override and name not in job.options.keep:
        return [Setting(name, None, "unset", reason)]

    return [Setting(name, value, "kept", reason, is_harmful=True)]


def _is_on(value: str) -> bool:
    return value.strip().lower() not in _FALSE


def _outcome(key: str, rows: Iterable[Setting]) -> str:
    names = {s.name for s in _VARIABLE[key].spellings}
    return next((s.value for s in rows if s.name in names and s.value), "")


_VARIABLE = {v.key: v for v in VARIABLES}

# What it means when one of these is off.
_HARM = {
    "buffer_size": "nothing is recorded",
    "dump_on_timeout": "NCCL does not dump by itself",
}

# The value of TORCH_NCCL_ASYNC_ERROR_HANDLING that lets dumps be written.
_SKIP_CLEANUP = "3"

_SPECIAL: dict[str, Callable[[Variable, _Job], list[Setting]]] = {
    "error_handling": _plan_error_handling,
    "monitoring": _plan_monitoring,
    "blocking_wait": _plan_blocking_wait,
}

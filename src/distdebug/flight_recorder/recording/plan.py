"""
Plan the environment variables that make torch record and dump on a hang.

The plan depends only on an environment and a version of torch, and changes
neither.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..._io import make_private_folder
from ...errors import RecorderError
from ...identity import identify


TYPE_CHECKING = False
if TYPE_CHECKING:
    import pandas as pd


class Setting(NamedTuple):
    """
    Planned value of one environment variable.

    Attributes:
        name: Name of the variable.

        value: Its value afterwards; ``None`` if it is not set.

        action: ``"set"`` by us, ``"kept"`` as it was, ``"unset"``, or
            ``"ignored"`` because this torch does not know it.

        reason: Why, in a few words.

        is_harmful: Whether it impairs recording.
    """

    name: str
    value: str | None
    action: Literal["set", "kept", "unset", "ignored"]
    reason: str
    is_harmful: bool = False


class RecorderSettings(NamedTuple):
    """
    Variables, folder, and file names of a recording.

    Attributes:
        variables: Every variable that was considered.

        dump_dir: Folder of the dumps.

        dump_prefix: Prefix of torch's own dumps; the rank follows.

        pipe_prefix: A byte written to this plus ``RANK.pipe`` asks torch's
            NCCL backend for a dump; ``""`` if there is no such pipe.

        token: Prefix of every file name of this process; unique to it.
    """

    variables: tuple[Setting, ...]
    dump_dir: Path
    dump_prefix: str
    pipe_prefix: str
    token: str

    @property
    def request_prefix(self) -> str:
        """
        Return the prefix of our request pipe.

        A byte written to this plus ``RANK.pipe`` asks *distdebug* for a dump.
        """
        return str(self.dump_dir / f"{self.token}_request_")

    @property
    def warnings(self) -> tuple[str, ...]:
        """
        Return one line for each variable that impairs recording.
        """
        return tuple(
            f"{s.name}={s.value}: {s.reason}"
            for s in self.variables
            if s.is_harmful
        )

    def to_exports(self) -> str:
        """
        Return the settings as lines for a POSIX shell.

        Returns:
            ``export`` and ``unset`` lines, quoted for ``eval``.
        """
        from shlex import quote  # jobs have no use for it

        return "".join(
            f"unset {s.name}\n"
            if s.value is None
            else f"export {s.name}={quote(s.value)}\n"
            for s in self.variables
            if s.action in {"set", "unset"}
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of ``distdebug env --json``.
        """
        records = self.to_records()
        return {"dump_dir": str(self.dump_dir), "variables": records}

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per variable.
        """
        return [s._asdict() for s in self.variables]

    def to_frame(self) -> pd.DataFrame:
        """
        Return the records as a *pandas* data frame.

        Raises:
            MissingDependencyError: *pandas* is not installed.
        """
        from ..._render import frame_of

        return frame_of(self.to_records())

    def _repr_pretty_(self, p: Any, cycle: bool) -> None:  # noqa: FBT001
        p.text("..." if cycle else str(self))

    def _repr_html_(self) -> str:
        from ..._render import Table, blocks_html

        header, *rows = self._rows()
        table = Table(header, rows, len(rows))
        return blocks_html([f"Dumps go to {self.dump_dir}", table])

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            ("variable", "value", "action", "reason"),
            *(
                (
                    s.name,
                    "-" if s.value is None else s.value,
                    s.action,
                    s.reason,
                )
                for s in self.variables
            ),
        ]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        table = "\n".join(
            "  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows
        )
        return f"Dumps go to {self.dump_dir}\n\n{table}"


class Spelling(NamedTuple):
    """
    One environment variable of a setting.

    Attributes:
        name: Its name.

        since: First torch that reads it.

        until: First torch that no longer needs it.
    """

    name: str
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (999, 0)


class Variable(NamedTuple):
    """
    One setting of torch, with all its environment variables.

    Attributes:
        key: *distdebug*'s name of it.

        spellings: Its environment variables, the preferred one first.

        meaning: What it does, in one line.
    """

    key: str
    spellings: tuple[Spelling, ...]
    meaning: str


_FIRST_WITH_FR_NAMES = (2, 8)

# torch warns about the old names from 2.8 on; from 2.11 on, it does not need
# them.
_FIRST_WITHOUT_OLD_NAMES = (2, 11)


def _renamed(new: str, old: str) -> tuple[Spelling, ...]:
    return (
        Spelling(new, since=_FIRST_WITH_FR_NAMES),
        Spelling(old, until=_FIRST_WITHOUT_OLD_NAMES),
    )


VARIABLES = (
    Variable(
        "buffer_size",
        _renamed("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        "how many calls each rank remembers",
    ),
    Variable(
        "dump_prefix",
        _renamed("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        "where torch writes its own dumps; it appends the rank",
    ),
    Variable(
        "cpp_stacks",
        _renamed("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"),
        "C++ frames in the stacks",
    ),
    Variable(
        "symbolize",
        (Spelling("TORCH_SYMBOLIZE_MODE"),),
        "how C++ addresses become names; all but 'fast' can take minutes",
    ),
    Variable(
        "dump_on_timeout",
        (Spelling("TORCH_NCCL_DUMP_ON_TIMEOUT"),),
        "NCCL: dump when a call times out",
    ),
    Variable(
        "extra_dump",
        (Spelling("TORCH_NCCL_EXTRA_DUMP_ON_EXEC", since=(2, 10)),),
        "NCCL: also dump when the watchdog meets an error",
    ),
    Variable(
        "pipe_prefix",
        (
            Spelling("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
            Spelling(
                "TORCH_FR_DEBUG_INFO_PIPE_FILE", since=_FIRST_WITH_FR_NAMES
            ),
        ),
        "NCCL, XCCL: a pipe that asks for a dump; torch appends RANK.pipe",
    ),
    Variable(
        "timing",
        (Spelling("TORCH_NCCL_ENABLE_TIMING"),),
        "NCCL: note when each call started, and how long it took",
    ),
    Variable(
        "error_handling",
        (Spelling("TORCH_NCCL_ASYNC_ERROR_HANDLING"),),
        "NCCL: what happens after an error; 1 aborts before it dumps",
    ),
    Variable(
        "monitoring",
        (Spelling("TORCH_NCCL_ENABLE_MONITORING"),),
        "NCCL: the thread that writes the dumps",
    ),
    Variable(
        "blocking_wait",
        (Spelling("TORCH_NCCL_BLOCKING_WAIT"), Spelling("NCCL_BLOCKING_WAIT")),
        "NCCL: wait on the host; no watchdog, and so no dump",
    ),
)


def parse_version(version: str | None) -> tuple[int, int] | None:
    """
    Return major and minor number of a version of torch.

    Args:
        version: Such as ``"2.13.0+cpu"``.

    Returns:
        The numbers, or ``None`` if it is not a version.
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    return (int(match[1]), int(match[2])) if match else None


def spellings(
    variable: Variable, version: tuple[int, int] | None
) -> tuple[str, ...]:
    """
    Return the names under which a torch reads a variable.

    Args:
        version: Release of torch; ``None`` stands for all of them.

    Returns:
        The names, the preferred one first; none if that torch lacks it.
    """
    return tuple(
        s.name
        for s in variable.spellings
        if version is None or s.since <= version < s.until
    )


def lookup(
    variable: Variable, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """
    Look up a variable in an environment under all its names.

    Returns:
        Name and value of the first spelling that is set, or ``None``.
    """
    names = (s.name for s in variable.spellings)
    return next(((n, environ[n]) for n in names if n in environ), None)


_REMEDY = "name a folder of your own with dump_dir= or DISTDEBUG_DUMP_DIR"


def default_root() -> Path:
    """
    Return the default parent of dump folders: a temporary folder per user.
    """
    return Path(tempfile.gettempdir(), f"distdebug-{os.getuid()}").absolute()


def random_root() -> Path:
    """
    Return a fallback for :func:`default_root` with a random name.

    It does not exist yet, and no other user can guess it.
    """
    root = default_root()
    return root.with_name(f"{root.name}-{os.urandom(8).hex()}")


def make_folder(folder: Path) -> None:
    """
    Make the folder of the dumps, for its owner alone.

    Other users can guess :func:`default_root`, and make it first to read our
    stacks or to redirect our files.  So every part below it must be ours.

    Raises:
        RecorderError: It cannot be made, or is not safe to use.
    """
    root = default_root()
    try:
        if folder.is_relative_to(root):
            for part in (*reversed(folder.parents), folder):
                if part.is_relative_to(root):
                    _make_private(part)
        else:
            make_private_folder(folder)
    except OSError as exc:
        msg = f"cannot make the folder for dumps: {exc}"
        raise RecorderError(msg, remedy=_REMEDY) from exc

    if not os.access(folder, os.W_OK | os.X_OK):
        msg = f"cannot write to the folder for dumps: {folder}"
        raise RecorderError(msg, remedy=_REMEDY)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            return
        msg = f"the folder for dumps belongs to another user: {folder}"
        raise RecorderError(msg, remedy=_REMEDY) from None


DUMP_DIR_VARIABLE = "DISTDEBUG_DUMP_DIR"

# A prefix of ours that this process has inherited.  Names are per process, so
# that no restart overwrites an earlier dump.
_OWN_PREFIX = r"\d{9,11}-\d{1,10}_(?:rank|nccl)_"

_FALSE_VALUES = {"", "0", "n", "no", "off", "f", "false"}


class Options(NamedTuple):
    """
    Arguments of :func:`enable_flight_recorder`.
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
    extras: bool = True


def new_token() -> str:
    """
    Return the prefix of the file names of this process.

    Returns:
        Current second and process id: unique on this node, and sorted by time.
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
    Return the settings that :func:`enable_flight_recorder` would apply.

    It changes neither the environment nor the disk.

    Args:
        environ: Environment variables of the job.

        torch_version: Such as ``"2.13.0"``; ``None`` sets the names of every
            torch from 2.5 on.

        dump_dir, buffer_size, dump_on_timeout, cpp_stacks, timing,
            fast_symbolize, pipe, override, keep: As for
            :func:`enable_flight_recorder`.

        token: Prefix of the file names; :func:`new_token` by default.

    Raises:
        ValueError: An argument is invalid.
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
    Return the settings; see :func:`plan_flight_recorder`.
    """
    _check_options(options)
    folder = _choose_dir(environ, options).absolute()
    inputs = _Inputs(
        environ,
        parse_version(torch_version),
        options,
        _requested_values(options, str(folder / token)),
    )
    rows: list[Setting] = []
    for variable in VARIABLES:
        rows += _SPECIAL_PLANS.get(variable.key, _plan_value)(variable, inputs)

    return RecorderSettings(
        variables=tuple(rows),
        dump_dir=folder,
        dump_prefix=_planned_value("dump_prefix", rows),
        pipe_prefix=_planned_value("pipe_prefix", rows),
        token=token,
    )


class _Inputs(NamedTuple):
    environ: Mapping[str, str]
    version: tuple[int, int] | None
    options: Options
    requested: Mapping[str, str | None]


def _check_options(options: Options) -> None:
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
    if environ.get(DUMP_DIR_VARIABLE):
        return Path(environ[DUMP_DIR_VARIABLE])

    found = lookup(_VARIABLE_BY_KEY["dump_prefix"], environ)
    if found is not None and found[1]:
        return Path(found[1]).parent

    job = re.sub(r"[^\w.-]+", "_", identify(environ).job)[:100].lstrip(".")
    return default_root() / (job or "job")


def _requested_values(options: Options, stem: str) -> dict[str, str | None]:
    """
    Return the value of each setting that is asked for; ``None`` for the others.
    """
    flag = str(int(options.dump_on_timeout))
    is_fast = options.cpp_stacks and options.fast_symbolize
    return {
        "buffer_size": str(options.buffer_size),
        "dump_prefix": f"{stem}_rank_",
        "dump_on_timeout": flag,
        "extra_dump": flag,
        "cpp_stacks": "1" if options.cpp_stacks else None,
        "symbolize": "fast" if is_fast else None,
        "timing": "1" if options.timing else None,
        "pipe_prefix": f"{stem}_nccl_" if options.pipe else None,
    }


def _plan_value(variable: Variable, inputs: _Inputs) -> list[Setting]:
    value = inputs.requested.get(variable.key)
    names = spellings(variable, inputs.version)
    found = lookup(variable, inputs.environ)
    if found is not None and _is_set_by_user(*found, inputs.options):
        return _keep_user_value(variable, names, found, inputs)
    if value is None:
        return []
    if not names:
        name = variable.spellings[0].name
        reason = "this torch does not know it"
        return [Setting(name, None, "ignored", reason)]

    # torch still reads an old name if it is set.
    present = [s.name for s in variable.spellings if s.name in inputs.environ]
    return [
        Setting(name, value, "set", variable.meaning)
        for name in dict.fromkeys([*names, *present])
    ]


def _is_set_by_user(name: str, value: str, options: Options) -> bool:
    is_ours = re.fullmatch(_OWN_PREFIX, Path(value).name)
    return name in options.keep or not (options.override or is_ours)


def _keep_user_value(
    variable: Variable,
    names: Iterable[str],
    found: tuple[str, str],
    inputs: _Inputs,
) -> list[Setting]:
    harm = "" if _is_on(found[1]) else _HARM_WHEN_OFF.get(variable.key, "")
    reason = harm or "was set before"
    rows = [
        Setting(s.name, inputs.environ[s.name], "kept", reason, bool(harm))
        for s in variable.spellings
        if s.name in inputs.environ
    ]
    rows += [
        Setting(name, found[1], "set", f"follows {found[0]}")
        for name in names
        if name not in inputs.environ
    ]
    return rows


def _plan_error_handling(variable: Variable, inputs: _Inputs) -> list[Setting]:
    name = variable.spellings[0].name
    value = inputs.environ.get(name)
    if value is None or value == _SKIP_CLEANUP:
        return []

    if inputs.options.override and name not in inputs.options.keep:
        return [Setting(name, _SKIP_CLEANUP, "set", "override was asked for")]

    # torchrun exports 1 by default.  keep= marks a 1 that the user has set.
    inherited = value == "1" and "TORCHELASTIC_RUN_ID" in inputs.environ
    if inherited and name not in inputs.options.keep:
        reason = "torchrun's 1 aborts before the dump is written"
        return [Setting(name, _SKIP_CLEANUP, "set", reason)]

    reason = "may abort before the dump is written; 3 does not"
    return [Setting(name, value, "kept", reason, is_harmful=True)]


def _plan_switch(variable: Variable, inputs: _Inputs) -> list[Setting]:
    """
    Return how to undo a switch that the user has set so that nothing is dumped.
    """
    found = lookup(variable, inputs.environ)
    is_harmful_on, reason = _HARMFUL_SWITCHES[variable.key]
    if found is None or _is_on(found[1]) is not is_harmful_on:
        return []

    name, value = found
    if inputs.options.override and name not in inputs.options.keep:
        return [Setting(name, None, "unset", reason)]

    return [Setting(name, value, "kept", reason, is_harmful=True)]


def _is_on(value: str) -> bool:
    return value.strip().lower() not in _FALSE_VALUES


def _planned_value(key: str, rows: Iterable[Setting]) -> str:
    names = {s.name for s in _VARIABLE_BY_KEY[key].spellings}
    return next((s.value for s in rows if s.name in names and s.value), "")


_VARIABLE_BY_KEY = {v.key: v for v in VARIABLES}

# Consequence when one of these is off.
_HARM_WHEN_OFF = {
    "buffer_size": "nothing is recorded",
    "dump_on_timeout": "NCCL does not dump by itself",
}

# The value of TORCH_NCCL_ASYNC_ERROR_HANDLING that lets dumps be written.
_SKIP_CLEANUP = "3"

# By variable: the state in which it keeps NCCL from dumping, and why.
_HARMFUL_SWITCHES = {
    "monitoring": (False, "without it NCCL never dumps"),
    "blocking_wait": (True, "there is no watchdog, and so no dump"),
}

_SPECIAL_PLANS: dict[str, Callable[[Variable, _Inputs], list[Setting]]] = {
    "error_handling": _plan_error_handling,
    **dict.fromkeys(_HARMFUL_SWITCHES, _plan_switch),
}

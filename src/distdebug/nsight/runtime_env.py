"""
Build the Ray ``runtime_env`` that starts a worker under nsys.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import shlex
import shutil
import sys
import threading

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import attrs

from .._text import clean
from ..errors import NsightError
from .doctor import supported_options
from .patch import has_py_executable


# The second is the prefix of NeMo RL, for its scripts.
_PREFIXES = ("DISTDEBUG_NSYS_", "NRL_NSYS_")


def read_nsys_variable(name: str) -> tuple[str, str]:
    """
    Read a variable with one of the prefixes.

    Args:
        name: The name without prefix, such as ``"WORKER_PATTERNS"``.

    Returns:
        The name and the stripped value of the first of ``DISTDEBUG_NSYS_…``
        and ``NRL_NSYS_…`` that is set and not blank; else two empty texts.
    """
    for prefix in _PREFIXES:
        if text := os.environ.get(f"{prefix}{name}", "").strip():
            return f"{prefix}{name}", text

    return "", ""


_STEP_RANGE = re.compile(r"([0-9]{1,12}) {0,9}: {0,9}([0-9]{1,12})")


@attrs.frozen(kw_only=True)
class StepRange:
    """
    A range of steps, counted from 1.

    Attributes:
        start: The first step.

        stop: The step after the last one.
    """

    start: int
    stop: int

    def __attrs_post_init__(self) -> None:
        if self.start < 1:
            msg = f"step range {self}: steps are counted from 1"
            raise NsightError(msg, remedy="write 1:4 for the first three")
        if self.stop <= self.start:
            msg = f"step range {self} holds no step: its end is left out"
            remedy = f"write {self.start}:{self.start + 1} for one step"
            raise NsightError(msg, remedy=remedy)

    def __contains__(self, step: int) -> bool:
        return self.start <= step < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


def parse_step_range(text: str) -> StepRange:
    """
    Parse a range of steps.

    Args:
        text: ``"a:b"``: the steps from *a*, counted from 1, up to *b*, which
            is excluded.

    Raises:
        NsightError: It is not such a range, or holds no step.
    """
    match = _STEP_RANGE.fullmatch(text.strip())
    if match is None:
        msg = f"{text!r:.60} is no range of steps"
        remedy = "write a:b, such as 3:6 for the steps 3, 4, and 5"
        raise NsightError(msg, remedy=remedy)

    return StepRange(start=int(match[1]), stop=int(match[2]))


def resolve_step_range(step_range: StepRange | str | None) -> StepRange | None:
    """
    Return the range of steps of an argument, or else of the environment.

    Returns:
        By default the value of ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE``, or else
        of ``NRL_NSYS_PROFILE_STEP_RANGE``; ``None`` if neither is set.

    Raises:
        NsightError: It is not a range of steps.
    """
    if isinstance(step_range, str):
        return parse_step_range(step_range)

    name, text = read_nsys_variable("PROFILE_STEP_RANGE")
    if step_range is not None or not name:
        return step_range
    try:
        return parse_step_range(text)
    except NsightError as exc:
        msg = f"{name}: {exc}"
        raise NsightError(msg, remedy=exc.remedy) from None


_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9._+=@-]")
_MAX_NAME = 120
# The raylet starts a shell for this command, so the parent process has the
# session folder among its arguments.
_FIND_SESSION = (
    "tr '\\0' '\\n' </proc/$PPID/cmdline | sed -n 's/^--session[-_]dir=//p'"
)


def default_options(step_range: StepRange | None) -> dict[str, str]:
    """
    Return the options of ``nsys profile`` that every worker gets.

    CPU sampling is off: where the kernel does not allow it, nsys may hang
    and use most of a CPU.

    Args:
        step_range: The steps to capture; ``None`` for the whole life of the
            worker.

    Returns:
        Options without the report name.
    """
    options = {
        "t": "cuda,nvtx",
        "s": "none",
        "cpuctxsw": "none",
        "x": "true",
        "cuda-graph-trace": "node",
    }
    if step_range is not None:
        # By default, nsys kills the worker when the capture ends.
        options |= {"c": "cudaProfilerApi", "capture-range-end": "stop"}
    return options


def report_name(worker: str, step_range: StepRange | None = None) -> str:
    """
    Return the report name of a worker for ``nsys profile -o``.

    Args:
        worker: The name of the worker.

        step_range: The captured steps.

    Returns:
        Such as ``"dtensor_policy_worker_3-6_%p"``.  Characters that are unsafe
        in file names become ``_``.

    Raises:
        NsightError: The name is empty, or holds only dashes and dots.
    """
    name = _UNSAFE_CHARACTER.sub("_", worker)[:_MAX_NAME].lstrip("-.")
    if not name:
        msg = f"{worker!r:.60} is no name of a worker"
        raise NsightError(msg, remedy="name it, such as 'policy_worker'")

    # A file name should hold no colon.
    middle = f"_{step_range.start}-{step_range.stop}" if step_range else ""
    return f"{name}{middle}_%p"


def nsys_command(
    options: Mapping[str, str], name: str, folder: str, *, nsys: str
) -> str:
    """
    Return the shell command that starts a program under nsys.

    Args:
        switches: Options of ``nsys profile``.

        name: As `report_name` returns it.

        folder: A shell expression for the folder; see `output_folder`.

        nsys: The name or path of nsys on the nodes.
    """
    argv = [nsys, "profile"]
    for option, value in options.items():
        argv += (
            [f"-{option}", value]
            if len(option) == 1
            else [f"--{option}={value}"]
        )
    return f"{shlex.join(argv)} -o {folder}/{name}"


def output_folder(folder: str | os.PathLike[str] | None) -> str:
    """
    Return a shell expression that creates and prints the report folder.

    Args:
        folder: The folder, in which each node has its own; by default the
            folder in Ray's session that Ray itself uses for such reports.

    Raises:
        NsightError: The path is not absolute, or has ``%`` or unprintable
            characters.
    """
    if folder is None:
        assignment = f"d=$({_FIND_SESSION}); d=${{d:-/tmp/ray/session_unknown}}/logs/nsight"
    else:
        text = os.fspath(folder)
        if not text.startswith("/") or "%" in text or not text.isprintable():
            msg = f"reports cannot go to {text!r:.200}"
            remedy = "name a folder by its whole path, without %"
            raise NsightError(msg, remedy=remedy)
        assignment = f"d={shlex.quote(text)}/$HOSTNAME"

    return f'"$({assignment}; mkdir -p "$d"; printf %s "$d")"'


_MAX_PATTERN = 1000
_logger = logging.getLogger("distdebug.nsight")
_logged_workers: set[str] = set()
_lock = threading.Lock()


def match_worker(
    name: str, patterns: str | Iterable[str] | None = None
) -> str | None:
    """
    Return the first pattern that matches a worker; ``None`` without one.

    Matching is case-sensitive.  The first match of each worker in a process is
    logged at level INFO.

    Args:
        name: The name of the worker, such as ``"dtensor_policy_worker"``.

        patterns: Shell wildcards (``*``, ``?``, ``[seq]``, ``[!seq]``),
            separated by commas, or an iterable of them; by default those in
            ``DISTDEBUG_NSYS_WORKER_PATTERNS``, or else in
            ``NRL_NSYS_WORKER_PATTERNS``.  Blanks around a pattern, and empty
            patterns, are ignored.  A pattern of more than 1,000 characters
            matches nothing.
    """
    if patterns is None:
        _, patterns = read_nsys_variable("WORKER_PATTERNS")
    texts = [patterns] if isinstance(patterns, str) else patterns
    parts = (part.strip() for text in texts for part in text.split(","))
    for pattern in filter(None, parts):
        # Compiling a pattern takes quadratic time.
        if len(pattern) <= _MAX_PATTERN and fnmatchcase(name, pattern):
            _log_once(name, pattern)
            return pattern

    return None


def _log_once(name: str, pattern: str) -> None:
    with _lock:
        is_new = name not in _logged_workers
        _logged_workers.add(name)
    if is_new:
        _logger.info(
            "Nsight profiling enabled for worker '%s' (matched pattern '%s')",
            clean(name),
            clean(pattern),
        )


_OPTION_NAME = re.compile(
    r"[A-Za-z]|[a-z][a-z0-9]{1,30}(?:-[a-z0-9]{1,30}){0,8}"
)
_MAX_VALUE = 4096
# One-letter names, as in Ray's examples.
_SHORT_NAMES = {
    "backtrace": "b",
    "capture-range": "c",
    "duration": "d",
    "env-var": "e",
    "force-overwrite": "f",
    "help": "h",
    "inherit-environment": "n",
    "output": "o",
    "nvtx-capture": "p",
    "sample": "s",
    "trace": "t",
    "show-output": "w",
    "stop-on-exit": "x",
    "delay": "y",
}
_RESERVED = {
    "o": "reports are named after the worker; choose the folder with "
    "output_dir",
    "h": "see: nsys profile --help",
}
_VALUES_TEXT = re.compile(r"Possible values are:? ([^.]{1,2000})\.(?: |$)")
_QUOTED_VALUE = re.compile(r"['`]([^'`]{1,80})['`]")
_SEPARATOR = re.compile(r"[\s,]{0,20}(?:(?:or|and)\b)?[\s,]{0,20}")


def read_extra_options(
    extra: Mapping[str, Any] | str | None = None,
) -> dict[str, str]:
    """
    Return the options that the user adds.

    Args:
        extra: Option names without dashes, and their values; or the same as a
            JSON object.  By default the value of
            ``DISTDEBUG_NSYS_EXTRA_OPTIONS``, or else of
            ``NRL_NSYS_EXTRA_OPTIONS``.

    Returns:
        The options for nsys, by their one-letter name if they have one.

    Raises:
        NsightError: It is not such an object, or has an invalid option.
    """
    source = "extra_options"
    if extra is None:
        source, extra = read_nsys_variable("EXTRA_OPTIONS")
    if isinstance(extra, str):
        extra = _parse_json(source, extra) if extra else {}
    options: dict[str, str] = {}
    for name, value in extra.items():
        key, text = _check_option(source, name, value)
        if key in options:
            msg = f"{source}: {name!r} is given twice"
            raise NsightError(msg, remedy="keep one of its names")
        options[key] = text
    return options


def check_options(options: Mapping[str, str], nsys: str = "nsys") -> None:
    """
    Check options against the help of the installed nsys.

    Args:
        switches: Names without dashes, and values.

        nsys: The name or path of nsys.  If it is not installed, or does not
            answer in time, nothing is checked.

    Raises:
        NsightError: nsys does not support an option or its value.
    """
    path = shutil.which(nsys)
    known = supported_options(path) if path else {}
    if not known:
        return

    for name, value in options.items():
        if name not in known:
            similar = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {similar[0]!r}?" if similar else ""
            msg = f"{path} profile has no option {name!r}"
            raise NsightError(msg, remedy=hint or "see: nsys profile --help")
        _check_value(name, value, known[name])


def _parse_json(source: str, text: str) -> Mapping[str, Any]:
    remedy = 'write {"trace": "cuda,nvtx,osrt", "delay": 5}'
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        msg = f"{source} is not JSON: {exc}"
        raise NsightError(msg, remedy=remedy) from None
    if not isinstance(data, dict):
        msg = f"{source} is not a JSON object but {type(data).__name__}"
        raise NsightError(msg, remedy=remedy)

    return data


def _check_option(source: str, name: object, value: object) -> tuple[str, str]:
    key = name.lstrip("-") if isinstance(name, str) else ""
    if not _OPTION_NAME.fullmatch(key):
        msg = f"{source}: {name!r:.60} is no name of an option of nsys"
        raise NsightError(msg, remedy='write it as "trace" or "t"')
    key = _SHORT_NAMES.get(key, key)
    if key in _RESERVED:
        msg = f"{source}: {name!r} cannot be chosen"
        raise NsightError(msg, remedy=_RESERVED[key])

    return key, _value_text(source, key, value)


def _value_text(source: str, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()

    text = str(value) if isinstance(value, (str, int, float)) else ""
    if not 0 < len(text) <= _MAX_VALUE or not text.isprintable():
        msg = f"{source}: {name!r} cannot be {value!r:.60}"
        raise NsightError(
            msg, remedy="give one line of text, a number, true, or false"
        )

    return text


def _check_value(name: str, value: str, help_text: str) -> None:
    choices = _parse_choices(help_text)
    is_list = "comma" in help_text or "','" in help_text
    parts = value.split(",") if is_list else [value]
    if "after ':'" in help_text:  # each value may have a threshold
        parts = [part.partition(":")[0] for part in parts]
    wrong = [part for part in parts if not _is_one_of(part, choices)]
    if choices and wrong:
        msg = f"option {name!r} of nsys cannot be {clean(wrong[0])!r}"
        raise NsightError(msg, remedy=f"it is one of {', '.join(choices)}")


def _parse_choices(help_text: str) -> list[str]:
    """
    Return the values that a help text lists, if it lists only values.
    """
    match = _VALUES_TEXT.search(f"{help_text} ")
    if match is None:
        return []
    rest = _QUOTED_VALUE.sub("\n", match[1]).split("\n")
    if not all(_SEPARATOR.fullmatch(part) for part in rest):
        return []
    return _QUOTED_VALUE.findall(match[1])


def _is_one_of(value: str, choices: list[str]) -> bool:
    # A placeholder such as 'repeat[:N]' is matched by its prefix.
    prefixes = [re.split(r"[^\w-]", c, maxsplit=1)[0] for c in choices]
    return any(
        value == choice or (prefix != choice and value.startswith(prefix))
        for choice, prefix in zip(choices, prefixes, strict=True)
    )


Mode = Literal["py_executable", "nsight"]

_MODES = ("py_executable", "nsight")
# Keys that activate an environment, in which "python" is right, and keys that
# start the worker in a container.
_PYTHON_ENVIRONMENTS = ("pip", "uv", "conda")
_CONTAINER_KEYS = ("image_uri", "container")
_MERGED_KEYS = ("env_vars", "config")
_STEPS_VARIABLE = "DISTDEBUG_NSYS_PROFILE_STEP_RANGE"


def nsight_runtime_env(  # noqa: PLR0913
    worker_name: str,
    *,
    patterns: str | Iterable[str] | None = None,
    step_range: StepRange | str | None = None,
    mode: Mode = "py_executable",
    extra_options: Mapping[str, Any] | str | None = None,
    base: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    python: str | None = None,
    nsys: str = "nsys",
) -> dict[str, Any]:
    """
    Return a Ray ``runtime_env`` that profiles a worker, if a pattern matches.

    Args:
        worker_name: The name of the worker, which is also in the report name.

        patterns: The workers to profile; see `match_worker`.

        step_range: ``"a:b"``: the steps to capture, from *a*, counted from 1,
            up to *b*, which is excluded.  The worker has to mark its steps by
            `StepProfiler`; it gets the range in a variable.  By default the
            value of ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE``, or else of
            ``NRL_NSYS_PROFILE_STEP_RANGE``; if neither is set, the whole life
            of the worker is captured.

        mode: ``"py_executable"`` needs no change to Ray (2.43 or newer);
            ``"nsight"`` uses Ray's plugin, which starts the right Python only
            if `ray_nsight_status` returns a fine state.

        extra_options: Options of ``nsys profile`` that are added to the
            defaults, or replace them; by default the value of
            ``DISTDEBUG_NSYS_EXTRA_OPTIONS``, or else of
            ``NRL_NSYS_EXTRA_OPTIONS``.

        base: The ``runtime_env`` of the worker; its Python is used.

        output_dir: The folder of reports, in which each node has its own; by
            default ``logs/nsight/`` of Ray's session on each node.

        python: The Python on the nodes, if *base* does not name one; by
            default the interpreter of this process.

        nsys: The name or path of nsys on the nodes.

    Returns:
        The argument of ``ray.remote(runtime_env=…)`` or ``.options()``; only
        what *base* holds if no pattern matches.

    Raises:
        NsightError: An argument is invalid, or *base* cannot be combined with
            *mode*.
    """
    base_env = merge_runtime_env(base, {})
    if match_worker(worker_name, patterns) is None:
        return base_env

    if mode not in _MODES:
        msg = f"there is no mode {mode!r}"
        raise NsightError(msg, remedy=f"write {' or '.join(_MODES)}")
    steps = resolve_step_range(step_range)
    extra = read_extra_options(extra_options)
    check_options(extra, nsys)
    options = {**default_options(steps), **extra}
    name = report_name(worker_name, steps)
    base_env.pop("nsight", None)
    new: dict[str, Any] = {}
    if steps is not None:
        new["env_vars"] = {_STEPS_VARIABLE: str(steps)}
    if mode == "nsight":
        new["nsight"] = _plugin_options(options, name, output_dir)
    else:
        _require_py_executable()
        folder = output_folder(output_dir)
        command = nsys_command(options, name, folder, nsys=nsys)
        new["py_executable"] = f"{command} {_python_command(base_env, python)}"
    return merge_runtime_env(base_env, new)


def merge_runtime_env(
    base: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> dict[str, Any]:
    """
    Merge two ``runtime_env`` dictionaries.

    Ray replaces the ``runtime_env`` of ``ray.remote()`` by that of
    ``.options()``, and so loses keys of the former.

    Args:
        new: Its keys win.

    Returns:
        The merged dictionary.  ``env_vars`` and ``config`` are merged key by
        key.  Ray's internal key ``_nsight`` becomes ``nsight``, which Ray
        accepts as input.
    """
    first, second = _normalize(base), _normalize(new)
    merged = {**first, **second}
    for key in _MERGED_KEYS:
        both = first.get(key), second.get(key)
        if all(isinstance(part, Mapping) for part in both):
            merged[key] = {**first[key], **second[key]}
    return merged


def _normalize(env: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = dict(env or {})
    if "_nsight" in plain:
        plain.setdefault("nsight", plain["_nsight"])
        del plain["_nsight"]
    return plain


def _plugin_options(
    options: Mapping[str, str], name: str, output_dir: object
) -> dict[str, str]:
    if output_dir is not None:
        msg = "Ray's nsight plugin puts reports where it wants"
        raise NsightError(
            msg, remedy='leave out output_dir, or use mode="py_executable"'
        )
    for option, value in options.items():
        # The plugin checks options without a shell, but starts workers in
        # one.
        if shlex.quote(value) != value:
            msg = f"option {option!r} cannot be {value!r:.60} in this mode"
            raise NsightError(msg, remedy='use mode="py_executable"')

    return {**options, "o": shlex.quote(name)}


def _python_command(base: Mapping[str, Any], python: str | None) -> str:
    if any(base.get(key) for key in _CONTAINER_KEYS):
        msg = "a worker in a container of its own is not started by this Ray"
        raise NsightError(
            msg, remedy="start nsys in the container, as its entry point"
        )
    command = str(base.get("py_executable") or "").strip()
    program, *arguments = command.split(maxsplit=1) or [""]
    if arguments and program.rpartition("/")[2] == "nsys":
        msg = "the runtime_env starts the worker under nsys already"
        raise NsightError(msg, remedy="give the one from before as base")
    if command:
        return command  # it is a shell command already
    if python is None and any(base.get(key) for key in _PYTHON_ENVIRONMENTS):
        return "python"
    return shlex.quote(python or sys.executable)


def _require_py_executable() -> None:
    if has_py_executable() is False:
        msg = "this Ray is too old to start workers by a py_executable"
        raise NsightError(
            msg,
            remedy='use mode="nsight" after "distdebug nsight patch" on every '
            "node, or Ray 2.43 or newer",
        )

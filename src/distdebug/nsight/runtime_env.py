"""
Which words start a worker under nsys, safely for the shell that reads them?
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import shlex
import sys
import threading

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import attrs

from .._text import clean
from ..errors import NsightError
from .doctor import find_nsys, known_switches
from .patch import has_py_executable


# The second is that of NeMo RL, whose scripts go on working.
_PREFIXES = ("DISTDEBUG_NSYS_", "NRL_NSYS_")


def variable(
    name: str, environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """
    Which variable sets this, and to what?

    Args:
        name: Its name without the prefix, such as ``"WORKER_PATTERNS"``.

        environ: The environment; by default that of this process.

    Returns:
        The name of the first of ``DISTDEBUG_NSYS_…`` and ``NRL_NSYS_…`` that
        is set and not blank, and its text without blanks around it; two empty
        texts if there is none.
    """
    environ = os.environ if environ is None else environ
    for prefix in _PREFIXES:
        if text := environ.get(f"{prefix}{name}", "").strip():
            return f"{prefix}{name}", text

    return "", ""


_RANGE = re.compile(r"([0-9]{1,12}) {0,9}: {0,9}([0-9]{1,12})")


@attrs.frozen(kw_only=True)
class StepRange:
    """
    Some steps in a row, counted from 1.

    Attributes:
        start: The first one that is profiled.

        stop: The first one that no longer is.
    """

    start: int = attrs.field()
    stop: int = attrs.field()

    @start.validator
    def _from_one(self, _: object, start: int) -> None:
        if start < 1:
            msg = f"step range {self}: steps are counted from 1"
            raise NsightError(msg, remedy="write 1:4 for the first three")

    @stop.validator
    def _not_empty(self, _: object, stop: int) -> None:
        if stop <= self.start:
            msg = f"step range {self} holds no step: its end is left out"
            remedy = f"write {self.start}:{self.start + 1} for one step"
            raise NsightError(msg, remedy=remedy)

    @property
    def in_file_name(self) -> str:
        """
        The range as it stands in names of files, which have no colon.
        """
        return f"{self.start}-{self.stop}"

    def __contains__(self, step: int) -> bool:
        return self.start <= step < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


def parse_step_range(text: str) -> StepRange:
    """
    Which steps are meant?

    Args:
        text: ``"a:b"``: the steps from *a*, counted from 1, up to *b*, which
            is left out.

    Returns:
        The steps.

    Raises:
        NsightError: It is no such range, or holds no step.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        msg = f"{text!r:.60} is no range of steps"
        remedy = "write a:b, such as 3:6 for the steps 3, 4, and 5"
        raise NsightError(msg, remedy=remedy)

    return StepRange(start=int(match[1]), stop=int(match[2]))


def step_range_of_environment(
    environ: Mapping[str, str] | None = None,
) -> StepRange | None:
    """
    Which steps does the environment name?

    Args:
        environ: The environment; by default that of this process.

    Returns:
        What ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE`` says, or else
        ``NRL_NSYS_PROFILE_STEP_RANGE``; ``None`` if neither is set.

    Raises:
        NsightError: It is no range of steps.
    """
    name, text = variable("PROFILE_STEP_RANGE", environ)
    if not name:
        return None

    try:
        return parse_step_range(text)
    except NsightError as exc:
        msg = f"{name}: {exc}"
        raise NsightError(msg, remedy=exc.remedy) from None


_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]")
_MOST_NAME = 120
# Ray hands the words to a bash that the raylet of the node started, and the
# raylet knows the folder of its session.
_SESSION = (
    "tr '\\0' '\\n' </proc/$PPID/cmdline | sed -n 's/^--session[-_]dir=//p'"
)


def base_switches(step_range: StepRange | None) -> dict[str, str]:
    """
    Which options does every worker get?

    CPUs are not sampled: where the kernel does not allow it, nsys may hang,
    and take most of a CPU.

    Args:
        step_range: The steps to be captured; ``None`` for the whole life of
            the worker.

    Returns:
        Options of ``nsys profile`` without the name of the report.
    """
    switches = {
        "t": "cuda,nvtx",
        "s": "none",
        "cpuctxsw": "none",
        "x": "true",
        "cuda-graph-trace": "node",
    }
    if step_range is not None:
        # By default, the end of a capture ends the worker as well.
        switches |= {"c": "cudaProfilerApi", "capture-range-end": "stop"}
    return switches


def report_name(worker: str, step_range: StepRange | None = None) -> str:
    """
    What is the report of this worker called, as nsys takes it?

    Args:
        worker: The name of the worker.

        step_range: The steps that are captured.

    Returns:
        Such as ``"dtensor_policy_worker_3-6_%p"``.  What does not travel in
        names of files is ``_``.

    Raises:
        NsightError: There is no name.
    """
    name = _UNSAFE.sub("_", worker)[:_MOST_NAME].lstrip("-.")
    if not name:
        msg = f"{worker!r:.60} is no name of a worker"
        raise NsightError(msg, remedy="name it, such as 'policy_worker'")

    middle = f"_{step_range.in_file_name}" if step_range else ""
    return f"{name}{middle}_%p"


def nsys_command(
    switches: Mapping[str, str], name: str, folder: str, *, nsys: str
) -> str:
    """
    Which words start something under nsys?

    Args:
        switches: Options.

        name: As `report_name` gives it.

        folder: The words of a shell that tell where it goes.

        nsys: The name of nsys on the nodes, or its path.

    Returns:
        The words, for a shell.
    """
    words = [nsys, "profile"]
    for switch, value in switches.items():
        words += (
            [f"-{switch}", value]
            if len(switch) == 1
            else [f"--{switch}={value}"]
        )
    return f"{shlex.join(words)} -o {folder}/{name}"


def output_folder(folder: str | os.PathLike[str] | None) -> str:
    """
    Which words of a shell tell where the report goes?

    Args:
        folder: Where it goes, in a folder for each node; by default to where
            Ray itself puts such reports, in the folder of its session.

    Returns:
        The words; the folder is made when they are evaluated.

    Raises:
        NsightError: The path is not one that every node understands.
    """
    if folder is None:
        find = (
            f"d=$({_SESSION}); d=${{d:-/tmp/ray/session_unknown}}/logs/nsight"
        )
    else:
        text = os.fspath(folder)
        if not text.startswith("/") or "%" in text or not text.isprintable():
            msg = f"reports cannot go to {text!r:.200}"
            remedy = "name a folder by its whole path, without %"
            raise NsightError(msg, remedy=remedy)
        find = f"d={shlex.quote(text)}/$HOSTNAME"

    return f'"$({find}; mkdir -p "$d"; printf %s "$d")"'


_MOST_PATTERN = 1000
_logger = logging.getLogger("distdebug.nsight")
_told: set[str] = set()
_lock = threading.Lock()


def match_worker(
    name: str, patterns: str | Iterable[str] | None = None
) -> str | None:
    """
    Which pattern says that this worker is to be profiled?

    Upper and lower case differ.  That a worker matches is logged the first
    time that this process asks for it, at the level of information.

    Args:
        name: The name of the worker, such as ``"dtensor_policy_worker"``.

        patterns: Wildcards of a shell (``*``, ``?``, ``[seq]``, ``[!seq]``),
            separated by commas, or one by one; by default those in
            ``DISTDEBUG_NSYS_WORKER_PATTERNS``, or else in
            ``NRL_NSYS_WORKER_PATTERNS``.  Blanks around a pattern are left
            out, and so are empty ones.  One of more than 1,000 characters
            matches nothing.

    Returns:
        The first pattern that matches; ``None`` if there is none.
    """
    for pattern in split_patterns(patterns):
        # Reading one takes time that grows with the square of its length.
        if len(pattern) <= _MOST_PATTERN and fnmatchcase(name, pattern):
            _tell_once(name, pattern)
            return pattern

    return None


def split_patterns(
    patterns: str | Iterable[str] | None = None,
) -> tuple[str, ...]:
    """
    Which patterns are there?

    Args:
        patterns: As for `match_worker`.

    Returns:
        The patterns in their order, without blanks around them.
    """
    if patterns is None:
        _, patterns = variable("WORKER_PATTERNS")
    texts = [patterns] if isinstance(patterns, str) else patterns
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(part for part in parts if part)


def _tell_once(name: str, pattern: str) -> None:
    with _lock:
        is_new = name not in _told
        _told.add(name)
    if is_new:
        _logger.info(
            "Nsight profiling enabled for worker '%s' (matched pattern '%s')",
            clean(name),
            clean(pattern),
        )


_NAME = re.compile(r"[A-Za-z]|[a-z][a-z0-9]{1,30}(?:-[a-z0-9]{1,30}){0,8}")
_LONGEST = 4096
# Options of one letter, which is the form that Ray's own examples have.
_SHORT = {
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
_OURS = {
    "o": "reports are named after the worker; choose the folder with "
    "output_dir",
    "h": "see: nsys profile --help",
}
_VALUES = re.compile(r"Possible values are:? ([^.]{1,2000})\.(?: |$)")
_QUOTED = re.compile(r"['`]([^'`]{1,80})['`]")
_BETWEEN = re.compile(r"[\s,]{0,20}(?:(?:or|and)\b)?[\s,]{0,20}")


def extra_switches(
    extra: Mapping[str, Any] | str | None = None,
) -> dict[str, str]:
    """
    Which options does the user add?

    Args:
        extra: Names of options without dashes, and their values; or the same
            as a JSON object.  By default what
            ``DISTDEBUG_NSYS_EXTRA_OPTIONS`` says, or else
            ``NRL_NSYS_EXTRA_OPTIONS``.

    Returns:
        The options as nsys takes them; those that have a name of one letter
        by that.

    Raises:
        NsightError: It is no such object, or no option can be called so.
    """
    source = "extra_options"
    if extra is None:
        source, extra = variable("EXTRA_OPTIONS")
    if isinstance(extra, str):
        extra = _parse(source, extra) if extra else {}
    found: dict[str, str] = {}
    for name, value in extra.items():
        key, text = _pair(source, name, value)
        if key in found:
            msg = f"{source}: {name!r} is given twice"
            raise NsightError(msg, remedy="keep one of its names")
        found[key] = text
    return found


def check_switches(switches: Mapping[str, str], nsys: str = "nsys") -> None:
    """
    Does the nsys that is installed here take these options?

    Args:
        switches: Names without dashes, and values.

        nsys: The name of nsys, or its path.  If it is not here, or does not
            tell in time what it takes, nothing is checked.

    Raises:
        NsightError: It knows no such option, or not that value.
    """
    path = find_nsys(nsys)
    known = known_switches(path) if path else {}
    if not known:
        return

    for name, value in switches.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else ""
            msg = f"{path} profile has no option {name!r}"
            raise NsightError(msg, remedy=hint or "see: nsys profile --help")
        _check_value(name, value, known[name])


def _parse(source: str, text: str) -> Mapping[str, Any]:
    remedy = 'write {"trace": "cuda,nvtx,osrt", "delay": 5}'
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        msg = f"{source} is no JSON: {exc}"
        raise NsightError(msg, remedy=remedy) from None
    if not isinstance(data, dict):
        msg = f"{source} is no JSON object, but {type(data).__name__}"
        raise NsightError(msg, remedy=remedy)

    return data


def _pair(source: str, name: object, value: object) -> tuple[str, str]:
    key = name.lstrip("-") if isinstance(name, str) else ""
    if not _NAME.fullmatch(key):
        msg = f"{source}: {name!r:.60} is no name of an option of nsys"
        raise NsightError(msg, remedy='write it as "trace" or "t"')
    key = _SHORT.get(key, key)
    if key in _OURS:
        msg = f"{source}: {name!r} cannot be chosen"
        raise NsightError(msg, remedy=_OURS[key])

    return key, _text(source, key, value)


def _text(source: str, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()

    text = str(value) if isinstance(value, (str, int, float)) else ""
    if not 0 < len(text) <= _LONGEST or not text.isprintable():
        msg = f"{source}: {name!r} cannot be {value!r:.60}"
        raise NsightError(
            msg, remedy="give one line of text, a number, true, or false"
        )

    return text


def _check_value(name: str, value: str, about: str) -> None:
    choices = _choices(about)
    is_list = "comma" in about or "','" in about
    parts = value.split(",") if is_list else [value]
    if "after ':'" in about:  # each of them may have a threshold
        parts = [part.partition(":")[0] for part in parts]
    wrong = [part for part in parts if not _is_one_of(part, choices)]
    if choices and wrong:
        msg = f"option {name!r} of nsys cannot be {clean(wrong[0])!r}"
        raise NsightError(msg, remedy=f"it is one of {', '.join(choices)}")


def _choices(about: str) -> list[str]:
    """
    Which values are there, if the help names nothing but values?
    """
    match = _VALUES.search(f"{about} ")
    if match is None:
        return []
    rest = _QUOTED.sub("\n", match[1]).split("\n")
    if not all(_BETWEEN.fullmatch(part) for part in rest):
        return []
    return _QUOTED.findall(match[1])


def _is_one_of(value: str, choices: list[str]) -> bool:
    # What stands for several values begins with what they have in common:
    # 'repeat[:N]'.
    beginnings = [re.match(r"[\w-]*", c) for c in choices]
    return any(
        value == choice
        or (m is not None and m[0] != choice and value.startswith(m[0]))
        for choice, m in zip(choices, beginnings, strict=True)
    )


Mode = Literal["py_executable", "nsight"]

_MODES = ("py_executable", "nsight")
# What has an activated environment of its own, where "python" is the right
# one; and what starts the worker somewhere else altogether.
_ENVIRONMENTS = ("pip", "uv", "conda")
_CONTAINERS = ("image_uri", "container")
_NESTED = ("env_vars", "config")
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
    With which ``runtime_env`` does Ray profile this worker, if it is wanted?

    Args:
        worker_name: Its name, which its report bears, too.

        patterns: Who is to be profiled; see `match_worker`.

        step_range: ``"a:b"``: the steps to be captured, from *a*, counted from
            1, up to *b*, which is left out.  The worker has to say where its
            steps are, by `StepProfiler`; it gets the range by a variable.  By
            default what ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE`` says, or else
            ``NRL_NSYS_PROFILE_STEP_RANGE``; if neither is set, all of its life
            is captured.

        mode: ``"py_executable"`` needs no change to Ray (2.43 or newer);
            ``"nsight"`` uses Ray's plugin, which starts the right Python only
            where `ray_nsight_status` says that it is mended.

        extra_options: More options of ``nsys profile``, or others than ours;
            by default what ``DISTDEBUG_NSYS_EXTRA_OPTIONS`` says, or else
            ``NRL_NSYS_EXTRA_OPTIONS``.

        base: The ``runtime_env`` that the worker has anyway; what it says of
            its Python is kept.

        output_dir: Where reports go, in a folder for each node; by default
            into ``logs/nsight/`` of Ray's session, on each node.

        python: The Python of the nodes, if *base* does not name it; by default
            the one that is running.

        nsys: The name of nsys on the nodes, or its path.

    Returns:
        What to give to ``ray.remote(runtime_env=…)``, or to ``.options()``;
        if the worker is not wanted, only what *base* holds.

    Raises:
        NsightError: Something asked makes no sense, or the two ways of
            starting the worker exclude each other.
    """
    given = merge_runtime_env(base, {})
    if match_worker(worker_name, patterns) is None:
        return given

    if mode not in _MODES:
        msg = f"there is no mode {mode!r}"
        raise NsightError(msg, remedy=f"write {' or '.join(_MODES)}")
    steps, extra = _steps(step_range), extra_switches(extra_options)
    check_switches(extra, nsys)
    switches = {**base_switches(steps), **extra}
    name = report_name(worker_name, steps)
    given.pop("nsight", None)
    new: dict[str, Any] = {}
    if steps is not None:
        new["env_vars"] = {_STEPS_VARIABLE: str(steps)}
    if mode == "nsight":
        new["nsight"] = _for_plugin(switches, name, output_dir)
    else:
        _check_ray()
        folder = output_folder(output_dir)
        command = nsys_command(switches, name, folder, nsys=nsys)
        new["py_executable"] = f"{command} {_interpreter(given, python)}"
    return merge_runtime_env(given, new)


def merge_runtime_env(
    base: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> dict[str, Any]:
    """
    What is the ``runtime_env`` of both?

    Ray takes the one that ``.options()`` gives in place of the one of
    ``ray.remote()``, and drops what only the latter holds.

    Args:
        base: The one there is.

        new: What is to be added; it wins.

    Returns:
        Both.  Variables and the configuration are merged one by one.  What Ray
        keeps as ``_nsight`` is called ``nsight``, as Ray wants it to be given.
    """
    first, second = _plain(base), _plain(new)
    merged = {**first, **second}
    for key in _NESTED:
        both = first.get(key), second.get(key)
        if all(isinstance(part, Mapping) for part in both):
            merged[key] = {**first[key], **second[key]}
    return merged


def _plain(env: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = dict(env or {})
    if "_nsight" in plain:
        plain.setdefault("nsight", plain["_nsight"])
        del plain["_nsight"]
    return plain


def _steps(step_range: StepRange | str | None) -> StepRange | None:
    if isinstance(step_range, str):
        return parse_step_range(step_range)
    return step_range or step_range_of_environment()


def _for_plugin(
    switches: Mapping[str, str], name: str, output_dir: object
) -> dict[str, str]:
    if output_dir is not None:
        msg = "Ray's nsight plugin puts reports where it wants"
        raise NsightError(
            msg, remedy='leave out output_dir, or use mode="py_executable"'
        )
    for switch, value in switches.items():
        # It checks options without a shell, and starts the worker with one.
        if shlex.quote(value) != value:
            msg = f"option {switch!r} cannot be {value!r:.60} in this mode"
            raise NsightError(msg, remedy='use mode="py_executable"')

    return {**switches, "o": shlex.quote(name)}


def _interpreter(base: Mapping[str, Any], python: str | None) -> str:
    if any(base.get(key) for key in _CONTAINERS):
        msg = "a worker in a container of its own is not started by this Ray"
        raise NsightError(
            msg, remedy="start nsys in the container, as its entry point"
        )
    command = str(base.get("py_executable") or "").strip()
    if _is_profiled(command):
        msg = "the runtime_env starts the worker under nsys already"
        raise NsightError(msg, remedy="give the one from before as base")
    if command:
        return command  # words for a shell already, options and all
    if python is None and any(base.get(key) for key in _ENVIRONMENTS):
        return "python"
    return shlex.quote(python or sys.executable)


def _is_profiled(command: str) -> bool:
    words = command.split(maxsplit=2)
    return len(words) > 1 and words[0].rpartition("/")[2] == "nsys"


def _check_ray() -> None:
    if has_py_executable() is False:
        msg = "this Ray is too old to start workers by a py_executable"
        raise NsightError(
            msg,
            remedy='use mode="nsight" after "distdebug nsight patch" on every '
            "node, or Ray 2.43 or newer",
        )

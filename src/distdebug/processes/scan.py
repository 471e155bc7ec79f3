"""
List processes of this node, and match their command lines against rules.
"""

from __future__ import annotations

import os
import re

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import attrs

from .._proc import map_with_timeout
from .._rules import check_pattern, read_toml
from .._text import clean
from ..errors import PatternError
from .model import Role
from .procfs import Stat, list_numbers, parse_stat, read_link, read_proc


_INTERPRETER = re.compile(r"(?:^|/)-?(?:python|pypy)[\d.]*[a-z]?(?:-dbg)?$")
# Options of the interpreter that take their value from the next argument.
_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_PROGRAM_OPTION = re.compile(r"-[a-zA-Z]*([cm])(.*)", re.DOTALL)


def is_python_name(path: str) -> bool:
    """
    Return whether a path is named like a Python interpreter.
    """
    return _INTERPRETER.search(path) is not None


def parse_program(arguments: Sequence[str]) -> str:
    """
    Return the program that an interpreter runs, from its command line.

    Returns:
        The path of a script, the name of a module (``python -m``), or
        ``"-c"``; ``""`` if there is none, or if this is no interpreter.
    """
    if not arguments or not is_python_name(arguments[0]):
        return ""

    rest = iter(arguments[1:])
    for argument in rest:
        if argument in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif not argument.startswith("-") or argument == "-":
            return argument
        elif not argument.startswith("--"):
            last = _PROGRAM_OPTION.fullmatch(argument)
            if last and not argument.startswith(("-W", "-X")):
                kind, attached = last.groups()
                return "-c" if kind == "c" else attached or next(rest, "")
    return ""


def parse_option_number(arguments: Sequence[str], *names: str) -> int | None:
    """
    Return the value of an integer option; ``None`` if absent or no integer.

    Args:
        arguments: The command line.

        names: Names of the option, without leading dashes, with ``-`` between
            words.
    """
    for argument, following in zip(
        arguments, [*arguments[1:], ""], strict=False
    ):
        if argument.startswith("--"):
            name, sign, value = argument[2:].partition("=")
            if name.replace("_", "-") in names:
                return _parse_number(value if sign else following)
    return None


def _parse_number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_number else None


class ProcessRule(NamedTuple):
    """
    Pattern for a kind of process, with its framework and role.
    """

    pattern: re.Pattern[str]
    framework: str
    role: Role


@cache
def _rules_file() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("rules.toml"))


@cache
def load_rules(kind: str) -> tuple[ProcessRule, ...]:
    """
    Return the rules of ``rules.toml`` for a kind of text.

    Args:
        kind: ``"title"`` for process titles, ``"launcher"`` for the module or
            script that an interpreter runs, or ``"fallback"`` for other
            command lines.
    """
    return tuple(
        ProcessRule(**rule | {"pattern": re.compile(rule["pattern"])})
        for rule in _rules_file()[kind]
    )


# With a single GPU the engine process of vLLM runs the model itself.
ENGINE = re.compile(r"::EngineCor")

# Process name set by programs that call the launcher of torch in-process.
LAUNCHER_NAME = "pt_elastic"

MEGATRON = re.compile(r"(?:^|/)pretrain_\w+\.py$")

MULTIPROCESSING = re.compile(
    r"from multiprocessing\.spawn import spawn_main|--multiprocessing-fork"
    r"|from multiprocessing\.forkserver import main"
)
MULTIPROCESSING_HELPER = re.compile(
    r"from multiprocessing\.(?:resource_tracker|semaphore_tracker|forkserver)"
    r" import main"
)
COMPILE_WORKER = re.compile(
    r"torch[./]_inductor[./]compile_worker|--pickler=torch\._inductor"
)
DATA_WORKER = "pt_data_worker"

# Threads that exist only after communication with other ranks.  The thread of
# the store does not count: the launcher has one, too.
RANK_THREADS = re.compile(r"^(?:gloo|pt_gloo|pt_nccl|nccl|NCCL|pt_xccl|hccl)")

# Python programs that may have torch and the environment of a rank, but are
# no ranks.
PYTHON_TOOLS = re.compile(
    r"(?:^|/)(?:ipykernel\w*|ipython\d?|jupyter[\w-]*|pylsp|mypy|dmypy|ruff"
    r"|jedi-language-server|pyright[\w-]*|basedpyright[\w-]*|black|pip[\d.]*"
    r"|uv|conda|mamba|pytest|py\.test|tox|nox|pre-commit|py-spy|pystack"
    r"|memray|distdebug|tensorboard|wandb|mlflow|nvitop|gpustat|supervisord"
    r"|gunicorn|uvicorn|http|venv|virtualenv|lsp_server)"
    r"(?:$|\.[\w.]+$|/__main__\.py$)|(?:^|/)debugpy[./]adapter"
)

Result = TypeVar("Result")

# After this many blocked calls the remaining processes are skipped.
_MAX_STUCK = 16
# How long to wait for the next result.
_QUIET_S = 1.0


def skip_blocked(
    pids: Iterable[int], function: Callable[[int], Result]
) -> dict[int, Result]:
    """
    Call a function for each process, and skip those for which it blocks.

    Args:
        function: It must not raise.

    Returns:
        Results by PID.  For each call that blocks, a thread remains; it ends
        when the kernel releases it, or with this process.  After 16 of them,
        the remaining processes are skipped.
    """
    left, results = list(pids), dict[int, Result]()
    for _ in range(_MAX_STUCK):
        done = map_with_timeout(
            function, left, quiet_s=_QUIET_S, threads=1, may_block=True
        )
        results |= {pid: future.result() for pid, future in done}
        # The first one without a result blocks.
        left = [pid for pid in left if pid not in results][1:]
        if not left:
            break
    return results


# Command lines can have 2 MiB; the beginning is enough to classify them.
_MAX_COMMAND_BYTES = 1 << 16


@attrs.frozen(kw_only=True)
class Process:
    """
    A process, as every user may see it.

    Attributes:
        pid: Its PID.

        parent_pid: PID of its parent, which may have inherited it.

        start_ticks: Start time, in clock ticks since boot.

        name: Its name of at most 15 characters.

        arguments: Its command line; empty for a zombie, and for a process
            whose command line cannot be read because it hangs.

        is_python: Whether it runs a Python interpreter.
    """

    pid: int
    parent_pid: int
    start_ticks: int
    name: str
    arguments: tuple[str, ...] = ()
    is_python: bool = False

    @property
    def text(self) -> str:
        """
        Its command line; the short name if there is none.
        """
        return " ".join(self.arguments) or self.name


def list_processes(
    root: str = "/proc", *, named: Collection[int] = ()
) -> dict[int, Process]:
    """
    Return the processes of this node by PID, without kernel threads.

    Processes that erased their command line are left out, too.

    Args:
        root: Mount point of procfs.

        named: PIDs that are not left out in any case.
    """
    stats = {
        pid: stat
        for pid in list_numbers(root)
        if (stat := parse_stat(read_proc(f"{root}/{pid}/stat", limit=4096)))
    }
    lines = skip_blocked(stats, lambda pid: _read_command_line(pid, root))
    return {
        pid: _make_process(pid, stat, lines.get(pid, _NO_COMMAND))
        for pid, stat in stats.items()
        # Kernel threads have no command line, but neither have zombies and
        # processes that hang.
        if lines.get(pid) != _NO_COMMAND or stat.has_ended or pid in named
    }


# Arguments, and whether the program is a Python interpreter.
_CommandLine = tuple[tuple[str, ...], bool]
_NO_COMMAND: _CommandLine = ((), False)


def _make_process(pid: int, stat: Stat, line: _CommandLine) -> Process:
    arguments, is_python = line
    return Process(
        pid=pid,
        parent_pid=stat.parent_pid,
        start_ticks=stat.start_ticks,
        name=stat.name,
        arguments=arguments,
        is_python=is_python if arguments else _is_python(stat.name),
    )


def _read_command_line(pid: int, root: str) -> _CommandLine:
    data = read_proc(f"{root}/{pid}/cmdline", limit=_MAX_COMMAND_BYTES) or b""
    # Titles set by a process are padded with zeros or blanks.
    data = data.rstrip(b"\0 ")
    if not data:
        return _NO_COMMAND

    arguments = tuple(os.fsdecode(x) for x in data.split(b"\0"))
    program = read_link(f"{root}/{pid}/exe").removesuffix(" (deleted)")
    return arguments, _is_python(arguments[0]) or is_python_name(program)


def _is_python(name: str) -> bool:
    """
    Return whether a process of this name is a Python process.
    """
    return (
        is_python_name(name)
        or name.startswith("pt_")  # as torch names its processes
        or any(rule.pattern.match(name) for rule in load_rules("title"))
    )


# Limits the time that a pattern takes on a long command line.
_MAX_TEXT = 4096


def as_patterns(patterns: str | Iterable[str]) -> tuple[str, ...]:
    """
    Check the user's regular expressions.

    Args:
        patterns: Regular expressions; a single string counts as one.

    Raises:
        PatternError: One of them is no regular expression, or may take
            exponential time to match.
    """
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        _check_pattern(pattern)
    return patterns


def is_match(process: Process, patterns: Sequence[re.Pattern[str]]) -> bool:
    """
    Return whether a pattern matches the first 4,096 characters of a command
    line.

    The command line of a shell, ``ssh``, ``srun``, or ``grep`` holds those of
    other processes; there only the name of the program is searched.
    """
    text = process.text
    first = process.arguments[0] if process.arguments else text
    # Some set a title: "tmux: server", "sshd: me@pts/1".
    name = first.partition(":")[0].rpartition("/")[2].lstrip("-")
    if name in _rules_file()["wrappers"]:
        text = first
    return any(pattern.search(text, 0, _MAX_TEXT) for pattern in patterns)


def _check_pattern(pattern: str) -> None:
    try:
        # First, because it rejects patterns that take long to compile.
        check_pattern(pattern)
        re.compile(pattern)
    except (ValueError, re.error, RecursionError, OverflowError) as exc:
        # The message of Python quotes the pattern.
        reason = clean(str(exc), limit=300)
        msg = f"no regular expression to search with: {reason}"
        raise PatternError(
            msg,
            remedy="put a \\ before each of . * + ? ( ) [ ] { } | ^ $ \\, "
            "and repeat less",
        ) from exc

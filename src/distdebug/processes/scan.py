"""
Which processes are on this node?
"""

from __future__ import annotations

import os
import re

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import attrs

from .._rules import check_pattern
from .._text import clean
from ..errors import PatternError
from .model import Role
from .procfs import (
    Stat,
    ask_each,
    list_numbers,
    parse_stat,
    read_link,
    read_proc,
)


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


class Look(NamedTuple):
    """
    What processes of one kind look like.
    """

    pattern: re.Pattern[str]
    framework: str
    role: Role


def _look(pattern: str, framework: str, role: Role) -> Look:
    return Look(re.compile(pattern), framework, role)


# By the title that a process gave itself; the first that matches wins.
TITLES = (
    _look(r"^sgl\w*::(?:\w*sched|gpu_worker|async_draft)", "sglang", "rank"),
    _look(r"^sgl\w*::", "sglang", "server"),
    _look(
        r"^ray::(?:IDLE|Spill|Restore|Serve[A-Z]|Proxy|HTTPProxy|JobSuper"
        r"|TrainController|TunerInternal|_?Stats|SplitCoord|Monitor\b"
        r"|DashboardA|_?QueueActor)",
        "ray",
        "server",
    ),
    _look(r"^ray::", "ray", "rank"),
    # The part in front can be chosen (VLLM_PROCESS_NAME_PREFIX).
    _look(r"^[\w.-]+::Worker(?:$|_)", "vllm", "rank"),
    _look(
        r"^[\w.-]+::(?:EngineCor|APIServer|DPCoord|Engine|Router)",
        "vllm",
        "server",
    ),
)
# With a single GPU the engine of vLLM runs the model itself.
ENGINE = re.compile(r"::EngineCor")

# By the program that an interpreter runs: a module, or the path of a script.
LAUNCHERS = (
    _look(
        r"(?:^|/)torchrun$|(?:^|/)torch[./]distributed[./](?:run|launch)\b",
        "torchrun",
        "launcher",
    ),
    _look(
        r"(?:^|/)accelerate(?:-launch)?$|accelerate[./]commands[./]launch\b",
        "accelerate",
        "launcher",
    ),
    _look(
        r"(?:^|/)(?:deepspeed|ds)$|deepspeed[./]launcher[./]\w+",
        "deepspeed",
        "launcher",
    ),
    _look(
        r"(?:^|/)composer$|composer[./]cli[./]launcher", "composer", "launcher"
    ),
    _look(r"(?:^|/)dlrover-run$|dlrover\.trainer\.", "dlrover", "launcher"),
    _look(r"(?:^|/)ft_launcher$", "torchrun", "launcher"),
    _look(r"(?:^|/)(?:colossalai|horovodrun)$", "torchrun", "launcher"),
)
# Whatever calls torch's launcher within its own process bears this name.
LAUNCHER_NAME = "pt_elastic"

MEGATRON = re.compile(r"(?:^|/)pretrain_\w+\.py$")

# Where titles are not set: what runs such a program is, or starts, a worker.
FALLBACKS = (
    _look(r"python.*sglang", "sglang", "server"),
    _look(r"python.*\bvllm\b", "vllm", "server"),
)

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

# Threads that a process has only once it has peers.  The store's own thread is
# not among them: the launcher has that, too.
RANK_THREADS = re.compile(r"^(?:gloo|pt_gloo|pt_nccl|nccl|NCCL|pt_xccl|hccl)")

# Programs in Python that may have torch, and the variables of a rank, in their
# environment, and are none.
PYTHON_TOOLS = re.compile(
    r"(?:^|/)(?:ipykernel\w*|ipython\d?|jupyter[\w-]*|pylsp|mypy|dmypy|ruff"
    r"|jedi-language-server|pyright[\w-]*|basedpyright[\w-]*|black|pip[\d.]*"
    r"|uv|conda|mamba|pytest|py\.test|tox|nox|pre-commit|py-spy|pystack"
    r"|memray|distdebug|tensorboard|wandb|mlflow|nvitop|gpustat|supervisord"
    r"|gunicorn|uvicorn|http|venv|virtualenv|lsp_server)"
    r"(?:$|\.[\w.]+$|/__main__\.py$)|(?:^|/)debugpy[./]adapter"
)

# Programs whose command line holds that of another one.
WRAPPERS = frozenset(
    """
    ag apptainer awk bash bat catatonit chroot containerd-shim csh cuda-gdb
    dash docker dumb-init egrep emacs enroot env exec fgrep find fish flock
    gdb git grep htop hydra_pmi_proxy ionice kill killall ksh kubectl less
    lldb ltrace make man mosh mpiexec mpirun more nano ncu nice nohup nsenter
    nsys nsys-launcher numactl nvim orted parallel perf pgrep pkill podman
    prted ps py-spy pystack rg rsync runc salloc sbatch screen sed setpriv
    setsid sh sshd ssh singularity slurmstepd srun stdbuf strace su sudo
    systemd-run tail taskset tcsh tee time timeout tini tmux top unbuffer
    unshare vi vim view watch xargs zsh
    """.split()  # noqa: SIM905 a list would be four times as long
)


# Command lines can be of 2 MiB; what tells them apart is at their beginning.
_LONGEST = 1 << 16


@attrs.frozen(kw_only=True)
class Process:
    """
    A process, as it shows itself to anybody.

    Attributes:
        pid: Its number.

        parent_pid: The process that started it, or inherited it.

        start_ticks: When it started, in clock ticks since boot.

        letter: Its state, such as ``"S"``.

        name: What the kernel calls it: its first 15 characters.

        arguments: Its command line; empty for a zombie, and for a process
            that hangs so that nobody may ask.

        is_python: Whether an interpreter of Python runs in it.
    """

    pid: int
    parent_pid: int
    start_ticks: int
    letter: str
    name: str
    arguments: tuple[str, ...] = ()
    is_python: bool = False

    @property
    def text(self) -> str:
        """
        Its command line, or else what the kernel calls it.
        """
        return " ".join(self.arguments) or self.name


class _Line(NamedTuple):
    arguments: tuple[str, ...]
    is_python: bool


def list_processes(
    root: str = "/proc", *, named: Collection[int] = ()
) -> dict[int, Process]:
    """
    Which processes are on this node?

    Args:
        root: Where the kernel's files are.

        named: Processes that are not left out, whatever they are.

    Returns:
        Processes by number.  Threads of the kernel are left out, as is who
        has erased its command line.
    """
    stats = {
        pid: stat
        for pid in list_numbers(root)
        if (stat := parse_stat(read_proc(f"{root}/{pid}/stat", limit=4096)))
    }
    lines = ask_each(stats, lambda pid: _command_line(pid, root))
    silent = _Line((), is_python=False)
    return {
        pid: _process(pid, stat, lines.get(pid, silent))
        for pid, stat in stats.items()
        # Threads of the kernel have no command line, but neither have zombies
        # and processes that did not answer.
        if lines.get(pid) != silent or stat.has_ended or pid in named
    }


def _process(pid: int, stat: Stat, line: _Line) -> Process:
    return Process(
        pid=pid,
        parent_pid=stat.parent_pid,
        start_ticks=stat.start_ticks,
        letter=stat.letter,
        name=stat.name,
        arguments=line.arguments,
        is_python=line.is_python if line.arguments else _runs(stat.name),
    )


def _command_line(pid: int, root: str) -> _Line:
    data = read_proc(f"{root}/{pid}/cmdline", limit=_LONGEST) or b""
    # A process that changed its title pads it with zeros, or with blanks.
    data = data.rstrip(b"\0 ")
    if not data:
        return _Line((), is_python=False)

    arguments = tuple(os.fsdecode(x) for x in data.split(b"\0"))
    program = read_link(f"{root}/{pid}/exe").removesuffix(" (deleted)")
    return _Line(
        arguments, is_python=_runs(arguments[0]) or is_python_name(program)
    )


def _runs(name: str) -> bool:
    """
    Whether it is Python that calls itself so.
    """
    return (
        is_python_name(name)
        or name.startswith("pt_")  # as torch names its processes
        or any(look.pattern.match(name) for look in TITLES)
    )


# Anybody can have a process with a long command line, and a pattern may look
# at each part of it many times.
_MOST_TEXT = 4096


def compile_patterns(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """
    Read the user's patterns.

    Args:
        patterns: Regular expressions; one alone may be given as it is.

    Returns:
        The same, ready for use.

    Raises:
        PatternError: If one of them is no regular expression, or may take
            for ever to match.
    """
    if isinstance(patterns, str):
        patterns = (patterns,)
    return tuple(map(_compile, patterns))


def is_match(process: Process, wanted: Sequence[re.Pattern[str]]) -> bool:
    """
    Does the command line of a process match, of which 4,096 characters count?

    That of a shell, of ``ssh``, ``srun`` or ``grep`` holds the command lines
    of others; there only the program's own name counts.

    Args:
        process: The process.

        wanted: What to look for.
    """
    text = process.text
    first = process.arguments[0] if process.arguments else text
    # Some change their title: "tmux: server", "sshd: me@pts/1".
    name = first.partition(":")[0].rpartition("/")[2].lstrip("-")
    if name in WRAPPERS:
        text = first
    return any(pattern.search(text, 0, _MOST_TEXT) for pattern in wanted)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        # First, because it refuses what would take long to compile.
        check_pattern(pattern)
        return re.compile(pattern)
    except (ValueError, re.error, RecursionError, OverflowError) as exc:
        # What Python says of it quotes it.
        why = clean(str(exc), limit=300)
        msg = f"no regular expression to search with: {why}"
        raise PatternError(
            msg,
            remedy="put a \\ before each of . * + ? ( ) [ ] { } | ^ $ \\, "
            "and repeat less",
        ) from exc

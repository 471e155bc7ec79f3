"""
Match rules against stacks to find what a thread waits for.

The rules are data, in ``rules.toml`` beside this file; users can add their own
files.  The first rule that matches wins, so specific rules come before general
ones: a queue inside a data loader is a data loader.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from re import Pattern
from typing import Any, Literal

import attrs

from .._lazy import late_pattern
from .._proc import in_time
from .._rules import (
    check_table,
    convert_patterns,
    one_of,
    parse_tables,
    read_rules_file,
    refuse_unknown_tables,
)
from ..causes import Cause, Trait
from ..errors import RulesError
from ..findings import Confidence
from ..usercode import is_user_frame
from .model import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
    callsite,
    function_name,
    innermost_native_name,
    is_native,
    native_callees,
    python_frames,
)
from .motion import (
    Motion,
    classify_motion,
    is_busy,
    is_running,
    wakes_per_s,
)


_ALL_FRAMES = 1_000_000
_at_least_one = attrs.validators.ge(1)

Awaited = Literal["", "lock", "event", "thread", "pool", "task", "backward"]


@attrs.frozen(kw_only=True, field_transformer=convert_patterns)
class Rule:
    """
    A pattern for the stack of a thread, and its cause.

    Every condition of a rule has to match.  Patterns are regular expressions;
    paths are written with slashes.

    Attributes:
        cause: What the thread is doing.

        name: The name of the rule, shown in the evidence.

        file: Searched for in the file of a Python frame.

        function: Has to match the function of the same frame, without its
            class.

        within: How many of the innermost Python frames to search.

        native: Searched for in the names of the native functions that the
            innermost Python function called.

        native_within: How many of the innermost of these to search.

        library: Searched for in the files of the same native functions.

        call: Has to match the name of the system call that blocks the thread.

        target: Searched for in the target of that system call.

        code: Searched for in the source code of the innermost Python line.
            Functions written in C have no frame in a Python stack, but their
            callers do.

        under: Searched for in ``file:function`` of every Python frame; at
            least one has to match.

        unless: The same; none may match.

        waits: Whether it only matches a thread that does not run.

        awaits: What a thread that matches waits for, if another thread of the
            process may explain it: a ``"lock"``, an ``"event"``, the end of a
            ``"thread"``, a result of a ``"pool"``, a ``"task"`` for a Ray
            actor, or the end of a ``"backward"`` pass.

        gpu: Whether it only matches a process that may use a GPU.

        wakes: How often a thread that makes no progress wakes up at most, per
            second.  ``None`` if unknown.

        doing: What the rank is doing, as a predicate; by default that of its
            cause.

        remedy: What to do about it; by default that of its cause.

        confidence: The confidence of a finding by this rule.
    """

    cause: Cause = attrs.field(converter=Cause)
    name: str = ""
    file: Pattern[str] | None = None
    function: Pattern[str] | None = None
    within: int = attrs.field(default=_ALL_FRAMES, validator=_at_least_one)
    native: Pattern[str] | None = None
    native_within: int = attrs.field(default=40, validator=_at_least_one)
    library: Pattern[str] | None = None
    call: Pattern[str] | None = None
    target: Pattern[str] | None = None
    code: Pattern[str] | None = None
    under: Pattern[str] | None = None
    unless: Pattern[str] | None = None
    waits: bool = False
    awaits: Awaited = attrs.field(default="", validator=one_of(Awaited))
    gpu: bool = False
    wakes: float | None = None
    doing: str = ""
    remedy: str = ""
    confidence: Confidence = attrs.field(
        default="likely", validator=one_of(Confidence)
    )

    def __attrs_post_init__(self) -> None:
        is_on_line = self.file or self.function
        if not (is_on_line or self.native or self.call or self.code):
            msg = "neither file, function, native, call, nor code is given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True, field_transformer=convert_patterns)
class Helper:
    """
    A pattern for background threads that never explain a hang.

    Attributes:
        thread: Has to match the name of the thread.

        unless_own: Whether that name is ignored for a thread that runs user
            code, because users may choose the same name.

        place: Searched for in ``file:function`` of the Python frames.

        within: How many of the innermost Python frames to search.

        native: Searched for in the names of its native functions.
    """

    thread: Pattern[str] | None = None
    place: Pattern[str] | None = None
    within: int = attrs.field(default=_ALL_FRAMES, validator=_at_least_one)
    native: Pattern[str] | None = None
    unless_own: bool = False

    def has_name(self, thread: ThreadStack) -> bool:
        """
        Return whether a thread has the name of this helper.
        """
        return _matches(self.thread, thread.name)


@attrs.frozen(kw_only=True)
class _CauseTexts:
    """
    Texts of a file that replace the built-in ones of a cause.
    """

    doing: str = ""
    remedy: str = ""


@attrs.frozen(kw_only=True)
class RuleBook:
    """
    The rules and texts that explain stacks.

    Attributes:
        rules: In the order in which they are tried.

        helpers: Threads to ignore.

        roles: The ends of ``file:function`` that show a ``"child"`` or a
            ``"launcher"``, or only wrap a call (``"wrapper"``); only in the
            built-in rules.

        doing: What a rank is doing, by cause, as a predicate.

        remedy: What to do about it, by cause.
    """

    rules: tuple[Rule, ...] = ()
    helpers: tuple[Helper, ...] = ()
    roles: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    doing: Mapping[Cause, str] = attrs.field(factory=dict)
    remedy: Mapping[Cause, str] = attrs.field(factory=dict)

    def is_helper(self, thread: ThreadStack) -> bool:
        """
        Return whether a thread is a helper, which never explains a hang.

        A thread without any frame is a helper, too.
        """
        frames = thread.frames[:_MOST_FRAMES]
        if not frames and not thread.native:
            return True

        places = [":".join(callsite(f)) for f in python_frames(frames)]
        callees = native_callees(thread.native or frames)
        natives = [f.name[:_MOST_PATH] for f in callees]
        return any(
            (x.has_name(thread) and not (x.unless_own and _is_own(frames)))
            or _finds(x.place, places[: x.within])
            or _finds(x.native, natives)
            for x in self.helpers
        )

    def has_helper_name(self, thread: ThreadStack) -> bool:
        """
        Return whether a thread has the name of a helper, whatever it runs.
        """
        return any(helper.has_name(thread) for helper in self.helpers)

    @cached_property
    def rules_at(self) -> Callable[[str, str], Sequence[int]]:
        """
        Return the numbers of the rules for a frame that match one.

        Its arguments are the file and the function; results are cached.
        """
        return cache(partial(_rules_at, self.rules))


def load_rules(
    path: str | os.PathLike[str], *, is_built_in: bool = False
) -> RuleBook:
    """
    Read one file of rules.

    Args:
        path: A TOML file with tables ``[[rule]]`` and ``[[helper]]``, whose
            keys are the attributes of :class:`Rule` and :class:`Helper`.

        is_built_in: Whether it is our own, which may use more tables, and any
            pattern.

    Raises:
        RulesError: The file cannot be read, or a rule is invalid.
    """
    table, name = read_rules_file(path), os.fspath(path)
    known = {"rule", "helper", "cause", *(["roles"] if is_built_in else [])}
    refuse_unknown_tables(table, known, name)
    causes = table.get("cause", {})
    try:
        texts = {
            Cause(key): check_table(_CauseTexts, row, is_built_in=True)
            for key, row in causes.items()
        }
    except (AttributeError, RecursionError, TypeError, ValueError) as exc:
        msg = f"[cause]: {exc}"
        raise RulesError(msg, name) from None

    def items(kind: Any, key: str) -> Iterator[Any]:
        def parse(row: Any) -> Any:
            return kind(**check_table(kind, row, is_built_in=is_built_in))

        return parse_tables(table.get(key, []), key, name, parse)

    return RuleBook(
        rules=tuple(items(Rule, "rule")),
        helpers=tuple(items(Helper, "helper")),
        roles={k: tuple(v) for k, v in table.get("roles", {}).items()},
        doing={c: t["doing"] for c, t in texts.items() if "doing" in t},
        remedy={c: t["remedy"] for c, t in texts.items() if "remedy" in t},
    )


def read_rules(paths: Iterable[str | os.PathLike[str]] = ()) -> RuleBook:
    """
    Read the rules of these files and the built-in ones.

    Args:
        paths: Files of the user, whose rules are tried first.

    Raises:
        RulesError: One of the files cannot be used.
    """
    books = [*map(load_rules, paths), builtin_rules()]
    return RuleBook(
        rules=tuple(rule for book in books for rule in book.rules),
        helpers=tuple(helper for book in books for helper in book.helpers),
        doing={k: v for book in books[::-1] for k, v in book.doing.items()},
        remedy={k: v for book in books[::-1] for k, v in book.remedy.items()},
    )


@cache
def builtin_rules() -> RuleBook:
    """
    Read the built-in rules once.
    """
    return load_rules(Path(__file__).with_name("rules.toml"), is_built_in=True)


_LOOP = late_pattern(r"\s*(async\s+for|for|while)\b")
_INLINE_LOOP = late_pattern(r"\bfor\b.+\bin\b")
_DEFINITION = late_pattern(r"\s*(async\s+def|def|class)\b")
_MOST_BODY = 500

_MOST_SOURCE = 1 << 22
_MOST_LINE = 500
_MOST_FILES = 10_000
_READ_TIMEOUT_S = 1.0


class SourceLines:
    """
    Reads lines of source code, each file once.

    After the first file that is not read in time, no other file is opened.

    Args:
        timeout_s: How long to wait for a file, in seconds.
    """

    def __init__(self, timeout_s: float = _READ_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._files: dict[str, list[bytes]] = {}
        self._has_timed_out = False

    def __call__(self, filename: str, line: int) -> str:
        """
        Return one line; ``""`` if it is not on this machine.

        Args:
            line: Counted from 1.
        """
        lines = self._files.get(filename)
        if lines is None and len(self._files) < _MOST_FILES:
            lines = self._files[filename] = self._read_in_time(filename)
        found = lines[line - 1] if lines and 0 < line <= len(lines) else b""
        return found[:_MOST_LINE].decode("utf-8", "replace")

    def is_in_loop(self, filename: str, line: int) -> bool | None:
        """
        Return whether a line can run repeatedly without a new call.

        Args:
            line: Counted from 1.

        Returns:
            ``None`` if the code is not on this machine.
        """
        code = self(filename, line)
        if not code.strip():
            return None

        # A comprehension loops within one line.
        if _LOOP.match(code) or _INLINE_LOOP.search(code):
            return True
        indent = _indent(code)
        for number in range(line - 1, max(0, line - _MOST_BODY), -1):
            above = self(filename, number)
            if not above.strip() or _indent(above) >= indent:
                continue
            indent = _indent(above)
            if _LOOP.match(above):
                return True
            if _DEFINITION.match(above):
                return False
        return False

    def _read_in_time(self, filename: str) -> list[bytes]:
        if self._has_timed_out or not Path(filename).is_absolute():
            # The process ran in another folder, which is unknown.
            return []

        # A read from a dead file server never returns.
        try:
            return in_time(partial(_read_source, filename), self._timeout_s)
        except TimeoutError:
            self._has_timed_out = True
            return []


def _indent(code: str) -> int:
    return len(code) - len(code.lstrip())


def _read_source(filename: str) -> list[bytes]:
    path = Path(filename)
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(_MOST_SOURCE).splitlines()
    except (OSError, ValueError):
        return []


_MOST_PATH = 300
_MOST_FRAMES = 500
#: The longest name of a native function that is shown.
MOST_NAME = 80

RuleMatch = tuple[Rule, StackFrame]


class ThreadState:
    """
    What one thread is doing, according to the rules.

    Args:
        book: The rules.

        lines: The source code.

    Attributes:
        python: The Python frames of the code that it runs, innermost first.

        natives: The native functions that the innermost of these called.

        rule: The rule that matches; ``None`` if none does.

        frame: The frame that the rule matches; without a rule, the innermost.

        cause: ``unknown`` if no rule matches and the thread does not run.

        motion: Whether the thread makes progress.
    """

    def __init__(
        self,
        thread: ThreadStack,
        process: ProcessStacks,
        book: RuleBook,
        lines: SourceLines,
    ) -> None:
        self.thread, self.process, self.lines = thread, process, lines
        self.python = _task_frames(thread, process)
        frames = thread.native or thread.frames[:_MOST_FRAMES]
        self.natives = (*native_callees(frames),)
        self.rule: Rule | None
        self.frame: StackFrame | None
        found = _first_match(book, self)
        # A library that reads, writes, or packs files may also compute.
        if found and found[0].cause is Cause.IO_WAIT and self._is_busy:
            found = None
        self.rule, self.frame = found or (None, self.innermost)
        if self.rule is not None:
            self.cause = self.rule.cause
            self.motion = classify_motion(thread, self.rule.wakes)
            return
        self.cause = self._classify_running()
        is_native = self.cause is Cause.NATIVE_SPIN
        self.motion = (
            Motion.MOVING
            if is_native and _has_returned(thread)
            else classify_motion(thread)
        )

    @property
    def awaits(self) -> Awaited:
        """
        What it waits for, according to its rule.
        """
        return self.rule.awaits if self.rule else ""

    @property
    def is_explained(self) -> bool:
        """
        Whether a rule matches, or it runs.
        """
        return self.rule is not None or self.cause is not Cause.UNKNOWN

    @property
    def may_defer(self) -> bool:
        """
        Whether another thread may show what this one waits for.
        """
        is_clear = self.is_explained and Trait.DEFERS not in self.cause.traits
        return not is_clear or self.awaits == "backward"

    @property
    def waits_for_lock(self) -> bool:
        """
        Whether it waits for a lock that another thread holds.
        """
        return (
            self.cause is Cause.LOCK_DEADLOCK
            and self.awaits == "lock"
            and self.motion is not Motion.MOVING
        )

    @property
    def runs_user_code(self) -> bool:
        """
        Whether any of its frames is the user's.
        """
        return _is_own(self.thread.frames)

    @property
    def explains_wait(self) -> bool:
        """
        Whether its cause explains more than the wait of another thread for it.
        """
        return Trait.EXPLAINS_WAIT in self.cause.traits

    @property
    def native_function(self) -> str:
        """
        The innermost native function below Python; ``""`` if unknown.
        """
        frames = self.thread.native or self.thread.frames
        return innermost_native_name(frames)[:MOST_NAME]

    @property
    def innermost(self) -> StackFrame | None:
        """
        The innermost Python frame, or of all frames if there is none.
        """
        frames = self.python or self.natives or self.thread.frames
        return next(iter(frames), None)

    @property
    def task_frames(self) -> Sequence[StackFrame]:
        """
        The Python frames of the code that it runs; all frames if it has none.
        """
        return self.python or self.thread.frames or self.thread.native

    @cached_property
    def callsites(self) -> Sequence[tuple[str, str]]:
        """
        File and function of the Python frames, innermost first.
        """
        return [*map(callsite, self.python[:_MOST_FRAMES])]

    @cached_property
    def places(self) -> Sequence[str]:
        """
        The same as ``file:function``.
        """
        return [*map(":".join, self.callsites)]

    @cached_property
    def code(self) -> str:
        """
        The source code of the innermost Python line, or ``""``.
        """
        if not self.python:
            return ""

        inner = self.python[0]
        return inner.code or self.lines(inner.filename, inner.line)

    @cached_property
    def is_running(self) -> bool | None:
        """
        Whether the thread was running; ``None`` if unknown.
        """
        return is_running(self.thread)

    @cached_property
    def uses_gpu(self) -> bool | None:
        """
        Whether its process uses a GPU; ``None`` if unknown.
        """
        return uses_gpu(self.process)

    @property
    def _is_busy(self) -> bool:
        return is_busy(self.thread.activity)

    def _classify_running(self) -> Cause:
        """
        Distinguish a running Python loop from native code.

        Returns:
            ``unknown`` if the thread does not run.
        """
        if not self.is_running or self.innermost is None:
            return Cause.UNKNOWN
        if not self._runs_native_code(self.innermost):
            return Cause.PYTHON_LOOP
        # The host spins until its GPU is done.
        return Cause.GPU_SYNC_WAIT if self.uses_gpu else Cause.NATIVE_SPIN

    def _runs_native_code(self, innermost: StackFrame) -> bool:
        """
        Return whether a running thread is in native code, and not in Python.
        """
        if self.natives and not is_native(innermost):
            return not all(
                _INTERPRETER_FUNCTIONS.match(f.name) for f in self.natives
            )

        owns_gil, activity = self.thread.owns_gil, self.thread.activity
        if not owns_gil and (
            # Libraries compute in native code without the GIL.
            self.uses_gpu or not is_user_frame(innermost) or owns_gil is False
        ):
            return True
        if activity and self._is_busy and activity.has_moved is False:
            # A loop that calls native code holds the GIL in between.
            if activity.has_let_go:
                return True
            # A line that stays the same outside a loop is one native call.
            is_in_loop = self.lines.is_in_loop
            return is_in_loop(innermost.filename, innermost.line) is False
        return is_native(innermost)


# Interpreter functions that every Python loop calls.
_INTERPRETER_FUNCTIONS = late_pattern(
    r"^_*(Py|py)|^(long|float|unicode|list|dict|tuple|set|object|type|bool|int"
    r"|slot|gen|range\w*|method|builtin|cfunction|vectorcall|binary|mapping"
    r"|frame|gc|lookdict|insertdict|enum|zip|map|bytes|free|malloc|_int_free"
    r"|_int_malloc|mem\w+|cfree|deallocate|subtype)_?(?!.*(sort|pow))\w*"
)


def _is_own(frames: Iterable[StackFrame]) -> bool:
    return any(map(is_user_frame, frames))


def _has_returned(thread: ThreadStack) -> bool:
    """
    Return whether native code that a thread runs returned between samples.

    A thread that spins in native code neither waits nor sets a variable.
    """
    activity = thread.activity
    has_new = activity is not None and activity.has_new_values is True
    return has_new or wakes_per_s(thread) > 0


def _first_match(book: RuleBook, state: ThreadState) -> RuleMatch | None:
    """
    Return the first rule that matches, and the frame that it matches.
    """
    frames: dict[int, StackFrame] = {}
    for index, site in enumerate(state.callsites):
        for number in book.rules_at(*site):
            if index < book.rules[number].within:
                frames.setdefault(number, state.python[index])
    for number, rule in enumerate(book.rules):
        frame = frames.get(number)
        if frame is None and (rule.file or rule.function):
            continue
        if (found := _match_rule(rule, state, frame)) is not None:
            return rule, found

    return None


def _rules_at(
    rules: Sequence[Rule], path: str, function: str
) -> Sequence[int]:
    """
    Return the numbers of the rules for a frame that match one at a callsite.
    """
    return [
        number
        for number, rule in enumerate(rules)
        if (rule.file or rule.function)
        and (not rule.file or rule.file.search(path))
        and (not rule.function or rule.function.fullmatch(function))
    ]


def _match_rule(
    rule: Rule, state: ThreadState, frame: StackFrame | None
) -> StackFrame | None:
    """
    Return the frame that a rule matches.

    Args:
        frame: The Python frame that its *file* and *function* match, if any.
    """
    if (rule.waits and state.is_running) or (
        rule.gpu and state.uses_gpu is False
    ):
        return None
    if rule.native:
        inner = state.natives[: rule.native_within]
        search = rule.native.search
        native = next((f for f in inner if search(f.name[:_MOST_PATH])), None)
        paths = (path for path, _ in map(callsite, inner))
        if native is None or (
            rule.library and not _finds(rule.library, paths)
        ):
            return None
        frame = frame or native
    call = state.thread.system_call
    is_other = (
        (rule.call and not (call and _matches_call(rule, call)))
        or (rule.code and not rule.code.search(state.code))
        or _finds(rule.unless, state.places)
        or (rule.under and not _finds(rule.under, state.places))
    )
    return None if is_other else frame or state.innermost


def _matches_call(rule: Rule, call: SystemCall) -> bool:
    is_target = not rule.target or rule.target.search(call.target[:_MOST_PATH])
    return bool(is_target) and _matches(rule.call, call.name[:_MOST_PATH])


def _matches(pattern: Pattern[str] | None, text: str) -> bool:
    return pattern is not None and pattern.fullmatch(text) is not None


def _finds(pattern: Pattern[str] | None, texts: Iterable[str]) -> bool:
    return pattern is not None and any(map(pattern.search, texts))


# Names of the threads of the CUDA driver, and of torch for NCCL.
_GPU_THREAD_PREFIXES = ("cuda-", "cuda0", "pt_nccl_")
_GPU_COMMAND_PREFIXES = (
    "sglang::scheduler",
    "VLLM::Worker",
    "VLLM::EngineCore",
)


def _task_frames(
    thread: ThreadStack, process: ProcessStacks
) -> tuple[StackFrame, ...]:
    """
    Return the Python frames that belong to the code of a worker.

    The frames outside them are the worker itself and, with ``fork``, its
    parent.
    """
    frames = python_frames(thread.frames[:_MOST_FRAMES])
    for index, frame in enumerate(frames):
        path, name = callsite(frame)
        is_start = name == "_bootstrap" and path.endswith(
            "multiprocessing/process.py"
        )
        if is_start or (name == "_worker_loop" and "utils/data" in path):
            return frames[: index + 1]
        if path.endswith("torch/utils/data/_utils/fetch.py") and (
            process.role == "dataloader"
        ):
            return frames[: index or 1]
    return frames


def is_program_thread(thread: ThreadStack) -> bool:
    """
    Return whether a thread began as a program, and not in ``threading``.
    """
    return any(function_name(f.name) == "<module>" for f in thread.frames[-2:])


def is_threading_thread(thread: ThreadStack) -> bool:
    """
    Return whether a thread was started by the ``threading`` module.
    """
    return any(
        function_name(f.name) in {"_bootstrap", "_bootstrap_inner"}
        and f.filename.endswith("threading.py")
        for f in thread.frames[-6:]
    )


def uses_gpu(process: ProcessStacks) -> bool | None:
    """
    Return whether a process uses a GPU: the driver names threads of its own.

    Returns:
        ``None`` if unknown.
    """
    if process.kernels or any(
        t.name.startswith(_GPU_THREAD_PREFIXES) for t in process.threads
    ):
        return True
    was_alive = any(
        t.activity or t.system_call or t.idle_s is not None
        for t in process.threads
    )
    is_server = process.command.startswith(_GPU_COMMAND_PREFIXES)
    return is_server or (False if was_alive else None)


def is_in_event_loop(thread: ThreadStack) -> bool:
    """
    Return whether a thread runs a callback of an event loop.
    """
    sites = [*map(callsite, thread.frames)]
    return any(
        name == "_run" and path.endswith("asyncio/events.py")
        for path, name in sites
    ) or any(
        name in {"run", "wrapper"}
        and path.endswith(("asyncio/runners.py", "uvloop/__init__.py"))
        for path, name in sites[1:]
    )


# One without a stack waits.
_IDLE_NAME = late_pattern(r"pt_autograd\w*")
_AT_WORK = late_pattern(r"runExecute|AsyncWork|evaluate_function|execute")


def is_background(thread: ThreadStack) -> bool:
    """
    Return whether a thread only waits for work, by the built-in rules.

    Such a thread can be left out of a list of many; a main thread never is
    one.
    """
    if thread.is_main:
        return False
    book, stack = builtin_rules(), thread.native or thread.frames
    if stack:
        is_at_work = any(
            f.is_native and _AT_WORK.search(f.name) for f in stack
        )
        return not is_at_work and book.is_helper(thread)
    return book.has_helper_name(thread) or bool(
        _IDLE_NAME.fullmatch(thread.name)
    )

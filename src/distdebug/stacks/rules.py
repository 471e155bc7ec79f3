"""
Match rules against stacks to find what a thread waits for.

The rules are data, in ``rules.toml`` beside this file; users can add their own
files.  The first rule that matches wins, so specific rules come before general
ones: a queue inside a data loader is a data loader.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_args

import attrs

from .._rules import (
    check_pattern,
    compile_pattern,
    parse_tables,
    read_rules_file,
    refuse_unknown_tables,
)
from ..errors import RulesError
from ..findings import Cause, Confidence
from .frame_origin import (
    ReadLine,
    function_name,
    is_native,
    is_user_frame,
    native_callees,
)
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import is_running


_ALL_FRAMES = 1_000_000
_MOST_WAKES = 1e9

# All other keys are strings.
_KEY_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "waits": bool,
    "gpu": bool,
    "wakes": (int, float),
    "within": int,
    "native_within": int,
    "unless_own": bool,
}
_TEXT_KEYS = frozenset({"cause", "name", "doing", "remedy", "confidence"})


@attrs.frozen(kw_only=True)
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
    file: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    function: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    within: int = _ALL_FRAMES
    native: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    native_within: int = 40
    library: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    call: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    target: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    code: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    under: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    unless: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    waits: bool = False
    gpu: bool = False
    wakes: float | None = None
    doing: str = ""
    remedy: str = ""
    confidence: Confidence = "likely"

    def __attrs_post_init__(self) -> None:
        conditions = (
            self.file,
            self.function,
            self.native,
            self.call,
            self.code,
        )
        if not any(conditions):
            msg = "neither file, function, native, call, nor code is given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
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

    thread: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    place: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    within: int = _ALL_FRAMES
    native: re.Pattern[str] | None = attrs.field(
        converter=compile_pattern, default=None
    )
    unless_own: bool = False


@attrs.frozen(kw_only=True)
class RuleBook:
    """
    The rules and texts that explain stacks.

    Attributes:
        rules: In the order in which they are tried.

        helpers: Threads to ignore.

        doing: What a rank is doing, by cause, as a predicate.

        remedy: What to do about it, by cause.
    """

    rules: tuple[Rule, ...] = ()
    helpers: tuple[Helper, ...] = ()
    doing: Mapping[Cause, str] = attrs.field(factory=dict)
    remedy: Mapping[Cause, str] = attrs.field(factory=dict)


def load_rules(path: str | os.PathLike[str]) -> RuleBook:
    """
    Read one file of rules.

    Args:
        path: A TOML file with tables ``[[rule]]`` and ``[[helper]]``, whose
            keys are the attributes of :class:`Rule` and :class:`Helper`.

    Raises:
        RulesError: The file cannot be read, or a rule is invalid.
    """
    return _load_book(path, is_builtin=False)


def _load_book(path: str | os.PathLike[str], *, is_builtin: bool) -> RuleBook:
    tables, name = read_rules_file(path), os.fspath(path)
    return _parse_book(tables, name, is_builtin=is_builtin)


def read_rules(paths: Iterable[str | os.PathLike[str]] = ()) -> RuleBook:
    """
    Read the rules of these files and the built-in ones.

    Args:
        paths: Files of the user, whose rules are tried first.

    Raises:
        RulesError: One of the files cannot be used.
    """
    books = [*map(load_rules, paths), _builtin_rules()]
    return RuleBook(
        rules=tuple(rule for book in books for rule in book.rules),
        helpers=tuple(helper for book in books for helper in book.helpers),
        doing={k: v for book in books[::-1] for k, v in book.doing.items()},
        remedy={k: v for book in books[::-1] for k, v in book.remedy.items()},
    )


@cache
def _builtin_rules() -> RuleBook:
    return _load_book(Path(__file__).with_name("rules.toml"), is_builtin=True)


class _DefaultDoing(Mapping[Cause, str]):
    """
    The built-in predicate of each cause, read on first use.
    """

    def __getitem__(self, cause: Cause) -> str:
        return _builtin_rules().doing[cause]

    def __iter__(self) -> Iterator[Cause]:
        return iter(_builtin_rules().doing)

    def __len__(self) -> int:
        return len(_builtin_rules().doing)


DEFAULT_DOING: Mapping[Cause, str] = _DefaultDoing()


def _parse_book(
    table: Mapping[str, Any], name: str, *, is_builtin: bool
) -> RuleBook:
    refuse_unknown_tables(table, {"rule", "helper", "cause"}, name)
    causes = table.get("cause", {})
    try:
        texts = {
            Cause(key): _check_cause_texts(value)
            for key, value in causes.items()
        }
    except (*(AttributeError, RecursionError, TypeError, ValueError),) as exc:
        msg = f"[cause]: {exc}"
        raise RulesError(msg, name) from None

    def items(kind: Any, key: str) -> Iterator[Any]:
        def parse(row: Any) -> Any:
            return kind(**_check_table(kind, row, is_builtin=is_builtin))

        return parse_tables(table.get(key, []), key, name, parse)

    return RuleBook(
        rules=tuple(items(Rule, "rule")),
        helpers=tuple(items(Helper, "helper")),
        doing={c: t["doing"] for c, t in texts.items() if "doing" in t},
        remedy={c: t["remedy"] for c, t in texts.items() if "remedy" in t},
    )


def _check_cause_texts(value: Mapping[str, Any]) -> Mapping[str, str]:
    if unknown := set(value) - {"doing", "remedy"}:
        msg = f"no such key: {min(unknown)!r:.60}"
        raise ValueError(msg)
    for key, text in value.items():
        if not isinstance(text, str):
            msg = f"{key} is not a text"
            raise TypeError(msg)
    return value


def _check_table(
    kind: Any, table: Any, *, is_builtin: bool
) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        msg = f"not a table: {table!r:.60}"
        raise TypeError(msg)

    known = {field.name for field in attrs.fields(kind)}
    for key, value in table.items():
        if key not in known:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        _check_value(key, value)
        # The built-in patterns are measured, and too complex for this check.
        if isinstance(value, str) and key not in _TEXT_KEYS and not is_builtin:
            check_pattern(value)
    confidence = table.get("confidence", "likely")
    if confidence not in get_args(Confidence):
        msg = f"confidence is {' or '.join(get_args(Confidence))}"
        raise ValueError(msg)

    return table


def _check_value(key: str, value: Any) -> None:
    kind = _KEY_TYPES.get(key, str)
    is_truth = isinstance(value, bool)
    if not isinstance(value, kind) or is_truth != (kind is bool):
        msg = f"{key} has the wrong type: {value!r:.60}"
        raise TypeError(msg)
    if is_truth or not isinstance(value, int | float):
        return

    # A comparison with NaN is false, so it is refused here, too.
    least = 0 if key == "wakes" else 1
    if not least <= value <= _MOST_WAKES:
        msg = f"{key} is at least {least}, and finite: {value!r:.60}"
        raise ValueError(msg)


_MOST_PATH = 300
_MOST_FRAMES = 500

RuleMatch = tuple[Rule, StackFrame]


class MatchContext:
    """
    One thread, prepared for matching.

    Args:
        read_line: Returns the source code of a line of a file.

        frame_limit: How many of the innermost Python frames to match.

        gpu: Whether its process uses a GPU; ``None`` if unknown.
    """

    def __init__(
        self,
        thread: ThreadStack,
        read_line: ReadLine,
        frame_limit: int = _MOST_FRAMES,
        *,
        gpu: bool | None = None,
    ) -> None:
        self.thread = thread
        self.gpu = gpu
        self._read_line = read_line
        frames = thread.frames[:_MOST_FRAMES]
        self.python = tuple(f for f in frames if not is_native(f))[
            :frame_limit
        ]
        self.natives = tuple(native_callees(thread.native or frames))

    @cached_property
    def callsites(self) -> Sequence[tuple[str, str]]:
        """
        File and function of the Python frames, innermost first.
        """
        return [
            (_normalize_path(f.filename), function_name(f.name))
            for f in self.python
        ]

    @cached_property
    def code(self) -> str:
        """
        The source code of the innermost Python line, or ``""``.
        """
        if not self.python:
            return ""

        inner = self.python[0]
        return inner.code or self._read_line(inner.filename, inner.line)

    @cached_property
    def is_running(self) -> bool | None:
        """
        Whether the thread was running; ``None`` if unknown.
        """
        return is_running(self.thread)

    @property
    def innermost(self) -> StackFrame | None:
        """
        The innermost Python frame, or of all frames if there is none.
        """
        frames = self.python or self.natives or self.thread.frames
        return next(iter(frames), None)


class Matcher:
    """
    Matches rules against threads, and caches the rules of each callsite.
    """

    def __init__(self, book: RuleBook) -> None:
        self.book = book
        self._frame_rules = [
            (number, rule)
            for number, rule in enumerate(book.rules)
            if rule.file or rule.function
        ]
        self._rules_by_callsite: dict[tuple[str, str], frozenset[int]] = {}

    def first_match(self, context: MatchContext) -> RuleMatch | None:
        """
        Return the first rule that matches, and the frame that it matches.
        """
        lines = self._frames_by_rule(context)
        for number, rule in enumerate(self.book.rules):
            needs_line = rule.file is not None or rule.function is not None
            if needs_line and number not in lines:
                continue
            frame = context.python[lines[number]] if needs_line else None
            if (found := _match_rule(rule, context, frame)) is not None:
                return rule, found

        return None

    def is_helper(self, thread: ThreadStack) -> bool:
        """
        Return whether a thread is a helper, which never explains a hang.

        A thread without any frame is a helper, too.
        """
        frames = thread.frames[:_MOST_FRAMES]
        if not frames and not thread.native:
            return True

        places = [
            f"{_normalize_path(f.filename)}:{function_name(f.name)}"
            for f in frames
            if not is_native(f)
        ]
        natives = [
            f.name[:_MOST_PATH]
            for f in native_callees(thread.native or frames)
        ]
        for helper in self.book.helpers:
            if _matches_helper_name(helper, thread):
                return True
            place, inner = helper.place, places[: helper.within]
            if place and any(map(place.search, inner)):
                return True
            if helper.native and any(map(helper.native.search, natives)):
                return True

        return False

    def has_helper_name(self, thread: ThreadStack) -> bool:
        """
        Return whether a thread has the name of a helper, whatever it runs.
        """
        return any(
            helper.thread and helper.thread.fullmatch(thread.name)
            for helper in self.book.helpers
        )

    def _frames_by_rule(self, context: MatchContext) -> dict[int, int]:
        found: dict[int, int] = {}
        for index, callsite in enumerate(context.callsites):
            for number in self._rules_for_callsite(callsite):
                if index < self.book.rules[number].within:
                    found.setdefault(number, index)
        return found

    def _rules_for_callsite(self, callsite: tuple[str, str]) -> frozenset[int]:
        known = self._rules_by_callsite.get(callsite)
        if known is None:
            path, function = callsite
            known = self._rules_by_callsite[callsite] = frozenset(
                number
                for number, rule in self._frame_rules
                if (rule.file is None or rule.file.search(path))
                and (
                    rule.function is None or rule.function.fullmatch(function)
                )
            )
        return known


def _matches_helper_name(helper: Helper, thread: ThreadStack) -> bool:
    if helper.thread is None or not helper.thread.fullmatch(thread.name):
        return False
    frames = thread.frames[:_MOST_FRAMES]
    return not (helper.unless_own and any(map(is_user_frame, frames)))


def _match_rule(
    rule: Rule, context: MatchContext, frame: StackFrame | None
) -> StackFrame | None:
    """
    Return the frame that a rule matches.

    Args:
        frame: The Python frame that its *file* and *function* match, if any.
    """
    if (rule.waits and context.is_running) or (
        rule.gpu and context.gpu is False
    ):
        return None
    if rule.native is not None:
        inner = context.natives[: rule.native_within]
        names = ((rule.native.search(f.name[:_MOST_PATH]), f) for f in inner)
        native = next((f for match, f in names if match), None)
        if native is None or not _matches_library(rule, inner):
            return None
        frame = frame or native
    if rule.call is not None and not _matches_system_call(
        rule, context.thread
    ):
        return None
    if rule.code is not None and not rule.code.search(context.code):
        return None
    if not _matches_callsites(rule, context):
        return None

    return frame or context.innermost


def _matches_library(rule: Rule, inner: Iterable[StackFrame]) -> bool:
    library = rule.library
    return library is None or any(
        library.search(_normalize_path(f.filename)) for f in inner
    )


def _matches_system_call(rule: Rule, thread: ThreadStack) -> bool:
    call = thread.system_call
    if call is None or rule.call is None:
        return False
    target = rule.target is None or rule.target.search(
        call.target[:_MOST_PATH]
    )
    return bool(target and rule.call.fullmatch(call.name[:_MOST_PATH]))


def _matches_callsites(rule: Rule, context: MatchContext) -> bool:
    if rule.under is None and rule.unless is None:
        return True

    places = [f"{path}:{function}" for path, function in context.callsites]
    return (rule.under is None or any(map(rule.under.search, places))) and (
        rule.unless is None or not any(map(rule.unless.search, places))
    )


def _normalize_path(filename: str) -> str:
    return filename[-_MOST_PATH:].replace("\\", "/")


# Names of the threads of the CUDA driver, and of torch for NCCL.
_GPU_THREAD_PREFIXES = ("cuda-", "cuda0", "pt_nccl_")
_GPU_COMMAND_PREFIXES = (
    "sglang::scheduler",
    "VLLM::Worker",
    "VLLM::EngineCore",
)


def task_frames(
    thread: ThreadStack, process: ProcessStacks
) -> Sequence[StackFrame]:
    """
    Return the frames of the code that a worker runs; all if there are none.
    """
    frame_limit = count_task_frames(thread, process)
    python = [f for f in thread.frames if not is_native(f)]
    return python[:frame_limit] or thread.frames or thread.native


def count_task_frames(thread: ThreadStack, process: ProcessStacks) -> int:
    """
    Count the innermost Python frames that belong to the code of a worker.

    The frames outside them are the worker itself and, with ``fork``, its
    parent.
    """
    python = (f for f in thread.frames if not is_native(f))
    for index, frame in enumerate(python):
        name = function_name(frame.name)
        path = frame.filename.replace("\\", "/")
        if name == "_bootstrap" and path.endswith(
            "multiprocessing/process.py"
        ):
            return index + 1
        if name == "_worker_loop" and "utils/data" in path:
            return index + 1
        if path.endswith("torch/utils/data/_utils/fetch.py") and (
            process.role == "dataloader"
        ):
            return index or 1
    return len(thread.frames)


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
    for index, frame in enumerate(thread.frames):
        path = frame.filename.replace("\\", "/")
        name = function_name(frame.name)
        if name == "_run" and path.endswith("asyncio/events.py"):
            return True
        if (
            index
            and name in {"run", "wrapper"}
            and path.endswith(("asyncio/runners.py", "uvloop/__init__.py"))
        ):
            return True
    return False

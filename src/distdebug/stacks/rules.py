"""
How does a stack show what a thread waits for?

The rules are data, in ``rules.toml`` beside this file; users can add files of
their own.  The first rule that fits wins, so the particular comes before the
general: a queue inside a data loader is a data loader.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, get_args

import attrs

from .._rules import check_pattern, read_toml
from ..errors import RulesError
from ..findings import Cause, Confidence
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import is_running
from .places import ReadLine, called_natively, is_native, is_users, last_name


_EVERYWHERE = 1_000_000
_MOST_WAKES = 1e9

# All others are texts.
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "waits": bool,
    "gpu": bool,
    "wakes": (int, float),
    "within": int,
    "native_within": int,
    "unless_own": bool,
}
_TEXTS = frozenset({"cause", "name", "doing", "remedy", "confidence"})


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None

    try:
        return re.compile(text)
    except re.error as exc:
        msg = f"pattern {text!r:.60}: {exc}"
        raise ValueError(msg) from None


@attrs.frozen(kw_only=True)
class Rule:
    """
    If a thread looks like this, then it does that.

    Everything that is given has to hold.  Patterns are regular expressions;
    paths are written with slashes.

    Attributes:
        cause: What the thread is doing.

        name: What the rule is called, for those who read the evidence.

        file: Is searched for in the name of a file …

        function: … and this has to match the function of the same line of the
            Python stack, without its class.

        within: How many of the innermost lines of Python to look at.

        native: Is searched for in the names of native functions that the
            innermost function of Python called.

        native_within: How many of the innermost of these to look at.

        library: Is searched for in the files of the same native functions.

        call: Has to match the name of the system call it waits in.

        target: Is searched for in what that call is about.

        code: Is searched for in the code of the innermost line.  Functions
            written in C leave no line in a Python stack; who calls them does.

        under: Is searched for in ``file:function`` of every line; one has to
            match.

        unless: The same; none may match.

        waits: Whether it only fits a thread that does not run.

        gpu: Whether it only fits a process that may use a GPU.

        wakes: How often per second a thread wakes up at most although nothing
            happens.  ``None`` if unknown.

        doing: What the rank is doing, as a predicate; by default that of
            its cause.

        remedy: What to do about it; by default that of its cause.

        confidence: How sure this is.
    """

    cause: Cause = attrs.field(converter=Cause)
    name: str = ""
    file: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    function: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    within: int = _EVERYWHERE
    native: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    native_within: int = 40
    library: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    call: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    target: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    code: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    under: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    unless: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    waits: bool = False
    gpu: bool = False
    wakes: float | None = None
    doing: str = ""
    remedy: str = ""
    confidence: Confidence = "likely"

    def __attrs_post_init__(self) -> None:
        asks = (self.file, self.function, self.native, self.call, self.code)
        if not any(asks):
            msg = "neither file, function, native, call, nor code is given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Helper:
    """
    A thread that looks like this works for others, and tells nothing.

    Attributes:
        thread: Has to match its name.

        unless_own: Whether that name does not count for a thread that is in
            code of the user: anybody may call a thread so.

        place: Is searched for in ``file:function`` of the lines of Python.

        within: In how many of the innermost ones.

        native: Is searched for in the names of its native functions.
    """

    thread: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    place: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    within: int = _EVERYWHERE
    native: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    unless_own: bool = False


@attrs.frozen(kw_only=True)
class RuleBook:
    """
    All that is known about stacks.

    Attributes:
        rules: In the order in which they are tried.

        helpers: Threads to be left out.

        doing: What a rank is doing, by cause, as a predicate.

        remedy: What to do about it, by cause.
    """

    rules: tuple[Rule, ...] = ()
    helpers: tuple[Helper, ...] = ()
    doing: Mapping[Cause, str] = attrs.field(factory=dict)
    remedy: Mapping[Cause, str] = attrs.field(factory=dict)


def load_rules(path: str | os.PathLike[str]) -> RuleBook:
    """
    Read a file of rules.

    Args:
        path: A file in TOML, with tables ``[[rule]]`` and ``[[helper]]``
            whose keys are the attributes of :class:`Rule` and
            :class:`Helper`.

    Returns:
        Its rules.

    Raises:
        RulesError: It cannot be read, or is not made of rules.
    """
    return _load(path, is_ours=False)


def _load(path: str | os.PathLike[str], *, is_ours: bool) -> RuleBook:
    name = os.fspath(path)
    try:
        table = read_toml(path)
    except (OSError, ValueError) as exc:
        raise RulesError(str(exc), name) from None

    return _book(table, name, is_ours=is_ours)


def read_rules(paths: Iterable[str | os.PathLike[str]] = ()) -> RuleBook:
    """
    Gather the rules of these files and our own.

    Args:
        paths: Files of the user, whose rules are tried first.

    Returns:
        All rules.

    Raises:
        RulesError: One of the files cannot be used.
    """
    books = [*map(load_rules, paths), _own_rules()]
    return RuleBook(
        rules=tuple(rule for book in books for rule in book.rules),
        helpers=tuple(helper for book in books for helper in book.helpers),
        doing={k: v for book in books[::-1] for k, v in book.doing.items()},
        remedy={k: v for book in books[::-1] for k, v in book.remedy.items()},
    )


@cache
def _own_rules() -> RuleBook:
    return _load(Path(__file__).with_name("rules.toml"), is_ours=True)


class _Doing(Mapping[Cause, str]):
    """
    What a rank is doing, by cause; read when it is asked for.
    """

    def __getitem__(self, cause: Cause) -> str:
        return _own_rules().doing[cause]

    def __iter__(self) -> Iterator[Cause]:
        return iter(_own_rules().doing)

    def __len__(self) -> int:
        return len(_own_rules().doing)


DOING: Mapping[Cause, str] = _Doing()


def _book(table: Mapping[str, Any], name: str, *, is_ours: bool) -> RuleBook:
    if unknown := set(table) - {"rule", "helper", "cause"}:
        msg = f"no such table: {min(unknown)!r:.60}"
        raise RulesError(msg, name)

    causes = table.get("cause", {})
    try:
        texts = {Cause(key): _texts(value) for key, value in causes.items()}
    except (*(AttributeError, RecursionError, TypeError, ValueError),) as exc:
        msg = f"[cause]: {exc}"
        raise RulesError(msg, name) from None

    items = partial(_items, name=name, is_ours=is_ours)
    return RuleBook(
        rules=tuple(items(Rule, table.get("rule", []), "rule")),
        helpers=tuple(items(Helper, table.get("helper", []), "helper")),
        doing={c: t["doing"] for c, t in texts.items() if "doing" in t},
        remedy={c: t["remedy"] for c, t in texts.items() if "remedy" in t},
    )


def _texts(value: Mapping[str, Any]) -> Mapping[str, str]:
    if unknown := set(value) - {"doing", "remedy"}:
        msg = f"no such key: {min(unknown)!r:.60}"
        raise ValueError(msg)
    for key, text in value.items():
        if not isinstance(text, str):
            msg = f"{key} is not a text"
            raise TypeError(msg)
    return value


def _items(
    kind: Any, tables: Any, what: str, *, name: str, is_ours: bool
) -> Iterable[Any]:
    if not isinstance(tables, list):
        msg = f"write [[{what}]], not [{what}]"
        raise RulesError(msg, name)

    for number, table in enumerate(tables, start=1):
        try:
            yield kind(**_checked(kind, table, is_ours=is_ours))
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"{what} {number}: {exc}"
            raise RulesError(msg, name) from None


def _checked(kind: Any, table: Any, *, is_ours: bool) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        msg = f"not a table: {table!r:.60}"
        raise TypeError(msg)

    known = {field.name for field in attrs.fields(kind)}
    for key, value in table.items():
        if key not in known:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        _check_value(key, value)
        # Ours were measured, and have more choices than we can count.
        if isinstance(value, str) and key not in _TEXTS and not is_ours:
            check_pattern(value)
    sure = table.get("confidence", "likely")
    if sure not in get_args(Confidence):
        msg = f"confidence is {' or '.join(get_args(Confidence))}"
        raise ValueError(msg)

    return table


def _check_value(key: str, value: Any) -> None:
    kind = _TYPES.get(key, str)
    is_truth = isinstance(value, bool)
    if not isinstance(value, kind) or is_truth != (kind is bool):
        msg = f"{key} has the wrong type: {value!r:.60}"
        raise TypeError(msg)
    if is_truth or not isinstance(value, int | float):
        return

    # Comparisons with what is not a number do not hold.
    least = 0 if key == "wakes" else 1
    if not least <= value <= _MOST_WAKES:
        msg = f"{key} is at least {least}, and finite: {value!r:.60}"
        raise ValueError(msg)


_MOST_PATH = 300
_MOST_FRAMES = 500

Hit = tuple[Rule, StackFrame]


class Sight:
    """
    One thread, as rules look at it.

    Args:
        thread: The thread.

        read_line: Reads the code of a file and line.

        outside: From which line of the Python stack on not to look.

        gpu: Whether its process uses a GPU; ``None`` if unknown.
    """

    def __init__(
        self,
        thread: ThreadStack,
        read_line: ReadLine,
        outside: int = _MOST_FRAMES,
        *,
        gpu: bool | None = None,
    ) -> None:
        self.thread = thread
        self.gpu = gpu
        self._read_line = read_line
        frames = thread.frames[:_MOST_FRAMES]
        self.python = tuple(f for f in frames if not is_native(f))[:outside]
        self.natives = tuple(called_natively(thread.native or frames))

    @cached_property
    def places(self) -> Sequence[tuple[str, str]]:
        """
        File and function of the lines of Python, innermost first.
        """
        return [(_path(f.filename), last_name(f.name)) for f in self.python]

    @cached_property
    def code(self) -> str:
        """
        The code of the innermost line of Python, or ``""``.
        """
        if not self.python:
            return ""

        inner = self.python[0]
        return inner.code or self._read_line(inner.filename, inner.line)

    @cached_property
    def runs(self) -> bool | None:
        """
        Whether the thread was running.
        """
        return is_running(self.thread)

    @property
    def innermost(self) -> StackFrame | None:
        """
        The innermost line of Python, or of all if there is none.
        """
        frames = self.python or self.natives or self.thread.frames
        return next(iter(frames), None)


class Matcher:
    """
    Tries rules on threads, and remembers what it learned about lines.

    Args:
        book: The rules.
    """

    def __init__(self, book: RuleBook) -> None:
        self.book = book
        self._of_lines = [
            (number, rule)
            for number, rule in enumerate(book.rules)
            if rule.file or rule.function
        ]
        self._known: dict[tuple[str, str], frozenset[int]] = {}

    def first(self, sight: Sight) -> Hit | None:
        """
        Find the first rule that fits.

        Args:
            sight: The thread.

        Returns:
            The rule, and the line that made it fit.
        """
        lines = self._lines_by_rule(sight)
        for number, rule in enumerate(self.book.rules):
            needs_line = rule.file is not None or rule.function is not None
            if needs_line and number not in lines:
                continue
            frame = sight.python[lines[number]] if needs_line else None
            if (found := _fits(rule, sight, frame)) is not None:
                return rule, found

        return None

    def is_helper(self, thread: ThreadStack) -> bool:
        """
        Whether a thread works for others, and tells nothing.

        Args:
            thread: The thread; one without any line is a helper.
        """
        frames = thread.frames[:_MOST_FRAMES]
        if not frames and not thread.native:
            return True

        places = [
            f"{_path(f.filename)}:{last_name(f.name)}"
            for f in frames
            if not is_native(f)
        ]
        natives = [
            f.name[:_MOST_PATH]
            for f in called_natively(thread.native or frames)
        ]
        for helper in self.book.helpers:
            if _is_named(helper, thread):
                return True
            place, near = helper.place, places[: helper.within]
            if place and any(map(place.search, near)):
                return True
            if helper.native and any(map(helper.native.search, natives)):
                return True

        return False

    def is_named_so(self, thread: ThreadStack) -> bool:
        """
        Whether a thread has the name of a helper, wherever it is.

        Args:
            thread: The thread.
        """
        return any(
            helper.thread and helper.thread.fullmatch(thread.name)
            for helper in self.book.helpers
        )

    def _lines_by_rule(self, sight: Sight) -> dict[int, int]:
        found: dict[int, int] = {}
        for index, place in enumerate(sight.places):
            for number in self._rules_of(place):
                if index < self.book.rules[number].within:
                    found.setdefault(number, index)
        return found

    def _rules_of(self, place: tuple[str, str]) -> frozenset[int]:
        known = self._known.get(place)
        if known is None:
            path, function = place
            known = self._known[place] = frozenset(
                number
                for number, rule in self._of_lines
                if (rule.file is None or rule.file.search(path))
                and (
                    rule.function is None or rule.function.fullmatch(function)
                )
            )
        return known


def _is_named(helper: Helper, thread: ThreadStack) -> bool:
    if helper.thread is None or not helper.thread.fullmatch(thread.name):
        return False
    frames = thread.frames[:_MOST_FRAMES]
    return not (helper.unless_own and any(map(is_users, frames)))


def _fits(
    rule: Rule, sight: Sight, frame: StackFrame | None
) -> StackFrame | None:
    """
    The line that makes a rule fit, whose line of Python is known already.
    """
    if (rule.waits and sight.runs) or (rule.gpu and sight.gpu is False):
        return None
    if rule.native is not None:
        near = sight.natives[: rule.native_within]
        names = ((rule.native.search(f.name[:_MOST_PATH]), f) for f in near)
        native = next((f for match, f in names if match), None)
        if native is None or not _is_from(rule, near):
            return None
        frame = frame or native
    if rule.call is not None and not _calls(rule, sight.thread):
        return None
    if rule.code is not None and not rule.code.search(sight.code):
        return None
    if not _is_in_place(rule, sight):
        return None

    return frame or sight.innermost


def _is_from(rule: Rule, near: Iterable[StackFrame]) -> bool:
    library = rule.library
    return library is None or any(
        library.search(_path(f.filename)) for f in near
    )


def _calls(rule: Rule, thread: ThreadStack) -> bool:
    call = thread.system_call
    if call is None or rule.call is None:
        return False
    target = rule.target is None or rule.target.search(
        call.target[:_MOST_PATH]
    )
    return bool(target and rule.call.fullmatch(call.name[:_MOST_PATH]))


def _is_in_place(rule: Rule, sight: Sight) -> bool:
    if rule.under is None and rule.unless is None:
        return True

    places = [f"{path}:{function}" for path, function in sight.places]
    return (rule.under is None or any(map(rule.under.search, places))) and (
        rule.unless is None or not any(map(rule.unless.search, places))
    )


def _path(filename: str) -> str:
    return filename[-_MOST_PATH:].replace("\\", "/")


# The driver, and torch for the sake of NCCL, name threads of their own.
_GPU_THREADS = ("cuda-", "cuda0", "pt_nccl_")
_GPU_SERVERS = ("sglang::scheduler", "VLLM::Worker", "VLLM::EngineCore")


def own_frames(
    thread: ThreadStack, process: ProcessStacks
) -> Sequence[StackFrame]:
    """
    The lines of the code that a thread was given; all, if there are none.

    Args:
        thread: The thread.

        process: Its process.
    """
    outside = outside_of(thread, process)
    python = [f for f in thread.frames if not is_native(f)]
    return python[:outside] or thread.frames or thread.native


def outside_of(thread: ThreadStack, process: ProcessStacks) -> int:
    """
    Where the code that a worker was given begins, from the inside.

    What is around it is the worker, and with ``fork`` also its parent.
    """
    python = (f for f in thread.frames if not is_native(f))
    for index, frame in enumerate(python):
        name = last_name(frame.name)
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


def is_program(thread: ThreadStack) -> bool:
    """
    Whether a thread began as a program, and not as a thread.
    """
    return any(last_name(f.name) == "<module>" for f in thread.frames[-2:])


def is_begun(thread: ThreadStack) -> bool:
    """
    Whether a thread began as a thread of Python, and not as a program.
    """
    return any(
        last_name(f.name) in {"_bootstrap", "_bootstrap_inner"}
        and f.filename.endswith("threading.py")
        for f in thread.frames[-6:]
    )


def uses_gpu(process: ProcessStacks) -> bool | None:
    """
    Whether a process uses a GPU: the driver names threads of its own.
    """
    if process.kernels or any(
        t.name.startswith(_GPU_THREADS) for t in process.threads
    ):
        return True
    was_alive = any(
        t.activity or t.system_call or t.idle_s is not None
        for t in process.threads
    )
    is_server = process.command.startswith(_GPU_SERVERS)
    return is_server or (False if was_alive else None)


def is_in_loop(thread: ThreadStack) -> bool:
    """
    Whether a thread runs a callback of an event loop.
    """
    for index, frame in enumerate(thread.frames):
        path = frame.filename.replace("\\", "/")
        name = last_name(frame.name)
        if name == "_run" and path.endswith("asyncio/events.py"):
            return True
        if (
            index
            and name in {"run", "wrapper"}
            and path.endswith(("asyncio/runners.py", "uvloop/__init__.py"))
        ):
            return True
    return False

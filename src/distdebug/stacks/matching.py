"""
Which rule fits this thread?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from .model import StackFrame, ThreadStack
from .motion import is_running
from .places import called_natively, is_native, is_users, last_name
from .rules import Helper, Rule, RuleBook
from .source import ReadLine


__all__ = ["Matcher", "Sight"]

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

"""
How is a debug server of torch asked, without waiting for ranks that hang?

There are two ways.  The server shows pages, each with an answer of every rank;
they come when the slowest rank has answered or was given up after, usually,
60 s.  Or one asks the ranks themselves, each for its own.
"""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from ..._in_time import answers_in_time
from .fetch import (
    LATE,
    Allowance,
    NoAnswerError,
    Place,
    fetch,
)
from .files import Told
from .pages import Section, read_page


__all__ = ["DebugServer"]

Content = TypeVar("Content")

# A page holds all ranks.
_MOST_OF_PAGE = 1 << 28
_MOST_OF_RANK = 1 << 26

# py-spy takes seconds on a busy node.
_PATIENCE_S = 20.0
# Who was late once is asked for the rest only in case.
_LITTLE_PATIENCE_S = 5.0

# How much of the time is for what has to be read afterwards.
_SHARE_OF_PAGES = 0.9

# The second needs the lock of the interpreter; the first does not.
_STACKS = ("pyspy_dump?nonblocking=1", "dump_traceback")
_STACK_PAGES = ("/pyspy_dump?nonblocking=1", "/stacks")
# There is a recorder for NCCL, and one for all other backends.
_DUMPS = ("dump_nccl_trace_json", "fr_trace_json")
_DUMP_PAGES = ("/fr_trace_nccl_json", "/fr_trace_json")

_LATE = NoAnswerError(LATE, "late")


@attrs.frozen
class DebugServer:
    """
    A debug server, and what asking it may cost.

    Attributes:
        place: Where it shows its pages.

        deadline: When to stop, on the monotonic clock.

        allowance: How much may come.
    """

    place: Place
    deadline: float
    allowance: Allowance

    def within(self, share: float, most_s: float = math.inf) -> float:
        """
        When has a part to be done that may take a share of what is left?

        Args:
            share: So much of the time, from 0 to 1.

            most_s: So many seconds at most.

        Returns:
            The time on the monotonic clock.
        """
        now = time.monotonic()
        return now + min(max(self.deadline - now, 0.0) * share, most_s)

    def show(
        self,
        pages: Sequence[str],
        read: Callable[[str], Content],
        deadline: float,
    ) -> dict[str, Content | NoAnswerError]:
        """
        Ask for pages, all at once.

        Args:
            pages: Their paths.

            read: Finds in the text of a page what is wanted, as long as it
                takes.

            deadline: When to stop waiting.

        Returns:
            What is in each page, or why that is not there.
        """

        def ask(page: str) -> Content | NoAnswerError:
            try:
                text = fetch(
                    self.place,
                    page,
                    deadline=deadline,
                    allowance=self.allowance,
                    most=_MOST_OF_PAGE,
                )
            except NoAnswerError as exc:
                return exc

            return read(text)

        answers = dict(answers_in_time(ask, pages, deadline))
        return {page: answers.get(page, _LATE) for page in pages}

    def ask_ranks(
        self, workers: Mapping[int, Place], deadline: float
    ) -> Iterator[tuple[int, Told]]:
        """
        Ask the ranks themselves.

        Args:
            workers: Where they listen.

            deadline: When to stop waiting.

        Yields:
            Each rank with what it told, as it comes; without those that were
            not through in time.
        """

        def ask(rank: int) -> Told:
            return self._ask_rank(workers[rank], deadline)

        yield from answers_in_time(ask, workers, deadline)

    def _ask_rank(self, place: Place, deadline: float) -> Told:
        told = Told(place=place)
        patience = min(_PATIENCE_S, (deadline - time.monotonic()) / 4)
        # Stacks come first: who has waited since then is stuck, and not
        # merely early.
        for question in (*_STACKS, *_DUMPS):
            what = "stack" if question in _STACKS else "dump"
            is_late = what == "dump" and what in told.late
            if is_late or (what == "stack" and told.process):
                continue
            try:
                text = fetch(
                    place,
                    f"/handler/{question}",
                    method="POST",
                    deadline=min(deadline, time.monotonic() + patience),
                    allowance=self.allowance,
                    most=_MOST_OF_RANK,
                )
            except NoAnswerError as exc:
                told.miss(what, exc.reason)
                if exc.kind == "unseen":
                    told.miss("dump", exc.reason)
                    told.is_seen = bool(told.process or told.late)
                    break
                if exc.kind == "late":
                    told.late.add(what)
                    patience = min(patience, _LITTLE_PATIENCE_S)
            else:
                told.hear(what, text)
        return told

    def ask_pages(self) -> tuple[dict[int, Told], dict[str, str]]:
        """
        Ask the server what all ranks answer.

        Returns:
            What each rank told, and why there are pages that show none, by
            their paths.
        """
        # To read them takes as long as whoever wrote them likes.
        answers = answers_in_time(
            lambda _: self._ask_pages(), ["pages"], self.deadline
        )
        nothing: tuple[dict[int, Told], dict[str, str]] = ({}, {"pages": LATE})
        return next((answer for _, answer in answers), nothing)

    def _ask_pages(self) -> tuple[dict[int, Told], dict[str, str]]:
        told: dict[int, Told] = {}
        first = (_STACK_PAGES[0], *_DUMP_PAGES)
        problems = self._hear_pages(first, told)
        is_late = problems.get(_STACK_PAGES[0]) == LATE
        # Whoever does not answer at all does not answer this either.
        done = [t for t in told.values() if t.process or "stack" in t.late]
        if not (is_late or (told and len(done) == len(told))):
            problems |= self._hear_pages(_STACK_PAGES[1:], told)
        return told, problems

    def _hear_pages(
        self, paths: Sequence[str], told: dict[int, Told]
    ) -> dict[str, str]:
        problems = {}
        deadline = self.within(_SHARE_OF_PAGES)
        for path, page in self.show(paths, read_page, deadline).items():
            what = "dump" if path in _DUMP_PAGES else "stack"
            if isinstance(page, NoAnswerError):
                problems[path] = page.reason
                continue

            for rank, section in page.items():
                one = told.setdefault(rank, Told(place=section.place))
                _hear(one, what, section)
        return problems


def _hear(told: Told, what: str, section: Section) -> None:
    if section.reason:
        told.miss(what, section.reason)
        if section.is_silent:
            told.late.add(what)
    else:
        told.hear(what, section.text)

"""
What does a watcher do each time that it is called?

It has the job looked at, tells people what was found, and remembers which
snapshots it knows.
"""

from __future__ import annotations

import logging

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import attrs

from .._in_time import in_time
from .._io import is_folder
from ..errors import DistdebugError
from ..processes.model import Worker
from ..processes.threads import read_state
from .hang import (
    Hang,
    HangReason,
    Hook,
    NotYet,
    Order,
    Response,
    is_the_end,
    say,
)


# Another watcher of this node is done by then.
_BUSY_S = 30.0
# So is another node.
_OTHERS_S = 290.0


@attrs.define
class Duty:
    """
    What to do when a job makes no progress.

    Attributes:
        order: What to take, and where to.

        look: Looks at the job, and takes it.

        hooks: Whom to tell if something is wrong; one that fails is logged.

        tell: Told after them of everything that was found, also if nothing is
            wrong.

        patience_s: How long to wait for each of them, in seconds; by default
            they are trusted to end.

        told: How often something was wrong.

        failed: How often nothing could be found out.
    """

    order: Order
    look: Callable[[HangReason, Order], Response]
    hooks: tuple[Hook, ...] = ()
    tell: Hook = lambda _hang: None
    patience_s: float | None = None
    told: int = 0
    failed: int = 0

    def __call__(self, reason: HangReason) -> NotYet | None:
        """
        Do it.

        Args:
            reason: Why.

        Returns:
            When to ask again, if there was nothing to tell.
        """
        try:
            got = self.look(reason, self.order)
        except Exception as error:  # noqa: BLE001 it was killed, perhaps
            say(logging.WARNING, "cannot look at the job: %s", error)
            self.failed += 1
            return _later(reason)

        if got.outcome == "taken":
            # If whoever should explain it is dead by then, we do.
            say(logging.INFO, "%s", f"{reason}: {got.summary}")
            return NotYet(_OTHERS_S)
        if got.bundle is not None:
            known = self.order.but | {got.bundle}
            self.order = attrs.evolve(self.order, but=known)
        if got.hang is not None:
            self._tell(got.hang, is_news=got.outcome == "explained")
        else:
            text = f"{reason}: {got.summary} ({got.outcome})"
            say(logging.INFO, "%s", text)
        if got.outcome == "fine":
            return _later(reason)._replace(is_free=got.bundle is None)
        return NotYet(_BUSY_S) if got.outcome == "busy" else None

    def _tell(self, hang: Hang, *, is_news: bool) -> None:
        is_wrong = is_news and not hang.is_healthy
        self.told += is_wrong
        # What writes comes last: it may wait for whoever reads.
        for hook in (*(self.hooks if is_wrong else ()), self.tell):
            self._call(hook, hang)

    def _call(self, hook: Hook, hang: Hang) -> None:
        try:
            if self.patience_s is None:
                hook(hang)
            else:
                in_time(partial(hook, hang), self.patience_s)
        except DistdebugError as error:
            say(logging.WARNING, "a hook failed: %s", error)
        except BaseException as error:
            if is_the_end(error):
                raise
            late = " or did not end in time" * isinstance(error, TimeoutError)
            say(logging.WARNING, "a hook failed%s", late, error=error)


def _later(reason: HangReason) -> NotYet:
    """
    Have a stall judged anew when it has lasted twice as long.
    """
    return NotYet(reason.stalled_s or _BUSY_S)


_MOST_PAUSE_S = 60.0
_LEAST_PAUSE_S = 2.0


class Found(NamedTuple):
    """
    The processes that are there.

    Attributes:
        pids: Their numbers.

        are_ranks: Whether they are ranks, and not only what starts some.
    """

    pids: tuple[int, ...]
    are_ranks: bool


class Crew:
    """
    The processes that are watched.

    Args:
        pids: Those to start with.

        find: Finds those of now; by default there are no others.

        root: Where the kernel's files are.
    """

    def __init__(
        self,
        pids: Iterable[int],
        find: Callable[[], Found] | None = None,
        *,
        root: str = "/proc",
    ) -> None:
        self._find = find
        self._root = root
        self._find_at = float("-inf")
        self._pause_s = _LEAST_PAUSE_S
        self._known = self._identify(pids)
        self._has_ranks = find is None

    @property
    def is_fixed(self) -> bool:
        """
        Whether nobody else can join.
        """
        return self._find is None

    def look(self, now: float) -> tuple[int, ...]:
        """
        Tell which processes are there.

        As long as there are no ranks, others are looked for each time; then
        soon after each change, and at last once a minute.

        Args:
            now: The time in seconds, of a clock that does not go back.

        Returns:
            Their numbers, in order.
        """
        self._known = {
            pid: started
            for pid, started in self._known.items()
            if self._is_still(pid, started)
        }
        if self._find is not None and (
            now >= self._find_at or not self._known or not self._has_ranks
        ):
            self._take(self._find())
            self._find_at = now + self._pause_s
        return tuple(sorted(self._known))

    def _take(self, found: Found) -> None:
        before = self._known
        # A launcher does nothing while its ranks work.
        if found.are_ranks and not self._has_ranks:
            self._known = {}
        if found.are_ranks or not self._has_ranks or not self._known:
            self._known = self._known | self._identify(found.pids)
            self._has_ranks = found.are_ranks
        pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        self._pause_s = pause_s if self._known == before else _LEAST_PAUSE_S

    def _identify(self, pids: Iterable[int]) -> dict[int, int]:
        started = ((pid, self._started(pid)) for pid in pids)
        return {pid: ticks for pid, ticks in started if ticks is not None}

    def _is_still(self, pid: int, started: int) -> bool:
        state = read_state(pid, self._root)
        if state is None:
            # Who is dropped is lost for good, so it must be gone, and not
            # only unreadable for a moment, as if no more files may be open.
            return is_folder(f"{self._root}/{pid}")
        return not state.has_ended and state.start_ticks == started

    def _started(self, pid: int) -> int | None:
        state = read_state(pid, self._root)
        return state.start_ticks if state and not state.has_ended else None


def crew_of(
    pids: Iterable[int],
    patterns: Iterable[str],
    *,
    find: Callable[..., Iterable[Worker]],
    root: str = "/proc",
) -> Crew:
    """
    Choose whom to watch.

    Args:
        pids: Exactly these processes, if there are any.

        patterns: Otherwise the workers whose command lines match; those of
            every framework that is known if there is no pattern.

        find: Finds workers, as
            :func:`~distdebug.processes.find.find_workers` does.

        root: Where the kernel's files are.

    Returns:
        The processes to watch.
    """
    given = tuple(pids)
    if given:
        return Crew(given, root=root)

    wanted = tuple(patterns)

    def find_now() -> Found:
        workers = tuple(find(wanted, include_children=False, root=root))
        ranks = tuple(x.pid for x in workers if x.role == "rank")
        # A launcher that is alone starts ranks, or starts them again.
        return Found(ranks or tuple(x.pid for x in workers), bool(ranks))

    return Crew((), find_now, root=root)

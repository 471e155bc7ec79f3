"""
What is told when a job makes no progress?
"""

from __future__ import annotations

import logging
import socket
import threading

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs

from .._in_time import in_time
from .._io import is_folder
from .._render import Block, Lines, Shown
from .._text import clean
from ..errors import DistdebugError
from ..findings import Cause
from ..processes import Worker, read_state
from ..snapshots import Wanted


@attrs.frozen(kw_only=True)
class HangReason:
    """
    Why somebody is called.

    Attributes:
        kind: ``"wait"`` if a fixed wait is over, whether or not anything is
            wrong, ``"no progress"`` otherwise.

        elapsed_s: How long the watch has lasted, in seconds.

        pids: The processes that are watched.

        stalled: What does not move any more and was not told before, and for
            how many seconds; longest first.
    """

    kind: Literal["wait", "no progress"]
    elapsed_s: float
    pids: tuple[int, ...]
    stalled: tuple[tuple[str, float], ...] = ()

    @property
    def stalled_s(self) -> float:
        """
        For how many seconds nothing moved; 0 if everything does.
        """
        return max((seconds for _, seconds in self.stalled), default=0.0)

    def __str__(self) -> str:
        text = f"{self.elapsed_s:,.0f} s are over"
        if self.stalled:
            name, seconds = self.stalled[0]
            stuck = f"no progress for {seconds:,.0f} s"
            # The one that stands still is seldom to blame.
            if others := len(self.stalled) - 1:
                stuck += f" ({clean(name)} and {others:,} more)"
            text = f"{text}; {stuck}" if self.kind == "wait" else stuck
        return text


class NotYet(NamedTuple):
    """
    There is nothing to tell, or somebody else is about to.

    Attributes:
        seconds: After how many seconds to ask again.

        is_free: Whether this does not count as one more snapshot.
    """

    seconds: float
    is_free: bool = True


@attrs.frozen(kw_only=True)
class Hang(Shown):
    """
    What was found out about a job that makes no progress.

    Attributes:
        reason: Why it was looked at.

        folder: The snapshot.

        data: What it tells, in the layout of the command line's ``--json``.

        report: The same as text.
    """

    reason: HangReason
    folder: Path
    data: Mapping[str, Any]
    report: str = ""

    @property
    def cause(self) -> Cause:
        """
        Why it hangs.
        """
        return Cause(self.data["verdict"]["cause"])

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing was wrong after all, as far as anybody can see.
        """
        return self.cause.is_fine

    @property
    def summary(self) -> str:
        """
        One line, fit for a ticket.
        """
        return clean(self.data["verdict"]["summary"], limit=1000)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, to be sent as JSON.
        """
        return {
            "schema": 1,
            "tool": "distdebug",
            "summary": self.summary,
            "host": socket.gethostname(),
            "folder": str(self.folder),
            "reason": attrs.asdict(self.reason),
            "diagnosis": dict(self.data),
        }

    def _blocks_(self) -> Iterable[Block]:
        verdict = self.data["verdict"]
        sure = verdict.get("confidence")
        lines = [
            f"{self.reason}: {self.summary}",
            f"  cause: {self.cause.value}" + (f" ({sure})" if sure else ""),
        ]
        if verdict.get("remedy"):
            lines.append(f"  next: {clean(verdict['remedy'], limit=1000)}")
        where = clean(str(self.folder / "REPORT.txt"), limit=1000)
        yield Lines([*lines, f"  see {where}"])


Hook = Callable[[Hang], object]


Outcome = Literal["explained", "taken", "elsewhere", "busy", "fine"]


@attrs.frozen(kw_only=True)
class Order:
    """
    What to take when a job makes no progress, and where to.

    Attributes:
        output_dir: The folder; the same on all nodes if they share it.

        wanted: What to take.  Without processes, the workers of the job that
            *inside* belongs to are taken.

        inside: The rank that asks for it; ``None`` if nobody of the job does.

        but: Snapshots that had part in before.

        patience_s: For how many seconds a job may write a checkpoint or
            compile.

        running_s: For how many seconds a rank may compute while the others
            wait for it.
    """

    output_dir: Path
    wanted: Wanted
    inside: int | None = None
    but: frozenset[Path] = frozenset()
    patience_s: float = 1800.0
    running_s: float = 300.0


class Response(NamedTuple):
    """
    What was done.

    Attributes:
        outcome: ``"explained"``; ``"taken"`` if another node explains it;
            ``"elsewhere"`` if another watcher of this node took it already;
            ``"busy"`` if one does so now; ``"fine"`` if nothing hangs.

        summary: Why, in one line.

        bundle: The folder of all nodes, if there is one.

        hang: What was found, if it was explained here.
    """

    outcome: Outcome
    summary: str
    bundle: Path | None = None
    hang: Hang | None = None


_logger = logging.getLogger("distdebug")
_PATIENCE_S = 2.0


def say(
    level: int, text: str, *args: object, error: BaseException | None = None
) -> None:
    """
    Log something; on a thread that is not the main one, in bounded time.

    Args:
        level: How bad it is, as *logging* counts.

        text: What to say, with a ``%s`` for each of *args*.

        args: What to fill in.

        error: Of what to show the traceback.
    """
    log = partial(_logger.log, level, text, *args, exc_info=error)
    if threading.current_thread() is threading.main_thread():
        with suppress(Exception):
            log()
    elif _logger.isEnabledFor(level):
        with suppress(BaseException):
            in_time(log, _PATIENCE_S)


def is_the_end(error: BaseException) -> bool:
    """
    Tell whether an exception is meant to end the program.

    Args:
        error: What was caught.

    Returns:
        Whether it is Ctrl-C, or a wish to exit, on the main thread.  On any
        other, it is a mistake like others, and ends nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


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

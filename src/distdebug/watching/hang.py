"""
Hangs and their handling: reasons, capture requests, responses, and hooks.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs

from .._in_job import program_signals
from .._io import is_folder, make_private_folder
from .._proc import in_time
from .._render import Block, Lines, Shown
from .._text import clean, reason_of
from ..causes import Cause
from ..errors import DistdebugError
from ..processes import Worker, is_private, read_state
from ..snapshots import SnapshotOptions


# What was sent as JSON has lists, texts, and dictionaries.
def _as_pids(pids: Iterable[int]) -> tuple[int, ...]:
    return tuple(pids)


def _as_stalls(
    stalls: Iterable[Iterable[Any]],
) -> tuple[tuple[str, float], ...]:
    return tuple((name, seconds) for name, seconds in stalls)


def _as_folders(paths: Iterable[str | Path]) -> frozenset[Path]:
    return frozenset(map(Path, paths))


def _as_options(
    options: SnapshotOptions | Mapping[str, Any],
) -> SnapshotOptions:
    return (
        SnapshotOptions(**options) if isinstance(options, Mapping) else options
    )


@attrs.frozen(kw_only=True)
class HangReason:
    """
    Why the hang handler is called.

    Attributes:
        kind: ``"wait"`` if a fixed wait is over, whether or not anything is
            wrong, ``"no progress"`` otherwise.

        elapsed_s: How long the watch has lasted, in seconds.

        pids: The watched processes.

        stalled: Names of what has newly stopped moving, and for how many
            seconds; longest first.
    """

    kind: Literal["wait", "no progress"]
    elapsed_s: float
    pids: tuple[int, ...] = attrs.field(converter=_as_pids)
    stalled: tuple[tuple[str, float], ...] = attrs.field(
        default=(), converter=_as_stalls
    )

    @property
    def stalled_s(self) -> float:
        """
        Return the longest stall in seconds; 0 if everything moves.
        """
        return max((seconds for _, seconds in self.stalled), default=0.0)

    def __str__(self) -> str:
        text = f"{self.elapsed_s:,.0f} s are over"
        if self.stalled:
            name, seconds = self.stalled[0]
            stuck = f"no progress for {seconds:,.0f} s"
            # The rank that stalls is seldom the root cause.
            if others := len(self.stalled) - 1:
                stuck += f" ({clean(name)} and {others:,} more)"
            text = f"{text}; {stuck}" if self.kind == "wait" else stuck
        return text


class RetryLater(NamedTuple):
    """
    A response of a hang handler: nothing was reported; call again if needed.

    Attributes:
        seconds: When to call again if nothing has moved by then.

        is_free: Whether this call does not count towards the limit of reports.
    """

    seconds: float
    is_free: bool = True


@attrs.frozen(kw_only=True)
class Hang(Shown):
    """
    The diagnosis of a job that makes no progress.

    Attributes:
        folder: The snapshot.

        data: The snapshot's content, in the layout of the command line's
            ``--json``.

        report: The same as text.

        problem: Why nothing was written; ``""`` if it was.
    """

    reason: HangReason
    folder: Path = attrs.field(converter=Path)
    data: Mapping[str, Any]
    report: str = ""
    problem: str = ""

    @property
    def cause(self) -> Cause:
        """
        Return the cause of the verdict.
        """
        return Cause(self.data["verdict"]["cause"])

    @property
    def is_healthy(self) -> bool:
        """
        Return whether nothing was wrong after all, as far as is known.
        """
        return self.cause.is_fine

    @property
    def summary(self) -> str:
        """
        Return one line, for example for a ticket.
        """
        return clean(self.data["verdict"]["summary"], limit=1000)

    @property
    def message(self) -> str:
        """
        Return the verdict, and where the evidence is, in two lines.
        """
        return hang_message(self.summary, self.folder)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
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
        confidence = verdict.get("confidence")
        lines = [
            f"{self.reason}: {self.summary}",
            f"  cause: {self.cause.value}"
            + (f" ({confidence})" if confidence else ""),
        ]
        if verdict.get("remedy"):
            lines.append(f"  next: {clean(verdict['remedy'], limit=1000)}")
        where = clean(str(self.folder / "REPORT.txt"), limit=1000)
        see = f"see {where}"
        if self.problem:
            see = f"the report could not be written ({self.problem}): {where}"
        yield Lines([*lines, f"  {see}"])


def hang_message(summary: str, folder: Path) -> str:
    """
    Return a verdict, and where its evidence is, in two lines.
    """
    place = clean(os.fspath(folder), limit=400)
    return f"{summary}\n{place} on {clean(socket.gethostname())}"


_PROBE_S = 5.0


def find_output_dir(folder: Path) -> Path:
    """
    Return a folder in which reports can be written, and make it.

    A warning says at once, not when the job hangs, that it is another one.

    Args:
        folder: The folder that is asked for.
    """
    try:
        in_time(partial(_probe, folder), _PROBE_S)
    except (OSError, TimeoutError) as exc:
        other = _temporary_folder()
        log_message(
            logging.WARNING,
            "nothing can be written to %s (%s): reports on hangs go to %s",
            clean(str(folder), limit=1000),
            reason_of(exc),
            other,
        )
        return other
    return folder


def _temporary_folder() -> Path:
    """
    Return a folder of this user alone, the same for all ranks of a node.

    Other users can guess its name, and make it first; then it has a random one.
    """
    folder = Path(tempfile.gettempdir()) / f"distdebug-hangs-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if is_private(opened, os.getuid()):
                return folder
        finally:
            os.close(opened)
    return Path(tempfile.mkdtemp(prefix="distdebug-hangs-"))


def _probe(folder: Path) -> None:
    make_private_folder(folder)
    number, name = tempfile.mkstemp(prefix=".distdebug-", dir=folder)
    os.close(number)
    Path(name).unlink()


Hook = Callable[[Hang], object]


Outcome = Literal["explained", "taken", "elsewhere", "busy", "fine"]


@attrs.frozen(kw_only=True)
class CaptureRequest:
    """
    What to capture when a job makes no progress, and where to put it.

    Attributes:
        output_dir: The folder; the same on all nodes if they share it.

        wanted: The options of the snapshot.  Without PIDs, the workers of the
            job of *inside* are captured.

        inside: The PID of the rank that asks; ``None`` outside of the job.

        but: The snapshots in which this watcher took part before.

        patience_s: How long a checkpoint or compilation is no hang, in
            seconds.

        running_s: How long a rank may compute while the others wait for it, in
            seconds.
    """

    output_dir: Path = attrs.field(converter=Path)
    wanted: SnapshotOptions = attrs.field(converter=_as_options)
    inside: int | None = None
    but: frozenset[Path] = attrs.field(default=(), converter=_as_folders)
    patience_s: float = 1800.0
    running_s: float = 300.0


class Response(NamedTuple):
    """
    The result of a capture request.

    Attributes:
        outcome: ``"explained"``; ``"taken"`` if another node makes the
            diagnosis; ``"elsewhere"`` if another watcher of this node has
            captured it; ``"busy"`` if one is capturing it now; ``"fine"`` if
            nothing hangs.

        summary: The reason in one line.

        bundle: The folder of all nodes, if there is one.

        hang: The diagnosis, if it was made here.
    """

    outcome: Outcome
    summary: str
    bundle: Path | None = None
    hang: Hang | None = None


_logger = logging.getLogger("distdebug")
_LOG_TIMEOUT_S = 2.0


def log_message(
    level: int, text: str, *args: object, error: BaseException | None = None
) -> None:
    """
    Log a message; in bounded time unless on the main thread.

    A logging handler may block together with the job.

    Args:
        level: As of :mod:`logging`.

        text: The message, with a ``%s`` for each of *args*.

        error: The exception whose traceback to log.
    """
    log = partial(_logger.log, level, text, *args, exc_info=error)
    if threading.current_thread() is threading.main_thread():
        with suppress(Exception):
            log()
    elif _logger.isEnabledFor(level):
        with suppress(BaseException):
            in_time(log, _LOG_TIMEOUT_S, may_block=True)


def is_exit_request(error: BaseException) -> bool:
    """
    Return whether an exception is meant to end the program.

    It is, on the main thread, Ctrl-C or ``SystemExit``.  On another thread, it
    is an error like others.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


# In seconds; the other watcher of this node is done by then.
_BUSY_RETRY_S = 30.0
# In seconds; the other node has made its diagnosis by then.
_OTHER_NODE_RETRY_S = 290.0


@attrs.define
class HangHandler:
    """
    Captures a job that makes no progress, and calls hooks.

    Attributes:
        capture: Runs the request, and returns the response.

        hooks: Called if something is wrong; a hook that fails is logged.

        on_result: Called after the hooks with each diagnosis, also if nothing
            is wrong.

        hook_timeout_s: How long to wait for each of them, in seconds; ``None``
            waits for ever.

        hang_count: How often something was wrong.

        failure_count: How often the capture failed.
    """

    request: CaptureRequest
    capture: Callable[[HangReason, CaptureRequest], Response]
    hooks: tuple[Hook, ...] = ()
    on_result: Hook = lambda _hang: None
    hook_timeout_s: float | None = None
    hang_count: int = 0
    failure_count: int = 0

    def __call__(self, reason: HangReason) -> RetryLater | None:
        """
        Capture the job and call the hooks.

        Returns:
            When to call again, if there is nothing to report.
        """
        try:
            response = self.capture(reason, self.request)
        except Exception as error:  # noqa: BLE001 the child may be killed
            log_message(logging.WARNING, "cannot look at the job: %s", error)
            self.failure_count += 1
            return _retry_later(reason)

        if response.outcome == "taken":
            # If the other node has died by then, this one takes over.
            log_message(logging.INFO, "%s", f"{reason}: {response.summary}")
            return RetryLater(_OTHER_NODE_RETRY_S)
        if response.bundle is not None:
            known = self.request.but | {response.bundle}
            self.request = attrs.evolve(self.request, but=known)
        if response.hang is not None:
            self._call_hooks(
                response.hang, is_news=response.outcome == "explained"
            )
        else:
            text = f"{reason}: {response.summary} ({response.outcome})"
            log_message(logging.INFO, "%s", text)
        if response.outcome == "fine":
            return _retry_later(reason)._replace(
                is_free=response.bundle is None
            )
        return (
            RetryLater(_BUSY_RETRY_S) if response.outcome == "busy" else None
        )

    def _call_hooks(self, hang: Hang, *, is_news: bool) -> None:
        is_wrong = is_news and not hang.is_healthy
        self.hang_count += is_wrong
        # on_result comes last: it may write to a pipe that is full.
        for hook in (*(self.hooks if is_wrong else ()), self.on_result):
            self._call_hook(hook, hang)

    def _call_hook(self, hook: Hook, hang: Hang) -> None:
        try:
            if self.hook_timeout_s is None:
                hook(hang)
            else:
                call = partial(_call_for_program, hook, hang)
                in_time(call, self.hook_timeout_s)
        except DistdebugError as error:
            log_message(logging.WARNING, "a hook failed: %s", error)
        except BaseException as error:
            if is_exit_request(error):
                raise
            late = " or did not end in time" * isinstance(error, TimeoutError)
            log_message(logging.WARNING, "a hook failed%s", late, error=error)


def _call_for_program(hook: Hook, hang: Hang) -> None:
    with program_signals():
        hook(hang)


def _retry_later(reason: HangReason) -> RetryLater:
    """
    Check a stall again when it has lasted twice as long.
    """
    return RetryLater(reason.stalled_s or _BUSY_RETRY_S)


_MAX_PAUSE_S = 60.0
_MIN_PAUSE_S = 2.0


class WatchedProcesses:
    """
    The processes that are watched, without those that have ended.

    Args:
        pids: The first processes.

        find: Finds the current workers; ``None`` if no others can join.

        root: The folder to read as ``/proc``.
    """

    def __init__(
        self,
        pids: Iterable[int],
        find: Callable[[], Iterable[Worker]] | None = None,
        *,
        root: str = "/proc",
    ) -> None:
        self._find = find
        self._root = root
        self._next_search = float("-inf")
        self._pause_s = _MIN_PAUSE_S
        self._processes = self._identify(pids)
        self._has_ranks = find is None

    @property
    def is_fixed(self) -> bool:
        """
        Return whether no other process can join.
        """
        return self._find is None

    def refresh(self, now: float) -> tuple[int, ...]:
        """
        Return the PIDs of the processes that exist, sorted.

        Without ranks, each call searches for others; afterwards a search
        follows soon after a change, and at last once a minute.

        Args:
            now: The time in seconds, of a monotonic clock.
        """
        self._processes = {
            pid: started
            for pid, started in self._processes.items()
            if self._is_running(pid, started)
        }
        if self._find is not None and (
            now >= self._next_search
            or not self._processes
            or not self._has_ranks
        ):
            self._merge(self._find())
            self._next_search = now + self._pause_s
        return tuple(sorted(self._processes))

    def _merge(self, found: Iterable[Worker]) -> None:
        before, workers = self._processes, tuple(found)
        ranks = [x.pid for x in workers if x.role == "rank"]
        # Once there are ranks, drop the launcher: it idles while they work.
        if ranks and not self._has_ranks:
            self._processes = {}
        if ranks or not self._has_ranks or not self._processes:
            # A launcher without ranks starts them, or restarts them.
            pids = ranks or [x.pid for x in workers]
            self._processes = self._processes | self._identify(pids)
            self._has_ranks = bool(ranks)
        pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        self._pause_s = pause_s if self._processes == before else _MIN_PAUSE_S

    def _identify(self, pids: Iterable[int]) -> dict[int, int]:
        started = ((pid, self._start_ticks(pid)) for pid in pids)
        return {pid: ticks for pid, ticks in started if ticks is not None}

    def _is_running(self, pid: int, started: int) -> bool:
        state = read_state(pid, self._root)
        if state is None:
            # A dropped process never comes back, so it must not exist any
            # more.  Reading can also fail at the limit of open files.
            return is_folder(f"{self._root}/{pid}")
        return not state.has_ended and state.start_ticks == started

    def _start_ticks(self, pid: int) -> int | None:
        state = read_state(pid, self._root)
        return state.start_ticks if state and not state.has_ended else None

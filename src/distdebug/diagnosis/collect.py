"""
What is there to take from a job on this node, while it still hangs?

Everything that dies with the job: what the ranks recorded, what they do now,
what the node tells.  Nobody is stopped for it, unless native stacks are asked
for.
"""

from __future__ import annotations

import time

from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

import attrs

from .._in_time import in_time
from .._text import clean
from ..bundle.debug_server import keep_debug_server
from ..bundle.dumps import MOST_BYTES, ask_ranks, find_dump_dirs, keep_dumps
from ..bundle.manifest import (
    Manifest,
    NodeEntry,
    NodeStatus,
    write_manifest,
)
from ..bundle.node import keep_facts, keep_tails, own_logs
from ..bundle.options import Wanted
from ..capture.files import write_capture
from ..capture.node import capture_node
from ..findings import Finding, Missing
from ..processes.model import Worker


__all__ = [
    "Collected",
    "Tell",
    "collect_node",
    "keep_manifest",
    "reason_of",
    "version",
]

Tell = Callable[[str, int, int], object]
Source = Callable[[], tuple[Iterable[Path], Iterable[Missing]]]

# A rank that can answer does so at once.
_ANSWER_S = 10.0
_FACTS_S = 25.0
_LEAST_LOGS_S = 5.0
# How much of the time stacks may take: they take longest, and the rest has to
# fit behind them.
_SHARE_OF_STACKS = 0.7
# How much of the rest a debug server may take.
_SHARE_OF_SERVER = 0.8


@attrs.frozen
class Collected:
    """
    What was taken on one node.

    Attributes:
        manifest: What there is, and what is not.

        findings: What the stacks alone tell.
    """

    manifest: Manifest
    findings: tuple[Finding, ...]


@attrs.define
class _Taking:
    """
    What was taken so far.
    """

    folder: Path
    deadline: float
    tell: Tell
    files: list[Path] = attrs.Factory(list)
    missing: list[Missing] = attrs.Factory(list)
    workers: tuple[Worker, ...] = ()
    is_seen: bool = False
    findings: tuple[Finding, ...] = ()
    # How much of dumps may still be kept.
    room: int = MOST_BYTES

    @property
    def left_s(self) -> float:
        """
        How much time is left, in seconds.
        """
        return max(self.deadline - time.monotonic(), 0.0)

    @property
    def pids(self) -> tuple[int, ...]:
        """
        The processes that were looked at.
        """
        return tuple(worker.pid for worker in self.workers)

    def take(self, what: str, source: Source) -> int:
        """
        Take from one source, which may fail alone; and count its files.
        """
        self.tell(what, 0, 1)
        try:
            files, missing = source()
        except Exception as exc:  # noqa: BLE001 the others are worth it
            self.missing.append(Missing(what=what, reason=reason_of(exc)))
            return 0

        before = len(self.files)
        self.files += files
        self.missing += missing
        self.tell(what, 1, 1)
        return len(self.files) - before


def collect_node(
    folder: Path,
    wanted: Wanted,
    *,
    host: str,
    is_one_of_many: bool = False,
    tell: Tell = lambda _stage, _done, _total: None,
) -> Collected:
    """
    Take everything worth having about the job on this node.

    Each part fails alone, and the manifest tells which did.

    Args:
        folder: Where to; it is there already.

        wanted: What to take.

        host: The name of this node.

        is_one_of_many: Whether other nodes take part, whose ranks may put
            their dumps into the same folder: then only those of this node
            are taken, and the manifest is put beside them.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        What was taken.
    """
    start, created = time.monotonic(), time.time()
    taking = _Taking(folder, start + wanted.timeout_s, tell)
    taking.take("stacks", lambda: _stacks(taking, wanted))
    _take_dumps(taking, wanted, is_one_of_many=is_one_of_many)
    if wanted.debug_server:
        _ask_server(taking, wanted.debug_server)
    facts_s = min(_FACTS_S, taking.left_s)
    facts = folder / "node.json"
    taking.take("node", lambda: keep_facts(taking.pids, facts, facts_s))
    taking.take("logs", lambda: _logs(taking, wanted))

    manifest = _manifest(taking, host, created, time.monotonic() - start)
    if is_one_of_many:
        manifest = keep_manifest(folder, manifest)
    return Collected(manifest, taking.findings)


def _logs(
    taking: _Taking, wanted: Wanted
) -> tuple[Iterable[Path], Iterable[Missing]]:
    """
    The logs that were named, and what the workers print into files.
    """

    def keep() -> tuple[Iterable[Path], Iterable[Missing]]:
        named = [Path(log).absolute() for log in wanted.logs]
        found = [log for log in own_logs(taking.pids) if log not in named]
        return keep_tails((*named, *found), taking.folder / "logs")

    most_s = max(taking.left_s, _LEAST_LOGS_S)
    try:
        return in_time(keep, most_s)
    except TimeoutError:
        msg = f"they could not be read within {most_s:.0f} s"
        raise TimeoutError(msg) from None


def keep_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """
    Write a manifest, if that can be done.

    Args:
        folder: Where to.

        manifest: What there is.

    Returns:
        The manifest; it says so if it could not be written.
    """
    try:
        write_manifest(folder, manifest)
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        lost = Missing(what="manifest", reason=reason)
        return attrs.evolve(manifest, skipped=(*manifest.skipped, lost))

    return manifest


def reason_of(exc: Exception) -> str:
    """
    Tell in one line why something failed.

    Args:
        exc: What was raised.

    Returns:
        What a user understands of it.
    """
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror

    if isinstance(exc, MemoryError):  # which says nothing itself
        return "there is not enough memory"
    return clean(f"{type(exc).__name__}: {exc}")


def version() -> str:
    """
    Tell which *distdebug* this is.

    Returns:
        Its version.
    """
    # An import of the package would look like one of all rooms.
    package = import_module(__package__.partition(".")[0])
    return str(package.__version__)


def _stacks(
    taking: _Taking, wanted: Wanted
) -> tuple[Iterable[Path], Iterable[Missing]]:
    capture = capture_node(
        pids=wanted.pids,
        patterns=wanted.patterns,
        native=wanted.native,
        cuda=wanted.cuda,
        timeout_s=max(taking.left_s * _SHARE_OF_STACKS, 1.0),
        tell=taking.tell,
    )
    taking.workers = tuple(process.worker for process in capture.processes)
    taking.is_seen = not capture.is_blind
    taking.findings = capture.findings
    written = write_capture(capture, taking.folder)
    return written.files, written.missing


def _take_dumps(
    taking: _Taking, wanted: Wanted, *, is_one_of_many: bool
) -> None:
    """
    Take what was recorded.

    That is after the looks: who has waited all the time is stuck, and not
    merely early.
    """
    dump_dirs: dict[Path, tuple[str, ...] | None] = {}
    if wanted.dump_dir is None:
        taking.take("folders of dumps", lambda: _told(taking, dump_dirs))
    else:
        dump_dirs[wanted.dump_dir] = None
    ranks = {x.rank for x in taking.workers if x.rank is not None}
    own = ranks if is_one_of_many else None
    for number, (dump_dir, starts) in enumerate(dump_dirs.items(), 1):
        if not taking.left_s:
            lost = "the time was over"
            taking.missing.append(
                Missing(what="dump", reason=lost, source=str(dump_dir))
            )
            continue
        name = (
            "flight_recorder" if number == 1 else f"flight_recorder.{number}"
        )
        # Each may be silent, and the dumps are still to be copied.
        seconds = taking.left_s / (len(dump_dirs) - number + 2)
        place = _Place(dump_dir, starts, taking.folder / name, own)
        _take_dump_dir(taking, place, min(_ANSWER_S, seconds))


@attrs.frozen
class _Place:
    """
    Where dumps are, which they are, and where they go to.
    """

    dump_dir: Path
    starts: tuple[str, ...] | None
    folder: Path
    own: set[int] | None


def _told(
    taking: _Taking, dump_dirs: dict[Path, tuple[str, ...] | None]
) -> tuple[Iterable[Path], Iterable[Missing]]:
    dump_dirs.update(find_dump_dirs(taking.pids))
    return (), ()


def _take_dump_dir(taking: _Taking, place: _Place, seconds: float) -> None:
    taking.take(
        "asking for dumps",
        lambda: (
            (),
            ask_ranks(
                place.dump_dir, seconds, ranks=place.own, starts=place.starts
            ),
        ),
    )
    kept = taking.take(
        "dumps",
        lambda: keep_dumps(
            place.dump_dir,
            place.folder,
            taking.deadline,
            own=place.own,
            starts=place.starts,
            most_bytes=taking.room,
        ),
    )
    taking.room -= sum(map(_size, taking.files[len(taking.files) - kept :]))
    taking.is_seen = taking.is_seen or kept > 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _ask_server(taking: _Taking, address: str) -> None:
    ends = time.monotonic() + taking.left_s * _SHARE_OF_SERVER
    kept = taking.take(
        "debug server",
        lambda: keep_debug_server(address, taking.folder, ends),
    )
    taking.is_seen = taking.is_seen or kept > 0


def _manifest(
    taking: _Taking, host: str, created: float, seconds: float
) -> Manifest:
    jobs = Counter(worker.job for worker in taking.workers if worker.job)
    status: NodeStatus = "partial" if taking.missing else "ok"
    node = NodeEntry(
        host=host,
        status=status if taking.is_seen else "failed",
        seconds=round(seconds, 3),
        files=len(taking.files),
        reason="" if taking.is_seen else "no worker of a job could be seen",
    )
    return Manifest(
        version=version(),
        created=created,
        job=next((job for job, _ in jobs.most_common(1)), ""),
        nodes=(node,),
        skipped=tuple(taking.missing),
    )

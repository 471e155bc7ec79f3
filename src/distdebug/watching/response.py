"""
What is done on this node when a job makes no progress?

First it is looked at, because a job that writes a checkpoint or compiles only
seems to hang.  Then everything is taken into one folder, which all nodes of the
job share if they can.  Whoever made that folder waits for the others, and
explains it.
"""

from __future__ import annotations

import logging
import os
import time
import zlib

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import attrs

from ..capture import capture_node, node_lock
from ..errors import CaptureError, NodeBusyError
from ..findings import Cause, Diagnosis, Finding, Missing
from ..processes import Worker, find_workers, read_environ, workers_of
from ..report import leave_report
from ..snapshots import (
    UNKNOWN,
    Collected,
    Manifest,
    Part,
    Snapshot,
    age_s,
    collect_node,
    count_parts,
    explain_bundle,
    is_done,
    is_taken,
    join_bundle,
    merge_manifests,
    node_name,
    read_parts,
    reason_of,
    take_over,
    version,
)
from .hang import Hang, HangReason, Order, Outcome, Response, say


_LOOK_S = 30.0
# Who does this does not hang, unless for very long.
_SLOW = frozenset({Cause.COMPILING, Cause.CHECKPOINTING})
# So does a long evaluation, and a loop that never ends.
_RUNNING = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})
# A launcher that starts a job again counts how often.
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def find_crew(
    pids: Iterable[int] | None,
    patterns: Iterable[str],
    inside: int | None,
) -> tuple[Worker, ...]:
    """
    Find those to look at.

    Args:
        pids: Exactly these, if there are any.

        patterns: Regular expressions for the command lines of workers.

        inside: The rank that asks: then those of its job, and of no other.

    Returns:
        The processes.
    """
    if pids:
        return tuple(workers_of(pids))
    if inside is None:
        return tuple(find_workers(patterns))

    found = find_workers(patterns, include_ancestors=True)
    mine = [worker for worker in found if worker.pid == inside]
    if not mine:
        return tuple(workers_of([inside]))
    return tuple(x for x in found if _is_together(x, mine[0]))


def _is_together(worker: Worker, mine: Worker) -> bool:
    if worker.job or mine.job:
        return worker.job == mine.job

    # Nothing names their jobs; those who started them tell them apart.
    return mine.pid in {worker.pid, worker.parent_pid} or (
        worker.parent_pid == mine.parent_pid
        and worker.world_size == mine.world_size
    )


def run_of(crew: Iterable[Worker], host: str) -> str:
    """
    Tell this run of a job from other jobs, and from other runs of it.

    Args:
        crew: Its processes on this node.

        host: The name of this node.

    Returns:
        A text that is the same on all nodes if the job has a name.
    """
    ranks = [worker for worker in crew if worker.role == "rank"]
    jobs = sorted({worker.job for worker in ranks if worker.job})
    if not jobs:
        return f"{host}: {sorted(worker.pid for worker in crew)}"

    environ, _ = read_environ(ranks[0].pid)
    attempt = [environ.get(name, "") for name in _ATTEMPT]
    return " ".join(filter(None, [*jobs, *attempt]))


def look_at(crew: Iterable[Worker]) -> tuple[Finding, ...]:
    """
    Look at the stacks, which takes seconds and stops nobody.

    Args:
        crew: The processes.

    Returns:
        What they tell, the verdict first.
    """
    pids = [worker.pid for worker in crew]
    return capture_node(pids=pids, timeout_s=_LOOK_S).findings


def is_fine(
    seen: Finding, stalled_s: float, *, patience_s: float, running_s: float
) -> bool:
    """
    Tell whether nothing hangs, or somebody does what just takes long.

    Args:
        seen: The verdict.

        stalled_s: For how many seconds nothing moved.

        patience_s: How long a checkpoint or a compilation may take.

        running_s: How long a rank may compute while others wait for it.

    Returns:
        Whether there is nothing to tell.
    """
    if seen.cause.is_fine:
        return True

    causes = {seen.cause, seen.detail_cause}
    if causes & _SLOW:
        return stalled_s < patience_s
    return bool(causes & _RUNNING) and stalled_s < running_s


def has_others(crew: Iterable[Worker]) -> bool:
    """
    Tell whether the job may have ranks on other nodes.

    Args:
        crew: Its processes on this one.

    Returns:
        Whether its world is larger, as far as is known.
    """
    known = list(crew)
    here = {x.rank for x in known if x.rank is not None}
    sizes = [x.world_size for x in known if x.world_size is not None]
    return len(here) < max(sizes, default=len(here))


# Others of the job who begin so much later see the same hang.
_WINDOW_S = 400.0
# For how long nobody may have joined before all are taken to be there, and how
# long to wait for those that did.
_SETTLE_S = 30.0
_MOST_S = 180.0
# Whoever made the folder has explained it by then, or is dead.
_DEAD_S = 280.0
_BEAT_S = 1.0

Sleep = Callable[[float], object]


def respond(
    reason: HangReason, order: Order, *, sleep: Sleep = time.sleep
) -> Response:
    """
    Look at a job that makes no progress, and take what it has to tell.

    Only one watcher of a node does so at a time.

    Args:
        reason: Why to look.

        order: What to take.

        sleep: Waits for some seconds.

    Returns:
        What was done.

    Raises:
        OSError: The folder cannot be made.
    """
    # Nodes may share even the folder for temporary files.
    who = f"{node_name()}:{order.output_dir.absolute()}"
    turn = zlib.crc32(os.fsencode(who))
    with ExitStack() as stack:
        try:
            stack.enter_context(node_lock(name=f"distdebug-{turn:08x}"))
        except NodeBusyError:
            return Response("busy", "another watcher of this node looks at it")
        except CaptureError as exc:
            # Twice is better than never.
            say(logging.WARNING, "%s", exc)
        return _respond(reason, order, sleep)


def _respond(reason: HangReason, order: Order, sleep: Sleep) -> Response:
    wanted, host = order.wanted, node_name()
    crew = find_crew(wanted.pids, wanted.patterns, order.inside)
    site = _Site(order, host, run_of(crew, host), crew)
    done = site.taken()
    if done is not None and not _is_left(done, host):
        return Response("elsewhere", "this node has taken it already", done)

    seen = look_at(crew) if reason.kind == "no progress" else ()
    if seen and _is_fine(seen[0], reason, order):
        return Response("fine", seen[0].summary)

    try:
        if done is not None:
            return _told(_explain(done, time.time()), reason, order)
        return _take(site, reason, sleep)
    except OSError as exc:
        # Nothing can be kept, but somebody can be told.
        unkept = _unkept(order, seen or look_at(crew), exc)
        return _told(unkept, reason, order)._replace(bundle=None)


@attrs.frozen
class _Site:
    """
    Where a watcher of this node stands.
    """

    order: Order
    host: str
    run: str
    crew: tuple[Worker, ...]

    def taken(self) -> Path | None:
        """
        The snapshot in which this node has its part already.
        """
        return is_taken(
            self.order.output_dir,
            self.host,
            run=self.run,
            window_s=_WINDOW_S,
            but=self.order.but,
        )

    def join(self) -> Part:
        """
        Take part in the snapshot of the others.
        """
        return join_bundle(
            self.order.output_dir,
            self.host,
            run=self.run,
            window_s=_WINDOW_S,
            but=self.order.but,
        )

    def collect(self, folder: Path) -> Collected:
        """
        Take the part of this node.
        """
        pids = tuple(worker.pid for worker in self.crew)
        wanted = self.order.wanted
        wanted = attrs.evolve(wanted, pids=wanted.pids or pids or None)
        return collect_node(
            folder, wanted, host=self.host, is_one_of_many=True
        )


def _is_left(bundle: Path, host: str) -> bool:
    """
    Whether nobody else explains it, and it is on us.
    """
    if is_done(bundle) or age_s(bundle) < _DEAD_S:
        return False

    return take_over(bundle, host)


def _take(site: _Site, reason: HangReason, sleep: Sleep) -> Response:
    part, created = site.join(), time.time()
    if part.folder is None and not part.is_first:
        summary = "another watcher of this node takes it"
        return Response("elsewhere", summary, part.bundle)

    taken = None if part.folder is None else site.collect(part.folder)
    if part.is_first and has_others(site.crew):
        _await_others(part.bundle, sleep)
    elif not part.is_first and not is_done(part.bundle):
        # Whoever made the folder explains it, when all are there.
        return Response("taken", "another node explains it", part.bundle)

    snapshot = _explain(part.bundle, created, part.folder, taken)
    return _told(snapshot, reason, site.order)


def _told(snapshot: Snapshot, reason: HangReason, order: Order) -> Response:
    verdict = snapshot.diagnosis.verdict
    hang = Hang(
        reason=reason,
        folder=snapshot.folder,
        data=snapshot.to_dict(),
        report=str(snapshot),
    )
    fine = _is_fine(verdict, reason, order)
    outcome: Outcome = "fine" if fine else "explained"
    return Response(outcome, verdict.summary, snapshot.folder, hang)


def _is_fine(seen: Finding, reason: HangReason, order: Order) -> bool:
    return is_fine(
        seen,
        reason.stalled_s,
        patience_s=order.patience_s,
        running_s=order.running_s,
    )


def _await_others(bundle: Path, sleep: Sleep) -> None:
    end = time.monotonic() + _MOST_S
    parts, quiet_s = 0, 0.0
    while time.monotonic() < end:
        done, undone = count_parts(bundle)
        quiet_s = quiet_s + _BEAT_S if done + undone == parts else 0.0
        parts = done + undone
        if not undone and quiet_s >= _SETTLE_S:
            return
        sleep(_BEAT_S)


def _explain(
    bundle: Path,
    created: float,
    folder: Path | None = None,
    own: Collected | None = None,
) -> Snapshot:
    """
    Explain what all nodes took; of our part we know what cannot be read.
    """
    known = {folder.name: own.manifest} if folder and own else {}
    manifest = merge_manifests(
        read_parts(bundle, known=known), version=version(), created=created
    )
    findings = own.findings if own else ()
    snapshot = explain_bundle(bundle, manifest, findings=findings)
    leave_report(snapshot.diagnosis, bundle)
    return snapshot


def _unkept(
    order: Order, findings: tuple[Finding, ...], exc: OSError
) -> Snapshot:
    """
    What is known although the folder cannot be made, or is gone.
    """
    lost = Missing(
        what="snapshot", reason=reason_of(exc), source=str(order.output_dir)
    )
    manifest = Manifest(
        version=version(), created=time.time(), skipped=(lost,)
    )
    verdict = next(iter(findings), UNKNOWN)
    diagnosis = Diagnosis(verdict=verdict, findings=findings, missing=(lost,))
    return Snapshot(order.output_dir, diagnosis, manifest)

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

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs

from ..bundle.folder import (
    Part,
    age_s,
    is_taken,
    join_bundle,
    node_name,
)
from ..bundle.manifest import Manifest, is_done
from ..bundle.mark import take_over
from ..bundle.parts import count_parts, merge_manifests, read_parts
from ..capture.attaching.lock import node_lock
from ..diagnosis.collect import (
    Collected,
    collect_node,
    reason_of,
    version,
)
from ..diagnosis.snapshot import UNKNOWN, Snapshot, explain_bundle
from ..errors import CaptureError, NodeBusyError
from ..findings import Diagnosis, Finding, Missing
from ..processes.model import Worker
from ..report.leaving import leave_report
from .hang import Hang, HangReason
from .log import say
from .order import Order, Outcome, Response
from .suspects import find_crew, has_others, is_fine, look_at, run_of


__all__ = ["respond"]

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

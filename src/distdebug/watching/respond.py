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
from typing import Literal, NamedTuple

import attrs

from ..bundle.folder import MANIFEST, Part, is_taken, join_bundle, node_name
from ..bundle.parts import count_parts, merge_manifests, read_parts
from ..capture.attaching.lock import node_lock
from ..capture.node import capture_node
from ..diagnosis.collect import collect_node, version
from ..diagnosis.snapshot import Snapshot, explain_bundle
from ..diagnosis.wanted import Wanted
from ..errors import CaptureError, NodeBusyError
from ..findings import Cause, Finding
from ..processes.find import find_workers
from ..processes.model import Worker
from ..processes.worker import workers_of
from .hang import Hang, HangReason


__all__ = ["Order", "Response", "respond"]

# How long a look may take, and how soon others may look.
_LOOK_S = 30.0
# Others of the job who begin so much later see the same hang.
_WINDOW_S = 300.0
# For how long nobody may have joined before all are taken to be there, and how
# long to wait for those that did.
_SETTLE_S = 30.0
_MOST_S = 240.0
_BEAT_S = 1.0
# Who does this does not hang, unless for very long.
_SLOW = frozenset({Cause.COMPILING, Cause.CHECKPOINTING})
# So does a long evaluation, and a loop that never ends.
_RUNNING = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})

_logger = logging.getLogger("distdebug")

Outcome = Literal["explained", "taken", "elsewhere", "busy", "fine"]
Sleep = Callable[[float], object]


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
            _logger.warning("%s", exc)
        return _respond(reason, order, sleep)


def _respond(reason: HangReason, order: Order, sleep: Sleep) -> Response:
    folder, but, host = order.output_dir, order.but, node_name()
    done = is_taken(folder, host, window_s=_WINDOW_S, but=but)
    if done is not None:
        return Response("elsewhere", "this node has taken it already", done)

    crew = _crew(order)
    seen = _look(crew) if reason.kind == "no progress" else None
    if seen is not None and _is_fine(seen, reason, order):
        return Response("fine", seen.summary)

    part = join_bundle(folder, host, window_s=_WINDOW_S, but=but)
    if part.folder is None and not part.is_first:
        summary = "another watcher of this node takes it"
        return Response("elsewhere", summary, part.bundle)

    created = time.time()
    findings = _take(part, order, crew, host)
    if part.is_first and _has_others(crew):
        _await_others(part.bundle, sleep)
    elif not part.is_first and not (part.bundle / MANIFEST).exists():
        # Whoever made the folder explains it, when all are there.
        return Response("taken", "another node explains it", part.bundle)

    snapshot = _explain(part.bundle, created, findings)
    return _told(snapshot, reason, order)


def _told(snapshot: Snapshot, reason: HangReason, order: Order) -> Response:
    verdict = snapshot.diagnosis.verdict
    hang = Hang(
        reason=reason,
        folder=snapshot.folder,
        data=snapshot.to_dict(),
        report=str(snapshot),
    )
    is_fine = _is_fine(verdict, reason, order)
    outcome: Outcome = "fine" if is_fine else "explained"
    return Response(outcome, verdict.summary, snapshot.folder, hang)


def _crew(order: Order) -> tuple[Worker, ...]:
    """
    Those to look at: of the job of the rank that asks, and of no other.
    """
    if order.wanted.pids:
        return tuple(workers_of(order.wanted.pids))

    found = tuple(
        find_workers(
            order.wanted.patterns, include_ancestors=order.inside is not None
        )
    )
    mine = [worker for worker in found if worker.pid == order.inside]
    return tuple(x for x in found if not mine or x.job == mine[0].job)


def _pids(order: Order, crew: Iterable[Worker]) -> tuple[int, ...] | None:
    return order.wanted.pids or tuple(worker.pid for worker in crew) or None


def _look(crew: Iterable[Worker]) -> Finding | None:
    pids = [worker.pid for worker in crew]
    findings = capture_node(pids=pids, timeout_s=_LOOK_S).findings
    return findings[0] if findings else None


def _is_fine(seen: Finding, reason: HangReason, order: Order) -> bool:
    """
    Whether nothing hangs, or somebody does what just takes long.
    """
    if seen.cause.is_fine:
        return True

    causes = {seen.cause, seen.detail_cause}
    patience_s = 0.0
    if causes & _SLOW:
        patience_s = order.patience_s
    elif causes & _RUNNING:
        patience_s = order.running_s
    return max((s for _, s in reason.stalled), default=0.0) < patience_s


def _take(
    part: Part, order: Order, crew: Iterable[Worker], host: str
) -> tuple[Finding, ...]:
    """
    Take the part of this node, unless that is there; and what stacks tell.
    """
    if part.folder is None:
        return ()

    wanted = attrs.evolve(order.wanted, pids=_pids(order, crew))
    taken = collect_node(part.folder, wanted, host=host, is_one_of_many=True)
    return taken.findings


def _has_others(crew: Iterable[Worker]) -> bool:
    """
    Whether the job may have ranks on other nodes.
    """
    known = list(crew)
    here = {x.rank for x in known if x.rank is not None}
    sizes = [x.world_size for x in known if x.world_size is not None]
    return len(here) < max(sizes, default=len(here))


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
    bundle: Path, created: float, findings: tuple[Finding, ...]
) -> Snapshot:
    manifest = merge_manifests(
        read_parts(bundle), version=version(), created=created
    )
    return explain_bundle(bundle, manifest, findings=findings)

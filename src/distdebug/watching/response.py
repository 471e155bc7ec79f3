"""
Respond to a hang on this node: sample, take a snapshot, and diagnose it.

First sample the stacks, because a job that writes a checkpoint or compiles
only seems to hang.  Then all nodes of the job write into one bundle, if they
share a folder.  The node that made the bundle waits for the others, and
diagnoses it.
"""

from __future__ import annotations

import logging
import os
import time
import zlib

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from pathlib import Path

import attrs

from ..capture import PATIENCE_S, capture_node, node_lock
from ..causes import Cause
from ..errors import CaptureError, NodeBusyError
from ..findings import Diagnosis, Finding, Missing
from ..processes import Worker, find_workers, find_workers_by_pid, read_environ
from ..report import try_write_report
from ..snapshots import (
    UNKNOWN_VERDICT,
    CollectedNode,
    Manifest,
    SharedBundle,
    Snapshot,
    bundle_age_s,
    collect_node,
    count_parts,
    diagnose_bundle,
    failure_reason,
    is_done,
    merge_manifests,
    node_name,
    read_parts,
    take_over,
)
from .hang import (
    CaptureRequest,
    Hang,
    HangReason,
    Outcome,
    Response,
    log_message,
)


_CAPTURE_S = 40.0
# A launcher counts the restarts of a job there.
_ATTEMPT_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def find_job_processes(
    pids: Iterable[int] | None,
    patterns: Iterable[str],
    inside: int | None,
) -> tuple[Worker, ...]:
    """
    Return the processes to capture.

    Args:
        pids: Exactly these, if there are any.

        patterns: Regular expressions for the command lines of workers.

        inside: The PID of the rank that asks; then only processes of its job.
    """
    if pids:
        return tuple(find_workers_by_pid(pids))
    if inside is None:
        return tuple(find_workers(patterns))

    found = find_workers(patterns, include_ancestors=True)
    own = [worker for worker in found if worker.pid == inside]
    if not own:
        return tuple(find_workers_by_pid([inside]))
    return tuple(x for x in found if _is_same_job(x, own[0]))


def _is_same_job(worker: Worker, own: Worker) -> bool:
    if worker.job or own.job:
        return worker.job == own.job

    # Without job names, the parent process tells jobs apart.
    return own.pid in {worker.pid, worker.parent_pid} or (
        worker.parent_pid == own.parent_pid
        and worker.world_size == own.world_size
    )


def run_id(workers: Iterable[Worker], host: str) -> str:
    """
    Return an identifier of this run of a job.

    Args:
        workers: Its processes on this node.

        host: The name of this node.

    Returns:
        A text that is the same on all nodes if the job has a name.
    """
    ranks = [worker for worker in workers if worker.role == "rank"]
    jobs = sorted({worker.job for worker in ranks if worker.job})
    if not jobs:
        return f"{host}: {sorted(worker.pid for worker in workers)}"

    environ, _ = read_environ(ranks[0].pid)
    attempt = [environ.get(name, "") for name in _ATTEMPT_VARIABLES]
    return " ".join(filter(None, [*jobs, *attempt]))


def capture_stacks(workers: Iterable[Worker]) -> tuple[Finding, ...]:
    """
    Sample the stacks, which takes seconds and stops no process.

    Returns:
        The findings, the verdict first.
    """
    pids = [worker.pid for worker in workers]
    return capture_node(
        pids=pids, patience_s=PATIENCE_S, timeout_s=_CAPTURE_S
    ).findings


def has_other_nodes(workers: Collection[Worker]) -> bool:
    """
    Return whether the job may have ranks on other nodes.

    Args:
        workers: Its processes on this node.
    """
    local_ranks = {x.rank for x in workers if x.rank is not None}
    sizes = [x.world_size for x in workers if x.world_size is not None]
    return len(local_ranks) < max(sizes, default=len(local_ranks))


# In seconds; a node of the job that begins within this time has the same hang.
_WINDOW_S = 400.0
# All nodes count as joined after this time without a new one, in seconds; and
# the longest wait for them.
_SETTLE_S = 30.0
_MAX_WAIT_S = 180.0
# In seconds; the node that made the bundle has diagnosed it by then, or is
# dead.
_TAKE_OVER_S = 280.0
_POLL_S = 1.0

Sleep = Callable[[float], object]


def respond(
    reason: HangReason, request: CaptureRequest, *, sleep: Sleep = time.sleep
) -> Response:
    """
    Sample a job that makes no progress, and take a snapshot if it hangs.

    Only one watcher of a node does so at a time.

    Args:
        sleep: Waits for some seconds.

    Raises:
        OSError: The folder cannot be made.
    """
    # Nodes may share even the temporary folder.
    lock_key = f"{node_name()}:{request.output_dir.absolute()}"
    lock_number = zlib.crc32(os.fsencode(lock_key))
    with ExitStack() as stack:
        try:
            stack.enter_context(node_lock(name=f"distdebug-{lock_number:08x}"))
        except NodeBusyError:
            return Response("busy", "another watcher of this node looks at it")
        except CaptureError as exc:
            # Without a lock, two snapshots are better than none.
            log_message(logging.WARNING, "%s", exc)
        return _respond(reason, request, sleep)


def _respond(
    reason: HangReason, request: CaptureRequest, sleep: Sleep
) -> Response:
    options, host = request.wanted, node_name()
    workers = find_job_processes(
        options.pids, options.patterns, request.inside
    )
    bundle = SharedBundle(
        request.output_dir,
        host,
        run=run_id(workers, host),
        window_s=_WINDOW_S,
        excluded=request.but,
    )
    done = bundle.find_taken()
    if done is not None and not _can_take_over(done, host):
        return Response("elsewhere", "this node has taken it already", done)

    findings = capture_stacks(workers) if reason.kind == "no progress" else ()
    if findings and _is_fine(findings[0], reason, request):
        return Response("fine", findings[0].summary)

    try:
        if done is not None:
            return _response(_explain(done, time.time()), reason, request)
        return _capture(bundle, reason, request, workers, sleep)
    except OSError as exc:
        # Without a folder, the hooks can still get the findings.
        snapshot = _unsaved_snapshot(
            request, findings or capture_stacks(workers), exc
        )
        return _response(snapshot, reason, request)._replace(bundle=None)


def _can_take_over(bundle: Path, host: str) -> bool:
    """
    Return whether the diagnosis is missing, and this node has taken it over.
    """
    if is_done(bundle) or bundle_age_s(bundle) < _TAKE_OVER_S:
        return False

    return take_over(bundle, host)


def _capture(
    shared: SharedBundle,
    reason: HangReason,
    request: CaptureRequest,
    workers: Collection[Worker],
    sleep: Sleep,
) -> Response:
    part, created = shared.join(), time.time()
    if part.folder is None and not part.is_first:
        summary = "another watcher of this node takes it"
        return Response("elsewhere", summary, part.bundle)

    collected = None
    if part.folder is not None:
        pids = request.wanted.pids or tuple(x.pid for x in workers) or None
        options = attrs.evolve(request.wanted, pids=pids)
        collected = collect_node(
            part.folder, options, host=shared.host, is_one_of_many=True
        )
    if part.is_first and has_other_nodes(workers):
        _wait_for_nodes(part.bundle, sleep)
    elif not part.is_first and not is_done(part.bundle):
        # The node that made the bundle diagnoses it.
        return Response("taken", "another node explains it", part.bundle)

    snapshot = _explain(part.bundle, created, part.folder, collected)
    return _response(snapshot, reason, request)


def _response(
    snapshot: Snapshot, reason: HangReason, request: CaptureRequest
) -> Response:
    verdict = snapshot.diagnosis.verdict
    hang = Hang(
        reason=reason,
        folder=snapshot.folder,
        data=snapshot.to_dict(),
        report=str(snapshot),
        problem=next(
            (
                missing.reason
                for missing in snapshot.manifest.skipped
                if missing.what in {"snapshot", "report"}
            ),
            "",
        ),
    )
    fine = _is_fine(verdict, reason, request)
    outcome: Outcome = "fine" if fine else "explained"
    return Response(outcome, verdict.summary, snapshot.folder, hang)


def _is_fine(
    verdict: Finding, reason: HangReason, request: CaptureRequest
) -> bool:
    """
    Return whether nothing hangs, or only a slow operation runs.
    """
    causes = list(filter(None, (verdict.cause, verdict.detail_cause)))
    # The others wait for a rank that works, as far as can be seen.
    is_awaited = Cause.PROGRESSING in causes and bool(verdict.ranks)
    if verdict.cause.is_fine and not is_awaited:
        return True
    if is_awaited or any(c.is_slow for c in causes):
        return reason.stalled_s < request.patience_s
    # A long evaluation looks the same as an endless loop.
    is_computing = any(c.is_computing for c in causes)
    return is_computing and reason.stalled_s < request.running_s


def _wait_for_nodes(bundle: Path, sleep: Sleep) -> None:
    end = time.monotonic() + _MAX_WAIT_S
    parts, quiet_s = 0, 0.0
    while time.monotonic() < end:
        done, undone = count_parts(bundle)
        quiet_s = quiet_s + _POLL_S if done + undone == parts else 0.0
        parts = done + undone
        if not undone and quiet_s >= _SETTLE_S:
            return
        sleep(_POLL_S)


def _explain(
    bundle: Path,
    created: float,
    folder: Path | None = None,
    own: CollectedNode | None = None,
) -> Snapshot:
    """
    Diagnose the parts of all nodes.

    The own manifest replaces one that cannot be read.
    """
    manifests = {folder.name: own.manifest} if folder and own else {}
    manifest = merge_manifests(
        read_parts(bundle, known=manifests),
        created=created,
    )
    findings = own.findings if own else ()
    snapshot = diagnose_bundle(bundle, manifest, findings=findings)
    try_write_report(snapshot.diagnosis, bundle)
    return snapshot


def _unsaved_snapshot(
    request: CaptureRequest, findings: tuple[Finding, ...], exc: OSError
) -> Snapshot:
    """
    Return what is known although the folder cannot be made, or is gone.
    """
    lost = Missing(
        what="snapshot",
        reason=failure_reason(exc),
        source=str(request.output_dir),
    )
    manifest = Manifest(created=time.time(), skipped=(lost,))
    verdict = next(iter(findings), UNKNOWN_VERDICT)
    diagnosis = Diagnosis(verdict=verdict, findings=findings, missing=(lost,))
    return Snapshot(request.output_dir, diagnosis, manifest)

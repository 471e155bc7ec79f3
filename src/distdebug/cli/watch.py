"""
``watch``: run beside a job, and take a snapshot when it makes no progress.
"""

from __future__ import annotations

import sys
import time

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from functools import partial

from .. import processes, snapshots, watching
from .command import (
    PROCESSES,
    command,
    flag,
    group,
    many,
    positive_seconds,
    seconds,
    value,
)
from .output import print_json, warn


@command(
    "watch",
    "take a snapshot when a job makes no progress",
    group(
        "when to look",
        many(
            "--wait-seconds S",
            "look after so many seconds in any case",
            type=positive_seconds,
        ),
        seconds(
            "--floor",
            "a job that moved within so many seconds is not stuck",
            60.0,
        ),
        seconds(
            "--start",
            "the first sign of progress may take so many seconds from the start "
            "of the processes",
            600.0,
        ),
        flag(
            "--until-exit",
            "go on after the last wait until the processes are gone",
        ),
        value(
            "--config FILE",
            "take wait_seconds and output_dir from the debug: section of this "
            "job file (YAML)",
        ),
    ),
    group(
        "what progress is",
        many(
            "--progress FILE",
            "the job makes progress as long as this file, or a file in this "
            "folder, changes",
        ),
        flag(
            "--gpu",
            "the job makes progress as long as its GPUs do something",
        ),
    ),
    group(
        "what to watch, and where to write",
        value(
            "--output-dir DIR",
            "where to put snapshots (default: LOG_DIR/backtraces)",
        ),
        value(
            "--log-dir DIR",
            "folder of the job's logs (default: here)",
            default=".",
        ),
        value(
            "--dump-dir D", "where the ranks put their Flight Recorder dumps"
        ),
        many("--log FILE", "keep the end of it"),
        *PROCESSES,
    ),
    group(
        "where to send alerts",
        many(
            "--on-hang COMMAND",
            "run this command; it reads JSON, and DISTDEBUG_SUMMARY and "
            "DISTDEBUG_FOLDER are set; it is not run by a shell: for pipes "
            "and variables, use sh -c '…'",
        ),
        many("--webhook FILE", "send JSON to the address in this file"),
        value(
            "--notify FILE",
            "send a message to the services in this file, a configuration of "
            "apprise (mail, chats, pagers)",
        ),
        value(
            "--metrics FILE",
            "keep metrics in this file (.prom), for the textfile collector of "
            "node_exporter",
        ),
        value(
            "--metrics-port N",
            "serve metrics for Prometheus on this port of the loopback device",
            type=int,
        ),
        flag(
            "--otel",
            "send hangs and metrics to OpenTelemetry over OTLP, as the "
            "variables OTEL_* say",
        ),
    ),
    flag("--json", "print each snapshot as a line of JSON"),
)
def watch(args: Namespace) -> int:
    """
    Stand beside a job, with no code in it.  When its processes make no
    progress, or when a fixed wait is over, take a snapshot of this node and
    diagnose it.  It may be started before the job, and ends with it.  What
    counts as no progress follows the job's own steps, and the job is looked at
    first, so that a long checkpoint is not called a hang.  Side-cars on several
    nodes that share DIR take one snapshot together.

    Example:
      {prog} watch --output-dir hangs/
      {prog} watch --wait-seconds 1800 --output-dir /logs/backtraces
      {prog} watch --config job.yaml --log-dir /logs
      {prog} watch --progress train.log --on-hang 'scancel 1234' --webhook ~/hook

    Exit status: 0 nothing was wrong; 1 something was; 2 no process could
    be watched, or looked at.
    """

    watching.check_number(args.floor, "--floor", least=0.1)
    config = _config(args)
    with ExitStack() as stack:
        states = [*_states(args)]
        for state in states:
            stack.callback(state.close)
        handler = _handler(args, config, [*_integrated_hooks(args, states)])
        _warn_of_missing(args.pid or ())
        patience = _Patience(args.floor, args.start)
        ending = watching.watch_processes(
            config,
            on_hang=handler,
            tell=patience.tell,
            pids=args.pid or (),
            patterns=args.pattern or (),
            sense=_observed_sense(args, states),
            new_sensor=patience.new_sensor,
            until_exit=args.until_exit or not args.wait_seconds,
            poll_s=watching.default_poll_s(args.floor),
        )
    return _status(args, ending, handler)


def _status(
    args: Namespace, ending: str, handler: watching.HangHandler
) -> int:
    """
    Say what became of the watch, and return the exit status.
    """
    if ending in {"off", "nobody"}:
        none = "no such process" if args.pid else "no worker was found"
        why = "the job file does not enable it" if ending == "off" else none
        warn(f"nothing was watched: {why}")
        return 2

    hangs = handler.hang_count
    is_blind = handler.failure_count and not hangs
    what = {
        "ended": "the processes have ended",
        "interrupted": "the watch was stopped",
    }
    if ending in what:
        times = "once" if hangs == 1 else f"{hangs} times"
        outcome = f"something was wrong {times}"
        if not hangs:
            outcome = "nothing was wrong"
            if ending == "interrupted":
                outcome = "it had seen nothing wrong yet; distdebug snapshot "
                outcome += "looks at the job now"
        if is_blind:
            outcome = "they could not be inspected"
        warn(f"{what[ending]}: {outcome}")
    return 2 if is_blind else int(hangs > 0)


def _config(args: Namespace) -> watching.HangDebugConfig:
    import attrs

    if args.config is not None:
        config = watching.HangDebugConfig.from_file(args.config)
    elif args.wait_seconds:
        config = watching.HangDebugConfig(
            enabled=True, wait_seconds=args.wait_seconds
        )
    else:
        config = watching.ONLY_PROGRESS
    if args.output_dir is None:
        return config

    return attrs.evolve(config, output_dir=args.output_dir)


def _states(args: Namespace) -> Iterator[watching.WatchState]:
    if args.metrics is not None or args.metrics_port is not None:
        from ..integrations.metrics import WatchMetrics

        yield WatchMetrics(args.metrics, port=args.metrics_port)
    if args.otel:
        from ..integrations.otel import WatchTelemetry

        yield WatchTelemetry()


def _integrated_hooks(
    args: Namespace, states: Iterable[watching.WatchState]
) -> Iterator[watching.Hook]:
    yield from (state.on_hang for state in states)
    if args.notify is not None:
        from ..integrations.notify import notify_hook

        yield notify_hook(args.notify)


def _observed_sense(
    args: Namespace, states: Collection[watching.WatchState]
) -> Callable[..., object] | None:
    """
    Return what determines progress, and is shown to the states.
    """
    sense = _sense(args)
    if not states:
        return sense

    inner = sense or partial(watching.switches_by_process, "/proc")

    def observed(pids: tuple[int, ...]) -> object:
        value = inner(pids)
        for state in states:
            state.observe(value)
        return value

    return observed


def _handler(
    args: Namespace,
    config: watching.HangDebugConfig,
    more_hooks: Iterable[watching.Hook],
) -> watching.HangHandler:

    request = watching.CaptureRequest(
        output_dir=watching.find_output_dir(config.resolve(args.log_dir)),
        wanted=snapshots.SnapshotOptions(
            dump_dir=args.dump_dir, logs=args.log or ()
        ),
    )
    hooks = (
        *map(watching.command_hook, args.on_hang or ()),
        *map(watching.webhook_hook, args.webhook or ()),
        *more_hooks,
    )
    return watching.HangHandler(request, _look, hooks, partial(_show, args))


def _sense(args: Namespace) -> Callable[..., object] | None:
    if not (args.progress or args.gpu):
        return None

    files = watching.watch_files(args.progress or ())
    gpu = watching.GpuActivity() if args.gpu else lambda _: None
    return watching.combine_senses(lambda _: files(), gpu)


def _warn_of_missing(pids: Iterable[int]) -> None:

    there = watching.WatchedProcesses(pids).refresh(0.0)
    for pid in pids:
        if pid not in there:
            warn(f"no such process: {pid}")


class _Patience:
    """
    How long processes may make no progress, and what is told of it.

    What a job may take at its start counts from there, not from the watch.
    """

    def __init__(self, floor_s: float, start_s: float) -> None:
        self._floor_s, self._start_s = floor_s, start_s
        self._pids: tuple[int, ...] = ()
        self._was_there = False

    def tell(self, pids: tuple[int, ...]) -> None:
        """
        Print what is watched.
        """
        self._pids = pids
        if pids:
            _tell_whom(pids, self._floor_s, self._left_s())
        elif not self._was_there:
            warn("no process to watch yet")
        self._was_there = self._was_there or bool(pids)

    def new_sensor(self) -> watching.ProgressSensor:
        """
        Make the sensor of one value.
        """
        return watching.ProgressSensor(
            floor_s=self._floor_s, start_s=self._left_s()
        )

    def _left_s(self) -> float:
        """
        Return what is left of the time for the start of the newest process.
        """
        starts = (processes.first_start([pid]) for pid in self._pids)
        known = [start for start in starts if start is not None]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        age_s = now - max(known) if known else 0.0
        return max(0.0, self._start_s - max(0.0, age_s))


def _tell_whom(pids: tuple[int, ...], floor_s: float, left_s: float) -> None:

    try:
        workers = processes.find_workers(include_children=False)
    except Exception:  # noqa: BLE001 their numbers are known
        workers = ()
    known = [worker for worker in workers if worker.pid in pids]
    many = "process" if len(pids) == 1 else "processes"
    at_first = (
        f", until the first progress {left_s:.0f} s (--start)"
        if left_s > floor_s
        else ""
    )
    warn(
        f"watching {len(pids):,} {many}: {_names(pids, known)}; "
        f"no progress for {floor_s:g} s counts{at_first}"
    )


def _names(pids: tuple[int, ...], workers: Iterable[processes.Worker]) -> str:
    from ..ranks import ranks_text

    ranks = {x.rank: x.framework for x in workers if x.rank is not None}
    if not ranks:
        more = ", …" if len(pids) > 8 else ""
        return f"{', '.join(map(str, pids[:8]))}{more}"

    frameworks = set(ranks.values()) - {"pattern"}
    by = f" of {', '.join(sorted(frameworks))}" if frameworks else ""
    return ranks_text(ranks) + by


def _look(
    reason: watching.HangReason, request: watching.CaptureRequest
) -> watching.Response:
    """
    Take a snapshot of exactly the processes that exist now.
    """
    import attrs

    warn(f"{reason}: looking at it")
    wanted = attrs.evolve(request.wanted, pids=reason.pids)
    got = watching.respond(reason, attrs.evolve(request, wanted=wanted))
    if got.hang is None:
        warn(got.summary)
    return got


def _show(args: Namespace, hang: watching.Hang) -> None:
    if args.json:
        print_json(args, dict(hang.data), in_one_line=True)
    else:
        print(hang.report)
    sys.stdout.flush()

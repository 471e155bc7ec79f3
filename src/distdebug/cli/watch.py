"""
``watch``: run beside a job, and take a snapshot when it makes no progress.
"""

from __future__ import annotations

import argparse
import sys

from functools import partial
from typing import TYPE_CHECKING

from .options import (
    Commands,
    add_command,
    add_process_options,
    positive_seconds,
    warn,
)
from .output import print_json


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..processes import Worker
    from ..watching import (
        CaptureRequest,
        Hang,
        HangDebugConfig,
        HangHandler,
        HangReason,
        Hook,
        Response,
    )


def add_when(parser: argparse.ArgumentParser) -> None:
    """
    Add the options about when to check.
    """
    when = parser.add_argument_group("when to look")
    when.add_argument(
        "--wait-seconds",
        action="append",
        type=positive_seconds,
        metavar="S",
        help="look after so many seconds in any case; may be given several "
        "times",
    )
    when.add_argument(
        "--floor",
        type=positive_seconds,
        default=60.0,
        metavar="S",
        help="a job that moved within so many seconds is not stuck "
        "(default: %(default)g)",
    )
    when.add_argument(
        "--start",
        type=positive_seconds,
        default=600.0,
        metavar="S",
        help="the first sign of progress may take so many seconds "
        "(default: %(default)g)",
    )
    when.add_argument(
        "--until-exit",
        action="store_true",
        help="go on after the last wait until the processes are gone",
    )
    when.add_argument(
        "--config",
        metavar="FILE",
        help="take wait_seconds and output_dir from the debug: section of "
        "this job file (YAML)",
    )


def add_progress(parser: argparse.ArgumentParser) -> None:
    """
    Add the options about what counts as progress.
    """
    when = parser.add_argument_group("what progress is")
    when.add_argument(
        "--progress",
        action="append",
        metavar="FILE",
        help="the job makes progress as long as this file, or a file in this "
        "folder, changes; may be given several times",
    )
    when.add_argument(
        "--gpu",
        action="store_true",
        help="the job makes progress as long as its GPUs do something",
    )


def add_what(parser: argparse.ArgumentParser) -> None:
    """
    Add the options about what to watch, and where to write.
    """
    what = parser.add_argument_group("what to watch, and where to write")
    what.add_argument(
        "--output-dir",
        metavar="DIR",
        help="where to put snapshots (default: LOG_DIR/backtraces)",
    )
    what.add_argument(
        "--log-dir",
        default=".",
        metavar="DIR",
        help="folder of the job's logs (default: here)",
    )
    what.add_argument(
        "--dump-dir",
        metavar="D",
        help="where the ranks put their Flight Recorder dumps",
    )
    what.add_argument(
        "--log", action="append", metavar="FILE", help="keep the end of it"
    )
    add_process_options(what)


def add_whom(parser: argparse.ArgumentParser) -> None:
    """
    Add the options about whom to notify.
    """
    tell = parser.add_argument_group("whom to tell if something is wrong")
    tell.add_argument(
        "--on-hang",
        action="append",
        metavar="COMMAND",
        help="run this command; it reads JSON, and DISTDEBUG_SUMMARY and "
        "DISTDEBUG_FOLDER are set; it is not run by a shell: for pipes and "
        "variables, use sh -c '…'",
    )
    tell.add_argument(
        "--webhook",
        action="append",
        metavar="FILE",
        help="send JSON to the address in this file",
    )


_TEXT = """
Stand beside a job, with no code in it.  When its processes make no progress, or
when a fixed wait is over, take a snapshot of this node and diagnose it.  It may
be started before the job, and ends with it.  What counts as no progress follows
the job's own steps, and the job is looked at first, so that a long checkpoint
is not called a hang.  Side-cars on several nodes that share DIR take one
snapshot together.

Example:
  {prog} watch --output-dir hangs/
  {prog} watch --wait-seconds 1800 --output-dir /logs/backtraces
  {prog} watch --config job.yaml --log-dir /logs
  {prog} watch --progress train.log --on-hang 'scancel 1234' --webhook ~/hook

Exit status: 0 nothing was wrong; 1 something was; 2 nobody could be watched, or
looked at.
"""


def add_watch_parser(commands: Commands) -> None:
    """
    Add the command ``watch``.
    """
    parser = add_command(
        commands,
        "watch",
        run,
        help="take a snapshot when a job makes no progress",
        text=_TEXT,
    )
    add_when(parser)
    add_progress(parser)
    add_what(parser)
    add_whom(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print each snapshot as a line of JSON",
    )


def run(args: argparse.Namespace) -> int:
    """
    Watch until the job is over; return 1 if a snapshot found anything.
    """
    from ..watching import (
        HangHandler,
        ProgressSensor,
        check_number,
        default_poll_s,
        watch_processes,
    )

    check_number(args.floor, "--floor", least=0.1)
    config = _config(args)
    handler = HangHandler(
        _order(args, config),
        _look,
        _hooks(args),
        partial(_show, as_json=args.json),
    )
    _warn_of_missing(args.pid or ())
    ending = watch_processes(
        config,
        on_hang=handler,
        tell=_teller(args.floor),
        pids=args.pid or (),
        patterns=args.pattern or (),
        sense=_sense(args),
        new_sensor=partial(
            ProgressSensor, floor_s=args.floor, start_s=args.start
        ),
        until_exit=args.until_exit or not args.wait_seconds,
        poll_s=default_poll_s(args.floor),
    )
    if ending in {"off", "nobody"}:
        nobody = "no such process" if args.pid else "nobody"
        why = "the job file does not enable it" if ending == "off" else nobody
        warn(f"nothing was watched: {why}")
        return 2

    if ending == "ended":
        warn(f"the processes have ended: {_outcome(handler)}")
    return (
        2
        if handler.failure_count and not handler.hang_count
        else int(handler.hang_count > 0)
    )


def _config(args: argparse.Namespace) -> HangDebugConfig:
    import attrs

    from ..watching import ONLY_PROGRESS, HangDebugConfig

    if args.config is not None:
        config = HangDebugConfig.from_file(args.config)
    elif args.wait_seconds:
        config = HangDebugConfig(enabled=True, wait_seconds=args.wait_seconds)
    else:
        config = ONLY_PROGRESS
    if args.output_dir is None:
        return config

    return attrs.evolve(config, output_dir=args.output_dir)


def _order(
    args: argparse.Namespace, config: HangDebugConfig
) -> CaptureRequest:
    from ..snapshots import SnapshotOptions
    from ..watching import CaptureRequest

    return CaptureRequest(
        output_dir=config.resolve(args.log_dir),
        wanted=SnapshotOptions(dump_dir=args.dump_dir, logs=args.log or ()),
    )


def _hooks(args: argparse.Namespace) -> tuple[Hook, ...]:
    from ..watching import command_hook, webhook_hook

    commands = [command_hook(command) for command in args.on_hang or ()]
    return (*commands, *map(webhook_hook, args.webhook or ()))


def _sense(args: argparse.Namespace) -> Callable[..., object] | None:
    if not (args.progress or args.gpu):
        return None

    from ..watching import FilesState, GpuActivity, combine_senses

    files = FilesState(args.progress or ())
    gpu = GpuActivity() if args.gpu else lambda _: None
    return combine_senses(lambda _: files(), gpu)


def _warn_of_missing(pids: Iterable[int]) -> None:
    from ..watching import WatchedProcesses

    there = WatchedProcesses(pids).refresh(0.0)
    for pid in pids:
        if pid not in there:
            warn(f"no such process: {pid}")


def _teller(floor_s: float) -> Callable[[tuple[int, ...]], None]:
    """
    Return a function that prints what is watched.
    """
    was_there = False

    def tell(pids: tuple[int, ...]) -> None:
        nonlocal was_there
        if pids:
            _tell_whom(pids, floor_s)
        elif not was_there:
            warn("nobody is there to be watched yet")
        was_there = was_there or bool(pids)

    return tell


def _tell_whom(pids: tuple[int, ...], floor_s: float) -> None:
    from ..processes import find_workers

    try:
        workers = find_workers(include_children=False)
    except Exception:  # noqa: BLE001 their numbers are known
        workers = ()
    known = [worker for worker in workers if worker.pid in pids]
    many = "process" if len(pids) == 1 else "processes"
    warn(
        f"watching {len(pids):,} {many}: {_names(pids, known)}; "
        f"no progress for {floor_s:g} s counts"
    )


def _names(pids: tuple[int, ...], workers: Iterable[Worker]) -> str:
    from ..ranks import ranks_text

    ranks = {x.rank: x.framework for x in workers if x.rank is not None}
    if not ranks:
        more = ", …" if len(pids) > 8 else ""
        return f"{', '.join(map(str, pids[:8]))}{more}"

    frameworks = set(ranks.values()) - {"pattern"}
    by = f" of {', '.join(sorted(frameworks))}" if frameworks else ""
    return ranks_text(ranks) + by


def _outcome(handler: HangHandler) -> str:
    if handler.hang_count:
        times = (
            "once"
            if handler.hang_count == 1
            else f"{handler.hang_count} times"
        )
        return f"something was wrong {times}"
    return (
        "nobody could look at them"
        if handler.failure_count
        else "nothing was wrong"
    )


def _look(reason: HangReason, order: CaptureRequest) -> Response:
    """
    Take a snapshot of exactly the processes that exist now.
    """
    import attrs

    from ..watching import respond

    warn(f"{reason}: looking at it")
    wanted = attrs.evolve(order.wanted, pids=reason.pids)
    got = respond(reason, attrs.evolve(order, wanted=wanted))
    if got.hang is None:
        warn(got.summary)
    return got


def _show(hang: Hang, *, as_json: bool) -> None:
    if as_json:
        print_json("watch", dict(hang.data), in_one_line=True)
    else:
        print(hang.report)
    sys.stdout.flush()

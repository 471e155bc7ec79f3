"""
``watch``: stand beside a job, and take a snapshot when it makes no progress.
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
    from ..diagnosis.snapshot import Snapshot
    from ..watching.config import HangDebugConfig
    from ..watching.watch import HangReason


__all__ = ["add_parser", "run"]

_TEXT = """
Stand beside a job, with no code in it.  When its processes make no progress, or
when a fixed wait is over, take a snapshot of this node and diagnose it.  It may
be started before the job, and ends with it.  What counts as no progress follows
the job's own steps, so that a long checkpoint is not called a hang.

Example:
  {prog} watch --output-dir hangs/
  {prog} watch --wait-seconds 1800 --output-dir /logs/backtraces
  {prog} watch --config job.yaml --log-dir /logs --dump-dir dumps/

Exit status: 0 nothing was found; 1 something was; 2 nobody could be watched.
"""

# Whoever names no wait wants none; the job is over before this one.
_NEVER_S = 1e9


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "watch",
        run,
        help="take a snapshot when a job makes no progress",
        text=_TEXT,
    )
    _add_when(parser)
    _add_what(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print each snapshot as a line of JSON",
    )


def _add_when(parser: argparse.ArgumentParser) -> None:
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


def _add_what(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
    """
    Watch until the job is over; 1 if a snapshot found anything.
    """
    from ..watching.progress import ProgressSensor
    from ..watching.watch import watch_processes

    config = _config(args)
    found: list[bool] = []
    ending = watch_processes(
        config,
        on_hang=lambda reason: found.append(_look(args, config, reason)),
        pids=args.pid or (),
        patterns=args.pattern or (),
        new_sensor=partial(ProgressSensor, floor_s=args.floor),
        until_exit=args.until_exit or not args.wait_seconds,
        poll_s=min(10.0, args.floor / 4),
    )
    if ending in {"off", "nobody"}:
        why = (
            "the job file does not enable it" if ending == "off" else "nobody"
        )
        warn(f"nothing was watched: {why}")
        return 2

    return int(any(found))


def _config(args: argparse.Namespace) -> HangDebugConfig:
    import attrs

    from ..watching.config import HangDebugConfig

    if args.config is not None:
        config = HangDebugConfig.from_file(args.config)
    else:
        waits = args.wait_seconds or (_NEVER_S,)
        config = HangDebugConfig(enabled=True, wait_seconds=waits)
    if args.output_dir is None:
        return config

    return attrs.evolve(config, output_dir=args.output_dir)


def _look(
    args: argparse.Namespace, config: HangDebugConfig, reason: HangReason
) -> bool:
    """
    Take a snapshot; tell whether anything is wrong.
    """
    from distdebug import snapshot

    warn(f"{reason}: taking a snapshot")
    taken: Snapshot = snapshot(
        config.resolve(args.log_dir),
        dump_dir=args.dump_dir,
        pids=reason.pids,
        logs=args.log or (),
    )
    if args.json:
        print_json("watch", taken.to_dict(), in_one_line=True)
    else:
        print(taken)
    sys.stdout.flush()
    return not taken.diagnosis.is_healthy

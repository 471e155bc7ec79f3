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
    from collections.abc import Callable

    from ..watching.config import HangDebugConfig
    from ..watching.hang import Hang, HangReason, Hook
    from ..watching.respond import Order, Response


__all__ = ["add_parser", "run"]

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
        "--start",
        type=positive_seconds,
        default=600.0,
        metavar="S",
        help="the first sign of progress may take so many seconds "
        "(default: %(default)g)",
    )
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
    tell = parser.add_argument_group("whom to tell if something is wrong")
    tell.add_argument(
        "--on-hang",
        action="append",
        metavar="COMMAND",
        help="run this command; it reads JSON, and DISTDEBUG_SUMMARY and "
        "DISTDEBUG_FOLDER are set",
    )
    tell.add_argument(
        "--webhook",
        action="append",
        metavar="FILE",
        help="send JSON to the address in this file",
    )


def run(args: argparse.Namespace) -> int:
    """
    Watch until the job is over; 1 if a snapshot found anything.
    """
    from ..watching.duty import Duty
    from ..watching.progress import ProgressSensor
    from ..watching.watch import watch_processes

    config = _config(args)
    duty = Duty(
        _order(args, config),
        _look,
        _hooks(args),
        partial(_show, as_json=args.json),
    )
    ending = watch_processes(
        config,
        on_hang=duty,
        pids=args.pid or (),
        patterns=args.pattern or (),
        sense=_sense(args),
        new_sensor=partial(
            ProgressSensor, floor_s=args.floor, start_s=args.start
        ),
        until_exit=args.until_exit or not args.wait_seconds,
        poll_s=min(10.0, args.floor / 4),
    )
    if ending in {"off", "nobody"}:
        why = (
            "the job file does not enable it" if ending == "off" else "nobody"
        )
        warn(f"nothing was watched: {why}")
        return 2

    return 2 if duty.failed and not duty.told else int(duty.told > 0)


def _config(args: argparse.Namespace) -> HangDebugConfig:
    import attrs

    from ..watching.config import ONLY_PROGRESS, HangDebugConfig

    if args.config is not None:
        config = HangDebugConfig.from_file(args.config)
    elif args.wait_seconds:
        config = HangDebugConfig(enabled=True, wait_seconds=args.wait_seconds)
    else:
        config = ONLY_PROGRESS
    if args.output_dir is None:
        return config

    return attrs.evolve(config, output_dir=args.output_dir)


def _order(args: argparse.Namespace, config: HangDebugConfig) -> Order:
    from ..diagnosis.wanted import Wanted
    from ..watching.respond import Order

    return Order(
        output_dir=config.resolve(args.log_dir),
        wanted=Wanted(dump_dir=args.dump_dir, logs=args.log or ()),
    )


def _hooks(args: argparse.Namespace) -> tuple[Hook, ...]:
    from ..watching.hooks import command_hook, webhook_hook

    commands = [command_hook(command) for command in args.on_hang or ()]
    return (*commands, *map(webhook_hook, args.webhook or ()))


def _sense(args: argparse.Namespace) -> Callable[..., object] | None:
    if not (args.progress or args.gpu):
        return None

    from ..watching.senses.gpu import GpuActivity
    from ..watching.senses.sources import FilesState, last_known

    files = FilesState(args.progress or ())
    gpu = GpuActivity() if args.gpu else lambda _: None
    return last_known(lambda _: files(), gpu)


def _look(reason: HangReason, order: Order) -> Response:
    """
    Have exactly those looked at that are there now.
    """
    import attrs

    from ..watching.respond import respond

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

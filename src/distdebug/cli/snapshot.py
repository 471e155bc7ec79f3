"""
``snapshot``: collect everything about a hung job, and diagnose it.
"""

from __future__ import annotations

import argparse

from functools import partial
from typing import TYPE_CHECKING

from .options import (
    Commands,
    add_command,
    add_full_option,
    add_process_options,
    positive_seconds,
)
from .output import print_json, print_result, telling


if TYPE_CHECKING:
    from collections.abc import Callable

    from ..nodes import Engine
    from ..snapshots import Snapshot


_TEXT = """
Take everything worth having about the job on this node into one folder, while
it still hangs: new Flight Recorder dumps of the ranks that record, the stacks
of all workers, facts about the node, and the ends of logs.  Then diagnose it.
Nobody is stopped, unless --native or --cuda is given.

If something is in OUTPUT_DIR already, OUTPUT_DIR.2 is written, and so on.

Example:
  {prog} snapshot hang/
  {prog} snapshot --dump-dir dumps/ --log train.log hang/
  {prog} snapshot --pattern 'my_trainer\\.py' --native hang/
  {prog} snapshot --slurm 1234 /shared/hang/
  {prog} snapshot --ray auto /shared/hang/
  {prog} snapshot --debug-server node-0:25999 hang/

Exit status: 0 all is well; 1 something was found; 2 could not look.
"""


def add_snapshot_parser(commands: Commands) -> None:
    """
    Add the command ``snapshot``.
    """
    parser = add_command(
        commands,
        "snapshot",
        run,
        help="take everything about a job that hangs now, and diagnose it",
        text=_TEXT,
    )
    parser.add_argument(
        "output_dir", metavar="OUTPUT_DIR", help="where to put everything"
    )
    _add_targets(parser)
    parser.add_argument(
        "--native",
        action="store_true",
        help="native stacks too, of one process of each class and of all "
        "outliers; stops each for up to a few seconds",
    )
    parser.add_argument(
        "--cuda",
        action="store_true",
        help="GPU kernels and native stacks of every process by cuda-gdb; "
        "stops each for seconds",
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=120.0,
        metavar="S",
        help="be done with collecting after so many seconds "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON"
    )
    add_full_option(parser)


def _add_targets(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to take")
    _add_places(what)
    what.add_argument(
        "--dump-dir",
        metavar="D",
        help="where the ranks put their Flight Recorder dumps; they are asked "
        "for new ones",
    )
    what.add_argument(
        "--log",
        action="append",
        metavar="FILE",
        help="keep the end of this file; may be given several times",
    )
    add_process_options(what)


def _add_places(what: argparse._ArgumentGroup) -> None:
    where = what.add_mutually_exclusive_group()
    where.add_argument(
        "--here", action="store_true", help="of this node (the default)"
    )
    where.add_argument(
        "--slurm",
        metavar="JOB",
        help="of every node of this Slurm job; OUTPUT_DIR has to be on a file "
        "system that they share",
    )
    where.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="of every node of this Ray cluster, HOST:PORT or 'auto'; "
        "OUTPUT_DIR has to be on a file system that they share",
    )
    where.add_argument(
        "--debug-server",
        metavar="HOST:PORT",
        help="of this node, and of all ranks that this server of "
        "torch.distributed.debug knows",
    )
    what.add_argument(
        "--ray-job",
        metavar="JOB",
        help="with --ray: the job whose runtime environment to use",
    )
    what.add_argument(
        "--container-name",
        metavar="NAME",
        help="with --slurm: enter this pyxis container on each node",
    )


def run(args: argparse.Namespace) -> int:
    """
    Print the diagnosis and the folder; return 1 if anything was found.
    """
    from ..report import try_write_report

    taken = _take(args)
    try_write_report(taken.diagnosis, taken.folder)
    if args.json:
        print_json("snapshot", taken.to_dict())
    else:
        is_fine = taken.diagnosis.is_healthy
        print_result(taken, is_fine=is_fine, full=args.full)
    return 2 if taken.is_blind else int(not taken.diagnosis.is_healthy)


def _how(args: argparse.Namespace) -> Callable[..., Snapshot]:
    """
    Return the engine that reaches the nodes.
    """
    if args.slurm is None and args.ray is None:
        from distdebug import snapshot

        return partial(snapshot, debug_server=args.debug_server or "")

    from ..snapshots import snapshot_everywhere

    return partial(snapshot_everywhere, engine=_engine(args))


def _engine(args: argparse.Namespace) -> Engine:
    if args.ray is not None:
        from ..nodes import Ray

        return Ray(args.ray, job=args.ray_job)

    from ..nodes import Slurm

    return Slurm(job=args.slurm, container_name=args.container_name)


def _take(args: argparse.Namespace) -> Snapshot:
    with telling() as tell:
        return _how(args)(
            args.output_dir,
            dump_dir=args.dump_dir,
            pids=args.pid,
            patterns=args.pattern or (),
            logs=args.log or (),
            native="classes" if args.native else "none",
            cuda=args.cuda,
            timeout_s=args.timeout,
            tell=tell,
        )

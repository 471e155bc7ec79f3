"""
``snapshot``: collect everything about a hung job, and diagnose it.
"""

from __future__ import annotations

from argparse import Namespace

from .command import (
    CONTAINER,
    CUDA,
    FULL,
    JSON,
    NATIVE,
    PROCESSES,
    RAY_JOB,
    command,
    flag,
    group,
    many,
    nodes_engine,
    one_of,
    seconds,
    value,
)
from .output import report, telling


@command(
    "snapshot",
    "take everything about a job that hangs now, and diagnose it",
    value("output_dir", "OUTPUT_DIR", "where to put everything"),
    group(
        "what to take",
        one_of(
            flag("--here", "of this node (the default)"),
            value(
                "--slurm",
                "JOB",
                "of every node of this Slurm job; OUTPUT_DIR has to be on a "
                "file system that they share",
            ),
            value(
                "--ray",
                "ADDRESS",
                "of every node of this Ray cluster, HOST:PORT or 'auto'; "
                "OUTPUT_DIR has to be on a file system that they share",
            ),
            value(
                "--debug-server",
                "HOST:PORT",
                "of this node, and of all ranks that this server of "
                "torch.distributed.debug knows",
            ),
        ),
        RAY_JOB,
        CONTAINER,
        value(
            "--dump-dir",
            "D",
            "where the ranks put their Flight Recorder dumps; they are asked "
            "for new ones",
        ),
        many("--log", "FILE", "keep the end of this file"),
        *PROCESSES,
    ),
    NATIVE,
    CUDA,
    seconds(
        "--timeout", "be done with collecting after so many seconds", 120.0
    ),
    JSON,
    FULL,
)
def snapshot(args: Namespace) -> int:
    """
    Take everything worth having about the job on this node into one folder,
    while it still hangs: new Flight Recorder dumps of the ranks that record,
    the stacks of all workers, facts about the node, and the ends of logs.  Then
    diagnose it.  Nobody is stopped, unless --native or --cuda is given.

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
    from functools import partial

    from .. import snapshot as take
    from ..report import try_write_report
    from ..snapshots import snapshot_everywhere

    engine = nodes_engine(args)
    how = (
        partial(take, debug_server=args.debug_server or "")
        if engine is None
        else partial(snapshot_everywhere, engine=engine)
    )
    with telling() as tell:
        taken = how(
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
    try_write_report(taken.diagnosis, taken.folder)
    status = report(args, taken, is_fine=taken.diagnosis.is_healthy)
    return 2 if taken.is_blind else status

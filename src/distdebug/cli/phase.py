"""
``phase``: in which phase of its start-up is this job, and is that too long?
"""

from __future__ import annotations

import argparse
import time

from pathlib import Path

from .options import Commands, add_command, add_full_option
from .output import print_json, print_result, waiting


_TEXT = """
Read the log of a job (of its driver, and those of its workers, if you like)
and say which phase of its start-up it is in, how far that is, for how long
nothing was printed, and whether that is normal there.  TorchSpec, NeMo RL,
verl, slime, OpenRLHF, SkyRL, vLLM, SGLang, torchtitan, Megatron-LM, and
Hugging Face's trainers are known; --rules adds others.

Example:
  {prog} phase train.log
  {prog} phase --ended train.log    of a job that is over
  {prog} phase --rules my.toml train.log workers/

Exit status: 0 all is as it should be; 1 something is wrong, or takes too long;
2 could not look.
"""


def add_phase_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "phase",
        run,
        help="in which phase is a job, and does that take too long?",
        text=_TEXT,
    )
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="a log, or a folder of logs, of one job",
    )
    parser.add_argument(
        "--framework",
        metavar="NAME",
        help="whose logs they are; by default what they show",
    )
    parser.add_argument(
        "--rules",
        action="append",
        metavar="FILE",
        help="a book of phases of your own; may be given several times",
    )
    parser.add_argument(
        "--ended",
        action="store_true",
        help="the job does not run any more: do not judge its silence",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON"
    )
    add_full_option(parser)


def run(args: argparse.Namespace) -> int:
    """
    Print the phase; 1 if anything is wrong.
    """
    from ..logs import detect_phase

    with waiting("reading logs"):
        report = detect_phase(
            # A text that names no file is none of the lines of a log.
            [Path(log) for log in args.logs],
            now=None if args.ended else time.time(),
            framework=args.framework,
            rules=args.rules or (),
        )
    status = int(any(not f.cause.is_fine for f in report.findings))
    if args.json:
        print_json("phase", report.to_dict())
    else:
        print_result(report, is_fine=not status, full=args.full)
    return status

"""
``timeline``: how do the calls of all ranks look side by side in time?
"""

from __future__ import annotations

import argparse

from .options import (
    RANKS_HELP,
    Commands,
    add_command,
    chosen_groups,
    chosen_ranks,
    job_mesh,
    output_file,
    positive_count,
)
from .output import print_json, print_result, telling


_TEXT = """
Draw every call of every rank from Flight Recorder dumps into one file, which
https://ui.perfetto.dev opens (it stays on your machine), and chrome://tracing.
Each rank is a process, each group a track, each call a slice; arrows lead from
the last rank to arrive to those that waited.

Example:
  {prog} timeline dumps/
  {prog} timeline dumps/ -o step.json.gz --last 200
  {prog} timeline dumps/ --ranks 'ranks(pp=0)' --groups mesh_dp

Exit status: 0 the file is written; 2 it could not be.
"""


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "timeline",
        run,
        help="draw the calls of all ranks in time, for Perfetto",
        text=_TEXT,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a dump, or a folder that is searched with all that is in it",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        default="timeline.json.gz",
        metavar="FILE",
        help="where to write it: *.json.gz, *.json, or *.pftrace, which needs "
        "the package perfetto (default: %(default)s)",
    )
    _add_choices(parser)
    parser.add_argument(
        "--json", action="store_true", help="print what was drawn as JSON"
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to draw")
    what.add_argument("--ranks", metavar="RANKS", help=RANKS_HELP)
    what.add_argument(
        "--groups",
        action="append",
        metavar="GROUPS",
        help="process groups by name or description, with commas",
    )
    what.add_argument(
        "--last",
        type=positive_count,
        metavar="N",
        help="only the newest N calls of each rank",
    )
    what.add_argument(
        "--stack-traces",
        action="store_true",
        help="the line of code of each call, too; dumps are read twice",
    )


def run(args: argparse.Namespace) -> int:
    """
    Write the timeline, and print what is in it.
    """
    from pathlib import Path

    from distdebug import read_dumps, write_timeline

    with telling() as tell:
        dumps = read_dumps(
            map(Path, args.paths),
            progress=lambda done, total: tell("reading dumps", done, total),
        )
        known = max(dumps.ranks, default=-1) + 1
        timeline = write_timeline(
            dumps,
            args.output,
            ranks=chosen_ranks(
                args.ranks, job_mesh(dumps), dumps.world_size or known
            ),
            groups=chosen_groups(args.groups, dumps),
            last=args.last,
            stack_traces=args.stack_traces,
            tell=tell,
        )
    if args.json:
        print_json("timeline", timeline.to_dict())
    else:
        print_result(timeline, is_fine=True)
    return 0

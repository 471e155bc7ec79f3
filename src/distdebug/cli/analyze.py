"""
``analyze``: what do Flight Recorder dumps say?
"""

from __future__ import annotations

import argparse
import json

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from .options import (
    RANKS_HELP,
    Commands,
    add_command,
    add_full_option,
    chosen_groups,
    chosen_ranks,
    job_mesh,
)
from .output import counting, print_json, print_result


if TYPE_CHECKING:
    from ..flight_recorder import EntryRow


_TEXT = """
Analyze Flight Recorder dumps alone, or list every call that they hold.
All dumps are always read; --ranks and --groups choose what is told.

Example:
  {prog} analyze dumps/
  {prog} analyze dumps/ --ranks 'ranks(tp=0)' --groups mesh_dp
  {prog} analyze dumps/ --entries --stack-traces --ranks 3
"""

_HEADERS = (
    *("record", "group", "call", "state", "in", "out"),
    *("at ms", "took ms"),
)


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "analyze",
        run,
        help="analyze Flight Recorder dumps, or list their calls",
        text=_TEXT,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a dump, or a folder that is searched with all that is in it",
    )
    parser.add_argument("--ranks", metavar="RANKS", help=RANKS_HELP)
    parser.add_argument(
        "--groups",
        action="append",
        metavar="GROUPS",
        help="process groups by name or description, with commas",
    )
    parser.add_argument(
        "--entries",
        action="store_true",
        help="list every call of every rank instead of a report",
    )
    parser.add_argument(
        "--stack-traces",
        action="store_true",
        help="with --entries: the Python stack of each call",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON; with --entries, one line per call",
    )
    add_full_option(parser)


def run(args: argparse.Namespace) -> int:
    """
    Print a report, 1 if anything was found; or the entries.
    """
    from pathlib import Path

    from distdebug import analyze_dumps, read_dumps

    with counting("reading dumps") as progress:
        dumps = read_dumps(map(Path, args.paths), progress=progress)
    known = max(dumps.ranks, default=-1) + 1
    ranks = chosen_ranks(
        args.ranks, job_mesh(dumps), dumps.world_size or known
    )
    groups = chosen_groups(args.groups, dumps)
    if args.entries or args.stack_traces:
        from ..flight_recorder import entry_rows

        rows = entry_rows(
            dumps, ranks=ranks, groups=groups, stack_traces=args.stack_traces
        )
        (_print_json_lines if args.json else _print_tables)(rows)
        return 0

    diagnosis = analyze_dumps(dumps, ranks=ranks, groups=groups).to_diagnosis()
    if args.json:
        print_json("analyze", diagnosis.to_dict())
    else:
        print_result(diagnosis, is_fine=diagnosis.is_healthy, full=args.full)
    return int(not diagnosis.is_healthy)


def _print_json_lines(rows: Iterable[EntryRow]) -> None:
    for row in rows:
        print(json.dumps(row.to_dict()))


def _print_tables(rows: Iterable[EntryRow]) -> None:
    for i, (rank, members) in enumerate(groupby(rows, lambda r: r.rank)):
        if i:
            print()
        print(f"rank {rank}")
        _print_table(list(members))


def _print_table(rows: Sequence[EntryRow]) -> None:
    start = min(row.created_ns for row in rows)
    table = [_HEADERS, *(_cells(row, start) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells, row in zip(table, [None, *rows], strict=True):
        print("  ".join(map(str.ljust, cells, widths)).rstrip())
        for frame in row.frames if row else ():
            print(f"    {frame}")


def _cells(row: EntryRow, start_ns: int) -> tuple[str, ...]:
    return (
        str(row.record),
        f"{row.group}: {row.desc}" if row.desc else row.group,
        f"{row.op} {'p2p ' if row.p2p else ''}#{row.seq}",
        row.state,
        row.inputs or "-",
        row.outputs or "-",
        f"{(row.created_ns - start_ns) / 1e6:.3f}",
        "-" if row.took_ms is None else f"{row.took_ms:.3f}",
    )

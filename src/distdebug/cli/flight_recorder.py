"""
``analyze``, ``timeline``, ``dump``, ``env``: commands about the Flight Recorder.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .options import (
    RANKS_HELP,
    Commands,
    add_command,
    add_full_option,
    chosen_groups,
    chosen_ranks,
    job_mesh,
    output_file,
    positive_count,
    positive_seconds,
    warn,
)
from .output import counting, print_json, print_result, telling


if TYPE_CHECKING:
    from ..flight_recorder import DumpRequest, EntryRow


_ANALYZE_TEXT = """
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


def add_analyze_parser(commands: Commands) -> None:
    """
    Add the command ``analyze``.
    """
    parser = add_command(
        commands,
        "analyze",
        run_analyze,
        help="analyze Flight Recorder dumps, or list their calls",
        text=_ANALYZE_TEXT,
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


def run_analyze(args: argparse.Namespace) -> int:
    """
    Print the report and return 1 if anything was found; or print the entries.
    """
    from pathlib import Path

    from .. import analyze_dumps, read_dumps

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


_DUMP_TEXT = """
Ask the ranks of a running job on this node for their dumps; training goes on.
They have to record: see distdebug.enable_flight_recorder(), or the command env.

Example:
  {prog} dump dumps/
  {prog} dump --pipe /tmp/my_nccl_pipe_ --ranks 0-7

Exit status: 0 all ranks were reached; 1 some were not; 2 none was.
"""

# No node has more ranks; a larger number is a typing error.
_MOST_RANKS = 1 << 16


def add_dump_parser(commands: Commands) -> None:
    """
    Add the command ``dump``.
    """
    parser = add_command(
        commands,
        "dump",
        run_dump,
        help="have a running job write its dumps",
        text=_DUMP_TEXT,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "path", nargs="?", metavar="PATH", help="folder of the dumps"
    )
    where.add_argument(
        "--pipe",
        metavar="PREFIX",
        help="what TORCH_NCCL_DEBUG_INFO_PIPE_FILE is in the job",
    )
    parser.add_argument("--ranks", metavar="RANKS", help=RANKS_HELP)
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=10.0,
        metavar="S",
        help="seconds to wait for the answers (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the answers as JSON"
    )


def run_dump(args: argparse.Namespace) -> int:
    """
    Ask the ranks for their dumps, and print which were written.
    """
    from .. import request_dumps
    from .._text import text_table
    from ..errors import DistdebugError

    where = args.pipe or args.path
    if args.path and not Path(args.path).is_dir():
        msg = f"there is no folder {args.path}"
        raise DistdebugError(msg, remedy="name the dump_dir of the job")

    rows = request_dumps(
        where, ranks=_ranks(args.ranks, Path(where)), timeout_s=args.timeout
    )
    if not rows:
        msg = f"no rank listens at {where}"
        raise DistdebugError(
            msg,
            remedy="run it on the node of the job, with its dump_dir; "
            "the job has to call distdebug.enable_flight_recorder()",
        )

    if args.json:
        print_json("dump", {"ranks": [row.to_dict() for row in rows]})
    else:
        print(
            text_table(
                ("rank", "answer", "file", "why"), map(_dump_cells, rows)
            )
        )
    return _status(rows)


def _ranks(text: str | None, where: Path) -> tuple[int, ...] | None:
    if text is None:
        return None

    from ..ranks import parse_rank_option

    mesh, world_size = _shape(where)
    if parse_rank_option(text).by_rank:
        # Ranks without a process are named as well, and reported as absent.
        world_size = _MOST_RANKS
    return chosen_ranks(text, mesh, world_size)


def _shape(folder: Path) -> tuple[dict[str, int], int]:
    """
    Return mesh and size of the job, as far as its sidecars have them.
    """
    from ..flight_recorder import SIDECAR_SUFFIX, read_sidecar

    mesh: dict[str, int] = {}
    world_size = 0
    for path in sorted(folder.glob(f"*{SIDECAR_SUFFIX}")):
        try:
            sidecar = read_sidecar(path)
        except (OSError, ValueError):
            continue
        mesh, world_size = dict(sidecar.mesh) or mesh, sidecar.world_size
    return mesh, world_size


def _dump_cells(row: DumpRequest) -> tuple[object, ...]:
    rank = "?" if row.rank is None else row.rank
    return rank, row.status, row.path, row.reason


def _status(rows: Sequence[DumpRequest]) -> int:
    reached = sum(row.status in {"dumped", "asked"} for row in rows)
    if reached == len(rows):
        return 0

    return 1 if reached else 2


_ENV_TEXT = """
Print shell commands that switch on PyTorch's Flight Recorder, for jobs whose
code cannot call distdebug.enable_flight_recorder().  What is set already stays
as it is.  The folder for the dumps is made.

Example:
  eval "$({prog} env --dump-dir dumps)" && torchrun train.py
"""


def add_env_parser(commands: Commands) -> None:
    """
    Add the command ``env``.
    """
    parser = add_command(
        commands,
        "env",
        run_env,
        help="print what to export so that a job records",
        text=_ENV_TEXT,
    )
    _add_recording_options(parser)
    debugger = parser.add_argument_group("to debug instead of to record")
    debugger.add_argument(
        "--debugger",
        action="store_true",
        help="print what lets the ranks be debugged, and nothing else",
    )
    debugger.add_argument(
        "--post-mortem",
        action="store_true",
        help="with --debugger: a rank that fails waits to be looked at",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print every variable, what becomes of it, and why, as JSON",
    )


def _add_recording_options(parser: argparse.ArgumentParser) -> None:
    recording = parser.add_argument_group("what to record")
    recording.add_argument(
        "--dump-dir", metavar="DIR", help="folder of the dumps"
    )
    recording.add_argument(
        "--buffer-size",
        type=int,
        default=2000,
        metavar="N",
        help="how many calls to remember (default: %(default)s)",
    )
    recording.add_argument(
        "--no-dump-on-timeout",
        action="store_true",
        help="do not dump when a call times out",
    )
    recording.add_argument(
        "--cpp-stacks", action="store_true", help="note C++ stacks as well"
    )
    recording.add_argument(
        "--timing", action="store_true", help="note when calls start"
    )
    recording.add_argument(
        "--override",
        action="store_true",
        help="change also what is set already",
    )
    recording.add_argument(
        "--torch",
        metavar="VERSION",
        help="version of torch in the job (default: the one installed here, "
        "or else all)",
    )


def run_env(args: argparse.Namespace) -> int:
    """
    Print the exports.
    """
    if args.debugger:
        return _of_debugger(args)

    from ..errors import DistdebugError

    if args.post_mortem:
        msg = "--post-mortem goes with --debugger"
        raise DistdebugError(msg, remedy="see env --help")

    from ..flight_recorder import make_folder, plan_flight_recorder

    try:
        settings = plan_flight_recorder(
            os.environ,
            args.torch or _installed_torch(),
            dump_dir=args.dump_dir,
            buffer_size=args.buffer_size,
            dump_on_timeout=not args.no_dump_on_timeout,
            cpp_stacks=args.cpp_stacks,
            timing=args.timing,
            override=args.override,
        )
    except ValueError as exc:
        raise DistdebugError(str(exc), remedy="see env --help") from exc

    make_folder(settings.dump_dir)
    for warning in settings.warnings:
        warn(warning)
    if args.json:
        print_json("env", settings.to_dict())
    else:
        print(settings.to_exports(), end="")
    return 0


def _of_debugger(args: argparse.Namespace) -> int:
    from ..debugger import job_environment

    variables = job_environment(post_mortem=args.post_mortem)
    if args.json:
        print_json("env", {"variables": variables})
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


def _installed_torch() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None


_TIMELINE_TEXT = """
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


def add_timeline_parser(commands: Commands) -> None:
    """
    Add the command ``timeline``.
    """
    parser = add_command(
        commands,
        "timeline",
        run_timeline,
        help="draw the calls of all ranks in time, for Perfetto",
        text=_TIMELINE_TEXT,
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


def run_timeline(args: argparse.Namespace) -> int:
    """
    Write the timeline, and print a summary.
    """
    from pathlib import Path

    from .. import read_dumps, write_timeline

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

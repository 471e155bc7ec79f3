"""
``analyze``, ``replay``, ``timeline``, ``dump``, ``env``: commands about the recorder.
"""

from __future__ import annotations

import json
import os
import shlex

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import distdebug

from .. import debugger, flight_recorder
from .._io import matching, output_to, write_whole
from .._text import clean
from ..errors import DistdebugError
from .command import (
    EVIDENCE,
    FULL,
    GROUPS,
    JSON,
    RANKS,
    clean_up_on_signals,
    command,
    flag,
    group,
    one_of,
    output_file,
    positive_count,
    seconds,
    torch_version,
    value,
)
from .output import counting, print_json, remark, report, telling, warn


_HEADERS = (
    *("record", "group", "call", "state", "in", "out"),
    *("at ms", "took ms"),
)


@command(
    "analyze",
    "analyze Flight Recorder dumps, or list their calls",
    EVIDENCE,
    RANKS,
    GROUPS,
    flag("--entries", "list every call of every rank instead of a report"),
    flag("--stack-traces", "with --entries: the Python stack of each call"),
    flag("--json", "print JSON; with --entries, one line per call"),
    FULL,
)
def analyze(args: Namespace) -> int:
    """
    Analyze Flight Recorder dumps alone, or list every call that they hold.
    All dumps are always read; --ranks and --groups choose what is shown.

    Example:
      {prog} analyze dumps/
      {prog} analyze dumps/ --ranks 'ranks(tp=0)' --groups mesh_dp
      {prog} analyze dumps/ --entries --stack-traces --ranks 3
    """

    with counting("reading dumps") as progress:
        dumps = distdebug.read_dumps(map(Path, args.paths), progress=progress)
    ranks, groups = args.ranks, _groups_of(args, dumps)
    if args.entries or args.stack_traces:
        rows = flight_recorder.entry_rows(
            dumps, ranks=ranks, groups=groups, stack_traces=args.stack_traces
        )
        for line in (_json_lines if args.json else _tables)(rows):
            print(line)
        return 0

    flight_recorder.check_readable(dumps)
    diagnosis = distdebug.analyze_dumps(
        dumps, ranks=ranks, groups=groups
    ).to_diagnosis()
    return report(args, diagnosis, is_fine=diagnosis.is_healthy)


def _json_lines(rows: Iterable[flight_recorder.EntryRow]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row.to_dict())


def _tables(rows: Iterable[flight_recorder.EntryRow]) -> Iterator[str]:
    for i, (rank, members) in enumerate(groupby(rows, lambda r: r.rank)):
        if i:
            yield ""
        yield f"rank {rank}"
        yield from _table(list(members))


def _table(rows: Sequence[flight_recorder.EntryRow]) -> Iterator[str]:
    start = min(row.created_ns for row in rows)
    table = [_HEADERS, *(_cells(row, start) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells, row in zip(table, [None, *rows], strict=True):
        yield "  ".join(map(str.ljust, cells, widths)).rstrip()
        for frame in row.frames if row else ():
            yield f"    {frame}"


def _cells(row: flight_recorder.EntryRow, start_ns: int) -> tuple[str, ...]:
    from ..findings import described

    desc = described(row.desc)
    return (
        str(row.record),
        f"{row.group}: {desc}" if desc else row.group,
        f"{row.op} {'p2p ' if row.p2p else ''}#{row.seq}",
        row.state,
        row.inputs or "-",
        row.outputs or "-",
        f"{(row.created_ns - start_ns) / 1e6:.3f}",
        "-" if row.took_ms is None else f"{row.took_ms:.3f}",
    )


def _groups_of(
    args: Namespace, dumps: flight_recorder.Dumps
) -> tuple[str, ...] | None:
    """
    Return the process groups that the options select; ``None`` without one.

    Raises:
        DistdebugError: There is no such group.
    """
    if args.groups is None:
        return None

    names = tuple(
        name.strip()
        for text in args.groups
        for name in text.split(",")
        if name
    )
    known = {part for group in dumps.groups for part in group if part}
    if unknown := [name for name in names if name not in known]:
        msg = f"there is no process group {', '.join(map(repr, unknown))}"
        there = ", ".join(sorted(known)) or "none"
        raise DistdebugError(msg, remedy=f"there are: {there}")

    return names


@command(
    "dump",
    "have a running job write its dumps",
    one_of(
        value("path PATH", "folder of the dumps", nargs="?"),
        value(
            "--pipe PREFIX",
            "what TORCH_NCCL_DEBUG_INFO_PIPE_FILE is in the job",
        ),
        required=True,
    ),
    RANKS,
    seconds("--timeout", "seconds to wait for the answers", 10.0),
    JSON,
)
def dump(args: Namespace) -> int:
    """
    Ask the ranks of a running job on this node for their dumps; training goes
    on.  They have to record: see distdebug.enable_flight_recorder(), or the
    command env.

    Example:
      {prog} dump dumps/
      {prog} dump --pipe /tmp/my_nccl_pipe_ --ranks 0-7

    Exit status: 0 all ranks were reached; 1 some were not; 2 none was.
    """
    from .._render import Table
    from ..flight_recorder import SIDECAR_SUFFIX

    where = args.pipe or args.path
    if args.path and not Path(args.path).is_dir():
        msg = f"there is no folder {args.path}"
        raise DistdebugError(msg, remedy="name the dump_dir of the job")

    rows = distdebug.request_dumps(
        where,
        ranks=args.ranks,
        timeout_s=args.timeout,
    )
    if not rows:
        msg = f"no rank listens at {where}"
        remedy = (
            "run it on the node of the job, with its dump_dir; the job has to "
            "call distdebug.enable_flight_recorder()"
        )
        if args.path and matching(args.path, f"*{SIDECAR_SUFFIX}"):
            remedy = (
                "the ranks have ended, or run on another node; what they left: "
                f"distdebug diagnose {args.path}"
            )
        raise DistdebugError(msg, remedy=remedy)

    reached = sum(row.status in {"dumped", "asked"} for row in rows)
    headers = ("rank", "answer", "file", "why")
    table = Table(headers, list(map(_dump_cells, rows)), len(rows))
    status = report(
        args,
        [table],
        is_fine=reached == len(rows),
        data={"ranks": [row.to_dict() for row in rows]},
    )
    return status if reached else 2


def _dump_cells(row: flight_recorder.DumpRequest) -> tuple[object, ...]:
    rank = "?" if row.rank is None else row.rank
    return rank, row.status, row.path, row.reason


@command(
    "env",
    "print what to export so that a job records",
    group(
        "what to record",
        value("--dump-dir DIR", "folder of the dumps"),
        value(
            "--buffer-size N",
            "how many calls to remember (default: %(default)s)",
            type=int,
            default=2000,
        ),
        flag("--no-dump-on-timeout", "do not dump when a call times out"),
        flag("--cpp-stacks", "note C++ stacks as well"),
        flag("--timing", "note when calls start"),
        flag("--override", "change also what is set already"),
        value(
            "--torch VERSION",
            "version of torch in the job (default: the one installed here, or "
            "else all)",
            type=torch_version,
        ),
    ),
    group(
        "to debug instead of to record",
        flag(
            "--debugger",
            "print what lets the ranks be debugged, and nothing else",
        ),
        flag(
            "--post-mortem",
            "with --debugger: a rank that fails waits for a debugger",
        ),
    ),
    flag(
        "--json",
        "print every variable, what becomes of it, and why, as JSON",
    ),
)
def env(args: Namespace) -> int:
    """
    Print shell commands that switch on PyTorch's Flight Recorder, for jobs
    whose code cannot call distdebug.enable_flight_recorder().  What is set
    already stays as it is.  The folder for the dumps is made.

    Example:
      eval "$({prog} env --dump-dir dumps)" && torchrun train.py
    """
    if args.debugger:
        return _debugger_env(args)

    if args.post_mortem:
        msg = "--post-mortem goes with --debugger"
        raise DistdebugError(msg, remedy="see env --help")

    try:
        settings = flight_recorder.plan_flight_recorder(
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

    flight_recorder.make_folder(settings.dump_dir)
    for warning in settings.warnings:
        warn(warning)
    if args.json:
        print_json(args, settings.to_dict())
    else:
        print(settings.to_exports(), end="")
    return 0


def _debugger_env(args: Namespace) -> int:

    variables = debugger.job_environment(post_mortem=args.post_mortem)
    if args.json:
        print_json(args, {"variables": variables})
    else:
        for name, text in variables.items():
            print(f"export {name}={shlex.quote(text)}")
    return 0


def _installed_torch() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None


@command(
    "timeline",
    "draw the calls of all ranks in time, for Perfetto",
    EVIDENCE,
    value(
        "-o, --output FILE",
        "where to write it: *.json.gz, *.json, or *.pftrace, which needs the "
        "package perfetto (default: %(default)s)",
        type=output_file,
        default="timeline.json.gz",
    ),
    group(
        "what to draw",
        RANKS,
        GROUPS,
        value(
            "--last N",
            "only the newest N calls of each rank",
            type=positive_count,
        ),
        flag(
            "--stack-traces",
            "the line of code of each call, too; dumps are read twice",
        ),
    ),
    flag("--json", "print what was drawn as JSON"),
)
def timeline(args: Namespace) -> int:
    """
    Draw every call of every rank from Flight Recorder dumps into one file,
    which https://ui.perfetto.dev opens (it stays on your machine), and
    chrome://tracing.  Each rank is a process, each group a track, each call a
    slice; arrows lead from the last rank to arrive to those that waited.

    Example:
      {prog} timeline dumps/
      {prog} timeline dumps/ -o step.json.gz --last 200
      {prog} timeline dumps/ --ranks 'ranks(pp=0)' --groups mesh_dp

    Exit status: 0 the file is written; 2 it could not be.
    """

    with telling() as tell:
        dumps = distdebug.read_dumps(
            map(Path, args.paths),
            progress=lambda done, total: tell("reading dumps", done, total),
        )
        drawn = distdebug.write_timeline(
            dumps,
            args.output,
            ranks=args.ranks,
            groups=_groups_of(args, dumps),
            last=args.last,
            stack_traces=args.stack_traces,
            tell=tell,
        )
    return report(args, drawn, is_fine=True)


@command(
    "schedule",
    "write the collectives of each rank as text to keep, or compare them",
    EVIDENCE,
    one_of(
        value("-o, --output FILE", "where to write it", type=output_file),
        value("--check FILE", "a schedule that must be the same"),
    ),
    JSON,
)
def schedule(args: Namespace) -> int:
    """
    Write which collectives each rank has called, in order: operation, process
    group, sizes, types, and line; equal ranks and repeated calls are folded.
    The text is for version control.  --check compares all but the lines.

    Example:
      {prog} schedule dumps/ -o schedule.txt
      {prog} schedule dumps/ --check schedule.txt

    Exit status: 0 it is written, or the same; 1 it differs; 2 it could not be
    read or written.
    """
    with counting("reading dumps") as progress:
        dumps = distdebug.read_dumps(map(Path, args.paths), progress=progress)
    made = flight_recorder.make_schedule(dumps)
    if args.check:
        return _check_schedule(args, made)
    if args.output:
        with output_to(args.output):
            write_whole(Path(args.output), str(made).encode())
        from ..ranks import ranks_text

        calls = sum(map(len, made.calls.values()))
        remark(f"{args.output}: {calls:,} calls of {ranks_text(made.calls)}")
    if args.json:
        print_json(args, made.to_dict())
    elif not args.output:
        print(made, end="")
    return 0


def _check_schedule(args: Namespace, made: flight_recorder.Schedule) -> int:
    kept = flight_recorder.read_schedule(args.check)
    differences = flight_recorder.compare_schedules(kept, made)
    if args.json:
        print_json(args, {"differences": [*differences]})
    else:
        print("\n".join(differences) or "the schedules are the same")
    return 1 if differences else 0


@command(
    "replay",
    "write a short program that hangs as a recorded job did",
    EVIDENCE,
    value(
        "-o, --output FILE",
        "where to write it; what is there is replaced (default: %(default)s)",
        type=output_file,
        default="repro.py",
    ),
    flag(
        "--run",
        "run it at once until it hangs, and diagnose it; needs torch",
        dest="is_run",
    ),
    flag("--json", "print where it is, and the ranks that it plays, as JSON"),
)
def replay(args: Namespace) -> int:
    """
    Write a self-contained program for torchrun and Gloo that makes the calls
    around the fault of a recorded job, in the groups concerned, with as few
    ranks as show it: for a laptop, and for a bug report.

    Example:
      {prog} replay dumps/
      {prog} replay dumps/ -o hang.py --run

    Exit status: 0 the program is written (with --run, and nothing is wrong
    with it); 1 with --run, it hangs or fails; 2 it could not be written, or
    the dumps show no call in which something is wrong.
    """
    from ..ranks import ranks_text

    with counting("reading dumps") as progress:
        dumps = distdebug.read_dumps(map(Path, args.paths), progress=progress)
    analysis = distdebug.analyze_dumps(dumps)
    made = distdebug.write_replay(analysis, args.output)
    if args.is_run:
        from ..demo import run_replay

        clean_up_on_signals()
        if made.ranks != (*range(len(made.ranks)),):
            played = ranks_text(made.ranks)
            remark(f"its ranks 0 to {len(made.ranks) - 1} play {played}")
        original = analysis.verdict
        diagnosis = run_replay(Path(args.output), len(made.ranks), tell=remark)
        again = diagnosis.verdict
        ranks = tuple(made.ranks[rank] for rank in again.ranks)
        same = (again.cause, ranks) == (original.cause, original.ranks)
        is_not = "" if same else "not "
        remark(f"this is {is_not}the verdict on the dumps: {original.summary}")
        return report(args, diagnosis, is_fine=diagnosis.is_healthy)
    if args.json:
        print_json(args, {"path": str(args.output), "ranks": [*made.ranks]})
        return 0
    path, count = clean(str(args.output), limit=1000), len(made.ranks)
    print(f"{path}: plays {ranks_text(made.ranks)} of the job")
    quoted = shlex.quote(path)
    print(f"run it: torchrun --nproc-per-node {count} {quoted}")
    print("run it until it hangs, and diagnose that: add --run")
    return 0

"""
``logs`` and ``phase``: find logs, deaths, and errors; name the start-up phase.
"""

from __future__ import annotations

import argparse
import time

from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Commands, add_command, add_full_option
from .output import print_json, print_result, telling, waiting


if TYPE_CHECKING:
    from ..logs import ScanReport
    from ..ray import RaySession, WorkerLog


_LOGS_TEXT = """
Find the logs of a Ray cluster, of this machine or copied from any number of
nodes, alive or stopped, and say which log belongs to which actor, and who died
first.  With --errors, say what went wrong in logs of any kind.

Example:
  {prog} logs                                    the newest session here
  {prog} logs --actor 'TrainerActor*' --follow
  {prog} logs --actor '(SglEngine pid=514428, ip=10.0.0.2)'
  {prog} logs --deaths copied-from-all-nodes/
  {prog} logs --errors train.log slurm-*.out

Exit status: 0 nothing is wrong; 1 somebody died, or an error was found;
2 could not look.
"""

_LINES = 20


def add_logs_parser(commands: Commands) -> None:
    """
    Add the command ``logs``.
    """
    parser = add_command(
        commands,
        "logs",
        run,
        help="which log belongs to that actor, who died first, what went wrong?",
        text=_LOGS_TEXT,
    )
    parser.add_argument(
        "places",
        nargs="*",
        metavar="SESSION",
        help="a session folder of Ray, its temporary folder, or a folder with "
        "copies of several; for --errors also any log; by default the newest "
        "session of this machine",
    )
    what = parser.add_argument_group("what to tell")
    what.add_argument(
        "--actor",
        metavar="WHO",
        help="print the logs of an actor: its class, name, or repr (* and ? "
        "match), number of process, id, or what stands before a line of the "
        "driver",
    )
    what.add_argument(
        "--deaths", action="store_true", help="who died, and who was first"
    )
    what.add_argument(
        "--errors", action="store_true", help="what went wrong, line by line"
    )
    what.add_argument(
        "--follow",
        action="store_true",
        help="go on printing what is appended, until Ctrl-C",
    )
    _add_details(parser)


def _add_details(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how")
    how.add_argument(
        "-n",
        "--lines",
        type=int,
        default=_LINES,
        metavar="N",
        help="how many of the last lines of each log (default: %(default)d)",
    )
    how.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="also ask the cluster at this address, which knows names that "
        "files leave out",
    )
    how.add_argument(
        "--rules",
        action="append",
        metavar="FILE",
        help="rules of your own for --errors; may be given several times",
    )
    how.add_argument(
        "--json", action="store_true", help="print everything as JSON"
    )
    add_full_option(how)


def run(args: argparse.Namespace) -> int:
    """
    Print the logs, deaths, or errors; return 1 if anything went wrong.
    """
    if args.errors and not args.actor:
        return _errors(args, _sessions_or_files(args.places))

    from ..ray import find_ray_sessions

    sessions = find_ray_sessions(*args.places)
    if args.deaths:
        return _deaths(args, sessions)

    workers = _workers(args, sessions)
    if args.errors:
        return _errors(args, [path for log in workers for path in _files(log)])
    if args.follow:
        return _follow(args, workers)
    if args.actor:
        return _tails(args, workers)
    return _overview(args, sessions, workers)


def _workers(
    args: argparse.Namespace, sessions: tuple[RaySession, ...]
) -> tuple[WorkerLog, ...]:
    from ..errors import NoLogsError
    from ..ray import find_actor_logs, worker_logs

    name = _names(args.address)
    if not args.actor:
        return name(worker_logs(sessions))

    found = name(find_actor_logs(args.actor, sessions))
    if found:
        return found

    everybody = name(worker_logs(sessions))
    found = tuple(x for x in everybody if fnmatchcase(_name(x), args.actor))
    if not found:
        known = sorted({_name(x) or x.label for x in everybody})
        remedy = f"there are: {', '.join(known[:20]) or 'no workers'}"
        msg = f"nobody is called {args.actor!r} in {len(sessions)} sessions"
        raise NoLogsError(msg, remedy=remedy)

    return found


def _names(
    address: str | None,
) -> Callable[[tuple[WorkerLog, ...]], tuple[WorkerLog, ...]]:
    """
    Return a function that adds the actor names that only a live cluster knows.
    """
    if address is None:
        return lambda workers: workers

    from ..ray import add_live_actors, query_live_cluster

    live = query_live_cluster(address)
    return lambda workers: add_live_actors(workers, live)


def _name(log: WorkerLog) -> str:
    return log.actor_name or ""


def _files(log: WorkerLog) -> list[str]:
    return [str(part.path) for part in (*log.out, *log.err)]


def _sessions_or_files(places: list[str]) -> list[str]:
    """
    Return the paths to scan; by default the newest session of this machine.
    """
    if places:
        return places

    from ..ray import find_ray_sessions

    return [str(session.logs) for session in find_ray_sessions()]


def _errors(args: argparse.Namespace, paths: list[str]) -> int:
    from ..logs import scan_logs

    with telling(unit="MB", scale=1e6) as tell:
        report: ScanReport = scan_logs(
            paths, rules=args.rules or (), tell=partial(tell, "reading")
        )
    status = int(any(not f.cause.is_fine for f in report.findings))
    if args.json:
        print_json("logs", report.to_dict())
    else:
        print_result(report, is_fine=not status, full=args.full)
    return 2 if not report.bytes_read and report.missing else status


def _deaths(args: argparse.Namespace, sessions: tuple[RaySession, ...]) -> int:
    from ..findings import finding_entries, missing_block
    from ..ray import death_findings, find_deaths

    deaths = find_deaths(sessions)
    findings = death_findings(deaths)
    if args.json:
        told = [finding.to_dict() for finding in findings]
        print_json("logs", {**deaths.to_dict(), "findings": told})
    else:
        told_first = finding_entries(findings, len(findings))
        blocks = (told_first, str(deaths), missing_block(deaths.missing))
        print_result(blocks, is_fine=not findings, full=args.full)
    return int(bool(findings))


def _tails(args: argparse.Namespace, workers: tuple[WorkerLog, ...]) -> int:
    from .logs_text import tail_records, tail_text

    if args.json:
        print_json("logs", {"workers": tail_records(workers, args.lines)})
    else:
        print(tail_text(workers, args.lines, full=args.full))
    return 0


def _follow(args: argparse.Namespace, workers: tuple[WorkerLog, ...]) -> int:
    from ..ray import follow_lines
    from .logs_text import tail_text, who_prints

    who = who_prints(workers)
    if not args.json:
        text = tail_text(workers, args.lines, full=args.full)
        print(text, flush=True)
    # Following ends with Ctrl-C.
    with suppress(KeyboardInterrupt):
        for line in follow_lines(workers):
            label = who(line.source)
            if args.json:
                record = {
                    "who": label,
                    "source": line.source,
                    "text": line.text,
                }
                print_json("logs", record, in_one_line=True)
            else:
                print(f"{label} | {line.text}", flush=True)
    return 0


def _overview(
    args: argparse.Namespace,
    sessions: tuple[RaySession, ...],
    workers: tuple[WorkerLog, ...],
) -> int:
    from ..ray import death_findings, find_deaths, last_activity
    from .logs_text import overview_blocks

    deaths = find_deaths(sessions)
    findings = death_findings(deaths)
    activity = last_activity(sessions)
    if args.json:
        data: dict[str, Any] = {
            "sessions": [x.to_dict() for x in sessions],
            "workers": [x.to_dict() for x in workers],
            "activity": [x.to_dict() for x in activity],
            "deaths": deaths.to_records(),
            "findings": [x.to_dict() for x in findings],
        }
        print_json("logs", data)
    else:
        blocks = overview_blocks(sessions, workers, deaths, findings, activity)
        print_result(blocks, is_fine=not findings, full=args.full)
    return int(bool(findings))


_PHASE_TEXT = """
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
    Add the command ``phase``.
    """
    parser = add_command(
        commands,
        "phase",
        run_phase,
        help="in which phase is a job, and does that take too long?",
        text=_PHASE_TEXT,
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


def run_phase(args: argparse.Namespace) -> int:
    """
    Print the phase; return 1 if anything is wrong.
    """
    from ..logs import detect_phase

    with waiting("reading logs"):
        report = detect_phase(
            # detect_phase also takes lines; a path that does not exist is none.
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

"""
``logs``: what do the logs of this job tell?
"""

from __future__ import annotations

import argparse
import time

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from .._showing import Block, Entries, Lines, Table
from .._text import clean
from ..findings import Finding, finding_entry
from ..raylogs import read_tail
from ..raylogs.listing import taken_apart
from .options import Commands, add_command, add_full_option
from .output import print_json, print_result, telling


if TYPE_CHECKING:
    from ..logscan.model import ScanReport
    from ..raylogs.model import RaySession, WorkerLog

_TEXT = """
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


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "logs",
        run,
        help="which log belongs to that actor, who died first, what went wrong?",
        text=_TEXT,
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
    Print what was asked for; 1 if anything went wrong.
    """
    if args.errors and not args.actor:
        return _errors(args, _sessions_or_files(args.places))

    from ..raylogs import find_ray_sessions

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
    from ..raylogs import find_actor_logs, worker_logs

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
    What adds the names that only a cluster that is alive knows.
    """
    if address is None:
        return lambda workers: workers

    from ..raylogs import ask_live_actors, with_live

    live = ask_live_actors(address)
    return lambda workers: with_live(workers, live)


def _name(log: WorkerLog) -> str:
    return log.actor_name or ""


def _files(log: WorkerLog) -> list[str]:
    return [str(part.path) for part in (*log.out, *log.err)]


def _sessions_or_files(places: list[str]) -> list[str]:
    """
    What to scan: the places themselves, or the newest session here.
    """
    if places:
        return places

    from ..raylogs import find_ray_sessions

    return [str(session.logs) for session in find_ray_sessions()]


def _errors(args: argparse.Namespace, paths: list[str]) -> int:
    from ..logscan.scan import scan_logs

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
    from ..raylogs import death_findings, find_deaths

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

    if args.json:
        print_json("logs", {"workers": tail_records(workers, args.lines)})
    else:
        print(tail_text(workers, args.lines, full=args.full))
    return 0


def _follow(args: argparse.Namespace, workers: tuple[WorkerLog, ...]) -> int:
    from ..raylogs import follow_lines

    who = who_prints(workers)
    if not args.json:
        text = tail_text(workers, args.lines, full=args.full)
        print(text, flush=True)
    # Whoever follows logs ends it with Ctrl-C.
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
    from ..raylogs import death_findings, find_deaths, last_activity

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


if TYPE_CHECKING:
    from ..raylogs.deaths.model import Deaths
    from ..raylogs.model import LogPart, RaySession, WorkerLog
    from ..raylogs.system import Activity

_MOST_WORKERS = 40
_MOST_TAILS = 50
_MOST_FINDINGS = 8


def overview_blocks(
    sessions: Sequence[RaySession],
    workers: Sequence[WorkerLog],
    deaths: Deaths,
    findings: Sequence[Finding],
    activity: Iterable[Activity],
) -> Iterator[Block]:
    """
    What is there to show of who is who, who died, and who was heard of last?

    Args:
        sessions: The nodes.

        workers: Their workers; of many, those that printed last are shown.

        deaths: Who died.

        findings: What that means.

        activity: When the parts of Ray last wrote.
    """
    yield Lines([clean(str(session), limit=400) for session in sessions])
    yield Entries([finding_entry(f) for f in findings[:1]])
    others = [clean(f.summary, limit=400) for f in findings[1:]]
    yield Lines(others, _MOST_FINDINGS - 1, "findings")
    yield _worker_table(workers, deaths)
    alarms = [str(x) for x in activity if x.is_alarming]
    if alarms:
        yield Lines(["silent for long, or stopped:", *alarms])


def _worker_table(workers: Sequence[WorkerLog], deaths: Deaths) -> Block:
    if not workers:
        return "no worker has printed anything"

    ends = {death.worker_id: death for death in deaths.deaths}
    now = time.time()
    latest = sorted(workers, key=lambda log: -log.mtime)
    # Who died is worth more than who is busy.
    latest.sort(key=lambda log: log.worker_id not in ends)
    rows = [
        (
            _called(log),
            log.pid,
            log.session.host or "-",
            str(ends[log.worker_id]).rpartition(": ")[2]
            if log.worker_id in ends
            else "",
            f"{max(now - log.mtime, 0):,.0f} s ago" if log.mtime else "-",
            _newest(log.err) or _newest(log.out),
        )
        for log in latest
    ]
    headers = ("who", "pid", "node", "end", "printed", "log")
    return Table(headers, rows, _MOST_WORKERS, "workers")


def _called(log: WorkerLog) -> str:
    name = log.actor_name
    is_more = name is not None and name != log.label
    return f"{log.label} {name!r}" if is_more else log.label


def _newest(parts: Sequence[LogPart]) -> str:
    return parts[-1].path.name if parts else ""


def tail_text(
    workers: Sequence[WorkerLog], lines: int, *, full: bool = False
) -> str:
    """
    Write the ends of logs, each under the name of its file.

    Args:
        workers: Whose logs.

        lines: How many lines of each stream.

        full: Whether to write those of all workers, however many.
    """
    most = len(workers) if full else _MOST_TAILS
    parts = []
    for log in workers[:most]:
        for stream, told in _logs_text_tails(log, lines):
            path = clean(str(told[-1].source), limit=400)
            head = f"==> {clean(str(log))}, {stream}: {path} <=="
            shown = [clean(line.text, limit=2000) for line in told]
            parts.append("\n".join([head, *shown]))
    hidden = len(workers) - most
    if hidden > 0:
        parts.append(f"… and {hidden} more workers")
    return "\n\n".join(parts) or "they have printed nothing"


def tail_records(
    workers: Iterable[WorkerLog], lines: int
) -> list[dict[str, Any]]:
    """
    Tell the same as plain data, of all workers.

    Args:
        workers: Whose logs.

        lines: How many lines of each stream.
    """
    return [
        {
            **log.to_dict(),
            "tail": {
                stream: [line.text for line in told]
                for stream, told in _logs_text_tails(log, lines)
            },
        }
        for log in workers
    ]


def _logs_text_tails(log: WorkerLog, lines: int) -> Iterable[tuple[str, Any]]:
    for stream in ("out", "err"):
        told = read_tail(log, lines=lines, stream=stream)
        if told:
            yield stream, told


def who_prints(workers: Iterable[WorkerLog]) -> Callable[[str], str]:
    """
    Tell who prints into a file, also after it was rotated.

    Args:
        workers: The logs of workers.

    Returns:
        Takes a path, and returns a name for people.
    """
    names = {
        (taken_apart(part.path.name)[0], str(part.path.parent)): log
        for log in workers
        for part in (*log.out, *log.err)
    }

    def who(source: str) -> str:
        folder, _, name = source.rpartition("/")
        log = names.get((taken_apart(name)[0], folder.removesuffix("/old")))
        return clean(str(log)) if log else name

    return who

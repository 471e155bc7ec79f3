"""
``logs`` and ``phase``: find logs, deaths, and errors; name the start-up phase.
"""

from __future__ import annotations

import time

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import ray
from .._text import clean, list_text
from ..errors import NoLogsError
from .command import FULL, JSON, command, flag, group, many, value
from .output import print_json, report, telling, waiting


if TYPE_CHECKING:
    from .._render import Block
    from ..findings import Finding


_MOST_WORKERS = 40
_MOST_TAILS = 50
_MOST_FINDINGS = 8


@command(
    "logs",
    "which log belongs to that actor, who died first, what went wrong?",
    value(
        "places SESSION",
        "a session folder of Ray, its temporary folder, or a folder with "
        "copies of several; for --errors also any log; by default the newest "
        "session of this machine",
        nargs="*",
    ),
    group(
        "what to show",
        value(
            "--actor WHO",
            "print the logs of an actor: its class, name, or repr (* and ? "
            "match), number of process, id, or what stands before a line of "
            "the driver",
        ),
        flag("--deaths", "who died, and who was first"),
        flag("--errors", "what went wrong, line by line"),
        flag("--follow", "go on printing what is appended, until Ctrl-C"),
    ),
    group(
        "how",
        value(
            "-n, --lines N",
            "how many of the last lines of each log (default: %(default)d)",
            type=int,
            default=20,
        ),
        value(
            "--address HOST:PORT",
            "also ask the cluster at this address, which knows names that "
            "files leave out",
        ),
        many("--rules FILE", "rules of your own for --errors"),
        JSON,
        FULL,
    ),
)
def logs(args: Namespace) -> int:
    """
    Find the logs of a Ray cluster, of this machine or copied from any number
    of nodes, alive or stopped, and say which log belongs to which actor, and
    who died first.  With --errors, say what went wrong in logs of any kind.

    Example:
      {prog} logs                                    the newest session here
      {prog} logs --actor 'TrainerActor*' --follow
      {prog} logs --actor '(SglEngine pid=514428, ip=10.0.0.2)'
      {prog} logs --deaths copied-from-all-nodes/
      {prog} logs --errors train.log slurm-*.out

    Exit status: 0 nothing is wrong; 1 a process died, or an error was found;
    2 could not look.
    """

    if args.errors and not args.actor:
        paths = args.places or [str(x.logs) for x in ray.find_ray_sessions()]
        return _errors(args, paths)

    sessions = ray.find_ray_sessions(*args.places)
    if args.deaths:
        return _deaths(args, sessions)

    workers = _workers(args, sessions)
    if args.errors:
        parts = (part for log in workers for part in (*log.out, *log.err))
        return _errors(args, [str(part.path) for part in parts])
    if args.follow:
        return _follow(args, workers)
    if args.actor:
        return _tails(args, workers)
    return _overview(args, sessions, workers)


def _workers(
    args: Namespace, sessions: tuple[ray.RaySession, ...]
) -> tuple[ray.WorkerLog, ...]:

    def named(workers: tuple[ray.WorkerLog, ...]) -> tuple[ray.WorkerLog, ...]:
        return workers if live is None else ray.add_live_actors(workers, live)

    # A live cluster alone knows some names of actors.
    live = ray.query_live_cluster(args.address) if args.address else None
    if not args.actor:
        return named(ray.worker_logs(sessions))
    if found := named(ray.find_actor_logs(args.actor, sessions)):
        return found

    everybody = named(ray.worker_logs(sessions))
    found = tuple(
        x for x in everybody if fnmatchcase(x.actor_name or "", args.actor)
    )
    if not found:
        known = sorted({x.actor_name or x.label for x in everybody})
        remedy = f"known names: {', '.join(known[:20]) or 'no workers'}"
        where = (
            "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
        )
        msg = f"no actor named {args.actor!r} in {where}"
        raise NoLogsError(msg, remedy=remedy)

    return found


def _errors(args: Namespace, paths: list[str]) -> int:
    from ..logs import scan_logs

    with telling(is_bytes=True) as tell:
        scanned = scan_logs(
            paths, rules=args.rules or (), tell=partial(tell, "reading")
        )
    is_fine = all(f.cause.is_fine for f in scanned.findings)
    status = report(args, scanned, is_fine=is_fine)
    return 2 if not scanned.bytes_read and scanned.missing else status


def _deaths(args: Namespace, sessions: tuple[ray.RaySession, ...]) -> int:
    from ..findings import finding_entries, missing_block

    deaths = ray.find_deaths(sessions)
    findings = ray.death_findings(deaths)
    return report(
        args,
        (
            finding_entries(findings, len(findings)),
            str(deaths),
            missing_block(deaths.missing),
        ),
        is_fine=not findings,
        data={
            **deaths.to_dict(),
            "findings": [finding.to_dict() for finding in findings],
        },
    )


def _overview(
    args: Namespace,
    sessions: tuple[ray.RaySession, ...],
    workers: tuple[ray.WorkerLog, ...],
) -> int:

    deaths = ray.find_deaths(sessions)
    findings = ray.death_findings(deaths)
    activity = ray.last_activity(sessions)
    return report(
        args,
        _overview_blocks(sessions, workers, deaths, findings, activity),
        is_fine=not findings,
        data={
            "sessions": [x.to_dict() for x in sessions],
            "workers": [x.to_dict() for x in workers],
            "activity": [x.to_dict() for x in activity],
            "deaths": deaths.to_records(),
            "findings": [x.to_dict() for x in findings],
        },
    )


def _overview_blocks(
    sessions: Sequence[ray.RaySession],
    workers: Sequence[ray.WorkerLog],
    deaths: ray.Deaths,
    findings: Sequence[Finding],
    activity: Iterable[ray.Activity],
) -> Iterator[Block]:
    """
    Yield blocks with the workers, deaths, and last activity of a Ray cluster.
    """
    from .._render import Entries, Lines
    from ..findings import finding_entry

    yield Lines([clean(str(session), limit=400) for session in sessions])
    yield Entries([finding_entry(f) for f in findings[:1]])
    others = [clean(f.summary, limit=400) for f in findings[1:]]
    yield Lines(others, _MOST_FINDINGS - 1, "findings")
    yield _worker_table(workers, deaths)
    alarms = [str(x) for x in activity if x.is_alarming]
    if alarms:
        yield Lines(["silent for long, or stopped:", *alarms])


def _worker_table(
    workers: Sequence[ray.WorkerLog], deaths: ray.Deaths
) -> Block:
    from .._render import Table

    if not workers:
        return "no worker has printed anything"

    ends = {d.worker_id: str(d).rpartition(": ")[2] for d in deaths.deaths}
    now = time.time()
    # Dead workers first: they matter more than busy ones.
    latest = sorted(workers, key=lambda x: (x.worker_id not in ends, -x.mtime))
    rows = [
        (
            _label(log),
            log.pid,
            log.session.host or "-",
            ends.get(log.worker_id, ""),
            f"{max(now - log.mtime, 0):,.0f} s ago" if log.mtime else "-",
            _newest(log.err) or _newest(log.out),
        )
        for log in latest
    ]
    headers = ("who", "pid", "node", "end", "printed", "log")
    return Table(headers, rows, _MOST_WORKERS, "workers")


def _label(log: ray.WorkerLog) -> str:
    if log.actor_name in {None, log.label}:
        return log.label

    return f"{log.label} {log.actor_name!r}"


def _newest(parts: Sequence[ray.LogPart]) -> str:
    return parts[-1].path.name if parts else ""


def _tails(args: Namespace, workers: tuple[ray.WorkerLog, ...]) -> int:
    if args.json:
        records = [
            {
                **log.to_dict(),
                "tail": {
                    stream: [line.text for line in lines]
                    for stream, lines in _streams(log, args.lines)
                },
            }
            for log in workers
        ]
        print_json(args, {"workers": records})
    else:
        print(_tail_text(args, workers), flush=True)
    return 0


def _tail_text(args: Namespace, workers: Sequence[ray.WorkerLog]) -> str:
    most = len(workers) if args.full else _MOST_TAILS
    parts = []
    for log in workers[:most]:
        for stream, lines in _streams(log, args.lines):
            path = clean(str(lines[-1].source), limit=400)
            head = f"==> {clean(str(log))}, {stream}: {path} <=="
            shown = [clean(line.text, limit=2000) for line in lines]
            parts.append("\n".join([head, *shown]))
    hidden = len(workers) - most
    if hidden > 0:
        parts.append(f"… and {hidden} more workers")
    return "\n\n".join(parts) or "they have printed nothing"


def _streams(log: ray.WorkerLog, count: int) -> Iterator[tuple[str, Any]]:

    for stream in ("out", "err"):
        if lines := ray.read_tail(log, lines=count, stream=stream):
            yield stream, lines


def _follow(args: Namespace, workers: tuple[ray.WorkerLog, ...]) -> int:

    label_of = _labels(workers)
    if not args.json:
        _tails(args, workers)
    # Following ends with Ctrl-C.
    with suppress(KeyboardInterrupt):
        for line in ray.follow_lines(workers):
            label, text = label_of(line.source), line.text
            if args.json:
                record = {"who": label, "source": line.source, "text": text}
                print_json(args, record, in_one_line=True)
            else:
                print(f"{label} | {text}", flush=True)
    return 0


def _labels(workers: Iterable[ray.WorkerLog]) -> Callable[[str], str]:
    """
    Return a function that names the worker of a log file, also after rotation.
    """

    names = {
        (ray.split_log_name(part.path.name)[0], str(part.path.parent)): log
        for log in workers
        for part in (*log.out, *log.err)
    }

    def label_of(source: str) -> str:
        folder, _, name = source.rpartition("/")
        log = names.get(
            (ray.split_log_name(name)[0], folder.removesuffix("/old"))
        )
        return clean(str(log)) if log else name

    return label_of


@command(
    "phase",
    "in which phase is a job, and does that take too long?",
    value("logs LOG", "a log, or a folder of logs, of one job", nargs="+"),
    value(
        "--framework NAME", "whose logs they are; by default what they show"
    ),
    many("--rules FILE", "a book of phases of your own"),
    flag("--ended", "the job does not run any more: do not judge its silence"),
    JSON,
    FULL,
)
def phase(args: Namespace) -> int:
    """
    Read the log of a job (of its driver, and those of its workers, if you
    like) and say which phase of its start-up it is in, how far that is, for how
    long nothing was printed, and whether that is normal there.  TorchSpec, NeMo
    RL, verl, slime, OpenRLHF, SkyRL, vLLM, SGLang, torchtitan, Megatron-LM, and
    Hugging Face's trainers are known; --rules adds others.

    Example:
      {prog} phase train.log
      {prog} phase --ended train.log    of a job that is over
      {prog} phase --rules my.toml train.log workers/

    Exit status: 0 all is as it should be; 1 something is wrong, or takes too
    long; 2 could not look.
    """
    from ..logs import detect_phase

    with waiting("reading logs"):
        detected = detect_phase(
            # detect_phase also takes lines; a path that does not exist is none.
            [Path(log) for log in args.logs],
            now=None if args.ended else time.time(),
            framework=args.framework,
            rules=args.rules or (),
        )
    if (
        not (detected.framework or detected.current or detected.ended)
        and not detected.findings
    ):
        msg = f"no phase of a known framework in {list_text(args.logs)}"
        raise NoLogsError(
            msg, remedy="name the log of the driver, or rules of your own"
        )

    is_fine = all(f.cause.is_fine for f in detected.findings)
    return report(args, detected, is_fine=is_fine)

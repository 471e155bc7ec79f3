"""
``nsight``: profile workers of a Ray job, mend Ray's plugin, find reports.
"""

from __future__ import annotations

import argparse

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Commands, add_command, positive_seconds
from .output import counting, print_json


if TYPE_CHECKING:
    from ..nodes import Engine, NodeResult
    from ..nsight import NsysReports, PatchStatus


def add_nodes_options(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that name nodes.
    """
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--slurm", metavar="JOB", help="on every node of this Slurm job"
    )
    where.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="on every node of this Ray cluster, HOST:PORT or 'auto'; it has "
        "to be restarted then",
    )
    parser.add_argument(
        "--container-name",
        metavar="NAME",
        help="with --slurm: enter this pyxis container on each node",
    )


def patch_everywhere(args: argparse.Namespace) -> int:
    """
    Patch Ray's plugin on each node and print the results; return 1 if one failed.
    """
    from ..nodes import run_on_nodes

    work = partial(_on_this_node, args.what, args.path)
    with counting("nodes") as tell:
        results = sorted(
            run_on_nodes(work, engine=_engine(args), tell=tell),
            key=lambda result: result.host,
        )
    if args.json:
        plain = [_plain(result) for result in results]
        print_json(f"nsight {args.what}", {"nodes": plain})
    else:
        print("\n".join(map(_line, results)))
    return int(not all(_is_done(args.what, r.value) for r in results))


def _on_this_node(what: str, path: str | None) -> dict[str, Any]:
    from ..nsight import (
        patch_ray_nsight,
        ray_nsight_status,
        revert_ray_nsight,
    )

    calls: dict[str, Callable[[str | None], Any]] = {
        "patch": patch_ray_nsight,
        "status": ray_nsight_status,
        "revert": revert_ray_nsight,
    }
    plain: dict[str, Any] = calls[what](path).to_dict()
    return plain


def _engine(args: argparse.Namespace) -> Engine:
    if args.ray is not None:
        from ..nodes import Ray

        return Ray(args.ray)

    from ..nodes import Slurm

    return Slurm(job=args.slurm, container_name=args.container_name)


def _is_done(what: str, value: Mapping[str, Any] | None) -> bool:
    if value is None:
        return False
    if what == "revert":
        return value["state"] in {"needs_patch", "fixed_upstream"}
    return bool(value["fine"])


def _plain(result: NodeResult) -> dict[str, Any]:
    return {
        "host": result.host,
        "status": result.status.value,
        "reason": result.reason,
        "plugin": result.value,
    }


def _line(result: NodeResult) -> str:
    value = result.value
    if value is None:
        return f"{result.host}: {result.status.value}: {result.reason}"
    old = ", agents that do not know it" if value["stale_agents"] else ""
    changed = ", changed just now" if value["changed"] else ""
    return f"{result.host}: {value['state']}{changed}{old}"


_TEXT = """
Profile some workers of a Ray job with Nsight Systems.  Say which ones match
patterns; let Ray's own nsight plugin start the right Python, on every node
before 'ray start'; find the reports, copy them to where they last, and
summarize them; and check what is in the way.

Example:
  {prog} nsight match dtensor_policy_worker --patterns '*policy*,*vllm*'
  {prog} nsight status
  {prog} nsight patch
  {prog} nsight patch --slurm 1234
  {prog} nsight revert
  {prog} nsight reports /tmp/ray/session_latest
  {prog} nsight collect --output-dir /shared/profiles
  {prog} nsight doctor /tmp/ray/session_latest

Exit status: 0 all is well, or it matches; 1 something was found, or it does
not match; 2 could not look.
"""


def add_nsight_parser(commands: Commands) -> None:
    """
    Add the command ``nsight``.
    """
    parser = add_command(
        commands,
        "nsight",
        run,
        help="profile some workers of a Ray job with Nsight Systems",
        text=_TEXT,
    )
    what = parser.add_subparsers(
        title="what to do", metavar="WHAT", dest="what", required=True
    )
    for name, about in _PATCHING.items():
        one = _add(what, name, about)
        one.add_argument(
            "--path",
            metavar="PATH",
            help="nsight.py, the package ray, or an environment that has it; "
            "by default what 'import ray' loads",
        )
        add_nodes_options(one)
    _add_reports(what)
    _add_rest(what)


def _add(what: Commands, name: str, about: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = what.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}."
    )
    one.add_argument(
        "--json", action="store_true", help="print the result as JSON"
    )
    return one


def _add_reports(what: Commands) -> None:
    reports = _add(what, "reports", "which worker left which report?")
    collect = _add(what, "collect", "copy reports to where they last")
    for one in (reports, collect):
        one.add_argument(
            "places",
            nargs="*",
            metavar="FOLDER",
            help="where to look; by default the sessions of Ray on this node",
        )
    reports.add_argument(
        "--summary",
        action="store_true",
        help="say what took most of the time in each, by 'nsys stats'",
    )
    reports.add_argument(
        "--timeout",
        type=positive_seconds,
        default=300.0,
        metavar="S",
        help="spend so many seconds on each summary (default: %(default)g)",
    )
    collect.add_argument(
        "--output-dir",
        required=True,
        metavar="DIR",
        help="write DIR/NODE/SESSION/REPORT; what is there is kept",
    )


def _add_rest(what: Commands) -> None:
    doctor = _add(what, "doctor", "what is in the way of a profile here?")
    doctor.add_argument(
        "places",
        nargs="*",
        metavar="FOLDER",
        help="look into the logs of raylets here, too, for workers that did "
        "not start; such as /tmp/ray/session_latest",
    )
    match = _add(what, "match", "which pattern matches this worker?")
    match.add_argument("worker", metavar="WORKER", help="its name")
    match.add_argument(
        "--patterns",
        metavar="LIST",
        help="wildcards, separated by commas; by default those in "
        "DISTDEBUG_NSYS_WORKER_PATTERNS or NRL_NSYS_WORKER_PATTERNS",
    )


def run(args: argparse.Namespace) -> int:
    """
    Run one action of ``nsight``; return 1 if anything is not as it should be.
    """
    return _RUNS[args.what](args)


def _patch(args: argparse.Namespace) -> int:
    if args.slurm is not None or args.ray is not None:
        return patch_everywhere(args)

    from ..nsight import patch_ray_nsight, ray_nsight_status, revert_ray_nsight

    calls = {
        "patch": patch_ray_nsight,
        "status": ray_nsight_status,
        "revert": revert_ray_nsight,
    }
    status: PatchStatus = calls[args.what](args.path)
    if args.json:
        print_json(f"nsight {args.what}", status.to_dict())
    else:
        print(status)
    if status.state == "absent":
        return 2
    if args.what == "revert":
        return int(status.state not in {"needs_patch", "fixed_upstream"})
    return int(not status.is_fine)


def _reports(args: argparse.Namespace) -> int:
    from ..nsight import summarize_report

    found = _found(args)
    summaries = [
        summarize_report(report.path, timeout_s=args.timeout)
        for report in (found if args.summary else ())
        if not report.is_raw
    ]
    if args.json:
        data = {"summaries": [s.to_dict() for s in summaries]}
        print_json("nsight reports", {**found.to_dict(), **data})
    else:
        print(found)
        for summary in summaries:
            print(f"\n{summary}")
    is_good = not found.missing and not any(r.is_raw for r in found)
    return int(not is_good)


def _collect(args: argparse.Namespace) -> int:
    from ..nsight import collect_nsys_reports

    done = collect_nsys_reports(_found(args), args.output_dir)
    if args.json:
        print_json("nsight collect", done.to_dict())
    else:
        print(done)
    return int(bool(done.left or done.missing))


def _found(args: argparse.Namespace) -> NsysReports:
    from ..errors import NsightError
    from ..nsight import find_nsys_reports

    found = find_nsys_reports(*args.places)
    if not found.reports:
        where = ", ".join(args.places) or "any session of Ray on this node"
        reasons = "".join(f"; {m.source}: {m.reason}" for m in found.missing)
        msg = f"there is no report of nsys in {where}{reasons}"
        raise NsightError(
            msg, remedy="see 'distdebug nsight doctor', or name a folder"
        )
    return found


def _doctor(args: argparse.Namespace) -> int:
    from ..nsight import check_nsys

    _check_places(args.places)
    health = check_nsys(raylet_logs=args.places)
    if args.json:
        print_json("nsight doctor", health.to_dict())
    else:
        print(health)
    return int(not health.is_ready)


def _check_places(places: Iterable[str]) -> None:
    from ..errors import NsightError

    for place in places:
        if not Path(place).exists():
            msg = f"there is no {place}"
            raise NsightError(msg, remedy="name a session of Ray")


def _match(args: argparse.Namespace) -> int:
    from .._text import clean
    from ..nsight import match_worker

    pattern = match_worker(args.worker, args.patterns)
    if args.json:
        data = {"worker": args.worker, "pattern": pattern}
        print_json("nsight match", data)
    elif pattern is None:
        print(f"no pattern matches {clean(args.worker)!r}")
    else:
        print(f"{clean(args.worker)!r} matches {clean(pattern)!r}")
    return int(pattern is None)


_PATCHING = {
    "patch": "let Ray's nsight plugin start the right Python",
    "status": "does Ray's nsight plugin start the right Python?",
    "revert": "give Ray's nsight plugin its own text back",
}
_RUNS: dict[str, Callable[[argparse.Namespace], int]] = {
    **dict.fromkeys(_PATCHING, _patch),
    "reports": _reports,
    "collect": _collect,
    "doctor": _doctor,
    "match": _match,
}

"""
``nsight``: profile workers of a Ray job, mend Ray's plugin, find reports.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import distdebug.nsight

from .. import nodes
from ..errors import NsightError
from .command import (
    CONTAINER,
    JSON,
    Command,
    command,
    flag,
    nodes_engine,
    one_of,
    seconds,
    value,
)
from .output import counting, print_json, report


_REVERTED = frozenset({"needs_patch", "fixed_upstream"})


def _plugin_command(name: str, summary: str) -> Command:
    """
    Return the command that patches, reverts, or checks Ray's plugin.
    """

    @command(
        name,
        summary,
        JSON,
        value(
            "--path PATH",
            "nsight.py, the package ray, or an environment that has it; by "
            "default what 'import ray' loads",
        ),
        one_of(
            value("--slurm JOB", "on every node of this Slurm job"),
            value(
                "--ray ADDRESS",
                "on every node of this Ray cluster, HOST:PORT or 'auto'; it "
                "has to be restarted then",
            ),
        ),
        CONTAINER,
    )
    def run(args: Namespace) -> int:
        return _plugin(name, args)

    return run


def _plugin(what: str, args: Namespace) -> int:
    if (engine := nodes_engine(args)) is not None:
        return _plugin_everywhere(what, args, engine)

    status = _plugin_call(what)(args.path)
    is_fine = _is_done(what, status.state, is_fine=status.is_fine)
    code = report(args, status, is_fine=is_fine)
    return 2 if status.state == "absent" else code


def _plugin_call(what: str) -> Callable[[str | None], Any]:

    return {
        "patch": distdebug.nsight.patch_ray_nsight,
        "status": distdebug.nsight.ray_nsight_status,
        "revert": distdebug.nsight.revert_ray_nsight,
    }[what]


def _is_done(what: str, state: str, *, is_fine: bool) -> bool:
    return state in _REVERTED if what == "revert" else is_fine


def _plugin_everywhere(what: str, args: Namespace, engine: Any) -> int:

    work = partial(_on_this_node, what, args.path)
    with counting("nodes") as tell:
        results = sorted(
            nodes.run_on_nodes(work, engine=engine, tell=tell),
            key=lambda result: result.host,
        )
    if args.json:
        plain = [
            {
                "host": result.host,
                "status": result.status.value,
                "reason": result.reason,
                "plugin": result.value,
            }
            for result in results
        ]
        print_json(args, {"nodes": plain})
    else:
        print("\n".join(map(_line, results)))
    plugins: list[Mapping[str, Any] | None] = [r.value for r in results]
    return int(
        not all(
            plugin and _is_done(what, plugin["state"], is_fine=plugin["fine"])
            for plugin in plugins
        )
    )


def _on_this_node(what: str, path: str | None) -> dict[str, Any]:
    plain: dict[str, Any] = _plugin_call(what)(path).to_dict()
    return plain


def _line(result: nodes.NodeResult) -> str:
    plugin = result.value
    if plugin is None:
        return f"{result.host}: {result.status.value}: {result.reason}"
    old = ", agents that do not know it" if plugin["stale_agents"] else ""
    changed = ", changed just now" if plugin["changed"] else ""
    return f"{result.host}: {plugin['state']}{changed}{old}"


_PLACES = value(
    "places FOLDER",
    "where to look; by default the sessions of Ray on this node",
    nargs="*",
)


@command(
    "reports",
    "which worker left which report?",
    JSON,
    _PLACES,
    flag(
        "--summary",
        "say what took most of the time in each, by 'nsys stats'",
    ),
    seconds("--timeout", "spend so many seconds on each summary", 300.0),
)
def _reports(args: Namespace) -> int:

    found = _found(args)
    summaries = [
        distdebug.nsight.summarize_report(x.path, timeout_s=args.timeout)
        for x in (found if args.summary else ())
        if not x.is_raw
    ]
    if args.json:
        data = {"summaries": [s.to_dict() for s in summaries]}
        print_json(args, {**found.to_dict(), **data})
    else:
        print(found)
        for summary in summaries:
            print(f"\n{summary}")
    is_good = not found.missing and not any(r.is_raw for r in found)
    return int(not is_good)


@command(
    "collect",
    "copy reports to where they last",
    JSON,
    _PLACES,
    value(
        "--output-dir DIR",
        "write DIR/NODE/SESSION/REPORT; what is there is kept",
        required=True,
    ),
)
def _collect(args: Namespace) -> int:

    done = distdebug.nsight.collect_nsys_reports(_found(args), args.output_dir)
    return report(args, done, is_fine=not (done.left or done.missing))


def _found(args: Namespace) -> distdebug.nsight.NsysReports:

    found = distdebug.nsight.find_nsys_reports(*args.places)
    if not found.reports:
        where = ", ".join(args.places) or "any session of Ray on this node"
        reasons = "".join(f"; {m.source}: {m.reason}" for m in found.missing)
        msg = f"there is no report of nsys in {where}{reasons}"
        raise NsightError(
            msg, remedy="see 'distdebug nsight doctor', or name a folder"
        )
    return found


@command(
    "doctor",
    "what is in the way of a profile here?",
    JSON,
    value(
        "places FOLDER",
        "look into the logs of raylets here, too, for workers that did not "
        "start; such as /tmp/ray/session_latest",
        nargs="*",
    ),
)
def _doctor(args: Namespace) -> int:

    for place in args.places:
        if not Path(place).exists():
            msg = f"there is no {place}"
            raise NsightError(msg, remedy="name a session of Ray")

    health = distdebug.nsight.check_nsys(raylet_logs=args.places)
    return report(args, health, is_fine=health.is_ready)


@command(
    "match",
    "which pattern matches this worker?",
    JSON,
    value("worker WORKER", "its name"),
    value(
        "--patterns LIST",
        "wildcards, separated by commas; by default those in "
        "DISTDEBUG_NSYS_WORKER_PATTERNS or NRL_NSYS_WORKER_PATTERNS",
    ),
)
def _match(args: Namespace) -> int:
    from .._text import clean

    pattern = distdebug.nsight.match_worker(args.worker, args.patterns)
    if args.json:
        print_json(args, {"worker": args.worker, "pattern": pattern})
    elif pattern is None:
        print(f"no pattern matches {clean(args.worker)!r}")
    else:
        print(f"{clean(args.worker)!r} matches {clean(pattern)!r}")
    return int(pattern is None)


@command(
    "nsight",
    "profile some workers of a Ray job with Nsight Systems",
    commands=(
        _plugin_command(
            "patch", "let Ray's nsight plugin start the right Python"
        ),
        _plugin_command(
            "status", "does Ray's nsight plugin start the right Python?"
        ),
        _plugin_command(
            "revert", "give Ray's nsight plugin its own text back"
        ),
        _reports,
        _collect,
        _doctor,
        _match,
    ),
)
def nsight(_: Namespace) -> int:
    """
    Profile some workers of a Ray job with Nsight Systems.  Say which ones
    match patterns; let Ray's own nsight plugin start the right Python, on every
    node before 'ray start'; find the reports, copy them to where they last, and
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
    raise NotImplementedError  # argparse asks for one of its commands

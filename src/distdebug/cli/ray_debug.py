"""
``ray-debugger``: who waits in Ray's debugger, and how does one get there?
"""

from __future__ import annotations

import argparse
import json

from pathlib import Path
from typing import TYPE_CHECKING

from .options import Commands, add_command, positive_seconds, warn
from .output import print_json


if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ray import RayDebugSession


_COMMAND = "ray-debugger"
_TEXT = """
Prepare and use the debugger that Ray brings along.  check looks whether all is
there that it needs, and says what to do about what is missing.  sessions lists
the tasks and actors that wait at a breakpoint, with function and line.
launch-json prints, or puts into a launch.json, what lets VS Code attach to all
of them at once.

Example:
  {prog} ray-debugger check --slurm 2504248
  {prog} ray-debugger sessions --ray 10.0.0.1:6379
  {prog} ray-debugger launch-json --output .

Exit status: 0 all is well; 1 something is in the way, or nobody waits;
2 could not look.
"""


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        _COMMAND,
        run,
        help="check Ray's debugger, and list who waits in it",
        text=_TEXT,
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=list(_ACTIONS),
        default="check",
        help="what to do (default: %(default)s)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="where the cluster is, as HOST:6379 (default: that of this node)",
    )
    _add_check_options(parser)
    _add_launch_options(parser)
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=120.0,
        metavar="S",
        help="seconds that it may take (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_launch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="launch-json: the launch.json to add to, or the folder whose "
        ".vscode has it",
    )
    parser.add_argument(
        "--map",
        action="append",
        type=_mapping,
        metavar="LOCAL=REMOTE",
        help="launch-json: the folder here that has the files of one there",
    )


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm", metavar="JOB", help="check: the Slurm job of the cluster"
    )
    parser.add_argument(
        "--dashboard",
        metavar="HOST:PORT",
        help="check: the dashboard, such as the end of a tunnel",
    )
    parser.add_argument(
        "--login", metavar="HOST", help="check: the login node, for the tunnel"
    )
    parser.add_argument(
        "--port", type=int, help="check: the local port of the tunnel"
    )


def _mapping(text: str) -> tuple[str, str]:
    local, mark, remote = text.partition("=")
    if not (local and mark and remote):
        raise ValueError(text)
    return local, remote


# argparse names what it could not read after the function.
_mapping.__name__ = "LOCAL=REMOTE"


def run(args: argparse.Namespace) -> int:
    """
    Do what was asked for.
    """
    return _ACTIONS[args.what](args)


def _check(args: argparse.Namespace) -> int:
    from ..ray import check_ray_debugger

    report = check_ray_debugger(
        args.ray,
        job=args.slurm,
        dashboard=args.dashboard,
        login=args.login,
        local_port=args.port,
        timeout_s=args.timeout,
    )
    if args.json:
        print_json(_COMMAND, report.to_dict())
    else:
        print(report)
    return int(not report.is_ready)


def _sessions(args: argparse.Namespace) -> int:
    sessions = _waiting(args)
    if args.json:
        rows = [session.to_dict() for session in sessions]
        print_json(_COMMAND, {"sessions": rows})
    elif sessions:
        print(_table(sessions))
    else:
        warn("nobody waits in Ray's debugger")
    return int(not sessions)


def _table(sessions: Sequence[RayDebugSession]) -> str:
    from .._text import text_table

    return text_table(
        ("task", "node", "pid", "attach to", "kind", "where"),
        (
            (
                session.title,
                session.node,
                session.pid,
                f"{session.host}:{session.port}",
                session.kind,
                "; ".join(map(str, session.locations)) or session.note,
            )
            for session in sessions
        ),
    )


def _launch(args: argparse.Namespace) -> int:
    from ..ray import launch_json, write_launch_json

    sessions = _waiting(args)
    mappings = dict(args.map) if args.map else None
    launch = launch_json(sessions, path_mappings=mappings)
    count = len(launch["configurations"])
    if args.output is None:
        print(json.dumps(launch, indent=4))
        return int(not count)
    path = write_launch_json(Path(args.output), launch)
    if args.json:
        print_json(_COMMAND, {"path": str(path), "launch": launch})
    else:
        print(f"{path}: {count} configurations")
    return int(not count)


def _waiting(args: argparse.Namespace) -> tuple[RayDebugSession, ...]:
    from ..ray import ray_debug_sessions

    return ray_debug_sessions(args.ray, timeout_s=args.timeout)


_ACTIONS = {"check": _check, "sessions": _sessions, "launch-json": _launch}

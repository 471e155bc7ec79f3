"""
``health`` and ``preflight``: check this node, and whether a hang can be diagnosed.
"""

from __future__ import annotations

import argparse
import socket

from .options import (
    Commands,
    add_command,
    add_full_option,
    add_process_options,
    positive_seconds,
)
from .output import print_json, print_result, waiting


_HEALTH_TEXT = """
Look at this node: its GPUs, what the kernel complains of, memory, disks,
network, Ray; and whether the variables of the workers fit it and each other.
Nothing is changed, and root is not needed, though it sees more.

Example:
  {prog} health
  {prog} health --folder /shared/checkpoints --ray /tmp/ray --json

Exit status: 0 nothing is wrong, as far as can be seen; 1 something was found;
2 could not look.
"""


def add_health_parser(commands: Commands) -> None:
    """
    Add the command ``health``.
    """
    parser = add_command(
        commands,
        "health",
        run_health,
        help="is this node, with its GPUs and its network, able to work?",
        text=_HEALTH_TEXT,
    )
    who = parser.add_argument_group("whose variables are compared")
    add_process_options(who)
    parser.add_argument(
        "--folder",
        action="append",
        metavar="DIR",
        help="the job writes here; may be given several times",
    )
    parser.add_argument(
        "--ray",
        action="append",
        metavar="DIR",
        help="look for signs of life of Ray, whose temporary folder or session "
        "this is, such as /tmp/ray",
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=10.0,
        metavar="S",
        help="be done after so many seconds (default: %(default)g)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as JSON"
    )
    add_full_option(parser)


def run_health(args: argparse.Namespace) -> int:
    """
    Print the state of the node; return 1 if anything is wrong.
    """
    from ..health import check_environment, check_node
    from ..processes import find_workers, find_workers_by_pid

    with waiting("looking at this node"):
        workers = (
            find_workers_by_pid(args.pid)
            if args.pid
            else find_workers(args.pattern or ())
        )
        node = check_node(
            pids=[worker.pid for worker in workers],
            folders=args.folder or (),
            ray_sessions=args.ray or (),
            timeout_s=args.timeout,
        )
        environment = check_environment(
            workers, nodes={socket.gethostname(): node}
        )
    if args.json:
        data = {
            "node": node.to_dict(),
            "environment": environment.to_dict(),
        }
        print_json("health", data)
    else:
        print_result(node, is_fine=node.is_healthy, full=args.full)
        print()
        is_fine = environment.is_healthy
        print_result(environment, is_fine=is_fine, full=args.full)
    return int(not (node.is_healthy and environment.is_healthy))


_PREFLIGHT_TEXT = """
Check, before a job hangs, whether its processes may be looked into on this
node, and which tools are there; say what to do about what is missing.  Run it
as the user, and in the container, that will have to do it.

Example:
  {prog} preflight

Exit status: 0 all is well; 1 something is in the way; 2 could not look.
"""


def add_preflight_parser(commands: Commands) -> None:
    """
    Add the command ``preflight``.
    """
    parser = add_command(
        commands,
        "preflight",
        run_preflight,
        help="will it be possible to find out what is wrong?",
        text=_PREFLIGHT_TEXT,
    )
    parser.add_argument(
        "--json", action="store_true", help="print the checks as JSON"
    )


def run_preflight(args: argparse.Namespace) -> int:
    """
    Print what was checked; return 1 if anything is missing.
    """
    from ..snapshots import preflight

    report = preflight()
    if args.json:
        print_json("preflight", report.to_dict())
    else:
        print(report)
    return int(not report.is_ready)

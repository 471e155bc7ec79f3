"""
``health`` and ``preflight``: check this node, and whether a hang can be diagnosed.
"""

from __future__ import annotations

import socket

from argparse import Namespace

from .command import (
    FULL,
    JSON,
    PROCESSES,
    command,
    existing_folder,
    group,
    many,
    seconds,
)
from .output import print_json, print_result, report, waiting


@command(
    "health",
    "is this node, with its GPUs and its network, able to work?",
    group("whose variables are compared", *PROCESSES),
    many("--folder", "DIR", "the job writes here", type=existing_folder),
    many(
        "--ray",
        "DIR",
        "look for signs of life of Ray, whose temporary folder or session "
        "this is, such as /tmp/ray",
        type=existing_folder,
    ),
    seconds("--timeout", "be done after so many seconds", 10.0),
    JSON,
    FULL,
)
def health(args: Namespace) -> int:
    """
    Look at this node: its GPUs, what the kernel complains of, memory, disks,
    network, Ray; and whether the variables of the workers fit it and each
    other.  Nothing is changed, and root is not needed, though it sees more.

    Example:
      {prog} health
      {prog} health --folder /shared/checkpoints --ray /tmp/ray --json

    Exit status: 0 nothing is wrong, as far as can be seen; 1 something was
    found; 2 could not look.
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
        nodes = {socket.gethostname(): node}
        environment = check_environment(workers, nodes=nodes)
    if args.json:
        data = {"node": node, "environment": environment}
        print_json(args, {name: x.to_dict() for name, x in data.items()})
    else:
        print_result(node, is_fine=node.is_healthy, full=args.full)
        print()
        is_fine = environment.is_healthy
        print_result(environment, is_fine=is_fine, full=args.full)
    return int(not (node.is_healthy and environment.is_healthy))


@command("preflight", "will it be possible to find out what is wrong?", JSON)
def preflight(args: Namespace) -> int:
    """
    Check, before a job hangs, whether its processes may be looked into on this
    node, and which tools are there; say what to do about what is missing.  Run
    it as the user, and in the container, that will have to do it.

    Example:
      {prog} preflight

    Exit status: 0 all is well; 1 something is in the way; 2 could not look.
    """
    from ..snapshots import preflight

    checks = preflight()
    return report(args, checks, is_fine=checks.is_ready)

"""
``mcp``: answer the questions of agents.
"""

from __future__ import annotations

import os

from argparse import Namespace

from ..errors import DistdebugError
from .command import command, existing_folder, flag, group, seconds, value


@command(
    "mcp",
    "answer the questions of agents (Model Context Protocol)",
    value(
        "folders DIR",
        "a folder that may be read; no other is",
        nargs="*",
        type=existing_folder,
    ),
    group(
        "what is permitted beside reading these folders",
        flag(
            "--live",
            "look at this node, and at the processes that its user may see",
        ),
        flag(
            "--allow-stopping",
            "with --live: stop processes for seconds, for native stacks and "
            "GPU kernels",
        ),
    ),
    seconds("--timeout", "limit of each answer", 50.0),
    flag("--skill", "print the skill file, and exit"),
)
def mcp(args: Namespace) -> int:
    """
    Serve the questions of distdebug to an agent, over standard input and
    output; an agent starts it.  Only the folders named here are read, nothing
    is written, and without --live no process is looked at.

    Example:
      {prog} mcp /shared/hangs
      {prog} mcp --live /shared/hangs ~/runs
    """
    from .. import agents

    if args.skill:
        print(agents.skill_file())
        return 0
    if not args.folders or (args.allow_stopping and not args.live):
        msg = (
            "--allow-stopping goes with --live"
            if args.folders
            else "no folder is named, so nothing could be read"
        )
        raise DistdebugError(msg, remedy="distdebug mcp --live DIR")

    from ..integrations import mcp_server

    mcp_server.serve(
        agents.HangTools(
            folders=tuple(map(os.path.realpath, args.folders)),
            live=args.live,
            allow_stopping=args.allow_stopping,
            timeout_s=args.timeout,
        )
    )
    return 0

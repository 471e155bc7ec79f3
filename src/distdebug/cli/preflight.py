"""
``preflight``: will it be possible to find out what is wrong?
"""

from __future__ import annotations

import argparse

from .options import Commands, add_command
from .output import print_json


_TEXT = """
Check, before a job hangs, whether its processes may be looked into on this
node, and which tools are there; say what to do about what is missing.  Run it
as the user, and in the container, that will have to do it.

Example:
  {prog} preflight

Exit status: 0 all is well; 1 something is in the way; 2 could not look.
"""


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "preflight",
        run,
        help="will it be possible to find out what is wrong?",
        text=_TEXT,
    )
    parser.add_argument(
        "--json", action="store_true", help="print the checks as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """
    Print what was checked; 1 if anything is in the way.
    """
    from ..snapshots import preflight

    report = preflight()
    if args.json:
        print_json("preflight", report.to_dict())
    else:
        print(report)
    return int(not report.is_ready)

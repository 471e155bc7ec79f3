"""
``diagnose``: so what is the root cause?
"""

from __future__ import annotations

import argparse

from .options import Commands, add_command
from .output import counting, print_json


__all__ = ["add_parser", "run"]

_TEXT = """
Find the root cause of a job that is stuck, slow, or dead, in whatever was
collected: Flight Recorder dumps, side-cars, stacks, logs of any launcher,
session folders of Ray, snapshots.  It needs neither the job nor PyTorch.

Example:
  {prog} diagnose dumps/
  {prog} diagnose train.log ray-of-node-1/ ray-of-node-2/
  {prog} diagnose --json dumps/ stacks/ | jq -r .verdict.summary

Exit status: 0 looked and found nothing wrong; 1 found something, or cannot
tell; 2 could not look.
"""


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "diagnose",
        run,
        help="find the root cause in what was collected",
        text=_TEXT,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, or a folder that is searched with all that is in it",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the diagnosis as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """
    Print the diagnosis; 1 if anything was found.
    """
    from distdebug import diagnose

    with counting("reading dumps") as progress:
        diagnosis = diagnose(*args.paths, progress=progress)
    if args.json:
        print_json("diagnose", diagnosis.to_dict())
    else:
        print(diagnosis)
    return int(not diagnosis.is_healthy)

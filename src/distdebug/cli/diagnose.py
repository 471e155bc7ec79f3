"""
``diagnose``: find the root cause in what was collected.
"""

from __future__ import annotations

import argparse
import sys

from typing import TYPE_CHECKING

from .._text import clean
from .options import Commands, add_command, add_full_option, output_file
from .output import counting, print_json, print_result


if TYPE_CHECKING:
    from ..findings import Diagnosis


_TEXT = """
Find the root cause of a job that is stuck, slow, or dead, in whatever was
collected: Flight Recorder dumps, side-cars, stacks, logs of any launcher,
session folders of Ray, snapshots.  It needs neither the job nor PyTorch.

Example:
  {prog} diagnose dumps/
  {prog} diagnose train.log ray-of-node-1/ ray-of-node-2/
  {prog} diagnose dumps/ stacks/ --html report.html
  {prog} diagnose --json dumps/ stacks/ | jq -r .verdict.summary

Exit status: 0 looked and found nothing wrong; 1 found something, or cannot
tell; 2 could not look.
"""


def add_diagnose_parser(commands: Commands) -> None:
    """
    Add the command ``diagnose``.
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
    parser.add_argument(
        "--html",
        type=output_file,
        metavar="FILE",
        help="also write a page that shows all of it, for any browser",
    )
    add_full_option(parser)


def run(args: argparse.Namespace) -> int:
    """
    Print the diagnosis; return 1 if anything was found.
    """
    from distdebug import diagnose

    if args.html is not None:
        _check_page()
    with counting("reading dumps") as progress:
        diagnosis = diagnose(*args.paths, progress=progress)
    try:
        # Written before printing: the reader may close the pipe early.
        if args.html is not None:
            _write_page(diagnosis, args.html)
    finally:
        if args.json:
            print_json("diagnose", diagnosis.to_dict())
        else:
            is_fine = diagnosis.is_healthy
            print_result(diagnosis, is_fine=is_fine, full=args.full)
    return int(not diagnosis.is_healthy)


def _check_page() -> None:
    """
    Fail before a long analysis, not after it, if no page can be written.
    """
    from importlib.util import find_spec

    from ..errors import MissingDependencyError

    if find_spec("jinja2") is None:
        msg = "a report needs jinja2, which is not installed"
        remedy = 'pip install "distdebug[report]"'
        raise MissingDependencyError(msg, remedy=remedy)


def _write_page(diagnosis: Diagnosis, file: str) -> None:
    from ..report import write_report

    # Standard output is for the diagnosis alone; a script may read it.
    path = write_report(diagnosis, file)
    print(f"report: {clean(str(path), limit=1000)}", file=sys.stderr)

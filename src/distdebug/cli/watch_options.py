"""
What can be said to ``watch``?
"""

from __future__ import annotations

import argparse

from .options import add_process_options, positive_seconds


__all__ = ["add_progress", "add_what", "add_when", "add_whom"]


def add_when(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that say when to look.
    """
    when = parser.add_argument_group("when to look")
    when.add_argument(
        "--wait-seconds",
        action="append",
        type=positive_seconds,
        metavar="S",
        help="look after so many seconds in any case; may be given several "
        "times",
    )
    when.add_argument(
        "--floor",
        type=positive_seconds,
        default=60.0,
        metavar="S",
        help="a job that moved within so many seconds is not stuck "
        "(default: %(default)g)",
    )
    when.add_argument(
        "--start",
        type=positive_seconds,
        default=600.0,
        metavar="S",
        help="the first sign of progress may take so many seconds "
        "(default: %(default)g)",
    )
    when.add_argument(
        "--until-exit",
        action="store_true",
        help="go on after the last wait until the processes are gone",
    )
    when.add_argument(
        "--config",
        metavar="FILE",
        help="take wait_seconds and output_dir from the debug: section of "
        "this job file (YAML)",
    )


def add_progress(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that say what progress is.
    """
    when = parser.add_argument_group("what progress is")
    when.add_argument(
        "--progress",
        action="append",
        metavar="FILE",
        help="the job makes progress as long as this file, or a file in this "
        "folder, changes; may be given several times",
    )
    when.add_argument(
        "--gpu",
        action="store_true",
        help="the job makes progress as long as its GPUs do something",
    )


def add_what(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that say whom to watch, and where to write.
    """
    what = parser.add_argument_group("what to watch, and where to write")
    what.add_argument(
        "--output-dir",
        metavar="DIR",
        help="where to put snapshots (default: LOG_DIR/backtraces)",
    )
    what.add_argument(
        "--log-dir",
        default=".",
        metavar="DIR",
        help="folder of the job's logs (default: here)",
    )
    what.add_argument(
        "--dump-dir",
        metavar="D",
        help="where the ranks put their Flight Recorder dumps",
    )
    what.add_argument(
        "--log", action="append", metavar="FILE", help="keep the end of it"
    )
    add_process_options(what)


def add_whom(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that say whom to tell.
    """
    tell = parser.add_argument_group("whom to tell if something is wrong")
    tell.add_argument(
        "--on-hang",
        action="append",
        metavar="COMMAND",
        help="run this command; it reads JSON, and DISTDEBUG_SUMMARY and "
        "DISTDEBUG_FOLDER are set; it is not run by a shell: for pipes and "
        "variables, use sh -c '…'",
    )
    tell.add_argument(
        "--webhook",
        action="append",
        metavar="FILE",
        help="send JSON to the address in this file",
    )

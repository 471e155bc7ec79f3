"""
Build the argument parser from all commands.
"""

from __future__ import annotations

import argparse
import sys

from typing import NoReturn

from .._text import clean
from .debug import add_dbg_parser, add_ray_debug_parser
from .demo import add_demo_parser
from .diagnose import add_diagnose_parser
from .flight_recorder import (
    add_analyze_parser,
    add_dump_parser,
    add_env_parser,
    add_timeline_parser,
)
from .logs import add_logs_parser, add_phase_parser
from .node import add_health_parser, add_preflight_parser
from .nsight import add_nsight_parser
from .snapshot import add_snapshot_parser
from .stacks import add_stacks_parser
from .watch import add_watch_parser


# In the order in which ``--help`` lists them.
_COMMANDS = (
    add_demo_parser,
    add_diagnose_parser,
    add_analyze_parser,
    add_timeline_parser,
    add_stacks_parser,
    add_logs_parser,
    add_phase_parser,
    add_health_parser,
    add_snapshot_parser,
    add_watch_parser,
    add_dbg_parser,
    add_dump_parser,
    add_env_parser,
    add_preflight_parser,
    add_nsight_parser,
    add_ray_debug_parser,
)

_DESCRIPTION = """\
Which rank of a distributed PyTorch job is stuck, in which collective, at
which line, and why?
"""

_EPILOG = """\
New here?  Watch a real job hang and be diagnosed:
  {prog} demo

A job that hangs right now, prepared or not:
  {prog} stacks

A job of yours, held at a breakpoint of all its ranks:
  {prog} dbg

A job of yours, from recording to diagnosis:
  eval "$({prog} env --dump-dir dumps)"    before it is started
  {prog} dump dumps                        when it hangs
  {prog} diagnose dumps                    anywhere, also without PyTorch

Exit status: 0 looked and found nothing wrong; 1 found something;
2 could not look.
"""


class _Parser(argparse.ArgumentParser):
    """
    A parser that cleans the arguments that it quotes in errors.
    """

    def error(self, message: str) -> NoReturn:
        """
        Print the error, and exit.
        """
        super().error(clean(message, limit=1000))


class _Version(argparse.Action):
    """
    Look the version up only when it is asked for.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import distdebug

        print(f"distdebug {distdebug.__version__}")
        parser.exit()


def build_parser(prog: str) -> argparse.ArgumentParser:
    """
    Build the parser of the whole command line.

    Args:
        prog: The name of the program in examples.

    Returns:
        The parser.  Parsed arguments have a function *run* that takes them.
    """
    parser = _Parser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="print the version and exit",
    )
    parser.set_defaults(run=lambda _: _show_help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_parser in _COMMANDS:
        add_parser(commands)

    return parser


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2

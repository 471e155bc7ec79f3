"""
Build the argument parser from all commands, and its completion for shells.
"""

from __future__ import annotations

import argparse
import sys

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from .._text import clean
from .agents import mcp
from .command import (
    Command,
    Option,
    add_command,
    add_verbosity,
    command,
)
from .debug import dbg, ray_debugger
from .diagnose import demo, diagnose
from .flight_recorder import analyze, dump, env, replay, schedule, timeline
from .logs import logs, phase
from .node import health, preflight, snapshot, stacks
from .nsight import nsight
from .schema import schema
from .watch import watch


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
    A parser whose errors are clean, and name what was probably meant.

    Attributes:
        fill: Adds the options, if it is the parser of a command; most runs ask
            for one of them.
    """

    fill: Callable[[], None] | None = None

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """
        Parse the arguments that are known.
        """
        self.complete()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """
        Return the help of a command.
        """
        self.complete()
        return super().format_help()

    def complete(self) -> None:
        """
        Add the options that are still to be added.
        """
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill()

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None
    ) -> argparse.Namespace:
        """
        Parse the arguments of a command.
        """
        parsed, unknown = self.parse_known_args(args)
        if unknown:
            parser = getattr(parsed, "parser", self)
            names = parser._option_string_actions  # noqa: SLF001
            meant = [_meant(x.partition("=")[0], names) for x in unknown]
            parser.error(
                f"unrecognized arguments: {' '.join(unknown)}{''.join(meant)}"
            )
        return parsed

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return

        choices = [*map(str, action.choices)]
        why = _meant(value, choices) or f"; choose from {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"no such choice: {value}{why}")

    def error(self, message: str) -> NoReturn:
        """
        Print the error, and exit.
        """
        super().error(clean(message, limit=1000))


def _meant(text: str, names: Iterable[str]) -> str:
    """
    Return which of some names was probably meant, as the end of an error.
    """
    from difflib import get_close_matches

    close = get_close_matches(text, names, 1)
    return f"; did you mean {close[0]}?" if close else ""


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
        *("-V", "--version"),
        action=_Version,
        nargs=0,
        help="print the version and exit",
    )
    add_verbosity(parser)
    parser.set_defaults(run=lambda _: _show_help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for about in _COMMANDS:
        add_command(commands, about, prog)

    return parser


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


@command(
    "completion",
    "print what makes a shell complete commands and options",
    Option(
        ["shell"],
        {"choices": ("bash", "zsh", "fish", "tcsh"), "help": "which"},
    ),
)
def completion(args: argparse.Namespace) -> int:
    """
    Print a script that makes a shell complete commands, options, and files.

    Example:
      eval "$({prog} completion bash)"                 in ~/.bashrc
      {prog} completion zsh > ~/.zfunc/_distdebug      a folder of $fpath
      {prog} completion fish > ~/.config/fish/completions/distdebug.fish
      {prog} completion tcsh > ~/.distdebug.tcsh       sourced by ~/.tcshrc
    """
    import shtab

    files = ("FILE", "FOLDER", "LOG", "PATH", "SESSION")
    kinds = dict.fromkeys(files, shtab.FILE)
    kinds |= dict.fromkeys(("D", "DIR", "OUTPUT_DIR"), shtab.DIRECTORY)
    parser = build_parser("distdebug")
    _complete_paths(parser, kinds)
    print(shtab.complete(parser, args.shell))
    return 0


def _complete_paths(
    parser: argparse.ArgumentParser, kinds: Mapping[str, Any]
) -> None:
    """
    Have paths completed, which are known by the placeholders of their options.
    """
    for action in parser._actions:  # noqa: SLF001 argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                below.complete()
                _complete_paths(below, kinds)
        elif kind := kinds.get(str(action.metavar)):
            action.complete = kind  # type: ignore[attr-defined]


# In the order in which ``--help`` lists them.
_COMMANDS: tuple[Command, ...] = (
    *(demo, diagnose, analyze, replay, timeline, schedule, stacks, logs),
    *(phase, health),
    *(snapshot, watch, dbg, dump, env, preflight, nsight, ray_debugger),
    *(mcp, schema, completion),
)

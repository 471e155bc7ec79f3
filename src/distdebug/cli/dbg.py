"""
``dbg``: stop, ask, and steer the ranks of a job from a second terminal.
"""

from __future__ import annotations

import argparse

from typing import TYPE_CHECKING, Any

from .options import Commands, add_command, positive_seconds
from .output import print_json


if TYPE_CHECKING:
    from ..debugger.client.model import Answers, Listing
    from ..nodes.model import Engine


__all__ = ["add_parser", "run"]

_TEXT = """
Ask the ranks of a job on this node that called distdebug.arm(), or stopped at a
breakpoint.  Leaving holds nobody, and ends nobody.

Commands: list, attach [GROUP] RANK, detach, cast [GROUP] ranks(...) COMMAND,
continue, eval, stack, interrupt, resume, extend, abort, help, quit.

Example:
  PYTHONBREAKPOINT=distdebug.debugger.set_trace DISTDEBUG=1 torchrun ... train.py
  {prog} dbg                                 in a second terminal
  {prog} dbg -c 'cast ranks(:) p loss'
  {prog} dbg -c 'stack ranks(tp=0)' --json
  {prog} dbg --slurm 1234 -c 'stack'         on every node of the job

Exit status: 0 everybody did as asked; 1 somebody did not; 2 could not ask.
"""


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "dbg",
        run,
        help="stop, ask, and steer the ranks of a job",
        text=_TEXT,
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="the folder of the sockets; by default DISTDEBUG_DIR, or that of "
        "the only job of yours on this node",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--slurm",
        metavar="JOB",
        help="with -c: the ranks on every node of this Slurm job",
    )
    where.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="with -c: the ranks on every node of this Ray cluster, HOST:PORT "
        "or 'auto'",
    )
    parser.add_argument(
        "-c",
        "--command",
        action="append",
        metavar="COMMAND",
        help="do this instead of asking what; may be given several times",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what the commands of -c give as JSON, one line each",
    )
    parser.add_argument(
        "--wait",
        type=positive_seconds,
        default=5.0,
        metavar="S",
        help="wait for so long for ranks to stop again (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """
    Talk to a person, or obey the commands that were given.
    """
    if args.slurm is not None or args.ray is not None:
        return _everywhere(args)

    from ..debugger.client.connecting import connect

    with connect(args.dir) as client:
        if args.command:
            return max([_obey(client, text, args) for text in args.command])

        from ..debugger.client.shell import line_editing, run_shell

        with line_editing(client):
            run_shell(client, wait_s=args.wait)

    return 0


def _everywhere(args: argparse.Namespace) -> int:
    from ..debugger.client.everywhere import ask_everywhere
    from ..errors import DebuggerError

    if not args.command:
        msg = "on several nodes, the commands have to be given"
        raise DebuggerError(msg, remedy="add -c 'cast ranks(:) p x'")

    engine = _engine(args)
    return max(
        [
            _show(
                text,
                ask_everywhere(
                    text, engine=engine, folder=args.dir, wait_s=args.wait
                ),
                args,
            )
            for text in args.command
        ]
    )


def _engine(args: argparse.Namespace) -> Engine:
    if args.ray is not None:
        from ..nodes.ray import Ray

        return Ray(address=args.ray)

    from ..nodes.slurm import Slurm

    return Slurm(job=args.slurm)


def _obey(client: Any, text: str, args: argparse.Namespace) -> int:
    from ..debugger.client.commands import parse_command
    from ..debugger.client.obeying import HELP, obey
    from ..errors import DebuggerError

    command = parse_command(text)
    if command.word in {"help", "quit", "detach"}:
        print(HELP if command.word == "help" else "")
        return 0
    if command.word == "attach":
        msg = "attach talks to a person"
        raise DebuggerError(msg, remedy="cast ranks(3) COMMAND")

    return _show(text, obey(client, command, wait_s=args.wait), args)


def _show(
    text: str, answers: Answers | Listing, args: argparse.Namespace
) -> int:
    if args.json:
        print_json("dbg", _plain(text, answers), in_one_line=True)
    else:
        print(answers)
    return _status(answers)


def _plain(text: str, answers: Answers | Listing) -> dict[str, Any]:
    from ..debugger.client.model import Listing

    if isinstance(answers, Listing):
        data = {
            "processes": answers.to_records(),
            "silent": list(answers.silent),
        }
    else:
        data = answers.to_dict()
    return {"typed": text, **data}


def _status(answers: Answers | Listing) -> int:
    outputs = getattr(answers, "outputs", ())
    missing = getattr(answers, "not_stopped", ())
    return int(
        bool(missing or answers.silent) or any(o.is_error for o in outputs)
    )

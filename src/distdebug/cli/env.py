"""
``env``: which variables have to be set so that a job records, or can be asked?
"""

from __future__ import annotations

import argparse
import os
import shlex

from .options import Commands, add_command, warn
from .output import print_json


_TEXT = """
Print shell commands that switch on PyTorch's Flight Recorder, for jobs whose
code cannot call distdebug.enable_flight_recorder().  What is set already stays
as it is.  The folder for the dumps is made.

Example:
  eval "$({prog} env --dump-dir dumps)" && torchrun train.py
"""


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "env",
        run,
        help="print what to export so that a job records",
        text=_TEXT,
    )
    _add_recording_options(parser)
    debugger = parser.add_argument_group("to debug instead of to record")
    debugger.add_argument(
        "--debugger",
        action="store_true",
        help="print what lets the ranks be debugged, and nothing else",
    )
    debugger.add_argument(
        "--post-mortem",
        action="store_true",
        help="with --debugger: a rank that fails waits to be looked at",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print every variable, what becomes of it, and why, as JSON",
    )


def _add_recording_options(parser: argparse.ArgumentParser) -> None:
    recording = parser.add_argument_group("what to record")
    recording.add_argument(
        "--dump-dir", metavar="DIR", help="folder of the dumps"
    )
    recording.add_argument(
        "--buffer-size",
        type=int,
        default=2000,
        metavar="N",
        help="how many calls to remember (default: %(default)s)",
    )
    recording.add_argument(
        "--no-dump-on-timeout",
        action="store_true",
        help="do not dump when a call times out",
    )
    recording.add_argument(
        "--cpp-stacks", action="store_true", help="note C++ stacks as well"
    )
    recording.add_argument(
        "--timing", action="store_true", help="note when calls start"
    )
    recording.add_argument(
        "--override",
        action="store_true",
        help="change also what is set already",
    )
    recording.add_argument(
        "--torch",
        metavar="VERSION",
        help="version of torch in the job (default: the one installed here, "
        "or else all)",
    )


def run(args: argparse.Namespace) -> int:
    """
    Print the exports.
    """
    if args.debugger:
        return _of_debugger(args)

    from ..errors import DistdebugError

    if args.post_mortem:
        msg = "--post-mortem goes with --debugger"
        raise DistdebugError(msg, remedy="see env --help")

    from ..flight_recorder import make_folder, plan_flight_recorder

    try:
        settings = plan_flight_recorder(
            os.environ,
            args.torch or _installed_torch(),
            dump_dir=args.dump_dir,
            buffer_size=args.buffer_size,
            dump_on_timeout=not args.no_dump_on_timeout,
            cpp_stacks=args.cpp_stacks,
            timing=args.timing,
            override=args.override,
        )
    except ValueError as exc:
        raise DistdebugError(str(exc), remedy="see env --help") from exc

    make_folder(settings.dump_dir)
    for warning in settings.warnings:
        warn(warning)
    if args.json:
        print_json("env", settings.to_dict())
    else:
        print(settings.to_exports(), end="")
    return 0


def _of_debugger(args: argparse.Namespace) -> int:
    from ..debugger import job_environment

    variables = job_environment(post_mortem=args.post_mortem)
    if args.json:
        print_json("env", {"variables": variables})
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


def _installed_torch() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None

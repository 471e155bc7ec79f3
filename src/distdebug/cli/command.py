"""
Describe a command once: its arguments, its help, and the function that runs it.
"""

from __future__ import annotations

import argparse
import re
import signal

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from .. import nodes


def clean_up_on_signals() -> None:
    """
    Let SIGTERM and SIGHUP end the command as Ctrl-C does.

    By default they kill Python at once, and leave a job of ours running.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Option(NamedTuple):
    """
    An option, or an argument, and what argparse has to know about it.
    """

    names: Sequence[str]
    settings: dict[str, Any]


class Group(NamedTuple):
    """
    Options below a title of their own, or of which only one may be given.
    """

    title: str | None
    options: Sequence[Option | Group]
    is_required: bool = False


Options = Sequence[Option | Group]


class Command(NamedTuple):
    """
    One command.

    Attributes:
        name: What is typed.

        summary: One line for the list of commands.

        options: Its arguments and options.

        run: Takes the parsed arguments, and returns the exit status.  Its
            docstring is the command's own help, with an example; ``{prog}``
            stands for the name of the program.

        commands: Commands below this one, which are run instead.
    """

    name: str
    summary: str
    options: Options
    run: Callable[[Namespace], int]
    commands: Sequence[Command] = ()


def command(
    name: str,
    summary: str,
    *options: Option | Group,
    commands: Sequence[Command] = (),
) -> Callable[[Callable[[Namespace], int]], Command]:
    """
    Make a command of the function that runs it.

    Args:
        name: What is typed.

        summary: One line for the list of commands.

        options: Its arguments and options.

        commands: Commands below this one, which are run instead.
    """
    return lambda run: Command(name, summary, options, run, commands)


def add_command(parsers: Any, about: Command, prog: str) -> None:
    """
    Add a command to the sub-parsers of argparse; its options follow when needed.

    Args:
        parsers: The sub-parsers, whose type argparse does not name.

        about: The command.

        prog: The name of the program in its examples.
    """
    parser = parsers.add_parser(
        about.name,
        help=about.summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.fill = partial(_fill_parser, parser, about, prog)


def _fill_parser(parser: Any, about: Command, prog: str) -> None:
    import textwrap

    text = textwrap.dedent(about.run.__doc__ or "").strip()
    about_it, mark, example = text.partition("\n\nExample")
    parser.description = about_it or about.summary.capitalize()
    parser.epilog = f"{mark.strip()}{example}".replace("{prog}", prog)
    name = parser.prog.removeprefix(prog).strip()
    parser.set_defaults(run=about.run, command_name=name, parser=parser)
    _add_options(parser, about.options)
    add_verbosity(parser)
    if about.commands:
        below = parser.add_subparsers(
            title="what to do", metavar="WHAT", required=True
        )
        for one in about.commands:
            add_command(below, one, prog)


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that say how much is printed beside the result.
    """
    group = parser.add_mutually_exclusive_group()
    for names, level, text in (
        (("-q", "--quiet"), -1, "print the result and errors only"),
        (("-v", "--verbose"), 1, "log the commands that are run, with times"),
    ):
        group.add_argument(
            *names,
            dest="verbosity",
            action="store_const",
            const=level,
            default=argparse.SUPPRESS,
            help=text,
        )


def _add_options(parser: Any, options: Options) -> None:
    for option in options:
        if isinstance(option, Option):
            parser.add_argument(*option.names, **option.settings)
        elif option.title is None:
            group = parser.add_mutually_exclusive_group(
                required=option.is_required
            )
            _add_options(group, option.options)
        else:
            group = parser.add_argument_group(option.title)
            _add_options(group, option.options)


def group(title: str, *options: Option | Group) -> Group:
    """
    Put options below a title.
    """
    return Group(title, options)


def one_of(*options: Option, required: bool = False) -> Group:
    """
    Make options exclude each other.
    """
    return Group(None, options, required)


def flag(name: str, about: str, **more: Any) -> Option:
    """
    Describe an option without a value.
    """
    return Option([name], {"action": "store_true", "help": about, **more})


def value(usage: str, about: str, **more: Any) -> Option:
    """
    Describe an argument, or an option with a value.

    Args:
        usage: Its names and the placeholder of its value, such as
            ``"-o, --output FILE"``, or ``"paths PATH"`` for an argument.

        about: What it does.

        more: What else argparse has to know.
    """
    names, _, metavar = usage.rpartition(" ")
    settings = {"metavar": metavar, "help": about, **more}
    return Option(names.split(", "), settings)


def many(usage: str, about: str, **more: Any) -> Option:
    """
    Describe an option that may be given several times; see `value`.
    """
    about += "; may be given several times"
    return value(usage, about, action="append", **more)


def seconds(name: str, about: str, default: float | None = None) -> Option:
    """
    Describe an option whose value is a number of seconds.
    """
    if default is not None:
        about += " (default: %(default)g)"
    return value(f"{name} S", about, type=positive_seconds, default=default)


def output_file(text: str) -> str:
    """
    Parse the name of an output file, and check now that it can be written.

    Raises:
        argparse.ArgumentTypeError: No file can be written there.
    """
    from pathlib import Path

    from .._text import clean

    path = Path(text)
    if not text or "\0" in text:
        msg = "this is no name of a file"
    elif path.is_dir():
        msg = f"{clean(text)} is a folder; name a file in it"
    elif not path.parent.is_dir():
        msg = f"there is no folder {clean(str(path.parent))}"
    else:
        return text

    raise argparse.ArgumentTypeError(msg)


def existing_folder(text: str) -> str:
    """
    Parse the name of a folder that is there.

    Raises:
        argparse.ArgumentTypeError: It is not there.
    """
    from .._io import is_folder
    from .._text import clean

    if is_folder(text):
        return text

    msg = f"there is no folder {clean(text)}"
    raise argparse.ArgumentTypeError(msg)


def positive_count(text: str) -> int:
    """
    Parse a count of at least one.

    Raises:
        ValueError: It is less.
    """
    number = int(text)
    if number < 1:
        raise ValueError(text)

    return number


def positive_seconds(text: str) -> float:
    """
    Parse a number of seconds above zero.

    Raises:
        ValueError: It is not.
    """
    number = float(text)
    if not 0 < number < 1e6:
        raise ValueError(text)

    return number


def process_number(text: str) -> int:
    """
    Parse a process id.

    Raises:
        ValueError: No process can have it.
    """
    number = int(text)
    # The limit of a 64-bit kernel.
    if not 0 < number <= 1 << 22:
        raise ValueError(text)

    return number


def torch_version(text: str) -> str:
    """
    Parse a version of torch, such as ``2.13.0``.

    Raises:
        ValueError: It does not begin like one.
    """
    if not re.match(r"\d+\.\d", text):
        raise ValueError(text)

    return text


# argparse names the function in its error message.
positive_count.__name__ = "number above zero"
positive_seconds.__name__ = "number of seconds above zero"
process_number.__name__ = "number of a process"
torch_version.__name__ = "version of torch"


# What several commands share.
JSON = flag("--json", "print the result as JSON")
FULL = flag(
    "--full",
    "show all of long lists, and evidence and tables as wide as they are",
)
EVIDENCE = value(
    "paths PATH",
    "a file, or a folder that is searched with all that is in it",
    nargs="+",
)
PROCESSES = (
    many("--pid PID", "this process", type=process_number),
    many("--pattern REGEX", "processes with this in their command line"),
)
RANKS = value(
    "--ranks RANKS",
    "0-3,7 or ranks(1,3,5), ranks(1:10:2), ranks(pp=2, dp=(1,3), tp=2:8)",
)
GROUPS = many(
    "--groups GROUPS", "process groups by name or description, with commas"
)
NATIVE = flag(
    "--native",
    "native stacks too, of one process of each class and of all outliers; "
    "stops each for up to a few seconds",
)
CUDA = flag(
    "--cuda",
    "GPU kernels and native stacks of every process by cuda-gdb; stops each "
    "for seconds",
)
CONTAINER = value(
    "--container-name NAME",
    "with --slurm: enter this pyxis container on each node",
)
RAY_JOB = value(
    "--ray-job JOB", "with --ray: the job whose runtime environment to use"
)


def nodes_engine(args: Namespace, **more: Any) -> Any:
    """
    Return what reaches the nodes that the options name; ``None`` without one.

    Args:
        args: The arguments: *slurm*, *ray*, and what goes with these.

        more: What else the engine takes.
    """
    if args.slurm is not None:
        name = args.container_name
        return nodes.Slurm(job=args.slurm, container_name=name, **more)
    if args.ray is not None:
        return nodes.Ray(args.ray, job=getattr(args, "ray_job", None), **more)
    return None

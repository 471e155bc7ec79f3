"""
Define and parse the options that several commands share.
"""

from __future__ import annotations

import argparse
import sys

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..flight_recorder import Dumps


Commands = Any  # argparse does not name the type of its sub-parsers
OptionGroup = Any  # nor that of its groups

RANKS_HELP = (
    "0-3,7 or ranks(1,3,5), ranks(1:10:2), ranks(pp=2, dp=(1,3), tp=2:8)"
)


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,  # noqa: A002 argparse calls it so
    text: str,
) -> argparse.ArgumentParser:
    """
    Add one command, and return its parser.

    Args:
        commands: Where to add it.

        name: Its name.

        run: Takes the parsed arguments, and returns the exit status.

        help: One line for the list of commands.

        text: The paragraphs of its own help, with an example; ``{prog}``
            stands for the name of the program.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prog = parser.prog.rpartition(" ")[0]
    about, _, example = text.strip().partition("\n\nExample")
    parser.description = about
    parser.epilog = f"Example{example}".replace("{prog}", prog)
    parser.set_defaults(run=run)
    return parser


def add_full_option(parser: OptionGroup) -> None:
    """
    Add ``--full``, which prints results without cuts.
    """
    parser.add_argument(
        "--full",
        action="store_true",
        help="show all of long lists, and tables as wide as they are",
    )


def add_process_options(group: OptionGroup) -> None:
    """
    Add the options that name processes.
    """
    group.add_argument(
        "--pid",
        action="append",
        type=process_number,
        metavar="PID",
        help="this process; may be given several times",
    )
    group.add_argument(
        "--pattern",
        action="append",
        metavar="REGEX",
        help="processes with this in their command line; may be given several "
        "times",
    )


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
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError(text)

    return seconds


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


# argparse names the function in its error message.
positive_count.__name__ = "number above zero"
positive_seconds.__name__ = "number of seconds above zero"
process_number.__name__ = "number of a process"


def chosen_ranks(
    text: str | None, mesh: Mapping[str, int], world_size: int
) -> tuple[int, ...] | None:
    """
    Return the ranks that an option selects; ``None`` if it was not given.

    Args:
        text: The option.

        mesh: Size of each mesh dimension, as far as it is known.

        world_size: How many ranks the job has.

    Raises:
        DistdebugError: It is malformed, or selects nothing: a report about no
            rank would say that all is well.
    """
    if text is None:
        return None

    from ..errors import DistdebugError
    from ..ranks import parse_rank_option

    ranks = parse_rank_option(text).resolve(mesh, world_size)
    if not ranks:
        sizes = ", ".join(f"{name}={n}" for name, n in mesh.items())
        msg = f"{text} selects no rank of this job"
        raise DistdebugError(
            msg,
            remedy=f"there are {world_size} ranks, "
            + (f"in a mesh of {sizes}" if sizes else "in no mesh we know of"),
        )

    return ranks


def job_mesh(dumps: Dumps) -> Mapping[str, int]:
    """
    Return the mesh of the job, as its dumps have it.
    """
    meshes = (sidecar.mesh for sidecar in dumps.sidecars.values())
    return dict(next(filter(None, meshes), ()))


def chosen_groups(
    texts: Iterable[str] | None, dumps: Dumps
) -> tuple[str, ...] | None:
    """
    Return the process groups that options select; ``None`` without an option.

    Args:
        texts: The options, each a list with commas.

        dumps: The dumps.

    Returns:
        Names and descriptions.

    Raises:
        DistdebugError: There is no such group.
    """
    if texts is None:
        return None

    from ..errors import DistdebugError

    names = tuple(
        name.strip() for text in texts for name in text.split(",") if name
    )
    known = {part for group in dumps.groups for part in group if part}
    if unknown := [name for name in names if name not in known]:
        msg = f"there is no process group {', '.join(map(repr, unknown))}"
        there = ", ".join(sorted(known)) or "none"
        raise DistdebugError(msg, remedy=f"there are: {there}")

    return names


def warn(text: str) -> None:
    """
    Print a warning that scripts can ignore to standard error.
    """
    from .._text import clean

    print(f"distdebug: {clean(text, limit=1000)}", file=sys.stderr)

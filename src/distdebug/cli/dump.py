"""
``dump``: have the ranks of a running job write what they have recorded.
"""

from __future__ import annotations

import argparse

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .options import (
    RANKS_HELP,
    Commands,
    add_command,
    chosen_ranks,
    positive_seconds,
)
from .output import print_json


if TYPE_CHECKING:
    from ..flight_recorder import DumpRequest


_TEXT = """
Ask the ranks of a running job on this node for their dumps; training goes on.
They have to record: see distdebug.enable_flight_recorder(), or the command env.

Example:
  {prog} dump dumps/
  {prog} dump --pipe /tmp/my_nccl_pipe_ --ranks 0-7

Exit status: 0 all ranks were reached; 1 some were not; 2 none was.
"""

# Whoever asks for more ranks of one node has made a mistake.
_MOST_RANKS = 1 << 16


def add_parser(commands: Commands) -> None:
    """
    Add the command.
    """
    parser = add_command(
        commands,
        "dump",
        run,
        help="have a running job write its dumps",
        text=_TEXT,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "path", nargs="?", metavar="PATH", help="folder of the dumps"
    )
    where.add_argument(
        "--pipe",
        metavar="PREFIX",
        help="what TORCH_NCCL_DEBUG_INFO_PIPE_FILE is in the job",
    )
    parser.add_argument("--ranks", metavar="RANKS", help=RANKS_HELP)
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=10.0,
        metavar="S",
        help="seconds to wait for the answers (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the answers as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """
    Print what became of it.
    """
    from distdebug import request_dumps

    from .._text import text_table
    from ..errors import DistdebugError

    where = args.pipe or args.path
    if args.path and not Path(args.path).is_dir():
        msg = f"there is no folder {args.path}"
        raise DistdebugError(msg, remedy="name the dump_dir of the job")

    rows = request_dumps(
        where, ranks=_ranks(args.ranks, Path(where)), timeout_s=args.timeout
    )
    if not rows:
        msg = f"no rank listens at {where}"
        raise DistdebugError(
            msg,
            remedy="run it on the node of the job, with its dump_dir; "
            "the job has to call distdebug.enable_flight_recorder()",
        )

    if args.json:
        print_json("dump", {"ranks": [row.to_dict() for row in rows]})
    else:
        print(text_table(("rank", "answer", "file", "why"), map(_cells, rows)))
    return _status(rows)


def _ranks(text: str | None, where: Path) -> tuple[int, ...] | None:
    if text is None:
        return None

    from ..ranks import parse_rank_option

    mesh, world_size = _shape(where)
    if parse_rank_option(text).by_rank:
        # Ranks that are not there are asked for by name, and told as absent.
        world_size = _MOST_RANKS
    return chosen_ranks(text, mesh, world_size)


def _shape(folder: Path) -> tuple[dict[str, int], int]:
    """
    Mesh and size of the job, as far as its side-cars tell.
    """
    from ..flight_recorder import SIDECAR_SUFFIX, read_sidecar

    mesh: dict[str, int] = {}
    world_size = 0
    for path in sorted(folder.glob(f"*{SIDECAR_SUFFIX}")):
        try:
            sidecar = read_sidecar(path)
        except (OSError, ValueError):
            continue
        mesh, world_size = dict(sidecar.mesh) or mesh, sidecar.world_size
    return mesh, world_size


def _cells(row: DumpRequest) -> tuple[object, ...]:
    rank = "?" if row.rank is None else row.rank
    return rank, row.status, row.path, row.reason


def _status(rows: Sequence[DumpRequest]) -> int:
    reached = sum(row.status in {"dumped", "asked"} for row in rows)
    if reached == len(rows):
        return 0

    return 1 if reached else 2

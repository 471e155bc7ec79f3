"""
Print results as text or JSON, and show progress while a command works.
"""

from __future__ import annotations

import json
import os
import sys

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO


if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from .._render import Block, Shown


def has_colors(
    stream: TextIO, environ: Mapping[str, str] = os.environ
) -> bool:
    """
    Return whether to color what is written to *stream*.

    As for the tracebacks of Python: ``NO_COLOR``, then ``FORCE_COLOR``, and
    otherwise only on a terminal that is not dumb.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True

    return environ.get("TERM") != "dumb" and stream.isatty()


def warn(text: str) -> None:
    """
    Print a warning that scripts can ignore to standard error.
    """
    from .._text import clean

    print(f"distdebug: {clean(text, limit=1000)}", file=sys.stderr)


# Of each result; `distdebug schema` describes the rest.
JSON_HEAD: Mapping[str, Any] = MappingProxyType(
    {"schema": 1, "tool": "distdebug"}
)


def print_json(
    args: Namespace, data: Mapping[str, Any], *, in_one_line: bool = False
) -> None:
    """
    Print a result as JSON, in the layout that all commands share.

    Args:
        args: The arguments of the command that was run.

        data: Its result.

        in_one_line: Whether other results may follow.
    """
    import distdebug

    head = {
        **JSON_HEAD,
        "version": distdebug.__version__,
        "command": args.command_name,
    }
    indent = None if in_one_line else 2
    print(json.dumps({**head, **data}, indent=indent), flush=True)


def print_result(
    result: Shown | Iterable[Block], *, is_fine: bool, full: bool = False
) -> None:
    """
    Print a result for people: in color, and no wider than the terminal.

    Args:
        result: The result, or its blocks.

        is_fine: Whether it reports that all is well.

        full: Whether to print it without cuts, however wide it is.
    """
    from .._render import Shown, blocks_text, print_blocks

    blocks = result._blocks_() if isinstance(result, Shown) else result
    colors = has_colors(sys.stdout)
    if not (colors or sys.stdout.isatty()):
        print(blocks_text(blocks, full=full), flush=True)
        return

    print_blocks(blocks, sys.stdout, is_fine=is_fine, full=full, colors=colors)


def report(
    args: Namespace,
    result: Shown | Iterable[Block],
    *,
    is_fine: bool,
    data: Mapping[str, Any] | None = None,
) -> int:
    """
    Print the result of a command as the arguments ask for.

    Args:
        args: The arguments of the command.

        result: What it gave, or its blocks.

        is_fine: Whether it reports that all is well.

        data: What to print as JSON; by default that of the result.

    Returns:
        The exit status.
    """
    if args.json:
        plain = result.to_dict() if data is None else data  # type: ignore[union-attr]
        print_json(args, plain)
    else:
        full = getattr(args, "full", False)
        print_result(result, is_fine=is_fine, full=full)
    return int(not is_fine)


_verbosity = 0


def set_verbosity(level: int) -> None:
    """
    Choose what is said beside the result.

    Args:
        level: -1 for nothing but errors, 0 for progress, 1 for the commands
            that are run, too.
    """
    global _verbosity  # noqa: PLW0603 there is one command line
    _verbosity = level
    if level > 0:
        import logging

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger = logging.getLogger("distdebug")
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)


def remark(text: str) -> None:
    """
    Say something that is no result, such as where a file was written.
    """
    if _verbosity >= 0:
        print(text, file=sys.stderr, flush=True)


def _shows_progress() -> bool:
    return _verbosity >= 0 and sys.stderr.isatty()


@contextmanager
def _bar(*columns: str | ProgressColumn) -> Iterator[Progress]:
    """
    Show progress on standard error, which is a terminal, while a block runs.
    """
    from rich.progress import Progress

    from .._render import make_console

    console = make_console(sys.stderr, colors=has_colors(sys.stderr))
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False
    ) as bar:
        yield bar


@contextmanager
def telling(
    *, is_bytes: bool = False
) -> Iterator[Callable[[str, float, float], None]]:
    """
    Show a stage, its progress, and the time left, while the block runs.

    Args:
        is_bytes: Whether bytes are counted.

    Yields:
        A function that takes a stage, how many are done, and how many there are.
    """
    if not _shows_progress():
        yield lambda _stage, _done, _total: None
        return

    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (
        (DownloadColumn(), TransferSpeedColumn())
        if is_bytes
        else (MofNCompleteColumn(separator=" of "),)
    )
    stages: dict[str, TaskID] = {}
    with _bar(
        TextColumn("{task.description}:", markup=False),
        *(BarColumn(), *counted, TimeRemainingColumn()),
    ) as bar:

        def tell(stage: str, done: float, total: float) -> None:
            if stage not in stages:
                for task in stages.values():
                    bar.update(task, visible=False)
                stages[stage] = bar.add_task(stage)
            bar.update(stages[stage], completed=done, total=total)

        yield tell


@contextmanager
def counting(title: str) -> Iterator[Callable[[float, float], None]]:
    """
    Show how many of how many are done, while a block runs.
    """
    with telling() as tell:
        yield lambda done, total: tell(title, done, total)


@contextmanager
def waiting(title: str) -> Iterator[Callable[[str], None]]:
    """
    Show the time that a block has been running, where no progress is known.

    Yields:
        A function that replaces the title.
    """
    if not _shows_progress():
        yield lambda _title: None
        return

    from rich.progress import TextColumn, TimeElapsedColumn

    with _bar(
        TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda text: bar.update(task, description=text)

"""
How are lines at the prompt edited, completed, and remembered?
"""

from __future__ import annotations

import os
import re

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .commands import SHORT, WORDS
from .connecting import DebugClient
from .model import Listing, Process


__all__ = ["line_editing"]

_MOST_INDEXES = 64


@contextmanager
def line_editing(client: DebugClient) -> Iterator[None]:
    """
    Edit, complete, and remember lines, if Python can.

    Args:
        client: Knows the groups, ranks, and dimensions to complete.
    """
    try:
        import readline
    except ImportError:
        yield
        return

    path = _history()
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_completer(_completer(client, readline.get_line_buffer))
    readline.set_completer_delims(" \t\n(,=")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(path)


def _history() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "distdebug" / "dbg_history"


def _completer(
    client: DebugClient, line: Callable[[], str]
) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        # readline swallows what is raised here, and shows nothing.
        words = _choices(client, line()) if state == 0 else complete_from
        complete_from[:] = words
        fitting = [word for word in words if word.startswith(text)]
        return fitting[state] if state < len(fitting) else None

    complete_from: list[str] = []
    return complete


def _choices(client: DebugClient, line: str) -> list[str]:
    word, blank, rest = line.lstrip().partition(" ")
    word = SHORT.get(word, word)
    if not blank:
        return [f"{w} " for w in WORDS]
    if word == "help":
        return [*WORDS, "ranks"]
    if word not in WORDS:
        return []

    listing = client.list()
    groups = [f"{g} " for g in sorted({p.group for p in listing.processes})]
    if word == "attach":
        ranks = _numbers(p for p, _ in listing.sessions)
        return [*map(str, ranks), *groups]

    _, is_open, inner = rest.rpartition("ranks(")
    if is_open:
        return [] if ")" in inner else _in_ranks(listing, inner)
    return ["ranks(", *groups]


def _in_ranks(listing: Listing, inner: str) -> list[str]:
    """
    What may follow within ``ranks(...)``.
    """
    sizes: dict[str, set[int]] = {}
    for process in listing.processes:
        for name, index in process.coords.items():
            sizes.setdefault(name, set()).add(index)
    if match := re.search(r"(\w+)[ \t]*=[ \t]*[^=,]{0,9}\Z", inner):
        indexes = sorted(sizes.get(match[1], ()))
    else:
        indexes = _numbers(listing.processes)
    names = [] if match else [f"{n}=" for n in sizes if f"{n}=" not in inner]
    return [*names, *map(str, indexes[:_MOST_INDEXES])]


def _numbers(processes: Iterable[Process]) -> list[int]:
    return sorted({p.rank for p in processes if p.rank is not None})

"""
What does a person type, and what is shown?

The prompt never waits for a rank longer than a few seconds, and Ctrl-C reaches
no rank: it only ends the waiting.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import DistdebugError
from .attaching import Attached
from .commands import WORDS, parse_command
from .connecting import DebugClient
from .model import Listing, Output
from .obeying import HELP, obey


__all__ = ["line_editing", "run_shell"]

_PROMPT = "distdebug> "


def run_shell(
    client: DebugClient,
    *,
    ask: Callable[[str], str] = input,
    show: Callable[[str], object] = print,
    wait_s: float = 5.0,
) -> None:
    """
    Obey lines until one says quit, or there are no more.

    Args:
        client: Who asks the ranks.

        ask: Shows a prompt and returns a line; raises `EOFError` at the end.

        show: Shows some text.

        wait_s: How long to wait for ranks that run, in seconds.
    """
    attached: Attached | None = None
    show(_listing(client))
    while True:
        rank = attached.process.rank if attached else None
        prompt = _PROMPT if attached is None else f"(rank {rank}) "
        try:
            line = ask(prompt)
            if attached:
                attached = _talk(attached, line, show, wait_s)
            elif line.strip():
                attached = _do(client, line, show, wait_s)
        except KeyboardInterrupt:
            show("")
        except EOFError:
            show("")
            if attached is None:
                return
            attached = None
        except _QuitError:
            return
        except (DistdebugError, OSError) as exc:
            show("\n".join([str(exc), *getattr(exc, "__notes__", ())]))


class _QuitError(Exception):
    """
    The person wants to leave.
    """


def _listing(client: DebugClient) -> str:
    return f"{client.list()}\nfor help, type help"


def _do(
    client: DebugClient,
    line: str,
    show: Callable[[str], object],
    wait_s: float,
) -> Attached | None:
    command = parse_command(line)
    if command.word == "quit":
        raise _QuitError
    if command.word == "help":
        show(HELP)
    elif command.word == "detach":
        show("not attached to a rank")
    elif command.word == "attach":
        attached = client.attach(
            command.rank, group=command.group, number=command.number
        )
        show(attached.last().shown)
        return attached
    else:
        show(str(obey(client, command, wait_s=wait_s)))
    return None


def _talk(
    attached: Attached,
    line: str,
    show: Callable[[str], object],
    wait_s: float,
) -> Attached | None:
    if line.strip() == "detach":
        return None

    output = attached.send(line, wait_s=wait_s)
    if output.shown:
        show(output.shown)
    return None if _is_over(output) else attached


def _is_over(output: Output) -> bool:
    return output.state == "ended"


@contextmanager
def line_editing(client: DebugClient) -> Iterator[None]:
    """
    Edit, complete, and remember lines, if Python can.

    Args:
        client: Knows the groups and ranks to complete.
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
    readline.set_completer_delims(" \t\n")
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
    word, blank, _ = line.lstrip().partition(" ")
    if not blank:
        return [f"{w} " for w in WORDS]

    listing: Listing = client.list()
    groups = sorted({p.group for p in listing.processes})
    if word in {"attach", "a"}:
        ranks = sorted({p.rank for p, _ in listing.sessions})
        return [*map(str, ranks), *(f"{g} " for g in groups)]

    return ["ranks(", "ranks(:) ", *(f"{g} " for g in groups)]

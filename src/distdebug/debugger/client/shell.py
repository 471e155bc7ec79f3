"""
Interactive dbg prompt: run typed commands, and show answers and listings.

A job has more ranks than a terminal has lines: equal rows of a listing are
folded into one, and columns without information are left out.

The prompt waits for a rank for a few seconds at most.  Ctrl-C reaches no rank:
it only ends the waiting.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import attrs

from ..._io import make_private_folder
from ..._text import clean, text_table, time_text
from ...errors import DebuggerError, DistdebugError
from ...ranks import RankSelection, ranks_text
from .client import AttachedThread, DebugClient
from .commands import (
    ABBREVIATIONS,
    COMMANDS,
    ENTRIES,
    Command,
    help_text,
    parse_command,
)
from .model import (
    Answers,
    Listing,
    Output,
    Process,
    Row,
    Session,
    format_rank_phrase,
    format_ranks,
    indexes_by_dimension,
    ranks_by_text,
    row_cells,
    select_processes,
    select_session,
)


_POLL_S = 0.1
_FOLLOW_S = 1.0
_DETACH_COMMANDS = frozenset({"q", "quit", "exit", "EOF", "detach"})
# These lines are neither Python nor pdb, so they are for dbg.
_WITH_RANKS = re.compile(r"([a-z]+)[ \t]+(?:[A-Za-z0-9_-]+[ \t]+)?ranks\(")
_DBG_COMMAND = re.compile(
    r"(?:cast|attach|eval|extend)[ \t]+(?!(?:in|is|and|or|if|not)\b)(?:\w|#\d)"
    r"|(?:c|continue|stack|interrupt|resume|abort)[ \t]+#?\d"
    r"|(?:h|help)[ \t]+(?:cast|attach|detach|eval|stack|interrupt|resume"
    r"|extend|ranks)[ \t]*\Z"
)


def parse_multi_rank_command(line: str) -> Command | None:
    """
    Parse a line typed in a conversation if it is a command of the dbg prompt.

    Returns:
        ``None`` if the line is for the pdb of the attached thread.

    Raises:
        DebuggerError: The line is an invalid command.

        RankSyntaxError: Its selection of ranks is invalid.
    """
    line = line.strip(" \t")
    match = _WITH_RANKS.match(line)
    is_ours = match and ABBREVIATIONS.get(match[1], match[1]) in COMMANDS
    if is_ours or _DBG_COMMAND.match(line):
        return parse_command(line)

    return None


_FOR_STOPPED = frozenset({"continue", "extend"})


def run_command(
    client: DebugClient,
    command: Command,
    *,
    wait_s: float = 5.0,
    listing: Listing | None = None,
) -> Answers | Listing:
    """
    Run a command that concerns ranks.

    Args:
        wait_s: How long to wait for running ranks, in seconds.

        listing: The listing that thread numbers refer to; by default a new
            one.

    Raises:
        DebuggerError: The selection is empty.
    """
    if command.number is not None:
        return _run_on_thread(
            client, command, wait_s, listing or client.list()
        )
    if command.name == "list":
        listing = client.list()
        chosen = _chosen(listing, command) or listing.processes
        return attrs.evolve(listing, processes=chosen)

    answers = _ask_ranks(client, command, wait_s)
    if command.ranks is not None:
        notes = (*answers.notes, *_absent_notes(command.ranks, answers))
        return attrs.evolve(answers, notes=notes)

    if command.name in _FOR_STOPPED:
        # No rank was named, so none is missed.
        is_none_stopped = answers.not_stopped and not answers.outputs
        notes = ("no rank is stopped",) if is_none_stopped else ()
        answers = attrs.evolve(
            answers, not_stopped=(), notes=(*answers.notes, *notes)
        )
    return answers


def _ask_ranks(
    client: DebugClient, command: Command, wait_s: float
) -> Answers:
    ranks, line = command.ranks, command.line
    ask: dict[str, Callable[..., Answers]] = {
        "cast": partial(client.cast, ranks, line, wait_s=wait_s),
        "continue": partial(client.cast, ranks, "detach"),
        "eval": partial(
            client.eval, ranks, line, wait_s=wait_s, up=command.up
        ),
        "stack": partial(client.stack, ranks, all_threads=command.is_full),
        "interrupt": partial(client.interrupt, ranks),
        "resume": partial(client.resume, ranks),
        "extend": partial(client.extend, command.seconds, ranks),
        "abort": partial(client.abort, ranks or "ranks(:)"),
    }
    return ask[command.name](group=command.group)


def _run_on_thread(
    client: DebugClient, command: Command, wait_s: float, listing: Listing
) -> Answers:
    """
    Run a command on one thread.
    """
    stopped = select_session(listing, number=command.number)
    if command.name == "extend":
        request = {"op": "extend", "seconds": command.seconds}
    else:
        line = ENTRIES[command.name].thread_line.format(line=command.line)
        request = {"op": "command", "line": line, "wait": wait_s}
    return client.ask_sessions([stopped], request)


def _absent_notes(ranks: RankSelection, answers: Answers) -> Iterable[str]:
    """
    Yield a note on ranks that were named but do not exist.
    """
    named = {r.start for r in ranks.by_rank if len(r) == 1}
    present = {o.rank for o in answers.outputs}
    present.update(p.rank for p in answers.not_stopped)
    # A silent process, or one in a note, may be one of them.
    is_certain = not (answers.silent or answers.lost or answers.notes)
    if (absent := named - present) and is_certain:
        yield clean(f"not there: {ranks_text(absent)}")


def _chosen(listing: Listing, command: Command) -> tuple[Process, ...] | None:
    """
    Return the processes that a command names; ``None`` if it names none.
    """
    if command.ranks is None:
        return None
    return select_processes(listing, command.ranks, command.group)


_PROMPT = "distdebug> "
_MORE_HELP = (
    "detach comes back from this rank, and leaves it stopped; q lets it go on.\n"
    "Commands with ranks(...) reach others from here, too: help cast"
)


def run_shell(
    client: DebugClient,
    *,
    ask: Callable[[str], str] | None = None,
    show: Callable[[str], object] = print,
    wait_s: float = 5.0,
) -> None:
    """
    Run typed commands until ``quit`` or the end of the input.

    Args:
        ask: Shows a prompt and returns a line; raises `EOFError` at the end.
            By default reads from the terminal or a pipe.

        show: Shows some text.

        wait_s: How long to wait for running ranks, in seconds.
    """
    _Shell(client, ask or _ask, show, wait_s).run()


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        return input()

    try:
        return input(prompt)
    except EOFError:
        sys.stdout.write("\n")  # Ctrl-D prints no line break
        raise


class _Shell:
    """
    The prompt: its input and output, and its state.

    Attributes:
        table: The last listing shown, which thread numbers refer to.

        reported: The last listing whose changes were shown.

        attached: The attached thread, if any.

        is_fresh: Whether no command was sent to it yet.

        is_running: Whether it was still running one at the last answer.
    """

    def __init__(
        self,
        client: DebugClient,
        ask: Callable[[str], str],
        show: Callable[[str], object],
        wait_s: float,
    ) -> None:
        self.client, self.ask, self.show = client, ask, show
        self.wait_s = wait_s
        self.table = self.reported = client.list()
        self.attached: AttachedThread | None = None
        self.is_fresh, self.is_running = True, False

    def run(self) -> None:
        """
        Run typed lines until the user leaves.
        """
        self.show(f"{_format_listing(self.table)}\nfor help, type help")
        while self._run_next():
            pass
        with suppress(DistdebugError, OSError):
            if text := stopped_text(self.client.list()):
                self.show(text)

    def _run_next(self) -> bool:
        """
        Run one line; return whether to go on.
        """
        try:
            line = self.ask(self._prompt())
        except (KeyboardInterrupt, UnicodeDecodeError):
            self.show("")
            return True
        except EOFError:
            was_attached, self.attached = self.attached is not None, None
            return was_attached

        try:
            return self._run_line(line)
        except KeyboardInterrupt:
            self.show("\nnot waiting any more; no rank was interrupted")
            self.is_running = True
        except (DistdebugError, OSError) as exc:
            lines = [str(exc), *getattr(exc, "__notes__", ())]
            self.show("\n".join(clean(text, limit=1000) for text in lines))
        return True

    def _prompt(self) -> str:
        if self.attached is None:
            return _PROMPT

        process, thread = self.attached.process, self.attached.session.thread
        has_groups = len({p.group for p in self.reported.processes}) > 1
        group = f"{process.group} " if has_groups else ""
        name = "" if thread == "MainThread" else f" {thread}"
        return f"({group}{format_rank_phrase([process.rank])}{name}) "

    def _run_line(self, line: str) -> bool:
        if self.attached:
            command = parse_multi_rank_command(line)
            if command is None:
                self._converse(self.attached, line)
                return True
        elif not line.strip():
            listing = self.client.list()
            if text := changes_text(self.reported, listing):
                self.show(text)
            self.reported = listing
            return True
        else:
            command = parse_command(line)
        if command.name == "quit":
            return False

        self._run_command(command)
        return True

    def _run_command(self, command: Command) -> None:
        if command.name == "list":
            listing = self.client.list()
            self.show(_format_listing(listing, _chosen(listing, command)))
            self.table = self.reported = listing
        elif command.name == "attach":
            self._enter(self._attach(command))
        elif command.name == "help":
            self.show(help_text(command.line))
        elif command.name == "detach":
            self.show("not attached to a rank")
        else:
            answers = run_command(
                self.client, command, wait_s=self.wait_s, listing=self.table
            )
            text = str(answers)
            self.show(truncate_lines(text) if sys.stdout.isatty() else text)

    def _attach(self, command: Command) -> AttachedThread:
        if command.number is None:
            return self.client.attach(command.rank, group=command.group)

        # Numbers refer to the listing on the screen.
        selected = select_session(self.table, number=command.number)
        attached = AttachedThread(self.client, *selected)
        if attached.last().state == "ended":
            rank_text = format_rank_phrase([attached.process.rank])
            msg = f"#{command.number} was {rank_text}, which went on since"
            raise DebuggerError(msg, remedy="see: list")
        return attached

    def _enter(self, attached: AttachedThread) -> None:
        """
        Attach to a thread: show where it is stopped, and its last output.
        """
        session = attached.session
        output = attached.last()
        text = _output_text(output)
        if text and not re.search("^> ", text, re.MULTILINE):
            text = f"last output:\n{text}"
        rank_text = format_rank_phrase([attached.process.rank])
        head = (
            f"{rank_text}: {session.reason} at {place_summary(session)}; "
            f"{time_text(session.left_s)} left"
        )
        self.show("\n".join(filter(None, [head, text])))
        self.attached = attached
        self.is_fresh, self.is_running = True, output.state == "running"

    def _converse(self, attached: AttachedThread, line: str) -> None:
        """
        Run a typed line in the attached thread.
        """
        if line.strip() == "detach":
            self.attached = None
            return

        try:
            output = self._send(attached, line)
        except DebuggerError:
            if _states_of(self.client, attached) is not None:
                raise
            self._leave(attached, "has ended")
            return
        if text := _output_text(output):
            self.show(text)
        if line.strip() in {"h", "help", "?"}:
            self.show(_MORE_HELP)
        if output.state == "ended":
            self._follow(attached, line.strip())

    def _send(self, attached: AttachedThread, line: str) -> Output:
        """
        Send a line to a thread; an empty one may only show its output.
        """
        if line.strip() or not (self.is_fresh or self.is_running):
            output = attached.send(line, wait_s=self.wait_s)
            self.is_fresh = False
        else:
            end = time.monotonic() + self.wait_s
            output = attached.last()
            while output.state == "running" and time.monotonic() < end:
                time.sleep(_POLL_S)
                output = attached.last()
            if output.state == "stopped" and not output.text:
                output = attrs.evolve(output, text="(waits for a command)")
        self.is_running = output.state == "running"
        return output

    def _follow(self, attached: AttachedThread, line: str) -> None:
        """
        Attach to the next stop of a thread that goes on, if it comes soon.
        """
        if line == "abort":
            return self._leave(attached, "is aborted")
        if attached.session.reason == "post mortem":
            return self._leave(attached, "goes on, by its exception")

        is_left = line in _DETACH_COMMANDS
        end = time.monotonic() + _FOLLOW_S
        while True:
            processes = _states_of(self.client, attached)
            if processes is None:
                return self._leave(attached, "has ended")
            stop = _next_stop(processes, attached.session)
            if stop is not None and not is_left:
                return self._enter(AttachedThread(self.client, *stop))
            if is_left or time.monotonic() > end:
                return self._leave(attached, "goes on")
            time.sleep(_POLL_S)

    def _leave(self, attached: AttachedThread, text: str) -> None:
        self.show(f"{format_rank_phrase([attached.process.rank])} {text}")
        self.attached = None


def _states_of(
    client: DebugClient, attached: AttachedThread
) -> list[Process] | None:
    """
    Return the process of a thread as it is now; ``None`` if it has ended.
    """
    listing = client.list()
    found = [p for p in listing if p.path == attached.process.path]
    return found if found or listing.silent or listing.lost else None


def _next_stop(
    processes: Iterable[Process], before: Session
) -> tuple[Process, Session] | None:
    for process in processes:
        for session in process.sessions:
            if session.thread == before.thread and session.key != before.key:
                return process, session
    return None


def _output_text(output: Output) -> str:
    if output.state == "running":
        return (
            f"{output.text if not output.is_error else ''}"
            "(still running; an empty line looks again, detach leaves it)"
        )
    return output.display_text.removesuffix("(goes on)").rstrip("\n")


def _format_listing(
    listing: Listing, chosen: Iterable[Process] | None = None
) -> str:
    columns = shutil.get_terminal_size().columns
    width = columns if sys.stdout.isatty() else None
    return listing_text(listing, chosen=chosen, width=width)


_MAX_UNFOLDED_ROWS = 40  # a person can still scan so many
_MAX_ROWS = 200
_MAX_LINES = 200
_LOW_TIME_S = 300
# The columns to drop on a narrow terminal, in this order.
_OPTIONAL_COLUMNS = ("function", "coords", "host", "thread")


def listing_text(
    listing: Listing,
    *,
    chosen: Iterable[Process] | None = None,
    width: int | None = None,
) -> str:
    """
    Format a listing as a table.

    Args:
        listing: All ranks; stopped threads keep their numbers from it.

        chosen: The only processes to show, each in a row of its own.

        width: The width of the terminal in columns; `None` for no limit.
    """
    rows = listing.rows(chosen)
    if not rows:
        return str(listing)

    unfolded = [[row] for row in rows]
    is_folded = chosen is None and len(rows) > _MAX_UNFOLDED_ROWS
    folded = _fold_rows(rows) if is_folded else unfolded
    table = _table(folded[:_MAX_ROWS], width)
    notes = [*_timeout_notes(rows), *listing.notes]
    if len(folded) > _MAX_ROWS:
        notes.append(f"… and {len(folded) - _MAX_ROWS} more rows")
    if is_folded:
        notes.append(f"{len(rows)} in {len(folded)} rows; each: list ranks(:)")
    return "\n".join([table, *notes])


def _fold_rows(rows: Iterable[Row]) -> list[list[Row]]:
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        place = row.place.function, row.place.file, row.place.line
        key = row.process.group, row.thread_label, row.state, *place
        found.setdefault(key, []).append(row)
    return list(found.values())


def _table(rows: list[list[Row]], width: int | None) -> str:
    names = _short_names({r.place.file for row in rows for r in row})
    cells = [row_cells(row) for row in rows]
    for one, row in zip(cells, rows, strict=True):
        place = row[0].place
        one |= {
            "state": _state(row),
            "line": f"{names[place.file]}:{place.line}",
        }
    columns = {name: [one[name] for one in cells] for name in cells[0]}
    shown = {k: v for k, v in columns.items() if _is_informative(k, set(v))}
    dropped: list[str] = []
    for name in ("", *_OPTIONAL_COLUMNS):
        if shown.pop(name, None):
            dropped.append(name)
        table = text_table([*shown], zip(*shown.values(), strict=True))
        if width is None or max(map(len, table.splitlines())) <= width:
            break
    hint = "left out, as the terminal is narrow: " + ", ".join(dropped)
    return f"{table}\n{hint}" if dropped else table


def _timeout_notes(rows: Iterable[Row]) -> Iterable[str]:
    """
    Yield a note if a collective times out before the limit of the stop.
    """
    stopped = [row.session for row in rows if row.session]
    timeouts = [
        s.patience_left_s
        for s in stopped
        if s.patience_left_s is not None and s.patience_left_s < s.left_s
    ]
    if timeouts:
        left = time_text(min(timeouts))
        yield (
            f"others may give up waiting in a collective in {left}: that is "
            "the shortest timeout, counted from when the ranks stopped"
        )


def _is_informative(column: str, cells: set[str]) -> bool:
    if column == "host":
        return len(cells) > 1
    if column in {"#", "coords"}:
        return cells != {""}
    return column != "thread" or not cells <= {"", "MainThread"}


def _state(row: list[Row]) -> str:
    stopped = [r.session for r in row if r.session]
    if not stopped:
        return "not stopped"

    left = min(s.left_s for s in stopped)
    soon = f", {time_text(left)} left" if left < _LOW_TIME_S else ""
    return f"{stopped[0].state} ({stopped[0].reason}{soon})"


def _short_names(files: set[str]) -> dict[str, str]:
    """
    Return the shortest ends of the paths that are all different.
    """
    depth = 1
    while True:
        names = {f: "/".join(f.split("/")[-depth:]) for f in files}
        if len(set(names.values())) == len(files):
            return names
        depth += 1


def place_summary(place: Process | Session) -> str:
    """
    Format the place of a process or thread, as ``"train.py:14 in step"``.
    """
    file = place.file.rpartition("/")[2]
    return f"{file}:{place.line} in {place.function}"


def changes_text(before: Listing, after: Listing) -> str:
    """
    Format which ranks stopped, continued, or ended between two listings.

    Returns:
        One line for each kind of change; ``""`` if nothing changed.
    """
    old, new = ({s.key for _, s in x.sessions} for x in (before, after))
    present = {p.path for p in after}
    stopped = [(p, s) for p, s in after.sessions if s.key not in old]
    running = present - {p.path for p, _ in stopped}
    changes = [
        (f"stopped ({s.reason}) at {place_summary(s)}", p) for p, s in stopped
    ]
    changes += [
        ("goes on", p)
        for p, s in before.sessions
        if s.key not in new and p.path in running
    ]
    changes += [("has ended", p) for p in before if p.path not in present]
    several = len({p.group for p in (*before, *after)}) > 1
    return "\n".join(
        f"[{group}{format_ranks(ranks)}] {clean(what)}"
        for what, group, ranks in ranks_by_text(changes, groups=several)
    )


def truncate_lines(text: str) -> str:
    """
    Truncate a long text, and note how many lines are left out.
    """
    lines = text.split("\n", _MAX_LINES)
    if len(lines) <= _MAX_LINES:
        return text

    more = lines.pop().count("\n") + 1
    note = f"… and {more} more lines; to have all of them: dbg -c COMMAND"
    return "\n".join([*lines, note])


def stopped_text(listing: Listing) -> str:
    """
    Format which ranks are still stopped, and for how long at most.

    Returns:
        One line; ``""`` if no rank is stopped.
    """
    if not listing.sessions:
        return ""

    ranks = format_rank_phrase(p.rank for p, _ in listing.sessions)
    left = time_text(max(s.left_s for _, s in listing.sessions))
    return f"still stopped, for {left} at most: {ranks}"


_MAX_INDEXES = 64


@contextmanager
def line_editing(client: DebugClient) -> Iterator[None]:
    """
    Enable editing, completion, and history of lines, if readline exists.

    Args:
        client: Provides the groups, ranks, and dimensions to complete.
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
            make_private_folder(path.parent)
            readline.set_history_length(1000)
            readline.write_history_file(path)


def _history() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "distdebug" / "dbg_history"


def _completer(
    client: DebugClient, line: Callable[[], str]
) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        # readline hides exceptions raised here.
        if state == 0:
            words = _completions(client, line())
            fitting[:] = (word for word in words if word.startswith(text))
        return fitting[state] if state < len(fitting) else None

    fitting: list[str] = []
    return complete


def _completions(client: DebugClient, line: str) -> list[str]:
    word, blank, rest = line.lstrip().partition(" ")
    word = ABBREVIATIONS.get(word, word)
    if not blank:
        return [f"{w} " for w in COMMANDS]
    if word == "help":
        return [*COMMANDS, "ranks"]
    if word not in COMMANDS:
        return []

    listing = client.list()
    groups = [f"{g} " for g in sorted({p.group for p in listing.processes})]
    if word == "attach":
        ranks = _rank_numbers(p for p, _ in listing.sessions)
        return [*map(str, ranks), *groups]

    _, is_open, inner = rest.rpartition("ranks(")
    if is_open:
        return [] if ")" in inner else _complete_ranks(listing, inner)
    return ["ranks(", *groups]


def _complete_ranks(listing: Listing, inner: str) -> list[str]:
    """
    Return the completions within ``ranks(...)``.
    """
    sizes = indexes_by_dimension(listing.processes)
    if match := re.search(r"(\w+)[ \t]*=[ \t]*[^=,]{0,9}\Z", inner):
        indexes = sorted(sizes.get(match[1], ()))
    else:
        indexes = _rank_numbers(listing.processes)
    names = [] if match else [f"{n}=" for n in sizes if f"{n}=" not in inner]
    return [*names, *map(str, indexes[:_MAX_INDEXES])]


def _rank_numbers(processes: Iterable[Process]) -> list[int]:
    return sorted({p.rank for p in processes if p.rank is not None})

"""
What does a person type, and what is shown?

The prompt never waits for a rank longer than a few seconds, and Ctrl-C reaches
no rank: it only ends the waiting.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from ..._text import clean, time_text
from ...errors import DebuggerError, DistdebugError
from ...ranks import RankSelection, ranks_text
from .calls import choose, choose_session
from .commands import SHORT, WORDS, Command, parse_command
from .connecting import Attached, DebugClient
from .listing import (
    first_lines,
    held_text,
    listing_text,
    news_text,
    place_text,
)
from .model import Answers, Listing, Output, Process, Session, ranks_told


_POLL_S = 0.1
_FOLLOW_S = 1.0
_LEAVING = frozenset({"q", "quit", "exit", "EOF", "detach"})
# These are no Python and no pdb, so nobody means the rank.
_WITH_RANKS = re.compile(r"([a-z]+)[ \t]+(?:[A-Za-z0-9_-]+[ \t]+)?ranks\(")
_OF_OURS = re.compile(
    r"(?:cast|attach|eval|extend)[ \t]+(?!(?:in|is|and|or|if|not)\b)(?:\w|#\d)"
    r"|(?:c|continue|stack|interrupt|resume|abort)[ \t]+#?\d"
    r"|(?:h|help)[ \t]+(?:cast|attach|detach|eval|stack|interrupt|resume"
    r"|extend|ranks)[ \t]*\Z"
)


@attrs.frozen(kw_only=True)
class Talk:
    """
    How far a conversation with a rank has come.

    Attributes:
        attached: The thread of the rank.

        is_fresh: Whether it was not told anything yet.

        is_running: Whether it still obeyed a command when we looked last.
    """

    attached: Attached
    is_fresh: bool = True
    is_running: bool = False


def prompt_of(talk: Talk, *, with_group: bool) -> str:
    """
    What stands before the line that is typed?

    Args:
        talk: The conversation.

        with_group: Whether there are several groups.

    Returns:
        Such as ``"(rank 3) "``.
    """
    process, session = talk.attached.process, talk.attached.session
    group = f"{process.group} " if with_group else ""
    thread = "" if session.thread == "MainThread" else f" {session.thread}"
    return f"({group}{ranks_told([process.rank])}{thread}) "


def greeting(talk: Talk) -> tuple[Talk, str]:
    """
    Where is the rank, and what did it say last?

    Args:
        talk: The conversation.

    Returns:
        The conversation, and some lines.

    Raises:
        DebuggerError: It does not answer.
    """
    session = talk.attached.session
    output = talk.attached.last()
    left = time_text(session.left_s)
    head = (
        f"{ranks_told([talk.attached.process.rank])}: {session.reason} at "
        f"{place_text(session)}; {left} left"
    )
    text = _text(output)
    if text and not re.search("^> ", text, re.MULTILINE):
        text = f"last output:\n{text}"
    now = attrs.evolve(talk, is_running=output.state == "running")
    return now, "\n".join(filter(None, [head, text]))


def say(talk: Talk, line: str, wait_s: float) -> tuple[Talk, Output]:
    """
    Let the rank obey a line, or look at it.

    Args:
        talk: The conversation.

        line: What was typed.

        wait_s: How long to wait until it stops again, in seconds.

    Returns:
        The conversation, and what the rank says.

    Raises:
        DebuggerError: It does not answer.
    """
    is_blank = not line.strip()
    if is_blank and (talk.is_fresh or talk.is_running):
        output = _look(talk.attached, wait_s)
        if output.state == "stopped" and not output.text:
            output = attrs.evolve(output, text="(waits for a command)")
        is_fresh = talk.is_fresh
    else:
        output = talk.attached.send(line, wait_s=wait_s)
        is_fresh = False
    is_running = output.state == "running"
    now = attrs.evolve(talk, is_fresh=is_fresh, is_running=is_running)
    return now, attrs.evolve(output, text=_text(output), is_error=False)


def _look(attached: Attached, wait_s: float) -> Output:
    end = time.monotonic() + wait_s
    output = attached.last()
    while output.state == "running" and time.monotonic() < end:
        time.sleep(_POLL_S)
        output = attached.last()
    return output


def _text(output: Output) -> str:
    if output.state == "running":
        return (
            f"{output.text if not output.is_error else ''}"
            "(still running; an empty line looks again, detach leaves it)"
        )
    return output.shown.removesuffix("(goes on)").rstrip("\n")


def follow(
    client: DebugClient, talk: Talk, line: str
) -> tuple[Talk | None, str]:
    """
    Where does a rank stop again that was told to go on?

    Args:
        client: Asks it.

        talk: The conversation that has ended.

        line: What ended it.

    Returns:
        The next conversation, if it comes to a breakpoint at once; and what
        to say.
    """
    process = talk.attached.process
    if line.strip() == "abort":
        return None, f"{ranks_told([process.rank])} is aborted"
    if talk.attached.session.reason == "post mortem":
        return None, f"{ranks_told([process.rank])} goes on, by its exception"

    end = time.monotonic() + _FOLLOW_S
    is_left = line.strip() in _LEAVING
    while True:
        listing = client.list()
        parts = [p for p in listing if p.path == process.path]
        if not (parts or listing.silent or listing.lost):
            return None, f"{ranks_told([process.rank])} has ended"
        again = _stop_after(parts, talk.attached.session)
        if again is not None and not is_left:
            return greeting(
                Talk(attached=Attached(talk.attached.ranks, *again))
            )
        if is_left or time.monotonic() > end:
            return None, f"{ranks_told([process.rank])} goes on"
        time.sleep(_POLL_S)


def _stop_after(
    parts: Iterable[Process], before: Session
) -> tuple[Process, Session] | None:
    return next(
        (
            (process, session)
            for process in parts
            for session in process.sessions
            if session.thread == before.thread and session.key != before.key
        ),
        None,
    )


def meant_for_all(line: str) -> Command | None:
    """
    Is a line for other ranks than the one that is talked to?

    Args:
        line: What was typed.

    Returns:
        The command, if no debugger of one rank could mean it.

    Raises:
        DebuggerError: It is meant so, but is not understood.

        RankSyntaxError: Its selection of ranks is none.
    """
    line = line.strip(" \t")
    match = _WITH_RANKS.match(line)
    is_ours = match and SHORT.get(match[1], match[1]) in WORDS
    if is_ours or _OF_OURS.match(line):
        return parse_command(line)

    return None


HELP = """\
list (l) [[GROUP] ranks(...)]       which ranks are there, which are stopped?
attach (a) [GROUP] RANK, or #N      talk to one stopped rank, by commands of pdb
detach                              come back from there; it stays stopped
cast [GROUP] ranks(...) COMMAND     let stopped ranks obey a command of pdb
continue (c) [[GROUP] ranks(...)]   let stopped ranks go on, without breakpoints
eval [GROUP] ranks(...) EXPRESSION  ask ranks for a value, also blocked ones
stack [[GROUP] ranks(...)]          ask ranks where they are, also blocked ones
interrupt [[GROUP] ranks(...)]      stop ranks at their next line
resume [[GROUP] ranks(...)]         continue; and interrupt no more
extend [[GROUP] ranks(...)] MINUTES let stopped ranks wait longer
abort [GROUP] ranks(...)            end stopped ranks by an exception
help (h) [COMMAND]                  explain a command, or ranks
quit (q)                            leave; ranks that are stopped stay so

ranks(3)  ranks(1,3,5)  ranks(1:10:2)  ranks(:)  ranks(pp=2, dp=(1,3), tp=2:8)"""

_MORE = {
    "list": """\
Many rows that are alike are shown as one; with ranks(...), each rank has its own.
#1, #2, … are the threads that are held, as of the last list: attach #2.""",
    "attach": """\
The prompt becomes that of the rank, and takes the commands of pdb: p, n, s, u, d,
w, l, b, until, !statement, …  An empty line repeats the last one.
  detach   comes back; the rank stays stopped
  q        lets the rank go on, without breakpoints, and comes back
  abort    ends the rank by an exception
Commands with ranks(...) work from there as well, and attach 3 changes the rank.
If the rank runs for long, Ctrl-C ends the waiting, and an empty line looks again.""",
    "detach": "Ctrl-D does the same.",
    "cast": """\
  cast ranks(:) p loss
  cast ranks(dp=0, tp=1:) next
  cast trainer ranks(1,3) !learning_rate = 0.1
  cast #2 where                         one thread, by its number in the list
What equals is merged, and the odd ones come first.  A rank obeys once, however often
it is named.  Ranks that are selected but not stopped are named.""",
    "continue": """\
Without ranks(...), everybody who is stopped goes on; continue #2 is for one thread.
Breakpoints that were set by commands are cleared; those in the code are not.  To keep
them, say: cast ranks(:) continue.  At the prompt of a rank, c keeps them, too.""",
    "eval": """\
  eval ranks(:) (epoch, loss.item())
  eval ranks(:) up 1: batch_index       as its caller sees it
  eval #2 batch                         in one thread that is stopped
The expression sees the variables of the innermost line of your own code, and is
computed beside it, in bounded time.  Tensors on a GPU are described, not copied.""",
    "stack": """\
Innermost line last.  Nobody is stopped by it.  It tells of the thread that works, and
of those that are stopped; of all threads: stack all, or stack ranks(0) all.  Of ranks
of this node that do not answer, or are not armed, py-spy tells it, if it may.""",
    "interrupt": """\
A rank that waits for a command is asked by cast or attach; this stops those that run.
A rank that is blocked in native code, as in a collective, stops when that returns; it
says where it is.  resume takes an interrupt back.""",
    "resume": "Takes back an interrupt of ranks that did not stop yet.",
    "extend": "Counted from now on.  Without it, a pause ends after 30 minutes.",
    "abort": "bdb.BdbQuit is raised at the line.  Mostly, this ends the whole job.",
    "quit": "To let the ranks go on, say continue before.",
}

_RANKS = """\
ranks(3)                        rank 3
ranks(1,3,5)                    these
ranks(1:10:2)                   1, 3, 5, 7, 9: a slice, as in Python
ranks(:)                        all
ranks(pp=2, dp=(1,3), tp=2:8)   by dimension; what is not named is not restricted
Of list, continue, stack, interrupt, resume, and abort, 3 is short for ranks(3).
Blanks are allowed everywhere but before the parenthesis.  What does not exist is left
out; if nobody is left, you are told who exists."""


def help_text(topic: str = "") -> str:
    """
    Explain a command.

    Args:
        topic: The command in full, or ``"ranks"``; everything, in short, if
            it is left out.

    Returns:
        Some lines.
    """
    if topic == "ranks":
        return _RANKS

    lines = [line for line in HELP.splitlines() if line.startswith(topic)]
    return "\n".join([*lines, _MORE.get(topic, "")]).strip() if topic else HELP


_TO_HELD = frozenset({"continue", "extend"})

# What one thread obeys, where ranks are asked otherwise.
_OF_THREAD = {
    "cast": "{line}",
    "eval": "p {line}",
    "continue": "detach",
    "stack": "where",
    "abort": "abort",
}


def obey(
    client: DebugClient,
    command: Command,
    *,
    wait_s: float = 5.0,
    seen: Listing | None = None,
) -> Answers | Listing:
    """
    Do what a command says, if it concerns ranks.

    Args:
        client: Who asks them.

        command: What to do.

        wait_s: How long to wait for ranks that run, in seconds.

        seen: The listing that numbers of threads are of; a new one if it is
            left out.

    Returns:
        What they answered.

    Raises:
        DebuggerError: Nobody is selected.
    """
    if command.number is not None:
        return _obey_one(client, command, wait_s, seen or client.list())

    ranks, group = command.ranks, command.group
    does: dict[str, Callable[[], Answers | Listing]] = {
        "list": lambda: _listing(client, command),
        "cast": lambda: client.cast(
            ranks, command.line, group=group, wait_s=wait_s
        ),
        "continue": lambda: client.cast(ranks, "detach", group=group),
        "eval": lambda: client.eval(
            ranks, command.line, group=group, wait_s=wait_s, up=command.up
        ),
        "stack": lambda: client.stack(
            ranks, group=group, all_threads=command.is_full
        ),
        "interrupt": lambda: client.interrupt(ranks, group=group),
        "resume": lambda: client.resume(ranks, group=group),
        "extend": lambda: client.extend(
            (command.minutes or 0) * 60, ranks, group=group
        ),
        "abort": lambda: client.abort(ranks or "ranks(:)", group=group),
    }
    answers = does[command.word]()
    if isinstance(answers, Listing):
        return answers
    if ranks is None:
        return _unasked(answers) if command.word in _TO_HELD else answers

    return attrs.evolve(
        answers, notes=(*answers.notes, *_absent(ranks, answers))
    )


def _obey_one(
    client: DebugClient, command: Command, wait_s: float, seen: Listing
) -> Answers:
    """
    Let one thread obey.
    """
    held = choose_session(seen, number=command.number)
    if command.word == "extend":
        seconds = (command.minutes or 0) * 60
        request = {"op": "extend", "seconds": seconds}
    else:
        line = _OF_THREAD[command.word].format(line=command.line)
        request = {"op": "command", "line": line, "wait": wait_s}
    return client.ranks.ask_sessions([held], request)


def _unasked(answers: Answers) -> Answers:
    """
    Blame nobody for not being stopped who was not named.
    """
    notes = answers.notes
    if answers.not_stopped and not answers.outputs:
        notes = (*notes, "nobody is stopped")
    return attrs.evolve(answers, not_stopped=(), notes=notes)


def _absent(ranks: RankSelection, answers: Answers) -> Iterable[str]:
    """
    Which ranks were named, but are not there?
    """
    named = {r.start for r in ranks.by_rank if len(r) == 1}
    there = {o.rank for o in answers.outputs}
    there.update(p.rank for p in answers.not_stopped)
    # Who does not answer, or is told of in a note, may be one of them.
    is_certain = not (answers.silent or answers.lost or answers.notes)
    if (absent := named - there) and is_certain:
        yield clean(f"not there: {ranks_text(absent)}")


def _listing(client: DebugClient, command: Command) -> Listing:
    listing = client.list()
    if command.ranks is None:
        return listing

    chosen = choose(listing, command.ranks, command.group)
    return attrs.evolve(listing, processes=chosen)


_PROMPT = "distdebug> "
_MORE_HELP = (
    "detach comes back from this rank, and leaves it stopped; q lets it go on.\n"
    "Commands with ranks(...) reach others from here, too: help cast"
)


@attrs.frozen(kw_only=True)
class _State:
    """
    What a person knows.

    Attributes:
        table: What was listed last, with the numbers that may be typed.

        told: What has been told of since, too.

        talk: The conversation with one rank, if there is one.
    """

    table: Listing
    told: Listing
    talk: Talk | None = None


@attrs.frozen(kw_only=True)
class _Desk:
    """
    Where a person sits; see :func:`run_shell`.
    """

    client: DebugClient
    ask: Callable[[str], str]
    show: Callable[[str], object]
    wait_s: float


class _QuitError(Exception):
    """
    The person wants to leave.
    """


def run_shell(
    client: DebugClient,
    *,
    ask: Callable[[str], str] | None = None,
    show: Callable[[str], object] = print,
    wait_s: float = 5.0,
) -> None:
    """
    Obey lines until one says quit, or there are no more.

    Args:
        client: Who asks the ranks.

        ask: Shows a prompt and returns a line; raises `EOFError` at the end.
            By default the terminal, or lines from a pipe.

        show: Shows some text.

        wait_s: How long to wait for ranks that run, in seconds.
    """
    listing = client.list()
    show(f"{_shown(listing)}\nfor help, type help")
    desk = _Desk(client=client, ask=ask or _ask, show=show, wait_s=wait_s)
    state: _State | None = _State(table=listing, told=listing)
    while state is not None:
        state = _next(desk, state)
    with suppress(DistdebugError, OSError):
        if text := held_text(client.list()):
            show(text)


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        return input()

    try:
        return input(prompt)
    except EOFError:
        sys.stdout.write("\n")  # which Ctrl-D leaves out
        raise


def _next(desk: _Desk, state: _State) -> _State | None:
    try:
        line = desk.ask(_prompt(state))
    except (KeyboardInterrupt, UnicodeDecodeError):
        desk.show("")
        return state
    except EOFError:
        return attrs.evolve(state, talk=None) if state.talk else None

    try:
        return _obey(desk, state, line)
    except _QuitError:
        return None
    except KeyboardInterrupt:
        desk.show("\nnot waiting any more; no rank was interrupted")
        talk = state.talk and attrs.evolve(state.talk, is_running=True)
        return attrs.evolve(state, talk=talk)
    except (DistdebugError, OSError) as exc:
        lines = [str(exc), *getattr(exc, "__notes__", ())]
        desk.show("\n".join(clean(text, limit=1000) for text in lines))
        return state


def _prompt(state: _State) -> str:
    if state.talk is None:
        return _PROMPT

    groups = {p.group for p in state.told.processes}
    return prompt_of(state.talk, with_group=len(groups) > 1)


def _obey(desk: _Desk, state: _State, line: str) -> _State:
    if state.talk is not None:
        command = meant_for_all(line)
        if command is None:
            talk = _talk(desk, state.talk, line)
            return attrs.evolve(state, talk=talk)
    elif not line.strip():
        return _news(desk, state)
    else:
        command = parse_command(line)
    return _do(desk, state, command)


def _news(desk: _Desk, state: _State) -> _State:
    listing = desk.client.list()
    if text := news_text(state.told, listing):
        desk.show(text)
    return attrs.evolve(state, told=listing)


def _do(desk: _Desk, state: _State, command: Command) -> _State:
    if command.word == "quit":
        raise _QuitError
    if command.word == "list":
        listing = desk.client.list()
        desk.show(_shown(listing, command))
        return attrs.evolve(state, table=listing, told=listing)
    if command.word == "attach":
        talk, text = greeting(_attach(desk.client, state, command))
        desk.show(text)
        return attrs.evolve(state, talk=talk)
    if command.word == "help":
        desk.show(help_text(command.line))
    elif command.word == "detach":
        desk.show("not attached to a rank")
    else:
        seen = state.table
        text = str(obey(desk.client, command, wait_s=desk.wait_s, seen=seen))
        desk.show(first_lines(text) if sys.stdout.isatty() else text)
    return state


def _shown(listing: Listing, command: Command | None = None) -> str:
    chosen = None
    if command is not None and command.ranks is not None:
        chosen = choose(listing, command.ranks, command.group)
    columns = shutil.get_terminal_size().columns
    width = columns if sys.stdout.isatty() else None
    return listing_text(listing, chosen=chosen, width=width)


def _attach(client: DebugClient, state: _State, command: Command) -> Talk:
    if command.number is None:
        attached = client.attach(command.rank, group=command.group)
    else:
        # Numbers are those that the person saw.
        seen = choose_session(state.table, number=command.number)
        attached = Attached(client.ranks, *seen)
        if attached.last().state == "ended":
            who = ranks_told([attached.process.rank])
            msg = f"#{command.number} was {who}, which went on since"
            raise DebuggerError(msg, remedy="see: list")
    return Talk(attached=attached)


def _talk(desk: _Desk, talk: Talk, line: str) -> Talk | None:
    if line.strip() == "detach":
        return None

    try:
        now, output = say(talk, line, desk.wait_s)
    except DebuggerError:
        again, text = follow(desk.client, talk, "detach")
        if text.endswith("has ended"):
            desk.show(text)
            return again
        raise
    if output.text:
        desk.show(output.text)
    if line.strip() in {"h", "help", "?"}:
        desk.show(_MORE_HELP)
    if output.state != "ended":
        return now

    again, text = follow(desk.client, talk, line)
    desk.show(text)
    return again


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

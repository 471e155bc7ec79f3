"""
What does a server of ``torch.distributed.debug`` tell about a job?
"""

from __future__ import annotations

import html
import http.client
import io
import ipaddress
import math
import os
import re
import socket
import threading
import time

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from .._in_time import answers_in_time
from .._io import is_there, write_whole
from .._text import clean, reason_of, without_controls
from ..findings import Missing
from ..flight_recorder import MOST_RANKS, Sidecar, find_files, write_sidecar
from ..ranks import ranks_text
from ..stacks import ProcessStacks, parse_stacks, stacks_to_json


LATE = "no answer in time"

_PLACE = re.compile(
    r"(?:http://)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?)\]"
    r"|(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}))"
    r":(?P<port>[0-9]{1,5})/?"
)


class NoAnswerError(Exception):
    """
    No answer came that can be used.

    Args:
        reason: Why, in a few words.

        kind: ``"unseen"`` if there was no connection; ``"late"`` if there
            was, but the time was over; ``"bad"`` if something else came.
    """

    def __init__(
        self, reason: str, kind: Literal["unseen", "late", "bad"]
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


@attrs.frozen
class Place:
    """
    Where a server listens.

    Attributes:
        host: Its name, or its address without brackets.

        port: The number of its port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Allowance:
    """
    How many bytes may still come, of all servers together.

    Args:
        size: So many.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def spend(self, count: int) -> None:
        """
        Take *count* bytes off; a negative number gives them back.

        Raises:
            ValueError: There were not so many.
        """
        with self._lock:
            self._left -= count
            if self._left < 0:
                msg = "more bytes than there is space for"
                raise ValueError(msg)


def parse_place(address: str) -> Place:
    """
    Which place does ``HOST:PORT`` mean?

    Args:
        address: The host by name or address, one of IPv6 in brackets, and the
            port; ``http://`` may stand before it.

    Returns:
        The place.

    Raises:
        ValueError: It is something else.
    """
    match = _PLACE.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        msg = f"not HOST:PORT: {clean(address, limit=80)!r}"
        raise ValueError(msg)

    return Place(match["six"] or match["host"], int(match["port"]))


def fetch(  # noqa: PLR0913 three of them are limits
    place: Place,
    target: str,
    *,
    method: Literal["GET", "POST"] = "GET",
    deadline: float,
    allowance: Allowance,
    most: int,
) -> str:
    """
    Ask a server for one thing.

    Looking up the name of the host cannot be limited: it may take longer.

    Args:
        place: Where it listens.

        target: What to ask for: path and query.

        method: How to ask.

        deadline: When to stop, on the monotonic clock, also if something
            comes all the time.

        allowance: How much may come of all servers together.  What comes and
            is of no use is given back.

        most: How many bytes this answer may have.

    Returns:
        What it answered with status 200.

    Raises:
        NoAnswerError: There is no such answer.
    """
    if time.monotonic() >= deadline:
        raise NoAnswerError(LATE, "unseen")

    try:
        connection = _connect(place, deadline)
    except (OSError, ValueError) as exc:
        reason = f"no connection: {_words(exc)}"
        raise NoAnswerError(reason, "unseen") from None

    source = _Limited(connection, deadline, allowance, most)
    with connection:
        try:
            _send(connection, f"{method} {target}", place, deadline)
            return _receive(source, method)
        except TimeoutError:
            source.give_back()
            raise NoAnswerError(LATE, "late") from None
        except (OSError, ValueError, http.client.HTTPException) as exc:
            source.give_back()
            raise NoAnswerError(_words(exc), "bad") from None


def _words(exc: Exception) -> str:
    if isinstance(exc, http.client.HTTPException):
        return clean(f"no answer in HTTP: {exc!r}", limit=120)
    return clean(reason_of(exc), limit=120)


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        msg = "the time was over"
        raise TimeoutError(msg)

    return left


def _connect(place: Place, deadline: float) -> socket.socket:
    error = OSError("the host has no address")
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        # One that never answers must not take the time of the others.
        share = _left_s(deadline) / (len(found) - number)
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(share)
            connection.connect(address)
        except OSError as exc:
            connection.close()
            error = exc
        else:
            return connection

    raise error


def _send(
    connection: socket.socket, request: str, place: Place, deadline: float
) -> None:
    connection.settimeout(_left_s(deadline))
    lines = [
        f"{request} HTTP/1.0",
        f"Host: {place}",
        "Content-Length: 0",
        "Connection: close",
    ]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))


class _Limited(io.RawIOBase):
    """
    What comes through a connection, as long and as much as is allowed.

    Time-outs of a socket are for each piece, and a server that sends one byte
    now and then would hold us for ever.
    """

    def __init__(
        self,
        connection: socket.socket,
        deadline: float,
        allowance: Allowance,
        most: int,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline
        self._allowance = allowance
        self._most = most
        self._spent = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left_s(self._deadline))
        count = self._connection.recv_into(buffer)
        self._spent += count
        self._allowance.spend(count)
        if self._spent > self._most:
            msg = f"an answer of more than {self._most:,} bytes"
            raise ValueError(msg)

        return count

    def give_back(self) -> None:
        """
        Let others have what came, because it is of no use.
        """
        self._allowance.spend(-self._spent)
        self._spent = 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        # All that http.client wants of a socket.
        return io.BufferedReader(self)


def _receive(source: _Limited, method: str) -> str:
    as_socket: Any = source
    # Otherwise Python complains, from 3.14 on, of what it finds half closed.
    with closing(http.client.HTTPResponse(as_socket, method=method)) as answer:
        answer.begin()
        text = answer.read().decode("utf-8", "replace")
    return _told(answer, text)


def _told(response: http.client.HTTPResponse, text: str) -> str:
    if response.status == 200:
        return text

    if 300 <= response.status < 400:
        msg = f"status {response.status}: redirections are not followed"
        raise ValueError(msg)

    # Others send pages, of which nothing can be shown in a line.
    is_plain = response.headers.get_content_type() == "text/plain"
    told = (
        f": {text}" if is_plain and "Content-Type" in response.headers else ""
    )
    msg = f"status {response.status}{told}"
    raise ValueError(msg)


_DUMP = re.compile(r'"(?:entries|pg_config|pg_status)"\s*:')
_ENTRIES = re.compile(r'"entries"\s*:\s*\[\s*\{')
_SECOND = "only the calls of NCCL are kept; other backends recorded some, too"
# Of the ranks of a group the last, which is the highest in that of all.
_MEMBERS = re.compile(
    r'"ranks"\s{0,9}:\s{0,9}"?\[(?:[0-9,\s]*[,\s])?([0-9]{1,8})\s{0,9}\]'
)
# Hundreds of threads are less; and this text is read here.
_MOST_OF_STACKS = 1 << 20
# As long as collecting takes.
_LATELY_S = 120.0


@attrs.define(kw_only=True)
class Told:
    """
    What a rank told, of whatever it was asked.

    Attributes:
        place: Where it was asked; ``None`` if that cannot be told.

        stacks: What a tool wrote about its stacks, or ``""``.

        process: What is in it.

        dump: What its Flight Recorder holds, as JSON, or ``""``.

        missing: Why it did not tell a ``"stack"`` or a ``"dump"``.

        late: Which of the two took too long.

        is_seen: Whether it could be asked at all.

        asked: When it was asked, in seconds since 1970.
    """

    place: Place | None
    stacks: str = ""
    process: ProcessStacks | None = None
    dump: str = ""
    missing: dict[str, str] = attrs.Factory(dict)
    late: set[str] = attrs.Factory(set)
    is_seen: bool = True
    asked: float = attrs.Factory(time.time)

    def hear(self, what: str, text: str) -> None:
        """
        Take an answer, if it is one.

        The first with stacks counts; and the first dump that holds calls, so
        that of two recorders all ranks tell the same.

        Args:
            what: ``"stack"`` or ``"dump"``.

            text: What came.
        """
        said = f"an answer that holds none: {clean(text, limit=80)!r}"
        if what == "stack":
            if self.process is not None:
                return
            self.process = process_in(text)
            if self.process is None:
                self.miss(what, said)
            else:
                self.stacks = text
                self.missing.pop(what, None)
        elif not is_dump(text):
            self.miss(what, said)
        elif not _has_calls(self.dump) and (_has_calls(text) or not self.dump):
            self.dump = text
            self.missing.pop(what, None)
        elif _has_calls(text):
            self.missing[what] = _SECOND

    def miss(self, what: str, reason: str) -> None:
        """
        Note why there was no answer, unless there is another.

        Args:
            what: ``"stack"`` or ``"dump"``.

            reason: Why.
        """
        if not (self.process if what == "stack" else self.dump):
            known = self.missing.get(what, "")
            # That there is no such question says nothing of the rank.
            if not known or known.startswith("status 404"):
                self.missing[what] = reason
            elif reason not in known:
                self.missing[what] = f"{known}; {reason}"


def process_in(text: str) -> ProcessStacks | None:
    """
    Which process is in an answer about stacks?

    Args:
        text: The answer; it may as well say that there is no py-spy.

    Returns:
        The process; ``None`` if no line of a stack is there.
    """
    if len(text) > _MOST_OF_STACKS:
        return None
    try:
        found = parse_stacks(text)
    except (ValueError, RecursionError):
        return None

    return next((p for p in found if any(t.frames for t in p.threads)), None)


def is_dump(text: str) -> bool:
    """
    Does this look like what a Flight Recorder wrote as JSON?

    Args:
        text: Anything.  It is not decoded here: readers of dumps do so in a
            process with limits.
    """
    whole = text.strip()
    is_object = whole.startswith("{") and whole.endswith("}")
    return is_object and _DUMP.search(whole) is not None


def _has_calls(dump: str) -> bool:
    return _ENTRIES.search(dump) is not None


def dumped_lately(folder: Path) -> set[int]:
    """
    Which ranks wrote a dump themselves for this snapshot?

    Those tell call sites too, and two of a rank would be one too many.

    Args:
        folder: Where :func:`keep_told` would write to.
    """
    since = time.time() - _LATELY_S
    places = folder.glob("flight_recorder*")
    files = find_files(map(str, places)).files
    return {
        file.rank
        for file in files
        if file.rank is not None and file.modified >= since
    }


def keep_told(
    told: Told, rank: int, world_size: int, folder: Path
) -> Iterator[Path]:
    """
    Write what a rank told.

    Args:
        told: What it told.

        rank: Which rank it is.

        world_size: How many ranks there are at least.

        folder: Where to; there is ``pyspy_HOST_PID.json`` afterwards, as a
            capture writes it, or, if host or process are not known, a text
            with the number of the rank in its name; and
            ``flight_recorder/rank_N.json`` with its side-car.  Stacks that
            were captured there already stay as they are.

    Yields:
        Each file, when it is there as a whole.

    Raises:
        OSError: Something cannot be written.
    """
    process = told.process
    pid, host = max(process.pid if process else 0, 0), _host(told.place)
    # Readers ask which processes these are only if both are known.
    pid, host = (pid, host) if pid and host else (0, "")
    if process is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = attrs.evolve(
            process, rank=rank, host=host, pid=pid, taken=told.asked
        )
        yield from _keep_stacks(known, told.stacks, folder)
    if told.dump:
        sidecar = Sidecar(
            path="",
            rank=rank,
            world_size=_world_size(told.dump, max(world_size, rank + 1)),
            host=host,
            pid=pid,
            started=0.0,
            written=told.asked,
            reason="request",
            dump=f"rank_{rank}.json",
        )
        yield from _keep_dump(told.dump, sidecar, folder / "flight_recorder")


def _keep_stacks(
    process: ProcessStacks, text: str, folder: Path
) -> Iterator[Path]:
    if process.pid:
        path = folder / f"pyspy_{process.host}_{process.pid}.json"
        data = stacks_to_json(process)
        if is_there(path):
            return
    else:
        # Readers take the rank from this name, and nothing else.
        path = folder / f"stacks-rank{process.rank}.txt"
        data = without_controls(text)
    write_whole(path, data.encode())
    yield path


def _keep_dump(text: str, sidecar: Sidecar, folder: Path) -> Iterator[Path]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / sidecar.dump
    write_whole(path, text.encode())
    yield path
    yield write_sidecar(sidecar, path)


def _host(place: Place | None) -> str:
    """
    The name of the node, if the address of a worker tells it.

    Torch puts what the node calls itself; an address is not a name, and every
    node is called localhost.
    """
    if place is None or place.host.startswith("localhost"):
        return ""
    try:
        ipaddress.ip_address(place.host.partition("%")[0])
    except ValueError:
        return place.host

    return ""


def _world_size(dump: str, least: int) -> int:
    """
    How many ranks there are, as far as the groups in a dump tell.
    """
    highest = (int(match[1]) for match in _MEMBERS.finditer(dump))
    sizes = (rank + 1 for rank in highest if rank < MOST_RANKS)
    return max((least, *sizes))


_HEADING = re.compile(
    r"<h[1-6]>\s{0,9}Rank (?P<rank>[0-9]{1,7}): (?P<url>[^<\n]{1,400})</h[1-6]>"
)
_URL = re.compile(r"http://(?P<place>[^/\s]{1,300})")
_FAILED = re.compile(r"<p>Failed to fetch: status=(?P<status>[0-9]{1,4})</p>")
_BEGIN, _END = "<pre>", "</pre>"
_STORED = re.compile(
    r"^[ \t]{0,40}debug_server/rank(?P<rank>[0-9]{1,7}): "
    r"b(?:'|\"|&#39;|&#x27;)http://(?P<place>[^\s'\"&<>]{1,300})"
    r"(?:'|\"|&#39;|&#x27;)[ \t]{0,40}$",
    re.MULTILINE,
)
# No job has more, and each is worth a line about what is missing.
_MOST_RANKS = 1 << 17
# What the server itself says of a worker that it did not reach.
_REASONS = {"408": LATE, "503": "no connection"}


@attrs.frozen(kw_only=True)
class Section:
    """
    What a page shows of one rank.

    Attributes:
        place: Where its worker listens; ``None`` if it cannot be told.

        text: What it answered, or ``""``.

        reason: Why there is no answer, or ``""``.

        is_silent: Whether the server could not reach the rank, or in vain
            waited for it.
    """

    place: Place | None
    text: str = ""
    reason: str = ""
    is_silent: bool = False


def read_page(page: str) -> dict[int, Section]:
    """
    What did each rank answer?

    Args:
        page: A page of the debug server with a heading for each rank.

    Returns:
        What stands below the heading of each rank; nothing if it is another
        page.
    """
    headings = list(_HEADING.finditer(page))
    bounds = [*(match.start() for match in headings), len(page)]
    return {
        int(match["rank"]): _section(match["url"], page[match.end() : end])
        for match, end in zip(headings, bounds[1:], strict=True)
        if int(match["rank"]) < _MOST_RANKS
    }


def read_addresses(page: str) -> dict[int, Place]:
    """
    Where do the workers of the debug server listen?

    Args:
        page: Its page of the keys in the store.  Long values are cut off
            there; those are left out.

    Returns:
        The places by rank.
    """
    places = (
        (int(match["rank"]), _place(match["place"]))
        for match in _STORED.finditer(page)
    )
    return {rank: at for rank, at in places if at and rank < _MOST_RANKS}


def _section(url: str, body: str) -> Section:
    match = _URL.match(html.unescape(url))
    place = _place(match["place"]) if match else None
    begin, end = body.find(_BEGIN), body.rfind(_END)
    if not 0 <= begin < end:
        return Section(place=place, reason="the page ends before its answer")

    text = body[begin + len(_BEGIN) : end]
    if "&" in text and not ("<" in text or '"' in text):
        text = html.unescape(text)
    if failed := _FAILED.search(body, 0, begin):
        known = _REASONS.get(failed["status"])
        said = f"status {failed['status']}: {clean(text, limit=80)}"
        return Section(
            place=place, reason=known or said, is_silent=known is not None
        )

    return Section(place=place, text=text)


def _place(address: str) -> Place | None:
    try:
        return parse_place(address)
    except ValueError:
        return None


Content = TypeVar("Content")

# A page holds all ranks.
_MOST_OF_PAGE = 1 << 28
_MOST_OF_RANK = 1 << 26

# py-spy takes seconds on a busy node.
_PATIENCE_S = 20.0
# Who was late once is asked for the rest only in case.
_LITTLE_PATIENCE_S = 5.0

# How much of the time is for what has to be read afterwards.
_SHARE_OF_PAGES = 0.9

# The second needs the lock of the interpreter; the first does not.
_STACKS = ("pyspy_dump?nonblocking=1", "dump_traceback")
_STACK_PAGES = ("/pyspy_dump?nonblocking=1", "/stacks")
# There is a recorder for NCCL, and one for all other backends.
_DUMPS = ("dump_nccl_trace_json", "fr_trace_json")
_DUMP_PAGES = ("/fr_trace_nccl_json", "/fr_trace_json")

_LATE = NoAnswerError(LATE, "late")


@attrs.frozen
class DebugServer:
    """
    A debug server, and what asking it may cost.

    Attributes:
        place: Where it shows its pages.

        deadline: When to stop, on the monotonic clock.

        allowance: How much may come.
    """

    place: Place
    deadline: float
    allowance: Allowance

    def within(self, share: float, most_s: float = math.inf) -> float:
        """
        When has a part to be done that may take a share of what is left?

        Args:
            share: So much of the time, from 0 to 1.

            most_s: So many seconds at most.

        Returns:
            The time on the monotonic clock.
        """
        now = time.monotonic()
        return now + min(max(self.deadline - now, 0.0) * share, most_s)

    def show(
        self,
        pages: Sequence[str],
        read: Callable[[str], Content],
        deadline: float,
    ) -> dict[str, Content | NoAnswerError]:
        """
        Ask for pages, all at once.

        Args:
            pages: Their paths.

            read: Finds in the text of a page what is wanted, as long as it
                takes.

            deadline: When to stop waiting.

        Returns:
            What is in each page, or why that is not there.
        """

        def ask(page: str) -> Content | NoAnswerError:
            try:
                text = fetch(
                    self.place,
                    page,
                    deadline=deadline,
                    allowance=self.allowance,
                    most=_MOST_OF_PAGE,
                )
            except NoAnswerError as exc:
                return exc

            return read(text)

        answers = dict(answers_in_time(ask, pages, deadline))
        return {page: answers.get(page, _LATE) for page in pages}

    def ask_ranks(
        self, workers: Mapping[int, Place], deadline: float
    ) -> Iterator[tuple[int, Told]]:
        """
        Ask the ranks themselves.

        Args:
            workers: Where they listen.

            deadline: When to stop waiting.

        Yields:
            Each rank with what it told, as it comes; without those that were
            not through in time.
        """

        def ask(rank: int) -> Told:
            return self._ask_rank(workers[rank], deadline)

        yield from answers_in_time(ask, workers, deadline)

    def _ask_rank(self, place: Place, deadline: float) -> Told:
        told = Told(place=place)
        patience = min(_PATIENCE_S, (deadline - time.monotonic()) / 4)
        # Stacks come first: who has waited since then is stuck, and not
        # merely early.
        for question in (*_STACKS, *_DUMPS):
            what = "stack" if question in _STACKS else "dump"
            is_late = what == "dump" and what in told.late
            if is_late or (what == "stack" and told.process):
                continue
            try:
                text = fetch(
                    place,
                    f"/handler/{question}",
                    method="POST",
                    deadline=min(deadline, time.monotonic() + patience),
                    allowance=self.allowance,
                    most=_MOST_OF_RANK,
                )
            except NoAnswerError as exc:
                told.miss(what, exc.reason)
                if exc.kind == "unseen":
                    told.miss("dump", exc.reason)
                    told.is_seen = bool(told.process or told.late)
                    break
                if exc.kind == "late":
                    told.late.add(what)
                    patience = min(patience, _LITTLE_PATIENCE_S)
            else:
                told.hear(what, text)
        return told

    def ask_pages(self) -> tuple[dict[int, Told], dict[str, str]]:
        """
        Ask the server what all ranks answer.

        Returns:
            What each rank told, and why there are pages that show none, by
            their paths.
        """
        # To read them takes as long as whoever wrote them likes.
        answers = answers_in_time(
            lambda _: self._ask_pages(), ["pages"], self.deadline
        )
        nothing: tuple[dict[int, Told], dict[str, str]] = ({}, {"pages": LATE})
        return next((answer for _, answer in answers), nothing)

    def _ask_pages(self) -> tuple[dict[int, Told], dict[str, str]]:
        told: dict[int, Told] = {}
        first = (_STACK_PAGES[0], *_DUMP_PAGES)
        problems = self._hear_pages(first, told)
        is_late = problems.get(_STACK_PAGES[0]) == LATE
        # Whoever does not answer at all does not answer this either.
        done = [t for t in told.values() if t.process or "stack" in t.late]
        if not (is_late or (told and len(done) == len(told))):
            problems |= self._hear_pages(_STACK_PAGES[1:], told)
        return told, problems

    def _hear_pages(
        self, paths: Sequence[str], told: dict[int, Told]
    ) -> dict[str, str]:
        problems = {}
        deadline = self.within(_SHARE_OF_PAGES)
        for path, page in self.show(paths, read_page, deadline).items():
            what = "dump" if path in _DUMP_PAGES else "stack"
            if isinstance(page, NoAnswerError):
                problems[path] = page.reason
                continue

            for rank, section in page.items():
                one = told.setdefault(rank, Told(place=section.place))
                _hear(one, what, section)
        return problems


def _hear(told: Told, what: str, section: Section) -> None:
    if section.reason:
        told.miss(what, section.reason)
        if section.is_silent:
            told.late.add(what)
    else:
        told.hear(what, section.text)


_MOST_BYTES = 1 << 30

_STORE = "/tcpstore"
# The store answers at once, or not at all.
_STORE_S = 10.0
# How much of the time is for the ranks, if pages may have to follow.
_SHARE_OF_RANKS = 0.6
# What comes last has to be written, too.
_SHARE_OF_ALL = 0.95

_STRANGER = "what answers there shows no ranks: is it a debug server?"


def keep_debug_server(
    address: str, folder: Path, deadline: float
) -> tuple[list[Path], list[Missing]]:
    """
    Take stacks and recorded calls of all ranks from a running debug server.

    The ranks are asked at the addresses that the server names, and nobody
    else is.

    Args:
        address: ``HOST:PORT`` of its pages, which are on the node of rank 0,
            usually at port 25999; an address of IPv6 in brackets.

        folder: Where to; it is made if there is anything to keep.  What a
            snapshot has put there before, stacks of the same processes and
            new dumps of the same ranks, says more and stays as it is.

        deadline: When to stop, on the monotonic clock, whatever the server
            does.

    Returns:
        What was written, at most 1 GiB and half of what the disk has left;
        and what was not, and why.
    """
    try:
        place = parse_place(address)
        disk = os.statvfs(folder.parent)
    except (ValueError, OSError) as exc:
        reason = reason_of(exc)
        return [], [Missing(what="debug server", reason=reason)]

    size = min(_MOST_BYTES, disk.f_bavail * disk.f_frsize // 2)
    left = max(deadline - time.monotonic(), 0.0)
    ends = time.monotonic() + left * _SHARE_OF_ALL
    server = DebugServer(place, ends, Allowance(size))
    taking = _Taking(server, folder, dumped_lately(folder))
    taking.take()
    return taking.files, taking.missing


@attrs.define
class _Taking:
    """
    What was taken so far.
    """

    server: DebugServer
    folder: Path
    dumped: set[int]
    files: list[Path] = attrs.Factory(list)
    missing: list[Missing] = attrs.Factory(list)

    def take(self) -> None:
        """
        Take everything that can be had.
        """
        deadline = self.server.within(0.25, _STORE_S)
        workers = self.server.show([_STORE], read_addresses, deadline)[_STORE]
        if isinstance(workers, NoAnswerError):
            if workers.kind == "unseen":
                self._miss_server(workers.reason)
                return
            workers = {}

        unseen = self._ask_ranks(workers)
        if unseen or not workers:
            self._ask_pages(unseen)

    def _ask_ranks(self, workers: Mapping[int, Place]) -> dict[int, Told]:
        """
        Ask the ranks themselves, and give those that cannot be reached.
        """
        seen: set[int] = set()
        missed = {rank: _late(place) for rank, place in workers.items()}
        size = max(workers, default=-1) + 1
        deadline = self.server.within(_SHARE_OF_RANKS)
        for rank, told in self.server.ask_ranks(workers, deadline):
            if told.is_seen:
                seen.add(rank)
                del missed[rank]
                self._keep(rank, told, size)
            else:
                missed[rank] = told

        # If others on its node can be reached, it is gone, and no page brings
        # it back.
        hosts = {workers[rank].host for rank in seen}
        gone = {r for r in missed if workers[r].host in hosts}
        for rank in sorted(gone):
            self._keep(rank, missed.pop(rank), size)
        if gaps := set(range(size)).difference(workers):
            self._miss_server(f"it has no address of {ranks_text(gaps)}")
        return missed

    def _ask_pages(self, unseen: Mapping[int, Told]) -> None:
        """
        Take from the pages what these ranks told; or all, if none is known.
        """
        told, problems = self.server.ask_pages()
        size = max({*told, *unseen}, default=-1) + 1
        for rank in sorted({*told, *unseen}):
            if rank in unseen or not unseen:
                self._keep(rank, told.get(rank) or unseen[rank], size)
        for path, reason in problems.items():
            # There is no such page where torch was built without NCCL.
            if not told or not reason.startswith("status 404"):
                self._miss_server(f"{path}: {reason}")
        if not (told or unseen or problems):
            self._miss_server(_STRANGER)

    def _keep(self, rank: int, told: Told, size: int) -> None:
        if rank in self.dumped:
            told.dump = ""
            told.missing.pop("dump", None)
        try:
            for file in keep_told(told, rank, size, self.folder):
                self.files.append(file)
        except OSError as exc:
            reason = f"not written: {exc.strerror}"
            self._miss_rank("stacks and dump", rank, reason, told.place)
        for what, reason in told.missing.items():
            self._miss_rank(what, rank, reason, told.place)

    def _miss_server(self, reason: str) -> None:
        source = f"http://{self.server.place}"
        self.missing.append(
            Missing(what="debug server", reason=reason, source=source)
        )

    def _miss_rank(
        self, what: str, rank: int, reason: str, place: Place | None
    ) -> None:
        source = f"http://{place or self.server.place}"
        self.missing.append(
            Missing(what=what, reason=reason, rank=rank, source=source)
        )


def _late(place: Place) -> Told:
    missing = {"stack": LATE, "dump": LATE}
    return Told(place=place, is_seen=False, missing=missing)

"""
Collect stacks and Flight Recorder dumps from torch's debug server.

The server is that of ``torch.distributed.debug``.  Ranks are queried directly;
its pages serve for the ranks that are not reachable.
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

from .._io import is_there, make_private_folder, write_whole
from .._proc import answers_in_time, in_time
from .._text import clean, reason_of, without_controls
from ..findings import Missing
from ..flight_recorder import MAX_RANKS, Sidecar, find_files, write_sidecar
from ..ranks import ranks_text
from ..stacks import ProcessStacks, parse_stacks, stacks_to_json


NO_ANSWER_IN_TIME = "no answer in time"

_ENDPOINT = re.compile(
    r"(?:http://)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?)\]"
    r"|(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}))"
    r":(?P<port>[0-9]{1,5})/?"
)


@attrs.frozen
class NoAnswer:
    """
    A failed request.

    Attributes:
        reason: Why there is no usable answer, in a few words.

        kind: ``"unseen"`` if no connection was made; ``"late"`` if the answer
            took too long, or the server did not reach the rank; ``"bad"`` if
            it is not usable.
    """

    reason: str
    kind: Literal["unseen", "late", "bad"]


Answer = str | NoAnswer
"""The body of an answer, or why there is none."""


@attrs.frozen
class Endpoint:
    """
    Host and port of a server.

    Attributes:
        host: Name, or address without brackets.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class ByteBudget:
    """
    Limit of received bytes, shared by all servers.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def spend(self, count: int) -> None:
        """
        Subtract *count* bytes; a negative number gives them back.

        Raises:
            ValueError: The budget is exceeded.
        """
        with self._lock:
            self._left -= count
            if self._left < 0:
                msg = "more bytes than there is space for"
                raise ValueError(msg)


def parse_endpoint(address: str) -> Endpoint:
    """
    Parse ``HOST:PORT``.

    Args:
        address: Name or address of the host, an IPv6 address in brackets, and
            the port; a leading ``http://`` is allowed.

    Raises:
        ValueError: It is something else.
    """
    match = _ENDPOINT.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        msg = f"not HOST:PORT: {clean(address, limit=80)!r}"
        raise ValueError(msg)

    return Endpoint(match["six"] or match["host"], int(match["port"]))


def fetch(  # noqa: PLR0913 three of them are limits
    endpoint: Endpoint,
    target: str,
    *,
    method: Literal["GET", "POST"] = "GET",
    deadline: float,
    byte_budget: ByteBudget,
    max_bytes: int,
) -> Answer:
    """
    Fetch one path from a server.

    The lookup of the host name has no time limit.

    Args:
        endpoint: The server.

        target: Path and query.

        method: Method of HTTP.

        deadline: When to stop, on the monotonic clock, even if bytes still
            come.

        byte_budget: Shared limit; bytes of failed answers are given back.

        max_bytes: Limit of this answer, in bytes.

    Returns:
        The body of an answer with status 200, or why there is none.
    """
    if time.monotonic() >= deadline:
        return NoAnswer(NO_ANSWER_IN_TIME, "unseen")

    try:
        connection = _connect(endpoint, deadline)
    except (OSError, ValueError) as exc:
        return NoAnswer(f"no connection: {_error_text(exc)}", "unseen")

    source = _LimitedStream(connection, deadline, byte_budget, max_bytes)
    request = (
        f"{method} {target} HTTP/1.0\r\nHost: {endpoint}\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    with connection:
        try:
            connection.settimeout(_left_s(deadline))
            connection.sendall(request.encode("ascii"))
            return _read_response(source, method)
        except TimeoutError:
            failure = NoAnswer(NO_ANSWER_IN_TIME, "late")
        except (OSError, ValueError, http.client.HTTPException) as exc:
            failure = NoAnswer(_error_text(exc), "bad")
    source.give_back()
    return failure


def _error_text(exc: Exception) -> str:
    if isinstance(exc, http.client.HTTPException):
        return clean(f"no answer in HTTP: {exc!r}", limit=120)
    return clean(reason_of(exc), limit=120)


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        msg = "the time was over"
        raise TimeoutError(msg)

    return left


def _connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    error = OSError("the host has no address")
    found = socket.getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM
    )
    for number, (family, kind, protocol, _, address) in enumerate(found):
        # An address that never answers must leave time for the others.
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


class _LimitedStream(io.RawIOBase):
    """
    Stream of a connection with a deadline and a byte limit.

    Socket timeouts hold for each read, so a server that sends one byte now and
    then would never time out.
    """

    def __init__(
        self,
        connection: socket.socket,
        deadline: float,
        byte_budget: ByteBudget,
        max_bytes: int,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline
        self._byte_budget = byte_budget
        self._max_bytes = max_bytes
        self._spent = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left_s(self._deadline))
        count = self._connection.recv_into(buffer)
        self._spent += count
        self._byte_budget.spend(count)
        if self._spent > self._max_bytes:
            msg = f"an answer of more than {self._max_bytes:,} bytes"
            raise ValueError(msg)

        return count

    def give_back(self) -> None:
        """
        Give back the bytes of a failed answer.
        """
        self._byte_budget.spend(-self._spent)
        self._spent = 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        # HTTPResponse uses nothing else of a socket.
        return io.BufferedReader(self)


def _read_response(source: _LimitedStream, method: str) -> str:
    as_socket: Any = source
    # Python 3.14 warns about a response that is not closed.
    with closing(http.client.HTTPResponse(as_socket, method=method)) as answer:
        answer.begin()
        text = answer.read().decode("utf-8", "replace")
    if answer.status == 200:
        return text

    detail = ""
    # Error pages in HTML do not fit into a line.
    kind = answer.headers.get("Content-Type", "").lower()
    if kind.startswith("text/plain"):
        detail = f": {text}"
    if 300 <= answer.status < 400:
        detail = ": redirections are not followed"
    msg = f"status {answer.status}{detail}"
    raise ValueError(msg)


_DUMP_KEYS = re.compile(r'"(?:entries|pg_config|pg_status)"\s*:')
_DUMP_ENTRIES = re.compile(r'"entries"\s*:\s*\[\s*\{')
_SECOND_RECORDER = (
    "only the calls of NCCL are kept; other backends recorded some, too"
)
# Matches the last rank of a group; the highest one in the default group.
_GROUP_RANKS = re.compile(
    r'"ranks"\s{0,9}:\s{0,9}"?\[(?:[0-9,\s]*[,\s])?([0-9]{1,8})\s{0,9}\]'
)
# Enough for hundreds of threads; limits the parsing in this process.
_MAX_STACK_TEXT = 1 << 20
# The duration of collecting.
_RECENT_S = 120.0


@attrs.define(kw_only=True)
class RankAnswers:
    """
    Answers of one rank.

    Attributes:
        endpoint: Where it was asked; ``None`` if it is not known.

        stacks: Output of a stack tool, or ``""``.

        process: The parsed *stacks*.

        dump: Flight Recorder dump as JSON, or ``""``.

        missing: Why there is no ``"stack"`` or ``"dump"``.

        timed_out: Which of the two took too long.

        is_reachable: Whether the rank accepted a connection.

        asked_at: Time of the request, in seconds since 1970.
    """

    endpoint: Endpoint | None
    stacks: str = ""
    process: ProcessStacks | None = None
    dump: str = ""
    missing: dict[str, str] = attrs.Factory(dict)
    timed_out: set[str] = attrs.Factory(set)
    is_reachable: bool = True
    asked_at: float = attrs.Factory(time.time)

    def add(self, what: str, answer: Answer) -> None:
        """
        Store an answer if it is usable; otherwise note why it is missing.

        Keeps the first stacks, and the first dump that holds calls, so that
        all ranks use the same one of two recorders.

        Args:
            what: ``"stack"`` or ``"dump"``.
        """
        if isinstance(answer, str):
            self._add_text(what, answer)
            return
        self._note_missing(what, answer.reason)
        if answer.kind == "late":
            self.timed_out.add(what)

    def _add_text(self, what: str, text: str) -> None:
        reason = f"an answer that holds none: {clean(text, limit=80)!r}"
        if what == "stack":
            if self.process is not None:
                return
            self.process = parse_process(text)
            if self.process is None:
                self._note_missing(what, reason)
            else:
                self.stacks = text
                self.missing.pop(what, None)
        elif not is_dump_json(text):
            self._note_missing(what, reason)
        elif not _has_calls(self.dump) and (_has_calls(text) or not self.dump):
            self.dump = text
            self.missing.pop(what, None)
        elif _has_calls(text):
            self.missing[what] = _SECOND_RECORDER

    def _note_missing(self, what: str, reason: str) -> None:
        """
        Note why there is no answer, unless there is another one.
        """
        if not (self.process if what == "stack" else self.dump):
            known = self.missing.get(what, "")
            # Status 404 only says that torch has no such handler.
            if not known or known.startswith("status 404"):
                self.missing[what] = reason
            elif reason not in known:
                self.missing[what] = f"{known}; {reason}"


def parse_process(text: str) -> ProcessStacks | None:
    """
    Parse the process in an answer about stacks.

    Args:
        text: The answer; it may be an error, such as missing py-spy.

    Returns:
        The process; ``None`` if the text holds no stack.
    """
    if len(text) > _MAX_STACK_TEXT:
        return None
    try:
        found = parse_stacks(text)
    except (ValueError, RecursionError):
        return None

    return next((p for p in found if any(t.frames for t in p.threads)), None)


def is_dump_json(text: str) -> bool:
    """
    Return whether a text looks like a Flight Recorder dump in JSON.

    Does not decode it: readers of dumps do so in a sandbox.
    """
    whole = text.strip()
    is_object = whole.startswith("{") and whole.endswith("}")
    return is_object and _DUMP_KEYS.search(whole) is not None


def _has_calls(dump: str) -> bool:
    return _DUMP_ENTRIES.search(dump) is not None


def find_dumped_ranks(folder: Path) -> set[int]:
    """
    Find the ranks that wrote a dump themselves for this snapshot.

    Those dumps include call sites, and a second dump of a rank would conflict.

    Args:
        folder: The output folder of :func:`save_rank_answers`.
    """
    since = time.time() - _RECENT_S
    places = folder.glob("flight_recorder*")
    files = find_files(map(str, places)).files
    return {
        file.rank
        for file in files
        if file.rank is not None and file.modified >= since
    }


def save_rank_answers(
    answers: RankAnswers, rank: int, world_size: int, folder: Path
) -> Iterator[Path]:
    """
    Write the stacks and the dump of a rank.

    Args:
        answers: Answers of the rank.

        rank: Global rank.

        world_size: Lower limit of the world size.

        folder: Output folder.  Stacks go to ``pyspy_HOST_PID.json``, or, if
            host or PID is not known, to a text file named by the rank; an
            existing file stays.  The dump goes to
            ``flight_recorder/rank_N.json``, with a sidecar.

    Yields:
        Each file, once it is complete.

    Raises:
        OSError: A file cannot be written.
    """
    process = answers.process
    pid, host = max(process.pid if process else 0, 0), _host(answers.endpoint)
    # Readers need both or neither.
    pid, host = (pid, host) if pid and host else (0, "")
    if process is not None:
        make_private_folder(folder)
        known = attrs.evolve(
            process, rank=rank, host=host, pid=pid, taken=answers.asked_at
        )
        yield from _save_stacks(known, answers.stacks, folder)
    if answers.dump:
        sidecar = Sidecar(
            path="",
            rank=rank,
            world_size=_world_size(answers.dump, max(world_size, rank + 1)),
            host=host,
            pid=pid,
            started=0.0,
            written=answers.asked_at,
            reason="request",
            dump=f"rank_{rank}.json",
        )
        yield from _save_dump(
            answers.dump, sidecar, folder / "flight_recorder"
        )


def _save_stacks(
    process: ProcessStacks, text: str, folder: Path
) -> Iterator[Path]:
    if process.pid:
        path = folder / f"pyspy_{process.host}_{process.pid}.json"
        data = stacks_to_json(process)
        if is_there(path):
            return
    else:
        # Readers take the rank from this name.
        path = folder / f"stacks-rank{process.rank}.txt"
        data = without_controls(text)
    write_whole(path, data.encode())
    yield path


def _save_dump(text: str, sidecar: Sidecar, folder: Path) -> Iterator[Path]:
    make_private_folder(folder)
    path = folder / sidecar.dump
    write_whole(path, text.encode())
    yield path
    yield write_sidecar(sidecar, path)


def _host(endpoint: Endpoint | None) -> str:
    """
    Return the host name of a worker; empty if only an address is known.

    Torch uses the host name of the node; localhost names no node.
    """
    if endpoint is None or endpoint.host.startswith("localhost"):
        return ""
    try:
        ipaddress.ip_address(endpoint.host.partition("%")[0])
    except ValueError:
        return endpoint.host

    return ""


def _world_size(dump: str, least: int) -> int:
    """
    Return the world size, by the highest rank in the groups of a dump.
    """
    highest = (int(match[1]) for match in _GROUP_RANKS.finditer(dump))
    sizes = (rank + 1 for rank in highest if rank < MAX_RANKS)
    return max((least, *sizes))


_HEADING = re.compile(
    r"<h[1-6]>\s{0,9}Rank (?P<rank>[0-9]{1,7}): (?P<url>[^<\n]{1,400})</h[1-6]>"
)
_URL = re.compile(r"http://(?P<place>[^/\s]{1,300})")
_FETCH_FAILED = re.compile(
    r"<p>Failed to fetch: status=(?P<status>[0-9]{1,4})</p>"
)
_BEGIN, _END = "<pre>", "</pre>"
_STORE_ENTRY = re.compile(
    r"^[ \t]{0,40}debug_server/rank(?P<rank>[0-9]{1,7}): "
    r"b(?:'|\"|&#39;|&#x27;)http://(?P<place>[^\s'\"&<>]{1,300})"
    r"(?:'|\"|&#39;|&#x27;)[ \t]{0,40}$",
    re.MULTILINE,
)
# Larger than any job; bounds the lines about missing ranks.
_MAX_RANKS = 1 << 17
# Statuses of the server for a worker that it did not reach.
_REASONS = {"408": NO_ANSWER_IN_TIME, "503": "no connection"}


def read_page(page: str) -> dict[int, tuple[Endpoint | None, Answer]]:
    """
    Parse a page of the debug server into answers per rank.

    Returns:
        Where the worker of each rank listens, if that is known, and its
        answer; empty if it is another page.
    """
    headings = list(_HEADING.finditer(page))
    bounds = [*(match.start() for match in headings), len(page)]
    return {
        int(match["rank"]): _parse_section(
            match["url"], page[match.end() : end]
        )
        for match, end in zip(headings, bounds[1:], strict=True)
        if int(match["rank"]) < _MAX_RANKS
    }


def read_addresses(page: str) -> dict[int, Endpoint]:
    """
    Parse the endpoints of workers from the page of the store.

    Args:
        page: The page with the keys of the store.  It cuts long values off;
            those are left out.

    Returns:
        The endpoints by rank.
    """
    places = (
        (int(match["rank"]), _try_parse_endpoint(match["place"]))
        for match in _STORE_ENTRY.finditer(page)
    )
    return {r: place for r, place in places if place and r < _MAX_RANKS}


def _parse_section(url: str, body: str) -> tuple[Endpoint | None, Answer]:
    match = _URL.match(html.unescape(url))
    endpoint = _try_parse_endpoint(match["place"]) if match else None
    return endpoint, _parse_answer(body)


def _parse_answer(body: str) -> Answer:
    begin, end = body.find(_BEGIN), body.rfind(_END)
    if not 0 <= begin < end:
        return NoAnswer("the page ends before its answer", "bad")

    text = body[begin + len(_BEGIN) : end]
    if "&" in text and not ("<" in text or '"' in text):
        text = html.unescape(text)
    failed = _FETCH_FAILED.search(body, 0, begin)
    if failed is None:
        return text
    if reason := _REASONS.get(failed["status"]):
        return NoAnswer(reason, "late")
    reason = f"status {failed['status']}: {clean(text, limit=80)}"
    return NoAnswer(reason, "bad")


def _try_parse_endpoint(address: str) -> Endpoint | None:
    try:
        return parse_endpoint(address)
    except ValueError:
        return None


Content = TypeVar("Content")

# A page holds the answers of all ranks.
_MAX_PAGE_BYTES = 1 << 28
_MAX_RANK_BYTES = 1 << 26

# py-spy takes seconds on a busy node.
_RANK_TIMEOUT_S = 20.0
# A rank that timed out once gets less time for the other requests.
_RETRY_TIMEOUT_S = 5.0

# Leave the rest of the time for parsing the pages.
_PAGES_SHARE = 0.9

# The second handler needs the GIL; the first does not.
_STACK_HANDLERS = ("pyspy_dump?nonblocking=1", "dump_traceback")
_STACK_PAGES = ("/pyspy_dump?nonblocking=1", "/stacks")
# One recorder is for NCCL, the other for all other backends.
_DUMP_HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")
_DUMP_PAGES = ("/fr_trace_nccl_json", "/fr_trace_json")

_LATE = NoAnswer(NO_ANSWER_IN_TIME, "late")


_MAX_BYTES = 1 << 30

_STORE = "/tcpstore"
# The store answers at once or never.
_STORE_S = 10.0
# Share of the time for the ranks; the pages may have to follow.
_RANKS_SHARE = 0.6
# Leave time for writing the last answers.
_TOTAL_SHARE = 0.95

_NO_DEBUG_SERVER = "what answers there shows no ranks: is it a debug server?"


def collect_debug_server(
    address: str, folder: Path, deadline: float
) -> tuple[list[Path], list[Missing]]:
    """
    Collect stacks and dumps of all ranks through a debug server.

    Connects only to the server and to the addresses of ranks that it lists.

    Args:
        address: ``HOST:PORT`` of its pages, on the node of rank 0, usually
            port 25999; an IPv6 address in brackets.

        folder: Output folder; made only if there is something to save.
            Existing stacks of the same processes, and new dumps of the same
            ranks, have more detail and stay.

        deadline: When to stop, on the monotonic clock, whatever the server
            does.

    Returns:
        The files written, at most 1 GiB and half of the free disk space; and
        missing evidence with reasons.
    """
    try:
        endpoint = parse_endpoint(address)
        disk = os.statvfs(folder.parent)
    except (ValueError, OSError) as exc:
        reason = reason_of(exc)
        return [], [Missing(what="debug server", reason=reason)]

    size = min(_MAX_BYTES, disk.f_bavail * disk.f_frsize // 2)
    left = max(deadline - time.monotonic(), 0.0)
    ends_at = time.monotonic() + left * _TOTAL_SHARE
    dumped = find_dumped_ranks(folder)
    collector = _Collector(endpoint, ends_at, ByteBudget(size), folder, dumped)
    collector.collect()
    return collector.files, collector.missing


@attrs.define
class _Collector:
    """
    State of a collection in progress.

    Attributes:
        endpoint: Where the server serves its pages.

        deadline: When to stop, on the monotonic clock.

        byte_budget: Limit of received bytes.
    """

    endpoint: Endpoint
    deadline: float
    byte_budget: ByteBudget
    folder: Path
    dumped: set[int]
    files: list[Path] = attrs.Factory(list)
    missing: list[Missing] = attrs.Factory(list)

    def collect(self) -> None:
        """
        Collect all stacks and dumps.
        """
        deadline = self._share_deadline(0.25, _STORE_S)
        pages = self._fetch_pages([_STORE], read_addresses, deadline)
        workers = pages[_STORE]
        if isinstance(workers, NoAnswer):
            if workers.kind == "unseen":
                self._note_missing(workers.reason)
                return
            workers = {}

        unreachable = self._query_ranks(workers)
        if unreachable or not workers:
            self._query_pages(unreachable)

    def _share_deadline(self, share: float, max_s: float = math.inf) -> float:
        """
        Return the deadline of a step that may use a share of the time left.

        Args:
            share: From 0 to 1.

            max_s: Upper limit in seconds.
        """
        now = time.monotonic()
        return now + min(max(self.deadline - now, 0.0) * share, max_s)

    def _fetch_pages(
        self,
        pages: Sequence[str],
        read: Callable[[str], Content],
        deadline: float,
    ) -> dict[str, Content | NoAnswer]:
        """
        Fetch pages in parallel.

        Args:
            pages: Their paths.

            read: Parses a page.

            deadline: When to stop, on the monotonic clock.

        Returns:
            The parsed content of each page, or why there is none.
        """

        def ask(page: str) -> Content | NoAnswer:
            answer = fetch(
                self.endpoint,
                page,
                deadline=deadline,
                byte_budget=self.byte_budget,
                max_bytes=_MAX_PAGE_BYTES,
            )
            return read(answer) if isinstance(answer, str) else answer

        answers = dict(answers_in_time(ask, pages, deadline))
        return {page: answers.get(page, _LATE) for page in pages}

    def _query_ranks(
        self, workers: Mapping[int, Endpoint]
    ) -> dict[int, RankAnswers]:
        """
        Query ranks directly, and return those that cannot be reached.
        """
        reached: set[int] = set()
        pending = {
            rank: _unanswered(endpoint) for rank, endpoint in workers.items()
        }
        size = max(workers, default=-1) + 1
        deadline = self._share_deadline(_RANKS_SHARE)

        def ask(rank: int) -> RankAnswers:
            return self._query_rank(workers[rank], deadline)

        for rank, answers in answers_in_time(ask, workers, deadline):
            if answers.is_reachable:
                reached.add(rank)
                del pending[rank]
                self._save(rank, answers, size)
            else:
                pending[rank] = answers

        # If other ranks of its host answer, the rank is dead, and the pages do
        # not have it either.
        hosts = {workers[rank].host for rank in reached}
        dead_ranks = {r for r in pending if workers[r].host in hosts}
        for rank in sorted(dead_ranks):
            self._save(rank, pending.pop(rank), size)
        if unlisted := set(range(size)).difference(workers):
            self._note_missing(f"it has no address of {ranks_text(unlisted)}")
        return pending

    def _query_rank(self, endpoint: Endpoint, deadline: float) -> RankAnswers:
        answers = RankAnswers(endpoint=endpoint)
        timeout_s = min(_RANK_TIMEOUT_S, (deadline - time.monotonic()) / 4)
        # Stacks first: a rank that still waits in the later dump is stuck, and
        # not only early.
        for handler in (*_STACK_HANDLERS, *_DUMP_HANDLERS):
            what = "stack" if handler in _STACK_HANDLERS else "dump"
            has_timed_out = what == "dump" and what in answers.timed_out
            if has_timed_out or (what == "stack" and answers.process):
                continue
            answer = fetch(
                endpoint,
                f"/handler/{handler}",
                method="POST",
                deadline=min(deadline, time.monotonic() + timeout_s),
                byte_budget=self.byte_budget,
                max_bytes=_MAX_RANK_BYTES,
            )
            answers.add(what, answer)
            if isinstance(answer, str):
                continue
            if answer.kind == "unseen":
                answers.add("dump", answer)
                has_begun = answers.process or answers.timed_out
                answers.is_reachable = bool(has_begun)
                break
            if answer.kind == "late":
                timeout_s = min(timeout_s, _RETRY_TIMEOUT_S)
        return answers

    def _query_pages(self, unreachable: Mapping[int, RankAnswers]) -> None:
        """
        Save answers from the pages, for unreachable ranks or for all.
        """
        try:
            # Parsing a hostile page may take long, or fail.
            left_s = self.deadline - time.monotonic()
            by_rank, problems = in_time(self._read_pages, left_s)
        except Exception:  # noqa: BLE001 what the ranks said still counts
            by_rank, problems = {}, {"pages": NO_ANSWER_IN_TIME}
        size = max({*by_rank, *unreachable}, default=-1) + 1
        for rank in sorted({*by_rank, *unreachable}):
            if rank in unreachable or not unreachable:
                self._save(rank, by_rank.get(rank) or unreachable[rank], size)
        for path, reason in problems.items():
            # Torch without NCCL has no such page.
            if not by_rank or not reason.startswith("status 404"):
                self._note_missing(f"{path}: {reason}")
        if not (by_rank or unreachable or problems):
            self._note_missing(_NO_DEBUG_SERVER)

    def _read_pages(self) -> tuple[dict[int, RankAnswers], dict[str, str]]:
        """
        Read the answers of all ranks from the pages of the server.

        Returns:
            The answers by rank, and errors by path of the page.
        """
        by_rank: dict[int, RankAnswers] = {}
        first = (_STACK_PAGES[0], *_DUMP_PAGES)
        problems = self._add_pages(first, by_rank)
        has_timed_out = problems.get(_STACK_PAGES[0]) == NO_ANSWER_IN_TIME
        # Do not ask ranks again that timed out.
        done = [
            t for t in by_rank.values() if t.process or "stack" in t.timed_out
        ]
        if not (has_timed_out or (by_rank and len(done) == len(by_rank))):
            problems |= self._add_pages(_STACK_PAGES[1:], by_rank)
        return by_rank, problems

    def _add_pages(
        self, paths: Sequence[str], by_rank: dict[int, RankAnswers]
    ) -> dict[str, str]:
        problems = {}
        deadline = self._share_deadline(_PAGES_SHARE)
        pages = self._fetch_pages(paths, read_page, deadline)
        for path, page in pages.items():
            what = "dump" if path in _DUMP_PAGES else "stack"
            if isinstance(page, NoAnswer):
                problems[path] = page.reason
                continue

            for rank, (endpoint, answer) in page.items():
                known = RankAnswers(endpoint=endpoint)
                by_rank.setdefault(rank, known).add(what, answer)
        return problems

    def _save(self, rank: int, answers: RankAnswers, size: int) -> None:
        if rank in self.dumped:
            answers.dump = ""
            answers.missing.pop("dump", None)
        try:
            for file in save_rank_answers(answers, rank, size, self.folder):
                self.files.append(file)
        except OSError as exc:
            reason, what = f"not written: {exc.strerror}", "stacks and dump"
            self._note_missing(reason, what, rank, answers.endpoint)
        for what, reason in answers.missing.items():
            self._note_missing(reason, what, rank, answers.endpoint)

    def _note_missing(
        self,
        reason: str,
        what: str = "debug server",
        rank: int | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        source = f"http://{endpoint or self.endpoint}"
        self.missing.append(
            Missing(what=what, reason=reason, rank=rank, source=source)
        )


def _unanswered(endpoint: Endpoint) -> RankAnswers:
    missing = {"stack": NO_ANSWER_IN_TIME, "dump": NO_ANSWER_IN_TIME}
    return RankAnswers(endpoint=endpoint, is_reachable=False, missing=missing)

"""
How does what a rank told become files that :func:`distdebug.diagnose` reads?
"""

from __future__ import annotations

import ipaddress
import re
import time

from collections.abc import Iterator
from pathlib import Path

import attrs

from ..._files import is_there, write_whole
from ..._text import clean, without_controls
from ...flight_recorder.reading.files import find_files
from ...flight_recorder.sidecar import MOST_RANKS, Sidecar, write_sidecar
from ...stacks.model import ProcessStacks
from ...stacks.parse import parse_stacks
from ...stacks.write import stacks_to_json
from .fetch import Place


__all__ = ["Told", "dumped_lately", "is_dump", "keep_told", "process_in"]

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

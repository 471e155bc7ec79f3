"""
Know the ranks of processes, nodes, and GPUs that lines of logs name.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from types import MappingProxyType

import attrs

from .._search import find_each
from ..identity import same_host
from .collectives.model import CollectiveLogs, rank_origins
from .engine import Block, FilePart, LogReader
from .lines import LogLine, Origin
from .signatures import read_signatures


#: Ranks of processes by host, ``""`` if unknown, and PID.
RanksByProcess = Mapping[tuple[str, int], int]


class ProcessRanks:
    """
    The known ranks of processes, nodes, and GPUs.
    """

    def __init__(self) -> None:
        self._ranks: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        #: The ranks of processes.
        self.by_process: dict[tuple[str, int], int] = {}

    def add(
        self,
        rank: int,
        *,
        pid: int | None = None,
        hosts: Iterable[str | None] = (),
        pci: str = "",
    ) -> None:
        """
        Add what is known of a rank.

        Args:
            hosts: The names and addresses of its node.

            pci: The address of its GPU.
        """
        places = [x for x in hosts if x]
        named = [("host", x) for x in places]
        if pid is not None:
            named.append(("pid", str(pid)))
            for place in places or [""]:
                self.by_process.setdefault((place, pid), rank)
        if pci:
            named.append(("pci", _normalize("pci", pci)))
        for name in named:
            self._ranks[name].add(rank)

    def find(self, named: Iterable[tuple[str, str]]) -> set[int]:
        """
        Return the ranks of what lines name.

        A process or a GPU counts only if no other node has one of that name.
        """
        found: set[int] = set()
        for kind, value in named:
            if kind == "host":
                found |= self._ranks_on(value)
                continue
            ranks = self._ranks.get((kind, _normalize(kind, value)), set())
            if len(ranks) == 1:
                found |= ranks
        return found

    def rank_of(self, pid: int | None, places: Iterable[str]) -> int | None:
        """
        Return the rank of a process.

        Args:
            places: Names and addresses of its node.  Without a match, a PID is
                enough if no other process has it.
        """
        if pid is None:
            return None
        for place in places:
            if (place, pid) in self.by_process:
                return self.by_process[place, pid]
        return next(iter(self.find([("pid", str(pid))])), None)

    def ranks_of(self, origins: Iterable[Origin]) -> set[int]:
        """
        Return the ranks of the processes that printed lines.
        """
        ranks = (self.rank_of(x.pid, [x.ip or ""]) for x in origins)
        return {rank for rank in ranks if rank is not None}

    def _ranks_on(self, host: str) -> set[int]:
        known = (
            ranks
            for (kind, name), ranks in self._ranks.items()
            if kind == "host" and same_host(name, host)
        )
        return set().union(*known)


NO_PROCESSES = ProcessRanks()


def _normalize(kind: str, value: str) -> str:
    if kind != "pci":
        return value
    # NCCL prints 4e000 for what the kernel calls 0000:4e:00.0.
    digits = value.replace(":", "").replace(".", "")
    if ":" in value and "." not in value:
        digits += "0"
    return digits.lstrip("0").lower()


@attrs.frozen(kw_only=True)
class ProcessForm:
    """
    One form of a line that names a rank together with its process or node.

    Attributes:
        words: At least one of them occurs.

        pattern: May have the groups ``rank``, ``local_rank``, ``ranks`` (all
            of a node), ``pid``, and ``host``.

        is_weak: Whether it counts only for processes that no other form names.

        example: A line that it matches.
    """

    words: tuple[str, ...] = attrs.field(converter=tuple)
    pattern: re.Pattern[str] = attrs.field(converter=re.compile)
    is_weak: bool = False
    example: str = ""


@cache
def process_forms() -> Mapping[bytes, tuple[ProcessForm, ...]]:
    """
    Return the forms ``[[process]]`` of ``signatures.toml``, by word.
    """
    by_word: defaultdict[bytes, list[ProcessForm]] = defaultdict(list)
    for row in read_signatures()["process"]:
        form = ProcessForm(**row)
        for word in form.words:
            by_word[word.encode()].append(form)
    return {word: tuple(forms) for word, forms in by_word.items()}


# Launchers and processes name themselves in the beginning, and at the end.
_HEAD_BYTES, _TAIL_BYTES = 1 << 19, 1 << 17
# After so many lines without a new rank, no more are read.
_MOST_IDLE = 200
_MOST_HITS, _MOST_FACTS, _MOST_HOSTS = 1 << 10, 1 << 17, 1 << 14


class ProcessReader(LogReader):
    """
    Read which rank a process has.

    The words stand in most lines of some logs, so it searches for them itself.

    Args:
        known: Ranks that other evidence shows.
    """

    def __init__(self, known: RanksByProcess = MappingProxyType({})) -> None:
        super().__init__()
        self._known = known
        self._facts: dict[tuple[bool, str, str, str, str], None] = {}
        self._ranks_on: dict[str, list[int]] = {}

    def begin(self, part: FilePart) -> None:
        """
        Begin with a file.
        """
        super().begin(part)
        self._head = _HEAD_BYTES
        self._last: Block | None = None

    def read(self, block: Block) -> None:
        """
        Read what belongs to the beginning of the file.
        """
        stop = min(block.own + self._head, block.end)
        self._read(block, block.own, stop)
        self._head -= stop - block.own
        self._last = block if stop < block.end else None

    def end(self, error: Exception | None) -> None:
        """
        Read the end of the file.
        """
        super().end(error)
        if self._last is not None:
            start = max(self._last.own, self._last.end - _TAIL_BYTES)
            self._read(self._last, start, self._last.end)

    def _read(self, block: Block, start: int, stop: int) -> None:
        forms, idle = process_forms(), 0
        found = sorted(
            (at, word)
            for word in forms
            for at in islice(
                find_each(block.data, word, start, stop), _MOST_HITS
            )
        )
        for position in block.lines_with(found):
            count = len(self._facts) + len(self._ranks_on)
            line = position.parse()
            for form in {x for word in position.words for x in forms[word]}:
                for groups in form.pattern.finditer(line.text):
                    self._add(groups.groupdict(), line, form.is_weak)
            idle += len(self._facts) + len(self._ranks_on) == count
            if idle >= _MOST_IDLE or len(self._facts) >= _MOST_FACTS:
                return

    def _add(
        self,
        groups: Mapping[str, str | None],
        line: LogLine,
        is_weak: bool,  # noqa: FBT001 a private helper
    ) -> None:
        origin = line.origin
        host = groups.get("host") or (origin.ip if origin else "") or ""
        if ranks := groups.get("ranks"):
            if len(self._ranks_on) < _MOST_HOSTS:
                numbers = re.findall(r"\d{1,7}", ranks)
                self._ranks_on[host] = [int(x) for x in numbers]
            return
        pid = groups.get("pid") or (origin.pid if origin else "") or ""
        rank = groups.get("rank")
        if rank is None and origin is not None and origin.rank is not None:
            rank = str(origin.rank)
        local_rank = groups.get("local_rank") or ""
        if (rank or local_rank) and (pid or host):
            fact = is_weak, rank or "", local_rank, str(pid), host
            self._facts[fact] = None

    def result(self, logs: CollectiveLogs) -> ProcessRanks:
        """
        Return the ranks that these lines, and those of NCCL and watchdogs, show.
        """
        known = ProcessRanks()
        for (place, number), rank in self._known.items():
            known.add(rank, pid=number, hosts=[place])
        for origin in rank_origins(logs).values():
            places = (origin.ip, origin.host)
            known.add(origin.rank, pid=origin.pid, hosts=places)
        for init in logs.inits:
            if init.size == logs.world_size:
                known.add(init.member, pci=init.bus)
        for host, ranks in self._ranks_on.items():
            for rank in ranks:
                known.add(rank, hosts=[host])
        for is_weak, text, local_rank, pid_text, host in sorted(self._facts):
            on_node = dict(enumerate(self._ranks_on.get(host, ())))
            found = int(text) if text else on_node.get(int(local_rank))
            pid = int(pid_text) if pid_text else None
            if is_weak and known.rank_of(pid, [host]) is not None:
                continue
            if found is not None:
                known.add(found, pid=pid, hosts=[host])
        return known

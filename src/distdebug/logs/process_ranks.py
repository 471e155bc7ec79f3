"""
Know the ranks of processes, nodes, and GPUs that lines of logs name.
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import chain, islice
from types import MappingProxyType
from typing import NamedTuple

import attrs

from .._search import find_each
from ..identity import same_host
from .collectives.model import CollectiveLogs, rank_origins
from .engine import Block, FilePart, LogReader
from .lines import LogLine, Origin
from .signatures import read_signatures


#: Ranks of processes by host, ``""`` if unknown, and PID.
RanksByProcess = Mapping[tuple[str, int], int]


#: A log, and the node in it, where the lines of several nodes have labels.
NodeKey = tuple[str, str]

# The name of a file has fewer words.
_MOST_WORDS = 32
# A node has fewer ranks.
_MOST_ON_NODE = 1 << 10
_MOST_RANKS = 1 << 20


@attrs.define
class NodeLog:
    """
    What a log shows of the node that it is from.

    Attributes:
        numbers: The ranks of nodes that it names; of its own, there is one.

        sizes: How many processes there are on a node.

        starts: The first ranks of nodes.

        workers: The processes of the node whose end its launcher reports.

        failures: How often one failed first: once for each attempt.

        least: At least so many processes there are.

        ranks: The ranks of the node, by local rank; empty if unknown.
    """

    numbers: set[int] = attrs.field(factory=set)
    sizes: set[int] = attrs.field(factory=set)
    starts: set[int] = attrs.field(factory=set)
    workers: set[int] = attrs.field(factory=set)
    failures: int = 0
    least: int = 0
    ranks: Sequence[int] = ()

    def set_ranks(self, common_size: int, numbers: Collection[int]) -> None:
        """
        Set the ranks, if it names its own node only.

        Args:
            common_size: How many ranks each node has; 0 if they differ.

            numbers: The ranks of nodes that a single log names.
        """
        size = min(self.sizes, default=common_size)
        own = self.numbers if self.numbers.issubset(numbers) else set()
        by_number = {number * common_size for number in own}
        starts = self.starts or (by_number if common_size else set())
        if not self.ranks and len(starts) == 1 and min(starts) >= 0:
            start = min(starts)
            if start < _MOST_RANKS:
                self.ranks = range(start, start + min(size, _MOST_ON_NODE))


def _set_node_ranks(logs: Mapping[NodeKey, NodeLog]) -> None:
    nodes = logs.values()
    sizes = {x for node in nodes for x in node.sizes}
    # Of several attempts, each has other processes.
    least = max(
        (max(len(x.workers) if x.failures < 2 else 0, x.least) for x in nodes),
        default=0,
    )
    common = least if not sizes else min(sizes) if len(sizes) == 1 else 0
    named = Counter(x for node in nodes for x in node.numbers)
    of_one_log = {number for number, count in named.items() if count == 1}
    for node in nodes:
        node.set_ranks(common, of_one_log)


class ProcessRanks:
    """
    The known ranks of processes, nodes, and GPUs.
    """

    def __init__(
        self, nodes: Mapping[NodeKey, NodeLog] = MappingProxyType({})
    ) -> None:
        self._nodes = nodes
        self._launchers = {
            path
            for (path, label), node in nodes.items()
            if label.isdecimal() or node.workers
        }
        self._ranks: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        # By whole and by short name.
        self._hosts: defaultdict[str, set[str]] = defaultdict(set)
        #: The ranks of processes.
        self.by_process: dict[tuple[str, int], int] = {}

    def add(
        self,
        rank: int,
        *,
        pid: int | None = None,
        hosts: Iterable[str | None] = (),
        log: str = "",
        pci: str = "",
    ) -> None:
        """
        Add what is known of a rank.

        Args:
            hosts: The names and addresses of its node.

            log: The log that shows it: containers may give their processes the
                same numbers.

            pci: The address of its GPU.
        """
        places = [x for x in hosts if x]
        named = [("host", x) for x in places]
        if pid is not None:
            named.append(("pid", str(pid)))
            named += [("pid", f"{pid} {log}")] if log else []
            for place in places or [""]:
                self.by_process.setdefault((place, pid), rank)
        if pci:
            named.append(("pci", _normalize("pci", pci)))
        for name in named:
            self._ranks[name].add(rank)
        for place in places:
            for host in (place.lower(), _short_name(place)):
                self._hosts[host].add(place)

    def find(
        self, named: Iterable[tuple[str, str]], logs: Iterable[str] = ()
    ) -> set[int]:
        """
        Return the ranks of what lines name.

        A process or a GPU counts only if no other node has one of that name.

        Args:
            logs: The logs that name it.
        """
        found: set[int] = set()
        for kind, value in named:
            if kind == "host":
                found |= self._ranks_on(value)
                continue
            # Containers may give their processes the same numbers.
            in_logs = (self._ranks.get((kind, f"{value} {x}")) for x in logs)
            everywhere = self._ranks.get((kind, _normalize(kind, value)))
            for ranks in (*in_logs, everywhere):
                if ranks and len(ranks) == 1:
                    found |= ranks
                    break
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

    def on_node(self, path: str, label: str = "") -> Sequence[int]:
        """
        Return the ranks of the node that a log is from, by local rank.

        Args:
            label: The node in it, where the lines of several have labels.
        """
        node = self._nodes.get((path, label))
        if label or (node and node.ranks):
            return node.ranks if node else ()
        own = _named_hosts(path, self._hosts)
        longest = max(own, key=len, default="")
        is_one = bool(own) and all(same_host(x, longest) for x in own)
        return sorted(self._ranks_on(longest)) if is_one else ()

    def is_of_launchers(self, path: str) -> bool:
        """
        Return whether a log is from launchers, one for each node.
        """
        return path in self._launchers

    def is_all(self, ranks: AbstractSet[int]) -> bool:
        """
        Return whether these may be all ranks of the job.
        """
        on_nodes = (node.ranks for node in self._nodes.values())
        known = chain([0], *self._ranks.values(), *on_nodes)
        return all(rank in ranks for rank in known)

    def _ranks_on(self, host: str) -> set[int]:
        """
        Return the ranks on a host; those between two of its own are its, too.
        """
        own: set[int] = set()
        others: set[int] = set()
        for (kind, name), ranks in self._ranks.items():
            if kind == "host":
                (own if same_host(name, host) else others).update(ranks)
        names = host.lower(), _short_name(host)
        if not own:
            for (path, _), node in self._nodes.items():
                if _named_hosts(path, {x: {host} for x in names}):
                    own.update(node.ranks)
        between = range(min(own, default=0), max(own, default=0))
        if len(between) < _MOST_ON_NODE and others.isdisjoint(between):
            own.update(between)
        return own


def _named_hosts(
    path: str, hosts: Mapping[str, AbstractSet[str]]
) -> AbstractSet[str]:
    """
    Return the hosts that a file, or its folder, is named after.

    Args:
        hosts: Hosts by their names, whole and short.
    """
    name = "/".join(re.split(r"[/\\]", path)[-2:]).lower()
    words = [*islice(re.finditer(r"[a-z0-9]+", name), _MOST_WORDS)]
    # There may be more hosts than parts of a name.
    parts = {
        name[first.start() : last.end()]
        for n, first in enumerate(words)
        for last in words[n:]
    }
    found = {x for x in parts if x in hosts and _is_in_name(x, name)}
    whole = {x for x in found if x in map(str.lower, hosts[x])}
    return set().union(*(hosts[x] for x in whole or found))


def _short_name(host: str) -> str:
    is_address = host.replace(".", "").isdecimal()
    return host if is_address else host.partition(".")[0].lower()


def _is_in_name(host: str, name: str) -> bool:
    # Without a number it may be any word.
    if not any(map(str.isdigit, host)):
        return False
    # A dash or a dot may part it from words, and from numbers of its own.
    own = r"\." if host.replace(".", "").isdecimal() else "[-.]"
    pattern = rf"(?<![a-z0-9]){re.escape(host)}(?![a-z0-9]|{own}\d)"
    return re.search(pattern, name) is not None


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
            of a host), ``pid``, and ``host``; and of the node that prints it
            ``node_rank``, ``local_size``, ``node_ranks`` (all of them), and
            ``worker`` (a process whose end its launcher reports).

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
# The groups that show something of the node.
_NODE_GROUPS = {
    "node_rank",
    "local_rank",
    "local_size",
    "node_ranks",
    "worker",
}
# After so many lines without a new rank, no more are read.
_MOST_IDLE = 200
_MOST_HITS, _MOST_FACTS, _MOST_HOSTS = 1 << 10, 1 << 17, 1 << 14


class _Fact(NamedTuple):
    """
    What a line shows of a process; ``""`` is unknown.
    """

    is_weak: bool
    rank: str
    local_rank: str
    pid: str
    host: str
    node: NodeKey


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
        self._facts: dict[_Fact, None] = {}
        self._ranks_on: dict[str, list[int]] = {}
        self._nodes: dict[NodeKey, NodeLog] = {}
        self._workers = 0
        #: The ranks that have printed something.
        self.present: set[int] = set()

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
            count = self._count()
            line = position.parse()
            # The prefix of the line may name its process.
            self._add({}, line, is_weak=False)
            for form in {x for word in position.words for x in forms[word]}:
                for groups in form.pattern.finditer(line.text):
                    self._add(groups.groupdict(), line, is_weak=form.is_weak)
            idle += self._count() == count
            if idle >= _MOST_IDLE or len(self._facts) >= _MOST_FACTS:
                return

    def _count(self) -> int:
        processes = len(self._facts) + len(self.present) + self._workers
        return processes + len(self._nodes) + len(self._ranks_on)

    def _add(
        self,
        groups: Mapping[str, str | None],
        line: LogLine,
        *,
        is_weak: bool,
    ) -> None:
        origin = line.origin or Origin()
        host = groups.get("host") or origin.ip or ""
        if ranks := groups.get("ranks"):
            if len(self._ranks_on) < _MOST_HOSTS:
                self._ranks_on[host] = _numbers(ranks)
            return
        node = self.part.path, origin.node
        self._add_node(node, {k: v for k, v in groups.items() if v})
        pid = groups.get("pid") or _text(origin.pid)
        rank = groups.get("rank") or _text(origin.rank)
        local_rank = groups.get("local_rank") or ""
        if rank and not is_weak:
            self.present.add(int(rank))
        if (rank or local_rank) and (pid or host):
            fact = _Fact(is_weak, rank, local_rank, pid, host, node)
            self._facts[fact] = None

    def _add_node(self, key: NodeKey, groups: Mapping[str, str]) -> None:
        """
        Add what a line shows of the node that prints it.
        """
        is_about_node = key[1].isdecimal() or groups.keys() & _NODE_GROUPS
        is_too_many = len(self._nodes) >= _MOST_HOSTS
        if not is_about_node or (is_too_many and key not in self._nodes):
            return
        node = self._nodes.setdefault(key, NodeLog())
        for text in (key[1], groups.get("node_rank", "")):
            node.numbers |= {int(text)} if text.isdecimal() else set()
        if size := int(groups.get("local_size", 0)):
            node.sizes.add(size)
        if worker := groups.get("worker"):
            self._workers += int(worker) not in node.workers
            node.workers.add(int(worker))
            node.failures += "local_rank" in groups
        if local_rank := groups.get("local_rank"):
            node.least = max(node.least, int(local_rank) + 1)
            if rank := groups.get("rank"):
                node.starts.add(int(rank) - int(local_rank))
        if ranks := groups.get("node_ranks"):
            # After a restart, it may have others.
            node.starts.add(min(_numbers(ranks)))
            node.sizes.add(len(_numbers(ranks)))

    def result(self, logs: CollectiveLogs) -> ProcessRanks:
        """
        Return the ranks that these lines, and those of NCCL and watchdogs, show.
        """
        _set_node_ranks(self._nodes)
        known = ProcessRanks(self._nodes)
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
        for fact in sorted(self._facts):
            found = int(fact.rank) if fact.rank else self._find(fact, known)
            pid = int(fact.pid) if fact.pid else None
            if fact.is_weak and known.rank_of(pid, [fact.host]) is not None:
                continue
            if found is not None:
                known.add(found, pid=pid, hosts=[fact.host], log=fact.node[0])
        return known

    def _find(self, fact: _Fact, known: ProcessRanks) -> int | None:
        """
        Return the global rank of a local one, by the ranks of its node.
        """
        on_host = self._ranks_on.get(fact.host)
        on_node = on_host or known.on_node(*fact.node)
        return dict(enumerate(on_node)).get(int(fact.local_rank))


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _numbers(text: str) -> list[int]:
    return [int(x) for x in re.findall(r"\d{1,7}", text)]

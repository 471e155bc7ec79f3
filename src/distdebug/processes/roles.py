"""
Who started a process, and what does it do in its job?
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

from .._text import clean
from ..identity import Identity, identify
from .environ import Maps, read_environ, read_maps
from .model import Role, Worker
from .procfs import (
    ask_each,
    list_numbers,
    parse_stat,
    parse_status,
    read_link,
    read_proc,
    whole_number,
)
from .scan import (
    COMPILE_WORKER,
    DATA_WORKER,
    ENGINE,
    FALLBACKS,
    LAUNCHER_NAME,
    LAUNCHERS,
    MEGATRON,
    MULTIPROCESSING,
    MULTIPROCESSING_HELPER,
    PYTHON_TOOLS,
    RANK_THREADS,
    TITLES,
    Process,
    option_number,
    program_of,
)
from .threads import tcp_inodes


_MOST_THREADS = 1024
_MOST_DESCRIPTORS = 1024


@attrs.frozen(kw_only=True)
class Evidence:
    """
    What the memory of a process shows.

    Attributes:
        environ: Its environment.

        source: How that was learned; ``""`` if it was not.

        identity: Who the process is by its environment.

        has_torch: Whether torch is loaded.
    """

    environ: Mapping[str, str] = MappingProxyType({})
    source: str = ""
    identity: Identity = identify({})  # noqa: RUF009 it cannot be changed
    has_torch: bool = False


def read_evidence(pid: int, root: str = "/proc") -> Evidence:
    """
    What does the memory of a process show?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

    Returns:
        What may be read of it.
    """
    maps = read_maps(pid, root) or Maps()
    environ, source = read_environ(pid, root, maps=maps)
    return Evidence(
        environ=environ,
        source=source,
        identity=identify(environ),
        has_torch=maps.has_torch,
    )


def has_rank_threads(pid: int, root: str = "/proc") -> bool:
    """
    Does a process have threads that carry collectives?

    A forked child does not inherit them.

    Args:
        pid: Its number.

        root: Where the kernel's files are.
    """
    folder = f"{root}/{pid}/task"
    for thread in list_numbers(folder)[:_MOST_THREADS]:
        name = read_proc(f"{folder}/{thread}/comm", limit=64) or b""
        if RANK_THREADS.match(name.decode(errors="replace")):
            return True
    return False


def has_connection(pid: int, root: str = "/proc") -> bool:
    """
    Does a process have a TCP socket, such as to where ranks meet?

    Args:
        pid: Its number.

        root: Where the kernel's files are.
    """
    folder = f"{root}/{pid}/fd"
    links = (
        read_link(f"{folder}/{number}")
        for number in list_numbers(folder)[:_MOST_DESCRIPTORS]
    )
    inodes = {x[8:-1] for x in links if x.startswith("socket:[")}
    return bool(inodes) and not inodes.isdisjoint(tcp_inodes(pid, root))


@attrs.frozen
class Family:
    """
    The processes of a node as a tree.

    Attributes:
        processes: Processes by number.

        children: Numbers of the children of a process, by its own.
    """

    processes: Mapping[int, Process]
    children: Mapping[int, tuple[int, ...]]

    def parent(self, process: Process) -> Process | None:
        """
        The process that started this one.
        """
        parent = self.processes.get(process.parent_pid)
        # A number can be used again; whoever started it is older.
        if parent and parent.start_ticks <= process.start_ticks:
            return parent
        return None

    def ancestors(self, process: Process) -> Iterator[Process]:
        """
        The processes above this one, nearest first.
        """
        seen = {process.pid}
        above = self.parent(process)
        while above is not None and above.pid not in seen:
            yield above
            seen.add(above.pid)
            above = self.parent(above)

    def elder(self, process: Process) -> Process | None:
        """
        The process in Python that this one comes from, if there is one.

        Shells and other wrappers between them do not count, nor do the
        servants of *multiprocessing*.
        """
        for above in self.ancestors(process):
            if above.is_python and not self.is_servant(above):
                return above
        return None

    def is_servant(self, process: Process) -> bool:
        """
        Whether a process only helps *multiprocessing*.

        What a fork server forks has the same command line as the server.
        """
        if MULTIPROCESSING_HELPER.search(process.text) is None:
            return False
        parent = self.parent(process)
        return parent is None or parent.text != process.text

    def is_copy(self, process: Process, elder: Process) -> bool:
        """
        Whether *multiprocessing* started a process: anew, or as a copy.
        """
        if MULTIPROCESSING.search(process.text):
            return True
        is_zombie = not process.arguments
        same = process.name == elder.name if is_zombie else False
        return same or process.text == elder.text

    def walk(self) -> Iterator[Process]:
        """
        Every process, parents before their children.
        """
        # Last come those without a parent, from where all others are reached.
        waiting = sorted(
            self.processes,
            key=lambda pid: self.parent(self.processes[pid]) is None,
        )
        seen: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid not in seen:
                seen.add(pid)
                yield self.processes[pid]
                waiting.extend(self.children.get(pid, ()))

    def below(self, pid: int) -> Iterator[Process]:
        """
        The processes that descend from one, parents before their children.
        """
        waiting, seen = list(self.children.get(pid, ())), {pid}
        while waiting:
            child = waiting.pop()
            if child not in seen:
                seen.add(child)
                yield self.processes[child]
                waiting.extend(self.children.get(child, ()))


def family_of(processes: Mapping[int, Process]) -> Family:
    """
    Who descends from whom?

    Args:
        processes: Processes by number.
    """
    children: dict[int, list[int]] = {}
    family = Family(processes, {})
    for process in processes.values():
        parent = family.parent(process)
        if parent is not None and parent.pid != process.pid:
            children.setdefault(parent.pid, []).append(process.pid)
    return Family(
        processes, {pid: tuple(found) for pid, found in children.items()}
    )


_NOTHING = Evidence()


class Claim(NamedTuple):
    """
    What a process is: who started it, and its role.
    """

    framework: str
    role: Role


@attrs.frozen
class Scene:
    """
    What is known of the processes of a node.

    Attributes:
        family: Who descends from whom.

        evidence: What the memory of each process in Python shows.

        is_wanted: Whether the user's own patterns know a process.

        root: Where the kernel's files are.
    """

    family: Family
    evidence: Mapping[int, Evidence]
    is_wanted: Callable[[Process], bool]
    root: str = "/proc"

    def shown_by(self, process: Process) -> Evidence:
        """
        What the memory of a process shows.
        """
        return self.evidence.get(process.pid, _NOTHING)


def is_inherited(
    scene: Scene, process: Process, elder: Process | None
) -> bool:
    """
    Whether a process has its rank only because its parent has it.
    """
    if elder is None:
        return False
    mine = scene.shown_by(process).identity
    return scene.shown_by(elder).identity[:2] == mine[:2]


def takes_part(scene: Scene, process: Process, elder: Process) -> bool:
    """
    Whether a process that *multiprocessing* started has peers.

    Args:
        scene: What is known.

        process: The process.

        elder: Who started it.
    """
    if not scene.shown_by(process).has_torch:
        return False
    if has_rank_threads(process.pid, scene.root):
        return True
    # What is forked inherits the sockets of its parent.
    is_new = MULTIPROCESSING.search(process.text) is not None
    return has_connection(process.pid, scene.root) and (
        is_new or not has_connection(elder.pid, scene.root)
    )


def by_looks(
    process: Process, elder: Process | None, above: Claim | None
) -> Claim | None:
    """
    What do its title and its command line say?
    """
    if COMPILE_WORKER.search(process.text) or (
        above is not None and above.role == "compile"
    ):
        return Claim(above.framework, "compile") if above else None
    if process.name == DATA_WORKER:
        return Claim(above.framework, "dataloader") if above else None

    # A forked child keeps the title of its parent.
    if elder is None or elder.text != process.text:
        claim = _by_tables(process)
        if claim is not None:
            return claim
    if above is not None and above.role == "launcher":
        return Claim(above.framework, "rank")
    return None


def _by_tables(process: Process) -> Claim | None:
    program = program_of(process.arguments)
    for table, text in ((TITLES, process.text), (LAUNCHERS, program)):
        for look in table:
            if look.pattern.search(text):
                return Claim(look.framework, look.role)
    is_launcher = process.name == LAUNCHER_NAME
    return Claim("torchrun", "launcher") if is_launcher else None


def by_environment(
    scene: Scene, process: Process, elder: Process | None
) -> Claim | None:
    """
    Does it have a rank of its own in its environment?
    """
    shown = scene.shown_by(process)
    identity = shown.identity
    if identity.rank is None or is_inherited(scene, process, elder):
        return None

    program = program_of(process.arguments)
    # Slurm names a rank in every process that it starts.
    least = 0 if identity.source == "torchrun" else 1
    has_peers = identity.world_size is not None and identity.world_size > least
    if PYTHON_TOOLS.search(program) or not (has_peers or shown.has_torch):
        return None
    if MEGATRON.search(program):
        return Claim("megatron", "rank")
    if elder is not None and scene.family.is_copy(process, elder):
        return Claim("multiprocessing", "rank")
    return Claim(_launcher_of(shown), "rank")


def _launcher_of(shown: Evidence) -> str:
    if "TORCHELASTIC_RUN_ID" in shown.environ:
        return "torchrun"
    # Many scripts give torch's names to what Slurm says.
    if shown.environ.get("SLURM_PROCID") == str(shown.identity.rank):
        return "slurm"
    return "torch" if shown.identity.source == "torchrun" else "mpi"


def by_evidence(
    scene: Scene, process: Process, elder: Process | None
) -> Claim | None:
    """
    Does it take part in collectives, although nobody says so?
    """
    if PYTHON_TOOLS.search(program_of(process.arguments)):
        return None
    if elder is not None and scene.family.is_copy(process, elder):
        has_peers = takes_part(scene, process, elder)
        return Claim("multiprocessing", "rank") if has_peers else None
    for look in FALLBACKS:
        if look.pattern.search(process.text):
            return Claim(look.framework, look.role)

    named = option_number(process.arguments, "rank", "local-rank")
    has_peers = scene.shown_by(process).has_torch and (
        named is not None or has_rank_threads(process.pid, scene.root)
    )
    return Claim("torch", "rank") if has_peers else None


def claim_workers(scene: Scene) -> dict[int, Claim]:
    """
    What is each process to a job, as far as those above it tell?

    Args:
        scene: What is known.

    Returns:
        What each process is, by number, parents first; nothing for those that
        belong to no job.
    """
    claims: dict[int, Claim] = {}
    for process in scene.family.walk():
        elder = scene.family.elder(process)
        above = claims.get(elder.pid) if elder else None
        claim = _claim(scene, process, elder, above)
        if claim is not None:
            claims[process.pid] = claim
    return claims


def _claim(
    scene: Scene, process: Process, elder: Process | None, above: Claim | None
) -> Claim | None:
    if scene.family.is_servant(process):
        return None

    claim = None
    if process.is_python:
        claim = by_looks(process, elder, above) or by_environment(
            scene, process, elder
        )
        if claim is None and above is not None and elder is not None:
            claim = _by_parent(scene, process, elder, above)
        elif claim is None:
            claim = by_evidence(scene, process, elder)
    elif above is not None and above.role == "rank":
        claim = Claim(above.framework, "child")
    if claim is None and scene.is_wanted(process):
        claim = Claim("pattern", "rank")
    return claim


def _by_parent(
    scene: Scene, process: Process, elder: Process, above: Claim
) -> Claim:
    """
    What is it to the worker that it comes from?
    """
    framework = above.framework
    is_copy = scene.family.is_copy(process, elder)
    if is_copy and above.role == "server":
        has_torch = scene.shown_by(process).has_torch
        return Claim(framework, "rank" if has_torch else "child")
    if not is_copy or above.role != "rank":
        return Claim(framework, "child")
    if has_rank_threads(elder.pid, scene.root):
        # It may have peers of its own, as what saves checkpoints has.
        has_peers = has_rank_threads(process.pid, scene.root)
        return Claim(framework, "child" if has_peers else "dataloader")
    if not takes_part(scene, process, elder):
        return Claim(framework, "dataloader")
    known = framework != "pattern"
    return Claim(framework if known else "multiprocessing", "rank")


def correct_claims(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    Correct what each process is by what its children are.

    Args:
        scene: What is known.

        claims: What each process is; changed in place.
    """
    for pid, claim in list(claims.items()):
        process = scene.family.processes[pid]
        elder = scene.family.elder(process)
        if elder is not None and (
            claim.role == "launcher"
            or (claim.role == "rank" and _is_launched(scene, process, elder))
        ):
            _make_launcher(scene, claims, elder, claim)

    _unclaim_starters(scene, claims)
    _claim_brothers(scene, claims)
    _claim_engines(scene, claims)
    _drop_doubles(scene, claims)


def _is_launched(scene: Scene, process: Process, elder: Process) -> bool:
    # Programs with another name may call torch's launcher.
    is_torchrun = "TORCHELASTIC_RUN_ID" in scene.shown_by(process).environ
    is_own = is_torchrun and not is_inherited(scene, process, elder)
    return is_own or scene.family.is_copy(process, elder)


def _make_launcher(
    scene: Scene, claims: dict[int, Claim], elder: Process, child: Claim
) -> None:
    claim = claims.get(elder.pid)
    has_title = any(look.pattern.match(elder.text) for look in TITLES)
    if claim is None and child.role == "launcher":
        return  # a script that calls a launcher has no part in the job
    if claim is not None and (claim.role != "rank" or has_title):
        return
    if not has_rank_threads(elder.pid, scene.root):
        known = claim if claim and claim.framework != "pattern" else child
        claims[elder.pid] = Claim(known.framework, "launcher")


def _unclaim_starters(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    A pattern of the user may also match the program that starts the ranks.
    """
    for pid, claim in list(claims.items()):
        if claim == ("pattern", "rank") and any(
            claims[child.pid].role == "rank"
            for child in scene.family.below(pid)
            if child.pid in claims
        ):
            claims[pid] = Claim("pattern", "launcher")


def _claim_brothers(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    Of ranks that were started alike, some may not have met the others yet.
    """
    for pid, claim in list(claims.items()):
        if claim.role == "launcher":
            _claim_children(scene, claims, pid)


def _claim_children(scene: Scene, claims: dict[int, Claim], pid: int) -> None:
    launcher = scene.family.processes[pid]
    for child in scene.family.below(pid):
        elder = scene.family.elder(child)
        claim = claims.get(child.pid)
        if (
            elder is launcher
            and scene.family.is_copy(child, launcher)
            and child.name != DATA_WORKER
            and (claim is None or claim.role == "dataloader")
            and scene.shown_by(child).has_torch
        ):
            claims[child.pid] = Claim(claims[pid].framework, "rank")


def _claim_engines(scene: Scene, claims: dict[int, Claim]) -> None:
    for pid, claim in list(claims.items()):
        if claim.role == "server" and ENGINE.search(
            scene.family.processes[pid].text
        ):
            roles = {
                claims[child.pid].role
                for child in scene.family.below(pid)
                if child.pid in claims
            }
            if "rank" not in roles:
                claims[pid] = claim._replace(role="rank")


def _drop_doubles(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    All processes of a container may have inherited the rank of one.
    """
    twins: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for pid, claim in claims.items():
        identity = (
            scene.evidence[pid].identity if pid in scene.evidence else None
        )
        if claim.role == "rank" and identity and claim.framework in _LOOSE:
            twins[identity.rank, identity.job].append(pid)

    for pids in twins.values():
        with_torch = [p for p in pids if scene.evidence[p].has_torch]
        if with_torch:
            for pid in set(pids) - set(with_torch):
                del claims[pid]


# Those who are ranks by nothing but their environment.
_LOOSE = frozenset({"mpi", "slurm", "torch"})


# scheduler_PP2_TP1, scheduler_TP0_PP0_DP0_EP0, Worker_TP3, EngineCore_DP1:
# in any order, and only those of more than one place.
_PLACE = re.compile(
    r"(?<![A-Za-z])(TP|PP|DP|EP|CP|SP|CFG|DCP|PCP|ETP|EDP|MOE_EP|MOE_DP"
    r"|ATTN_TP|ATTN_DP|ATTN_CP)_?(\d{1,6})(?![A-Za-z0-9])"
)
# Nobody has more dimensions; a title may hold anything.
_MOST = 16


def parse_title(title: str) -> tuple[tuple[str, int], ...]:
    """
    Where in the mesh is a process?

    Args:
        title: Its title.

    Returns:
        Names of dimensions in small letters and the place along each, in the
        order of the title; the first if one is there twice.
    """
    places: dict[str, int] = {}
    for name, number in _PLACE.findall(title[:4096])[:_MOST]:
        places.setdefault(name.lower(), int(number))
    return tuple(places.items())


def rank_of_title(places: tuple[tuple[str, int], ...]) -> int | None:
    """
    Which rank is at this place, if that can be told?

    It can be told only where tensor parallelism makes the whole job; experts
    are spread over the same ranks.  How wide the other dimensions are, no
    title says.

    Args:
        places: As :func:`parse_title` gives them.

    Returns:
        The rank, or ``None``.
    """
    known = dict(places)
    return known.get("tp") if known.keys() <= {"tp", "ep"} else None


# Frameworks whose workers tell their place by their title, and whose
# environment is that of whoever started the server.
_TITLED = frozenset({"sglang", "vllm"})


def place_of(scene: Scene, process: Process, claim: Claim) -> dict[str, Any]:
    """
    Which place does a process have in its job, and who said so?

    Args:
        scene: What is known.

        process: A worker.

        claim: What it is.

    Returns:
        Fields of a worker.
    """
    shown = scene.shown_by(process)
    place: dict[str, Any] = {"job": clean(shown.identity.job)}
    if claim.framework in _TITLED and claim.role in {"rank", "server"}:
        return place | _by_title(process, claim)
    if claim.role != "rank":
        return place

    place |= _by_environment(scene, process, claim)
    # A rank that is known does not become better by what else is there.
    if place.get("rank") is None:
        options = _by_options(process)
        sources = [x["source"] for x in (place, options) if x.get("source")]
        place |= options | {"source": " + ".join(sources)}
    return place


def _by_title(process: Process, claim: Claim) -> dict[str, Any]:
    places = parse_title(process.text)
    if not places:
        return {}
    rank = rank_of_title(places) if claim.role == "rank" else None
    return {"coordinates": places, "rank": rank, "source": "title"}


def _by_environment(
    scene: Scene, process: Process, claim: Claim
) -> dict[str, Any]:
    shown = scene.shown_by(process)
    identity = shown.identity
    elder = scene.family.elder(process)
    # Slurm started the node's Ray, and not its actors.
    is_foreign = claim.framework == "ray" and identity.source != "torchrun"
    if is_foreign or is_inherited(scene, process, elder):
        size = identity.world_size if identity.rank is None else None
        identity = identity._replace(
            rank=None, local_rank=None, world_size=size
        )
    known = {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "local_world_size": _local_world_size(shown, identity),
    }
    found = {key: value for key, value in known.items() if value is not None}
    return found | ({"source": shown.source} if found else {})


def _local_world_size(shown: Evidence, identity: Identity) -> int | None:
    if identity.rank is None:
        return None

    text = shown.environ.get("LOCAL_WORLD_SIZE", "")
    if text.isascii() and text.isdigit() and len(text) < 6:
        return int(text)
    # With all tasks on one node, it does not matter how they are numbered.
    nodes = shown.environ.get("SLURM_NNODES")
    size = shown.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if identity.world_size is None:
        return None
    if (identity.source == "Slurm" and nodes == "1") or (
        identity.source == "Open MPI" and size == str(identity.world_size)
    ):
        return identity.world_size
    return None


def _by_options(process: Process) -> dict[str, Any]:
    known = {
        "rank": option_number(process.arguments, "rank"),
        "local_rank": option_number(process.arguments, "local-rank"),
        "world_size": option_number(process.arguments, "world-size"),
    }
    found = {key: value for key, value in known.items() if value is not None}
    return found | ({"source": "command line"} if found else {})


_LONGEST_TITLE = 4096
_ORDER: tuple[Role, ...] = (
    "rank",
    "launcher",
    "server",
    "dataloader",
    "compile",
    "child",
)


def survey(
    family: Family, is_wanted: Callable[[Process], bool], root: str
) -> tuple[Scene, dict[int, Claim]]:
    """
    What is every process of a node to a job?

    Args:
        family: The processes.

        is_wanted: Whether the user's own patterns know a process.

        root: Where the kernel's files are.

    Returns:
        What was looked at, and what each process is, by number.
    """
    interpreters = [
        process.pid
        for process in family.processes.values()
        if process.is_python
        and process.arguments
        and not family.is_servant(process)
    ]
    evidence = ask_each(interpreters, lambda pid: read_evidence(pid, root))
    scene = Scene(family, evidence, is_wanted, root)
    claims = claim_workers(scene)
    correct_claims(scene, claims)
    return scene, claims


def describe_workers(
    scene: Scene, claims: Mapping[int, Claim], pids: Collection[int]
) -> tuple[Worker, ...]:
    """
    Who are these workers?

    Args:
        scene: What was looked at.

        claims: What each process is.

        pids: Which of them to describe.

    Returns:
        Ranks first, by rank and place, and then the others; without those
        that ended meanwhile.
    """
    found = (
        _describe(scene, scene.family.processes[p], claims[p]) for p in pids
    )
    return tuple(sorted(filter(None, found), key=_order))


def _describe(scene: Scene, process: Process, claim: Claim) -> Worker | None:
    folder = f"{scene.root}/{process.pid}"
    stat = parse_stat(read_proc(f"{folder}/stat"))
    if stat is None or stat.start_ticks != process.start_ticks:
        return None

    uids = parse_status(read_proc(f"{folder}/status")).get("Uid", "").split()
    return Worker(
        pid=process.pid,
        start_ticks=process.start_ticks,
        parent_pid=stat.parent_pid,
        uid=whole_number("".join(uids[1:2])) or 0,
        title=clean(process.text[: 4 * _LONGEST_TITLE], limit=_LONGEST_TITLE),
        framework=claim.framework,
        role=claim.role,
        **place_of(scene, process, claim),
    )


def _order(worker: Worker) -> tuple[object, ...]:
    rank = worker.rank
    return (
        _ORDER.index(worker.role),
        rank is None,
        rank or 0,
        worker.coordinates,
        worker.pid,
    )

"""
What is wrong with the network or the nodes, as NCCL tells?
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...findings import Cause, CollectiveRef, Finding
from ...ranks import fold_ranks
from .model import CollectiveLogs, NcclCall, NcclInit, NcclNote, nccl_finding
from .verdict import OTHER_INTERFACE


_LINKS = (
    "check links, switches, and cards between these nodes (ibstat, "
    "ibv_devinfo, ethtool), and NCCL_IB_HCA and NCCL_IB_GID_INDEX"
)
# The first that is found in a warning tells its cause.
_WARNINGS: tuple[tuple[re.Pattern[str], Cause, str, str], ...] = (
    (
        re.compile(r"Duplicate GPU detected", re.IGNORECASE),
        Cause.NODE_MISCONFIGURED,
        "two ranks use the same GPU",
        (
            "set the device of each rank by its local rank, and check "
            "CUDA_VISIBLE_DEVICES"
        ),
    ),
    (
        re.compile(r"[Mm]ismatched NCCL version|version mismatch"),
        Cause.NODE_MISCONFIGURED,
        "ranks use different versions of NCCL",
        (
            "install the same version on all nodes, and look for another one in "
            "LD_LIBRARY_PATH or LD_PRELOAD"
        ),
    ),
    (
        re.compile(
            r"no socket interface found|No interface found", re.IGNORECASE
        ),
        Cause.NETWORK_MISCONFIGURED,
        "NCCL found no network interface to use",
        OTHER_INTERFACE,
    ),
    (
        re.compile(
            r"status ?= ?(?:IBV_WC_RETRY_EXC_ERR\()?12\b|vendor.err ?=? ?129"
            r"|RETRY_EXC"
        ),
        Cause.NETWORK_FAILURE,
        "a card sent again and again and got no answer (status 12)",
        _LINKS,
    ),
    (
        re.compile(
            r"Got completion from peer|completion with error|async.{0,20}(?:event|fatal)"
        ),
        Cause.NETWORK_FAILURE,
        "a network card reported an error",
        _LINKS,
    ),
    (
        re.compile(
            r"(?:onnect|socket)[^\n]{0,120}(?:refused|timed out|No route to host"
            r"|unreachable)",
            re.IGNORECASE,
        ),
        Cause.NETWORK_FAILURE,
        "a rank was not reached",
        OTHER_INTERFACE,
    ),
)


def explain_warnings(notes: Iterable[NcclNote]) -> list[Finding]:
    """
    What do warnings of NCCL mean?

    Args:
        notes: What NCCL says.

    Returns:
        One finding for each kind of warning whose cause is known.
    """
    found: dict[int, list[NcclNote]] = defaultdict(list)
    for note in notes:
        # Who tries again may well succeed.
        if note.kind == "warning" and "retrying" not in note.text:
            for i, (pattern, *_) in enumerate(_WARNINGS):
                if pattern.search(note.text):
                    found[i].append(note)
                    break
    return [_warned(i, warned) for i, warned in sorted(found.items())]


def _warned(i: int, warned: list[NcclNote]) -> Finding:
    _, cause, summary, remedy = _WARNINGS[i]
    hosts = sorted({x.host for x in warned})
    where = f" (on {', '.join(hosts[:4])}{'…' if len(hosts) > 4 else ''})"
    return nccl_finding(
        cause, f"{summary}{where}: {warned[0].text}", warned, remedy
    )


_INTERFACE = re.compile(
    r"(?:\[\d{1,3}\])?([\w.@-]{1,64}):([0-9a-fA-F.:\[\]%]{2,60}?)<"
)
_VIRTUAL = re.compile(r"docker|veth|virbr|br-|podman|cni\d|cali|lo$|lo:")


def explain_network(
    logs: CollectiveLogs, *, has_failed: bool
) -> list[Finding]:
    """
    What do the lines of NCCL complain of?

    Args:
        logs: What was read.

        has_failed: Whether something else shows that the job did not go on;
            without it, oddities that may be meant are not told.

    Returns:
        What is wrong with the network, and with nodes.
    """
    return [
        *explain_warnings(logs.notes),
        *_interfaces(logs.notes, has_failed=has_failed),
        *_networks(logs.notes, has_failed=has_failed),
        *_versions(logs.notes),
    ]


def _interfaces(
    notes: Iterable[NcclNote], *, has_failed: bool
) -> Iterator[Finding]:
    """
    Interfaces that other nodes cannot reach.
    """
    used = [x for x in notes if x.kind == "interface"]
    if len({x.host for x in used}) < 2:
        return
    virtual = [x for x in used if any(map(_is_virtual, _listed(x)))]
    if virtual:
        names = sorted({x.host for x in virtual})
        yield nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"NCCL uses an interface on {', '.join(names[:4])} that other "
            f"nodes cannot reach: {virtual[0].text}",
            virtual,
            OTHER_INTERFACE,
        )
    elif has_failed:
        yield from _different(used)


def _different(used: Sequence[NcclNote]) -> Iterator[Finding]:
    """
    Nodes whose first interfaces differ in name and network.
    """
    first: dict[str, tuple[str, str]] = {}
    for note in used:
        for interface in _listed(note)[:1]:
            first.setdefault(note.host, interface)
    names = {name for name, _ in first.values()}
    nets = {address.rsplit(".", 2)[0] for _, address in first.values()}
    if len(names) > 1 and len(nets) > 1:
        told = sorted(f"{h}: {n} {a}" for h, (n, a) in first.items())
        yield nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            "nodes use interfaces of different networks: "
            + ", ".join(told[:4]),
            used,
            OTHER_INTERFACE,
            confidence="possible",
        )


def _listed(note: NcclNote) -> list[tuple[str, str]]:
    """
    Interfaces with their addresses.
    """
    return _INTERFACE.findall(note.text)


def _is_virtual(interface: tuple[str, str]) -> bool:
    name, address = interface
    return bool(_VIRTUAL.match(name)) or address.startswith("127.")


def _networks(
    notes: Iterable[NcclNote], *, has_failed: bool
) -> Iterator[Finding]:
    by_network: dict[str, list[NcclNote]] = defaultdict(list)
    for note in notes:
        if note.kind == "network":
            by_network[note.text].append(note)
    socket = by_network.get("Socket", [])
    hosts = {x.host for x in socket}
    other_hosts = {
        x.host
        for name, found in by_network.items()
        if name != "Socket"
        for x in found
    }
    if hosts and other_hosts and not hosts & other_hosts:
        others = sorted(name for name in by_network if name != "Socket")
        yield nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"{', '.join(sorted(hosts)[:4])} fell back to plain sockets where "
            f"others use {', '.join(others)}",
            socket,
            "see what these nodes lack: cards, drivers, the plug-in of the "
            "network, or NCCL_IB_DISABLE that differs",
            confidence="likely" if has_failed else "possible",
        )


def _versions(notes: Iterable[NcclNote]) -> Iterator[Finding]:
    found: dict[str, list[NcclNote]] = defaultdict(list)
    for note in notes:
        # Each run may have another one, so only within the same one.
        if note.kind == "version":
            found[note.text.partition("+")[0]].append(note)
    attempts = Counter(
        attempt
        for notes_ in found.values()
        for attempt in {x.attempt for x in notes_}
    )
    hosts = [{x.host for x in x_} - {""} for x_ in found.values()]
    if (
        len(found) > 1
        and max(attempts.values()) > 1
        and all(hosts)
        and len(set().union(*hosts)) > 1
    ):
        yield nccl_finding(
            Cause.NODE_MISCONFIGURED,
            f"nodes use different versions of NCCL: {', '.join(sorted(found))}",
            [x[0] for x in found.values()],
            "install the same version on all nodes",
        )


_P2P = frozenset({"send", "recv"})
_Calls = dict[int, NcclCall]


def explain_differing(logs: CollectiveLogs) -> list[Finding]:
    """
    Which calls of the same number differ?

    Args:
        logs: What was read.

    Returns:
        The first of them.
    """
    find = _finder(logs.inits)
    found: dict[tuple[str, int], _Calls] = defaultdict(dict)
    for call in logs.calls:
        init = find(call)
        if init is not None and call.op not in _P2P:
            key = (init.comm_id or init.comm, call.number)
            found[key].setdefault(init.member, call)
    for (_, number), calls in sorted(found.items(), key=lambda x: x[0][1]):
        cause, kinds = _call_kinds(calls)
        if len(kinds) > 1:
            size = max((x.size for x in logs.inits), default=0)
            is_world = size == logs.world_size
            return [_differing(calls, number, cause, kinds, is_world=is_world)]
    return []


def _differing(
    calls: Mapping[int, NcclCall],
    number: int,
    cause: Cause,
    kinds: list[tuple[str, list[int]]],
    *,
    is_world: bool,
) -> Finding:
    right, wrong = kinds[0], kinds[1]
    is_tie = len(right[1]) == len(wrong[1])
    members = [m for _, ms in kinds[1:] for m in ms] if not is_tie else []
    return nccl_finding(
        cause,
        f"rank {fold_ranks(wrong[1])} called {wrong[0]} where rank "
        f"{fold_ranks(right[1])} called {right[0]}, as call {number:#x} "
        "of an NCCL communicator",
        [calls[wrong[1][0]], calls[right[1][0]]],
        "make all ranks make the same calls; or find the call that was "
        "left out or made once too often before",
        ranks=members if is_world else (),
        collective=CollectiveRef(op=calls[right[1][0]].op, seq=number),
    )


def explain_behind(logs: CollectiveLogs) -> list[Finding]:
    """
    Who made fewer calls than all others, after which nothing went on?

    Args:
        logs: What was read.

    Returns:
        What the first communicator tells in which that is so.
    """
    find = _finder(logs.inits)
    last: dict[str, _Calls] = defaultdict(dict)
    inits: dict[str, NcclInit] = {}
    for call in logs.calls:
        init = find(call)
        if init is not None and init.comm_id:
            last[init.comm_id][init.member] = call
            inits[init.comm_id] = init
    # What two ranks do among themselves counts for them only.
    between = {
        init.comm_id
        for call in logs.calls
        if call.op in _P2P and (init := find(call))
    }
    for comm_id, calls in last.items():
        size = inits[comm_id].size
        fewest = min(call.number for call in calls.values())
        few = [m for m, x in calls.items() if x.number == fewest]
        is_whole = len(calls) == size and comm_id not in between
        is_whole &= all(x.count == 1 for x in calls.values())
        if is_whole and 2 * len(few) < size:
            return [_late(calls, few, is_world=size == logs.world_size)]
    return []


def _late(
    calls: Mapping[int, NcclCall], few: list[int], *, is_world: bool
) -> Finding:
    most = max(calls.values(), key=lambda x: x.number)
    return nccl_finding(
        Cause.RANK_NOT_ARRIVED,
        f"rank {fold_ranks(few)} made {calls[few[0]].number:#x} calls on an "
        f"NCCL communicator, others up to {most.number:#x}",
        [calls[few[0]], most],
        "look at the Python stack and the log of these ranks",
        ranks=few if is_world else (),
        confidence="possible",
        collective=CollectiveRef(op=most.op, seq=most.number),
    )


def _finder(
    inits: Iterable[NcclInit],
) -> Callable[[NcclCall], NcclInit | None]:
    """
    How the communicator of a call is found: by itself, or else by its size if
    the process has only one of that size.
    """
    exact: dict[tuple[str, int, str], NcclInit] = {}
    sized: dict[tuple[str, int, int], dict[str, NcclInit]] = defaultdict(dict)
    for init in inits:
        exact[init.host, init.pid, init.comm] = init
        sized[init.host, init.pid, init.size][init.comm] = init

    def find(call: NcclCall) -> NcclInit | None:
        """
        The set-up of the communicator.
        """
        known = exact.get((call.host, call.pid, call.comm))
        alike = sized.get((call.host, call.pid, call.size or 0), {})
        if known is None and len(alike) == 1:
            (known,) = alike.values()
        return known

    return find


def _call_kinds(
    calls: Mapping[int, NcclCall],
) -> tuple[Cause, list[tuple[str, list[int]]]]:
    for cause, name in (
        (Cause.TYPE_MISMATCH, lambda x: x.op),
        (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.elements} elements"),
        (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of type {x.dtype}"),
    ):
        found: dict[str, list[int]] = defaultdict(list)
        for member, call in sorted(calls.items()):
            found[name(call)].append(member)
        if len(found) > 1:
            return cause, sorted(found.items(), key=lambda x: -len(x[1]))
    return Cause.TYPE_MISMATCH, []


_MOST_RANKS = 1 << 20


# After so many seconds without a line, what was under way is not any more.
_OVER_S = 300


def explain_communicators(
    logs: CollectiveLogs, *, has_failed: bool
) -> list[Finding]:
    """
    Whose calls differ, and who never completed the set-up of a communicator?

    Args:
        logs: What was read.

        has_failed: Whether something else shows that the job did not go on;
            without it, and if the logs were written to a moment ago, a set-up
            may just be under way.

    Returns:
        The first call that differs, or else who made the fewest; and the
        first set-up that did not end.
    """
    is_over = has_failed or (logs.quiet or 0) > _OVER_S
    differ = explain_differing(logs)
    return [
        *differ,
        *(explain_behind(logs) if is_over and not differ else ()),
        *_unfinished(logs, is_over=is_over),
    ]


def _unfinished(logs: CollectiveLogs, *, is_over: bool) -> Iterator[Finding]:
    """
    Communicators whose set-up did not end.
    """
    # Of what Ray folds, only some ranks are seen.
    if any(x.count > 1 for x in logs.inits):
        return
    done = {_comm(x) for x in logs.inits if x.is_complete}
    begun: dict[tuple[int, str], dict[int, NcclInit]] = defaultdict(dict)
    finished: set[tuple[int, str]] = set()
    for init in logs.inits:
        key = (init.attempt, init.comm_id)
        if init.comm_id and not init.is_complete:
            begun[key][init.member] = init
        if init.is_complete:
            finished.add(key)
    for key, members in begun.items():
        waiting = {m: x for m, x in members.items() if _comm(x) not in done}
        if waiting and (is_over or key in finished):
            yield _set_up(logs, members, waiting)
            return


def _set_up(
    logs: CollectiveLogs,
    members: Mapping[int, NcclInit],
    waiting: Mapping[int, NcclInit],
) -> Finding:
    """
    A communicator for which these members wait.
    """
    size = next(iter(members.values())).size
    is_world = size == logs.world_size
    absent = set(range(min(size, _MOST_RANKS))) - set(members)
    if 0 < len(absent) <= len(members) == len(waiting):
        return nccl_finding(
            Cause.RANK_NOT_ARRIVED,
            f"rank {fold_ranks(absent)} of {size} did not begin to set up an "
            f"NCCL communicator for which {len(waiting)} others wait",
            waiting.values(),
            "look at the Python stack and the log of these ranks",
            ranks=absent if is_world else (),
            confidence="likely" if len(absent) * 2 <= size else "possible",
        )
    few = 2 * len(waiting) <= len(members)
    return nccl_finding(
        Cause.RENDEZVOUS_TIMEOUT,
        f"rank {fold_ranks(waiting)} of {size} did not complete the set-up of "
        "an NCCL communicator",
        waiting.values(),
        f"look at the native stack of these ranks; {OTHER_INTERFACE}",
        ranks=waiting if is_world and few else (),
        confidence="possible",
    )


def _comm(init: NcclInit) -> tuple[int, str, int, str]:
    return (init.attempt, init.host, init.pid, init.comm)

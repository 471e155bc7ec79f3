"""
Explain NCCL log lines: warnings, network, versions, communicators, calls.
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...findings import Cause, CollectiveRef, Finding
from ...ranks import fold_ranks
from .detectors import SOCKET_INTERFACE_REMEDY
from .model import (
    CollectiveLogs,
    NcclCall,
    NcclInit,
    NcclNote,
    make_nccl_finding,
)


_LINKS_REMEDY = (
    "check links, switches, and cards between these nodes (ibstat, "
    "ibv_devinfo, ethtool), and NCCL_IB_HCA and NCCL_IB_GID_INDEX"
)
# The first pattern that matches a warning gives its cause.
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
        SOCKET_INTERFACE_REMEDY,
    ),
    (
        re.compile(
            r"status ?= ?(?:IBV_WC_RETRY_EXC_ERR\()?12\b|vendor.err ?=? ?129"
            r"|RETRY_EXC"
        ),
        Cause.NETWORK_FAILURE,
        "a card sent again and again and got no answer (status 12)",
        _LINKS_REMEDY,
    ),
    (
        re.compile(
            r"Got completion from peer|completion with error|async.{0,20}(?:event|fatal)"
        ),
        Cause.NETWORK_FAILURE,
        "a network card reported an error",
        _LINKS_REMEDY,
    ),
    (
        re.compile(
            r"(?:onnect|socket)[^\n]{0,120}(?:refused|timed out|No route to host"
            r"|unreachable)",
            re.IGNORECASE,
        ),
        Cause.NETWORK_FAILURE,
        "a rank was not reached",
        SOCKET_INTERFACE_REMEDY,
    ),
)


def explain_warnings(notes: Iterable[NcclNote]) -> list[Finding]:
    """
    Explain warnings of NCCL: one finding for each kind with a known cause.
    """
    notes_by_pattern: dict[int, list[NcclNote]] = defaultdict(list)
    for note in notes:
        # A retry may succeed.
        if note.kind == "warning" and "retrying" not in note.text:
            for i, (pattern, *_) in enumerate(_WARNINGS):
                if pattern.search(note.text):
                    notes_by_pattern[i].append(note)
                    break
    return [
        _warning_finding(i, matched)
        for i, matched in sorted(notes_by_pattern.items())
    ]


def _warning_finding(i: int, notes: list[NcclNote]) -> Finding:
    _, cause, summary, remedy = _WARNINGS[i]
    hosts = sorted({x.host for x in notes})
    on_hosts = f" (on {', '.join(hosts[:4])}{'…' if len(hosts) > 4 else ''})"
    return make_nccl_finding(
        cause, f"{summary}{on_hosts}: {notes[0].text}", notes, remedy
    )


_INTERFACE_ADDRESS = re.compile(
    r"(?:\[\d{1,3}\])?([\w.@-]{1,64}):([0-9a-fA-F.:\[\]%]{2,60}?)<"
)
_VIRTUAL_INTERFACE = re.compile(
    r"docker|veth|virbr|br-|podman|cni\d|cali|lo$|lo:"
)


def explain_network(
    logs: CollectiveLogs, *, has_failed: bool
) -> list[Finding]:
    """
    Explain lines of NCCL about the network, and about nodes that differ.

    Args:
        has_failed: Whether something else shows that the job failed.  Without
            it, oddities that may be intended are left out or less sure.
    """
    return [
        *explain_warnings(logs.notes),
        *_explain_interfaces(logs.notes, has_failed=has_failed),
        *_explain_socket_fallback(logs.notes, has_failed=has_failed),
        *_explain_versions(logs.notes),
    ]


def _explain_interfaces(
    notes: Iterable[NcclNote], *, has_failed: bool
) -> Iterator[Finding]:
    """
    Report interfaces that other nodes cannot reach.
    """
    used = [x for x in notes if x.kind == "interface"]
    if len({x.host for x in used}) < 2:
        return
    virtual = [x for x in used if any(map(_is_virtual, _parse_interfaces(x)))]
    if virtual:
        names = sorted({x.host for x in virtual})
        yield make_nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"NCCL uses an interface on {', '.join(names[:4])} that other "
            f"nodes cannot reach: {virtual[0].text}",
            virtual,
            SOCKET_INTERFACE_REMEDY,
        )
    elif has_failed:
        yield from _explain_different_networks(used)


def _explain_different_networks(used: Sequence[NcclNote]) -> Iterator[Finding]:
    """
    Report nodes whose first interfaces differ in name and network.
    """
    first: dict[str, tuple[str, str]] = {}
    for note in used:
        for interface in _parse_interfaces(note)[:1]:
            first.setdefault(note.host, interface)
    names = {name for name, _ in first.values()}
    networks = {address.rsplit(".", 2)[0] for _, address in first.values()}
    if len(names) > 1 and len(networks) > 1:
        descriptions = sorted(f"{h}: {n} {a}" for h, (n, a) in first.items())
        yield make_nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            "nodes use interfaces of different networks: "
            + ", ".join(descriptions[:4]),
            used,
            SOCKET_INTERFACE_REMEDY,
            confidence="possible",
        )


def _parse_interfaces(note: NcclNote) -> list[tuple[str, str]]:
    """
    Parse names and addresses of the listed interfaces.
    """
    return _INTERFACE_ADDRESS.findall(note.text)


def _is_virtual(interface: tuple[str, str]) -> bool:
    name, address = interface
    return bool(_VIRTUAL_INTERFACE.match(name)) or address.startswith("127.")


def _explain_socket_fallback(
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
        for name, network_notes in by_network.items()
        if name != "Socket"
        for x in network_notes
    }
    if hosts and other_hosts and not hosts & other_hosts:
        others = sorted(name for name in by_network if name != "Socket")
        yield make_nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"{', '.join(sorted(hosts)[:4])} fell back to plain sockets where "
            f"others use {', '.join(others)}",
            socket,
            "see what these nodes lack: cards, drivers, the plug-in of the "
            "network, or NCCL_IB_DISABLE that differs",
            confidence="likely" if has_failed else "possible",
        )


def _explain_versions(notes: Iterable[NcclNote]) -> Iterator[Finding]:
    by_version: dict[str, list[NcclNote]] = defaultdict(list)
    for note in notes:
        # Versions may differ between runs, so compare within one run.
        if note.kind == "version":
            by_version[note.text.partition("+")[0]].append(note)
    attempts = Counter(
        attempt
        for version_notes in by_version.values()
        for attempt in {x.attempt for x in version_notes}
    )
    hosts = [
        {x.host for x in version_notes} - {""}
        for version_notes in by_version.values()
    ]
    if (
        len(by_version) > 1
        and max(attempts.values()) > 1
        and all(hosts)
        and len(set().union(*hosts)) > 1
    ):
        yield make_nccl_finding(
            Cause.NODE_MISCONFIGURED,
            f"nodes use different versions of NCCL: {', '.join(sorted(by_version))}",
            [x[0] for x in by_version.values()],
            "install the same version on all nodes",
        )


_P2P_OPS = frozenset({"send", "recv"})
_CallsByMember = dict[int, NcclCall]


def explain_differing_calls(logs: CollectiveLogs) -> list[Finding]:
    """
    Find the first call that differs between ranks of a communicator.
    """
    find_init = _make_init_lookup(logs.inits)
    calls_by_number: dict[tuple[str, int], _CallsByMember] = defaultdict(dict)
    for call in logs.calls:
        init = find_init(call)
        if init is not None and call.op not in _P2P_OPS:
            key = (init.comm_id or init.comm, call.number)
            calls_by_number[key].setdefault(init.member, call)
    for (_, number), calls in sorted(
        calls_by_number.items(), key=lambda x: x[0][1]
    ):
        cause, kinds = _group_by_call(calls)
        if len(kinds) > 1:
            size = max((x.size for x in logs.inits), default=0)
            is_world = size == logs.world_size
            return [
                _differing_calls_finding(
                    calls, number, cause, kinds, is_world=is_world
                )
            ]
    return []


def _differing_calls_finding(
    calls: Mapping[int, NcclCall],
    number: int,
    cause: Cause,
    kinds: list[tuple[str, list[int]]],
    *,
    is_world: bool,
) -> Finding:
    expected, other = kinds[0], kinds[1]
    is_tie = len(expected[1]) == len(other[1])
    members = (
        [m for _, kind_members in kinds[1:] for m in kind_members]
        if not is_tie
        else []
    )
    return make_nccl_finding(
        cause,
        f"rank {fold_ranks(other[1])} called {other[0]} where rank "
        f"{fold_ranks(expected[1])} called {expected[0]}, as call {number:#x} "
        "of an NCCL communicator",
        [calls[other[1][0]], calls[expected[1][0]]],
        "make all ranks make the same calls; or find the call that was "
        "left out or made once too often before",
        ranks=members if is_world else (),
        collective=CollectiveRef(op=calls[expected[1][0]].op, seq=number),
    )


def explain_lagging_ranks(logs: CollectiveLogs) -> list[Finding]:
    """
    Find ranks with fewer calls than the others on the same communicator.

    Returns:
        One finding for the first communicator with lagging ranks, or none.
    """
    find_init = _make_init_lookup(logs.inits)
    last_calls: dict[str, _CallsByMember] = defaultdict(dict)
    inits: dict[str, NcclInit] = {}
    for call in logs.calls:
        init = find_init(call)
        if init is not None and init.comm_id:
            last_calls[init.comm_id][init.member] = call
            inits[init.comm_id] = init
    # Point-to-point calls count on two ranks only.
    p2p_comms = {
        init.comm_id
        for call in logs.calls
        if call.op in _P2P_OPS and (init := find_init(call))
    }
    for comm_id, calls in last_calls.items():
        size = inits[comm_id].size
        fewest = min(call.number for call in calls.values())
        behind = [m for m, x in calls.items() if x.number == fewest]
        is_comparable = len(calls) == size and comm_id not in p2p_comms
        is_comparable &= all(x.count == 1 for x in calls.values())
        if is_comparable and 2 * len(behind) < size:
            return [
                _lagging_ranks_finding(
                    calls, behind, is_world=size == logs.world_size
                )
            ]
    return []


def _lagging_ranks_finding(
    calls: Mapping[int, NcclCall], behind: list[int], *, is_world: bool
) -> Finding:
    last_call = max(calls.values(), key=lambda x: x.number)
    return make_nccl_finding(
        Cause.RANK_NOT_ARRIVED,
        f"rank {fold_ranks(behind)} made {calls[behind[0]].number:#x} calls on an "
        f"NCCL communicator, others up to {last_call.number:#x}",
        [calls[behind[0]], last_call],
        "look at the Python stack and the log of these ranks",
        ranks=behind if is_world else (),
        confidence="possible",
        collective=CollectiveRef(op=last_call.op, seq=last_call.number),
    )


def _make_init_lookup(
    inits: Iterable[NcclInit],
) -> Callable[[NcclCall], NcclInit | None]:
    """
    Make a function that finds the communicator of a call.

    It compares address and process, or else the size if the process has only
    one communicator of that size.
    """
    by_comm: dict[tuple[str, int, str], NcclInit] = {}
    by_size: dict[tuple[str, int, int], dict[str, NcclInit]] = defaultdict(
        dict
    )
    for init in inits:
        by_comm[init.host, init.pid, init.comm] = init
        by_size[init.host, init.pid, init.size][init.comm] = init

    def find(call: NcclCall) -> NcclInit | None:
        """
        Return the set-up of the communicator of *call*.
        """
        known = by_comm.get((call.host, call.pid, call.comm))
        same_size = by_size.get((call.host, call.pid, call.size or 0), {})
        if known is None and len(same_size) == 1:
            (known,) = same_size.values()
        return known

    return find


def _group_by_call(
    calls: Mapping[int, NcclCall],
) -> tuple[Cause, list[tuple[str, list[int]]]]:
    for cause, describe in (
        (Cause.TYPE_MISMATCH, lambda x: x.op),
        (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.elements} elements"),
        (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of type {x.dtype}"),
    ):
        members_by_kind: dict[str, list[int]] = defaultdict(list)
        for member, call in sorted(calls.items()):
            members_by_kind[describe(call)].append(member)
        if len(members_by_kind) > 1:
            return cause, sorted(
                members_by_kind.items(), key=lambda x: -len(x[1])
            )
    return Cause.TYPE_MISMATCH, []


_MAX_RANKS = 1 << 20


# After this time without a line, nothing is in progress any more.
_STALE_SECONDS = 300


def explain_communicators(
    logs: CollectiveLogs, *, has_failed: bool
) -> list[Finding]:
    """
    Explain differing calls, lagging ranks, and communicators never set up.

    Args:
        has_failed: Whether something else shows that the job failed.  Without
            it, and if the logs were written to recently, a set-up may still be
            in progress.

    Returns:
        The first call that differs, or else the lagging ranks; and the first
        set-up that did not complete.
    """
    has_stopped = has_failed or (logs.quiet or 0) > _STALE_SECONDS
    differing = explain_differing_calls(logs)
    return [
        *differing,
        *(
            explain_lagging_ranks(logs)
            if has_stopped and not differing
            else ()
        ),
        *_explain_unfinished_setup(logs, has_stopped=has_stopped),
    ]


def _explain_unfinished_setup(
    logs: CollectiveLogs, *, has_stopped: bool
) -> Iterator[Finding]:
    """
    Report the first communicator whose set-up did not complete.
    """
    # Where Ray folds lines, some ranks are not shown.
    if any(x.count > 1 for x in logs.inits):
        return
    complete = {_comm_key(x) for x in logs.inits if x.is_complete}
    started: dict[tuple[int, str], dict[int, NcclInit]] = defaultdict(dict)
    finished: set[tuple[int, str]] = set()
    for init in logs.inits:
        key = (init.attempt, init.comm_id)
        if init.comm_id and not init.is_complete:
            started[key][init.member] = init
        if init.is_complete:
            finished.add(key)
    for key, members in started.items():
        waiting = {
            m: x for m, x in members.items() if _comm_key(x) not in complete
        }
        if waiting and (has_stopped or key in finished):
            yield _setup_finding(logs, members, waiting)
            return


def _setup_finding(
    logs: CollectiveLogs,
    members: Mapping[int, NcclInit],
    waiting: Mapping[int, NcclInit],
) -> Finding:
    """
    Report ranks missing in the set-up of a communicator, or stuck in it.
    """
    size = next(iter(members.values())).size
    is_world = size == logs.world_size
    absent = set(range(min(size, _MAX_RANKS))) - set(members)
    if 0 < len(absent) <= len(members) == len(waiting):
        return make_nccl_finding(
            Cause.RANK_NOT_ARRIVED,
            f"rank {fold_ranks(absent)} of {size} did not begin to set up an "
            f"NCCL communicator for which {len(waiting)} others wait",
            waiting.values(),
            "look at the Python stack and the log of these ranks",
            ranks=absent if is_world else (),
            confidence="likely" if len(absent) * 2 <= size else "possible",
        )
    is_few = 2 * len(waiting) <= len(members)
    return make_nccl_finding(
        Cause.RENDEZVOUS_TIMEOUT,
        f"rank {fold_ranks(waiting)} of {size} did not complete the set-up of "
        "an NCCL communicator",
        waiting.values(),
        f"look at the native stack of these ranks; {SOCKET_INTERFACE_REMEDY}",
        ranks=waiting if is_world and is_few else (),
        confidence="possible",
    )


def _comm_key(init: NcclInit) -> tuple[int, str, int, str]:
    return (init.attempt, init.host, init.pid, init.comm)

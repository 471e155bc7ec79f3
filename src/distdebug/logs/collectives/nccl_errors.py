"""
Explain NCCL log lines: warnings, network, versions, communicators, calls.
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from ...causes import Cause
from ...findings import CollectiveRef, Finding
from ...ranks import fold_ranks
from ..rules import FOLLOWS_PRIORITY, LogRule, explain_error
from .model import (
    CollectiveLogs,
    NcclCall,
    NcclInit,
    NcclNote,
    first_difference,
    log_finding,
    rank_origins,
)


_SOCKET_INTERFACE_REMEDY = (
    "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) on every node to the "
    "interface through which the nodes reach each other"
)
_LOOK_AT_RANKS = "look at the Python stack and the log of these ranks"
# Causes of warnings that matter even if nothing else shows that the job failed.
_NETWORK_CAUSES = frozenset(
    {
        Cause.NODE_MISCONFIGURED,
        Cause.NETWORK_MISCONFIGURED,
        Cause.NETWORK_FAILURE,
    }
)


def _explain_warnings(notes: Iterable[NcclNote]) -> Iterator[Finding]:
    """
    Explain warnings of NCCL: one finding for each kind with a known cause.
    """
    # A retry may succeed.
    warnings = [
        x for x in notes if x.kind == "warning" and "retrying" not in x.text
    ]
    if not warnings:  # loading the rules takes long
        return
    by_rule: dict[LogRule, list[NcclNote]] = defaultdict(list)
    for note in warnings:
        rule = explain_error(f"NCCL WARN {note.text}")
        if (
            rule is not None
            and rule.cause in _NETWORK_CAUSES
            and rule.priority < FOLLOWS_PRIORITY
        ):
            by_rule[rule].append(note)
    for rule, matched in by_rule.items():
        hosts = sorted({x.host for x in matched})
        text = f"{rule.says} (on {', '.join(hosts[:4])}"
        text += f"{'…' if len(hosts) > 4 else ''}): {matched[0].text}"
        yield log_finding(rule.cause, text, matched, rule.remedy)


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
        *_explain_warnings(logs.notes),
        *_explain_interfaces(logs, has_failed=has_failed),
        *_explain_socket_fallback(logs, has_failed=has_failed),
        *_explain_versions(logs),
    ]


def _ranks_on(logs: CollectiveLogs, notes: Iterable[NcclNote]) -> list[int]:
    """
    Return the ranks on the nodes that some lines are from.
    """
    hosts = {x.host for x in notes} - {""}
    origins = rank_origins(logs).values()
    return [x.rank for x in origins if x.host in hosts]


def _explain_interfaces(
    logs: CollectiveLogs, *, has_failed: bool
) -> Iterator[Finding]:
    """
    Report interfaces that other nodes cannot reach, or of several networks.
    """
    used = {
        note: _INTERFACE_ADDRESS.findall(note.text)
        for note in logs.notes
        if note.kind == "interface"
    }
    if len({x.host for x in used}) < 2:
        return
    virtual = [x for x, found in used.items() if any(map(_is_virtual, found))]
    if virtual:
        yield log_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"NCCL uses an interface on {_first_hosts(virtual)} that other "
            f"nodes cannot reach: {virtual[0].text}",
            virtual,
            _SOCKET_INTERFACE_REMEDY,
            ranks=_ranks_on(logs, virtual),
        )
    elif has_failed:
        yield from _explain_different_networks(used)


def _explain_different_networks(
    used: Mapping[NcclNote, list[tuple[str, str]]],
) -> Iterator[Finding]:
    """
    Report nodes whose first interfaces differ in name and network.
    """
    first: dict[str, tuple[str, str]] = {}
    for note, found in used.items():
        for interface in found[:1]:
            first.setdefault(note.host, interface)
    names = {name for name, _ in first.values()}
    networks = {address.rsplit(".", 2)[0] for _, address in first.values()}
    if len(names) > 1 and len(networks) > 1:
        shown = sorted(f"{h}: {n} {a}" for h, (n, a) in first.items())[:4]
        yield log_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"nodes use interfaces of different networks: {', '.join(shown)}",
            used,
            _SOCKET_INTERFACE_REMEDY,
            confidence="possible",
        )


def _first_hosts(notes: Iterable[NcclNote]) -> str:
    return ", ".join(sorted({x.host for x in notes} - {""})[:4])


def _is_virtual(interface: tuple[str, str]) -> bool:
    name, address = interface
    return bool(_VIRTUAL_INTERFACE.match(name)) or address.startswith("127.")


def _explain_socket_fallback(
    logs: CollectiveLogs, *, has_failed: bool
) -> Iterator[Finding]:
    networks = [x for x in logs.notes if x.kind == "network"]
    socket = [x for x in networks if x.text == "Socket"]
    others = [x for x in networks if x.text != "Socket"]
    hosts = {x.host for x in socket}
    if socket and others and hosts.isdisjoint(x.host for x in others):
        yield log_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"{_first_hosts(socket)} fell back to plain sockets where others "
            f"use {', '.join(sorted({x.text for x in others}))}",
            socket,
            "see what these nodes lack: cards, drivers, the plug-in of the "
            "network, or NCCL_IB_DISABLE that differs",
            ranks=_ranks_on(logs, socket),
            confidence="likely" if has_failed else "possible",
        )


def _explain_versions(logs: CollectiveLogs) -> Iterator[Finding]:
    by_version: dict[str, list[NcclNote]] = defaultdict(list)
    for note in logs.notes:
        if note.kind == "version":
            by_version[note.text.partition("+")[0]].append(note)
    some = by_version.values()
    # Versions may differ between runs, so compare within one run.
    attempts = Counter(x for same in some for x in {y.attempt for y in same})
    hosts = {
        version: {x.host for x in same} - {""}
        for version, same in by_version.items()
    }
    every = set().union(*hosts.values())
    if (
        len(by_version) < 2
        or max(attempts.values()) < 2
        or len(every) < 2
        or not all(hosts.values())
    ):
        return
    rarest = min(hosts, key=lambda version: len(hosts[version]))
    # Of two halves, either may be the one to change.
    odd = by_version[rarest] if 2 * len(hosts[rarest]) < len(every) else []
    where = f"; {rarest} only on {_first_hosts(odd)}" if odd else ""
    yield log_finding(
        Cause.NODE_MISCONFIGURED,
        f"nodes use different versions of NCCL: {', '.join(sorted(by_version))}{where}",
        [same[0] for same in some],
        "install the same version on all nodes",
        ranks=_ranks_on(logs, odd),
    )


_P2P_OPS = frozenset({"send", "recv"})
# Restart and communicator.
_Comm = tuple[int, str]


def _explain_differing_calls(logs: CollectiveLogs) -> list[Finding]:
    """
    Find the first call that differs between ranks of a communicator.
    """
    numbered: dict[tuple[_Comm, int], dict[int, NcclCall]] = defaultdict(dict)
    for comm, init, call in _calls_of_communicators(logs):
        if call.op not in _P2P_OPS:
            numbered[comm, call.number].setdefault(init.member, call)
    size = max((x.size for x in logs.inits), default=0)
    for (_, number), calls in sorted(numbered.items(), key=lambda x: x[0][1]):
        if not (found := first_difference(calls, _CALL_ASPECTS)):
            continue
        cause, [(usual, expected), (other, differing), *others] = found
        usual_call = calls[expected[0]]
        wrong = differing + [member for _, some in others for member in some]
        is_known = size == logs.world_size and len(expected) > len(differing)
        finding = log_finding(
            cause,
            f"rank {fold_ranks(differing)} called {other} where rank "
            f"{fold_ranks(expected)} called {usual}, as call {number:#x} of an "
            "NCCL communicator",
            [calls[differing[0]], usual_call],
            "make all ranks make the same calls; or find the call that was "
            "left out or made once too often before",
            ranks=wrong if is_known else (),
            collective=CollectiveRef(op=usual_call.op, seq=number),
        )
        return [finding]
    return []


def _explain_lagging_ranks(logs: CollectiveLogs) -> list[Finding]:
    """
    Find ranks with fewer calls than the others on the same communicator.

    Returns:
        One finding for the first communicator with lagging ranks, or none.
    """
    last_calls: dict[_Comm, dict[int, NcclCall]] = defaultdict(dict)
    sizes: dict[_Comm, int] = {}
    p2p_comms = set()
    for comm, init, call in _calls_of_communicators(logs):
        if init.comm_id:
            last_calls[comm][init.member] = call
            sizes[comm] = init.size
            # Point-to-point calls count on two ranks only.
            if call.op in _P2P_OPS:
                p2p_comms.add(comm)
    for comm, calls in last_calls.items():
        first = min(calls.values(), key=lambda x: x.number)
        last = max(calls.values(), key=lambda x: x.number)
        behind = [m for m, x in calls.items() if x.number == first.number]
        is_comparable = len(calls) == sizes[comm] and comm not in p2p_comms
        is_comparable &= all(x.count == 1 for x in calls.values())
        if is_comparable and 2 * len(behind) < sizes[comm]:
            finding = log_finding(
                Cause.RANK_NOT_ARRIVED,
                f"rank {fold_ranks(behind)} made {first.number:#x} calls on an "
                f"NCCL communicator, others up to {last.number:#x}",
                [first, last],
                _LOOK_AT_RANKS,
                ranks=behind if sizes[comm] == logs.world_size else (),
                confidence="possible",
                collective=CollectiveRef(op=last.op, seq=last.number),
            )
            return [finding]
    return []


def _calls_of_communicators(
    logs: CollectiveLogs,
) -> Iterator[tuple[_Comm, NcclInit, NcclCall]]:
    """
    Yield each call with its communicator, as far as that is known.

    Address and process show it, or else the size if the process has only one
    communicator of that size.
    """
    by_comm = {_comm_key(init): init for init in logs.inits}
    by_size: dict[object, dict[str, NcclInit]] = defaultdict(dict)
    for init in logs.inits:
        by_size[*_comm_key(init)[:3], init.size][init.comm] = init
    for call in logs.calls:
        key = _comm_key(call)
        same_size = by_size.get((*key[:3], call.size or 0), {})
        found = by_comm.get(key)
        if found is None and len(same_size) == 1:
            (found,) = same_size.values()
        if found is not None:
            comm_id = found.comm_id or found.comm
            yield (call.attempt, comm_id), found, call


def _comm_key(record: NcclInit | NcclCall) -> tuple[int, str, int, str]:
    return (record.attempt, record.host, record.pid, record.comm)


# Aspects in which calls may differ, the most specific first.
_CALL_ASPECTS: tuple[tuple[Cause, Callable[[NcclCall], str]], ...] = (
    (Cause.TYPE_MISMATCH, lambda x: x.op),
    (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.elements} elements"),
    (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of type {x.dtype}"),
)


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
    differing = _explain_differing_calls(logs)
    if has_stopped and not differing:
        differing = _explain_lagging_ranks(logs)
    return [
        *differing,
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
    finished = {(x.attempt, x.comm_id) for x in logs.inits if x.is_complete}
    started: dict[_Comm, dict[int, NcclInit]] = defaultdict(dict)
    for init in logs.inits:
        if init.comm_id and not init.is_complete:
            started[init.attempt, init.comm_id][init.member] = init
    # A rank that made calls had set up the communicator of all.
    worked = {x.attempt for x in logs.timeouts if (x.seq or 0) > 1}
    for key, members in started.items():
        sizes = {x.size for x in members.values()}
        if key[0] in worked and logs.world_size in sizes:
            continue
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
        return log_finding(
            Cause.RANK_NOT_ARRIVED,
            f"rank {fold_ranks(absent)} of {size} did not begin to set up an "
            f"NCCL communicator for which {len(waiting)} others wait",
            waiting.values(),
            _LOOK_AT_RANKS,
            ranks=absent if is_world else (),
            confidence="likely" if len(absent) * 2 <= size else "possible",
        )
    is_few = 2 * len(waiting) <= len(members)
    return log_finding(
        Cause.RENDEZVOUS_TIMEOUT,
        f"rank {fold_ranks(waiting)} of {size} did not complete the set-up of "
        "an NCCL communicator",
        waiting.values(),
        f"look at the native stack of these ranks; {_SOCKET_INTERFACE_REMEDY}",
        ranks=waiting if is_world and is_few else (),
        confidence="possible",
    )

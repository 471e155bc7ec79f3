"""
Do the variables that name network interfaces fit the nodes?

Names of interfaces differ between hosts for good reasons; what counts is that
what is named exists, works, and leads to the other nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..._text import list_text
from ...findings import Cause, Confidence, Finding
from ...processes.procfs import whole_number
from ..network.interfaces import Interface
from .between import Use, judge_between, judge_half_set, use_evidence
from .choice import chosen_by_nccl, chosen_exactly, usable
from .processes import Settings


__all__ = ["judge_sockets"]

_NCCL = "NCCL_SOCKET_IFNAME"
_GLOO = "GLOO_SOCKET_IFNAME"
_TENSORPIPE = "TP_SOCKET_IFNAME"
_EXACTLY = " by its whole name (signs such as ^ are for NCCL only)"


class _Wrong(NamedTuple):
    """
    Why a value does not fit a host; braces stand for the hosts.
    """

    confidence: Confidence
    says: str


def judge_sockets(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> tuple[Finding, ...]:
    """
    Tell which of these variables do not fit.

    Args:
        settings: The variables of all processes.

        interfaces: Those of each host, as far as they are known.

    Returns:
        What was found, hosts with the same trouble together.
    """
    every = tuple(settings)
    spread = _is_spread(every)
    found: list[Finding] = []
    for variable in (_NCCL, _GLOO, _TENSORPIPE):
        uses: list[Use] = []
        wrong: dict[tuple[str, _Wrong], list[Use]] = defaultdict(list)
        for value, host, users in _uses(every, variable):
            if host not in interfaces or not users[0].sees_node:
                continue
            chosen, absent = _choose(variable, value, interfaces[host])
            use = Use(variable, value, host, usable(chosen), users)
            uses.append(use)
            trouble = _judge(use, chosen, absent, spread=spread)
            if trouble is not None:
                wrong[value, trouble].append(use)
        found += _findings(wrong, interfaces)
        if spread:
            found += judge_between(variable, uses)
        found += judge_half_set(variable, every)
    return tuple(found)


def _is_spread(settings: tuple[Settings, ...]) -> bool:
    """
    Whether the job has more than one node.
    """
    if len({x.host for x in settings}) > 1:
        return True

    local = "LOCAL_WORLD_SIZE"
    return any(
        x.world_size is not None
        and (here := whole_number(x.variables.get(local))) is not None
        and x.world_size > here
        for x in settings
    )


def _uses(
    settings: tuple[Settings, ...], variable: str
) -> Iterator[tuple[str, str, tuple[Settings, ...]]]:
    alike: dict[tuple[str, str], list[Settings]] = defaultdict(list)
    for x in settings:
        value = x.variables.get(variable, "").strip()
        if value or variable == _NCCL:
            alike[value, x.host].append(x)
    for (value, host), users in alike.items():
        yield value, host, tuple(users)


def _choose(
    variable: str, value: str, interfaces: tuple[Interface, ...]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    The interfaces that are meant, and the names of which there is none.
    """
    if variable == _NCCL:
        chosen = chosen_by_nccl(value, interfaces)
        return chosen, () if chosen else (value,)
    # TensorPipe takes one name, whatever is in it.
    names = value.split(",") if variable == _GLOO else [value]
    return chosen_exactly(names, interfaces)


def _judge(
    use: Use,
    chosen: tuple[Interface, ...],
    absent: tuple[str, ...],
    *,
    spread: bool,
) -> _Wrong | None:
    if not use.value:
        return _judge_default(use) if spread else None
    if absent:
        return _Wrong(
            "certain", f"names no interface of {{}}: {list_text(absent)}"
        )
    names = list_text(x.name for x in use.chosen or chosen)
    if not use.chosen:
        return _Wrong(
            "likely", f"names {names} of {{}}, which is down or has no address"
        )
    kinds = {x.kind for x in use.chosen}
    if spread and kinds == {"loopback"}:
        return _Wrong(
            "likely",
            f"names {names} of {{}}, by which no other node is reached",
        )
    if spread and kinds <= {"container", "loopback"}:
        return _Wrong(
            "likely",
            f"names {names} of {{}}, which mostly leads to containers of the "
            "same host only",
        )
    return None


def _judge_default(use: Use) -> _Wrong | None:
    """
    NCCL meets at the first interface, and takes bridges for good ones.
    """
    first = use.chosen[0] if use.chosen else None
    if first is None or first.kind != "container":
        return None

    return _Wrong(
        "possible",
        f"is not set on {{}}, where NCCL may take {first.name}, which mostly "
        "leads to containers of the same host only",
    )


def _findings(
    wrong: Mapping[tuple[str, _Wrong], list[Use]],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Iterator[Finding]:
    for (value, trouble), uses in wrong.items():
        first = uses[0]
        hosts = list_text(sorted({use.host for use in uses}))
        has = list_text((x.name for x in interfaces[first.host]), most=8)
        confidence, says = trouble
        setting = f"{first.variable}={value}" if value else first.variable
        how = "" if first.variable == _NCCL else _EXACTLY
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=tuple(sorted({rank for use in uses for rank in use.ranks})),
            summary=f"{setting} {says.replace('{}', hosts)}",
            confidence=confidence,
            remedy="name one that works and leads to the other nodes"
            f"{how}; {first.host} has {has}",
            evidence=use_evidence(uses),
        )

"""
Which interfaces does a variable such as ``NCCL_SOCKET_IFNAME`` choose?

NCCL takes a list of prefixes; ``=`` before it makes them exact names, and
``^`` makes them what is not to be taken (NCCL's documentation of environment
variables).  Gloo and TensorPipe take exact names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..network.interfaces import Interface


__all__ = ["chosen_by_nccl", "chosen_exactly", "chosen_names", "usable"]


def chosen_names(spec: str, names: Iterable[str]) -> tuple[str, ...]:
    """
    Choose among names as NCCL does.

    Args:
        spec: Such as ``"eth,ib0"``, ``"=eth0"``, ``"^docker,lo"``, or
            ``"^=eth1"``; a port behind a colon does not matter.

        names: What there is.

    Returns:
        Those that are meant.
    """
    text = spec.strip()
    is_not = text.startswith("^")
    text = text.removeprefix("^")
    is_exact = text.startswith("=")
    words = [
        word.partition(":")[0].strip()
        for word in text.removeprefix("=").split(",")
    ]
    words = [word for word in words if word]
    if not words:
        return tuple(names)

    fits: Callable[[str], bool] = (
        (lambda name: name in words)
        if is_exact
        else (lambda name: name.startswith(tuple(words)))
    )
    return tuple(name for name in names if fits(name) != is_not)


def chosen_by_nccl(
    spec: str | None, interfaces: Iterable[Interface]
) -> tuple[Interface, ...]:
    """
    Choose interfaces as NCCL does.

    Args:
        spec: The variable; ``None`` or ``""`` if it is not set.

        interfaces: Those of the node.

    Returns:
        All that are meant, also those that cannot be used.  If nothing is
        set, those with ``ib`` in front, or else all but Docker's, loopback,
        and libvirt's.
    """
    every = tuple(interfaces)
    if spec:
        names = set(chosen_names(spec, (x.name for x in every)))
        return tuple(x for x in every if x.name in names)

    for default in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        found = usable(chosen_by_nccl(default, every))
        if found:
            return found
    return ()


def chosen_exactly(
    names: Iterable[str], interfaces: Iterable[Interface]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    Choose interfaces by their names.

    Args:
        names: Their names.

        interfaces: Those of the node.

    Returns:
        The interfaces, and the names of which there is none.
    """
    known = {x.name: x for x in interfaces}
    wanted = [name for name in names if name]
    found = tuple(known[name] for name in wanted if name in known)
    return found, tuple(name for name in wanted if name not in known)


def usable(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    """
    Those that are up and have an address.
    """
    return tuple(x for x in interfaces if x.is_up and x.addresses)

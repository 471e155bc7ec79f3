"""
Read and check the facts about a node that a snapshot keeps in ``node.json``.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from .._text import clean
from ..findings import Finding
from .gpu import THROTTLE_REASONS, Gpu, GpuProcess, throttle_reasons
from .host import JOB_FOLDERS, Disk
from .kernel import KernelEvent, find_events, parse_kernel_lines
from .memory import Memory, Pressure
from .network import Interface, interface_kind
from .node import NodeFacts, check_node_facts
from .worker_environment import public_variables


FACTS_LAYOUT = 1
"""The layout of ``node.json``; see :mod:`distdebug.snapshots`."""

_MAX_ENTRIES = 1 << 16
_MAX_STORED_LINES = 100_000
_MAX_NUMBER = 1e18
# The kernel reports start times in units of USER_HZ, which is always 100.
_TICKS_PER_S = 100


def check_node_json(
    node_json: Mapping[str, Any],
    *,
    host: str,
    ranks: Mapping[int, int] | None = None,
    since: float | None = None,
) -> tuple[Finding, ...]:
    """
    Return what was wrong with a node when a snapshot was taken.

    Args:
        node_json: The content of ``node.json``.

        ranks: Ranks by process ID.

        since: Start of the job, in seconds since the epoch; ``None`` if
            unknown.

    Returns:
        Findings, most certain first.
    """
    return check_stored_facts(
        parse_node_json(node_json, host=host),
        worker_environs(node_json),
        ranks=ranks or {},
        since=since,
    )


def check_stored_facts(
    facts: NodeFacts,
    environs: Iterable[Mapping[str, str]],
    *,
    ranks: Mapping[int, int],
    since: float | None = None,
) -> tuple[Finding, ...]:
    """
    Return what was wrong with a node, by its parsed ``node.json``.

    Args:
        environs: The variables of its workers.

        ranks: Ranks by process ID.

        since: Start of the job, in seconds since the epoch; ``None`` if
            unknown.

    Returns:
        Findings, most certain first.
    """
    counts = {environ.get("LOCAL_WORLD_SIZE", "") for environ in environs}
    return check_node_facts(
        facts,
        ranks=ranks,
        pids=ranks,
        since=since,
        knows_all=counts == {str(len(set(ranks.values())))},
    )


def parse_node_json(node_json: Mapping[str, Any], *, host: str) -> NodeFacts:
    """
    Parse the facts in a snapshot; what is malformed is left out.

    Args:
        node_json: The content of ``node.json``.
    """
    data = _as_dict(node_json)
    machine = _as_dict(data.get("machine"))
    taken = _as_number(data.get("taken")) or 0.0
    booted = _as_number(machine.get("booted"))
    return NodeFacts(
        host=clean(host),
        taken=taken,
        booted=booted,
        gpus=tuple(
            parse_gpu(gpu, index=index)
            for index, gpu in enumerate(_as_list(data.get("gpus")))
            if isinstance(gpu, dict) and gpu
        ),
        platform=str(machine.get("platform") or ""),
        driver=str(machine.get("driver") or ""),
        memory=_parse_memory(machine),
        kernel=_parse_kernel(data.get("kernel"), booted, taken),
        disks=tuple(_parse_disks(machine.get("disks"))),
        pressure=Pressure(cpus=_as_int(machine.get("cpus"))),
        interfaces=tuple(_parse_interfaces(data.get("interfaces"))) or None,
    )


def worker_environs(
    node_json: Mapping[str, Any],
) -> tuple[dict[str, str], ...]:
    """
    Return the environments of workers in a snapshot of their node.

    Args:
        node_json: The content of ``node.json``.

    Returns:
        One environment per worker, as
        :func:`~distdebug.health.environment_checks.check_environment` takes them.
    """
    environs = []
    for entry in _as_list(_as_dict(node_json).get("variables")):
        variables = _as_dict(_as_dict(entry).get("variables"))
        texts = {
            k: v
            for k, v in variables.items()
            if isinstance(k, str) and isinstance(v, str)
        }
        pids = _as_list(_as_dict(entry).get("pids"))
        environs += [
            public_variables(texts) for _ in pids[:_MAX_ENTRIES] or [0]
        ]
    return tuple(environs[:_MAX_ENTRIES])


def job_start_time(workers_json: Any, *, booted: float | None) -> float | None:
    """
    Return when the first worker in a snapshot of a node started.

    Args:
        workers_json: The content of ``workers.json``.

        booted: Boot time of the node, in seconds since the epoch.

    Returns:
        Seconds since the epoch; ``None`` if unknown.
    """
    values = (
        _as_dict(w).get("start_ticks")
        for w in _as_list(workers_json)[:_MAX_ENTRIES]
    )
    ticks = [t for t in map(_as_number, values) if t is not None and t > 0]
    if booted is None or not ticks:
        return None

    return booted + min(ticks) / _TICKS_PER_S


def _parse_memory(machine: Mapping[str, Any]) -> Memory | None:
    memory, swap = _as_dict(machine.get("memory")), machine.get("swap")
    if not memory:
        return None

    return attrs.evolve(
        _parse_fields(Memory, memory, ("total", "available")),
        swap_total=_as_int(_as_dict(swap).get("total")),
        swap_used=_as_int(_as_dict(swap).get("used")),
    )


def _parse_disks(data: Any) -> Iterator[Disk]:
    # Snapshots may lack the number of files, and some file systems count none.
    names = ("total", "free", "files", "free_files")
    for name, disk in list(_as_dict(data).items())[:_MAX_ENTRIES]:
        text = clean(str(name))
        path = JOB_FOLDERS.get(text, f"the {text}")
        yield _parse_fields(Disk, _as_dict(disk), names, name=text, path=path)


def _parse_kernel(
    data: Any, booted: float | None, taken: float
) -> tuple[KernelEvent, ...] | None:
    if not isinstance(data, list):
        return None

    lines = [x for x in data[:_MAX_STORED_LINES] if isinstance(x, str)]
    return find_events(
        parse_kernel_lines(lines, booted=booted or 0.0, now=taken or None)
    )


def _parse_interfaces(data: Any) -> Iterator[Interface]:
    for entry in map(_as_dict, _as_list(data)[:_MAX_ENTRIES]):
        name = entry.get("name")
        if isinstance(name, str):
            addresses = _as_list(entry.get("addresses"))
            yield _parse_fields(
                Interface,
                entry,
                ("name", "is_up"),
                kind=interface_kind(name),
                addresses=tuple(
                    clean(x) for x in addresses if isinstance(x, str)
                ),
            )


def parse_gpu(data: Mapping[str, Any], *, index: int = 0) -> Gpu:
    """
    Parse a GPU of a snapshot; what is malformed is left out.

    Args:
        data: The fields of a `Gpu`; in older snapshots, the cells of
            ``nvidia-smi --query-gpu`` by field name.

        index: The index of the GPU, if *data* has none.
    """
    if any("." in str(name) for name in data):
        data = _fields_of_cells(data)
    reasons = _as_list(data.get("slowed_by"))
    users = map(_as_dict, _as_list(data.get("processes")))
    known = {
        "index": index,
        "slowed_by": tuple(x for x in THROTTLE_REASONS if x in reasons),
        "processes": tuple(
            GpuProcess(pid=x["pid"])
            for x in users
            if type(x.get("pid")) is int
        ),
    }
    return _parse_fields(Gpu, data, None, **known)


_Facts = TypeVar("_Facts", bound=attrs.AttrsInstance)


def _parse_fields(
    kind: type[_Facts],
    data: Mapping[Any, Any],
    names: tuple[str, ...] | None,
    /,
    **known: Any,
) -> _Facts:
    """
    Return facts with the texts, numbers, and flags that have the right type.

    Args:
        names: The fields to read; all if ``None``.

        known: Fields that are known already, unless *data* has them.
    """
    for field in attrs.fields(kind):
        name, types = field.name, str(field.type)
        value = data.get(name)
        if names is not None and name not in names:
            continue
        if isinstance(value, bool) and "bool" in types:
            known[name] = value
        elif isinstance(value, str) and types == "str":
            known[name] = clean(value)
        elif (
            types.startswith("int") and (number := _as_int(value)) is not None
        ):
            known[name] = number
        elif types.startswith("float") and _as_number(value) is not None:
            known[name] = _as_number(value)
    return kind(**known)


# The fields of a GPU by the cells of nvidia-smi; others have equal names.
_CELLS = {
    "pci.bus_id": "bus_id",
    "gpu_recovery_action": "recovery",
    "fabric.state": "fabric",
    "utilization.gpu": "utilization",
    "utilization.memory": "memory_utilization",
    "memory.used": "memory_used",
    "memory.total": "memory_total",
    "temperature.gpu": "temperature",
    "clocks.sm": "clock_mhz",
    "clocks.max.sm": "most_clock_mhz",
    "power.draw": "power_w",
    "enforced.power.limit": "power_limit_w",
    "ecc.errors.uncorrected.volatile.total": "uncorrected_errors",
    "retired_pages.pending": "needs_reset",
    "mig.mode.current": "mig",
}
_REASON_CELLS = (
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)
_FLAGS = {"yes": True, "enabled": True, "no": False, "disabled": False}
_CELL_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_LOST_TEXT = re.compile(
    r"GPU is lost|GPU requires reset|Unknown Error", re.IGNORECASE
)


def _fields_of_cells(cells: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the fields of a GPU that the cells of nvidia-smi stand for.
    """
    texts = {k: x.strip() for k, x in cells.items() if isinstance(x, str)}
    reasons = [texts.get(name, "") for name in _REASON_CELLS]
    bits = [x for x in reasons if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", x)]
    broken = [texts.get(k, "") for k in ("memory.used", "utilization.gpu")]
    return {
        **{_CELLS.get(k, k): _cell_value(k, x) for k, x in texts.items()},
        "slowed_by": [*throttle_reasons(int(bits[0], 16) if bits else 0)],
        "problem": next(filter(_LOST_TEXT.search, broken), "").strip("[]"),
    }


def _cell_value(name: str, text: str) -> float | bool | str | None:
    # `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU requires reset]`
    if text in {"N/A", "None"} or text.startswith("["):
        return None
    if _CELL_NUMBER.fullmatch(text):
        # The tool gives the memory in MiB.
        return float(text) * (1 << 20 if name.startswith("memory.") else 1)
    return _FLAGS.get(text.lower(), text)


def _as_dict(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # JSON may hold NaN, and integers that overflow a float.
    return float(value) if is_number and abs(value) < _MAX_NUMBER else None


def _as_int(value: Any) -> int | None:
    number = _as_number(value)
    return None if number is None else int(number)

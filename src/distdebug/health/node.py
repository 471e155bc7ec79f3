"""
Is this node, with its GPUs and its network, able to work?
"""

from __future__ import annotations

import os
import socket
import time

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from .._in_time import answers_in_time
from .._text import clean, reason_of
from ..findings import Missing
from ..processes.procfs import parse_stat, read_link, read_proc
from .blocked import read_blocked
from .disks import Disk, read_disks
from .gpu.read import read_gpus
from .kernel.events import find_events, is_suspicious
from .kernel.log import read_kernel_log
from .limits import read_limits
from .memory.read import read_memory
from .model import NodeFacts, NodeHealth
from .network.infiniband import read_ib_ports
from .network.interfaces import read_interfaces
from .pressure import read_pressure
from .ray_node.read import read_ray
from .verdicts import judge_facts


__all__ = ["check_node"]

# Of the whole kernel: its processes have the numbers that it tells.
_FIRST_SPACE = "pid:[4026531836]"
_Read = Callable[[], Mapping[str, Any]]


def check_node(  # noqa: PLR0913 each is a question of its own
    *,
    pids: Collection[int] = (),
    folders: Iterable[str | os.PathLike[str]] = (),
    ray_sessions: Iterable[str | os.PathLike[str]] = (),
    ranks: Mapping[int, int] | None = None,
    since: float | None = None,
    timeout_s: float = 10.0,
    now: float | None = None,
) -> NodeHealth:
    """
    Tell whether this node is able to work, and what is wrong with it.

    Nothing is changed, nothing is left running, and no right of an
    administrator is needed; what may not be seen is told.

    Args:
        pids: The processes of the job on this node.

        folders: Folders that the job writes to, such as that of its
            checkpoints.

        ray_sessions: Folders of Ray sessions of this node, such as
            ``"/tmp/ray"``.

        ranks: The rank of each process that is known.

        since: When the job began, in seconds since the epoch; by default when
            the first of *pids* started.

        timeout_s: How long it may take in all, in seconds.

        now: The time, in seconds since the epoch.

    Returns:
        The facts, what is wrong, and what could not be seen and why.
    """
    # Not a number is no time at all.
    timeout_s = timeout_s if timeout_s > 0 else 0.0
    deadline = time.monotonic() + timeout_s
    when = time.time() if now is None else now
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    wanted = {
        **_node_parts(list(folders), timeout_s),
        **_job_parts(tuple(pids)),
        **_ray_parts(list(ray_sessions), timeout_s, when),
    }
    known, missing = _learn(wanted, deadline)
    facts = NodeFacts(
        host=socket.gethostname(), taken=when, booted=booted, **known
    )
    everybody = {*pids, *(ranks or ())}
    begin = _first_start(everybody, booted) if since is None else since
    return NodeHealth(
        facts=facts,
        findings=judge_facts(
            facts,
            ranks=ranks,
            pids=everybody,
            since=begin,
            has_node_pids=read_link("/proc/self/ns/pid") == _FIRST_SPACE,
        ),
        missing=(*missing, *_absent(facts.disks or ())),
    )


def _absent(disks: Iterable[Disk]) -> Iterator[Missing]:
    for disk in disks:
        if disk.problem:
            path = clean(disk.path)
            yield Missing(what="disk", reason=disk.problem, source=path)


def _node_parts(
    folders: list[str | os.PathLike[str]], timeout_s: float
) -> dict[str, _Read]:
    # They run at the same time; the bound of each is a little below that of
    # all, so that it can still tell what it has.
    bound = 0.9 * timeout_s
    return {
        "GPUs": lambda: _gpus(bound),
        "kernel log": lambda: _kernel(bound),
        "disks": lambda: {"disks": read_disks(folders, timeout_s=bound)},
        "pressure": lambda: {"pressure": read_pressure()},
        "interfaces": lambda: {"interfaces": read_interfaces()},
        "InfiniBand": lambda: {"ib_ports": read_ib_ports()},
        "name of the node": lambda: {"name_address": _own_address()},
    }


def _job_parts(pids: tuple[int, ...]) -> dict[str, _Read]:
    return {
        "memory": lambda: {"memory": read_memory(pids)},
        "blocked processes": lambda: {"blocked": read_blocked(pids)},
        "limits": lambda: {"limits": read_limits(pids or (os.getpid(),))},
    }


def _ray_parts(
    sessions: list[str | os.PathLike[str]], timeout_s: float, now: float
) -> dict[str, _Read]:
    bound = min(3.0, timeout_s / 2)
    return {
        f"Ray session {clean(os.fspath(path))}": partial(
            _ray, path, bound, now
        )
        for path in sessions
    }


def _ray(
    path: str | os.PathLike[str], timeout_s: float, now: float
) -> dict[str, Any]:
    return {"ray": (read_ray(path, timeout_s=timeout_s, now=now),)}


def _gpus(timeout_s: float) -> dict[str, Any]:
    # That they cannot be asked is a fact, too.
    try:
        return {"gpus": read_gpus(timeout_s=timeout_s) or ()}
    except TimeoutError as exc:
        why = str(exc) or f"did not answer within {timeout_s:.1f} s"
        return {"gpu_problem": why, "gpu_wait_s": timeout_s}
    except OSError as exc:
        return {"gpu_problem": clean(reason_of(exc), limit=400)}


def _kernel(timeout_s: float) -> dict[str, Any]:
    log = read_kernel_log(timeout_s=timeout_s, keep=is_suspicious)
    return {"kernel": find_events(log.lines), "log_begins": log.begins}


def _own_address() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        return None


def _learn(
    wanted: Mapping[str, _Read], deadline: float
) -> tuple[dict[str, Any], tuple[Missing, ...]]:
    known: dict[str, Any] = {}
    missing = []
    answers = dict(
        answers_in_time(
            lambda item: _try(item[1]),
            list(wanted.items()),
            deadline,
            threads=len(wanted),
        )
    )
    for item in wanted.items():
        got, why = answers.get(item, ({}, "did not answer in time"))
        if "ray" in got and "ray" in known:
            got = {"ray": (*known["ray"], *got["ray"])}
        known |= got
        why = why or str(got.get("gpu_problem", ""))
        if why:
            missing.append(Missing(what=item[0], reason=why))
    return known, tuple(missing)


def _try(read: _Read) -> tuple[Mapping[str, Any], str]:
    try:
        return read(), ""
    except Exception as exc:  # noqa: BLE001 the other facts are worth it
        why = reason_of(exc)
        return {}, clean(why, limit=400) or type(exc).__name__


def _first_start(pids: Iterable[int], booted: float) -> float | None:
    stats = (parse_stat(read_proc(f"/proc/{pid}/stat")) for pid in pids)
    ticks = min((x.start_ticks for x in stats if x), default=None)
    if ticks is None:
        return None

    return booted + ticks / os.sysconf("SC_CLK_TCK")

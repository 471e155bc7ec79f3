"""
Is a Ray cluster alive on this node?
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from .._io import is_folder, matching, resolved
from .._text import clean, time_text
from ..errors import NoLogsError
from ..findings import Cause, Evidence, Finding, Judged, as_finding
from ..logs import open_log
from ..nodes import knock, last_address


_SIGNS = (
    *("debug_state.txt", "debug_state_gcs.txt", "monitor.log"),
    *(
        "raylet.out",
        "gcs_server.out",
        "log_monitor.log",
        "dashboard_agent.log",
    ),
)
_SESSION = re.compile(r"session_\d{4}-[\w-]{1,80}")
_VERSION = re.compile(r"ray_version=(\d[\w.+-]{0,40})")
_DIST_INFO = re.compile(r"ray-(\d[\w.+]{0,40})\.dist-info")
_HEAD = 1 << 16


@attrs.frozen(kw_only=True)
class RayNode:
    """
    What shows of Ray on this node.

    Attributes:
        session: The folder of the session.

        name: Its name, which is the same on all nodes of the cluster.

        ages: How long ago each of its files was written, in seconds.

        raylets: The processes that manage this node for this session.

        states: The state of each, such as ``"S"``.

        processes_known: Whether the list of processes could be read.

        address: Where the GCS listens, if that is known.

        gcs: What it said: ``"answers"``, ``"refused"``, ``"silent"``, or
            ``""`` if nobody asked.

        cluster_version: The Ray of the cluster, as its head wrote.

        node_version: The Ray of this node's raylet.
    """

    session: str
    name: str
    ages: dict[str, float]
    raylets: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    processes_known: bool = True
    address: str = ""
    gcs: str = ""
    cluster_version: str = ""
    node_version: str = ""


def read_ray(
    session: str | os.PathLike[str],
    *,
    timeout_s: float = 3.0,
    now: float | None = None,
) -> RayNode:
    """
    Look for signs of life of Ray on this node.

    Args:
        session: The folder of a session, or the folder that holds
            ``session_latest``.

        timeout_s: How long to wait for the GCS, in seconds.

        now: The time, in seconds since the epoch.

    Returns:
        What shows.

    Raises:
        NoLogsError: There is no session.
    """
    folder = _find(Path(session))
    when = time.time() if now is None else now
    ages = dict(_ages(folder / "logs", when))
    found, is_known = _raylets(folder.name)
    address = last_address(folder)
    return RayNode(
        session=str(folder),
        name=clean(folder.name),
        ages=ages,
        raylets=tuple(x["pid"] for x in found),
        states=tuple(x["state"] for x in found),
        processes_known=is_known,
        address=address,
        gcs=knock(address, timeout_s) if address else "",
        cluster_version=_cluster_version(folder / "logs"),
        node_version=next((x["version"] for x in found), ""),
    )


def _find(path: Path) -> Path:
    for folder in (path, path / "session_latest"):
        if is_folder(folder / "logs"):
            return resolved(folder)
    found = []
    if is_folder(path):
        found = list(filter(is_folder, matching(path, "session_2*")))
    if found:  # the link may be broken, and names sort by time
        return resolved(found[-1])

    msg = f"{path} is no session of Ray, and holds none"
    raise NoLogsError(msg, remedy="give a folder such as /tmp/ray")


def _ages(logs: Path, now: float) -> Iterator[tuple[str, float]]:
    for name in _SIGNS:
        try:
            yield name, now - (logs / name).stat().st_mtime
        except OSError:
            continue


def _raylets(name: str) -> tuple[list[dict[str, Any]], bool]:
    """
    The raylets of this session, and whether processes can be listed at all.
    """
    import psutil

    found = []
    try:
        for process in psutil.process_iter(
            ["pid", "name", "status", "cmdline"]
        ):
            words = process.info["cmdline"] or []
            program = os.path.basename(words[0]) if words else ""  # noqa: PTH119 text is enough
            if program == "raylet" and _is_of(words, name):
                found.append(
                    {
                        "pid": process.info["pid"],
                        "state": process.info["status"],
                        "version": _installed_version(words[0]),
                    }
                )
    except (psutil.Error, OSError):
        return found, False
    return found, True


def _is_of(words: Iterable[str], name: str) -> bool:
    sessions = {x for word in words for x in _SESSION.findall(word)}
    return not sessions or name in sessions


def _installed_version(program: str) -> str:
    """
    The version of the package that a raylet belongs to.
    """
    # site-packages/ray/core/src/ray/raylet/raylet
    parents = Path(program).parents
    if len(parents) < 6:
        return ""
    try:
        names = os.listdir(parents[5])  # noqa: PTH208 names are enough
    except OSError:
        return ""
    found = (_DIST_INFO.fullmatch(name) for name in names)
    return next((x[1] for x in found if x), "")


def _cluster_version(logs: Path) -> str:
    try:
        with open_log(logs / "gcs_server.out") as file:
            head = file.read(_HEAD).decode(errors="replace")
    except (OSError, ValueError):
        return ""
    found = _VERSION.search(head)
    return found[1] if found else ""


# Three times as long as usual; where only raylet.out is there, twice.
_OTHERS_S = 130.0
_LIMITS = (("debug_state.txt", 30.0), ("raylet.out", _OTHERS_S))


def judge_ray(node: RayNode, *, host: str = "") -> tuple[Finding, ...]:
    """
    Tell whether Ray lives on a node.

    Args:
        node: What shows of it.

        host: The node.

    Returns:
        What was found, nothing if it lives.
    """
    ages = ", ".join(f"{k} {time_text(v)}" for k, v in node.ages.items())
    quote = f"written ago: {ages}" if ages else "none of its files is there"
    evidence = Evidence(kind="ray", source=node.session, quote=quote)
    return tuple(
        as_finding(judged, host=host, evidence=evidence)
        for judged in (*_raylet(node), *_gcs(node), *_versions(node))
    )


def _raylet(node: RayNode) -> Iterator[Judged]:
    silent = _silence(node)
    if node.raylets:
        if "stopped" in node.states:
            yield Judged(
                Cause.STOPPED,
                "certain",
                "Ray's raylet is stopped",
                "let it go on: kill -CONT its process",
            )
        elif silent is not None:
            yield Judged(
                Cause.EVENT_LOOP_STALL,
                "likely",
                f"Ray's raylet runs, but wrote nothing for {silent}",
                (
                    "see its stack (py-spy dump --native, gdb), and whether the "
                    "disk of its session is full"
                ),
            )
    elif node.processes_known and (silent is not None or not node.ages):
        since = f" and wrote nothing for {silent}" if silent else ""
        yield Judged(
            Cause.DEAD,
            "likely",
            (
                f"Ray does not run on this node: the raylet of {node.name} is "
                f"gone{since}"
            ),
            (
                "see the end of raylet.out and raylet.err for why; start the "
                "node again (ray start)"
            ),
        )


def _silence(node: RayNode) -> str | None:
    """
    For how long Ray has written nothing here, if that is too long.
    """
    # The first that is there is the one to go by: others are also written by
    # processes that outlive the raylet.
    for name, limit in _LIMITS:
        if name in node.ages:
            age = node.ages[name]
            return time_text(age) if age > limit else None
    ages = node.ages.values()
    return time_text(min(ages)) if ages and min(ages) > _OTHERS_S else None


def _gcs(node: RayNode) -> Iterator[Judged]:
    if node.gcs == "refused":
        yield Judged(
            Cause.DEAD,
            "likely",
            (
                f"nobody listens at {node.address}: the head of the Ray cluster "
                "(GCS) is gone"
            ),
            (
                "see gcs_server.out and gcs_server.err on the head node, and "
                "whether its memory ran out"
            ),
        )
    elif node.gcs == "silent":
        yield Judged(
            Cause.NETWORK_FAILURE,
            "likely",
            (
                f"the head of the Ray cluster (GCS) at {node.address} cannot be "
                "reached"
            ),
            (
                "see whether the head node is up, and whether this node may "
                "connect to it"
            ),
        )


def _versions(node: RayNode) -> Iterator[Judged]:
    ours, theirs = node.node_version, node.cluster_version
    if ours and theirs and ours != theirs:
        yield Judged(
            Cause.NODE_MISCONFIGURED,
            "likely",
            f"this node runs Ray {ours}, the cluster {theirs}",
            "install the same Ray on all nodes",
        )

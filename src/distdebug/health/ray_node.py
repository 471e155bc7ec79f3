"""
Check the raylet and the GCS of Ray on a node.
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
from ..findings import Cause, Evidence, Finding, NodeFinding, as_finding
from ..logs import open_log
from ..nodes import last_address, probe_port


_HEARTBEAT_FILES = (
    *("debug_state.txt", "debug_state_gcs.txt", "monitor.log"),
    *(
        "raylet.out",
        "gcs_server.out",
        "log_monitor.log",
        "dashboard_agent.log",
    ),
)
_SESSION_NAME = re.compile(r"session_\d{4}-[\w-]{1,80}")
_VERSION_TEXT = re.compile(r"ray_version=(\d[\w.+-]{0,40})")
_DIST_INFO = re.compile(r"ray-(\d[\w.+]{0,40})\.dist-info")
_HEAD_BYTES = 1 << 16


@attrs.frozen(kw_only=True)
class RayNode:
    """
    The state of Ray on this node.

    Attributes:
        session: The folder of the session.

        name: The session name, which all nodes of the cluster share.

        ages: Seconds since the last write to each log file.

        raylets: Process IDs of the raylets of this session.

        states: The process status of each raylet, such as ``"sleeping"``.

        processes_known: Whether processes could be listed.

        address: The address of the GCS, if known.

        gcs: The result of the connection attempt: ``"answers"``,
            ``"refused"``, ``"silent"``, or ``""`` without one.

        cluster_version: The Ray version of the head node.

        node_version: The Ray version of the raylet.
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


def read_ray_node(
    session: str | os.PathLike[str],
    *,
    timeout_s: float = 3.0,
    now: float | None = None,
) -> RayNode:
    """
    Read the state of Ray on this node.

    Args:
        session: The folder of a session, or the folder that holds
            ``session_latest``.

        timeout_s: Limit for the connection to the GCS, in seconds.

        now: The time, in seconds since the epoch.

    Raises:
        NoLogsError: There is no session.
    """
    folder = _find_session(Path(session))
    timestamp = time.time() if now is None else now
    ages = dict(_file_ages(folder / "logs", timestamp))
    raylets, is_known = _find_raylets(folder.name)
    address = last_address(folder)
    return RayNode(
        session=str(folder),
        name=clean(folder.name),
        ages=ages,
        raylets=tuple(x["pid"] for x in raylets),
        states=tuple(x["state"] for x in raylets),
        processes_known=is_known,
        address=address,
        gcs=probe_port(address, timeout_s) if address else "",
        cluster_version=_cluster_version(folder / "logs"),
        node_version=next((x["version"] for x in raylets), ""),
    )


def _find_session(path: Path) -> Path:
    for folder in (path, path / "session_latest"):
        if is_folder(folder / "logs"):
            return resolved(folder)
    sessions = []
    if is_folder(path):
        sessions = list(filter(is_folder, matching(path, "session_2*")))
    if sessions:  # the link may be broken, and names sort by time
        return resolved(sessions[-1])

    msg = f"{path} is no session of Ray, and holds none"
    raise NoLogsError(msg, remedy="give a folder such as /tmp/ray")


def _file_ages(logs: Path, now: float) -> Iterator[tuple[str, float]]:
    for name in _HEARTBEAT_FILES:
        try:
            yield name, now - (logs / name).stat().st_mtime
        except OSError:
            continue


def _find_raylets(name: str) -> tuple[list[dict[str, Any]], bool]:
    """
    Return the raylets of this session, and whether processes are listed.
    """
    import psutil

    raylets = []
    try:
        for process in psutil.process_iter(
            ["pid", "name", "status", "cmdline"]
        ):
            argv = process.info["cmdline"] or []
            program = os.path.basename(argv[0]) if argv else ""  # noqa: PTH119 text is enough
            if program == "raylet" and _is_of_session(argv, name):
                raylets.append(
                    {
                        "pid": process.info["pid"],
                        "state": process.info["status"],
                        "version": _installed_version(argv[0]),
                    }
                )
    except (psutil.Error, OSError):
        return raylets, False
    return raylets, True


def _is_of_session(argv: Iterable[str], name: str) -> bool:
    sessions = {
        x for argument in argv for x in _SESSION_NAME.findall(argument)
    }
    return not sessions or name in sessions


def _installed_version(program: str) -> str:
    """
    Return the version of the package that a raylet belongs to.
    """
    # site-packages/ray/core/src/ray/raylet/raylet
    parents = Path(program).parents
    if len(parents) < 6:
        return ""
    try:
        names = os.listdir(parents[5])  # noqa: PTH208 names are enough
    except OSError:
        return ""
    matches = (_DIST_INFO.fullmatch(name) for name in names)
    return next((x[1] for x in matches if x), "")


def _cluster_version(logs: Path) -> str:
    try:
        with open_log(logs / "gcs_server.out") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
    match = _VERSION_TEXT.search(head)
    return match[1] if match else ""


# Three times the usual interval; for raylet.out, twice.
_MAX_AGE_S = 130.0
_FILE_MAX_AGES = (("debug_state.txt", 30.0), ("raylet.out", _MAX_AGE_S))


def check_ray_node(node: RayNode, *, host: str = "") -> tuple[Finding, ...]:
    """
    Return findings about a dead raylet or GCS, or mixed Ray versions.
    """
    ages = ", ".join(f"{k} {time_text(v)}" for k, v in node.ages.items())
    quote = f"written ago: {ages}" if ages else "none of its files is there"
    evidence = Evidence(kind="ray", source=node.session, quote=quote)
    return tuple(
        as_finding(problem, host=host, evidence=evidence)
        for problem in (
            *_check_raylet(node),
            *_check_gcs(node),
            *_check_versions(node),
        )
    )


def _check_raylet(node: RayNode) -> Iterator[NodeFinding]:
    silent_time = _silent_time(node)
    if node.raylets:
        if "stopped" in node.states:
            yield NodeFinding(
                Cause.STOPPED,
                "certain",
                "Ray's raylet is stopped",
                "let it go on: kill -CONT its process",
            )
        elif silent_time is not None:
            yield NodeFinding(
                Cause.EVENT_LOOP_STALL,
                "likely",
                f"Ray's raylet runs, but wrote nothing for {silent_time}",
                (
                    "see its stack (py-spy dump --native, gdb), and whether the "
                    "disk of its session is full"
                ),
            )
    elif node.processes_known and (silent_time is not None or not node.ages):
        silent_text = (
            f" and wrote nothing for {silent_time}" if silent_time else ""
        )
        yield NodeFinding(
            Cause.DEAD,
            "likely",
            (
                f"Ray does not run on this node: the raylet of {node.name} is "
                f"gone{silent_text}"
            ),
            (
                "see the end of raylet.out and raylet.err for why; start the "
                "node again (ray start)"
            ),
        )


def _silent_time(node: RayNode) -> str | None:
    """
    Return how long Ray has written nothing, if that is too long.
    """
    # The first file that exists decides: processes that outlive the raylet
    # write to the others.
    for name, limit in _FILE_MAX_AGES:
        if name in node.ages:
            age = node.ages[name]
            return time_text(age) if age > limit else None
    ages = node.ages.values()
    return time_text(min(ages)) if ages and min(ages) > _MAX_AGE_S else None


def _check_gcs(node: RayNode) -> Iterator[NodeFinding]:
    if node.gcs == "refused":
        yield NodeFinding(
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
        yield NodeFinding(
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


def _check_versions(node: RayNode) -> Iterator[NodeFinding]:
    node_version, cluster_version = node.node_version, node.cluster_version
    if node_version and cluster_version and node_version != cluster_version:
        yield NodeFinding(
            Cause.NODE_MISCONFIGURED,
            "likely",
            f"this node runs Ray {node_version}, the cluster {cluster_version}",
            "install the same Ray on all nodes",
        )

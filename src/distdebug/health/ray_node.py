"""
Check the raylet and the GCS of Ray on a node.
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from .._io import is_folder, matching, resolved
from .._text import clean, time_text
from ..errors import NoLogsError
from ..findings import Evidence, Finding
from ..logs import open_log
from ..nodes import last_address, probe_port
from .judgements import judge


_HEARTBEAT_FILES = (
    *("debug_state.txt", "debug_state_gcs.txt", "monitor.log", "raylet.out"),
    *("gcs_server.out", "log_monitor.log", "dashboard_agent.log"),
)
_SESSION_NAME = re.compile(r"session_\d{4}-[\w-]{1,80}")
_VERSION_TEXT = re.compile(r"ray_version=(\d[\w.+-]{0,40})")
_DIST_INFO = re.compile(r"ray-(\d[\w.+]{0,40})\.dist-info")
_HEAD_BYTES = 1 << 16
_PROCESS_FIELDS = ("pid", "status", "cmdline")


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
    logs, address = folder / "logs", last_address(folder)
    raylets, is_known = _find_raylets(folder.name)
    return RayNode(
        session=str(folder),
        name=clean(folder.name),
        ages=dict(_file_ages(logs, time.time() if now is None else now)),
        raylets=tuple(pid for pid, _, _ in raylets),
        states=tuple(state for _, state, _ in raylets),
        processes_known=is_known,
        address=address,
        gcs=probe_port(address, timeout_s) if address else "",
        cluster_version=_cluster_version(logs),
        node_version=next((version for _, _, version in raylets), ""),
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
        with suppress(OSError):
            yield name, now - (logs / name).stat().st_mtime


def _find_raylets(name: str) -> tuple[list[tuple[int, str, str]], bool]:
    """
    Return process ID, status, and version of the raylets of this session, and
    whether processes are listed.
    """
    import psutil

    raylets = []
    try:
        for process in psutil.process_iter(_PROCESS_FIELDS):
            pid, state, argv = map(process.info.get, _PROCESS_FIELDS)
            if not argv or not f"/{argv[0]}".endswith("/raylet"):
                continue
            sessions = set(_SESSION_NAME.findall(" ".join(argv)))
            if not sessions or name in sessions:
                raylets.append((pid, state, _installed_version(argv[0])))
    except (psutil.Error, OSError):
        return raylets, False
    return raylets, True


def _installed_version(program: str) -> str:
    """
    Return the version of the package that a raylet belongs to.
    """
    # site-packages/ray/core/src/ray/raylet/raylet
    with suppress(OSError, IndexError):
        names = os.listdir(Path(program).parents[5])  # noqa: PTH208 names are enough
        matches = filter(None, map(_DIST_INFO.fullmatch, names))
        return next((match[1] for match in matches), "")
    return ""


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


def check_ray_node(node: RayNode) -> Iterator[Finding]:
    """
    Yield findings about a dead raylet or GCS, or mixed Ray versions.
    """
    ages = ", ".join(f"{k} {time_text(v)}" for k, v in node.ages.items())
    quote = f"written ago: {ages}" if ages else "none of its files is there"
    evidence = Evidence(kind="ray", source=node.session, quote=quote)
    silent = _silent_time(node)
    is_known = node.processes_known and (silent is not None or not node.ages)
    if "stopped" in node.states:
        yield judge("raylet_stopped", evidence)
    elif node.raylets and silent is not None:
        yield judge("raylet_silent", evidence, silent=silent)
    elif not node.raylets and is_known:
        text = f" and wrote nothing for {silent}" if silent else ""
        yield judge("raylet_gone", evidence, session=node.name, silent=text)
    if node.gcs in {"refused", "silent"}:
        yield judge(f"gcs_{node.gcs}", evidence, address=node.address)
    own, common = node.node_version, node.cluster_version
    if own and common and own != common:
        yield judge("ray_versions", evidence, node=own, cluster=common)


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

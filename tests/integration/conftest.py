"""
What the integration tests share.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

import distdebug

from .living import end_all, having, wait_until
from .ray_lab import free_address, start_node


DRIVER = Path(__file__).parent / "programs" / "dying_actors.py"
# Small enough that a chatty actor is rotated, and large enough that little
# else is.
ROTATED = {"RAY_ROTATION_MAX_BYTES": "200000"}
START_S = 60
PART_S = 120


class NotUpError(Exception):
    """
    Ray did not get a node or a worker up, as on a machine that does much else.
    """


@attrs.frozen(kw_only=True)
class DeadCluster:
    """
    What a Ray cluster of three nodes left behind.

    Attributes:
        folder: All of it.

        nodes: The temporary folder of each node, by its name; the job had
            ``"head"`` and ``"other"``, while Ray ran out of memory on
            ``"small"``.

        driver_logs: What the driver of each part of the job printed.

        known: What the drivers knew of each actor and task.
    """

    folder: Path
    nodes: dict[str, Path]
    driver_logs: dict[str, Path]
    known: dict[str, Any]


@attrs.frozen(kw_only=True)
class LiveNode:
    """
    A Ray cluster of one node that runs.

    Attributes:
        folder: Its temporary folder.

        address: Where it answers.

        environ: The environment of whoever drives it.
    """

    folder: Path
    address: str
    environ: dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def _leaves_no_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """
    Fails a file of tests that leaves a process: it would run on beside all
    others, and be found by those that look at the whole machine.
    """
    yield
    ours = f"{tmp_path_factory.getbasetemp()}/"
    # Some are still about to end.
    wait_until(lambda: not having(ours, environment=True), seconds=20)
    left = [str(x) for x in having(ours, environment=True)]
    end_all(ours)
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="session")
def dead_cluster() -> Iterator[DeadCluster]:
    """
    The folders of a Ray cluster whose actors died in every way, stopped.
    """
    with ExitStack() as stack:
        for tries_left in (2, 1, 0):
            try:
                cluster = _live_and_die(*stack.enter_context(_folder()))
            except NotUpError:
                if not tries_left:
                    raise
                continue
            if _crash_is_told(cluster):
                break
        yield cluster


def _crash_is_told(cluster: DeadCluster) -> bool:
    """
    Whether Ray noted the signals that actors died of, and what they printed
    before: its threads that write both die with them, rarely too early.
    """
    words = [
        ("SglEngine", "err", b"SIGSEGV"),
        ("SglEngine", "out", b"about to segfault"),
        ("Aborter", "err", b"SIGABRT"),
    ]
    return all(
        any(
            word in log.read_bytes()
            for log in cluster.folder.rglob(
                f"worker-*-{cluster.known[who]['pid']}.{stream}"
            )
        )
        for who, stream, word in words
    )


@pytest.fixture(scope="module")
def live_node() -> Iterator[LiveNode]:
    """
    A Ray cluster of one node that rotates its logs early, and puts those of
    the dead away soon.
    """
    few = {"RAY_LOG_MONITOR_MAX_OPEN_FILES": "4"}
    with _folder() as (folder, nodes):
        address = free_address()
        try:
            nodes.append(_start(folder, "head", address, "127.0.0.1", few))
        except NotUpError as error:
            pytest.skip(f"Ray does not start: {error}")
        yield LiveNode(
            folder=folder / "head",
            address=address,
            environ=_environ({"RAY_ADDRESS": address}),
        )


@contextmanager
def _folder() -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """
    A folder for nodes, which are stopped in the end.
    """
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    # The path of a socket may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        yield folder, nodes
    finally:
        _stop(folder, nodes)
        shutil.rmtree(folder, ignore_errors=True)


def _live_and_die(
    folder: Path, nodes: list[subprocess.Popen[bytes]]
) -> DeadCluster:
    address = free_address()
    known: dict[str, Any] = {}
    logs = {x: folder / f"{x}.log" for x in ("deaths", "json", "memory")}

    nodes.append(_start(folder, "head", address, "127.0.0.1"))
    nodes.append(_start(folder, "other", address, "127.0.0.2"))
    for part, log in logs.items():
        if part == "memory":
            # Where nobody takes more than two gigabytes, nothing happens.
            total = psutil.virtual_memory()
            most = (total.total - total.available + (2 << 30)) / total.total
            limit = {"RAY_memory_usage_threshold": f"{most:.3f}"}
            nodes.append(_start(folder, "small", address, "127.0.0.3", limit))
        known.update(_drive(part, address, log))
    _stop(folder, nodes)
    return DeadCluster(
        folder=folder,
        nodes={x: folder / x for x in ("head", "other", "small")},
        driver_logs=logs,
        known=known,
    )


def _environ(more: dict[str, str] | None = None) -> dict[str, str]:
    root = str(Path(distdebug.__file__).parents[1])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return {
        **kept,
        "PYTHONPATH": root,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_export_api_write": "1",
        **(more or {}),
    }


def _start(
    folder: Path,
    name: str,
    address: str,
    ip: str,
    more: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    environ = _environ({**ROTATED, **(more or {})})
    node = start_node(folder, name, address, ip, environ)
    said = folder / f"{name}.txt"
    # The head answers before it lets anybody in.
    if not wait_until(
        lambda: b"Ray runtime started" in said.read_bytes(), seconds=START_S
    ):
        _stop(folder, [node])
        raise NotUpError(_end_of(folder, said))
    return node


def _drive(part: str, address: str, log: Path) -> dict[str, Any]:
    told = log.with_suffix(".json")
    with log.open("wb") as file, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, str(DRIVER), str(told), part],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_environ({"RAY_ADDRESS": address}),
            timeout=PART_S,
        )
    if not told.exists():
        raise NotUpError(_end_of(log.parent, log))
    known: dict[str, Any] = json.loads(told.read_text())
    return known


def _end_of(folder: Path, log: Path) -> str:
    """
    What a log says last, and those of Ray's own servers.
    """
    servers = folder.rglob("session_2*/logs/gcs_server.out")
    lasts = (x.read_text(errors="replace")[-600:] for x in (log, *servers))
    return "\n---\n".join(lasts)


def _stop(folder: Path, nodes: list[subprocess.Popen[bytes]]) -> None:
    for node in reversed(nodes):
        node.terminate()
    for node in nodes:
        with suppress(subprocess.TimeoutExpired):
            node.wait(30)
    end_all(f"{folder}/")
    for node in nodes:
        node.wait(10)

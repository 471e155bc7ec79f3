"""
Nodes of Ray clusters on this machine, as our own children.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .living import end, free_ports, having, wait_until


def free_address() -> str:
    """
    Where a head may answer.
    """
    return f"127.0.0.1:{free_ports(1)[0]}"


def start_node(
    folder: Path,
    name: str,
    address: str,
    ip: str,
    environ: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """
    Start a node, which has a resource of its name; ``"head"`` is the first.
    """
    port = address.partition(":")[2]
    where = (
        ["--head", "--include-dashboard=false", "--port", port]
        if name == "head"
        else ["--address", address]
    )
    with (folder / f"{name}.txt").open("wb") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start"),
                *("--block", "--disable-usage-stats", *where),
                *("--node-ip-address", ip, "--num-cpus", "4"),
                *("--temp-dir", str(folder / name)),
                *("--resources", json.dumps({name: 100})),
                *("--object-store-memory", str(80 << 20)),
                # By default, raylets give out the same ones at the same time.
                *("--min-worker-port", "0", "--max-worker-port", "0"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )


def answers(address: str) -> bool:
    """
    Whether somebody listens there.
    """
    host, _, port = address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


@contextmanager
def two_nodes(folder: Path) -> Iterator[str]:
    """
    A cluster whose nodes ``"head"`` and ``"other"`` have folders of their own
    for the sockets of the debugger; its address.
    """
    pytest.importorskip("ray")
    address = free_address()
    (folder / "ray").mkdir()
    nodes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("HOME", str(folder))
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        try:
            for name, ip in (("head", "127.0.0.1"), ("other", "127.0.0.2")):
                sockets = {"DISTDEBUG_DIR": str(folder / f"r.{name}")}
                environ = {**os.environ, "DISTDEBUG": "1", **sockets}
                nodes.append(
                    start_node(folder / "ray", name, address, ip, environ)
                )
                wait_until(lambda: answers(address))
            yield address
        finally:
            for node in nodes:
                node.kill()
                node.wait(30)
            end(having(f"{folder}/ray/"))

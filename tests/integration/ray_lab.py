"""
Nodes of Ray clusters on this machine, as our own children.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .living import free_ports


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

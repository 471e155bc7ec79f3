"""
How does a command get to every node of a Ray cluster?

It is started as ``python -m distdebug.nodes.ray_driver`` by whoever wants to
know.  What Ray does to the process that connects to it happens to this one
only: it prints, takes signals over, unpickles what nodes say, waits without
end for a head that does not answer, and ends the process if that dies.

One line of JSON tells what to do; lines of JSON tell what becomes of it.  It
ends when its standard input does.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from distdebug._text import clean
from distdebug.errors import NodesError
from distdebug.nodes.ray_env import runtime_env_of
from distdebug.nodes.ray_errands import Errands, Say
from distdebug.nodes.ray_talks import Talks


__all__ = ["main"]

# A node that the autoscaler took back was none of the job's any more.
_TAKEN_BACK = 4


def main(stdin: IO[str], stdout: IO[str]) -> int:
    """
    Do what the first line says, and tell what becomes of it.

    Prints ``{"hosts": […], "address": …}``, then one ``{"host": …, "seconds":
    …, "ended": …}`` for each, or ``{"reason": …, "remedy": …}``.

    Args:
        stdin: Where the line comes from.

        stdout: Where the answers go.

    Returns:
        The exit status.
    """

    def say(answer: Mapping[str, object]) -> None:
        stdout.write(f"{json.dumps(answer)}\n")
        stdout.flush()

    task = json.loads(stdin.readline())
    stop = threading.Event()
    threading.Thread(
        target=_wait_for_end, args=(stdin.fileno(), stop), daemon=True
    ).start()
    try:
        with _connected(task["address"]) as address:
            _serve(task, address, say, stop)
    except NodesError as exc:
        say({"reason": str(exc), "remedy": exc.remedy})
    return 0


def _wait_for_end(stdin: int, stop: threading.Event) -> None:
    # Not by the file object: what a thread holds of it breaks the exit.
    while os.read(stdin, 1):
        pass
    stop.set()


@contextmanager
def _connected(address: str) -> Iterator[str]:
    import ray

    try:
        # A job of ours is none of the user's.
        ray.init(address, log_to_driver=False, namespace="_distdebug")
    except Exception as exc:
        said = clean(str(exc).strip().partition("\n")[0])
        if "Version mismatch" in str(exc):
            msg = f"the cluster differs: {clean(str(exc))}"
            remedy = "use the Python and the Ray of the cluster"
        else:
            msg = f"there is no way to a Ray cluster at {address}: {said}"
            remedy = (
                "run it on a node of the cluster, where `ray status` answers"
            )
        raise NodesError(msg, remedy=remedy) from exc
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def _serve(
    task: Mapping[str, Any], address: str, say: Say, stop: threading.Event
) -> None:
    import ray

    nodes = _named(
        node
        for node in ray.nodes()
        if node["Alive"] or node.get("DeathReason") != _TAKEN_BACK
    )
    env = runtime_env_of(task["runtime_env"], task["job"])
    say({"hosts": list(nodes), "address": address})
    if "doors" in task:
        # Nobody may read what Ray prints as long as this may take.
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 2)
        os.close(silence)
        Talks(Program, nodes, env, say).serve(
            socket.socket(fileno=task["doors"])
        )
    elif task["argv"]:
        Errands(on_node, task, env, say).run(nodes, stop)


def _named(nodes: Iterator[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """
    The nodes by their names, each of which is one node's.
    """
    found = list(nodes)
    hosts = [node["NodeManagerHostname"] for node in found]
    named = {}
    for host, node in zip(hosts, found, strict=True):
        more = f"-{node['NodeID'][:8]}" if hosts.count(host) > 1 else ""
        named[host + more] = node
    return named


def on_node(errand: bytes, timeout_s: float, host: str) -> bytes:
    """
    Run a command, inside a Ray worker of its node.

    It gets there by value, and tells what is missing there as data, so that
    no exception has to travel.
    """
    try:
        from distdebug.nodes.model import Bound
        from distdebug.nodes.process import run_errand
        from distdebug.nodes.wire import ended_to_line as to_line
    except ImportError as exc:
        reason = f"in the Ray worker of {host}: {exc}"
        remedy = (
            "install distdebug on the nodes, or let the job bring it: "
            'runtime_env={"pip": ["distdebug"]}'
        )
        return json.dumps(
            {
                "status": 1,
                "output": "",
                "complaint": "",
                "trouble": ["failed", reason, remedy],
            }
        ).encode()

    argv, data = json.loads(bytes(errand))
    ended = run_errand(
        [argv[0] or sys.executable, *argv[1:]],
        data=None if data is None else base64.b64decode(data),
        environment={**os.environ, "DISTDEBUG_NODE": host},
        bound=Bound(timeout_s=timeout_s),
    )
    return to_line(ended).encode()


class Program:
    """
    A command that is talked to, inside a Ray worker of its node.

    It gets there by value.  It ends when this does.
    """

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(
            [argv[0] or sys.executable, *argv[1:]],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def tell(self, data: bytes) -> None:
        """
        Tell it something.
        """
        view = memoryview(data)
        try:
            while view and self._process.stdin:
                view = view[self._process.stdin.write(view) :]
        except OSError:
            pass  # who hears nothing learns why

    def hear(self) -> tuple[bytes, int | None, str]:
        """
        What does it say next, or else how did it end?
        """
        streams = (self._process.stdout, self._process.stderr)
        out, err = (stream.fileno() for stream in streams if stream)
        if data := os.read(out, 1 << 20):
            return data, None, ""
        os.set_blocking(err, False)
        try:
            complaint = os.read(err, 1 << 16).decode("utf-8", "replace")
        except BlockingIOError:
            complaint = ""
        return b"", self._process.wait(5), complaint


def _main() -> int:
    # Only our own lines go where somebody reads them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        return main(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(_main())

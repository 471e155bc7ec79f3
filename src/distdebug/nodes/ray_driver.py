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
import selectors
import socket
import subprocess
import sys
import threading

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import IO, Any

import attrs

from distdebug._text import clean
from distdebug.errors import NodesError

from .ray import Errands, Say, dead_node, runtime_env_of, trouble_of_ray
from .results import Trouble, trouble_of


_BLOCK = 1 << 20


@attrs.define
class _Talk:
    host: str
    node: Mapping[str, Any]
    socket: socket.socket
    actor: Any = None


@attrs.define
class Talks:
    """
    All programs that are talked to.

    Args:
        program: The actor: takes the command, has *tell* and *hear*.

        nodes: What Ray says of each node, by name.

        env: The runtime environment, if any.

        say: Tells why a program is not there any more.
    """

    program: type
    nodes: Mapping[str, Mapping[str, Any]]
    env: Mapping[str, Any] | None
    say: Say
    _select: selectors.BaseSelector = attrs.field(
        factory=selectors.DefaultSelector, init=False
    )
    _heard: deque[tuple[_Talk, Future[Any]]] = attrs.field(
        factory=deque, init=False
    )

    def serve(self, doors: socket.socket) -> None:
        """
        Carry words until nobody hands out sockets any more.

        Args:
            doors: Where sockets come from, each with the name of a node and a
                command.
        """
        ear, bell = socket.socketpair()
        bell.settimeout(0.0)
        with ear, bell, doors, self._select:
            self._select.register(ear, selectors.EVENT_READ)
            self._select.register(doors, selectors.EVENT_READ)
            while self._pass_on(ear, bell, doors):
                pass
            self._end_all()

    def _pass_on(
        self, ear: socket.socket, bell: socket.socket, doors: socket.socket
    ) -> bool:
        """
        Carry what came; tell whether more can come.
        """
        for key, _ in self._select.select():
            if key.fileobj is ear:
                ear.recv(_BLOCK)
                self._tell_heard(bell)
            elif key.fileobj is not doors:
                self._carry(key.data)
            elif not self._open(doors, bell):
                return False
        return True

    def _end_all(self) -> None:
        for key in [*self._select.get_map().values()]:
            if key.data is not None:
                self._end(key.data, None)

    def _open(self, doors: socket.socket, bell: socket.socket) -> bool:
        data, handles, _, _ = socket.recv_fds(doors, 1 << 16, 1)
        if not data:
            return False

        wanted = json.loads(data)
        host = wanted["host"]
        talk = _Talk(host, self.nodes[host], socket.socket(fileno=handles[0]))
        if not talk.node["Alive"]:
            self._end(talk, dead_node(talk.node))
            return True
        talk.actor = self._start(talk.node, wanted["argv"])
        self._select.register(talk.socket, selectors.EVENT_READ, talk)
        self._listen(talk, bell)
        return True

    def _start(self, node: Mapping[str, Any], argv: list[str]) -> Any:
        import ray

        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
        )

        # It needs nothing, so that it never waits for something to be free.
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return (
            ray.remote(
                num_cpus=0, max_restarts=0, concurrency_groups={"hear": 1}
            )(self.program)
            .options(
                name=None,
                scheduling_strategy=place,
                **({"runtime_env": dict(self.env)} if self.env else {}),
            )
            .remote(argv)
        )

    def _listen(self, talk: _Talk, bell: socket.socket) -> None:
        def ring(future: Future[Any]) -> None:
            self._heard.append((talk, future))
            # One that is not heard yet is enough.
            with suppress(OSError):
                bell.send(b"!")

        ref = talk.actor.hear.options(concurrency_group="hear").remote()
        ref.future().add_done_callback(ring)

    def _tell_heard(self, bell: socket.socket) -> None:
        while self._heard:
            talk, future = self._heard.popleft()
            if talk.socket.fileno() < 0:
                continue
            try:
                data, status, complaint = future.result()
                talk.socket.sendall(data)
            except OSError:
                self._end(talk, None)
            except Exception as exc:  # noqa: BLE001 -- whatever Ray makes of it
                self._end(talk, trouble_of_ray(exc, talk.node))
            else:
                if data:
                    self._listen(talk, bell)
                else:
                    self._end(talk, trouble_of(status, complaint, 0.0))

    def _carry(self, talk: _Talk) -> None:
        if talk.socket.fileno() < 0:
            return  # it was ended by what was heard at the same moment
        try:
            data = talk.socket.recv(_BLOCK)
        except OSError:
            data = b""
        if data:
            talk.actor.tell.remote(data)
        else:
            self._end(talk, None)

    def _end(self, talk: _Talk, trouble: Trouble | None) -> None:
        if trouble:
            self.say({"host": talk.host, "trouble": trouble})
        if talk.actor is not None:
            import ray

            self._select.unregister(talk.socket)
            with suppress(Exception):
                ray.kill(talk.actor)
        talk.socket.close()


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
        from distdebug.nodes.process import run_errand

        from .results import Bound
        from .results import ended_to_line as to_line
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

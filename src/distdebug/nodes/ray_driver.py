"""
Child process that connects to Ray and reaches all nodes of its cluster.

It is started as ``python -m distdebug.nodes.ray_driver``.  Ray changes the
process that connects: it prints, replaces signal handlers, unpickles what the
nodes send, waits for ever for a head that does not answer, and ends the
process if the head dies.  Here this does not harm the user's process.

It reads one request as a line of JSON, writes lines of JSON, and ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

import attrs

from distdebug._text import clean
from distdebug.errors import NodesError

from .ray import answer_stream, node_affinity, runtime_env_of
from .results import (
    CompletedCommand,
    NodeFailure,
    NodeStatus,
    closed_failure,
    completed_to_line,
)


WriteMessage = Callable[[Mapping[str, object]], None]

_BLOCK = 1 << 20


@attrs.define
class StreamRelay:
    """
    Forwards bytes between the parent's sockets and the programs on the nodes.

    Args:
        nodes: The rows of ``ray.nodes()`` by host name.

        env: The runtime environment, if any.

        write_message: Called with the failure of each program that has ended.
    """

    nodes: Mapping[str, Mapping[str, Any]]
    env: Mapping[str, Any] | None
    write_message: WriteMessage

    async def serve(self, control: socket.socket) -> None:
        """
        Forward bytes until the parent closes *control*.

        Args:
            control: Receives sockets, each with a host name and a command.
        """
        streams: set[asyncio.Task[None]] = set()
        while True:
            data, handles, _, _ = await asyncio.to_thread(
                socket.recv_fds, control, 1 << 16, 1
            )
            if not data:
                break
            stream = asyncio.create_task(
                self._serve_stream(
                    socket.socket(fileno=handles[0]), **json.loads(data)
                )
            )
            streams.add(stream)
            stream.add_done_callback(streams.discard)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def _serve_stream(
        self, stream: socket.socket, host: str, argv: list[str]
    ) -> None:
        node = self.nodes[host]
        with stream:
            stream.settimeout(0.0)
            if node["Alive"]:
                failure = await self._run_program(stream, node, argv)
            else:
                failure = dead_node(node)
            if failure:
                self.write_message({"host": host, "trouble": failure})

    async def _run_program(
        self, stream: socket.socket, node: Mapping[str, Any], argv: list[str]
    ) -> NodeFailure | None:
        """
        Run a program until it or the parent has ended the stream.

        Returns:
            Why it has ended; ``None`` if the parent wants no reason.
        """
        import ray

        # Without resources, the actor never waits for a free one.
        actor = (
            ray.remote(
                num_cpus=0, max_restarts=0, concurrency_groups={"hear": 1}
            )(Program)
            .options(name=None, **_placement(node, self.env))
            .remote(argv)
        )
        ways = [
            asyncio.create_task(_forward_input(stream, actor)),
            asyncio.create_task(_forward_output(stream, actor, node)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            failures = [way.result() for way in ways if way.done()]
            return None if None in failures else failures[0]
        except ConnectionError:  # the parent has closed its end
            return None
        except OSError as exc:
            reason = f"the connection broke: {exc.strerror or exc}"
            return NodeFailure(NodeStatus.FAILED, reason)
        finally:
            for way in ways:
                way.cancel()
            # They leave the socket before it is closed.
            await asyncio.gather(*ways, return_exceptions=True)
            with suppress(Exception):
                ray.kill(actor)


async def _forward_input(
    stream: socket.socket, actor: Any
) -> NodeFailure | None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(stream, _BLOCK):
        actor.write.remote(data)
    return None


async def _forward_output(
    stream: socket.socket, actor: Any, node: Mapping[str, Any]
) -> NodeFailure | None:
    loop = asyncio.get_running_loop()
    while True:
        # Ask for more only when the parent has taken all.
        ref = actor.read.options(concurrency_group="hear").remote()
        try:
            data, status, stderr = await asyncio.wrap_future(ref.future())
        except Exception as exc:  # noqa: BLE001 -- Ray may raise anything
            return ray_failure(exc, node)
        if not data:
            return closed_failure(status, stderr)
        await loop.sock_sendall(stream, data)


# How long to wait for the end of cancelled tasks.
_CANCEL_S = 2.0


class NodeTasks:
    """
    Runs one Ray task on each node, a limited number at the same time.

    Args:
        task: The request of the parent process.

        env: The runtime environment, if any.

        write_message: Called with the message about each node.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        env: Mapping[str, Any] | None,
        write_message: WriteMessage,
    ) -> None:
        import ray

        self._task, self._env, self._write_message = task, env, write_message
        # No CPUs: it has to run beside a job that uses all of them.
        self._remote = ray.remote(num_cpus=0, max_retries=0)(run_in_worker)
        self._turns = asyncio.Semaphore(task["at_once"])
        self._cancelled: list[Any] = []
        self._payload = ray.put(
            json.dumps([task["argv"], task["data"]]).encode()
        )

    async def run(
        self, nodes: Mapping[str, Mapping[str, Any]], stop: threading.Event
    ) -> None:
        """
        Run the task on all nodes, and report each result.

        Args:
            nodes: The rows of ``ray.nodes()`` by host name.

            stop: Cancels the remaining tasks when it is set.
        """
        import ray

        reports = asyncio.gather(*map(self._run_task, nodes, nodes.values()))
        stopped = asyncio.create_task(asyncio.to_thread(stop.wait))
        either: tuple[asyncio.Future[Any], ...] = (reports, stopped)
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if reports.done():
                reports.result()
        finally:
            stop.set()
            reports.cancel()
            await asyncio.gather(reports, return_exceptions=True)
            if refs := self._cancelled:
                ray.wait(refs, num_returns=len(refs), timeout=_CANCEL_S)

    async def _run_task(self, host: str, node: Mapping[str, Any]) -> None:
        async with self._turns:
            begin = time.monotonic()
            line = await self._result_line(host, node)
        text = line.decode("ascii", "replace") if type(line) is bytes else line
        self._write_message(
            {
                "host": host,
                "seconds": time.monotonic() - begin,
                "ended": text if type(text) is str else None,
            }
        )

    async def _result_line(self, host: str, node: Mapping[str, Any]) -> object:
        if not node["Alive"]:
            return _failure_line(dead_node(node))
        # Without resources, the task never waits for a free one.
        task = self._remote.options(
            name="distdebug", **_placement(node, self._env)
        )
        timeout_s = self._task["timeout_s"]
        ref = task.remote(self._payload, timeout_s, host)
        limit_s = timeout_s + self._task["grace_s"]
        try:
            answer = asyncio.wrap_future(ref.future())
            return await asyncio.wait_for(answer, limit_s)
        except (TimeoutError, asyncio.CancelledError) as exc:
            # Without a cancel, the command keeps running on its node.
            self._cancelled.append(ref)
            with suppress(Exception):
                import ray

                ray.cancel(ref, force=False)
            if isinstance(exc, asyncio.CancelledError):
                raise
            node = _current_node(node)
            return _failure_line(None if node["Alive"] else dead_node(node))
        except Exception as exc:  # noqa: BLE001 -- Ray may raise anything
            return _failure_line(ray_failure(exc, node))


def _placement(
    node: Mapping[str, Any], env: Mapping[str, Any] | None
) -> dict[str, Any]:
    """
    Return the options of a task or actor on one node.
    """
    strategy = {"scheduling_strategy": node_affinity(node["NodeID"])}
    return strategy | ({"runtime_env": dict(env)} if env else {})


def _failure_line(failure: NodeFailure | None) -> str:
    return completed_to_line(CompletedCommand(failure=failure))


def _current_node(node: Mapping[str, Any]) -> Mapping[str, Any]:
    import ray

    with suppress(Exception):
        return next(n for n in ray.nodes() if n["NodeID"] == node["NodeID"])
    return node


def dead_node(node: Mapping[str, Any]) -> NodeFailure:
    """
    Return the failure of a node that Ray does not reach.

    Args:
        node: A row of ``ray.nodes()``.
    """
    reason = "Ray does not reach the node"
    if death_reason := node.get("DeathReasonMessage"):
        reason += f": {death_reason}"
    return NodeFailure(
        NodeStatus.DEAD,
        reason,
        "see raylet.out and raylet.err in /tmp/ray/session_latest/logs there",
    )


def ray_failure(exc: Exception, node: Mapping[str, Any]) -> NodeFailure:
    """
    Return the failure that an exception of Ray means for a node.

    Args:
        node: The row of ``ray.nodes()`` before the task.
    """
    from ray import exceptions

    node = _current_node(node)
    gone = (
        exceptions.NodeDiedError,
        exceptions.TaskUnschedulableError,
        exceptions.ActorUnschedulableError,
    )
    if not node["Alive"] or isinstance(exc, gone):
        return dead_node(node)
    error_text = f"{type(exc).__name__}: {clean(str(exc))}"[:1000]
    if isinstance(exc, exceptions.RuntimeEnvSetupError):
        return NodeFailure(
            NodeStatus.FAILED,
            f"the runtime environment cannot be set up there: {error_text}",
            "give another one, such as runtime_env={}",
        )
    return NodeFailure(
        NodeStatus.FAILED, f"its Ray worker failed: {error_text}"
    )


# `NodeDeathInfo.Reason` in Ray's gcs.proto: the autoscaler removed an idle node,
# so the job did not use it any more.
_AUTOSCALER_DRAIN_IDLE = 4


def main(stdin: IO[str], stdout: IO[str]) -> None:
    """
    Run the request in the first line of *stdin*, and write the results.

    Writes ``{"hosts": […], "address": …}``, then one ``{"host": …, "seconds":
    …, "ended": …}`` for each node, or ``{"reason": …, "remedy": …}``.
    """

    def write_message(answer: Mapping[str, object]) -> None:
        stdout.write(f"{json.dumps(answer)}\n")
        stdout.flush()

    task = json.loads(stdin.readline())
    stop = threading.Event()
    threading.Thread(
        target=_wait_for_end, args=(stdin.fileno(), stop), daemon=True
    ).start()
    try:
        with _connected(task["address"]) as address:
            _serve(task, address, write_message, stop)
    except NodesError as exc:
        write_message({"reason": str(exc), "remedy": exc.remedy})


def _wait_for_end(stdin: int, stop: threading.Event) -> None:
    # By the descriptor: a thread that holds the file object breaks the exit.
    while os.read(stdin, 1):
        pass
    stop.set()


@contextmanager
def _connected(address: str) -> Iterator[str]:
    import ray

    try:
        # The namespace marks this job as distdebug's.
        ray.init(address, log_to_driver=False, namespace="_distdebug")
    except Exception as exc:
        error_text = clean(str(exc).strip().partition("\n")[0])
        msg = f"there is no way to a Ray cluster at {address}: {error_text}"
        remedy = "run it on a node of the cluster, where `ray status` answers"
        if "Version mismatch" in str(exc):
            msg = f"the cluster differs: {clean(str(exc))}"
            remedy = "use the Python and the Ray of the cluster"
        raise NodesError(msg, remedy=remedy) from exc
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def _serve(
    task: Mapping[str, Any],
    address: str,
    write_message: WriteMessage,
    stop: threading.Event,
) -> None:
    import ray

    nodes = _nodes_by_name(
        node
        for node in ray.nodes()
        if node["Alive"] or node.get("DeathReason") != _AUTOSCALER_DRAIN_IDLE
    )
    env = runtime_env_of(task["runtime_env"], task["job"])
    write_message({"hosts": list(nodes), "address": address})
    if "doors" in task:
        # A full pipe of standard error would block Ray, so drop its output.
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 2)
        os.close(silence)
        relay = StreamRelay(nodes, env, write_message)
        with socket.socket(fileno=task["doors"]) as control:
            asyncio.run(relay.serve(control))
    elif task["argv"]:
        tasks = NodeTasks(task, env, write_message)
        asyncio.run(tasks.run(nodes, stop))


def _nodes_by_name(
    nodes: Iterator[Mapping[str, Any]],
) -> dict[str, Mapping[str, Any]]:
    """
    Return the nodes by host name; equal names get a part of the node ID.
    """
    found = list(nodes)
    hosts = [node["NodeManagerHostname"] for node in found]
    named = {}
    for host, node in zip(hosts, found, strict=True):
        more = f"-{node['NodeID'][:8]}" if hosts.count(host) > 1 else ""
        named[host + more] = node
    return named


def run_in_worker(command: bytes, timeout_s: float, host: str) -> bytes:
    """
    Run a command inside the Ray worker of its node.

    Ray sends this function by value.  It returns errors of the node as data,
    so that no exception has to be pickled.
    """
    try:
        from distdebug.nodes.process import run_command

        from .results import completed_to_line as to_line
    except ImportError as exc:
        reason = f"in the Ray worker of {host}: {exc}"
        remedy = (
            "install distdebug on the nodes, or let the job bring it: "
            'runtime_env={"pip": ["distdebug"]}'
        )
        failure = ["failed", reason, remedy]
        line = {"status": 1, "output": "", "complaint": "", "trouble": failure}
        return json.dumps(line).encode()

    argv, data = json.loads(bytes(command))
    completed = run_command(
        [argv[0] or sys.executable, *argv[1:]],
        data=None if data is None else base64.b64decode(data),
        environment={**os.environ, "DISTDEBUG_NODE": host},
        timeout_s=timeout_s,
    )
    return to_line(completed).encode()


class Program:
    """
    A command that is streamed to, inside the Ray worker of its node.

    Ray sends this class by value.  The command ends with the actor.
    """

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(
            [argv[0] or sys.executable, *argv[1:]],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def write(self, data: bytes) -> None:
        """
        Write to the standard input of the command.
        """
        view = memoryview(data)
        try:
            while view and self._process.stdin:
                view = view[self._process.stdin.write(view) :]
        except OSError:
            pass  # read() returns why the command has ended

    def read(self) -> tuple[bytes, int | None, str]:
        """
        Return the next output; at its end, the exit status and standard error.
        """
        streams = (self._process.stdout, self._process.stderr)
        out, err = (stream.fileno() for stream in streams if stream)
        if data := os.read(out, 1 << 20):
            return data, None, ""
        # It may have closed its output, and run on: nobody hears it then.
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(0.5)
        os.set_blocking(err, False)
        stderr = b""
        with suppress(BlockingIOError):
            stderr = os.read(err, 1 << 16)
        return b"", status, stderr.decode("utf-8", "replace")


if __name__ == "__main__":
    with answer_stream() as answers:
        main(sys.stdin, answers)

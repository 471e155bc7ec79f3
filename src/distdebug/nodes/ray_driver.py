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
import sys
import threading
import time

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, NamedTuple

from distdebug._text import clean
from distdebug.errors import NodesError
from distdebug.nodes.model import Ended, NodeStatus, Trouble
from distdebug.nodes.ray_env import runtime_env_of
from distdebug.nodes.wire import ended_to_line


__all__ = ["main"]

_BEAT_S = 0.2
# So long may the nodes end what is not wanted any more.
_CANCEL_S = 2.0
# A node that the autoscaler took back was none of the job's any more.
_TAKEN_BACK = 4

Say = Callable[[Mapping[str, object]], None]


class _Sent(NamedTuple):
    node: Mapping[str, Any]
    host: str
    begin: float


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
    if task["argv"]:
        _Errands(task, env, say).run(nodes, stop)


def _named(nodes: Iterator[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """
    The nodes by their names, each of which is one node's.
    """
    found = list(nodes)
    hosts = [node["NodeManagerHostname"] for node in found]
    return {
        host
        if hosts.count(host) == 1
        else f"{host}-{node['NodeID'][:8]}": node
        for host, node in zip(hosts, found, strict=True)
    }


class _Errands:
    """
    One task on each node, some of them at the same time.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        env: Mapping[str, Any] | None,
        say: Say,
    ) -> None:
        import ray

        self._task, self._say = task, say
        self._options = {"runtime_env": dict(env)} if env else {}
        # It has to run beside a job that uses every CPU.
        self._remote = ray.remote(num_cpus=0, max_retries=0)(on_node)
        self._sent: dict[Any, _Sent] = {}
        self._errand = ray.put(
            json.dumps([task["argv"], task["data"]]).encode()
        )

    def run(
        self, nodes: Mapping[str, Mapping[str, Any]], stop: threading.Event
    ) -> None:
        """
        Go to all nodes, and tell what becomes of each.
        """
        import ray

        todo = list(nodes.items())
        try:
            while (todo or self._sent) and not stop.is_set():
                while todo and len(self._sent) < self._task["at_once"]:
                    self._send(*todo.pop(0))
                ready, _ = ray.wait(list(self._sent), timeout=_BEAT_S)
                for ref in ready:
                    self._came(ref)
                self._give_up()
        finally:
            self._cancel(list(self._sent))

    def _send(self, host: str, node: Mapping[str, Any]) -> None:
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
        )

        sent = _Sent(node, host, time.monotonic())
        if not node["Alive"]:
            self._tell(sent, ended_to_line(Ended(trouble=_dead(node))))
            return
        # It needs nothing, so that it never waits for something to be free.
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = self._remote.options(
            name="distdebug", scheduling_strategy=place, **self._options
        )
        ref = task.remote(self._errand, self._task["timeout_s"], host)
        self._sent[ref] = sent

    def _came(self, ref: Any) -> None:
        import ray

        sent = self._sent.pop(ref)
        try:
            line = ray.get(ref)
        except Exception as exc:  # noqa: BLE001 -- whatever Ray makes of it
            line = ended_to_line(Ended(trouble=_trouble(exc, sent.node)))
        self._tell(sent, line)

    def _tell(self, sent: _Sent, line: object) -> None:
        text = line.decode("ascii", "replace") if type(line) is bytes else line
        self._say(
            {
                "host": sent.host,
                "seconds": time.monotonic() - sent.begin,
                "ended": text if type(text) is str else None,
            }
        )

    def _give_up(self) -> None:
        end = time.monotonic() - self._task["timeout_s"]
        late = [
            ref
            for ref, sent in self._sent.items()
            if sent.begin + self._task["grace_s"] < end
        ]
        for ref in late:
            sent = self._sent.pop(ref)
            node = _now(sent.node)
            trouble = None if node["Alive"] else _dead(node)
            self._tell(sent, ended_to_line(Ended(trouble=trouble)))
        self._cancel(late)

    @staticmethod
    def _cancel(refs: list[Any]) -> None:
        import ray

        if not refs:
            return
        # A command that is left to itself would run on: let its node end it.
        for ref in refs:
            with suppress(Exception):
                ray.cancel(ref, force=False)
        ray.wait(refs, num_returns=len(refs), timeout=_CANCEL_S)


def _now(node: Mapping[str, Any]) -> Mapping[str, Any]:
    import ray

    with suppress(Exception):
        return next(n for n in ray.nodes() if n["NodeID"] == node["NodeID"])
    return node


def _dead(node: Mapping[str, Any]) -> Trouble:
    why = node.get("DeathReasonMessage")
    return Trouble(
        NodeStatus.DEAD,
        "Ray does not reach the node" + (f": {why}" if why else ""),
        "see raylet.out and raylet.err in /tmp/ray/session_latest/logs there",
    )


def _trouble(exc: Exception, node: Mapping[str, Any]) -> Trouble:
    from ray import exceptions

    node = _now(node)
    gone = (exceptions.NodeDiedError, exceptions.TaskUnschedulableError)
    if not node["Alive"] or isinstance(exc, gone):
        return _dead(node)
    said = f"{type(exc).__name__}: {clean(str(exc))}"[:1000]
    if isinstance(exc, exceptions.RuntimeEnvSetupError):
        return Trouble(
            NodeStatus.FAILED,
            f"the runtime environment cannot be set up there: {said}",
            "give another one, such as runtime_env={}",
        )
    return Trouble(NodeStatus.FAILED, f"its Ray worker failed: {said}")


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


def _main() -> int:
    # Only our own lines go where somebody reads them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        return main(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(_main())

"""
What becomes of a command on each node of a Ray cluster?
"""

from __future__ import annotations

import json
import time

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event
from typing import Any, NamedTuple

from .._text import clean
from .model import Ended, NodeStatus, Trouble
from .wire import ended_to_line


__all__ = ["Errands", "Say", "dead_node", "trouble_of_ray"]

_BEAT_S = 0.2
# So long may the nodes end what is not wanted any more.
_CANCEL_S = 2.0

Say = Callable[[Mapping[str, object]], None]


class _Sent(NamedTuple):
    node: Mapping[str, Any]
    host: str
    begin: float


class Errands:
    """
    One task on each node, some of them at the same time.

    Args:
        on_node: What each runs: takes the errand, seconds, and the name of
            the node, and returns a line.

        task: What was asked for.

        env: The runtime environment, if any.

        say: Called with what is told of each node.
    """

    def __init__(
        self,
        on_node: Callable[[bytes, float, str], bytes],
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

    def run(self, nodes: Mapping[str, Mapping[str, Any]], stop: Event) -> None:
        """
        Go to all nodes, and tell what becomes of each.

        Args:
            nodes: What Ray says of each, by name.

            stop: Set when nobody wants more.
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
            self._tell(sent, ended_to_line(Ended(trouble=dead_node(node))))
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
            line = ended_to_line(Ended(trouble=trouble_of_ray(exc, sent.node)))
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
            trouble = None if node["Alive"] else dead_node(node)
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


def dead_node(node: Mapping[str, Any]) -> Trouble:
    """
    What is there to say of a node that Ray does not reach?

    Args:
        node: What Ray says of it.
    """
    why = node.get("DeathReasonMessage")
    return Trouble(
        NodeStatus.DEAD,
        "Ray does not reach the node" + (f": {why}" if why else ""),
        "see raylet.out and raylet.err in /tmp/ray/session_latest/logs there",
    )


def trouble_of_ray(exc: Exception, node: Mapping[str, Any]) -> Trouble:
    """
    What does an exception of Ray mean for a node?

    Args:
        exc: The exception.

        node: What Ray said of the node.
    """
    from ray import exceptions

    node = _now(node)
    gone = (
        exceptions.NodeDiedError,
        exceptions.TaskUnschedulableError,
        exceptions.ActorUnschedulableError,
    )
    if not node["Alive"] or isinstance(exc, gone):
        return dead_node(node)
    said = f"{type(exc).__name__}: {clean(str(exc))}"[:1000]
    if isinstance(exc, exceptions.RuntimeEnvSetupError):
        return Trouble(
            NodeStatus.FAILED,
            f"the runtime environment cannot be set up there: {said}",
            "give another one, such as runtime_env={}",
        )
    return Trouble(NodeStatus.FAILED, f"its Ray worker failed: {said}")

"""
How does a command run on every node of a Ray cluster?
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import attrs

from .._text import clean
from ..errors import MissingDependencyError, NodesError
from .channel import Door
from .conversation import Conversation, converse
from .model import Arrival, Ended, NodeStatus, Trouble
from .ray_doors import hand_out, handing
from .wire import ended_from_line


__all__ = ["Ray"]

# A connection takes a second; a head that does not answer, without end.
_CONNECT_S = 30.0
_MODULE = f"{__package__}.ray_driver"


@attrs.frozen
class Ray:
    """
    The nodes of a Ray cluster.

    Each live node runs one task that needs no CPU, in the runtime environment
    of the job, and in that the command.  Of a cluster, nodes that died are
    listed, too.

    The connection is made by a child process, so that nothing of Ray comes
    into this one.

    Attributes:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        runtime_env: The runtime environment to use in place of the job's.

        job: The job whose runtime environment to use, as its number or its
            submission ID; by default the one that this process is, or the
            only one that runs.

        python: The Python that runs functions; by default that of the job.

        at_once: How many nodes are asked at the same time.

        grace_s: How long it may take, in seconds, to start something on a
            node, and to end what takes too long.
    """

    address: str = "auto"
    runtime_env: Mapping[str, Any] | None = attrs.field(
        default=None, kw_only=True
    )
    job: str | None = attrs.field(default=None, kw_only=True)
    python: str = attrs.field(default="", kw_only=True)
    at_once: int = attrs.field(default=256, kw_only=True)
    grace_s: float = attrs.field(default=10.0, kw_only=True)

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[Arrival]:
        """
        What does a command leave on each node of the cluster, as they come?

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take on each node, in seconds.

        Yields:
            One answer per node.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, it differs from the Ray or
                the Python here, or nobody knows which job is meant.
        """
        sent = None if data is None else base64.b64encode(data).decode()
        errand = {"argv": list(argv), "data": sent, "timeout_s": timeout_s}
        with self._ask(errand) as talk:
            hosts = _hosts(talk, self.address)["hosts"]
            turns = -(-len(hosts) // self.at_once)
            until = (
                time.monotonic()
                + turns * (timeout_s + self.grace_s)
                + _CONNECT_S
            )
            yield from _arrivals(talk, hosts, until)

    @contextmanager
    def doors(self, argv: Sequence[str]) -> Iterator[Mapping[str, Door]]:
        """
        On which nodes of the cluster can a program be started?

        Args:
            argv: The command.

        Yields:
            What starts it, by node.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, it differs from the Ray or
                the Python here, or nobody knows which job is meant.
        """
        with handing() as (ours, theirs):
            errand = {"argv": [], "doors": theirs.fileno()}
            with self._ask(errand, pass_fds=[theirs.fileno()]) as talk:
                theirs.close()
                hosts = _hosts(talk, self.address)["hosts"]
                try:
                    yield hand_out(talk, hosts, argv, ours)
                finally:
                    ours.close()

    def locate(self) -> str:
        """
        Where is the cluster, if it answers?

        Returns:
            Its address, as ``HOST:PORT``.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, or it differs.
        """
        with self._ask({"argv": [], "runtime_env": {}}) as talk:
            return str(_hosts(talk, self.address)["address"])

    def _ask(
        self, errand: Mapping[str, Any], pass_fds: Collection[int] = ()
    ) -> Any:
        if find_spec("ray") is None:
            msg = "Ray is not installed here"
            raise MissingDependencyError(
                msg, remedy="install the version of the cluster: ray==..."
            )
        if self.address in {"", "local"} or "://" in self.address:
            msg = f"{self.address!r} is no address of a running Ray cluster"
            raise NodesError(
                msg,
                remedy="say 'auto' or 'HOST:6379', on a node of the cluster",
            )

        address, job = self._where()
        question = {
            "address": address,
            "runtime_env": self.runtime_env,
            "job": job,
            "at_once": self.at_once,
            "grace_s": self.grace_s,
            **errand,
        }
        return converse(
            [sys.executable, "-P", "-m", _MODULE],
            question=json.dumps(question).encode(),
            # What *we* were started by is no matter of the nodes.
            environment={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
            pass_fds=pass_fds,
        )

    def _where(self) -> tuple[str, str | None]:
        ray = sys.modules.get("ray")
        if self.address != "auto" or not ray or not ray.is_initialized():
            return self.address, self.job
        context = ray.get_runtime_context()
        return context.gcs_address, self.job or context.get_job_id()


def _hosts(talk: Conversation, address: str) -> dict[str, Any]:
    try:
        line = talk.hear(time.monotonic() + _CONNECT_S)
    except TimeoutError as exc:
        msg = f"no Ray cluster answers at {address} within {_CONNECT_S:g} s"
        raise NodesError(
            msg,
            remedy="run it on a node of the cluster, where `ray status` "
            "answers, with the Ray and the Python of the cluster",
        ) from exc
    if line is None:
        remedy = "run it on another node of the cluster"
        raise NodesError(_broken(talk), remedy=remedy)
    answer: dict[str, Any] = json.loads(line)
    if "hosts" not in answer:
        raise NodesError(answer["reason"], remedy=answer["remedy"])
    return answer


def _arrivals(
    talk: Conversation, hosts: Sequence[str], until: float
) -> Iterator[Arrival]:
    begin = time.monotonic()
    missing = dict.fromkeys(hosts)
    trouble = None
    while missing and trouble is None:
        try:
            line = talk.hear(until)
        except (TimeoutError, ValueError):
            break
        if line is None:
            trouble = Trouble(NodeStatus.FAILED, _broken(talk))
            continue
        answer = json.loads(line)
        missing.pop(answer["host"], None)
        yield Arrival(
            answer["host"],
            ended_from_line(answer["ended"]),
            len(hosts),
            answer["seconds"],
        )

    seconds = time.monotonic() - begin
    for host in missing:
        yield Arrival(host, Ended(trouble=trouble), len(hosts), seconds)


def _broken(talk: Conversation) -> str:
    lines = map(clean, talk.complaint.decode("utf-8", "replace").splitlines())
    last = [line for line in lines if line][-1:]
    return ": ".join(["the connection to Ray broke", *last])

"""
How is a program on each node of a Ray cluster talked to?

This runs in the process that is connected to Ray.  For each node somebody
hands it a socket, and it carries what is said there to an actor on that node,
which has the program, and back.
"""

from __future__ import annotations

import json
import selectors
import socket

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import attrs

from .last_words import trouble_of
from .model import Trouble
from .ray_errands import Say, dead_node, trouble_of_ray


__all__ = ["Talks"]

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

"""
Who answers while the threads of the job are stopped, or blocked?

One thread waits at a Unix socket, and one more talks to each client.  They see
all requests of a client in their order, so a client that floods waits for
itself.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..wire import Feed, WireError, may_talk, pack, peer_uid
from .answers import QUIET, answer
from .audit import keep_record
from .settings import say
from .sockets import Opened, close_own, is_own, opened
from .unanswered import note_request


__all__ = ["finish_answers", "forget_clients", "listen", "serve"]

_MOST_CLIENTS = 16
_IDLE_S = 600
# Whoever is idle for so long makes room for somebody else.
_GIVES_WAY_S = 10.0
_SENDING_S = 30
# Requests of one client; the job shall have most of its time for itself.
_MOST_PER_SECOND = 200
_BLOCK = 1 << 16
_TYPED = ("line", "expression", "file")

_clients: dict[socket.socket, Opened] = {}
# When each was heard last, on the monotonic clock.
_heard: dict[socket.socket, float] = {}
_answering: set[socket.socket] = set()


def listen(path: Path) -> socket.socket:
    """
    Open a socket that only we can use.

    Args:
        path: Where; its folder is ours alone.

    Returns:
        The socket, which listens.

    Raises:
        OSError: It cannot be opened.
    """
    with suppress(FileNotFoundError):
        path.unlink()  # of a process with our number that has ended
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(_MOST_CLIENTS)
    except BaseException:
        listener.close()
        raise

    return listener


def serve(listener: socket.socket, folder: Path) -> threading.Thread:
    """
    Answer whoever connects, until the socket is closed.

    Args:
        listener: A socket that listens.

        folder: Where to keep a record of what is asked.

    Returns:
        The thread that does so; it does not keep the process alive.
    """
    thread = threading.Thread(
        target=_accept,
        args=(listener, opened(listener), folder),
        name="distdebug-agent",
        daemon=True,
    )
    thread.start()
    return thread


def _accept(listener: socket.socket, own: Opened, folder: Path) -> None:
    free = threading.BoundedSemaphore(_MOST_CLIENTS)
    while is_own(listener, own):
        try:
            client, _ = listener.accept()
        except OSError:
            time.sleep(0.1)  # no more files can be opened, for now
            continue
        if not free.acquire(blocking=False) and not _has_room(free):
            _turn_away(client)
            continue
        work = (client, folder, free)
        try:
            threading.Thread(
                target=_talk, args=work, name="distdebug-client", daemon=True
            ).start()
        except RuntimeError:  # no more threads
            client.close()
            free.release()
    listener.detach()


def _has_room(free: threading.BoundedSemaphore) -> bool:
    """
    Hang up on who has said nothing for the longest time, if it is long.
    """
    since = time.monotonic() - _GIVES_WAY_S
    idle = (c for c in _clients.copy() if c not in _answering)
    when, _, client = min(
        ((_heard.get(c, since), n, c) for n, c in enumerate(idle)),
        default=(math.inf, 0, None),
    )
    if client is None or when > since:
        return False

    with suppress(OSError, KeyError):
        if is_own(client, _clients[client]):
            client.shutdown(socket.SHUT_RDWR)
    return free.acquire(timeout=1.0)


def _turn_away(client: socket.socket) -> None:
    text = f"{_MOST_CLIENTS} others talk to this rank at the moment"
    with suppress(OSError):
        client.sendall(pack({"id": None, "error": text}))
    client.close()


def _talk(
    client: socket.socket, folder: Path, free: threading.BoundedSemaphore
) -> None:
    own = _clients[client] = opened(client)
    _heard[client] = time.monotonic()
    try:
        uid = peer_uid(client)
        if may_talk(uid):
            _limit(client)
            _converse(client, folder, uid)
        else:
            _refuse(folder, uid)
    except OSError:
        pass  # it has gone
    finally:
        _clients.pop(client, None)
        _heard.pop(client, None)
        _answering.discard(client)
        close_own(client, own)
        free.release()


def _limit(client: socket.socket) -> None:
    """
    Let the kernel wait, who does not mistake another file for this one.
    """
    for option, seconds in (
        (socket.SO_RCVTIMEO, _IDLE_S),
        (socket.SO_SNDTIMEO, _SENDING_S),
    ):
        limit = struct.pack("ll", seconds, 0)
        client.setsockopt(socket.SOL_SOCKET, option, limit)


def forget_clients() -> None:
    """
    Leave the conversations to the process that was forked.

    Otherwise a client would not see that it ends, as long as a child lives.
    """
    _answering.clear()
    _heard.clear()
    while _clients:
        close_own(*_clients.popitem())


def finish_answers(seconds: float) -> None:
    """
    Let who said "go on" hear that it did, though the program ends by that.

    Args:
        seconds: How long that may take.
    """
    end = time.monotonic() + seconds
    while _answering and time.monotonic() < end:
        time.sleep(0.005)


def _refuse(folder: Path, uid: int) -> None:
    say("user %s must not debug this process", uid)
    with suppress(Exception):
        keep_record(
            folder, uid=uid, pid=os.getpid(), key="", op="refused", line=""
        )


def _converse(client: socket.socket, folder: Path, uid: int) -> None:
    own = _clients[client]
    try:
        for request in _requests(client, own):
            _answering.add(client)
            note_request()
            reply = _obey(request, folder, uid)
            if not is_own(client, own):
                return
            client.sendall(_packed({"id": request.get("id"), **reply}))
            _answering.discard(client)
    except WireError as exc:
        client.sendall(pack({"id": None, "error": str(exc)}))


def _requests(client: socket.socket, own: Opened) -> Iterator[dict[str, Any]]:
    feed = Feed()
    count, second = 0, time.monotonic()
    while is_own(client, own) and (data := client.recv(_BLOCK)):
        _heard[client] = time.monotonic()
        for request in feed.take(data):
            count += 1
            if count > _MOST_PER_SECOND:
                time.sleep(max(second + 1.0 - time.monotonic(), 0.0))
                count, second = 0, time.monotonic()
            yield request


def _packed(reply: dict[str, Any]) -> bytes:
    try:
        return pack(reply)
    except WireError as exc:
        return pack({"id": reply["id"], "error": str(exc)})


def _obey(request: dict[str, Any], folder: Path, uid: int) -> dict[str, Any]:
    op = str(request.get("op"))[:100]
    if op not in QUIET:
        line = next((request[name] for name in _TYPED if name in request), "")
        try:
            keep_record(
                folder,
                uid=uid,
                pid=os.getpid(),
                key=str(request.get("keys") or ""),
                op=op,
                line=str(line),
            )
        except Exception as exc:  # noqa: BLE001 a hook forbids it
            return {"error": f"an audit hook forbids it: {exc}"}

    return answer(request)

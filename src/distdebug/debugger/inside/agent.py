"""
Who answers while the threads of the job are stopped, or blocked?

One thread waits at a Unix socket, and one more talks to each client.  They see
all requests of a client in their order, so a client that floods waits for
itself.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ..wire import Feed, WireError, may_talk, pack, peer_uid
from .answers import QUIET, answer
from .audit import keep_record
from .settings import say


__all__ = ["listen", "serve"]

_MOST_CLIENTS = 16
_IDLE_S = 600.0
# Requests of one client; the job shall have most of its time for itself.
_MOST_PER_SECOND = 200
_BLOCK = 1 << 16
_TYPED = ("line", "expression", "file")


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
        args=(listener, folder),
        name="distdebug-agent",
        daemon=True,
    )
    thread.start()
    return thread


def _accept(listener: socket.socket, folder: Path) -> None:
    free = threading.BoundedSemaphore(_MOST_CLIENTS)
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(0.1)  # no more files can be opened, for now
            continue
        if not free.acquire(blocking=False):
            client.close()
            continue
        work = (client, folder, free)
        try:
            threading.Thread(
                target=_talk, args=work, name="distdebug-client", daemon=True
            ).start()
        except RuntimeError:  # no more threads
            client.close()
            free.release()


def _talk(
    client: socket.socket, folder: Path, free: threading.BoundedSemaphore
) -> None:
    with closing(client), suppress(OSError):
        try:
            uid = peer_uid(client)
            if may_talk(uid):
                client.settimeout(_IDLE_S)
                _converse(client, folder, uid)
            else:
                _refuse(folder, uid)
        finally:
            free.release()


def _refuse(folder: Path, uid: int) -> None:
    say("user %s must not debug this process", uid)
    with suppress(Exception):
        keep_record(
            folder, uid=uid, pid=os.getpid(), key="", op="refused", line=""
        )


def _converse(client: socket.socket, folder: Path, uid: int) -> None:
    try:
        for request in _requests(client):
            reply = _obey(request, folder, uid)
            client.sendall(_packed({"id": request.get("id"), **reply}))
    except WireError as exc:
        client.sendall(pack({"id": None, "error": str(exc)}))


def _requests(client: socket.socket) -> Iterator[dict[str, Any]]:
    feed = Feed()
    count, second = 0, time.monotonic()
    while data := client.recv(_BLOCK):
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

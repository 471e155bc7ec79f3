"""
Who answers while the threads of the job are stopped, or blocked?

One thread waits at a Unix socket, and one more talks to each client.  They see
all requests of a client in their order, so a client that floods waits for
itself.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import socket
import struct
import sys
import threading
import time

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ..protocol import Feed, WireError, may_talk, pack, peer_uid
from .frames import (
    evaluate,
    place_of,
    place_text,
    stack_of_threads,
    user_frame,
    working_place,
)
from .prompt import current_prompt, missing_files, prompts, take_source
from .settings import DEFAULT_LIMIT_S, describe_process, pause_limit_s, say
from .stops import (
    failed_threads,
    find_stop,
    give_line,
    note_request,
    open_stop,
    open_stops,
    thread_name,
    wait_for_ends,
)


# Until when an interrupt is wanted, on the monotonic clock.
_wanted_until = 0.0
_callbacks: list[Any] = []  # C holds no reference to them
# With a second call in its queue, Python 3.11 spins for ever in the first that is
# traced; so this has something in it from when it is asked until it has called.
_MAY_SPIN = sys.version_info < (3, 12)
_asked: dict[str, object] = {}


def interrupt_main(wait_s: float) -> dict[str, Any]:
    """
    Stop the main thread at the next line it comes to.

    Who asks twice stops it once.  A step that it is just making ends where it
    is interrupted.

    Args:
        wait_s: How long to wait for that, in seconds.

    Returns:
        Plain data: the state, and where the main thread is.
    """
    global _wanted_until  # noqa: PLW0603 one thread of the process is main
    if _is_main_stopped():
        return {"state": "stopped", "output": "it is stopped already"}

    _wanted_until = time.monotonic() + (pause_limit_s() or DEFAULT_LIMIT_S)
    _ask_interpreter()
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if _is_main_stopped():
            return {"state": "stopped", "output": "it is stopped now"}
        time.sleep(0.01)

    return _why_not()


def cancel_interrupt() -> bool:
    """
    Do not stop the main thread after all.

    Returns:
        Whether it was about to be stopped.
    """
    global _wanted_until  # noqa: PLW0603 one thread of the process is main
    was_wanted = time.monotonic() < _wanted_until
    _wanted_until = 0.0
    return was_wanted


def _main() -> int:
    return threading.main_thread().ident or 0


def _is_main_stopped() -> bool:
    main = str(_main())
    return any(
        stop.key.split(":")[3] == main and stop.state == "stopped"
        for stop in open_stops()
    )


def _why_not() -> dict[str, Any]:
    where = _place()
    place = place_text(where)
    prompt = prompts().get(_main())
    if prompt and prompt.is_asking:
        text = f"obeys a command of the debugger, at {place}"
    elif prompt and not prompt.stop:
        text = (
            f"runs code of a framework, called at {place}; "
            "it stops at the next line of yours"
        )
    else:
        text = (
            f"blocked in native code, called at {place}; "
            "it stops when that returns"
        )
    return {"state": "running", "output": text, **where}


def _place() -> dict[str, Any]:
    frame = sys._current_frames().get(_main())  # noqa: SLF001 there is no other way
    if frame is None:
        return {"function": "?", "file": "?", "line": 0}
    return place_of(user_frame(frame))


def _ask_interpreter() -> None:
    token = object()
    if _MAY_SPIN and _asked.setdefault("by", token) is not token:
        return  # it is going to call
    if not _callbacks:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        _callbacks.append(kind(_on_main))
    if ctypes.pythonapi.Py_AddPendingCall(_callbacks[0], None) != 0:
        _asked.clear()
        msg = "the interpreter takes no more calls at the moment"
        raise RuntimeError(msg)


def _on_main(_: object) -> int:
    """
    Runs on the main thread, between two instructions of it.
    """
    try:
        _watch(sys._getframe(1))  # noqa: SLF001 whom we came between
    finally:
        # Last of all, and no call, after which another thread might run.
        if "by" in _asked:
            del _asked["by"]  # noqa: RUF051 pop() is a call
    return 0


def _watch(frame: FrameType) -> None:
    prompt = current_prompt()
    if cancel_interrupt() and not prompt.is_asking:
        prompt.watch(frame, partial(open_stop, "interrupt", None, None))


# What only looks at the list need not be kept for ever.
QUIET = frozenset({"list", "last"})

_LONGEST_LINE = 64_000
_LONGEST_SOURCE = 1 << 20
_LONGEST_WAIT_S = 600.0
# This word is obeyed by who is busy with another command, too.
_LET_GO = "detach"
_NOT_STOPPED = {"state": "ended", "error": "it is not stopped any more"}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """
    Obey one request.

    Args:
        request: Plain data with the operation *op*, and what that takes.

    Returns:
        Plain data.  *error* says why it was not obeyed.
    """
    obey = _OPERATIONS.get(str(request.get("op")))
    if obey is None:
        return {"error": f"unknown operation: {request.get('op')!r:.100}"}

    try:
        return obey(request)
    except TimeoutError:
        return {"error": "it takes too long; it is left behind"}
    except BaseException as exc:  # noqa: BLE001 told to who asked
        return {"error": f"{type(exc).__name__}: {exc}"[:_LONGEST_LINE]}


def _list(_: dict[str, Any]) -> dict[str, Any]:
    stops = [stop.to_dict() for stop in open_stops()]
    return {
        "process": describe_process(),
        "main": working_place(failed_threads()),
        "stops": stops,
        "missing": missing_files() if stops else [],
    }


def _command(request: dict[str, Any]) -> dict[str, Any]:
    line = _text(request, "line")
    if "\n" in line or "\r" in line:
        return {"error": "a command is one line"}

    keys, wait_s = _keys(request), _seconds(request, "wait", 5.0)
    if line.strip() == _LET_GO:
        return {"stops": _release(keys, wait_s)}

    return {"stops": dict(give_line(keys, line, wait_s))}


def _last(request: dict[str, Any]) -> dict[str, Any]:
    stops = {key: find_stop(key) for key in _keys(request)}
    return {
        "stops": {
            key: {"state": stop.state, "output": stop.text(), **stop.place}
            if stop
            else _NOT_STOPPED
            for key, stop in stops.items()
        }
    }


def _extend(request: dict[str, Any]) -> dict[str, Any]:
    seconds = _seconds(request, "seconds", 1800.0, most=7 * 86400.0)
    found: dict[str, Any] = {}
    for key in _keys(request):
        stop = find_stop(key)
        if stop is None:
            found[key] = _NOT_STOPPED
            continue
        stop.extend(seconds)
        text = f"waits for up to {seconds:.0f} s from now on"
        found[key] = {"state": stop.state, "output": text}

    return {"stops": found}


def _eval(request: dict[str, Any]) -> dict[str, Any]:
    text = evaluate(
        _text(request, "expression"),
        seconds=_seconds(request, "wait", 5.0),
        copy=bool(request.get("copy")),
        up=max(int(request.get("up") or 0), 0),
        failed=failed_threads(),
    )
    return {"output": text}


def _stack(request: dict[str, Any]) -> dict[str, Any]:
    threads = stack_of_threads(
        all_threads=bool(request.get("all")),
        failed=failed_threads(),
        stopped={stop.ident for stop in open_stops()},
        name_of=thread_name,
    )
    return {"threads": threads}


def _interrupt(request: dict[str, Any]) -> dict[str, Any]:
    return interrupt_main(_seconds(request, "wait", 1.0))


def _source(request: dict[str, Any]) -> dict[str, Any]:
    problem = take_source(
        _text(request, "file"), _text(request, "text", most=_LONGEST_SOURCE)
    )
    return {"error": problem} if problem else {"output": "thank you"}


def _resume(request: dict[str, Any]) -> dict[str, Any]:
    was_wanted = cancel_interrupt()
    held = prompts().values()
    stops = [stop for prompt in held if (stop := prompt.let_go())]
    if held:
        return _gone(wait_for_ends(stops, _seconds(request, "wait", 1.0)))

    told = "will not be" if was_wanted else "was not about to be"
    return {"output": f"it {told} stopped"}


def _release(keys: list[str], wait_s: float) -> dict[str, Any]:
    """
    Let threads go on, also those that are busy with a command.
    """
    held = {p.stop.key: p for p in prompts().values() if p.stop}
    stops = {k: held[k].let_go() if k in held else None for k in keys}
    wait_for_ends(filter(None, stops.values()), wait_s)
    return {
        key: _gone(stop.state == "ended") if stop else _NOT_STOPPED
        for key, stop in stops.items()
    }


def _gone(has_gone: bool) -> dict[str, Any]:  # noqa: FBT001 it is the answer
    if has_gone:
        return {"state": "ended", "output": ""}

    text = "it goes on when it has done what it was told before"
    return {"state": "running", "output": text}


_OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "list": _list,
    "command": _command,
    "last": _last,
    "extend": _extend,
    "eval": _eval,
    "stack": _stack,
    "interrupt": _interrupt,
    "resume": _resume,
    "source": _source,
}


def _text(
    request: dict[str, Any], name: str, *, most: int = _LONGEST_LINE
) -> str:
    value = request.get(name)
    if not isinstance(value, str) or len(value) > most:
        msg = f"{name} must be a text of at most {most} characters"
        raise TypeError(msg)

    return value


def _keys(request: dict[str, Any]) -> list[str]:
    keys = request.get("keys")
    if not isinstance(keys, list) or len(keys) > 1000:
        msg = "keys must be a list"
        raise TypeError(msg)

    return [str(key) for key in keys]


def _seconds(
    request: dict[str, Any],
    name: str,
    usual: float,
    *,
    most: float = _LONGEST_WAIT_S,
) -> float:
    value = float(request.get(name, usual))
    if not 0 <= value <= most:
        msg = f"{name} must be between 0 and {most:.0f} seconds"
        raise ValueError(msg)

    return value


_NAME = "audit.jsonl"
_MOST_BYTES = 16 << 20
_LONGEST = 4000


def keep_record(  # noqa: PLR0913 all of them are written
    folder: Path, *, uid: int, pid: int, key: str, op: str, line: str
) -> None:
    """
    Write down a command before it is obeyed.

    Args:
        folder: Where the sockets are.

        uid: The user who asks.

        pid: This process.

        key: Which stops are meant.

        op: What kind of command it is.

        line: What was typed.

    Raises:
        Exception: A hook of :func:`sys.addaudithook` forbids it.
    """
    sys.audit("distdebug.command", op, key, line)
    record = {
        "time": round(time.time(), 3),
        "uid": uid,
        "pid": pid,
        "key": key[:_LONGEST],
        "op": op,
        "line": line[:_LONGEST],
    }
    # A full disk must not keep anybody from letting a rank go on.
    with suppress(OSError):
        _append(folder / _NAME, json.dumps(record).encode() + b"\n")


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
        is_full = os.fstat(fd).st_size > _MOST_BYTES
    finally:
        os.close(fd)
    if is_full:
        path.replace(path.with_name(f"{_NAME}.1"))


# What the kernel knows a file by: its device, and its number there.
Opened = tuple[int, int]


def opened(one: socket.socket) -> Opened:
    """
    What is open under the number of a socket?

    Args:
        one: The socket.

    Returns:
        What tells it from every other file.

    Raises:
        OSError: Nothing is.
    """
    status = os.fstat(one.fileno())
    return status.st_dev, status.st_ino


def is_own(one: socket.socket, was: Opened) -> bool:
    """
    Is a socket what it was?

    Args:
        one: The socket.

        was: What was open when it was ours.

    Returns:
        Whether it may be used.
    """
    try:
        return opened(one) == was
    except OSError:
        return False


def close_own(one: socket.socket, was: Opened) -> None:
    """
    Close a socket, unless it is somebody else's now.

    Args:
        one: The socket.

        was: What was open when it was ours.
    """
    if is_own(one, was):
        one.close()
    else:
        one.detach()


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

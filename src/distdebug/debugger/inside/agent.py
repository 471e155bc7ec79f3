"""
Debugger agent: the threads in the job that answer requests of clients.

One thread accepts connections at a Unix socket, and one thread serves each
client.  It handles the requests of its client in order, so a client that
floods it only delays itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import sys
import threading
import time

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

from ..._in_job import OwnDescriptor, OwnThread, stacks_of_threads
from ..protocol import (
    Message,
    MessageDecoder,
    WireError,
    encode_answer,
    encode_message,
    is_allowed_peer,
    peer_uid,
)
from .frames import (
    evaluate,
    frame_place,
    from_user_frame,
    place_text,
    stack_of_threads,
    working_place,
)
from .prompt import (
    Prompt,
    add_source,
    current_prompt,
    missing_files,
    prompts,
)
from .settings import (
    DEFAULT_LIMIT_S,
    describe_process,
    log_warning,
    pause_limit_s,
)
from .stops import (
    NOT_STOPPED,
    Stop,
    count_request,
    give_line,
    open_stops,
    wait_for_ends,
)


# When a pending interrupt expires, on the monotonic clock; 0 if none is.
_interrupt_deadline = 0.0
_callbacks: list[Any] = []  # C holds no reference to them
# With a second pending call, Python 3.11 spins for ever in the first if that is
# traced; so this is not empty while one is scheduled.
_MAY_SPIN = sys.version_info < (3, 12)
_pending_call: dict[str, object] = {}


def interrupt_main(wait_s: float) -> Message:
    """
    Stop the main thread at the next line of the user's code.

    A second request before the stop has no effect.  A step that is in progress
    ends where the interrupt stops it.  A command of the debugger is not
    interrupted: the exception that ends it could be raised in the pending
    call, from where it cannot propagate.

    Args:
        wait_s: How long to wait for the stop, in seconds.

    Returns:
        Plain data: the state, and the place of the main thread.
    """
    global _interrupt_deadline  # noqa: PLW0603 there is one main thread
    if _is_main_stopped():
        return {"state": "stopped", "output": "it is stopped already"}

    if not _obeys_command(prompts().get(_main_ident())):
        _interrupt_deadline = time.monotonic() + (
            pause_limit_s() or DEFAULT_LIMIT_S
        )
        _schedule_interrupt()
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if _is_main_stopped():
            return {"state": "stopped", "output": "it is stopped now"}
        time.sleep(0.01)

    return _running_state()


def cancel_interrupt() -> bool:
    """
    Cancel a pending interrupt; return whether there was one.
    """
    global _interrupt_deadline  # noqa: PLW0603 there is one main thread
    was_pending = time.monotonic() < _interrupt_deadline
    _interrupt_deadline = 0.0
    return was_pending


def _main_ident() -> int:
    return threading.main_thread().ident or 0


def _is_main_stopped() -> bool:
    main = _main_ident()
    return any(s.ident == main and s.state == "stopped" for s in open_stops())


def _obeys_command(prompt: Prompt | None) -> bool:
    return prompt is not None and prompt.is_interacting


def _running_state() -> Message:
    where = _main_place()
    place = place_text(where)
    prompt = prompts().get(_main_ident())
    if _obeys_command(prompt):
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


def _main_place() -> Message:
    stack = stacks_of_threads().get(_main_ident())
    if not stack:
        return {"function": "?", "file": "?", "line": 0}
    frame, _ = from_user_frame(stack)[0]
    return frame_place(frame)


def _schedule_interrupt() -> None:
    token = object()
    if _MAY_SPIN and _pending_call.setdefault("by", token) is not token:
        return  # one is scheduled
    if not _callbacks:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        _callbacks.append(kind(_pending_interrupt))
    if ctypes.pythonapi.Py_AddPendingCall(_callbacks[0], None) != 0:
        _pending_call.clear()
        msg = "the interpreter takes no more calls at the moment"
        raise RuntimeError(msg)


def _pending_interrupt(_: object) -> int:
    """
    Start tracing; runs on the main thread, between two instructions.
    """
    try:
        _start_tracing(sys._getframe(1))  # noqa: SLF001 the interrupted frame
    finally:
        # This must be last, and no call: a call may switch to another thread.
        if "by" in _pending_call:
            del _pending_call["by"]  # noqa: RUF051 pop() is a call
    return 0


def _start_tracing(frame: FrameType) -> None:
    prompt = current_prompt()
    if cancel_interrupt() and not prompt.is_interacting:
        prompt.watch(frame, partial(Stop, "interrupt"))


# Requests that change nothing, and are not logged.
UNAUDITED = frozenset({"list", "last"})

_MAX_LINE = 64_000
_MAX_SOURCE = 1 << 20
_MAX_WAIT_S = 600.0
# The command that a thread accepts while it runs another one.
_DETACH = "detach"


def handle_request(request: Message) -> Message:
    """
    Handle one request.

    Args:
        request: Plain data with the operation *op* and its arguments.

    Returns:
        Plain data.  *error* is the reason if the request failed.
    """
    operation = _OPERATIONS.get(str(request.get("op")))
    if operation is None:
        return {"error": f"unknown operation: {request.get('op')!r:.100}"}

    try:
        return operation(request)
    except TimeoutError:
        return {"error": "it takes too long; it is left behind"}
    except BaseException as exc:  # noqa: BLE001 sent to the client
        return {"error": f"{type(exc).__name__}: {exc}"[:_MAX_LINE]}


def _list(_: Message) -> Message:
    stops = [stop.to_dict() for stop in open_stops()]
    return {
        "process": describe_process(),
        "main": working_place(),
        "stops": stops,
        "missing": missing_files() if stops else [],
    }


def _command(request: Message) -> Message:
    line = _text(request, "line")
    if "\n" in line or "\r" in line:
        return {"error": "a command is one line"}

    keys, wait_s = _keys(request), _seconds(request, "wait", 5.0)
    if line.strip() == _DETACH:
        return {"stops": _release(keys, wait_s)}

    return {"stops": give_line(keys, line, wait_s)}


def _last(request: Message) -> Message:
    return _for_each_stop(request, Stop.output)


def _extend(request: Message) -> Message:
    seconds = _seconds(request, "seconds", 1800.0, maximum=7 * 86400.0)

    def extend(stop: Stop) -> Message:
        stop.extend(seconds)
        text = f"waits for up to {seconds:.0f} s from now on"
        return {"state": stop.state, "output": text}

    return _for_each_stop(request, extend)


def _for_each_stop(
    request: Message, answer: Callable[[Stop], Message]
) -> Message:
    current = {stop.key: stop for stop in open_stops()}
    stops = {key: current.get(key) for key in _keys(request)}
    return {
        "stops": {k: answer(s) if s else NOT_STOPPED for k, s in stops.items()}
    }


def _eval(request: Message) -> Message:
    text = evaluate(
        _text(request, "expression"),
        seconds=_seconds(request, "wait", 5.0),
        copy=bool(request.get("copy")),
        up=max(int(request.get("up") or 0), 0),
    )
    return {"output": text}


def _stack(request: Message) -> Message:
    threads = stack_of_threads(
        all_threads=bool(request.get("all")),
        stopped={stop.ident for stop in open_stops()},
    )
    return {"threads": threads}


def _interrupt(request: Message) -> Message:
    return interrupt_main(_seconds(request, "wait", 1.0))


def _source(request: Message) -> Message:
    problem = add_source(
        _text(request, "file"), _text(request, "text", maximum=_MAX_SOURCE)
    )
    return {"error": problem} if problem else {"output": "thank you"}


def _resume(request: Message) -> Message:
    was_pending = cancel_interrupt()
    active = prompts().values()
    stops = [stop for prompt in active if (stop := prompt.release())]
    if active:
        return _release_state(
            wait_for_ends(stops, _seconds(request, "wait", 1.0))
        )

    verb = "will not be" if was_pending else "was not about to be"
    return {"output": f"it {verb} stopped"}


def _release(keys: list[str], wait_s: float) -> Message:
    """
    Let threads continue, even while they run a command.
    """
    active = {p.stop.key: p for p in prompts().values() if p.stop}
    stops = {k: active[k].release() if k in active else None for k in keys}
    wait_for_ends(filter(None, stops.values()), wait_s)
    return {
        key: _release_state(stop.state == "ended") if stop else NOT_STOPPED
        for key, stop in stops.items()
    }


def _release_state(has_ended: bool) -> Message:  # noqa: FBT001 a result
    if has_ended:
        return {"state": "ended", "output": ""}

    text = (
        "its previous command is still running; it continues when that "
        "returns, as native code cannot be interrupted"
    )
    return {"state": "running", "output": text}


_OPERATIONS: dict[str, Callable[[Message], Message]] = {
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


def _text(request: Message, name: str, *, maximum: int = _MAX_LINE) -> str:
    value = request.get(name)
    if not isinstance(value, str) or len(value) > maximum:
        msg = f"{name} must be a text of at most {maximum} characters"
        raise TypeError(msg)

    return value


def _keys(request: Message) -> list[str]:
    keys = request.get("keys")
    if not isinstance(keys, list) or len(keys) > 1000:
        msg = "keys must be a list"
        raise TypeError(msg)

    return [str(key) for key in keys]


def _seconds(
    request: Message,
    name: str,
    default: float,
    *,
    maximum: float = _MAX_WAIT_S,
) -> float:
    value = float(request.get(name, default))
    if not 0 <= value <= maximum:
        msg = f"{name} must be between 0 and {maximum:.0f} seconds"
        raise ValueError(msg)

    return value


_AUDIT_FILE = "audit.jsonl"
_MAX_AUDIT_BYTES = 16 << 20
_MAX_AUDIT_TEXT = 4000


def write_audit_record(
    folder: Path, uid: int, op: str, *, key: str = "", line: str = ""
) -> None:
    """
    Write a command to the audit log before it runs.

    Args:
        folder: The folder of the sockets, and of the log.

        uid: The user who sent it.

        op: The operation.

        key: The keys of the stops.

        line: The typed text.

    Raises:
        Exception: A hook of :func:`sys.addaudithook` rejects it.
    """
    sys.audit("distdebug.command", op, key, line)
    record = {
        "time": round(time.time(), 3),
        "uid": uid,
        "pid": os.getpid(),
        "key": key[:_MAX_AUDIT_TEXT],
        "op": op,
        "line": line[:_MAX_AUDIT_TEXT],
    }
    # A full disk must not keep a client from releasing a rank.
    with suppress(OSError):
        _append_audit_line(
            folder / _AUDIT_FILE, json.dumps(record).encode() + b"\n"
        )


def _append_audit_line(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
        is_full = os.fstat(fd).st_size > _MAX_AUDIT_BYTES
    finally:
        os.close(fd)
    if is_full:
        path.replace(path.with_name(f"{_AUDIT_FILE}.1"))


class OwnSocket(OwnDescriptor):
    """
    A socket of the debugger, whose descriptor code of the user may close.

    Args:
        sock: A socket; another object takes its place.

    Raises:
        OSError: The descriptor is closed already.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.detach())
        self.socket = socket.socket(fileno=self.fd)

    def shut_down(self) -> None:
        """
        Wake up the thread that waits at this socket.
        """
        with suppress(OSError):
            if self.is_intact():
                self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """
        Close the socket, unless its descriptor refers to another file by now.
        """
        if self.is_intact():
            self.socket.close()
        else:
            self.socket.detach()


class _Client(OwnSocket):
    """
    A connected client.

    Attributes:
        last_received: The time of its last data, on the monotonic clock.

        is_answered: Whether one of its requests is being answered.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.last_received = time.monotonic()
        self.is_answered = False


_MAX_CLIENTS = 16
_CLIENT_IDLE_S = 600
# The program may have closed the socket, which does not end a poll.
_CHECK_MS = 10_000
# A client that is idle for longer may be replaced by a new one.
_MIN_IDLE_S = 10.0
_SEND_TIMEOUT_S = 30
# Per client; the job needs most of the time of its interpreter.
_MAX_REQUESTS_PER_S = 200
_RECV_BYTES = 1 << 16
_AUDITED_FIELDS = ("line", "expression", "file")

_clients: set[_Client] = set()


def listen(path: Path) -> socket.socket:
    """
    Open a listening socket of mode 0600.

    Args:
        path: A path in a private folder.

    Raises:
        OSError: The socket cannot be opened.
    """
    with suppress(FileNotFoundError):
        path.unlink()  # left by an ended process with the same PID
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(_MAX_CLIENTS)
    except BaseException:
        listener.close()
        raise

    return listener


def serve(listener: OwnSocket, folder: Path) -> None:
    """
    Start a daemon thread that serves clients until the socket is shut down.

    It closes the socket then: while it waits, the number must not be reused.

    Args:
        listener: A listening socket.

        folder: The folder for the audit log.
    """
    # While it waits, accept itself would hold the lowest free descriptor.
    listener.socket.settimeout(0)
    client_comes = select.poll()
    client_comes.register(listener.socket, select.POLLIN)
    accept = partial(_accept, listener, client_comes, folder)
    OwnThread(accept, "distdebug-agent").start()


def _accept(
    listener: OwnSocket, client_comes: select.poll, folder: Path
) -> None:
    while listener.is_intact():
        events = client_comes.poll(_CHECK_MS)
        if any(event & select.POLLHUP for _, event in events):
            break
        if not (events and listener.is_intact()):
            continue
        try:
            client = _Client(listener.socket.accept()[0])
        except OSError:
            time.sleep(0.1)  # too many open files, for now
            continue
        if len(_clients) >= _MAX_CLIENTS and not _evict_idle_client():
            _reject_client(client)
            continue
        _clients.add(client)
        try:
            serve_client = partial(_serve_client, client, folder)
            OwnThread(serve_client, "distdebug-client").start()
        except RuntimeError:  # no more threads
            _forget_client(client)
    listener.close()


def _evict_idle_client() -> bool:
    """
    Disconnect the client that is idle for longest, if long enough.
    """
    idle = [c for c in _clients.copy() if not c.is_answered]
    client = min(idle, key=attrgetter("last_received"), default=None)
    since = time.monotonic() - _MIN_IDLE_S
    if client is None or client.last_received > since:
        return False

    _clients.discard(client)
    client.shut_down()  # its thread closes it
    return True


def _forget_client(client: _Client) -> None:
    _clients.discard(client)
    client.close()


def _reject_client(client: _Client) -> None:
    text = (
        f"it is busy, as {_MAX_CLIENTS} others talk to it; try again in "
        f"{_MIN_IDLE_S:.0f} s"
    )
    with suppress(OSError):
        client.socket.sendall(encode_message({"id": None, "error": text}))
    client.close()


def _serve_client(client: _Client, folder: Path) -> None:
    try:
        uid = peer_uid(client.socket)
        if is_allowed_peer(uid):
            _set_timeouts(client.socket)
            _answer_requests(client, folder, uid)
        else:
            _log_refused(folder, uid)
    except OSError:
        pass  # the client has disconnected
    finally:
        _forget_client(client)


def _set_timeouts(client: socket.socket) -> None:
    """
    Set the timeouts in the kernel.

    Those of Python would poll the descriptor, whose number may be reused.
    """
    for option, seconds in (
        (socket.SO_RCVTIMEO, _CLIENT_IDLE_S),
        (socket.SO_SNDTIMEO, _SEND_TIMEOUT_S),
    ):
        limit = struct.pack("ll", seconds, 0)
        client.setsockopt(socket.SOL_SOCKET, option, limit)


def forget_clients() -> None:
    """
    Close the connections after a fork: they belong to the parent.

    Otherwise a client would not notice the end of the parent while a child
    lives.
    """
    while _clients:
        _clients.pop().close()


def finish_answers(seconds: float) -> None:
    """
    Wait until the last answers are sent, before the program ends.

    Args:
        seconds: The limit.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(client.is_answered for client in _clients.copy()):
            return
        time.sleep(0.005)


def _log_refused(folder: Path, uid: int) -> None:
    log_warning("user %s must not debug this process", uid)
    with suppress(Exception):
        write_audit_record(folder, uid, "refused")


def _answer_requests(client: _Client, folder: Path, uid: int) -> None:
    try:
        for request in _requests(client):
            client.is_answered = True
            count_request()
            reply = _audit_and_handle(request, folder, uid)
            if not client.is_intact():
                return
            data = encode_answer({"id": request.get("id"), **reply})
            client.socket.sendall(data)
            client.is_answered = False
    except WireError as exc:
        error = {"id": None, "error": str(exc)}
        client.socket.sendall(encode_message(error))


def _requests(client: _Client) -> Iterator[Message]:
    decoder = MessageDecoder()
    count, second = 0, time.monotonic()
    while client.is_intact() and (data := client.socket.recv(_RECV_BYTES)):
        client.last_received = time.monotonic()
        for request in decoder.decode(data):
            count += 1
            if count > _MAX_REQUESTS_PER_S:
                time.sleep(max(second + 1.0 - time.monotonic(), 0.0))
                count, second = 0, time.monotonic()
            yield request


def _audit_and_handle(request: Message, folder: Path, uid: int) -> Message:
    op = str(request.get("op"))[:100]
    if op not in UNAUDITED:
        line = next(
            (request[name] for name in _AUDITED_FIELDS if name in request), ""
        )
        try:
            key = str(request.get("keys") or "")
            write_audit_record(folder, uid, op, key=key, line=str(line))
        except Exception as exc:  # noqa: BLE001 raised by a hook
            return {"error": f"an audit hook forbids it: {exc}"}

    return handle_request(request)

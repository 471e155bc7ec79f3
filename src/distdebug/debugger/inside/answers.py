"""
What does a rank answer to a request?
"""

from __future__ import annotations

import sys
import threading

from collections.abc import Callable
from typing import Any

from .labels import describe_process
from .looking import evaluate, place_of, stack_of_threads, user_frame
from .pending import cancel_interrupt, interrupt_main
from .sources import missing_files, take_source
from .stops import find_stop, give_line, open_stops


__all__ = ["QUIET", "answer"]

# What only looks at the list need not be kept for ever.
QUIET = frozenset({"list", "last"})

_LONGEST_LINE = 64_000
_LONGEST_SOURCE = 1 << 20
_LONGEST_WAIT_S = 600.0


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
    except Exception as exc:  # noqa: BLE001 told to who asked
        return {"error": f"{type(exc).__name__}: {exc}"[:_LONGEST_LINE]}


def _list(_: dict[str, Any]) -> dict[str, Any]:
    stops = [stop.to_dict() for stop in open_stops()]
    main = threading.main_thread().ident or 0
    frame = sys._current_frames().get(main)  # noqa: SLF001 there is no other way
    return {
        "process": describe_process(),
        "main": place_of(user_frame(frame)) if frame else {},
        "stops": stops,
        "missing": missing_files() if stops else [],
    }


def _command(request: dict[str, Any]) -> dict[str, Any]:
    line = _text(request, "line")
    if "\n" in line or "\r" in line:
        return {"error": "a command is one line"}

    found = give_line(_keys(request), line, _seconds(request, "wait", 5.0))
    return {"stops": dict(found)}


def _last(request: dict[str, Any]) -> dict[str, Any]:
    stops = {key: find_stop(key) for key in _keys(request)}
    return {
        "stops": {
            key: {"state": stop.state, "output": stop.text(), **stop.place}
            if stop
            else {"state": "ended", "error": "it is not stopped any more"}
            for key, stop in stops.items()
        }
    }


def _extend(request: dict[str, Any]) -> dict[str, Any]:
    seconds = _seconds(request, "seconds", 1800.0, most=7 * 86400.0)
    found: dict[str, Any] = {}
    for key in _keys(request):
        stop = find_stop(key)
        if stop is None:
            found[key] = {
                "state": "ended",
                "error": "it is not stopped any more",
            }
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
        up=min(int(request.get("up") or 0), 1000),
    )
    return {"output": text}


def _stack(request: dict[str, Any]) -> dict[str, Any]:
    return {"threads": stack_of_threads(all_threads=bool(request.get("all")))}


def _interrupt(request: dict[str, Any]) -> dict[str, Any]:
    return interrupt_main(_seconds(request, "wait", 1.0))


def _source(request: dict[str, Any]) -> dict[str, Any]:
    problem = take_source(
        _text(request, "file"), _text(request, "text", most=_LONGEST_SOURCE)
    )
    return {"error": problem} if problem else {"output": "thank you"}


def _resume(_: dict[str, Any]) -> dict[str, Any]:
    if cancel_interrupt():
        return {"output": "it will not be stopped"}
    return {"output": "it was not about to be stopped"}


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

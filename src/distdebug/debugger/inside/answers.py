"""
What does a rank answer to a request?
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .labels import describe_process
from .looking import evaluate, stack_of_threads, working_place
from .pending import cancel_interrupt, interrupt_main
from .prompt import prompts
from .sources import missing_files, take_source
from .stops import (
    failed_threads,
    find_stop,
    give_line,
    open_stops,
    thread_name,
    wait_for_ends,
)


__all__ = ["QUIET", "answer"]

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

"""
How does one command run on every node of a job?
"""

from __future__ import annotations

import subprocess
import tempfile
import time

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import IO, Literal

import attrs

from .._text import clean, without_controls
from ..errors import NodesError
from .here import Here
from .model import Engine, NodeResult, NodeStatus, Place
from .parcel import Parcel, pack, unpack_answer
from .process import Bound, Ended, run_process


__all__ = ["run_on_nodes"]

_MOST_OUTPUT = 8000


def run_on_nodes(
    function_or_argv: Callable[[], object] | Sequence[str],
    *,
    engine: Literal["here"] | Engine = "here",
    timeout_s: float = 120.0,
    tell: Callable[[int, int], object] = lambda _done, _total: None,
) -> Iterator[NodeResult]:
    """
    What does each node of a job answer?

    A node that does not answer costs its own result only.  Nothing starts
    before the first result is asked for, and what still runs when the iterator
    is closed is ended.

    Args:
        function_or_argv: What to run: a function without arguments that
            returns JSON data, sent by value; or a command and its arguments.

        engine: What brings it to the nodes; by default it runs on this one.

        timeout_s: How long each node may take, in seconds.

        tell: Called with how many of how many nodes are done.

    Returns:
        One result per node, as they come.

    Raises:
        NodesError: The nodes are not known, the function cannot travel, or
            the command is none.
    """
    if isinstance(engine, str):
        if engine != "here":
            msg = f"there is no engine {engine!r}"
            raise NodesError(msg, remedy="say 'here', or give an engine")
        engine = Here()
    errand = _errand(function_or_argv, engine.python, timeout_s)
    bound = Bound(timeout_s=timeout_s, grace_s=engine.grace_s)
    asking = _Asking(engine=engine, errand=errand, bound=bound)
    return _results(asking, engine.places(), tell)


@attrs.frozen
class _Errand:
    """
    What is run on every node.
    """

    argv: tuple[str, ...]
    parcel: Parcel | None = None


@attrs.frozen(kw_only=True)
class _Asking:
    """
    What asking one node takes.
    """

    engine: Engine
    errand: _Errand
    bound: Bound


def _errand(
    work: Callable[[], object] | Sequence[str], python: str, timeout_s: float
) -> _Errand:
    if callable(work):
        parcel = pack(work, timeout_s)
        return _Errand((python, *parcel.arguments), parcel)
    if isinstance(work, str) or not work:
        msg = f"{work!r} is no command"
        raise NodesError(msg, remedy="give a list: the program, its arguments")
    return _Errand(tuple(work))


def _results(
    asking: _Asking,
    places: Sequence[Place],
    tell: Callable[[int, int], object],
) -> Iterator[NodeResult]:
    workers = max(1, min(asking.engine.at_once, len(places)))
    with ThreadPoolExecutor(workers) as pool:
        try:
            waiting = [pool.submit(_ask, asking, place) for place in places]
            for done, future in enumerate(as_completed(waiting), 1):
                tell(done, len(places))
                yield future.result()
        finally:
            asking.bound.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _ask(asking: _Asking, place: Place) -> NodeResult:
    begin = time.monotonic()
    try:
        with tempfile.TemporaryFile() as file:
            ended = run_process(
                [*place.prefix, *asking.errand.argv],
                environment=asking.engine.environment(),
                bound=asking.bound,
                stdin=_stdin(file, asking.errand.parcel),
            )
    except (OSError, ValueError) as exc:
        ended = None
        result = NodeResult(
            host=place.host,
            status=NodeStatus.FAILED,
            reason=f"it could not be started: {exc}",
            remedy="see whether the command exists and may be run here",
        )
    if ended is not None:
        result = _result(asking, place.host, ended)
    return attrs.evolve(result, seconds=time.monotonic() - begin)


def _stdin(file: IO[bytes], parcel: Parcel | None) -> IO[bytes] | int:
    if parcel is None:
        return subprocess.DEVNULL
    file.write(parcel.data)
    file.seek(0)
    return file


def _result(asking: _Asking, host: str, ended: Ended) -> NodeResult:
    output = ended.output.decode("utf-8", "replace")
    complaint = ended.complaint.decode("utf-8", "replace")
    answer = None
    if asking.errand.parcel:
        answer, output = unpack_answer(asking.errand.parcel, output)
    shown = without_controls(f"{output.strip()}\n{complaint.strip()}").strip()
    result = NodeResult(
        host=host, status=NodeStatus.OK, output=shown[-_MOST_OUTPUT:]
    )

    # An answer is one, however the way back ended.
    if answer is not None:
        return _answered(result, answer)
    if ended.status == 0 and not asking.errand.parcel:
        return result
    return _failed(asking, result, ended.status, complaint)


def _answered(result: NodeResult, answer: dict[str, object]) -> NodeResult:
    if "value" in answer:
        return attrs.evolve(result, value=answer["value"])
    return attrs.evolve(
        result,
        status=NodeStatus.FAILED,
        reason=clean(str(answer.get("reason"))),
        remedy=clean(str(answer.get("remedy") or "")),
    )


def _failed(
    asking: _Asking, result: NodeResult, status: int | None, complaint: str
) -> NodeResult:
    trouble = asking.engine.explain(complaint)
    if trouble:
        return attrs.evolve(
            result,
            status=trouble.status,
            reason=clean(trouble.reason),
            remedy=trouble.remedy,
        )
    if status is None:
        return attrs.evolve(
            result,
            status=NodeStatus.TIMED_OUT,
            reason=f"no answer after {asking.bound.timeout_s:g} s",
            remedy="give it more time, or look at the node itself",
        )
    return attrs.evolve(
        result,
        status=NodeStatus.FAILED,
        reason=_last_words(status, complaint),
        remedy=_missing_remedy(complaint),
    )


def _last_words(status: int, complaint: str) -> str:
    lines = [line for line in map(clean, complaint.splitlines()) if line]
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    return f"it ended with {ended}" + (f": {lines[-1]}" if lines else "")


def _missing_remedy(complaint: str) -> str:
    if "No module named" in complaint:
        return "install distdebug on the node, or in its container"
    return ""

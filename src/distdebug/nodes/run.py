"""
How does one command run on every node of a job?
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import secrets
import socket
import sys
import threading
import time

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import attrs

from .._text import clean, without_controls
from ..errors import NodesError
from .process import run_errand
from .results import (
    Arrival,
    Bound,
    Ended,
    Engine,
    NodeResult,
    NodeStatus,
    trouble_of,
)


class Parcel(NamedTuple):
    """
    A function that is ready to travel.

    Attributes:
        data: What the child reads from its standard input.

        arguments: What stands behind ``python`` on the node.

        mark: What stands before the answer.
    """

    data: bytes
    arguments: tuple[str, ...]
    mark: str


def pack(function: Callable[[], object], timeout_s: float) -> Parcel:
    """
    How can this function run where its module is unknown?

    Args:
        function: Takes no argument and returns JSON data.

        timeout_s: How long it may take, in seconds.

    Returns:
        The function by value, with everything it needs of its own module.

    Raises:
        NodesError: It holds something that cannot travel.
    """
    import cloudpickle

    try:
        with _by_value(function):
            pickled: bytes = cloudpickle.dumps(function)
    except Exception as exc:
        msg = f"the function cannot travel: {type(exc).__name__}: {exc}"
        raise NodesError(
            msg,
            remedy="let it open files, locks, and connections by itself, "
            "on the node",
        ) from exc

    data = base64.b64encode(pickled)
    mark = f"distdebug-{secrets.token_hex(16)}"
    return Parcel(
        data,
        (
            # Not even a json.py in the folder of the job gets in between.
            "-P",
            "-u",
            "-m",
            "distdebug.nodes.child",
            _python_version(),
            hashlib.sha256(data).hexdigest(),
            mark,
            str(max(1, round(timeout_s))),
        ),
        mark,
    )


def unpack_answer(mark: str, output: str) -> tuple[Any, str]:
    """
    What did a child answer that was sent a mark?

    Args:
        mark: What stands before the answer.

        output: All that it printed.

    Returns:
        The answer, a mapping, or ``None`` if there is none; and what was
        printed besides.
    """
    before, found, rest = output.rpartition(f"{mark} ")
    line, _, after = rest.partition("\n")
    if not found:
        return None, output
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else None, before + after


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@contextmanager
def _by_value(function: Callable[[], object]) -> Iterator[None]:
    """
    Let what stands in the function's own module travel with it.
    """
    import cloudpickle

    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__module__", None) or "__main__"
    module = sys.modules.get(name)
    room = name.partition(".")[0]
    known = room in {"__main__", "distdebug"} | sys.stdlib_module_names
    # What somebody registered before stays so.
    if (
        known
        or not module
        or name in cloudpickle.list_registry_pickle_by_value()
    ):
        yield
        return

    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@attrs.frozen(kw_only=True)
class Here:
    """
    The node that we are on.

    Attributes:
        python: The Python that runs functions; by default this one.
    """

    python: str = sys.executable

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[Arrival]:
        """
        What does a command leave here?

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take, in seconds.

        Yields:
            The one answer.
        """
        begin = time.monotonic()
        ended = run_errand(
            argv,
            environment=os.environ,
            bound=Bound(timeout_s=timeout_s),
            data=data,
        )
        seconds = time.monotonic() - begin
        yield Arrival(socket.gethostname(), ended, seconds=seconds)


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
        NodesError: The function cannot travel, or the command is none; with
            the first result: the nodes are not known.
    """
    if isinstance(engine, str):
        if engine != "here":
            msg = f"there is no engine {engine!r}"
            raise NodesError(msg, remedy="say 'here', or give an engine")
        engine = Here()
    work, parcel = function_or_argv, None
    if callable(work):
        parcel = pack(work, timeout_s)
        work = (engine.python, *parcel.arguments)
    elif isinstance(work, str) or not work:
        msg = f"{work!r} is no command"
        raise NodesError(msg, remedy="give a list: the program, its arguments")
    arrivals = engine.run(
        tuple(work), data=parcel and parcel.data, timeout_s=timeout_s
    )
    return _results(arrivals, parcel, timeout_s, tell)


def _results(
    arrivals: Iterator[Arrival],
    parcel: Parcel | None,
    timeout_s: float,
    tell: Callable[[int, int], object],
) -> Iterator[NodeResult]:
    try:
        for done, arrival in enumerate(arrivals, 1):
            tell(done, arrival.total)
            yield _result(arrival, parcel, timeout_s)
    finally:
        # Also where nobody counts references, and when *tell* fails.
        if isinstance(arrivals, Generator):
            arrivals.close()


def _result(
    arrival: Arrival, parcel: Parcel | None, timeout_s: float
) -> NodeResult:
    ended = arrival.ended
    output = ended.output.decode("utf-8", "replace")
    complaint = ended.complaint.decode("utf-8", "replace")
    answer = None
    if parcel:
        answer, output = unpack_answer(parcel.mark, output)
    shown = without_controls(f"{output.strip()}\n{complaint.strip()}").strip()
    result = NodeResult(
        host=clean(arrival.host),
        status=NodeStatus.OK,
        output=shown[-_MOST_OUTPUT:],
        seconds=arrival.seconds,
    )

    # An answer is one, however the way back ended.
    if answer is not None:
        return _answered(result, answer)
    if ended.status == 0 and not parcel:
        return result
    trouble = ended.trouble or trouble_of(ended.status, complaint, timeout_s)
    return attrs.evolve(
        result,
        status=trouble.status,
        reason=clean(trouble.reason),
        remedy=clean(trouble.remedy),
    )


def _answered(result: NodeResult, answer: dict[str, object]) -> NodeResult:
    if "value" in answer:
        return attrs.evolve(result, value=answer["value"])
    return attrs.evolve(
        result,
        status=NodeStatus.FAILED,
        reason=clean(str(answer.get("reason"))),
        remedy=clean(str(answer.get("remedy") or "")),
    )


P = TypeVar("P")


def side_by_side(
    ask: Callable[[P], Ended],
    places: Mapping[str, P],
    *,
    at_once: int,
    stop: threading.Event,
) -> Iterator[Arrival]:
    """
    What does each node answer, as they come?

    Args:
        ask: What asks one node.

        places: What tells it which, by the name of the node.

        at_once: How many nodes are asked at the same time.

        stop: Set when nobody wants more answers; *ask* ends soon, then.

    Yields:
        One answer per node.
    """

    def arrival(host: str) -> Arrival:
        begin = time.monotonic()
        ended = ask(places[host])
        return Arrival(host, ended, len(places), time.monotonic() - begin)

    with ThreadPoolExecutor(max(1, min(at_once, len(places)))) as pool:
        try:
            waiting = [pool.submit(arrival, host) for host in places]
            for future in as_completed(waiting):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

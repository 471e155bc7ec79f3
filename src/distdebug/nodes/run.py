"""
Run a function or command on each node of a job, one result per node.

A function is sent by value to a child process on the node, and its answer
comes back as one marked line of JSON in the output of that process.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import socket
import sys

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import attrs

from .._text import clean, without_controls
from ..errors import NodesError
from .process import CommandEngine
from .results import (
    Engine,
    NodeFailure,
    NodeReply,
    NodeResult,
    NodeStatus,
    exit_failure,
)


class RemoteFunction(NamedTuple):
    """
    A pickled function and the command line that runs it.

    Attributes:
        data: The standard input of the child process.

        arguments: The arguments of ``python`` on the node.

        mark: The text in front of the answer.
    """

    data: bytes
    arguments: tuple[str, ...]
    mark: str


def pack_function(
    function: Callable[[], object], timeout_s: float
) -> RemoteFunction:
    """
    Pickle a function by value, with all it uses of its own module.

    Args:
        function: Takes no argument and returns JSON data.

        timeout_s: How long it may run, in seconds.

    Raises:
        NodesError: It holds something that cannot be pickled.
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
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    arguments = (
        # -P: a json.py in the working folder must not shadow the library's.
        *("-P", "-u", "-m", "distdebug.nodes.child"),
        *(version, hashlib.sha256(data).hexdigest(), mark),
        str(max(1, round(timeout_s))),
    )
    return RemoteFunction(data, arguments, mark)


def unpack_answer(mark: str, output: str) -> tuple[Any, str]:
    """
    Split the output of a child into its answer and the other output.

    Args:
        mark: The text in front of the answer.

    Returns:
        The answer, a mapping or ``None``; and the output without it.
    """
    text_before, found, rest = output.rpartition(f"{mark} ")
    line, _, text_after = rest.partition("\n")
    if not found:
        return None, output
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    is_answer = isinstance(answer, dict)
    return answer if is_answer else None, text_before + text_after


@contextmanager
def _by_value(function: Callable[[], object]) -> Iterator[None]:
    """
    Pickle the content of the function's own module by value.
    """
    import cloudpickle

    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__module__", None) or "__main__"
    module = sys.modules.get(name)
    importable = {"__main__", "distdebug"} | sys.stdlib_module_names
    # A module that the user has registered stays registered.
    kept = importable | cloudpickle.list_registry_pickle_by_value()
    if not module or name in kept or name.partition(".")[0] in importable:
        yield
        return

    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@attrs.frozen(kw_only=True)
class LocalNode(CommandEngine):
    """
    Engine for the local node.

    Attributes:
        python: The Python that runs functions; by default this one.
    """

    python: str = sys.executable

    def commands(self, argv: Sequence[str]) -> dict[str, Sequence[str]]:
        """
        Return the command for this node alone.
        """
        return {socket.gethostname(): argv}


_MAX_OUTPUT = 8000


def run_on_nodes(
    function_or_argv: Callable[[], object] | Sequence[str],
    *,
    engine: Literal["here"] | Engine = "here",
    timeout_s: float = 120.0,
    tell: Callable[[int, int], object] = lambda _done, _total: None,
) -> Iterator[NodeResult]:
    """
    Run a function or command on each node of a job.

    A node that does not answer costs only its own result.  Nothing starts
    before the first result is requested.  Closing the iterator ends what still
    runs.

    Args:
        function_or_argv: A function without arguments that returns JSON data,
            sent by value; or a command with its arguments.

        engine: Brings it to the nodes; by default it runs on this node.

        timeout_s: How long each node may take, in seconds.

        tell: Called with the numbers of finished nodes and of all nodes.

    Returns:
        One result per node, as they arrive.

    Raises:
        NodesError: The function cannot be pickled, or the command is invalid;
            with the first result: the nodes are unknown.
    """
    if isinstance(engine, str):
        if engine != "here":
            msg = f"there is no engine {engine!r}"
            raise NodesError(msg, remedy="say 'here', or give an engine")
        engine = LocalNode()
    command, remote_function = function_or_argv, None
    if callable(command):
        remote_function = pack_function(command, timeout_s)
        command = (engine.python, *remote_function.arguments)
    elif isinstance(command, str) or not command:
        msg = f"{command!r} is no command"
        raise NodesError(msg, remedy="give a list: the program, its arguments")
    replies = engine.run(
        tuple(command),
        data=remote_function and remote_function.data,
        timeout_s=timeout_s,
    )
    mark = remote_function.mark if remote_function else ""
    return _results(replies, mark, timeout_s, tell)


def _results(
    replies: Iterator[NodeReply],
    mark: str,
    timeout_s: float,
    tell: Callable[[int, int], object],
) -> Iterator[NodeResult]:
    try:
        for done, reply in enumerate(replies, 1):
            tell(done, reply.total)
            yield _result(reply, mark, timeout_s)
    finally:
        # Close also if *tell* fails or Python does not count references.
        if isinstance(replies, Generator):
            replies.close()


def _result(reply: NodeReply, mark: str, timeout_s: float) -> NodeResult:
    """
    Return the result of a node.

    Args:
        mark: The text in front of the answer of a function; ``""`` for a
            command.
    """
    completed = reply.completed
    output = completed.output.decode("utf-8", "replace")
    stderr = completed.stderr.decode("utf-8", "replace")
    answer = None
    if mark:
        answer, output = unpack_answer(mark, output)
    shown = without_controls(f"{output.strip()}\n{stderr.strip()}").strip()
    result = NodeResult(
        host=clean(reply.host),
        status=NodeStatus.OK,
        output=shown[-_MAX_OUTPUT:],
        seconds=reply.seconds,
    )

    # An answer counts even if the connection failed afterwards.
    if answer is not None and "value" in answer:
        return attrs.evolve(result, value=answer["value"])
    if completed.status == 0 and not mark:
        return result
    if answer is not None:
        reason, remedy = str(answer.get("reason")), answer.get("remedy")
        failure = NodeFailure(NodeStatus.FAILED, reason, str(remedy or ""))
    else:
        failure = completed.failure or exit_failure(
            completed.status, stderr, timeout_s
        )
    return attrs.evolve(
        result,
        status=failure.status,
        reason=clean(failure.reason),
        remedy=clean(failure.remedy),
    )

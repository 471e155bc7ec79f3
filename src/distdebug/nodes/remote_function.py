"""
How does a function get to a node, and its answer back?

The function travels through the standard input of the command, so that it lies
in no folder and shows in no list of processes.  The node loads what has the
digest that its command line names, and nothing else.  The answer is JSON
behind a mark that nobody else can know.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import sys

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import NodesError


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

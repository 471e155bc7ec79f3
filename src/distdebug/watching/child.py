"""
How does a rank have its own job looked at, without doing so itself?

It starts ``python -m distdebug.watching.child``, which reads from its standard
input what to do, and prints one line of JSON.  A process of its own needs no
interpreter lock of the rank, no memory of it, and may be killed.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import sysconfig
import threading

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import attrs

from .._text import clean
from ..errors import CaptureError
from ..nodes import Bound, Ended, run_process, unpack_answer
from ..snapshots import Wanted
from .hang import Hang, HangReason, Order, Response


# For looking, waiting for other nodes, and explaining.
_MORE_S = 600.0
# The child of a rank is none.
_NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# Where the child looks anyway.
_INSTALLED = set(sysconfig.get_paths().values())
_PACKAGE = __package__.partition(".")[0]


def ask_child(
    reason: HangReason, order: Order, stop: threading.Event
) -> Response:
    """
    Have a child process look at the job, and take what it has to tell.

    Args:
        reason: Why to look.

        order: What to take.

        stop: Set if the child has to end.

    Returns:
        What it did.

    Raises:
        CaptureError: It did not answer.

        OSError: It cannot be started.
    """
    mark = f"distdebug-{secrets.token_hex(8)}"
    task = {
        "mark": mark,
        "reason": attrs.asdict(reason),
        "order": _order_to_json(order),
    }
    ended = run_process(
        [sys.executable, "-P", "-m", f"{_PACKAGE}.watching.child"],
        environment=_environment(),
        bound=Bound(
            timeout_s=order.wanted.timeout_s + _MORE_S,
            grace_s=5.0,
            stop=stop,
        ),
        data=json.dumps(task).encode(),
    )
    return _answer(reason, mark, ended)


def main(stdin: IO[str], stdout: IO[str]) -> int:
    """
    Do what a rank asks for.

    Args:
        stdin: Where the task comes from.

        stdout: Where the answer goes.

    Returns:
        The exit status.
    """
    # The rank, which starts it, has no use for all that is loaded here.
    from .response import respond

    task = json.load(stdin)
    reason = _reason_from_json(task["reason"])
    got = respond(reason, _order_from_json(task["order"]))
    answer = {
        "outcome": got.outcome,
        "summary": got.summary,
        "bundle": None if got.bundle is None else str(got.bundle),
        "hang": None if got.hang is None else _hang_to_json(got.hang),
    }
    stdout.write(f"\n{task['mark']} {json.dumps(answer)}\n")
    stdout.flush()
    return 0


def _answer(reason: HangReason, mark: str, ended: Ended) -> Response:
    data, _ = unpack_answer(mark, ended.output.decode("utf-8", "replace"))
    if data is None:
        complaint = ended.complaint[-500:].decode("utf-8", "replace")
        status = "no end" if ended.status is None else f"status {ended.status}"
        msg = f"whoever should look at the job ended with {status}: "
        raise CaptureError(msg + clean(complaint, limit=500))

    bundle = None if data["bundle"] is None else Path(data["bundle"])
    hang = None if data["hang"] is None else _hang(reason, **data["hang"])
    return Response(data["outcome"], data["summary"], bundle, hang)


def _hang_to_json(hang: Hang) -> dict[str, Any]:
    return {
        "folder": str(hang.folder),
        "data": hang.data,
        "report": hang.report,
    }


def _hang(reason: HangReason, folder: str, **options: Any) -> Hang:
    return Hang(reason=reason, folder=Path(folder), **options)


def _environment() -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
    source = str(Path(__file__).parents[2])
    if source not in _INSTALLED:
        # Where this package was found, it is found again.
        others = environ.get("PYTHONPATH")
        paths = [source, others] if others else [source]
        environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ


def _order_to_json(order: Order) -> dict[str, Any]:
    return attrs.asdict(order, value_serializer=_plain)


def _plain(_: object, __: object, value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return str(value) if isinstance(value, Path) else value


def _order_from_json(data: Mapping[str, Any]) -> Order:
    return Order(
        **{
            **data,
            "output_dir": Path(data["output_dir"]),
            "wanted": Wanted(**data["wanted"]),
            "but": frozenset(map(Path, data["but"])),
        }
    )


def _reason_from_json(data: Mapping[str, Any]) -> HangReason:
    return HangReason(
        **{
            **data,
            "pids": tuple(data["pids"]),
            "stalled": tuple(map(tuple, data["stalled"])),
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))

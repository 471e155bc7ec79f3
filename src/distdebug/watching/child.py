"""
Capture a hang in a child process of a rank.

The rank starts ``python -m distdebug.watching.child``, which reads one request
as JSON from its standard input and prints one line of JSON.  A child process
needs neither the interpreter lock nor the memory of the rank, and may be
killed.
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
from ..nodes import CommandLimits, CompletedCommand, run_process, unpack_answer
from ..snapshots import SnapshotOptions
from .hang import CaptureRequest, Hang, HangReason, Response


# For sampling, waiting for other nodes, and the diagnosis.
_EXTRA_S = 600.0
# The child is not a rank, so it must not inherit these.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# The child finds packages there without PYTHONPATH.
_INSTALL_PATHS = set(sysconfig.get_paths().values())
_PACKAGE = __package__.partition(".")[0]


def ask_child(
    reason: HangReason, request: CaptureRequest, stop: threading.Event
) -> Response:
    """
    Start a child process that captures the job, and return its response.

    Args:
        stop: Ends the child when it is set.

    Raises:
        CaptureError: The child did not answer.

        OSError: The child cannot be started.
    """
    mark = f"distdebug-{secrets.token_hex(8)}"
    task = {
        "mark": mark,
        "reason": attrs.asdict(reason),
        "order": _request_to_json(request),
    }
    completed = run_process(
        [sys.executable, "-P", "-m", f"{_PACKAGE}.watching.child"],
        environment=_environment(),
        limits=CommandLimits(
            timeout_s=request.wanted.timeout_s + _EXTRA_S,
            grace_s=5.0,
            stop=stop,
        ),
        data=json.dumps(task).encode(),
    )
    return _parse_answer(reason, mark, completed)


def main(stdin: IO[str], stdout: IO[str]) -> int:
    """
    Run the request of a rank, and print the response.

    Returns:
        The exit status.
    """
    # Imported here, so that the rank does not load it.
    from .response import respond

    task = json.load(stdin)
    reason = _reason_from_json(task["reason"])
    response = respond(reason, _request_from_json(task["order"]))
    answer = {
        "outcome": response.outcome,
        "summary": response.summary,
        "bundle": None if response.bundle is None else str(response.bundle),
        "hang": None
        if response.hang is None
        else _hang_to_json(response.hang),
    }
    stdout.write(f"\n{task['mark']} {json.dumps(answer)}\n")
    stdout.flush()
    return 0


def _parse_answer(
    reason: HangReason, mark: str, completed: CompletedCommand
) -> Response:
    data, _ = unpack_answer(mark, completed.output.decode("utf-8", "replace"))
    if data is None:
        stderr = completed.stderr[-500:].decode("utf-8", "replace")
        status = (
            "no end"
            if completed.status is None
            else f"status {completed.status}"
        )
        msg = f"whoever should look at the job ended with {status}: "
        raise CaptureError(msg + clean(stderr, limit=500))

    bundle = None if data["bundle"] is None else Path(data["bundle"])
    hang = (
        None
        if data["hang"] is None
        else _hang_from_json(reason, **data["hang"])
    )
    return Response(data["outcome"], data["summary"], bundle, hang)


def _hang_to_json(hang: Hang) -> dict[str, Any]:
    return {
        "folder": str(hang.folder),
        "data": hang.data,
        "report": hang.report,
    }


def _hang_from_json(reason: HangReason, folder: str, **options: Any) -> Hang:
    return Hang(reason=reason, folder=Path(folder), **options)


def _environment() -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if k not in _RANK_VARIABLES}
    source = str(Path(__file__).parents[2])
    if source not in _INSTALL_PATHS:
        # The child has to find the same copy of this package.
        others = environ.get("PYTHONPATH")
        paths = [source, others] if others else [source]
        environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ


def _request_to_json(request: CaptureRequest) -> dict[str, Any]:
    return attrs.asdict(request, value_serializer=_to_json_value)


def _to_json_value(_: object, __: object, value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return str(value) if isinstance(value, Path) else value


def _request_from_json(data: Mapping[str, Any]) -> CaptureRequest:
    return CaptureRequest(
        **{
            **data,
            "output_dir": Path(data["output_dir"]),
            "wanted": SnapshotOptions(**data["wanted"]),
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

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
import signal
import sys
import sysconfig
import threading

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import attrs

from .._proc import Completed, run_child
from .._text import clean
from ..errors import CaptureError
from ..identity import RANK_VARIABLES
from ..nodes import unpack_answer
from .hang import CaptureRequest, Hang, HangReason, Response


# For sampling, waiting for other nodes, and the diagnosis.
_EXTRA_S = 600.0
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
    task = {"mark": mark, "reason": reason, "request": request}
    completed = run_child(
        [sys.executable, "-P", "-m", f"{_PACKAGE}.watching.child"],
        environment=_environment(),
        timeout_s=request.wanted.timeout_s + _EXTRA_S,
        grace_s=5.0,
        stop=stop,
        data=_dumps(task).encode(),
    )
    return _parse_answer(reason, mark, completed)


def main(stdin: IO[str], stdout: IO[str]) -> int:
    """
    Run the request of a rank, and print the response.

    Returns:
        The exit status.
    """
    # It was started by a thread of ours, which takes no signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

    # Imported here, so that the rank does not load it.
    from .response import respond

    task = json.load(stdin)
    response = respond(
        HangReason(**task["reason"]), CaptureRequest(**task["request"])
    )
    stdout.write(f"\n{task['mark']} {_dumps(response._asdict())}\n")
    stdout.flush()
    return 0


def _dumps(data: Mapping[str, Any]) -> str:
    """
    Return JSON from which the classes of its parts make equal ones again.
    """
    return json.dumps(data, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, Path):
        return str(value)
    return {
        field.name: getattr(value, field.name)
        for field in attrs.fields(type(value))
    }


def _parse_answer(
    reason: HangReason, mark: str, completed: Completed
) -> Response:
    data, _ = unpack_answer(mark, completed.output.decode("utf-8", "replace"))
    if data is not None:
        bundle, hang = data["bundle"], data["hang"]
        data["bundle"] = bundle and Path(bundle)
        data["hang"] = hang and Hang(**{**hang, "reason": reason})
        return Response(**data)

    stderr = completed.stderr[-500:].decode("utf-8", "replace")
    status = (
        "no end" if completed.status is None else f"status {completed.status}"
    )
    msg = f"the process that should inspect the job ended with {status}: "
    raise CaptureError(msg + clean(stderr, limit=500))


def _environment() -> dict[str, str]:
    # The child is not a rank.
    environ = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
    source = str(Path(__file__).parents[2])
    if source not in _INSTALL_PATHS:
        # The child has to find the same copy of this package.
        others = environ.get("PYTHONPATH")
        paths = [source, others] if others else [source]
        environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))

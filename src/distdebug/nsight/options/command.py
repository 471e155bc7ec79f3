"""
Which words start a worker under nsys, safely for the shell that reads them?
"""

from __future__ import annotations

import os
import re
import shlex

from collections.abc import Mapping

from ...errors import NsightError
from .steps import StepRange


__all__ = ["base_switches", "nsys_command", "output_folder", "report_name"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._+=@-]")
_MOST_NAME = 120
# Ray hands the words to a bash that the raylet of the node started, and the
# raylet knows the folder of its session.
_SESSION = (
    "tr '\\0' '\\n' </proc/$PPID/cmdline | sed -n 's/^--session[-_]dir=//p'"
)


def base_switches(step_range: StepRange | None) -> dict[str, str]:
    """
    Which options does every worker get?

    CPUs are not sampled: where the kernel does not allow it, nsys may hang,
    and take most of a CPU.

    Args:
        step_range: The steps to be captured; ``None`` for the whole life of
            the worker.

    Returns:
        Options of ``nsys profile`` without the name of the report.
    """
    switches = {
        "t": "cuda,nvtx",
        "s": "none",
        "cpuctxsw": "none",
        "x": "true",
        "cuda-graph-trace": "node",
    }
    if step_range is not None:
        # By default, the end of a capture ends the worker as well.
        switches |= {"c": "cudaProfilerApi", "capture-range-end": "stop"}
    return switches


def report_name(worker: str, step_range: StepRange | None = None) -> str:
    """
    What is the report of this worker called, as nsys takes it?

    Args:
        worker: The name of the worker.

        step_range: The steps that are captured.

    Returns:
        Such as ``"dtensor_policy_worker_3-6_%p"``.  What does not travel in
        names of files is ``_``.

    Raises:
        NsightError: There is no name.
    """
    name = _UNSAFE.sub("_", worker)[:_MOST_NAME].lstrip("-.")
    if not name:
        msg = f"{worker!r:.60} is no name of a worker"
        raise NsightError(msg, remedy="name it, such as 'policy_worker'")

    middle = f"_{step_range.in_file_name}" if step_range else ""
    return f"{name}{middle}_%p"


def nsys_command(
    switches: Mapping[str, str], name: str, folder: str, *, nsys: str
) -> str:
    """
    Which words start something under nsys?

    Args:
        switches: Options.

        name: As `report_name` gives it.

        folder: The words of a shell that tell where it goes.

        nsys: The name of nsys on the nodes, or its path.

    Returns:
        The words, for a shell.
    """
    words = [nsys, "profile"]
    for switch, value in switches.items():
        words += (
            [f"-{switch}", value]
            if len(switch) == 1
            else [f"--{switch}={value}"]
        )
    return f"{shlex.join(words)} -o {folder}/{name}"


def output_folder(folder: str | os.PathLike[str] | None) -> str:
    """
    Which words of a shell tell where the report goes?

    Args:
        folder: Where it goes, in a folder for each node; by default to where
            Ray itself puts such reports, in the folder of its session.

    Returns:
        The words; the folder is made when they are evaluated.

    Raises:
        NsightError: The path is not one that every node understands.
    """
    if folder is None:
        find = (
            f"d=$({_SESSION}); d=${{d:-/tmp/ray/session_unknown}}/logs/nsight"
        )
    else:
        text = os.fspath(folder)
        if not text.startswith("/") or "%" in text or not text.isprintable():
            msg = f"reports cannot go to {text!r:.200}"
            remedy = "name a folder by its whole path, without %"
            raise NsightError(msg, remedy=remedy)
        find = f"d={shlex.quote(text)}/$HOSTNAME"

    return f'"$({find}; mkdir -p "$d"; printf %s "$d")"'

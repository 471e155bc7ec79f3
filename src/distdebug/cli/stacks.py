"""
``stacks``: capture and explain the stacks of all workers.
"""

from __future__ import annotations

import sys
import time

from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .command import (
    CUDA,
    FULL,
    JSON,
    NATIVE,
    PROCESSES,
    command,
    flag,
    group,
    seconds,
    value,
)
from .output import print_json, print_result, report, telling


if TYPE_CHECKING:
    from ..capture import Capture, Native
    from ..findings import Finding
    from ..stacks import ProcessStacks, StackFiles


# The third sample shows whether a change between the first two was the last.
_LOOKS = 3
_CLEAR = "\x1b[2J\x1b[H"


@command(
    "stacks",
    "what is every worker doing right now?",
    value(
        "files",
        "FILE",
        "read stacks from here; by default running processes are looked at",
        nargs="*",
    ),
    group("which processes", *PROCESSES),
    group(
        "how to look",
        seconds(
            "--seconds", "watch for so long who moves and who does not", 2.0
        ),
        seconds("--repeat", "look again every S seconds, until Ctrl-C"),
        seconds(
            "--timeout",
            "be done after so many seconds, whatever happens; only tools that "
            "have to be killed take a few more",
            180.0,
        ),
        value(
            "--output-dir",
            "DIR",
            "also write DIR/HOST/pyspy_HOST_PID.txt and so on",
        ),
        NATIVE,
        flag("--all-native", "native stacks of every process"),
        CUDA,
    ),
    JSON,
    FULL,
)
def stacks(args: Namespace) -> int:
    """
    Find the workers of this node, look at the stacks of all of them several
    times, and say what they wait for.  Nobody is stopped, unless --native or
    --cuda is given.  With files (or folders), say what the stacks in them tell:
    of py-spy, gdb, cuda-gdb, pystack, faulthandler, also within a log.

    Workers of torchrun, SGLang, vLLM, Ray, Slurm, Megatron, DeepSpeed,
    Accelerate and multiprocessing are found by themselves.

    Example:
      {prog} stacks
      {prog} stacks --pattern 'my_trainer\\.py' --output-dir stacks
      {prog} stacks --pid 4711 --native
      {prog} stacks --repeat 5
      {prog} stacks stacks/ job.log

    Exit status: 0 all is well; 1 something was found; 2 could not look.
    """
    if args.files:
        return _explain_files(args)

    status = _explain_node(args)
    # Repeating ends with Ctrl-C.
    with suppress(KeyboardInterrupt):
        while args.repeat is not None:
            time.sleep(args.repeat)
            status = _explain_node(args)
    return status


def _explain_node(args: Namespace) -> int:
    capture = _capture(args)
    _check(capture, args)
    is_repeated = args.repeat is not None
    if args.json:
        plain = _with_tree(capture.stacks, capture.to_dict())
        print_json(args, plain, in_one_line=is_repeated)
    else:
        if is_repeated and sys.stdout.isatty():
            print(_CLEAR, end="")
        is_fine = _is_fine(capture.findings)
        print_result(capture, is_fine=is_fine, full=args.full)
        if is_repeated:
            print("─" * 60, flush=True)
    return 2 if capture.is_blind else int(not _is_fine(capture.findings))


def _capture(args: Namespace) -> Capture:
    from ..capture import capture_node

    native: Native = "classes" if args.native else "none"
    with telling() as tell:
        return capture_node(
            args.output_dir,
            pids=args.pid,
            patterns=args.pattern or (),
            native="all" if args.all_native else native,
            cuda=args.cuda,
            samples=_LOOKS,
            interval_s=args.seconds / (_LOOKS - 1),
            timeout_s=args.timeout,
            tell=tell,
        )


def _check(capture: Capture, args: Namespace) -> None:
    from ..errors import CaptureError

    if not capture.processes and not capture.missing:
        msg = "no worker of a job was found on this node"
        raise CaptureError(
            msg, remedy="name it with --pid, or with --pattern REGEX"
        )
    # The kernel gave nothing about them, not even their start time.
    if args.pid and not any(p.worker.start_ticks for p in capture.processes):
        numbers = ", ".join(str(p.worker.pid) for p in capture.processes)
        msg = f"no such process: {numbers}"
        raise CaptureError(msg, remedy="see: ps -ef")


def _explain_files(args: Namespace) -> int:
    import attrs

    from .._render import Tree
    from ..findings import finding_entries, missing_block
    from ..stacks import (
        explain_stacks,
        merge_stacks,
        read_stack_files,
        to_branches,
    )

    found = read_stack_files(args.files)
    findings = explain_stacks(found.stacks)
    _check_files(found, findings, args.files)
    data = {
        "findings": [f.to_dict() for f in findings],
        "missing": [attrs.asdict(m) for m in found.missing],
    }
    blocks = (
        finding_entries(findings),
        Tree(to_branches(merge_stacks(found.stacks))),
        missing_block(found.missing),
    )
    return report(
        args,
        blocks,
        is_fine=_is_fine(findings),
        data=_with_tree(found.stacks, data),
    )


def _check_files(
    found: StackFiles, findings: Sequence[Finding], files: Iterable[str]
) -> None:
    from ..errors import CaptureError
    from ..findings import missing_block

    if not found.stacks:
        reason = "; ".join(missing_block(found.missing).lines)
        reason = reason or "nothing is there"
        msg = f"no stacks in {', '.join(files)}: {reason}"
        raise CaptureError(
            msg, remedy="name files of py-spy, gdb, pystack, or faulthandler"
        )

    threads = (t for p in found.stacks for t in p.threads)
    if not findings and not any(t.frames or t.native for t in threads):
        msg = f"the stacks in {', '.join(files)} are empty"
        raise CaptureError(
            msg, remedy="take them again; see: distdebug preflight"
        )


def _with_tree(
    stacks: Iterable[ProcessStacks], data: dict[str, Any]
) -> dict[str, Any]:
    from ..stacks import merge_stacks

    return {**data, "tree": merge_stacks(stacks).to_dict()}


def _is_fine(findings: Iterable[Finding]) -> bool:
    first = next(iter(findings), None)
    return first is None or first.cause.is_fine

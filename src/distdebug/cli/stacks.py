"""
``stacks``: capture and explain the stacks of all workers.
"""

from __future__ import annotations

import argparse
import sys
import time

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .options import (
    Commands,
    add_command,
    add_full_option,
    add_process_options,
    positive_seconds,
)
from .output import print_json, print_result, shown_text, telling


if TYPE_CHECKING:
    from ..capture import Capture, Native
    from ..findings import Finding
    from ..stacks import ProcessStacks


_TEXT = """
Find the workers of this node, look at the stacks of all of them several times,
and say what they wait for.  Nobody is stopped, unless --native or --cuda is
given.  With files (or folders), say what the stacks in them tell: of py-spy,
gdb, cuda-gdb, pystack, faulthandler, also within a log.

Workers of torchrun, SGLang, vLLM, Ray, Slurm, Megatron, DeepSpeed, Accelerate
and multiprocessing are found by themselves.

Example:
  {prog} stacks
  {prog} stacks --pattern 'my_trainer\\.py' --output-dir stacks
  {prog} stacks --pid 4711 --native
  {prog} stacks --repeat 5
  {prog} stacks stacks/ job.log

Exit status: 0 all is well; 1 something was found; 2 could not look.
"""

# The third sample shows whether a change between the first two was the last.
_LOOKS = 3
_MOST_FINDINGS = 3
_CLEAR = "\x1b[2J\x1b[H"


def add_stacks_parser(commands: Commands) -> None:
    """
    Add the command ``stacks``.
    """
    parser = add_command(
        commands,
        "stacks",
        run,
        help="what is every worker doing right now?",
        text=_TEXT,
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="read stacks from here; by default running processes are looked at",
    )
    who = parser.add_argument_group("which processes")
    add_process_options(who)
    _add_look_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="print everything as JSON"
    )
    add_full_option(parser)


def _add_look_options(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to look")
    how.add_argument(
        "--seconds",
        type=positive_seconds,
        default=2.0,
        metavar="S",
        help="watch for so long who moves and who does not "
        "(default: %(default)g)",
    )
    how.add_argument(
        "--repeat",
        type=positive_seconds,
        metavar="S",
        help="look again every S seconds, until Ctrl-C",
    )
    how.add_argument(
        "--timeout",
        type=positive_seconds,
        default=180.0,
        metavar="S",
        help="be done after so many seconds, whatever happens; only tools that "
        "have to be killed take a few more (default: %(default)g)",
    )
    how.add_argument(
        "--output-dir",
        metavar="DIR",
        help="also write DIR/HOST/pyspy_HOST_PID.txt and so on",
    )
    _add_native_options(how)


def _add_native_options(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--native",
        action="store_true",
        help="native stacks too, of one process of each class and of all "
        "outliers; stops each for up to a few seconds",
    )
    how.add_argument(
        "--all-native",
        action="store_true",
        help="native stacks of every process",
    )
    how.add_argument(
        "--cuda",
        action="store_true",
        help="GPU kernels and native stacks of every process by cuda-gdb; "
        "stops each for seconds",
    )


def run(args: argparse.Namespace) -> int:
    """
    Print what the workers do; return 1 if anything is wrong.
    """
    if args.files:
        return _explain_files(args)
    if args.repeat is None:
        return _explain_node(args)

    status = _explain_node(args, clear=sys.stdout.isatty())
    # Repeating ends with Ctrl-C.
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(args.repeat)
            status = _explain_node(args, clear=sys.stdout.isatty())
    return status


def _explain_node(args: argparse.Namespace, *, clear: bool = False) -> int:
    capture = _capture(args)
    _check(capture, args)
    if args.json:
        plain = _as_plain(capture.stacks, capture.to_dict())
        print_json("stacks", plain, in_one_line=args.repeat is not None)
    else:
        start = _CLEAR if clear else ""
        end = "" if args.repeat is None else f"\n{'─' * 60}"
        is_fine = not _status(capture.findings)
        text = shown_text(capture, is_fine=is_fine, full=args.full)
        print(f"{start}{text}{end}", flush=True)
    return 2 if capture.is_blind else _status(capture.findings)


def _check(capture: Capture, args: argparse.Namespace) -> None:
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


def _capture(args: argparse.Namespace) -> Capture:
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


def _explain_files(args: argparse.Namespace) -> int:
    import attrs

    from .._render import Tree
    from ..errors import CaptureError
    from ..findings import finding_entries, missing_block
    from ..stacks import (
        explain_stacks,
        merge_stacks,
        read_stack_files,
        to_branches,
    )

    found = read_stack_files(args.files)
    if not found.stacks:
        reason = "; ".join(missing_block(found.missing).lines)
        reason = reason or "nothing is there"
        msg = f"no stacks in {', '.join(args.files)}: {reason}"
        raise CaptureError(
            msg, remedy="name files of py-spy, gdb, pystack, or faulthandler"
        )

    findings = explain_stacks(found.stacks)
    threads = (t for p in found.stacks for t in p.threads)
    if not findings and not any(t.frames or t.native for t in threads):
        msg = f"the stacks in {', '.join(args.files)} are empty"
        raise CaptureError(
            msg, remedy="take them again; see: distdebug preflight"
        )

    if args.json:
        data = {
            "findings": [f.to_dict() for f in findings],
            "missing": [attrs.asdict(m) for m in found.missing],
        }
        print_json("stacks", _as_plain(found.stacks, data))
        return _status(findings)

    blocks = (
        finding_entries(findings),
        Tree(to_branches(merge_stacks(found.stacks))),
        missing_block(found.missing),
    )
    status = _status(findings)
    print_result(blocks, is_fine=not status, full=args.full)
    return status


def _as_plain(
    stacks: Iterable[ProcessStacks], data: dict[str, Any]
) -> dict[str, Any]:
    from ..stacks import merge_stacks

    return {**data, "tree": merge_stacks(stacks).to_dict()}


def _status(findings: Iterable[Finding]) -> int:
    first = next(iter(findings), None)
    return int(first is not None and not first.cause.is_fine)

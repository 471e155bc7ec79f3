"""
``health``, ``preflight``, ``stacks``, ``snapshot``: look at this node and its job.
"""

from __future__ import annotations

import sys
import time

from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import capture, processes, snapshots
from ..errors import CaptureError
from .command import (
    CONTAINER,
    CUDA,
    FULL,
    JSON,
    NATIVE,
    PROCESSES,
    RAY_JOB,
    command,
    existing_folder,
    flag,
    group,
    many,
    nodes_engine,
    one_of,
    seconds,
    value,
)
from .output import print_json, print_result, report, telling, waiting


if TYPE_CHECKING:
    from ..findings import Finding
    from ..stacks import ProcessStacks, StackFiles


@command(
    "health",
    "is this node, with its GPUs and its network, able to work?",
    group("whose variables are compared", *PROCESSES),
    many("--folder DIR", "the job writes here", type=existing_folder),
    many(
        "--ray DIR",
        "look for signs of life of Ray, whose temporary folder or session "
        "this is, such as /tmp/ray",
        type=existing_folder,
    ),
    seconds("--timeout", "be done after so many seconds", 10.0),
    JSON,
    FULL,
)
def health(args: Namespace) -> int:
    """
    Look at this node: its GPUs, what the kernel complains of, memory, disks,
    network, Ray; and whether the variables of the workers fit it and each
    other.  Nothing is changed, and root is not needed, though it sees more.

    Example:
      {prog} health
      {prog} health --folder /shared/checkpoints --ray /tmp/ray --json

    Exit status: 0 nothing is wrong, as far as can be seen; 1 something was
    found; 2 could not look.
    """
    from ..health import check_environment, check_node

    with waiting("looking at this node"):
        workers = (
            processes.find_workers_by_pid(args.pid)
            if args.pid
            else processes.find_workers(args.pattern or ())
        )
        node = check_node(
            pids=[worker.pid for worker in workers],
            folders=args.folder or (),
            ray_sessions=args.ray or (),
            timeout_s=args.timeout,
        )
        import socket

        nodes = {socket.gethostname(): node}
        environment = check_environment(workers, nodes=nodes)
    if args.json:
        data = {"node": node, "environment": environment}
        print_json(args, {name: x.to_dict() for name, x in data.items()})
    else:
        print_result(node, is_fine=node.is_healthy, full=args.full)
        print()
        is_fine = environment.is_healthy
        print_result(environment, is_fine=is_fine, full=args.full)
    return int(not (node.is_healthy and environment.is_healthy))


@command("preflight", "will it be possible to find out what is wrong?", JSON)
def preflight(args: Namespace) -> int:
    """
    Check, before a job hangs, whether its processes may be looked into on this
    node, and which tools are there; say what to do about what is missing.  Run
    it as the user, and in the container, that will have to do it.

    Example:
      {prog} preflight

    Exit status: 0 all is well; 1 something is in the way; 2 could not look.
    """

    checks = snapshots.preflight()
    return report(args, checks, is_fine=checks.is_ready)


# The third sample shows whether a change between the first two was the last.
_LOOKS = 3
_CLEAR = "\x1b[2J\x1b[H"


@command(
    "stacks",
    "what is every worker doing right now?",
    value(
        "files FILE",
        "read stacks from here; by default those of running processes are taken",
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
            "--output-dir DIR",
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
    times, and say what they wait for.  No process is stopped, unless --native or
    --cuda is given.  With files (or folders), explain the stacks in them: of
    py-spy, gdb, cuda-gdb, pystack, faulthandler, also within a log.

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
    captured = _capture(args)
    capture.check_found(captured, args.pid or (), args.pattern or ())
    is_repeated = args.repeat is not None
    if args.json:
        plain = _with_tree(captured.stacks, captured.to_dict())
        print_json(args, plain, in_one_line=is_repeated)
    else:
        if is_repeated and sys.stdout.isatty():
            print(_CLEAR, end="")
        is_fine = _is_fine(captured.findings)
        print_result(captured, is_fine=is_fine, full=args.full)
        if is_repeated:
            print("─" * 60, flush=True)
    return 2 if captured.is_blind else int(not _is_fine(captured.findings))


def _capture(args: Namespace) -> capture.Capture:

    native: capture.Native = "classes" if args.native else "none"
    with telling() as tell:
        return capture.capture_node(
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
    if not found.stacks:
        from ..stacks import no_stacks_error

        raise no_stacks_error(files, found)

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


@command(
    "snapshot",
    "take everything about a job that hangs now, and diagnose it",
    value("output_dir OUTPUT_DIR", "where to put everything"),
    group(
        "what to take",
        one_of(
            flag("--here", "of this node (the default)"),
            value(
                "--slurm JOB",
                "of every node of this Slurm job; OUTPUT_DIR has to be on a "
                "file system that they share",
            ),
            value(
                "--ray ADDRESS",
                "of every node of this Ray cluster, HOST:PORT or 'auto'; "
                "OUTPUT_DIR has to be on a file system that they share",
            ),
            value(
                "--debug-server HOST:PORT",
                "of this node, and of all ranks that this server of "
                "torch.distributed.debug knows",
            ),
        ),
        RAY_JOB,
        CONTAINER,
        value(
            "--dump-dir D",
            "where the ranks put their Flight Recorder dumps; they are asked "
            "for new ones",
        ),
        many("--log FILE", "keep the end of this file"),
        *PROCESSES,
    ),
    NATIVE,
    CUDA,
    seconds(
        "--timeout", "be done with collecting after so many seconds", 120.0
    ),
    JSON,
    FULL,
)
def snapshot(args: Namespace) -> int:
    """
    Take everything worth having about the job on this node into one folder,
    while it still hangs: new Flight Recorder dumps of the ranks that record,
    the stacks of all workers, facts about the node, and the ends of logs.  Then
    diagnose it.  No process is stopped, unless --native or --cuda is given.

    If something is in OUTPUT_DIR already, OUTPUT_DIR.2 is written, and so on.

    Example:
      {prog} snapshot hang/
      {prog} snapshot --dump-dir dumps/ --log train.log hang/
      {prog} snapshot --pattern 'my_trainer\\.py' --native hang/
      {prog} snapshot --slurm 1234 /shared/hang/
      {prog} snapshot --ray auto /shared/hang/
      {prog} snapshot --debug-server node-0:25999 hang/

    Exit status: 0 all is well; 1 something was found; 2 could not look.
    """
    from .. import snapshot as take
    from ..report import try_write_report

    engine = nodes_engine(args)
    how = (
        partial(take, debug_server=args.debug_server or "")
        if engine is None
        else partial(snapshots.snapshot_everywhere, engine=engine)
    )
    with telling() as tell:
        taken = how(
            args.output_dir,
            dump_dir=args.dump_dir,
            pids=args.pid,
            patterns=args.pattern or (),
            logs=args.log or (),
            native="classes" if args.native else "none",
            cuda=args.cuda,
            timeout_s=args.timeout,
            tell=tell,
        )
    try_write_report(taken.diagnosis, taken.folder)
    status = report(args, taken, is_fine=taken.diagnosis.is_healthy)
    return 2 if taken.is_blind else status

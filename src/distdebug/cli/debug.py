"""
``dbg`` and ``ray-debugger``: stop, ask, and steer ranks; check Ray's debugger.
"""

from __future__ import annotations

import argparse
import json
import os

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Commands, add_command, positive_seconds, warn
from .output import print_json


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..debugger import Answers, Command, DebugClient, Listing
    from ..nodes import StreamExecutor
    from ..ray import RayDebugSession


_DBG_TEXT = """
Ask the ranks of a job that called distdebug.arm(), or stopped at a breakpoint:
those on this node, or on all nodes of the job.  Leaving holds nobody, and ends
nobody.

Commands: list, attach [GROUP] RANK, detach, cast [GROUP] ranks(...) COMMAND,
continue, eval, stack, interrupt, resume, extend, abort, help, quit.

Example:
  PYTHONBREAKPOINT=distdebug.debugger.set_trace DISTDEBUG=1 torchrun ... train.py
  {prog} dbg                                 in a second terminal
  {prog} dbg -c 'cast ranks(:) p loss'
  {prog} dbg -c 'stack ranks(tp=0)' --json
  {prog} dbg --slurm 1234                    on every node of the job
  {prog} dbg --hosts node-1,node-2 -c stack

Exit status: 0 everybody did as asked; 1 somebody did not; 2 could not ask.
"""


def add_dbg_parser(commands: Commands) -> None:
    """
    Add the command ``dbg``.
    """
    parser = add_command(
        commands,
        "dbg",
        run_dbg,
        help="stop, ask, and steer the ranks of a job",
        text=_DBG_TEXT,
    )
    _add_places(parser)
    _add_arming(parser)
    parser.add_argument(
        "-c",
        "--command",
        action="append",
        metavar="COMMAND",
        help="do this instead of asking what; may be given several times",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what the commands of -c give as JSON, one line each",
    )
    parser.add_argument(
        "--wait",
        type=positive_seconds,
        default=5.0,
        metavar="S",
        help="wait for so long for ranks to stop again (default: %(default)g)",
    )


def _add_arming(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        type=int,
        metavar="PID",
        help="first arm this process of this node, which was started without "
        "us; it has to run Python 3.14 or later; may be given several times",
    )


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="the folder of the sockets; by default DISTDEBUG_DIR, or that of "
        "the only job of yours on a node",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--slurm",
        metavar="JOB",
        help="the ranks on every node of this Slurm job",
    )
    where.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="the ranks on every node of this Ray cluster, HOST:PORT or 'auto'",
    )
    where.add_argument(
        "--hosts",
        metavar="HOST,...",
        help="the ranks on these hosts, which ssh reaches without a password",
    )
    parser.add_argument(
        "--container-name",
        metavar="NAME",
        help="with --slurm: enter this pyxis container on each node",
    )
    parser.add_argument(
        "--ray-job",
        metavar="JOB",
        help="with --ray: the job whose runtime environment to use",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the Python that has distdebug on the other nodes",
    )


def run_dbg(args: argparse.Namespace) -> int:
    """
    Start the interactive shell, or run the commands of the arguments.
    """
    if args.arm:
        _arm(args)
    # Parse all commands before the first one runs.
    commands = [_parsed(text) for text in args.command or ()]
    with _client(args) as client:
        if commands:
            return _obey_all(client, commands, args)

        from ..debugger import line_editing, run_shell

        if _nodes(args) is None:
            _offer([p.pid for p in client.list()])
        with line_editing(client):
            run_shell(client, wait_s=args.wait)

    return 0


def _arm(args: argparse.Namespace) -> None:
    """
    Arm processes, and use their folder unless one was named.
    """
    from ..debugger import arm_process

    armed = [arm_process(pid) for pid in args.arm]
    for one in armed:
        print(one)
    folders = {os.path.dirname(one.path) for one in armed}  # noqa: PTH120 a text
    if len(folders) == 1 and not args.dir and _nodes(args) is None:
        args.dir = folders.pop()


def _client(args: argparse.Namespace) -> DebugClient:
    from ..debugger import choose_folder, connect, job_text

    if (nodes := _nodes(args)) is not None:
        return connect(args.dir, nodes=nodes)

    folder = choose_folder(args.dir)
    if folder is None:
        _offer(())
    elif not args.dir:
        warn(f"asks the job in {job_text(folder)}")
    return connect(folder)


def _offer(armed: Iterable[int]) -> None:
    """
    Print how ranks of this node that are not armed can be armed.
    """
    from ..debugger import arming_hints, unarmed_workers

    for line in arming_hints(unarmed_workers(armed)):
        warn(line)


def _nodes(args: argparse.Namespace) -> StreamExecutor | None:
    python = {} if args.python is None else {"python": args.python}
    if args.slurm is not None:
        from ..nodes import Slurm

        name = args.container_name
        return Slurm(job=args.slurm, container_name=name, **python)
    if args.ray is not None:
        from ..nodes import Ray

        return Ray(args.ray, job=args.ray_job, **python)
    if args.hosts is not None:
        from ..nodes import Ssh

        return Ssh(tuple(filter(None, args.hosts.split(","))), **python)
    return None


def _parsed(text: str) -> tuple[str, Command]:
    from ..debugger import parse_command
    from ..errors import DebuggerError

    command = parse_command(text)
    if command.name == "attach":
        msg = "attach talks to a person"
        raise DebuggerError(msg, remedy="cast ranks(3) COMMAND")

    return text, command


def _obey_all(
    client: DebugClient,
    commands: list[tuple[str, Command]],
    args: argparse.Namespace,
) -> int:
    from ..errors import DistdebugError

    worst = 0
    for number, (text, command) in enumerate(commands, start=1):
        try:
            worst = max(worst, _obey(client, text, command, args))
        except DistdebugError:
            if skipped := ", ".join(f"'{t}'" for t, _ in commands[number:]):
                warn(f"'{text}' cannot be done, so not done either: {skipped}")
            raise

    return worst


def _obey(
    client: DebugClient, text: str, command: Command, args: argparse.Namespace
) -> int:
    from ..debugger import help_text, run_command

    if command.name in {"help", "quit", "detach"}:
        print(help_text(command.line) if command.name == "help" else "")
        return 0
    if command.name == "list" and not args.json:
        return _show_list(client, command)

    answers = run_command(client, command, wait_s=args.wait)
    if args.json:
        print_json("dbg", _plain(text, answers), in_one_line=True)
    else:
        print(answers)
    return _status(answers)


def _show_list(client: DebugClient, command: Command) -> int:
    from ..debugger import listing_text, select_processes

    listing = client.list()
    chosen = listing.processes
    if command.ranks is not None:
        chosen = select_processes(listing, command.ranks, command.group)
    print(listing_text(listing, chosen=chosen))
    return _status(listing)


def _plain(text: str, answers: Answers | Listing) -> dict[str, Any]:
    return {"typed": text, **answers.to_dict()}


def _status(answers: Answers | Listing) -> int:
    outputs = getattr(answers, "outputs", ())
    missing = getattr(answers, "not_stopped", ())
    return int(
        bool(missing or answers.silent or answers.lost)
        or any(o.is_error for o in outputs)
    )


_COMMAND = "ray-debugger"
_RAY_DEBUG_TEXT = """
Prepare and use the debugger that Ray brings along.  check looks whether all is
there that it needs, and says what to do about what is missing.  sessions lists
the tasks and actors that wait at a breakpoint, with function and line.
launch-json prints, or puts into a launch.json, what lets VS Code attach to all
of them at once.

Example:
  {prog} ray-debugger check --slurm 2504248
  {prog} ray-debugger sessions --ray 10.0.0.1:6379
  {prog} ray-debugger launch-json --output .

Exit status: 0 all is well; 1 something is in the way, or nobody waits;
2 could not look.
"""


def add_ray_debug_parser(commands: Commands) -> None:
    """
    Add the command ``ray-debugger``.
    """
    parser = add_command(
        commands,
        _COMMAND,
        run_ray_debug,
        help="check Ray's debugger, and list who waits in it",
        text=_RAY_DEBUG_TEXT,
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=list(_ACTIONS),
        default="check",
        help="what to do (default: %(default)s)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="where the cluster is, as HOST:6379 (default: that of this node)",
    )
    _add_check_options(parser)
    _add_launch_options(parser)
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=120.0,
        metavar="S",
        help="seconds that it may take (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_launch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="launch-json: the launch.json to add to, or the folder whose "
        ".vscode has it",
    )
    parser.add_argument(
        "--map",
        action="append",
        type=_mapping,
        metavar="LOCAL=REMOTE",
        help="launch-json: the folder here that has the files of one there",
    )


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm", metavar="JOB", help="check: the Slurm job of the cluster"
    )
    parser.add_argument(
        "--dashboard",
        metavar="HOST:PORT",
        help="check: the dashboard, such as the end of a tunnel",
    )
    parser.add_argument(
        "--login", metavar="HOST", help="check: the login node, for the tunnel"
    )
    parser.add_argument(
        "--port", type=int, help="check: the local port of the tunnel"
    )


def _mapping(text: str) -> tuple[str, str]:
    local, mark, remote = text.partition("=")
    if not (local and mark and remote):
        raise ValueError(text)
    return local, remote


# argparse names the function in its error message.
_mapping.__name__ = "LOCAL=REMOTE"


def run_ray_debug(args: argparse.Namespace) -> int:
    """
    Run one action of ``ray-debugger``.
    """
    return _ACTIONS[args.what](args)


def _check(args: argparse.Namespace) -> int:
    from ..ray import check_ray_debugger

    report = check_ray_debugger(
        args.ray,
        job=args.slurm,
        dashboard=args.dashboard,
        login=args.login,
        local_port=args.port,
        timeout_s=args.timeout,
    )
    if args.json:
        print_json(_COMMAND, report.to_dict())
    else:
        print(report)
    return int(not report.is_ready)


def _sessions(args: argparse.Namespace) -> int:
    sessions = _waiting(args)
    if args.json:
        rows = [session.to_dict() for session in sessions]
        print_json(_COMMAND, {"sessions": rows})
    elif sessions:
        print(_table(sessions))
    else:
        warn("nobody waits in Ray's debugger")
    return int(not sessions)


def _table(sessions: Sequence[RayDebugSession]) -> str:
    from .._text import text_table

    return text_table(
        ("task", "node", "pid", "attach to", "kind", "where"),
        (
            (
                session.title,
                session.node,
                session.pid,
                f"{session.host}:{session.port}",
                session.kind,
                "; ".join(map(str, session.locations)) or session.note,
            )
            for session in sessions
        ),
    )


def _launch(args: argparse.Namespace) -> int:
    from ..ray import launch_json, write_launch_json

    sessions = _waiting(args)
    mappings = dict(args.map) if args.map else None
    launch = launch_json(sessions, path_mappings=mappings)
    count = len(launch["configurations"])
    if args.output is None:
        print(json.dumps(launch, indent=4))
        return int(not count)
    path = write_launch_json(Path(args.output), launch)
    if args.json:
        print_json(_COMMAND, {"path": str(path), "launch": launch})
    else:
        print(f"{path}: {count} configurations")
    return int(not count)


def _waiting(args: argparse.Namespace) -> tuple[RayDebugSession, ...]:
    from ..ray import ray_debug_sessions

    return ray_debug_sessions(args.ray, timeout_s=args.timeout)


_ACTIONS = {"check": _check, "sessions": _sessions, "launch-json": _launch}

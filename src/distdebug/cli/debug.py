"""
``dbg`` and ``ray-debugger``: stop, ask, and steer ranks; check Ray's debugger.
"""

from __future__ import annotations

import json
import os

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import debugger, nodes, ray
from ..errors import DebuggerError, DistdebugError
from .command import (
    CONTAINER,
    JSON,
    RAY_JOB,
    Option,
    command,
    flag,
    many,
    nodes_engine,
    one_of,
    seconds,
    value,
)
from .output import print_json, report, warn


@command(
    "dbg",
    "stop, ask, and steer the ranks of a job",
    value(
        "--dir DIR",
        "the folder of the sockets; by default DISTDEBUG_DIR, or that of the "
        "only job of yours on a node",
    ),
    one_of(
        value("--slurm JOB", "the ranks on every node of this Slurm job"),
        value(
            "--ray ADDRESS",
            "the ranks on every node of this Ray cluster, HOST:PORT or 'auto'",
        ),
        value(
            "--hosts HOST,...",
            "the ranks on these hosts, which ssh reaches without a password",
        ),
    ),
    CONTAINER,
    RAY_JOB,
    value("--python PATH", "the Python that has distdebug on the other nodes"),
    many(
        "--arm PID",
        "first arm this process of this node, which was started without us; "
        "it has to run Python 3.14 or later",
        default=[],
        type=int,
    ),
    many("-c, --command COMMAND", "do this instead of asking what"),
    flag(
        "--json",
        "print what the commands of -c give as JSON, one line each",
    ),
    seconds("--wait", "wait for so long for ranks to stop again", 5.0),
)
def dbg(args: Namespace) -> int:
    """
    Ask the ranks of a job that called distdebug.arm(), or stopped at a
    breakpoint: those on this node, or on all nodes of the job.  Leaving neither
    stops nor ends a rank.

    Commands: list, attach [GROUP] RANK, detach, cast [GROUP] ranks(...)
    COMMAND, continue, eval, stack, interrupt, resume, extend, abort, help, quit.

    Example:
      PYTHONBREAKPOINT=distdebug.debugger.set_trace DISTDEBUG=1 torchrun ... train.py
      {prog} dbg                                 in a second terminal
      {prog} dbg -c 'cast ranks(:) p loss'
      {prog} dbg -c 'stack ranks(tp=0)' --json
      {prog} dbg --slurm 1234                    on every node of the job
      {prog} dbg --hosts node-1,node-2 -c stack

    Exit status: 0 every rank did as asked; 1 a rank did not; 2 could not ask.
    """
    if args.arm:
        _arm(args)
    # Parse all commands before the first one runs.
    commands = [_parsed(text) for text in args.command or ()]
    with _client(args) as client:
        if commands:
            return _obey_all(client, commands, args)

        if _nodes(args) is None:
            _offer([p.pid for p in client.list()])
        with debugger.line_editing(client):
            debugger.run_shell(client, wait_s=args.wait)

    return 0


def _arm(args: Namespace) -> None:
    """
    Arm processes, and use their folder unless one was named.
    """

    armed = [debugger.arm_process(pid) for pid in args.arm]
    for one in armed:
        print(one)
    folders = {os.path.dirname(one.path) for one in armed}  # noqa: PTH120 a text
    if len(folders) == 1 and not args.dir and _nodes(args) is None:
        args.dir = folders.pop()


def _client(args: Namespace) -> debugger.DebugClient:

    if (engine := _nodes(args)) is not None:
        return debugger.connect(args.dir, nodes=engine)

    folder = debugger.choose_folder(args.dir)
    if folder is None:
        _offer(())
    elif not args.dir:
        warn(f"asks the job in {debugger.job_text(folder)}")
    return debugger.connect(folder)


def _offer(armed: Iterable[int]) -> None:
    """
    Print how ranks of this node that are not armed can be armed.
    """

    for line in debugger.arming_hints(debugger.unarmed_workers(armed)):
        warn(line)


def _nodes(args: Namespace) -> nodes.StreamExecutor | None:
    python = {} if args.python is None else {"python": args.python}
    if args.hosts is not None:
        return nodes.Ssh(tuple(filter(None, args.hosts.split(","))), **python)

    engine: nodes.StreamExecutor | None = nodes_engine(args, **python)
    return engine


def _parsed(text: str) -> tuple[str, debugger.Command]:

    parsed = debugger.parse_command(text)
    if parsed.name == "attach":
        msg = "attach talks to a person"
        raise DebuggerError(msg, remedy="cast ranks(3) COMMAND")

    return text, parsed


def _obey_all(
    client: debugger.DebugClient,
    commands: list[tuple[str, debugger.Command]],
    args: Namespace,
) -> int:

    worst = 0
    for number, (text, parsed) in enumerate(commands, start=1):
        try:
            worst = max(worst, _obey(client, text, parsed, args))
        except DistdebugError:
            if skipped := ", ".join(f"'{t}'" for t, _ in commands[number:]):
                warn(f"'{text}' cannot be done, so not done either: {skipped}")
            raise

    return worst


def _obey(
    client: debugger.DebugClient,
    text: str,
    parsed: debugger.Command,
    args: Namespace,
) -> int:

    if parsed.name in {"help", "quit", "detach"}:
        print(debugger.help_text(parsed.line) if parsed.name == "help" else "")
        return 0
    if parsed.name == "list" and not args.json:
        return _show_list(client, parsed)

    answers = debugger.run_command(client, parsed, wait_s=args.wait)
    if args.json:
        data = {"typed": text, **answers.to_dict()}
        print_json(args, data, in_one_line=True)
    else:
        print(answers)
    return _status(answers)


def _show_list(client: debugger.DebugClient, parsed: debugger.Command) -> int:

    listing = client.list()
    chosen = listing.processes
    if parsed.ranks is not None:
        chosen = debugger.select_processes(listing, parsed.ranks, parsed.group)
    print(debugger.listing_text(listing, chosen=chosen))
    return _status(listing)


def _status(answers: debugger.Answers | debugger.Listing) -> int:
    outputs = getattr(answers, "outputs", ())
    missing = getattr(answers, "not_stopped", ())
    return int(
        bool(missing or answers.silent or answers.lost)
        or any(o.is_error for o in outputs)
    )


def _mapping(text: str) -> tuple[str, str]:
    local, mark, remote = text.partition("=")
    if not (local and mark and remote):
        raise ValueError(text)
    return local, remote


# argparse names the function in its error message.
_mapping.__name__ = "LOCAL=REMOTE"


def _check(args: Namespace) -> int:

    checked = ray.check_ray_debugger(
        args.ray,
        job=args.slurm,
        dashboard=args.dashboard,
        login=args.login,
        local_port=args.port,
        timeout_s=args.timeout,
    )
    return report(args, checked, is_fine=checked.is_ready)


def _sessions(args: Namespace) -> int:
    sessions = _waiting(args)
    if args.json:
        print_json(args, {"sessions": [x.to_dict() for x in sessions]})
    elif sessions:
        print(_table(sessions))
    else:
        warn("no task is waiting in Ray's debugger")
    return int(not sessions)


def _table(sessions: Sequence[ray.RayDebugSession]) -> str:
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


def _launch(args: Namespace) -> int:

    sessions = _waiting(args)
    mappings = dict(args.map) if args.map else None
    launch = ray.launch_json(sessions, path_mappings=mappings)
    count = len(launch["configurations"])
    if args.output is None:
        print(json.dumps(launch, indent=4))
        return int(not count)

    path = ray.write_launch_json(Path(args.output), launch)
    if args.json:
        print_json(args, {"path": str(path), "launch": launch})
    else:
        print(f"{path}: {count} configurations")
    return int(not count)


def _waiting(args: Namespace) -> tuple[ray.RayDebugSession, ...]:

    return ray.ray_debug_sessions(args.ray, timeout_s=args.timeout)


_ACTIONS = {"check": _check, "sessions": _sessions, "launch-json": _launch}


@command(
    "ray-debugger",
    "check Ray's debugger, and list who waits in it",
    Option(
        ["what"],
        {
            "nargs": "?",
            "choices": list(_ACTIONS),
            "default": "check",
            "help": "what to do (default: %(default)s)",
        },
    ),
    value(
        "--ray ADDRESS",
        "where the cluster is, as HOST:6379 (default: that of this node)",
    ),
    value("--slurm JOB", "check: the Slurm job of the cluster"),
    value(
        "--dashboard HOST:PORT",
        "check: the dashboard, such as the end of a tunnel",
    ),
    value("--login HOST", "check: the login node, for the tunnel"),
    value("--port PORT", "check: the local port of the tunnel", type=int),
    value(
        "--output PATH",
        "launch-json: the launch.json to add to, or the folder whose .vscode "
        "has it",
    ),
    many(
        "--map LOCAL=REMOTE",
        "launch-json: the folder here that has the files of one there",
        type=_mapping,
    ),
    seconds("--timeout", "seconds that it may take", 120.0),
    JSON,
)
def ray_debugger(args: Namespace) -> int:
    """
    Prepare and use the debugger that Ray brings along.  check looks whether
    all is there that it needs, and says what to do about what is missing.
    sessions lists the tasks and actors that wait at a breakpoint, with function
    and line.  launch-json prints, or puts into a launch.json, what lets VS Code
    attach to all of them at once.

    Example:
      {prog} ray-debugger check --slurm 2504248
      {prog} ray-debugger sessions --ray 10.0.0.1:6379
      {prog} ray-debugger launch-json --output .

    Exit status: 0 all is well; 1 something is in the way, or no worker waits;
    2 could not look.
    """
    return _ACTIONS[args.what](args)

"""
What is in the way of using Ray's debugger?
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import socket
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from .._in_time import in_time
from .._text import clean
from ..capture import Check, run_tool
from ..errors import MissingDependencyError, NodesError
from ..nodes import Slurm
from .debugger_sessions import (
    EXTENSION,
    RayDebuggerCheck,
    RayDebugSession,
    Told,
    ask_environments,
    ask_tables,
    plain_text,
    rows_of,
    sessions_in,
)


_MOST_BYTES = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_ADDRESS = re.compile(
    r"(?:http://)?(?:\[([0-9a-fA-F:.%]{2,64})\]|([\w.-]{1,253})):(\d{1,5})/?"
)
_REMEDY = (
    "start the head with its dashboard (pip install 'ray[default]', without "
    "--include-dashboard=false), and ask through a tunnel from elsewhere: it "
    "listens at 127.0.0.1 of the head unless --dashboard-host says otherwise"
)


def split_address(text: str) -> tuple[str, int] | None:
    """
    Which host and port does an address name?

    Args:
        text: Such as ``"http://10.0.0.1:8265"``, with or without the scheme.

    Returns:
        Both; ``None`` if it is no such address.
    """
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[3]) < 1 << 16:
        return None
    return match[1] or match[2], int(match[3])


def check_dashboard(
    address: str, *, timeout_s: float, version: str = ""
) -> Check:
    """
    Ask the dashboard for its version.

    No proxy is used, no redirection is followed, and nothing that is secret
    is sent: a dashboard that wants a token is reachable all the same.

    Args:
        address: Where it is, as ``HOST:PORT``; ``""`` if there is none.

        timeout_s: How long it may take in all, in seconds.

        version: The Ray that it should be, or ``""``.
    """
    name = "dashboard"
    where = split_address(address)
    if where is None:
        detail = (
            f"{clean(address)!r} is no address" if address else "there is none"
        )
        return Check(name, ok=False, detail=detail, remedy=_REMEDY)
    try:
        reply = _get(*where, "/api/version", time.monotonic() + timeout_s)
    except OSError as exc:
        why = "no answer in time" if isinstance(exc, TimeoutError) else exc
        detail = f"{clean(address)} does not answer: {why}"
        return Check(name, ok=False, detail=detail, remedy=_REMEDY)
    return _judged(name, clean(address), reply, version)


def _judged(name: str, address: str, reply: bytes, version: str) -> Check:
    status = _STATUS.match(reply)
    if status and status[1] in {b"401", b"403"}:
        detail = f"{address} answers, and wants a token"
        remedy = "the extension has to be given the one in ~/.ray/auth_token"
        return Check(name, ok=True, detail=detail, remedy=remedy)
    _, _, body = reply.partition(b"\r\n\r\n")
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    ray = told.get("ray_version") if isinstance(told, dict) else None
    if not (status and status[1] == b"200" and isinstance(ray, str)):
        detail = f"what answers at {address} is no dashboard of Ray"
        return Check(name, ok=False, detail=detail, remedy=_REMEDY)
    ray = clean(ray, limit=40)
    if version and ray != version:
        detail = f"{address} is the dashboard of another cluster: Ray {ray}"
        remedy = f"take the port of the cluster that has Ray {version}"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    return Check(name, ok=True, detail=f"{address} answers: Ray {ray}")


def _get(host: str, port: int, path: str, deadline: float) -> bytes:
    """
    Not by a library: each part of an answer would get the whole time again.
    """
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n"
    reply = bytearray()
    with socket.create_connection((host, port), _left(deadline)) as link:
        link.settimeout(_left(deadline))
        link.sendall(request.encode("ascii"))
        while len(reply) < _MOST_BYTES:
            link.settimeout(_left(deadline))
            if not (data := link.recv(1 << 14)):
                break
            reply += data
    return bytes(reply)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


_EDITORS = ("code", "cursor", "code-insiders", "codium")


def check_extension(*, timeout_s: float = 10.0) -> Check:
    """
    Is the extension for Ray's debugger installed?

    That can only be seen where the editor is; elsewhere it is no problem.

    Args:
        timeout_s: How long each editor may take, in seconds.
    """
    name = "extension"
    tools = {tool: shutil.which(tool) for tool in _EDITORS}
    lacking, silent = [], []
    for editor, path in tools.items():
        if path is None:
            continue
        listed = _extensions(path, timeout_s)
        if listed is None:
            silent.append(editor)
        elif EXTENSION in listed:
            return Check(name, ok=True, detail=f"{EXTENSION} is in {editor}")
        else:
            lacking.append(editor)
    remedy = f"code --install-extension {EXTENSION}"
    if lacking:
        detail = f"{EXTENSION} is not in {', '.join(lacking)}"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    detail = (
        f"{', '.join(silent)} did not list its extensions"
        if silent
        else "no editor's command is here"
    )
    remedy += ", where VS Code runs; a launch.json of ours does without it"
    return Check(name, ok=None, detail=detail, remedy=remedy)


def _extensions(path: str, timeout_s: float) -> set[str] | None:
    try:
        got = run_tool([path, "--list-extensions"], timeout_s=timeout_s)
    except OSError:
        return None
    if got.status != 0:
        return None
    # With --show-versions, which a wrapper may add, a version follows.
    lines = got.output.lower().splitlines()
    return {line.strip().partition("@")[0] for line in lines}


# With this version the debugger that VS Code attaches to came to be the
# default.
_OLDEST_RAY = (2, 39)
_OLDEST_DEBUGPY = (1, 8, 0)


def check_debugpy(told: Sequence[Told]) -> Check:
    """
    Is debugpy where the workers are, and new enough for Ray?

    Args:
        told: What the workers said.
    """
    bad: dict[str, list[Told]] = {}
    versions, silent = set(), []
    for one in told:
        version = plain_text(one.facts.get("debugpy"))
        if not _answered(one):
            silent.append(one)
        elif problem := _debugpy_problem(version, one.facts):
            bad.setdefault(problem, []).append(one)
        else:
            versions.add(version)
    if bad:
        detail = "; ".join(
            f"{problem} ({_names(ones)})" for problem, ones in bad.items()
        )
        return Check("debugpy", ok=False, detail=detail, remedy=_ADD_DEBUGPY)
    if silent:
        why = plain_text(silent[0].facts.get("reason"))
        detail = f"not known of {_names(silent)}: {why or 'no answer'}"
        return Check("debugpy", ok=None, detail=detail, remedy=_ASK_YOURSELF)
    if not versions:
        return Check("debugpy", ok=None, detail="no worker was asked")
    listed = ", ".join(sorted(versions))
    return Check("debugpy", ok=True, detail=f"{listed} ({len(told)} asked)")


_ADD_DEBUGPY = (
    "add debugpy>=1.8.0,<1.10 to the dependencies that the workers get (the "
    "project's, or the runtime_env's), and start the job again: without it "
    "breakpoint() is passed over, and one line in the worker's log says so"
)
_ASK_YOURSELF = "give it more time, or import debugpy in a task of the job"


def _debugpy_problem(version: str, facts: Mapping[str, Any]) -> str:
    if not version:
        why = plain_text(facts.get("reason"))
        missing = not why or "No module named" in why
        return "debugpy is not installed" if missing else f"debugpy: {why}"
    if (_version(version) or _OLDEST_DEBUGPY) < _OLDEST_DEBUGPY:
        return f"debugpy {version} is older than 1.8.0"
    # Ray compares the texts.
    if version < "1.8.0":
        return f"Ray takes debugpy {version} for older than 1.8.0"
    return ""


def check_switch(told: Iterable[Told]) -> Check:
    """
    Which debugger does the environment of the workers choose?

    Args:
        told: What the workers said.
    """
    values: dict[str, list[Told]] = {}
    for one in told:
        if _answered(one):
            value = one.facts.get("RAY_DEBUG")
            # Without it, and with 1, it is the one VS Code attaches to.
            text = "1" if value is None else plain_text(value)
            values.setdefault(text, []).append(one)
    name = "RAY_DEBUG of the workers"
    if not values:
        return Check(name, ok=None, detail="no worker told it")
    if ones := values.pop("legacy", None):
        detail = f"it is legacy for {_names(ones)}: VS Code cannot attach"
        return Check(name, ok=False, detail=detail, remedy=_UNSET)
    values.pop("1", None)
    for value, ones in values.items():
        detail = (
            f"it is {value!r} for {_names(ones)}: breakpoint() does nothing"
        )
        return Check(name, ok=False, detail=detail, remedy=_UNSET)
    return Check(name, ok=True, detail="not set, or 1")


_UNSET = (
    "take RAY_DEBUG out of the environment of `ray start` and of "
    "runtime_env['env_vars'], which hand it to the workers, and start again"
)


def check_driver(environment: Mapping[str, str] = os.environ) -> Check:
    """
    What does a breakpoint in the program itself do, if started from here?

    Args:
        environment: What it would be started with.
    """
    value = environment.get("RAY_DEBUG", "1")
    name = "RAY_DEBUG of the driver"
    if value == "legacy":
        detail = "legacy here: breakpoints in the driver open pdb in its shell"
        remedy = (
            "workers started with the same environment are not for VS Code: "
            "do not hand it on by `ray start` or runtime_env"
        )
        return Check(name, ok=None, detail=detail, remedy=remedy)
    if value != "1":
        detail = f"{value!r} here: breakpoints in the driver do nothing"
        return Check(name, ok=None, detail=detail, remedy=_DRIVER)
    detail = (
        "not legacy here: breakpoints in the driver wait for VS Code if it "
        "has debugpy, and are passed over if not"
    )
    return Check(name, ok=None, detail=detail, remedy=_DRIVER)


_DRIVER = "for pdb in the driver's own shell, start it with RAY_DEBUG=legacy"


def check_post_mortem(told: Iterable[Told]) -> Check:
    """
    Do failing tasks wait for the debugger?

    Args:
        told: What the workers said.
    """
    ones = [
        one for one in told if one.facts.get("RAY_DEBUG_POST_MORTEM") == "1"
    ]
    name = "RAY_DEBUG_POST_MORTEM"
    if ones:
        detail = f"1 for {_names(ones)}: tasks that fail wait for a debugger"
        remedy = "without anybody to attach they wait for ever: unset it then"
        return Check(name, ok=None, detail=detail, remedy=remedy)
    detail = "not 1: tasks that fail do not wait for a debugger"
    remedy = "set it to 1 for the workers if they should"
    return Check(name, ok=None, detail=detail, remedy=remedy)


def check_ray(told: Iterable[Told], cluster: str) -> Check:
    """
    Is Ray new enough for the debugger that VS Code attaches to?

    Args:
        told: What the workers said.

        cluster: The version that the cluster was started with, or ``""``.
    """
    versions = {plain_text(one.facts.get("ray")) for one in told} | {cluster}
    known = sorted(versions - {""})
    name = "Ray"
    if not known:
        return Check(name, ok=None, detail="its version is not known")
    old = [x for x in known if (_version(x) or _OLDEST_RAY) < _OLDEST_RAY]
    if old:
        detail = f"Ray {', '.join(old)} is older than 2.39"
        remedy = "use a newer one: before, its default was `ray debug`"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    return Check(name, ok=True, detail=", ".join(known))


def _version(text: str) -> tuple[int, ...] | None:
    match = re.match(r"\d{1,6}(?:\.\d{1,6}){0,3}", text)
    return tuple(map(int, match[0].split("."))) if match else None


def _answered(one: Told) -> bool:
    return "debugpy" in one.facts


def _names(ones: Sequence[Told]) -> str:
    return ", ".join(_distinct(f"{x.who} on {x.node}" for x in ones))


def _distinct(names: Iterable[str]) -> Iterator[str]:
    found = list(dict.fromkeys(names))
    yield from found[:3]
    if len(found) > 3:
        yield f"{len(found) - 3} more"


# Where Ray puts the dashboard if nobody says otherwise.
_PORT = 8265

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:%-]{0,252})")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ANY = {"0.0.0.0", "::"}  # noqa: S104 -- it is what others may say


def head_of_job(job: str) -> str:
    """
    Which node of a Slurm job is the first?

    ``squeue`` tells the nodes, and ``scontrol show hostnames`` their names:
    a list such as ``n[1-3,7],m12`` has more forms than one could guess.  The
    scripts that start Ray on Slurm take the first one for the head.

    Args:
        job: The number of the job.

    Returns:
        The name of the node.

    Raises:
        NodesError: There is no Slurm, no such job, or it does not run.
    """
    host = next(iter(Slurm(job=job).places()), "")
    if not _HOST.fullmatch(host):
        msg = f"Slurm tells no name of a node for job {job}: {host!r:.80}"
        raise NodesError(msg, remedy=f"see `squeue -j {job}`")
    return host


def free_port() -> int:
    """
    Which port is free on this machine?

    Somebody else may take it meanwhile; ``ssh`` says so then.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def tunnel_line(
    *,
    local_port: int,
    head: str,
    dashboard: tuple[str, int] | None,
    login: str,
    user: str = "",
) -> str:
    """
    Which command brings the dashboard to a port of this machine?

    Where it listens at the loopback of the head, only the head reaches it, so
    that the tunnel has to end there; otherwise it ends at the login node.

    Args:
        local_port: The port here.

        head: The name of the head node.

        dashboard: Where the dashboard listens on it, if that is known.

        login: The login node; ``""`` if one is on it.

        user: The user; by default the one of this process.

    Returns:
        One line for a shell.

    Raises:
        NodesError: A name could be taken for something else.
    """
    user = user or _me()
    for name, form in ((head, _HOST), (login or "x", _HOST), (user, _USER)):
        if not form.fullmatch(name):
            msg = f"{name!r:.80} is no name that ssh could be given"
            raise NodesError(msg, remedy="give the name of a host")
    host, port = dashboard or ("", _PORT)
    is_hidden = is_loopback(host)
    # What listens at one address only does not at the loopback.
    near = host if host not in {"", *_LOOPBACK, *_ANY} else "localhost"
    line = ["ssh", "-N", "-L"]
    if not login:
        line += [f"{local_port}:{_bracketed(near)}:{port}", f"{user}@{head}"]
    elif is_hidden:
        line += [f"{local_port}:localhost:{port}", "-J", f"{user}@{login}"]
        line += [f"{user}@{head}"]
    else:
        line += [f"{local_port}:{_bracketed(head)}:{port}", f"{user}@{login}"]
    return shlex.join(line)


def is_loopback(host: str) -> bool:
    """
    Is this an address that only its own machine reaches?
    """
    return host in _LOOPBACK


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "USER"


# So long may the dashboard take at most, in seconds.
_DASHBOARD_S = 5.0
_SLURM_S = 60.0
# What stands for the login node if nobody names it.
_LOGIN = "LOGIN"


class _Cluster(NamedTuple):
    """
    What the cluster itself told.
    """

    tables: Mapping[str, Any]
    checks: tuple[Check, ...]


def check_ray_debugger(  # noqa: PLR0913 each can be left out
    address: str | None = None,
    *,
    job: str | None = None,
    dashboard: str | None = None,
    login: str | None = None,
    local_port: int | None = None,
    timeout_s: float = 120.0,
) -> RayDebuggerCheck:
    """
    Which prerequisites of Ray's debugger are met, and which are not?

    Each environment of the cluster is asked by a task that needs no CPU;
    nothing else is started, and nothing is changed.  What cannot be looked at
    from here costs its own checks only.

    Args:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        job: The number of the Slurm job that the cluster runs in, if one.

        dashboard: Where the dashboard is for those who look from here, such
            as the end of a tunnel, as ``HOST:PORT``; by default where the
            cluster says.

        login: The node that one logs in to, for the line of the tunnel; by
            default the one where the job was submitted.  ``""`` means that
            the tunnel starts there.

        local_port: The port of the tunnel on the machine of the user; by
            default one that is free here.

        timeout_s: How long it may take, in seconds.

    Returns:
        Every check, with what to do about it.
    """
    deadline = time.monotonic() + timeout_s
    tables, cluster_checks = _cluster(address, job, deadline)
    version = plain_text(tables.get("ray_version"), limit=40)
    its_own = plain_text(tables.get("dashboard"))
    where = dashboard or its_own
    head, head_checks = _head(tables, job, deadline)
    port, port_check = _port(local_port)
    line, tunnel_check = _tunnel(port, head, its_own, login)
    sessions = sessions_in(tables)
    checks = (
        *cluster_checks,
        check_driver(os.environ),
        *_dashboard(where, None if dashboard else head, version, deadline),
        *head_checks,
        port_check,
        *tunnel_check,
        check_extension(timeout_s=_checking_left(deadline, 10.0)),
        *_open_ports(sessions),
    )
    return RayDebuggerCheck(
        checks=checks,
        sessions=sessions,
        address=plain_text(tables.get("address")),
        dashboard=where,
        head_node=head,
        local_port=port,
        tunnel=line,
    )


def _cluster(
    address: str | None, job: str | None, deadline: float
) -> _Cluster:
    try:
        tables = ask_tables(address, timeout_s=_checking_left(deadline, 30.0))
    except (MissingDependencyError, NodesError) as exc:
        failed = Check(
            "cluster", ok=False, detail=str(exc), remedy=exc.remedy or ""
        )
        return _Cluster({}, (_in_the_job(failed, job),))
    count = len(rows_of(tables.get("nodes")))
    where = plain_text(tables.get("address"))
    many = "" if count == 1 else "s"
    there = Check(
        "cluster",
        ok=count > 0,
        detail=f"{count} node{many} at {where}",
        remedy="" if count else "see `ray status` on the head node",
    )
    # The last part of the time is for what is asked here.
    left = _checking_left(deadline, 600.0) * 0.8
    told = ask_environments(address, tables, timeout_s=left)
    version = plain_text(tables.get("ray_version"), limit=40)
    checks = (
        there,
        check_ray(told, version),
        check_debugpy(told),
        check_switch(told),
        check_post_mortem(told),
    )
    return _Cluster(tables, checks)


def _in_the_job(check: Check, job: str | None) -> Check:
    """
    The same, with how to ask inside the job.
    """
    if job is None:
        return check
    argv = ["srun", "--overlap", f"--jobid={job}", "-N1", "-n1", "python"]
    argv += ["-m", "distdebug", "ray-debugger", "check"]
    remedy = (
        f"ask in the job: {shlex.join(argv)}, with --container-name=... where "
        "Ray runs in a container"
    )
    return attrs.evolve(check, remedy=remedy)


def _head(
    tables: Mapping[str, Any], job: str | None, deadline: float
) -> tuple[str, tuple[Check, ...]]:
    rows = rows_of(tables.get("nodes"))
    names = [plain_text(row.get("name")) for row in rows if row.get("is_head")]
    known = names[0] if names else ""
    if job is None:
        return known, ()
    name = "head node"
    try:
        first = in_time(
            lambda: head_of_job(job), _checking_left(deadline, _SLURM_S)
        )
    except (NodesError, TimeoutError) as exc:
        # A controller of Slurm that is busy says nothing for minutes.
        detail = str(exc) or "Slurm does not answer in time"
        remedy = getattr(exc, "remedy", None) or "see whether `sinfo` answers"
        return known, (Check(name, ok=False, detail=detail, remedy=remedy),)
    if known and _short(known) != _short(first):
        detail = f"the head is {known}, not {first}, the first node of {job}"
        remedy = f"let the tunnel end at {known}"
        return known, (Check(name, ok=False, detail=detail, remedy=remedy),)
    detail = f"{first}, the first node of Slurm job {job}"
    return first, (Check(name, ok=True, detail=detail),)


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _port(wanted: int | None) -> tuple[int, Check]:
    name = "local port"
    if wanted is None:
        port = free_port()
        return port, Check(name, ok=True, detail=f"{port} is free here")
    if problem := _port_problem(wanted):
        detail = f"{wanted} cannot be taken here: {problem}"
        remedy = f"take another one, such as {free_port()}"
        return wanted, Check(name, ok=False, detail=detail, remedy=remedy)
    return wanted, Check(name, ok=True, detail=f"{wanted} is free here")


def _port_problem(port: int) -> str:
    if not 0 < port < 1 << 16:
        return "there is no such port"
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as exc:
        return str(exc)
    return ""


def _tunnel(
    port: int, head: str, where: str, login: str | None
) -> tuple[str, tuple[Check, ...]]:
    if not head:
        return "", ()
    if login is None:
        login = os.environ.get("SLURM_SUBMIT_HOST") or _LOGIN
    try:
        line = tunnel_line(
            local_port=port,
            head=head,
            dashboard=split_address(where),
            login=login,
        )
    except NodesError as exc:
        remedy = exc.remedy or ""
        return "", (Check("tunnel", ok=False, detail=str(exc), remedy=remedy),)
    return line, (Check("tunnel", ok=None, detail=line),)


def _dashboard(
    where: str, head: str | None, version: str, deadline: float
) -> tuple[Check, ...]:
    """
    Whether it answers; *head* is where it is, unless it was named by the user.
    """
    if not where and not version:
        # Nobody knows where it should be.
        return ()
    parts = split_address(where)
    is_elsewhere = head is not None and not _is_here(head)
    if parts and is_loopback(parts[0]) and is_elsewhere:
        detail = f"{where} of {head}: nobody reaches it but that node"
        remedy = "open the tunnel, and check its end by dashboard=..."
        return (Check("dashboard", ok=None, detail=detail, remedy=remedy),)
    left = _checking_left(deadline, _DASHBOARD_S)
    return (check_dashboard(where, timeout_s=left, version=version),)


def _is_here(host: str) -> bool:
    return _short(host) == _short(socket.gethostname())


def _open_ports(sessions: tuple[RayDebugSession, ...]) -> tuple[Check, ...]:
    ports = [s for s in sessions if s.kind == "debugpy"]
    if not ports:
        return ()
    detail = (
        "whoever reaches the nodes may run code at the ports of those who "
        f"wait, {len(ports)} now: debugpy asks for no password"
    )
    remedy = "let nobody else onto the network of the nodes"
    return (Check("open ports", ok=None, detail=detail, remedy=remedy),)


def _checking_left(deadline: float, most: float) -> float:
    return max(min(deadline - time.monotonic(), most), 1.0)

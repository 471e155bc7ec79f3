"""
Check the prerequisites of Ray's debugger: dashboard, debugpy, tunnel.
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
    WorkerEnvironment,
    parse_rows,
    parse_sessions,
    plain_text,
    query_cluster_state,
    query_environments,
)


_MOST_BYTES = 1 << 16
_HTTP_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_ADDRESS = re.compile(
    r"(?:http://)?(?:\[([0-9a-fA-F:.%]{2,64})\]|([\w.-]{1,253})):(\d{1,5})/?"
)
_DASHBOARD_REMEDY = (
    "start the head with its dashboard (pip install 'ray[default]', without "
    "--include-dashboard=false), and ask through a tunnel from elsewhere: it "
    "listens at 127.0.0.1 of the head unless --dashboard-host says otherwise"
)


def split_address(text: str) -> tuple[str, int] | None:
    """
    Split an address such as ``"http://10.0.0.1:8265"`` into host and port.

    Args:
        text: The address, with or without the scheme.

    Returns:
        Both; ``None`` if it is not valid.
    """
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[3]) < 1 << 16:
        return None
    return match[1] or match[2], int(match[3])


def check_dashboard(
    address: str, *, timeout_s: float, version: str = ""
) -> Check:
    """
    Check that the dashboard answers with its version.

    The request uses no proxy, follows no redirection, and sends no secret: a
    dashboard that requires a token counts as reachable.

    Args:
        address: ``HOST:PORT``; ``""`` if there is none.

        timeout_s: The timeout in all, in seconds.

        version: The expected Ray version, or ``""``.
    """
    name = "dashboard"
    where = split_address(address)
    if where is None:
        detail = (
            f"{clean(address)!r} is no address" if address else "there is none"
        )
        return Check(name, ok=False, detail=detail, remedy=_DASHBOARD_REMEDY)
    try:
        reply = _http_get(*where, "/api/version", time.monotonic() + timeout_s)
    except OSError as exc:
        reason = "no answer in time" if isinstance(exc, TimeoutError) else exc
        detail = f"{clean(address)} does not answer: {reason}"
        return Check(name, ok=False, detail=detail, remedy=_DASHBOARD_REMEDY)
    return _parse_dashboard_reply(name, clean(address), reply, version)


def _parse_dashboard_reply(
    name: str, address: str, reply: bytes, version: str
) -> Check:
    status = _HTTP_STATUS.match(reply)
    if status and status[1] in {b"401", b"403"}:
        detail = f"{address} answers, and wants a token"
        remedy = "the extension has to be given the one in ~/.ray/auth_token"
        return Check(name, ok=True, detail=detail, remedy=remedy)
    _, _, body = reply.partition(b"\r\n\r\n")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    ray = data.get("ray_version") if isinstance(data, dict) else None
    if not (status and status[1] == b"200" and isinstance(ray, str)):
        detail = f"what answers at {address} is no dashboard of Ray"
        return Check(name, ok=False, detail=detail, remedy=_DASHBOARD_REMEDY)
    ray = clean(ray, limit=40)
    if version and ray != version:
        detail = f"{address} is the dashboard of another cluster: Ray {ray}"
        remedy = f"take the port of the cluster that has Ray {version}"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    return Check(name, ok=True, detail=f"{address} answers: Ray {ray}")


def _http_get(host: str, port: int, path: str, deadline: float) -> bytes:
    """
    Send a GET request and return the reply.

    HTTP libraries restart the timeout with each part of a reply.
    """
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n"
    reply = bytearray()
    with socket.create_connection(
        (host, port), _seconds_left(deadline)
    ) as link:
        link.settimeout(_seconds_left(deadline))
        link.sendall(request.encode("ascii"))
        while len(reply) < _MOST_BYTES:
            link.settimeout(_seconds_left(deadline))
            if not (data := link.recv(1 << 14)):
                break
            reply += data
    return bytes(reply)


def _seconds_left(deadline: float) -> float:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


_EDITORS = ("code", "cursor", "code-insiders", "codium")


def check_extension(*, timeout_s: float = 10.0) -> Check:
    """
    Check whether a local editor has the extension for Ray's debugger.

    Without an editor here the result is open, not a problem.

    Args:
        timeout_s: The timeout for each editor, in seconds.
    """
    name = "extension"
    tools = {tool: shutil.which(tool) for tool in _EDITORS}
    without_extension, unanswered = [], []
    for editor, path in tools.items():
        if path is None:
            continue
        listed = _list_extensions(path, timeout_s)
        if listed is None:
            unanswered.append(editor)
        elif EXTENSION in listed:
            return Check(name, ok=True, detail=f"{EXTENSION} is in {editor}")
        else:
            without_extension.append(editor)
    remedy = f"code --install-extension {EXTENSION}"
    if without_extension:
        detail = f"{EXTENSION} is not in {', '.join(without_extension)}"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    detail = (
        f"{', '.join(unanswered)} did not list its extensions"
        if unanswered
        else "no editor's command is here"
    )
    remedy += ", where VS Code runs; a launch.json of ours does without it"
    return Check(name, ok=None, detail=detail, remedy=remedy)


def _list_extensions(path: str, timeout_s: float) -> set[str] | None:
    try:
        result = run_tool([path, "--list-extensions"], timeout_s=timeout_s)
    except OSError:
        return None
    if result.status != 0:
        return None
    # A wrapper may add --show-versions, which appends the version.
    lines = result.output.lower().splitlines()
    return {line.strip().partition("@")[0] for line in lines}


# The first version whose default is the debugger that VS Code attaches to.
_OLDEST_RAY = (2, 39)
_OLDEST_DEBUGPY = (1, 8, 0)


def check_debugpy(environments: Sequence[WorkerEnvironment]) -> Check:
    """
    Check that all workers have a debugpy that is new enough for Ray.
    """
    bad: dict[str, list[WorkerEnvironment]] = {}
    versions, unanswered = set(), []
    for worker in environments:
        version = plain_text(worker.facts.get("debugpy"))
        if not _has_answer(worker):
            unanswered.append(worker)
        elif problem := _debugpy_problem(version, worker.facts):
            bad.setdefault(problem, []).append(worker)
        else:
            versions.add(version)
    if bad:
        detail = "; ".join(
            f"{problem} ({_join_names(workers)})"
            for problem, workers in bad.items()
        )
        return Check("debugpy", ok=False, detail=detail, remedy=_ADD_DEBUGPY)
    if unanswered:
        reason = plain_text(unanswered[0].facts.get("reason"))
        detail = (
            f"not known of {_join_names(unanswered)}: {reason or 'no answer'}"
        )
        return Check(
            "debugpy", ok=None, detail=detail, remedy=_UNKNOWN_DEBUGPY_REMEDY
        )
    if not versions:
        return Check("debugpy", ok=None, detail="no worker was asked")
    listed = ", ".join(sorted(versions))
    return Check(
        "debugpy", ok=True, detail=f"{listed} ({len(environments)} asked)"
    )


_ADD_DEBUGPY = (
    "add debugpy>=1.8.0,<1.10 to the dependencies that the workers get (the "
    "project's, or the runtime_env's), and start the job again: without it "
    "breakpoint() is passed over, and one line in the worker's log says so"
)
_UNKNOWN_DEBUGPY_REMEDY = (
    "give it more time, or import debugpy in a task of the job"
)


def _debugpy_problem(version: str, facts: Mapping[str, Any]) -> str:
    if not version:
        reason = plain_text(facts.get("reason"))
        missing = not reason or "No module named" in reason
        return "debugpy is not installed" if missing else f"debugpy: {reason}"
    if (_version(version) or _OLDEST_DEBUGPY) < _OLDEST_DEBUGPY:
        return f"debugpy {version} is older than 1.8.0"
    # Ray compares the versions as texts.
    if version < "1.8.0":
        return f"Ray takes debugpy {version} for older than 1.8.0"
    return ""


def check_ray_debug(environments: Iterable[WorkerEnvironment]) -> Check:
    """
    Check which debugger ``RAY_DEBUG`` selects in the workers.
    """
    values: dict[str, list[WorkerEnvironment]] = {}
    for worker in environments:
        if _has_answer(worker):
            value = worker.facts.get("RAY_DEBUG")
            # Unset and 1 mean the debugger that VS Code attaches to.
            text = "1" if value is None else plain_text(value)
            values.setdefault(text, []).append(worker)
    name = "RAY_DEBUG of the workers"
    if not values:
        return Check(name, ok=None, detail="no worker told it")
    if workers := values.pop("legacy", None):
        detail = (
            f"it is legacy for {_join_names(workers)}: VS Code cannot attach"
        )
        return Check(name, ok=False, detail=detail, remedy=_UNSET_RAY_DEBUG)
    values.pop("1", None)
    for value, workers in values.items():
        detail = (
            f"it is {value!r} for {_join_names(workers)}: "
            "breakpoint() does nothing"
        )
        return Check(name, ok=False, detail=detail, remedy=_UNSET_RAY_DEBUG)
    return Check(name, ok=True, detail="not set, or 1")


_UNSET_RAY_DEBUG = (
    "take RAY_DEBUG out of the environment of `ray start` and of "
    "runtime_env['env_vars'], which hand it to the workers, and start again"
)


def check_driver(environment: Mapping[str, str] = os.environ) -> Check:
    """
    Report what a breakpoint in a driver started from here does.

    Args:
        environment: The environment of the driver.
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
        return Check(name, ok=None, detail=detail, remedy=_PDB_REMEDY)
    detail = (
        "not legacy here: breakpoints in the driver wait for VS Code if it "
        "has debugpy, and are passed over if not"
    )
    return Check(name, ok=None, detail=detail, remedy=_PDB_REMEDY)


_PDB_REMEDY = (
    "for pdb in the driver's own shell, start it with RAY_DEBUG=legacy"
)


def check_post_mortem(environments: Iterable[WorkerEnvironment]) -> Check:
    """
    Report whether failing tasks wait for the debugger.
    """
    workers = [
        worker
        for worker in environments
        if worker.facts.get("RAY_DEBUG_POST_MORTEM") == "1"
    ]
    name = "RAY_DEBUG_POST_MORTEM"
    if workers:
        detail = (
            f"1 for {_join_names(workers)}: "
            "tasks that fail wait for a debugger"
        )
        remedy = "without anybody to attach they wait for ever: unset it then"
        return Check(name, ok=None, detail=detail, remedy=remedy)
    detail = "not 1: tasks that fail do not wait for a debugger"
    remedy = "set it to 1 for the workers if they should"
    return Check(name, ok=None, detail=detail, remedy=remedy)


def check_ray_version(
    environments: Iterable[WorkerEnvironment], cluster: str
) -> Check:
    """
    Check that Ray is new enough for the debugger that VS Code attaches to.

    Args:
        cluster: The version that the cluster was started with, or ``""``.
    """
    versions = {
        plain_text(worker.facts.get("ray")) for worker in environments
    } | {cluster}
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


def _has_answer(worker: WorkerEnvironment) -> bool:
    return "debugpy" in worker.facts


def _join_names(workers: Sequence[WorkerEnvironment]) -> str:
    return ", ".join(_shorten(f"{x.used_by} on {x.node}" for x in workers))


def _shorten(names: Iterable[str]) -> Iterator[str]:
    found = list(dict.fromkeys(names))
    yield from found[:3]
    if len(found) > 3:
        yield f"{len(found) - 3} more"


# Ray's default port of the dashboard.
_DASHBOARD_PORT = 8265

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:%-]{0,252})")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ANY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 -- compared, not bound


def find_head_of_job(job: str) -> str:
    """
    Return the first node of a Slurm job.

    ``squeue`` returns the nodes, and ``scontrol show hostnames`` their names:
    a list such as ``n[1-3,7],m12`` has too many forms to parse.  The usual
    scripts that start Ray on Slurm use the first node as head.

    Args:
        job: The job id.

    Raises:
        NodesError: There is no Slurm, no such job, or it is not running.
    """
    host = next(iter(Slurm(job=job).srun_prefixes()), "")
    if not _HOST.fullmatch(host):
        msg = f"Slurm tells no name of a node for job {job}: {host!r:.80}"
        raise NodesError(msg, remedy=f"see `squeue -j {job}`")
    return host


def find_free_port() -> int:
    """
    Find a free port on this machine.

    Another process may take it meanwhile; ``ssh`` reports that.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def format_tunnel(
    *,
    local_port: int,
    head: str,
    dashboard: tuple[str, int] | None,
    login: str,
    user: str = "",
) -> str:
    """
    Return the ssh command that forwards the dashboard to a local port.

    If the dashboard listens on the loopback of the head, the tunnel has to end
    on the head; otherwise it ends on the login node.

    Args:
        local_port: The port on this machine.

        head: The name of the head node.

        dashboard: The host and port of the dashboard, if known.

        login: The login node; ``""`` if the tunnel starts there.

        user: The user; by default the one of this process.

    Returns:
        One shell line.

    Raises:
        NodesError: A name is not a valid host or user name.
    """
    user = user or _user_name()
    for name, form in ((head, _HOST), (login or "x", _HOST), (user, _USER)):
        if not form.fullmatch(name):
            msg = f"{name!r:.80} is no name that ssh could be given"
            raise NodesError(msg, remedy="give the name of a host")
    host, port = dashboard or ("", _DASHBOARD_PORT)
    is_hidden = is_loopback(host)
    # A server bound to one address does not listen on the loopback.
    target_host = (
        host if host not in {"", *_LOOPBACK, *_ANY_ADDRESS} else "localhost"
    )
    line = ["ssh", "-N", "-L"]
    if not login:
        line += [
            f"{local_port}:{_bracket_ipv6(target_host)}:{port}",
            f"{user}@{head}",
        ]
    elif is_hidden:
        line += [f"{local_port}:localhost:{port}", "-J", f"{user}@{login}"]
        line += [f"{user}@{head}"]
    else:
        line += [
            f"{local_port}:{_bracket_ipv6(head)}:{port}",
            f"{user}@{login}",
        ]
    return shlex.join(line)


def is_loopback(host: str) -> bool:
    """
    Return whether *host* is a loopback address.
    """
    return host in _LOOPBACK


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "USER"


# Time limit for the dashboard, in seconds.
_DASHBOARD_S = 5.0
_SLURM_S = 60.0
# Stands for the login node in the command if it is unknown.
_LOGIN_PLACEHOLDER = "LOGIN"


class _ClusterResult(NamedTuple):
    """
    The state of the cluster, and the checks that need it.
    """

    cluster_state: Mapping[str, Any]
    checks: tuple[Check, ...]


def check_ray_debugger(  # noqa: PLR0913 each is optional
    address: str | None = None,
    *,
    job: str | None = None,
    dashboard: str | None = None,
    login: str | None = None,
    local_port: int | None = None,
    timeout_s: float = 120.0,
) -> RayDebuggerCheck:
    """
    Check the prerequisites of Ray's debugger.

    Each environment of the cluster is checked by a task that needs no CPU;
    nothing else is started, and nothing is changed.  If a part cannot be
    reached from here, only its own checks fail.

    Args:
        address: The cluster, as ``HOST:PORT``; by default the one that this
            process, or this node, belongs to.

        job: The id of the Slurm job that the cluster runs in, if any.

        dashboard: The dashboard as reachable from here, such as the end of a
            tunnel, as ``HOST:PORT``; by default the cluster's own address of
            it.

        login: The login node for the tunnel; by default the one where the job
            was submitted.  ``""`` means that the tunnel starts there.

        local_port: The port of the tunnel on the user's machine; by default
            one that is free here.

        timeout_s: The timeout, in seconds.

    Returns:
        All checks, with remedies.
    """
    deadline = time.monotonic() + timeout_s
    cluster_state, cluster_checks = _check_cluster(address, job, deadline)
    version = plain_text(cluster_state.get("ray_version"), limit=40)
    cluster_dashboard = plain_text(cluster_state.get("dashboard"))
    where = dashboard or cluster_dashboard
    head, head_checks = _check_head(cluster_state, job, deadline)
    port, port_check = _check_port(local_port)
    line, tunnel_check = _check_tunnel(port, head, cluster_dashboard, login)
    sessions = parse_sessions(cluster_state)
    checks = (
        *cluster_checks,
        check_driver(os.environ),
        *_check_dashboard(
            where, None if dashboard else head, version, deadline
        ),
        *head_checks,
        port_check,
        *tunnel_check,
        check_extension(timeout_s=_limited_seconds_left(deadline, 10.0)),
        *_check_open_ports(sessions),
    )
    return RayDebuggerCheck(
        checks=checks,
        sessions=sessions,
        address=plain_text(cluster_state.get("address")),
        dashboard=where,
        head_node=head,
        local_port=port,
        tunnel=line,
    )


def _check_cluster(
    address: str | None, job: str | None, deadline: float
) -> _ClusterResult:
    try:
        cluster_state = query_cluster_state(
            address, timeout_s=_limited_seconds_left(deadline, 30.0)
        )
    except (MissingDependencyError, NodesError) as exc:
        failed = Check(
            "cluster", ok=False, detail=str(exc), remedy=exc.remedy or ""
        )
        return _ClusterResult({}, (_add_job_remedy(failed, job),))
    count = len(parse_rows(cluster_state.get("nodes")))
    where = plain_text(cluster_state.get("address"))
    plural = "" if count == 1 else "s"
    reachable = Check(
        "cluster",
        ok=count > 0,
        detail=f"{count} node{plural} at {where}",
        remedy="" if count else "see `ray status` on the head node",
    )
    # The rest of the time is for the local checks.
    remaining_s = _limited_seconds_left(deadline, 600.0) * 0.8
    environments = query_environments(
        address, cluster_state, timeout_s=remaining_s
    )
    version = plain_text(cluster_state.get("ray_version"), limit=40)
    checks = (
        reachable,
        check_ray_version(environments, version),
        check_debugpy(environments),
        check_ray_debug(environments),
        check_post_mortem(environments),
    )
    return _ClusterResult(cluster_state, checks)


def _add_job_remedy(check: Check, job: str | None) -> Check:
    """
    Add the command that runs the check inside the job.
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


def _check_head(
    cluster_state: Mapping[str, Any], job: str | None, deadline: float
) -> tuple[str, tuple[Check, ...]]:
    rows = parse_rows(cluster_state.get("nodes"))
    names = [plain_text(row.get("name")) for row in rows if row.get("is_head")]
    known = names[0] if names else ""
    if job is None:
        return known, ()
    name = "head node"
    try:
        first = in_time(
            lambda: find_head_of_job(job),
            _limited_seconds_left(deadline, _SLURM_S),
        )
    except (NodesError, TimeoutError) as exc:
        # A busy Slurm controller may not answer for minutes.
        detail = str(exc) or "Slurm does not answer in time"
        remedy = getattr(exc, "remedy", None) or "see whether `sinfo` answers"
        return known, (Check(name, ok=False, detail=detail, remedy=remedy),)
    if known and _short_name(known) != _short_name(first):
        detail = f"the head is {known}, not {first}, the first node of {job}"
        remedy = f"let the tunnel end at {known}"
        return known, (Check(name, ok=False, detail=detail, remedy=remedy),)
    detail = f"{first}, the first node of Slurm job {job}"
    return first, (Check(name, ok=True, detail=detail),)


def _short_name(host: str) -> str:
    return host.partition(".")[0].lower()


def _check_port(requested: int | None) -> tuple[int, Check]:
    name = "local port"
    if requested is None:
        port = find_free_port()
        return port, Check(name, ok=True, detail=f"{port} is free here")
    if problem := _port_problem(requested):
        detail = f"{requested} cannot be taken here: {problem}"
        remedy = f"take another one, such as {find_free_port()}"
        return requested, Check(name, ok=False, detail=detail, remedy=remedy)
    return requested, Check(name, ok=True, detail=f"{requested} is free here")


def _port_problem(port: int) -> str:
    if not 0 < port < 1 << 16:
        return "there is no such port"
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as exc:
        return str(exc)
    return ""


def _check_tunnel(
    port: int, head: str, where: str, login: str | None
) -> tuple[str, tuple[Check, ...]]:
    if not head:
        return "", ()
    if login is None:
        login = os.environ.get("SLURM_SUBMIT_HOST") or _LOGIN_PLACEHOLDER
    try:
        line = format_tunnel(
            local_port=port,
            head=head,
            dashboard=split_address(where),
            login=login,
        )
    except NodesError as exc:
        remedy = exc.remedy or ""
        return "", (Check("tunnel", ok=False, detail=str(exc), remedy=remedy),)
    return line, (Check("tunnel", ok=None, detail=line),)


def _check_dashboard(
    where: str, head: str | None, version: str, deadline: float
) -> tuple[Check, ...]:
    """
    Check whether the dashboard answers.

    *head* is its node, or None if the user gave the address.
    """
    if not where and not version:
        # No address is known.
        return ()
    parts = split_address(where)
    is_elsewhere = head is not None and not _is_local(head)
    if parts and is_loopback(parts[0]) and is_elsewhere:
        detail = f"{where} of {head}: nobody reaches it but that node"
        remedy = "open the tunnel, and check its end by dashboard=..."
        return (Check("dashboard", ok=None, detail=detail, remedy=remedy),)
    remaining_s = _limited_seconds_left(deadline, _DASHBOARD_S)
    return (check_dashboard(where, timeout_s=remaining_s, version=version),)


def _is_local(host: str) -> bool:
    return _short_name(host) == _short_name(socket.gethostname())


def _check_open_ports(
    sessions: tuple[RayDebugSession, ...],
) -> tuple[Check, ...]:
    ports = [s for s in sessions if s.kind == "debugpy"]
    if not ports:
        return ()
    detail = (
        "whoever reaches the nodes may run code at the ports of those who "
        f"wait, {len(ports)} now: debugpy asks for no password"
    )
    remedy = "let nobody else onto the network of the nodes"
    return (Check("open ports", ok=None, detail=detail, remedy=remedy),)


def _limited_seconds_left(deadline: float, most: float) -> float:
    return max(min(deadline - time.monotonic(), most), 1.0)

"""
Check the prerequisites of Ray's debugger: dashboard, debugpy, tunnel.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import time

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

import attrs

from .._proc import in_time, run_tool
from .._text import clean, count_text, list_text
from ..capture import Check
from ..errors import MissingDependencyError, NodesError
from ..identity import same_host
from ..nodes import Slurm
from .cluster import plain_text
from .cluster_child import loads_object
from .debugger_sessions import (
    EXTENSION,
    ClusterState,
    RayDebuggerCheck,
    RayDebugSession,
    WorkerEnvironment,
    query_cluster_state,
    query_environments,
)


def _passed(name: str, detail: str, remedy: str = "") -> Check:
    return Check(name, ok=True, detail=detail, remedy=remedy)


def _failed(name: str, detail: str, remedy: str) -> Check:
    return Check(name, ok=False, detail=detail, remedy=remedy)


def _note(name: str, detail: str, remedy: str = "") -> Check:
    return Check(name, ok=None, detail=detail, remedy=remedy)


_MOST_BYTES = 1 << 16
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


def _http_get(host: str, port: int, timeout_s: float) -> tuple[int, bytes]:
    with closing(HTTPConnection(host, port, timeout=timeout_s)) as link:
        link.request("GET", "/api/version")
        reply = link.getresponse()
        return reply.status, reply.read(_MOST_BYTES)


def judge_dashboard(
    address: str, status: int, body: bytes, version: str
) -> Check:
    """
    Return the check of a dashboard that has answered.

    Args:
        address: Its address.

        status: The status of the reply; 0 if it is no HTTP.

        body: The content of the reply.

        version: The expected Ray version, or ``""``.
    """
    if status in {401, 403}:
        detail = f"{address} answers, and wants a token"
        remedy = "the extension has to be given the one in ~/.ray/auth_token"
        return _passed("dashboard", detail, remedy)
    ray = plain_text(loads_object(body).get("ray_version"), limit=40)
    if status != 200 or not ray:
        detail = f"what answers at {address} is no dashboard of Ray"
        return _failed("dashboard", detail, _DASHBOARD_REMEDY)
    if version and ray != version:
        detail = f"{address} is the dashboard of another cluster: Ray {ray}"
        remedy = f"take the port of the cluster that has Ray {version}"
        return _failed("dashboard", detail, remedy)
    return _passed("dashboard", f"{address} answers: Ray {ray}")


_EDITORS = ("code", "cursor", "code-insiders", "codium")


def _check_extension(timeout_s: float) -> Check:
    """
    Check whether a local editor has the extension for Ray's debugger.

    Without an editor here the result is open, not a problem.

    Args:
        timeout_s: The timeout for each editor, in seconds.
    """
    listed = {
        editor: _list_extensions(path, timeout_s)
        for editor in _EDITORS
        if (path := shutil.which(editor))
    }
    known = {x: found for x, found in listed.items() if found is not None}
    remedy = f"code --install-extension {EXTENSION}"
    editors = [x for x, extensions in known.items() if EXTENSION in extensions]
    if editors:
        return _passed("extension", f"{EXTENSION} is in {editors[0]}")
    if known:
        detail = f"{EXTENSION} is not in {', '.join(known)}"
        return _failed("extension", detail, remedy)
    detail = "no editor's command is here"
    if listed:
        detail = f"{', '.join(listed)} did not list its extensions"
    remedy += ", where VS Code runs; a launch.json of ours does without it"
    return _note("extension", detail, remedy)


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
_ADD_DEBUGPY = (
    "add debugpy>=1.8.0,<1.10 to the dependencies that the workers get (the "
    "project's, or the runtime_env's), and start the job again: without it "
    "breakpoint() is passed over, and one line in the worker's log says so"
)


def _check_ray_version(
    environments: Iterable[WorkerEnvironment], cluster: str
) -> Check:
    versions = {plain_text(x.facts.get("ray")) for x in environments}
    known = sorted({*versions, cluster} - {""})
    if not known:
        return _note("Ray", "its version is not known")
    old = [x for x in known if (_version(x) or _OLDEST_RAY) < _OLDEST_RAY]
    if old:
        detail = f"Ray {', '.join(old)} is older than 2.39"
        remedy = "use a newer one: before, its default was `ray debug`"
        return _failed("Ray", detail, remedy)
    return _passed("Ray", ", ".join(known))


def _check_debugpy(
    answers: Sequence[WorkerEnvironment], silent: Sequence[WorkerEnvironment]
) -> Check:
    """
    Check that all workers have a debugpy that is new enough for Ray.
    """
    name = "debugpy"
    bad: dict[str, list[WorkerEnvironment]] = {}
    for worker in answers:
        if problem := _debugpy_problem(worker.facts):
            bad.setdefault(problem, []).append(worker)
    if bad:
        details = (f"{x} ({_join_names(who)})" for x, who in bad.items())
        return _failed(name, "; ".join(details), _ADD_DEBUGPY)
    if silent:
        reason = plain_text(silent[0].facts.get("reason")) or "no answer"
        detail = f"not known of {_join_names(silent)}: {reason}"
        remedy = "give it more time, or import debugpy in a task of the job"
        return _note(name, detail, remedy)
    if not answers:
        return _note(name, "no worker was asked")
    versions = sorted({plain_text(x.facts["debugpy"]) for x in answers})
    return _passed(name, f"{', '.join(versions)} ({len(answers)} asked)")


def _debugpy_problem(facts: Mapping[str, Any]) -> str:
    version = plain_text(facts.get("debugpy"))
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


def _check_ray_debug(answers: Iterable[WorkerEnvironment]) -> Check:
    """
    Check which debugger ``RAY_DEBUG`` selects in the workers.
    """
    values: dict[str, list[WorkerEnvironment]] = {}
    for worker in answers:
        value = worker.facts.get("RAY_DEBUG")
        # Unset and 1 mean the debugger that VS Code attaches to.
        text = "1" if value is None else plain_text(value)
        values.setdefault(text, []).append(worker)
    name = "RAY_DEBUG of the workers"
    if not values:
        return _note(name, "no worker reported it")
    # The older debugger is reported before values that mean none.
    for value in sorted(values.keys() - {"1"}, key=lambda x: x != "legacy"):
        who = _join_names(values[value])
        detail = f"it is {value!r} for {who}: breakpoint() does nothing"
        if value == "legacy":
            detail = f"it is legacy for {who}: VS Code cannot attach"
        remedy = (
            "take RAY_DEBUG out of the environment of `ray start` and of "
            "runtime_env['env_vars'], which hand it to the workers, and start "
            "again"
        )
        return _failed(name, detail, remedy)
    return _passed(name, "not set, or 1")


def _check_post_mortem(answers: Iterable[WorkerEnvironment]) -> Check:
    """
    Report whether failing tasks wait for the debugger.
    """
    name = "RAY_DEBUG_POST_MORTEM"
    detail = "not 1: tasks that fail do not wait for a debugger"
    remedy = "set it to 1 for the workers if they should"
    if workers := [x for x in answers if x.facts.get(name) == "1"]:
        who = _join_names(workers)
        detail = f"1 for {who}: tasks that fail wait for a debugger"
        remedy = "without anybody to attach they wait for ever: unset it then"
    return _note(name, detail, remedy)


def _check_driver() -> Check:
    """
    Report what a breakpoint in a driver started from here does.
    """
    value = os.environ.get("RAY_DEBUG", "1")
    detail = f"{value!r} here: breakpoints in the driver do nothing"
    remedy = (
        "for pdb in the driver's own shell, start it with RAY_DEBUG=legacy"
    )
    if value == "legacy":
        detail = "legacy here: breakpoints in the driver open pdb in its shell"
        remedy = (
            "workers started with the same environment are not for VS Code: "
            "do not hand it on by `ray start` or runtime_env"
        )
    elif value == "1":
        detail = (
            "not legacy here: breakpoints in the driver wait for VS Code if it "
            "has debugpy, and are passed over if not"
        )
    return _note("RAY_DEBUG of the driver", detail, remedy)


def _version(text: str) -> tuple[int, ...] | None:
    match = re.match(r"\d{1,6}(?:\.\d{1,6}){0,3}", text)
    return tuple(map(int, match[0].split("."))) if match else None


def _join_names(workers: Iterable[WorkerEnvironment]) -> str:
    return list_text(dict.fromkeys(x.name for x in workers), most=3)


# Ray's default port of the dashboard.
_DASHBOARD_PORT = 8265

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:%-]{0,252})")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ANY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 -- compared, not bound
# Stands for the login node in the command if it is unknown.
_LOGIN_PLACEHOLDER = "LOGIN"


def _format_tunnel(
    local_port: int, head: str, dashboard: tuple[str, int] | None, login: str
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

    Returns:
        One shell line.

    Raises:
        NodesError: A name is not a valid host or user name.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "USER"
    for name, form in ((head, _HOST), (login or "x", _HOST), (user, _USER)):
        if not form.fullmatch(name):
            msg = f"{name!r:.80} is no name that ssh could be given"
            raise NodesError(msg, remedy="give the name of a host")
    host, port = dashboard or ("", _DASHBOARD_PORT)
    is_hidden = host in _LOOPBACK
    jump = ["-J", f"{user}@{login}"] if login and is_hidden else []
    end = login if login and not is_hidden else head
    target = head if login else host
    # A server bound to one address does not listen on the loopback.
    if jump or target in {"", *_LOOPBACK, *_ANY_ADDRESS}:
        target = "localhost"
    target = f"[{target}]" if ":" in target else target
    forward = f"{local_port}:{target}:{port}"
    return shlex.join(["ssh", "-N", "-L", forward, *jump, f"{user}@{end}"])


# Time limit for the dashboard, in seconds.
_DASHBOARD_S = 5.0
_SLURM_S = 60.0


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
    state, cluster_checks = _check_cluster(address, job, deadline)
    where = dashboard or state.dashboard
    head, head_checks = _check_head(state, job, deadline)
    port, port_check = _check_port(local_port)
    line, tunnel_checks = _check_tunnel(port, head, state.dashboard, login)
    near = None if dashboard else head
    checks = (
        *cluster_checks,
        _check_driver(),
        *_check_dashboard(where, near, state.ray_version, deadline),
        *head_checks,
        port_check,
        *tunnel_checks,
        _check_extension(_seconds_left(deadline, 10.0)),
        *_check_open_ports(state.sessions),
    )
    return RayDebuggerCheck(
        checks=checks,
        sessions=state.sessions,
        address=state.address,
        dashboard=where,
        head_node=head,
        local_port=port,
        tunnel=line,
    )


_Checks = tuple[Check, ...]


def _check_cluster(
    address: str | None, job: str | None, deadline: float
) -> tuple[ClusterState, _Checks]:
    try:
        state = query_cluster_state(
            address, timeout_s=_seconds_left(deadline, 30.0)
        )
    except (MissingDependencyError, NodesError) as exc:
        failed = _failed("cluster", str(exc), exc.remedy or "")
        return ClusterState(), (_add_job_remedy(failed, job),)
    nodes = count_text(len(state.nodes), "node")
    reachable = Check(
        "cluster",
        ok=bool(state.nodes),
        detail=f"{nodes} at {state.address}",
        remedy="" if state.nodes else "see `ray status` on the head node",
    )
    # The rest of the time is for the local checks.
    remaining_s = _seconds_left(deadline, 600.0) * 0.8
    environments = query_environments(address, state, timeout_s=remaining_s)
    answers = [x for x in environments if "debugpy" in x.facts]
    silent = [x for x in environments if "debugpy" not in x.facts]
    return state, (
        reachable,
        _check_ray_version(environments, state.ray_version),
        _check_debugpy(answers, silent),
        _check_ray_debug(answers),
        _check_post_mortem(answers),
    )


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
    state: ClusterState, job: str | None, deadline: float
) -> tuple[str, _Checks]:
    known = state.head
    if job is None:
        return known, ()
    name = "head node"
    try:
        first = in_time(
            lambda: _find_head_of_job(job), _seconds_left(deadline, _SLURM_S)
        )
    except (NodesError, TimeoutError) as exc:
        # A busy Slurm controller may not answer for minutes.
        detail = str(exc) or "Slurm does not answer in time"
        remedy = getattr(exc, "remedy", None) or "see whether `sinfo` answers"
        return known, (_failed(name, detail, remedy),)
    if known and not same_host(known, first):
        detail = f"the head is {known}, not {first}, the first node of {job}"
        remedy = f"let the tunnel end at {known}"
        return known, (_failed(name, detail, remedy),)
    detail = f"{first}, the first node of Slurm job {job}"
    return first, (_passed(name, detail),)


def _find_head_of_job(job: str) -> str:
    """
    Return the first node of a Slurm job.

    The usual scripts that start Ray on Slurm use the first node as head.
    """
    host = next(iter(Slurm(job=job).srun_prefixes()), "")
    if not _HOST.fullmatch(host):
        msg = f"Slurm has no node name for job {job}: {host!r:.80}"
        raise NodesError(msg, remedy=f"see `squeue -j {job}`")
    return host


def _check_port(requested: int | None) -> tuple[int, Check]:
    """
    Check that a port is free on this machine, or find one.

    Another process may take it meanwhile; ``ssh`` reports that.
    """
    problem = "there is no such port"
    if requested is None or 0 < requested < 1 << 16:
        try:
            with socket.create_server(("127.0.0.1", requested or 0)) as server:
                port: int = server.getsockname()[1]
        except OSError as exc:
            problem = str(exc)
        else:
            return port, _passed("local port", f"{port} is free here")
    if requested is None:
        raise NodesError(problem, remedy="give the number of a port")
    detail = f"{requested} cannot be taken here: {problem}"
    remedy = f"take another one, such as {_check_port(None)[0]}"
    return requested, _failed("local port", detail, remedy)


def _check_tunnel(
    port: int, head: str, where: str, login: str | None
) -> tuple[str, _Checks]:
    if not head:
        return "", ()
    if login is None:
        login = os.environ.get("SLURM_SUBMIT_HOST") or _LOGIN_PLACEHOLDER
    try:
        line = _format_tunnel(port, head, split_address(where), login)
    except NodesError as exc:
        return "", (_failed("tunnel", str(exc), exc.remedy or ""),)
    return line, (_note("tunnel", line),)


def _check_dashboard(
    where: str, head: str | None, version: str, deadline: float
) -> _Checks:
    """
    Check that the dashboard answers with its version.

    The request uses no proxy, follows no redirection, and sends no secret: a
    dashboard that requires a token counts as reachable.

    Args:
        where: Its address; ``""`` if there is none.

        head: Its node; ``None`` if the user gave the address.

        version: The expected Ray version, or ``""``.
    """
    if not where and not version:
        # No address is known.
        return ()
    name, place, where = "dashboard", split_address(where), clean(where)
    if place is None:
        detail = f"{where!r} is no address" if where else "there is none"
        return (_failed(name, detail, _DASHBOARD_REMEDY),)
    is_here = head is None or same_host(head, socket.gethostname())
    if place[0] in _LOOPBACK and not is_here:
        detail = f"{where} of {head}: only that node can reach it"
        remedy = "open the tunnel, and check its end by dashboard=..."
        return (_note(name, detail, remedy),)
    status, body = 0, b""
    left_s = _seconds_left(deadline, _DASHBOARD_S)
    try:
        # HTTPConnection restarts the timeout with each part of a reply.
        status, body = in_time(lambda: _http_get(*place, left_s), left_s)
    except HTTPException:
        pass
    except OSError as exc:
        is_late = isinstance(exc, TimeoutError)
        reason = "no answer in time" if is_late else exc
        detail = f"{where} does not answer: {reason}"
        return (_failed(name, detail, _DASHBOARD_REMEDY),)
    return (judge_dashboard(where, status, body, version),)


def _check_open_ports(sessions: Iterable[RayDebugSession]) -> _Checks:
    count = sum(s.kind == "debugpy" for s in sessions)
    if not count:
        return ()
    detail = (
        "anyone who reaches the nodes may run code at the ports of waiting "
        f"tasks, {count} now: debugpy asks for no password"
    )
    remedy = "keep others off the network of the nodes"
    return (_note("open ports", detail, remedy),)


def _seconds_left(deadline: float, most: float) -> float:
    return max(min(deadline - time.monotonic(), most), 1.0)

"""
What is in the way of using Ray's debugger?
"""

from __future__ import annotations

import os
import shlex
import socket
import time

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs

from ..._in_time import in_time
from ...capture.blockers import Check
from ...errors import MissingDependencyError, NodesError
from .asking import ask_tables, plain_text, rows_of
from .dashboard import check_dashboard, split_address
from .editor import check_extension
from .environments import ask_environments
from .judging import (
    check_debugpy,
    check_driver,
    check_post_mortem,
    check_ray,
    check_switch,
)
from .model import RayDebuggerCheck, RayDebugSession
from .sessions import sessions_in
from .tunnel import free_port, head_of_job, is_loopback, tunnel_line


__all__ = ["check_ray_debugger"]

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
        check_extension(timeout_s=_left(deadline, 10.0)),
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
        tables = ask_tables(address, timeout_s=_left(deadline, 30.0))
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
    left = _left(deadline, 600.0) * 0.8
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
        first = in_time(lambda: head_of_job(job), _left(deadline, _SLURM_S))
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
    left = _left(deadline, _DASHBOARD_S)
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


def _left(deadline: float, most: float) -> float:
    return max(min(deadline - time.monotonic(), most), 1.0)

"""
How does the dashboard of a cluster come to the machine where VS Code runs?
"""

from __future__ import annotations

import getpass
import re
import shlex
import socket

from ...errors import NodesError
from ...nodes.slurm import Slurm


__all__ = ["free_port", "head_of_job", "is_loopback", "tunnel_line"]

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

"""
Does the dashboard of a Ray cluster answer from here?
"""

from __future__ import annotations

import json
import re
import socket
import time

from ..._text import clean
from ...capture.blockers import Check


__all__ = ["check_dashboard", "split_address"]

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

"""
Where does the head of a Ray cluster listen, as its files tell, and does it?
"""

from __future__ import annotations

import re
import socket

from pathlib import Path
from typing import Literal

from ._io import read_ordinary


_ADDRESS = re.compile(r"(\[?[0-9A-Za-z.:_-]{1,255}?\]?):(\d{1,5})")


def last_address(session: Path) -> str:
    """
    Tell the address of the cluster that was the last to use a temporary
    folder: ``ray start`` writes it there when it is done.

    Args:
        session: A session in that folder.

    Returns:
        The address; ``""`` if there is none.
    """
    return as_address(read_short(session.parent / "ray_current_cluster"))


def read_short(path: Path) -> str:
    """
    Read what Ray keeps in a file of its own: an address, or a port.

    Args:
        path: The file.

    Returns:
        Its text; ``""`` if it cannot be read.
    """
    try:
        data = read_ordinary(path, 1024)
    except (OSError, ValueError):
        return ""
    return data.decode(errors="replace").strip()


def as_address(text: str) -> str:
    """
    Tell whether a text is an address.

    Args:
        text: Such as ``"10.0.0.1:6379"`` or ``"[fd00::1]:6379"``.

    Returns:
        The text; ``""`` if it is none.
    """
    found = _ADDRESS.fullmatch(text)
    return text if found and int(found[2]) < 1 << 16 else ""


def knock(
    address: str, timeout_s: float
) -> Literal["answers", "refused", "silent"]:
    """
    Tell whether somebody listens at an address.

    Args:
        address: The address.

        timeout_s: How long to wait, in seconds.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=timeout_s
        ):
            return "answers"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError, OverflowError):
        return "silent"

"""
Is a socket still ours, or was its number closed, and given to somebody else?

A program that closes all files, as a daemon does, closes ours too.  The next
file that it opens bears the same number; what we read, wrote, or closed then
would be its own.
"""

from __future__ import annotations

import os
import socket


__all__ = ["Opened", "close_own", "is_own", "opened"]

# What the kernel knows a file by: its device, and its number there.
Opened = tuple[int, int]


def opened(one: socket.socket) -> Opened:
    """
    What is open under the number of a socket?

    Args:
        one: The socket.

    Returns:
        What tells it from every other file.

    Raises:
        OSError: Nothing is.
    """
    status = os.fstat(one.fileno())
    return status.st_dev, status.st_ino


def is_own(one: socket.socket, was: Opened) -> bool:
    """
    Is a socket what it was?

    Args:
        one: The socket.

        was: What was open when it was ours.

    Returns:
        Whether it may be used.
    """
    try:
        return opened(one) == was
    except OSError:
        return False


def close_own(one: socket.socket, was: Opened) -> None:
    """
    Close a socket, unless it is somebody else's now.

    Args:
        one: The socket.

        was: What was open when it was ours.
    """
    if is_own(one, was):
        one.close()
    else:
        one.detach()

"""
The program waits for its thread, and that for a peer that does not read.
"""

from __future__ import annotations

import socket
import threading


def upload(connection: socket.socket) -> None:
    """
    Send more than fits.
    """
    print("ready", flush=True)
    connection.sendall(b"x" * 50_000_000)


here, there = socket.socketpair()
thread = threading.Thread(target=upload, args=(here,), name="uploader")
thread.start()
thread.join()

"""
The other end of a connection says nothing.
"""

from __future__ import annotations

import socket


def ask(connection: socket.socket) -> bytes:
    """
    Wait for an answer that never comes.
    """
    connection.sendall(b"hello")
    print("ready", flush=True)
    return connection.recv(100)


server = socket.create_server(("127.0.0.1", 0))
ask(socket.create_connection(server.getsockname()))

"""
Where the head of a Ray cluster listens.
"""

from __future__ import annotations

import socket

import pytest

from distdebug._ray_address import as_address, knock, last_address


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("127.0.0.1", None, "answers"),
        ("[127.0.0.1]", None, "answers"),
        ("127.0.0.1", 1, "refused"),
        ("a" * 80, 6379, "silent"),
    ],
)
def test_knock(host, port, expected):
    """
    Whether somebody listens is seen, and no address is too strange to ask.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = port or server.getsockname()[1]

        assert expected == knock(f"{host}:{port}", 2.0)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("10.0.0.1:6379", True),
        ("[fd00::1]:6379", True),
        ("node-1.cluster:6379", True),
        ("10.0.0.1:70000", False),
        ("10.0.0.1", False),
        ("two words:1", False),
        ("\0:1", False),
        ("", False),
    ],
)
def test_address(text, is_one, tmp_path):
    """
    What a file tells is an address, or nothing.
    """
    (tmp_path / "ray_current_cluster").write_text(f"{text}\n")
    expected = text if is_one else ""

    assert expected == as_address(text)
    assert expected == last_address(tmp_path / "session_x")

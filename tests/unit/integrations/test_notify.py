"""
Messages about hangs, through *apprise* to a server of ours.
"""

from __future__ import annotations

import json
import threading

from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock

import pytest

from distdebug.errors import ConfigError, HookError


pytest.importorskip("apprise")
notify = pytest.importorskip("distdebug.integrations.notify")
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")
HANG = mock.Mock(message="rank 3 sleeps\n/shared/hangs on a")


@pytest.fixture(name="server")
def _server():
    """
    A service that keeps what it is sent.
    """
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            """
            Keep a message.
            """
            length = int(self.headers["Content-Length"])
            got.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """
            Say nothing.
            """

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.got = got
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_sent(server, tmp_path):
    """
    A message has the verdict and the folder.
    """
    file = tmp_path / "services"
    file.write_text(f"# ours\njson://127.0.0.1:{server.server_port}/\n")

    notify.notify_hook(file)(HANG)

    (message,) = server.got
    assert message["message"] == "rank 3 sleeps\n/shared/hangs on a"
    assert message["title"] == "distdebug: a job hangs"


def test_not_sent(tmp_path):
    """
    A service that does not answer is an error of the hook.
    """
    file = tmp_path / "services"
    file.write_text("json://127.0.0.1:1/\n")

    with pytest.raises(HookError, match="the service in line 1 did not take"):
        notify.notify_hook(file)(HANG)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot read the addresses in .*services: No such file"),
        ("# nothing\n", "no address of a service in"),
        ("# ours\nhello:secret\n", r"by the address in line 2\b"),
        ("include /etc/x\n", r"by the address in line 1\b"),
    ],
)
def test_no_service(tmp_path, text, expected):
    """
    A file that is not there, or a line that is no address, is an error at once,
    without what may be a password.
    """
    file = tmp_path / "services"
    if text is not None:
        file.write_text(text)

    with pytest.raises(ConfigError, match=expected) as caught:
        notify.notify_hook(file)

    assert "secret" not in str(caught.value)

"""
Notifications of a hang, by real commands and to a real server.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from distdebug.errors import ConfigError, HookError
from distdebug.watching import Hang, HangReason, command_hook, webhook_hook


SECRET = "s3cr3t-token"
WHERE = f"/f on {socket.gethostname()}"


@pytest.fixture(name="hang")
def _hang(tmp_path):
    """
    A job that hangs.
    """
    reason = HangReason(
        kind="no progress",
        elapsed_s=700.0,
        pids=(7, 8),
        stalled=(("process 7", 65.0),),
    )
    verdict = {"cause": "unknown", "summary": "rank 3 is\nstuck \x1b[31mhere"}
    return Hang(
        reason=reason, folder=tmp_path / "hang", data={"verdict": verdict}
    )


def python(code):
    """
    The words of a command that runs a small program.
    """
    return [sys.executable, "-S", "-c", code]


def is_alive(pid):
    """
    Whether a process still runs after a while.
    """
    try:
        process = psutil.Process(pid)
        for _ in range(500):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            time.sleep(0.02)
    except psutil.NoSuchProcess:
        return False
    return True


class TestCommand:
    @pytest.mark.process
    def test_told(self, hang, tmp_path):
        """
        A command gets all as JSON, and what matters most as variables.
        """
        got = tmp_path / "got"
        code = (
            "import os, sys; open(sys.argv[1], 'w').write("
            "os.environ['DISTDEBUG_FOLDER'] + '\\n' "
            "+ os.environ['DISTDEBUG_SUMMARY'] + '\\n' + sys.stdin.read())"
        )

        command_hook([*python(code), str(got)])(hang)

        folder, summary, data = got.read_text().split("\n", 2)
        assert str(hang.folder) == folder
        assert "rank 3 is stuck here" == summary
        assert json.loads(json.dumps(hang.to_dict())) == json.loads(data)

    @pytest.mark.process
    def test_one_text(self, hang, tmp_path):
        """
        One text is split into words, and no shell looks at them.
        """
        got = tmp_path / "with $HOME; blank"

        command_hook(f"touch '{got}'")(hang)

        assert got.exists()

    @pytest.mark.parametrize(
        "command",
        [
            "echo hang | wall",
            "echo hang > /tmp/x",
            "echo hang >>/tmp/x",
            "wall < x",
            "echo a; echo b",
            "sleep 9 &",
            "true && true",
            "false || true",
            "scancel $SLURM_JOB_ID",
            'scancel "${SLURM_JOB_ID}"',
            "echo $(date)",
            "echo `date`",
        ],
    )
    def test_needs_a_shell(self, command):
        """
        What only a shell understands is refused, and not passed on as a word.
        """
        with pytest.raises(ConfigError, match="not run by a shell") as caught:
            command_hook(command)

        assert "sh -c" in caught.value.remedy

    @pytest.mark.parametrize(
        "command",
        [
            "sh -c 'echo $HOME | wall > x; y &'",
            'echo "a | b; c && d > e"',
            r"echo a\|b \$HOME",
            r'echo "\$HOME costs 5 $"',
            ["echo", "$HOME", "|"],
        ],
    )
    def test_needs_no_shell(self, command):
        """
        What is quoted stands for itself, and so does each word of a list.
        """
        assert callable(command_hook(command))

    @pytest.mark.parametrize(
        "timeout_s", [0, -1, "x", None, float("nan"), float("inf"), 1e308]
    )
    def test_time(self, timeout_s, tmp_path):
        """
        A time that makes no sense is refused at once.
        """
        with pytest.raises(ConfigError, match="timeout_s"):
            command_hook("true", timeout_s=timeout_s)
        with pytest.raises(ConfigError, match="timeout_s"):
            webhook_hook(tmp_path, timeout_s=timeout_s)

    @pytest.mark.process
    def test_does_not_read(self, hang):
        """
        A command need not read its input, however long that is.
        """
        data = {**hang.data, "stacks": "x" * (1 << 20)}
        large = Hang(reason=hang.reason, folder=hang.folder, data=data)

        assert command_hook(["true"])(large) is None

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            (
                "import sys; sys.exit('no\\nsuch \\x1b[1mchannel')",
                "failed with exit status 1: such channel",
            ),
            (
                "print('out'); raise SystemExit(3)",
                "failed with exit status 3: out",
            ),
            ("raise SystemExit(4)", "failed with exit status 4"),
            ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
            ("import os; os.kill(os.getpid(), 40)", "was ended by signal 40"),
        ],
    )
    def test_failed(self, hang, code, expected):
        """
        The error of a failed command has its name, how it ended, and its last
        line.
        """
        with pytest.raises(HookError) as caught:
            command_hook(python(code))(hang)

        assert f"{Path(sys.executable).name} {expected}" == str(caught.value)

    @pytest.mark.process
    def test_arguments_are_not_told(self, hang):
        """
        An argument may be a secret.
        """
        with pytest.raises(HookError) as caught:
            command_hook([*python("raise SystemExit(1)"), SECRET])(hang)

        assert SECRET not in str(caught.value)

    @pytest.mark.process
    def test_late(self, hang, tmp_path):
        """
        A command that is late is ended, with what it started.
        """
        got = tmp_path / "pids"
        code = 'trap "" TERM; sleep 600 & echo $$ $! > "$0"; wait'
        hook = command_hook(["sh", "-c", code, str(got)], timeout_s=1)

        start = time.monotonic()
        with pytest.raises(HookError, match="did not end within 1 s"):
            hook(hang)

        assert time.monotonic() - start < 30
        own, child = map(int, got.read_text().split())
        assert [False, False] == [is_alive(own), is_alive(child)]

    @pytest.mark.process
    def test_vanished(self, hang, tmp_path):
        """
        A command that is not there any more is an error of the hook.
        """
        program = tmp_path / "notify"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        hook = command_hook([str(program)])
        program.unlink()

        with pytest.raises(HookError, match="notify cannot be started: No"):
            hook(hang)

    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            ("", "empty"),
            ([], "empty"),
            (["true", "a\0b"], "no text"),
            ([3], "cannot be parsed"),
            ("notify 'rank", "cannot be parsed: No closing quotation"),
            ("no-such-program-here -x", "no-such-program-here: there is no"),
        ],
    )
    def test_mistakes(self, command, expected):
        """
        A mistake is reported when the hook is made, with a remedy.
        """
        with pytest.raises(ConfigError, match=expected) as caught:
            command_hook(command)

        assert "sh -c" in caught.value.remedy


class Server:
    """
    A chat service on this machine, which answers as planned.
    """

    def __init__(self):
        self.answers = []
        self.got = []
        self.pauses = []
        self.may_go_on = threading.Event()
        self.hung_up = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                """
                Take a message.
                """
                size = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(size))
                outer.got.append((self.path, dict(self.headers), body))
                answer = outer.answers.pop(0) if outer.answers else 200
                if answer == "trickle":
                    outer.trickle(self.connection)
                    return

                self.send_response(answer)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *args):
                """
                Say nothing.
                """

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(
            target=self.server.serve_forever, args=[0.02]
        )
        self.thread.start()

    def trickle(self, connection):
        """
        Answer without end, a byte at a time.
        """
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.may_go_on.wait(0.05):
                connection.sendall(b"x")
        except OSError:
            self.hung_up.set()

    def address(self, path=f"/hook/{SECRET}"):
        """
        Where it is.
        """
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def close(self):
        """
        End it.
        """
        self.may_go_on.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(name="server")
def _server(monkeypatch):
    """
    A server, with no proxy on the way to it; pauses between attempts are only
    recorded.
    """
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    server = Server()
    monkeypatch.setattr(time, "sleep", server.pauses.append)
    yield server
    server.close()


@pytest.fixture(name="file")
def _file(tmp_path):
    """
    A file for an address that only its owner can read.
    """
    file = tmp_path / "webhook"
    file.touch(0o600)
    return file


HOOKED = """
import sys, threading
from pathlib import Path
from distdebug.watching.hang import Hang, HangReason
from distdebug.watching.hooks import command_hook, webhook_hook
reason = HangReason(kind="no progress", elapsed_s=7.0, pids=(7,))
verdict = {"cause": "unknown", "summary": "stuck"}
hang = Hang(reason=reason, folder=Path(), data={"verdict": verdict})
hooks = [command_hook("cat"), webhook_hook(sys.argv[1])]
loaded = []
class Finder:
    def find_spec(name, path, target=None):
        if threading.current_thread() is not threading.main_thread():
            loaded.append(name)
sys.meta_path.insert(0, Finder)
for hook in hooks:
    thread = threading.Thread(target=hook, args=[hang])
    thread.start()
    thread.join()
print(loaded)
"""


@pytest.mark.process
def test_loads_nothing(server, file):
    """
    Hooks run on a thread of the job, and import nothing there: a child that is
    forked meanwhile inherits the locks of modules, and would wait for ever.
    """
    port = server.server.server_port
    file.write_text(f"http://localhost:{port}/{SECRET}")

    loaded = subprocess.check_output(
        [sys.executable, "-c", HOOKED, file], text=True
    )

    assert "[]\n" == loaded
    assert 1 == len(server.got)


class TestWebhook:
    def test_told(self, server, file, hang):
        """
        A service that is not known gets a text, and all data.
        """
        file.write_text(
            f"# ours\n\n{server.address()}\nAuthorization: Bearer {SECRET}\n"
        )

        webhook_hook(file)(hang)

        ((path, headers, body),) = server.got
        host = socket.gethostname()
        assert f"/hook/{SECRET}" == path
        assert "application/json" == headers["Content-Type"]
        assert f"Bearer {SECRET}" == headers["Authorization"]
        expected = json.loads(json.dumps(hang.to_dict()))
        text = f"rank 3 is stuck here\n{hang.folder} on {host}"
        assert {**expected, "text": text} == body

    def test_read_again(self, server, file, hang):
        """
        The address may change while a job is watched.
        """
        file.write_text(server.address("/old"))
        hook = webhook_hook(file)
        file.write_text(server.address("/new"))

        hook(hang)

        assert ["/new"] == [path for path, _, _ in server.got]

    def test_gone_later(self, server, file, hang):
        """
        A file that is gone when it matters is an error of the hook.
        """
        file.write_text(server.address())
        hook = webhook_hook(file)
        file.unlink()

        with pytest.raises(HookError, match="cannot be read: No such file"):
            hook(hang)

    @pytest.mark.parametrize(
        ("answers", "calls"),
        [([503], 2), ([429, 500], 3), ([201], 1)],
    )
    def test_tried_again(self, server, file, hang, answers, calls):
        """
        A service that is busy is tried up to twice more, after a pause.
        """
        server.answers = answers
        file.write_text(server.address())

        webhook_hook(file)(hang)

        assert calls == len(server.got)
        assert [1.0, 3.0][: calls - 1] == server.pauses

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            ([502, 502, 502], "answered 502 (Bad Gateway)"),
            ([404], "answered 404 (Not Found)"),
            ([399], "answered 399"),
            ([302], "answered 302 (Found)"),
            ([307], "answered 307 (Temporary Redirect)"),
        ],
    )
    def test_refused(self, server, file, hang, answers, expected):
        """
        A refusal is reported with the host only, and never sent elsewhere.
        """
        server.answers = list(answers)
        file.write_text(server.address())

        with pytest.raises(HookError) as caught:
            webhook_hook(file)(hang)

        assert f"the webhook at 127.0.0.1 {expected}" == str(caught.value)
        assert [f"/hook/{SECRET}"] * len(answers) == [
            x for x, _, _ in server.got
        ]

    def test_no_time_for_another(self, server, file, hang):
        """
        Nothing is tried again after the time is over.
        """
        server.answers = [503]
        file.write_text(server.address())

        with pytest.raises(HookError, match="answered 503"):
            webhook_hook(file, timeout_s=1.0)(hang)

        assert 1 == len(server.got)
        assert [] == server.pauses

    def test_trickle(self, server, file, hang):
        """
        A service that answers slowly, but for ever, is left in time.
        """
        server.answers = ["trickle"]
        file.write_text(server.address())

        start = time.monotonic()
        with pytest.raises(HookError, match=r"did not answer within 0\.5 s"):
            webhook_hook(file, timeout_s=0.5)(hang)

        assert time.monotonic() - start < 10
        assert server.hung_up.wait(10)

    def test_nobody(self, server, file, hang):
        """
        A port without a listener is reported.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        file.write_text(f"http://127.0.0.1:{port}/{SECRET}")

        with pytest.raises(HookError) as caught:
            webhook_hook(file)(hang)

        expected = "127.0.0.1 cannot be reached: Connection refused"
        assert f"the webhook at {expected}" == str(caught.value)

    def test_no_http(self, server, file, hang):
        """
        An answer that is not HTTP is reported, but not quoted.
        """
        with socket.create_server(("127.0.0.1", 0)) as other:

            def answer():
                connection, _ = other.accept()
                with connection:
                    connection.sendall(f"{SECRET}\r\n".encode())
                    connection.recv(1 << 16)

            thread = threading.Thread(target=answer)
            thread.start()
            file.write_text(f"http://127.0.0.1:{other.getsockname()[1]}/x")
            with pytest.raises(HookError) as caught:
                webhook_hook(file)(hang)
            thread.join()

        expected = "127.0.0.1 cannot be reached: BadStatusLine"
        assert f"the webhook at {expected}" == str(caught.value)

    def test_no_encryption(self, server, file, hang):
        """
        A host that was to prove its name and cannot gets no message.
        """
        address = server.address().replace("http:", "https:")
        file.write_text(address)

        with pytest.raises(HookError, match="cannot be reached: "):
            webhook_hook(file)(hang)

        assert [] == server.got

    def test_proxy(self, server, file, hang, monkeypatch):
        """
        On nodes that need a proxy, the message goes through it.
        """
        monkeypatch.setenv("http_proxy", server.address(""))
        file.write_text("http://chat.invalid/x")

        webhook_hook(file)(hang)

        ((path, headers, _),) = server.got
        assert ("http://chat.invalid/x", "chat.invalid") == (
            path,
            headers["Host"],
        )

    def test_certificate(self, server, file, hang, monkeypatch):
        """
        A certificate that is not valid is reported as such.
        """

        def refuse(*_, **__):
            error = ssl.SSLCertVerificationError()
            error.verify_message = "certificate has expired"
            raise error

        monkeypatch.setattr(ssl.SSLContext, "wrap_socket", refuse)
        file.write_text(server.address().replace("http:", "https:"))

        with pytest.raises(HookError) as caught:
            webhook_hook(file)(hang)

        expected = "127.0.0.1 has no valid certificate: certificate has"
        assert f"the webhook at {expected} expired" == str(caught.value)
        assert [] == server.got

    @pytest.mark.parametrize("mode", [0o600, 0o644])
    def test_readers(self, server, file, hang, caplog, mode):
        """
        A file that everybody can read is used, with one warning.
        """
        file.write_text(server.address())
        file.chmod(mode)

        with caplog.at_level(logging.WARNING, logger="distdebug"):
            hook = webhook_hook(file)
            hook(hang)
            hook(hang)

        expected = 1 if mode == 0o644 else 0
        assert expected == caplog.text.count("chmod 600")
        assert SECRET not in caplog.text


def endless(data, head=b"HTTP/1.1 200 OK\r\n"):
    """
    Answers with this again and again.
    """

    def talk(connection, is_over):
        connection.recv(1 << 16)
        connection.sendall(head)
        while not is_over.is_set():
            connection.sendall(data)

    return talk


def slow(data):
    """
    Answers one byte at a time, and one for the seconds of a real attack.
    """

    def talk(connection, is_over):
        for byte in itertools.chain(data, itertools.repeat(120)):
            connection.sendall(bytes([byte]))
            if is_over.wait(0.1):
                return

    return talk


def wait(_, is_over):
    """
    Never says anything.
    """
    is_over.wait(60)


def reset(connection, _):
    """
    Hang up, so that the other side gets an error.
    """
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def answer_once(head):
    """
    Answers with this.
    """

    def talk(connection, _):
        connection.recv(1 << 16)
        connection.sendall(head)

    return talk


class TestAttacks:
    """
    Whatever a service does, a hook ends in time, takes little memory, and its
    error has nothing of the address but the host.
    """

    @pytest.fixture
    def hostile(self, server):
        """
        A server that talks to each client as is said; gives its port.
        """
        is_over = threading.Event()
        with contextlib.ExitStack() as stack:

            def serve(talk):
                listener = socket.create_server(("127.0.0.1", 0))
                stack.enter_context(listener)
                stack.callback(listener.shutdown, socket.SHUT_RDWR)
                stack.callback(is_over.set)

                def work(connection):
                    with connection, contextlib.suppress(OSError):
                        talk(connection, is_over)

                def accept():
                    with contextlib.suppress(OSError):
                        while True:
                            connection, _ = listener.accept()
                            threading.Thread(
                                target=work, args=[connection], daemon=True
                            ).start()

                threading.Thread(target=accept, daemon=True).start()
                return listener.getsockname()[1]

            yield serve

    @pytest.fixture
    def error_of(self, file, hang, caplog):
        """
        What is said of a failure; it is bounded, and nothing in it is secret.
        """

        def find(url, timeout_s=0.5):
            file.write_text(f"{url}/{SECRET}\nX-Token: {SECRET}\n")
            hook = webhook_hook(file, timeout_s=timeout_s)
            tracemalloc.start()
            start = time.monotonic()
            try:
                with pytest.raises(HookError) as caught:
                    hook(hang)
                took_s = time.monotonic() - start
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            shown = "".join(traceback.format_exception(caught.value))
            assert SECRET not in shown + caplog.text + repr(caught.value)
            assert took_s < timeout_s + 2
            assert most < 16 << 20
            return str(caught.value)

        return find

    @pytest.mark.parametrize("scheme", ["http", "https"])
    @pytest.mark.parametrize(
        ("talk", "expected"),
        [
            (wait, ""),
            (reset, "cannot be reached"),
            (slow(b"HTTP/1.1 200 OK\r\nX: "), ""),
            (slow(b"\x16\x03\x03\x40\x00"), ""),
            (endless(b"x" * 4096, b"HTTP/1.1 200 "), ""),
            (endless(b"X: " + b"x" * 4096 + b"\r\n"), ""),
            (endless(b"HTTP/1.1 100 Continue\r\n\r\n", b""), ""),
        ],
        ids=[
            "silent",
            "reset",
            "slow",
            "slow TLS",
            "long line",
            "many headers",
            "continue",
        ],
    )
    def test_ends(self, hostile, error_of, scheme, talk, expected):
        """
        Silence, a reset, and answers without end.
        """
        error = error_of(f"{scheme}://127.0.0.1:{hostile(talk)}")

        assert error.startswith("the webhook at 127.0.0.1 ")
        assert expected in error

    def test_huge_answer(self, hostile, file, hang):
        """
        Of an answer, only the head is read.
        """
        head = b"HTTP/1.1 200 OK\r\n\r\n"
        port = hostile(endless(b"x" * 65536, head))
        file.write_text(f"http://127.0.0.1:{port}/{SECRET}")

        tracemalloc.start()
        try:
            webhook_hook(file, timeout_s=5.0)(hang)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert most < 16 << 20

    @pytest.mark.parametrize(
        "target", ["file:///etc/hostname", "http://127.0.0.1:{}/", "ftp://x/"]
    )
    def test_redirect(self, server, hostile, error_of, target):
        """
        No redirect is followed, whatever it leads to.
        """
        place = target.format(server.server.server_port)
        head = f"HTTP/1.1 307 {SECRET}\r\nLocation: {place}\r\n\r\n"
        port = hostile(answer_once(head.encode()))

        error = error_of(f"http://127.0.0.1:{port}")

        assert "answered 307 (Temporary Redirect)" in error
        assert [] == server.got

    def test_queue(self, server, error_of):
        """
        A server that accepts nobody, with a queue that is full.
        """
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(3):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(full.getsockname())

            error = error_of(f"http://127.0.0.1:{full.getsockname()[1]}")

        assert "the webhook at 127.0.0.1 " in error

    def test_names(self, server, error_of, monkeypatch):
        """
        A name server that does not answer.
        """
        is_over = threading.Event()

        def look_up(*_):
            is_over.wait(60)
            raise socket.gaierror(-3, "Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

        error = error_of("https://chat.invalid")
        is_over.set()

        assert "chat.invalid did not answer within 0.5 s" in error

    def test_late_connection(self, hostile, error_of, monkeypatch, server):
        """
        A connection that comes about when the time is over sends nothing.
        """
        got, is_over = [], threading.Event()
        connect = socket.create_connection

        def connect_late(*args, **kwargs):
            made = connect(*args, **kwargs)
            is_over.wait(60)
            return made

        def take(connection, _):
            got.append(connection.recv(1 << 16))

        monkeypatch.setattr(socket, "create_connection", connect_late)
        port = hostile(take)

        error = error_of(f"http://127.0.0.1:{port}")
        is_over.set()
        end = time.monotonic() + 30
        while not got and time.monotonic() < end:
            threading.Event().wait(0.01)  # sleep() is only recorded

        assert "did not answer within 0.5 s" in error
        assert [b""] == got

    @pytest.mark.parametrize("scheme", ["http", "https"])
    @pytest.mark.parametrize(
        "proxy",
        [
            "socks5://me:{0}@127.0.0.1:{1}",
            "file:///{0}",
            "http://me:{0}@127.0.0.1:{1}",
            "me:{0}@127.0.0.1:{1}",
            "http:{0}",
            "http://[{0}",
        ],
        ids=["socks", "file", "password", "bare", "no host", "broken"],
    )
    def test_proxy(self, hostile, error_of, monkeypatch, scheme, proxy):
        """
        A proxy of the environment that is of no use, or answers without end.
        """
        port = hostile(endless(b"X: x\r\n"))
        monkeypatch.setenv(f"{scheme}_proxy", proxy.format(SECRET, port))

        error = error_of(f"{scheme}://chat.invalid")

        assert error.startswith("the webhook at chat.invalid ")

    def test_refused_by_proxy(self, hostile, error_of, monkeypatch):
        """
        A proxy that refuses; its words are not repeated.
        """
        head = f"HTTP/1.1 407 {SECRET}\r\n\r\n".encode()
        port = hostile(answer_once(head))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")

        error = error_of("https://chat.invalid")

        expected = "the proxy answered 407 (Proxy Authentication Required)"
        assert f"chat.invalid cannot be reached: {expected}" in error

    @pytest.mark.process
    def test_self_signed(self, hostile, error_of, tmp_path):
        """
        A certificate that nobody vouches for.
        """
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("no openssl")
        cert, key = tmp_path / "cert", tmp_path / "key"
        request = "req -x509 -newkey rsa:2048 -nodes -subj /CN=x -days 2"
        subprocess.run(
            [openssl, *request.split(), "-keyout", key, "-out", cert],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)

        def talk(connection, _):
            context.wrap_socket(connection, server_side=True).close()

        error = error_of(f"https://127.0.0.1:{hostile(talk)}", timeout_s=5.0)

        assert "has no valid certificate: self-signed certificate" in error


class TestAddress:
    def test_repr(self, server, file, hang):
        """
        An address does not show itself, not even where the variables of a
        failure are shown.
        """
        server.answers = [404]
        file.write_text(f"{server.address()}\nA: {SECRET}\n")

        with pytest.raises(HookError) as caught:
            webhook_hook(file)(hang)

        shown = traceback.TracebackException.from_exception(
            caught.value, capture_locals=True
        )
        text = "".join(shown.format())
        assert "address = Address(" in text
        assert SECRET not in text

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", "there is no address in it"),
            (b"# only\n\n", "there is no address in it"),
            (b"\xff\xfe", "is not text"),
            (b"ftp://h/s3cr3t", "line 1 is no address"),
            (b"#\nhttps:///s3cr3t", "line 2 is no address"),
            (b"https://h:0/s3cr3t", "line 1 is no address"),
            (b"https://h:s3cr3t/", "line 1 is no address"),
            (b"https://[h/s3cr3t", "line 1 is no address"),
            (b"https://h/s3cr3t x", "line 1 is no address"),
            ("https://hö/s3cr3t".encode(), "line 1 is no address"),
            (b"https://me:s3cr3t@h/", "line 1 has a name or password"),
            (b"https://h/\ns3cr3t", "line 2 is no header"),
            (b"https://h/\n: s3cr3t", "line 2 is no header"),
            (b"https://h/\nA b: s3cr3t", "line 2 is no header"),
            (b"https://h/\nA: s3cr3t\x01", "line 2 is no header"),
            ("https://h/\nA: s3cr3tö".encode(), "line 2 is no header"),
            (b"https://h/\nHost: s3cr3t", "line 2 is no header"),
            (b"#" * 70_000, "larger than 65,536 bytes"),
        ],
    )
    def test_mistakes(self, file, content, expected):
        """
        A mistake is reported by its line, which is never quoted.
        """
        file.write_bytes(content)

        with pytest.raises(ConfigError, match=expected) as caught:
            webhook_hook(file)

        told = str(caught.value).removeprefix(str(file))
        assert "s3cr3t" not in told
        assert "https://..." in caught.value.remedy

    def test_not_there(self, tmp_path):
        """
        A missing file is reported when the hook is made.
        """
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            webhook_hook(tmp_path / "none")

    def test_pipe(self, tmp_path):
        """
        A pipe is refused, and not waited for.
        """
        os.mkfifo(tmp_path / "pipe")

        with pytest.raises(ConfigError, match="not an ordinary file"):
            webhook_hook(tmp_path / "pipe")

    def test_mark_of_order(self, server, file, hang):
        """
        What some editors put before the first line does not count.
        """
        address = server.address().encode()
        file.write_bytes(b"\xef\xbb\xbf" + address + b"\r\nA:  b \r\n")

        webhook_hook(file)(hang)

        ((path, headers, _),) = server.got
        assert (f"/hook/{SECRET}", "b") == (path, headers["A"])


class TestMessage:
    @pytest.fixture(name="message")
    def _message(self, server, file, monkeypatch):
        """
        What a service gets; its host is never asked, for a proxy answers.
        """
        monkeypatch.setenv("http_proxy", server.address(""))

        def message(url, summary="a <b> & c", **data):
            reason = HangReason(kind="wait", elapsed_s=7.0, pids=())
            verdict = {"cause": "unknown", "summary": summary}
            data = {"verdict": verdict, **data}
            hang = Hang(reason=reason, folder=Path("/f"), data=data)
            file.write_text(f"http://{url}")
            webhook_hook(file)(hang)
            ((path, _, body),) = server.got
            assert f"http://{url}" == path
            return body

        return message

    @pytest.mark.parametrize(
        "url",
        [
            "hooks.slack.com/services/x",
            "discord.com/api/webhooks/1/x/slack",
        ],
    )
    def test_slack(self, message, url):
        """
        Slack gets a text in which nothing has a meaning of its own.
        """
        text = f"a &lt;b&gt; &amp; c\n{WHERE}"

        assert {"text": text} == message(url)

    @pytest.mark.parametrize(
        "url",
        [
            "chat.googleapis.com/v1/spaces/A/messages?key=x",
            "x.webhook.office.com/w",
        ],
    )
    def test_text(self, message, url):
        """
        Some refuse messages with keys that they do not know.
        """
        assert {"text": f"a <b> & c\n{WHERE}"} == message(url)

    def test_discord(self, message):
        """
        Discord knows the text by another name.
        """
        got = message("ptb.discord.com/api/webhooks/1/x")

        assert {
            "content": f"a <b> & c\n{WHERE}",
            "allowed_mentions": {"parse": []},
        } == got

    def test_teams(self, message):
        """
        Workflows of Teams want a card.
        """
        got = message("x.99.environment.api.powerplatform.com/w")

        (card,) = got["attachments"]
        assert {"type", "attachments"} == set(got)
        text = card["content"]["body"][0]["text"]
        assert f"a <b> & c\n{WHERE}" == text

    def test_other_host(self, message):
        """
        A host whose name only ends alike is another one.
        """
        got = message("notslack.com/x")

        assert f"a <b> & c\n{WHERE}" == got["text"]
        assert socket.gethostname() == got["host"]

    def test_nobody_is_woken(self, message):
        """
        Text from a job does not call everybody in a channel.
        """
        text = "@all <!here> <users/all> me@host x@allow <module>"

        got = message("chat.example/x", text)["text"]

        zero = "\u200b"
        expected = (
            f"@{zero}all <{zero}!here> <{zero}users/all> me@host x@allow "
            f"<module>\n{WHERE}"
        )
        assert expected == got

    def test_too_large(self, message):
        """
        A diagnosis that is too large for a message is left out.
        """
        got = message("chat.example/x", "t" * 3000, x="y" * 300_000)

        assert "diagnosis" not in got
        assert "/f" == got["folder"]
        assert 1000 < len(got["text"]) < 1800

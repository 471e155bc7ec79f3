"""
Who may ask a process, and what it answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time

from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest

from distdebug.__main__ import main
from distdebug.debugger import arm, connect, disarm, set_trace
from distdebug.debugger.inside import settings


def recorded(folder):
    """
    The commands that were written down.
    """
    lines = (folder / "audit.jsonl").read_text().splitlines()
    return [(r["op"], r["line"]) for r in map(json.loads, lines)]


class TestSafety:
    def test_private(self, folder, armed):
        """
        The socket is ours alone.
        """
        assert 0o600 == stat.S_IMODE(armed.stat().st_mode)
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)

    def test_unsafe_folder(self, folder, caplog):
        """
        Where others may enter, the rank does not listen, and the job goes on.
        """
        folder.chmod(0o755)

        assert arm() is None

        assert "others may enter" in caplog.text
        assert [] == list(folder.iterdir())

    def test_other_user(self, folder, armed, raw, peer_is, caplog):
        """
        Another user is hung up on, unheard, and that is recorded; root is
        heard.
        """
        peer_is(os.geteuid() + 1)
        other = raw.asked(armed, op="list", id=1)
        peer_is(0)
        root = raw.asked(armed, op="list", id=1)

        assert (None, 1) == (other, root["id"])
        assert [("refused", "")] == recorded(folder)
        assert "must not debug" in caplog.text

    @pytest.mark.process
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another")
    def test_really_another_user(self, folder, armed):
        """
        Another user is refused by the kernel's word, whatever may be opened.
        """
        folder.chmod(0o777)
        armed.chmod(0o777)
        program = (
            "import os, socket, sys; os.setgid(65534); os.setuid(65534); "
            "s = socket.socket(socket.AF_UNIX); s.settimeout(30); "
            "s.connect(sys.argv[1])\n"
            'try: s.sendall(b\'{"op": "list"}\\n\'); print(s.recv(100))\n'
            "except OSError: print('refused')"
        )

        got = subprocess.run(
            [sys.executable, "-c", program, armed],
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert got.stdout.strip() in {"b''", "refused"}, got.stderr
        assert [("refused", "")] == recorded(folder)

    def test_half_a_message(self, armed, raw):
        """
        A client that sends half a message, or nothing, does not block others.
        """
        with raw.connected(armed) as slow, raw.connected(armed):
            slow.sendall(b'{"op":')

            assert 1 == raw.asked(armed, op="list", id=1)["id"]

    def test_flood(self, armed, raw):
        """
        A client that sends too many requests slows down itself, not others.
        """
        done = threading.Event()

        def flood(client):
            with contextlib.suppress(OSError):
                client.sendall(b'{"op":"list"}\n' * 100_000)
            done.set()

        with raw.connected(armed) as client:
            threading.Thread(target=flood, args=(client,), daemon=True).start()
            began = time.monotonic()

            assert 2 == raw.asked(armed, op="list", id=2)["id"]

            assert time.monotonic() - began < 20
            assert not done.is_set()
            client.shutdown(socket.SHUT_RDWR)
        assert done.wait(30)

    def test_many(self, armed, raw, monkeypatch):
        """
        Only so many clients are served at a time; one more gets an error,
        unless another was idle for long.
        """
        monotonic = time.monotonic
        with contextlib.ExitStack() as stack:
            crowd = [
                stack.enter_context(raw.connected(armed)) for _ in range(16)
            ]
            for client in crowd:
                raw.said(client, b'{"op":"list"}\n')

            assert "16 others" in raw.asked(armed, op="list")["error"]
            monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 60)
            # Who is just being answered does not give way.
            tries = (raw.asked(armed, op="list", id=4) for _ in range(100))
            assert any(4 == answer["id"] for answer in tries)
            assert b"" == crowd[0].recv(10)
        for _ in range(1000):
            answer = raw.asked(armed, op="list", id=3)
            if "error" not in answer:
                break
            time.sleep(0.01)

        assert 3 == answer["id"]

    def test_no_files(self, armed, raw, monkeypatch):
        """
        If a connection cannot be taken, the next one is waited for; if no
        thread can be started, the client is hung up on.
        """
        accept, start, failed = (
            socket.socket.accept,
            threading.Thread.start,
            [],
        )

        def refuse(listener):
            if not failed:
                failed.append(listener)
                raise OSError(24, "too many open files")
            return accept(listener)

        def no_more(thread):
            if thread.name == "distdebug-client":
                msg = "can't start new thread"
                raise RuntimeError(msg)
            start(thread)

        monkeypatch.setattr(socket.socket, "accept", refuse)

        # The first is taken by who waits since before.
        assert [1, 2] == [
            raw.asked(armed, op="list", id=number)["id"] for number in (1, 2)
        ]
        assert 1 == len(failed)
        monkeypatch.setattr(threading.Thread, "start", no_more)
        assert raw.asked(armed, op="list") is None

    def test_cannot_listen(self, folder, monkeypatch, caplog):
        """
        What cannot be opened is closed again, and said.
        """

        def refuse(*_):
            raise OSError(98, "Address already in use")

        monkeypatch.setattr(socket.socket, "bind", refuse, raising=False)

        assert arm() is None

        assert "cannot be debugged: [Errno 98]" in caplog.text


class TestAnswers:
    def test_process(self, armed, raw):
        """
        A process says which rank it is, and where; one that was not to be
        stopped says so.
        """
        answer = raw.asked(armed, op="list", id=1)

        assert os.getpid() == answer["process"]["pid"]
        assert answer["main"]["line"] > 0
        assert [] == answer["stops"]
        assert "not about" in raw.asked(armed, op="resume")["output"]

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            ({"op": "fly"}, "unknown operation: 'fly'"),
            ({}, "unknown operation: None"),
            ({"op": "command", "line": 3, "keys": []}, "line must be a text"),
            ({"op": "command", "line": "n", "keys": 3}, "keys must be a list"),
            ({"op": "command", "line": "a\nb", "keys": []}, "one line"),
            (
                {"op": "command", "line": "n", "keys": [], "wait": -1},
                "wait must be",
            ),
            (
                {"op": "command", "line": "n", "keys": [], "wait": 1e9},
                "wait must be",
            ),
            ({"op": "eval", "expression": "1/0"}, "ZeroDivisionError"),
            ({"op": "eval", "expression": "x = 1"}, "SyntaxError"),
            (
                {
                    "op": "eval",
                    "expression": "__import__('time').sleep(0.5)",
                    "wait": 0.01,
                },
                "takes too long",
            ),
        ],
        ids=str,
    )
    def test_refused(self, armed, request_, error, raw):
        """
        What makes no sense, or takes too long, is an error and no more.
        """
        answer = raw.asked(armed, id=1, **request_)

        assert 1 == answer["id"]
        assert error in answer["error"]

    def test_gone(self, armed, raw):
        """
        A stop that is not there any more is said to have ended.
        """
        for request in (
            {"op": "command", "line": "n"},
            {"op": "last"},
            {"op": "extend", "seconds": 3},
        ):
            answer = raw.asked(armed, keys=["gone"], **request)

            assert "ended" == answer["stops"]["gone"]["state"]
            assert "not stopped" in answer["stops"]["gone"]["error"]

    def test_values(self, armed, raw):
        """
        An expression sees the line of the main thread, comprehensions too; an
        answer that is too long is cut.
        """
        inner = raw.asked(
            armed,
            op="eval",
            expression=" [type(c).__name__ for c in (client,)]",
        )
        outer = raw.asked(armed, op="eval", expression="request['op']", up=1)
        outermost = raw.asked(armed, op="eval", expression="up", up=999)
        long = raw.asked(armed, op="eval", expression="'\\U0001f600' * 10**7")

        assert "['socket']" == inner["output"]
        assert "'eval'" == outer["output"]
        assert "NameError: name 'up' is not defined" == outermost["error"]
        assert long["output"].endswith("…")

    def test_stack(self, armed, raw):
        """
        The threads of the process are listed, but for those of the debugger.
        """
        alone = raw.asked(armed, op="stack")["threads"]
        event = threading.Event()
        thread = threading.Thread(target=event.wait, name="mine")
        thread.start()
        both = raw.asked(armed, op="stack", all=True)["threads"]
        event.set()
        thread.join()

        assert [True] == [t["main"] for t in alone]
        names = [t["thread"] for t in both]
        assert "mine" in names
        assert not [n for n in names if n.startswith("distdebug")]


class TestBusy:
    """
    As many clients are connected as are served at a time.
    """

    @pytest.fixture(autouse=True)
    def crowd(self, folder, monkeypatch, raw):
        """
        Clients that have sent nothing but half a request.
        """
        monkeypatch.setenv("RANK", "7")
        path = arm()
        with contextlib.ExitStack() as stack:
            for _ in range(17):
                client = stack.enter_context(raw.connected(path))
                # It is served, or rejected, before the next one comes.
                raw.said(client, b'{"op":"list"}\n')
                with contextlib.suppress(BrokenPipeError):
                    client.sendall(b'{"op":')
            yield

    def test_listed(self, folder):
        """
        The rank is not listed under another number, but named as busy.
        """
        with connect(folder) as client:
            listing = client.list()
            answers = client.cast(None, "p 1")

        (busy,) = listing.silent
        assert () == listing.processes
        assert (7, os.getpid()) == (busy.rank, busy.pid)
        assert f"rank 7, process {os.getpid()} does not" in str(listing)
        assert "it is busy, as 16 others talk to it" in str(listing)
        assert (busy,) == answers.silent

    @pytest.mark.parametrize("option", [[], ["--json"]])
    def test_status(self, folder, capsys, option):
        """
        The exit status tells that not all have answered.
        """
        status = main(["dbg", "--dir", str(folder), "-c", "list", *option])

        assert 1 == status
        assert "it is busy" in capsys.readouterr().out


class TestAudit:
    def test_recorded(self, folder, armed, raw):
        """
        What is asked is written down; what only lists is not.
        """
        raw.asked(armed, op="list")
        raw.asked(armed, op="eval", expression="1 + 1")
        raw.asked(armed, op="command", line="p x", keys=["k"])

        assert [("eval", "1 + 1"), ("command", "p x")] == recorded(folder)
        path = folder / "audit.jsonl"
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)

    @pytest.mark.process
    def test_forbidden(self, start, raw):
        """
        An audit hook hears of a command, and can forbid it.
        """
        process = start(
            "import sys",
            "from distdebug.debugger import arm",
            "def hook(event, args):",
            "    if event.startswith('distdebug'):",
            "        print(event, *args, flush=True)",
            "        raise RuntimeError('not on my watch')",
            "sys.addaudithook(hook)",
            "print(arm(), flush=True)",
            "sys.stdin.read()",
        )
        path = process.stdout.readline().strip()

        answer = raw.asked(path, op="eval", expression="1 + 1")

        assert "forbids it: not on my watch" in answer["error"]
        assert "distdebug.command eval  1 + 1\n" == process.stdout.readline()

    def test_bounded(self, folder, armed, raw):
        """
        The record does not grow for ever, and follows no link.
        """
        record = folder / "audit.jsonl"
        record.touch()
        os.truncate(record, 16 << 20)

        raw.asked(armed, op="eval", expression="1 + 1")
        record.symlink_to(folder / "elsewhere")
        raw.asked(armed, op="eval", expression=f"'{'x' * 9000}'")
        record.unlink()
        raw.asked(armed, op="eval", expression=f"'{'x' * 9000}'")

        assert (16 << 20) < (folder / "audit.jsonl.1").stat().st_size
        assert not (folder / "elsewhere").exists()
        assert [4000] == [len(line) for _, line in recorded(folder)]


class TestArming:
    def test_off(self, folder, monkeypatch):
        """
        Where it is switched off, nothing happens.
        """
        monkeypatch.setenv("DISTDEBUG", "0")
        before = threading.active_count()

        assert arm() is None

        assert before == threading.active_count()
        assert [] == list(folder.iterdir())

    def test_breakpoints(self, folder, monkeypatch):
        """
        Breakpoints can be taken over from another hook.
        """
        monkeypatch.setattr(sys, "breakpointhook", print)

        arm()
        before = sys.breakpointhook
        arm(breakpoints=True)

        assert print is before
        assert set_trace is sys.breakpointhook

    def test_left_behind(self, folder):
        """
        Arming twice listens once, and disarming ends that; the socket of a
        dead process with our number is replaced.
        """
        path = arm()
        again = arm(dir="/elsewhere")
        disarm()
        disarm()
        gone = path.exists()
        path.touch()

        assert (path, False, path) == (again, gone, arm())
        assert stat.S_ISSOCK(path.stat().st_mode)

    def test_again_and_again(self, folder):
        """
        A thread whose socket is shut down ends, also if the next one listens
        before it has woken up.
        """
        before = threading.active_count()

        for _ in range(20):
            arm()
            stopped = threading.Thread(target=set_trace)
            stopped.start()
            with connect(folder) as client:
                while not any(
                    x.state == "stopped" for _, x in client.list().sessions
                ):
                    time.sleep(0.001)
                client.resume()
            stopped.join()
            disarm()

        end = time.monotonic() + 5
        while before < threading.active_count() and time.monotonic() < end:
            time.sleep(0.01)
        assert threading.active_count() <= before

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("after", "says", "left"),
        [
            ("pass", "stopped (breakpoint)", "[True, True]\n"),
            ("disarm()", "DISTDEBUG=1 stops", "[]\n"),
        ],
        ids=["armed", "disarmed"],
    )
    def test_child(self, folder, start, after, says, left):
        """
        A child leaves the socket to its parent, and can be held in the same
        folder, unless its parent was disarmed.
        """
        process = start(
            "import os, sys, distdebug",
            f"path = distdebug.arm(dir={str(folder / 'own')!r})",
            after.replace("dis", "distdebug.debugger.dis"),
            "if not os.fork():",
            "    distdebug.set_trace(limit=0.01)",
            "    print([x.is_socket() for x in path.parent.iterdir()])",
            "    sys.exit()",
            "os.wait()",
            "print(path.exists())",
        )

        told, errors = process.communicate(timeout=60)

        assert f"{left}{after == 'pass'}\n" == told
        assert says in errors

    def test_told_why(self, folder, monkeypatch, caplog):
        """
        Where arming failed, a breakpoint does not advise to arm.
        """
        monkeypatch.delenv("DISTDEBUG", raising=False)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)

        arm()
        set_trace()

        assert "this rank cannot be debugged" in caplog.messages[-1]
        assert "DISTDEBUG=1" not in caplog.text


def test_warned_without_threads(monkeypatch, caplog):
    """
    Where no thread can be started, a warning is logged all the same.
    """

    def refuse(_):
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    settings.log_warning("rank %s", 3)

    assert "rank 3" in caplog.text


class TestMishaps:
    """
    What may happen to a process that is armed, and must not end it.
    """

    @pytest.mark.parametrize("can_be_made", [True, False])
    def test_folder_is_gone(
        self, armed, folder, monkeypatch, caplog, can_be_made
    ):
        """
        Where the folder was removed, it is there again at a stop; if it cannot
        be made again, no thread is held.
        """
        shutil.rmtree(folder)

        def refuse(*_):
            raise OSError(28, "No space left on device")

        if not can_be_made:
            monkeypatch.setattr(os, "mkdir", refuse)

        set_trace(limit=0.01)

        assert can_be_made == ("stopped (breakpoint)" in caplog.text)
        assert can_be_made != ("No space left" in caplog.text)
        assert can_be_made == armed.exists()

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_no_thread(self, folder, monkeypatch, caplog, error):
        """
        Where no thread can be started, the job goes on; Ctrl-C while a rank
        begins to listen leaves nothing that listens.
        """
        start = threading.Thread.start

        def refuse(thread):
            if thread.name == "distdebug-agent" and error is RuntimeError:
                msg = "can't start new thread"
                raise error(msg)
            start(thread)
            if thread.name == "distdebug-agent":
                raise error

        monkeypatch.setattr(threading.Thread, "start", refuse)

        if error is RuntimeError:
            assert arm() is None
            assert "can't start new thread" in caplog.text
        else:
            with pytest.raises(error):
                arm()
        assert [] == list(folder.iterdir())

    @pytest.mark.process
    def test_full_disk(self, folder, start, raw):
        """
        On a disk that is full, commands are obeyed, though not written down.
        """
        process = start(
            "import resource, sys",
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
            "from distdebug.debugger import arm",
            "print(arm(), flush=True)",
            "sys.stdin.read()",
            "print('went on')",
        )
        path = process.stdout.readline().strip()

        answer = raw.asked(path, op="eval", expression="1 + 1")

        rest, _ = process.communicate("", timeout=60)
        assert "2" == answer["output"]
        assert "went on" in rest
        assert 0 == process.returncode
        assert "" == (folder / "audit.jsonl").read_text()

    @pytest.mark.process
    def test_fork_in_a_conversation(self, start, raw):
        """
        A child that is forked keeps no conversation of its parent open.
        """
        process = start(
            "import os, sys, time",
            "from distdebug.debugger import arm",
            "print(arm(), flush=True)",
            "sys.stdin.readline()",
            "if os.fork() == 0:",
            "    sys.stdin.read()",
            "os._exit(0)",
        )
        path = process.stdout.readline().strip()
        with raw.connected(path) as client:
            first = raw.said(client, b'{"op":"list","id":1}\n')
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait(60)

            assert 1 == first["id"]
            assert b"" == client.recv(10)

    def test_client_that_dies_while_it_waits(self, hold, armed, raw):
        """
        A client that hangs up in the middle of a command does not block
        others.
        """
        event = threading.Event()

        def work():
            set_trace()
            event.wait(60)

        held = hold(work)
        session = held.session()
        session.send("n")
        key = session.session.key
        request = {"op": "command", "keys": [key], "line": "n"}
        with raw.connected(armed) as client:
            data = json.dumps({**request, "wait": 60}).encode() + b"\n"
            client.sendall(data)
            while "running" != session.last().state:
                time.sleep(0.001)

        answer = raw.asked(armed, **request)
        event.set()

        assert "busy" in answer["stops"][key]["error"]


class FakeGroup:
    """
    A process group, and what carries out its collectives, as far as its
    time-out goes.
    """

    def __init__(self, seconds):
        self.options = self
        self._timeout = seconds
        self._device_types = ["cuda", "cpu"]

    def _get_backend(self, device):
        return self

    def _set_default_timeout(self, timeout):
        self._timeout = timeout


C10D = "torch.distributed.distributed_c10d"


class TestPatience:
    @pytest.fixture
    def c10d(self, folder, monkeypatch):
        """
        As much of torch.distributed as is needed.
        """
        groups = [
            ModuleType("no group"),
            FakeGroup(timedelta(seconds=8)),
            FakeGroup(timedelta(hours=9)),
        ]
        fake = ModuleType(C10D)
        fake._world = SimpleNamespace(pg_map=dict.fromkeys(groups))
        fake._register_process_group = lambda name, group: (
            fake._world.pg_map.update({group: name})
        )
        monkeypatch.setitem(sys.modules, C10D, fake)
        return fake

    def timeouts(self, c10d):
        """
        Those of all groups, in seconds.
        """
        return [
            g._timeout.total_seconds()
            for g in c10d._world.pg_map
            if isinstance(g, FakeGroup)
        ]

    @pytest.mark.parametrize("is_known", [True, False])
    def test_raised_and_restored(self, c10d, caplog, is_known):
        """
        Time-outs are raised, of later groups too, and put back in the end; if
        groups that are made later cannot be seen, that is said.
        """
        original = c10d._register_process_group
        late = FakeGroup(timedelta(seconds=5))
        if not is_known:
            del c10d._register_process_group

        arm(collective_timeout=3600)
        if is_known:
            c10d._register_process_group("late", late)
        raised = self.timeouts(c10d)
        disarm()

        assert [3600, 32400, 3600][: 2 + is_known] == raised
        assert [8, 32400, 5][: 2 + is_known] == self.timeouts(c10d)
        assert is_known != ("made later stay as they are" in caplog.text)
        assert is_known == (
            original is getattr(c10d, "_register_process_group", None)
        )

    def test_without_torch(self, folder, monkeypatch, caplog):
        """
        Without torch there is no time-out, and that is said.
        """
        monkeypatch.setitem(sys.modules, C10D, None)

        arm(collective_timeout=60)

        assert "no torch whose time-outs" in caplog.text

    @pytest.mark.parametrize(
        ("limit", "is_warned"), [(7, False), (9, True)], ids=["short", "long"]
    )
    def test_warned(self, hold, c10d, caplog, limit, is_warned):
        """
        Who may be held for longer than others wait is warned.
        """
        held = hold(lambda: set_trace(limit=limit))

        session = held.session()

        assert 6 <= session.session.patience_left_s <= 8
        for text in (caplog.text, session.last().text):
            assert is_warned == ("give up waiting" in text)
            assert is_warned == ("after 8 s" in text)


ASKED = """
import sys, threading, time
from distdebug.debugger import arm
arm(labels={"rank": 0})
loaded = []
class Finder:
    def find_spec(name, path, target=None):
        if threading.current_thread() is not threading.main_thread():
            loaded.append(name)
sys.meta_path.insert(0, Finder)
print("ready", flush=True)
while "stop" not in globals():
    time.sleep(0.001)
print(loaded)
"""


@pytest.mark.process
def test_loads_nothing(folder):
    """
    The thread that answers imports nothing: a child that is forked meanwhile
    inherits the locks of modules, and would wait for ever.
    """
    with subprocess.Popen(
        [sys.executable, "-c", ASKED], stdout=subprocess.PIPE, text=True
    ) as job:
        assert "ready\n" == job.stdout.readline()
        with connect(folder) as client:
            client.list()
            client.stack()
            client.eval(None, "1 + 1")
            client.interrupt()
            client.cast(None, "where")
            client.cast(None, "next")
            client.cast(None, "b 14")
            client.cast(None, "stop = True")
            client.resume()
        loaded = job.stdout.read()

    assert "[]\n" == loaded

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
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import distdebug

from distdebug.debugger import arm, connect, set_trace
from distdebug.debugger.folders import socket_path
from distdebug.debugger.inside import agent, arming, audit, patience
from distdebug.debugger.inside.arming import disarm, is_armed
from distdebug.debugger.inside.audit import keep_record
from distdebug.debugger.inside.stops import open_stop
from distdebug.debugger.wire import LIMIT_BYTES


@pytest.fixture
def folder(socket_folder):
    """
    Where this process listens, if it does.
    """
    yield socket_folder
    disarm()


@pytest.fixture
def armed(folder):
    """
    The socket of this process, which answers.
    """
    return arm()


def connected(path):
    """
    A socket that is connected to it.
    """
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(str(path))
    return client


def said(client, data):
    """
    The first line that is answered, as an object; nothing if it hangs up.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(data)
    with client.makefile("rb") as file:
        with contextlib.suppress(ConnectionResetError):
            line = file.readline()
            return json.loads(line) if line else None
    return None


def asked(path, **request):
    """
    What is answered to one request.
    """
    with connected(path) as client:
        return said(client, json.dumps(request).encode() + b"\n")


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
        Where others may enter, nobody listens, and the job goes on.
        """
        folder.chmod(0o755)

        assert arm() is None

        assert "others may enter" in caplog.text
        assert not is_armed()
        assert [] == list(folder.iterdir())

    def test_other_user(self, folder, armed, monkeypatch, caplog):
        """
        Another user is hung up on, unheard, and that is recorded.
        """
        monkeypatch.setattr(agent, "peer_uid", lambda _: os.geteuid() + 1)

        assert asked(armed, op="list", id=1) is None

        assert [("refused", "")] == recorded(folder)
        assert "must not debug" in caplog.text

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

    @pytest.mark.parametrize(
        "data",
        [
            b"nonsense\n",
            b"[]\n",
            b"\x80\x04}\n",
            b"x" * (LIMIT_BYTES + 2),
            b'{"a":' * 100_000 + b"\n",
        ],
        ids=["text", "list", "pickle", "oversized", "deep"],
    )
    def test_malformed(self, armed, data):
        """
        What is no message ends the conversation, and only that.
        """
        with connected(armed) as client:
            answer = said(client, data)
            rest = b"gone"
            with contextlib.suppress(ConnectionResetError):
                rest = client.recv(10)

        assert answer is None or "message" in answer["error"]
        assert rest in {b"", b"gone"}
        assert 7 == asked(armed, op="list", id=7)["id"]

    def test_half_a_message(self, armed):
        """
        Who says half a word, or nothing, keeps nobody from being heard.
        """
        with connected(armed) as slow, connected(armed):
            slow.sendall(b'{"op":')

            assert 1 == asked(armed, op="list", id=1)["id"]

    def test_flood(self, armed, monkeypatch):
        """
        Who asks too much waits for itself; others do not.
        """
        monkeypatch.setattr(agent, "_MOST_PER_SECOND", 20)
        done = threading.Event()

        def flood(client):
            with contextlib.suppress(OSError):
                client.sendall(b'{"op":"list"}\n' * 100_000)
            done.set()

        with connected(armed) as client:
            threading.Thread(target=flood, args=(client,), daemon=True).start()
            began = time.monotonic()

            assert 2 == asked(armed, op="list", id=2)["id"]

            assert time.monotonic() - began < 20
            assert not done.is_set()
            client.shutdown(socket.SHUT_RDWR)
        assert done.wait(30)

    def test_many(self, armed, monkeypatch):
        """
        Only so many are talked to at a time, and who comes then is told so.
        """
        with contextlib.ExitStack() as stack:
            crowd = [
                stack.enter_context(connected(armed))
                for _ in range(agent._MOST_CLIENTS)
            ]
            for client in crowd:
                said(client, b'{"op":"list"}\n')

            assert "16 others" in asked(armed, op="list")["error"]
            monkeypatch.setattr(agent, "_GIVES_WAY_S", 0.0)
            # Who is just being answered does not give way.
            tries = (asked(armed, op="list", id=4) for _ in range(100))
            assert any(4 == answer["id"] for answer in tries)
            assert b"" == crowd[0].recv(10)
        for _ in range(1000):
            answer = asked(armed, op="list", id=3)
            if "error" not in answer:
                break
            time.sleep(0.01)

        assert 3 == answer["id"]

    def test_no_threads(self, armed, monkeypatch):
        """
        If no thread can be started, the client is hung up on.
        """
        with connected(armed) as client:
            said(client, b'{"op":"list"}\n')
            start = threading.Thread.start

            def refuse(thread):
                if thread.name == "distdebug-client":
                    msg = "can't start new thread"
                    raise RuntimeError(msg)
                start(thread)

            monkeypatch.setattr(threading.Thread, "start", refuse)

            assert asked(armed, op="list") is None

    def test_no_files(self, folder, monkeypatch):
        """
        If a connection cannot be taken, the next one is waited for.
        """

        class Tired(socket.socket):
            """
            Fails once, and is closed then.
            """

            times = 0

            def accept(self):
                self.times += 1
                if self.times == 2:
                    self.close()
                raise OSError(24, "too many open files")

        tired = Tired()

        agent.serve(tired, folder).join(30)

        assert 2 == tired.times

    def test_cannot_listen(self, folder, monkeypatch):
        """
        What cannot be opened is closed again, and said.
        """
        with pytest.raises(OSError):
            agent.listen(folder / "missing" / "s")


class TestAnswers:
    def test_process(self, armed):
        """
        A process says who it is, and where.
        """
        answer = asked(armed, op="list", id=1)

        assert os.getpid() == answer["process"]["pid"]
        assert answer["main"]["line"] > 0
        assert [] == answer["stops"]

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
    def test_refused(self, armed, request_, error):
        """
        What makes no sense, or takes too long, is an error and no more.
        """
        answer = asked(armed, id=1, **request_)

        assert 1 == answer["id"]
        assert error in answer["error"]

    def test_gone(self, armed):
        """
        A stop that is not there any more is said to have ended.
        """
        for request in (
            {"op": "command", "line": "n"},
            {"op": "last"},
            {"op": "extend", "seconds": 3},
        ):
            answer = asked(armed, keys=["gone"], **request)

            assert "ended" == answer["stops"]["gone"]["state"]
            assert "not stopped" in answer["stops"]["gone"]["error"]

    def test_values(self, armed):
        """
        An expression sees the line of the main thread, comprehensions too.
        """
        inner = asked(
            armed,
            op="eval",
            expression=" [type(c).__name__ for c in (client,)]",
        )
        outer = asked(armed, op="eval", expression="request['op']", up=1)
        outermost = asked(armed, op="eval", expression="up", up=999)

        assert "['socket']" == inner["output"]
        assert "'eval'" == outer["output"]
        assert "NameError: name 'up' is not defined" == outermost["error"]

    def test_too_much(self, armed):
        """
        An answer that is too long is an error, and the talk goes on.
        """
        answer = asked(
            armed, op="eval", id=1, expression="'\\U0001f600' * 10**7"
        )

        assert answer["output"].endswith("…")

    def test_too_long_to_send(self):
        """
        What would not fit is not sent.
        """
        data = agent._packed({"id": 4, "output": "x" * LIMIT_BYTES})

        assert 4 == json.loads(data)["id"]
        assert "longer" in json.loads(data)["error"]

    def test_stack(self, armed):
        """
        The threads of the process are told, but for those of the debugger.
        """
        alone = asked(armed, op="stack")["threads"]
        event = threading.Event()
        thread = threading.Thread(target=event.wait, name="mine")
        thread.start()
        both = asked(armed, op="stack", all=True)["threads"]
        event.set()
        thread.join()

        assert [True] == [t["main"] for t in alone]
        names = [t["thread"] for t in both]
        assert "mine" in names
        assert not [n for n in names if n.startswith("distdebug")]

    def test_resume(self, armed):
        """
        A process that nobody wanted to stop says so.
        """
        assert "not about" in asked(armed, op="resume")["output"]


class TestAudit:
    def test_recorded(self, folder, armed):
        """
        What is asked is written down; what only lists is not.
        """
        asked(armed, op="list")
        asked(armed, op="eval", expression="1 + 1")
        asked(armed, op="command", line="p x", keys=["k"])

        assert [("eval", "1 + 1"), ("command", "p x")] == recorded(folder)
        path = folder / "audit.jsonl"
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)

    def test_forbidden(self, armed, monkeypatch):
        """
        An audit hook can forbid a command.
        """

        def forbid(*_, **__):
            msg = "not on my watch"
            raise RuntimeError(msg)

        monkeypatch.setattr(agent, "keep_record", forbid)

        answer = asked(armed, op="eval", expression="1")

        assert "forbids it: not on my watch" in answer["error"]

    def test_hooks_hear_of_it(self, folder):
        """
        The audit hooks of the interpreter are told.
        """
        program = (
            "import sys; from pathlib import Path\n"
            "sys.addaudithook(lambda e, a: e[:9] == 'distdebug' "
            "and print(e, *a))\n"
            "from distdebug.debugger.inside.audit import keep_record\n"
            "keep_record(Path('/nowhere'), uid=1, pid=2, key='k', op='o', "
            "line='l')"
        )
        source = Path(distdebug.__file__).parents[1]

        got = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert "distdebug.command o k l" == got.stdout.strip(), got.stderr

    def test_bounded(self, folder, monkeypatch):
        """
        The record does not grow for ever, and follows no link.
        """
        monkeypatch.setattr(audit, "_MOST_BYTES", 100)
        record = {"uid": 1, "pid": 2, "key": "k", "op": "o"}

        keep_record(folder, line="x" * 9000, **record)

        assert ["audit.jsonl.1"] == [p.name for p in folder.iterdir()]
        (folder / "audit.jsonl").symlink_to(folder / "elsewhere")
        keep_record(folder, line="x", **record)
        assert not (folder / "elsewhere").exists()


class TestArming:
    def test_twice(self, armed):
        """
        Who arms twice listens once.
        """
        assert armed == arm(dir="/elsewhere")

    def test_disarmed(self, armed):
        """
        Who disarms does not listen any more.
        """
        disarm()

        assert not armed.exists()
        assert not is_armed()
        disarm()

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
        Breakpoints can be taken over from whoever has them.
        """
        monkeypatch.setattr(sys, "breakpointhook", print)

        arm()
        before = sys.breakpointhook
        arm(breakpoints=True)

        assert print is before
        assert set_trace is sys.breakpointhook

    def test_left_behind(self, folder):
        """
        The socket of a dead process with our number is replaced.
        """
        path = socket_path(folder, None)
        path.touch()

        assert path == arm()

        assert stat.S_ISSOCK(path.stat().st_mode)

    def test_child(self, armed, monkeypatch):
        """
        A child leaves the socket to its parent.
        """
        arming._close(arming._armed[0]._replace(pid=1))

        assert armed.exists()

        arming._forget()

        assert not is_armed()
        armed.unlink()

    def test_child_stops(self, folder, monkeypatch):
        """
        A child of a process that was armed can be held, in the same folder.
        """
        monkeypatch.delenv("DISTDEBUG", raising=False)
        path = arm(dir=folder / "own")

        arming._forget()

        assert arming.ready_to_stop()
        assert path.parent == arming._armed[0].path.parent

    def test_disarmed_child(self, folder, monkeypatch):
        """
        A process that was disarmed, or never armed, is not held.
        """
        monkeypatch.delenv("DISTDEBUG", raising=False)
        arm()
        disarm()

        arming._forget()

        assert not arming.ready_to_stop()

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


class TestMishaps:
    """
    What may happen to a process that is armed, and must not end it.
    """

    def test_folder_is_gone(self, armed, folder):
        """
        Where somebody has removed the folder, it is there again at a stop.
        """
        shutil.rmtree(folder)

        assert arming.ready_to_stop()

        assert armed.exists()
        assert 7 == asked(armed, op="list", id=7)["id"]

    def test_folder_cannot_be_made(self, armed, folder, monkeypatch, caplog):
        """
        If it cannot be made again, nobody is held.
        """
        armed.unlink()

        def refuse(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(arming, "make_folder", refuse)

        assert not arming.ready_to_stop()
        assert "No space left" in caplog.text

    def test_no_thread(self, folder, monkeypatch, caplog):
        """
        Where no thread can be started, the job goes on.
        """

        def refuse(*_):
            msg = "can't start new thread"
            raise RuntimeError(msg)

        monkeypatch.setattr(arming, "serve", refuse)

        assert arm() is None
        assert [] == list(folder.iterdir())
        assert "can't start new thread" in caplog.text

    def test_interrupted(self, folder, monkeypatch):
        """
        Ctrl-C while a rank begins to listen leaves nothing that listens.
        """
        serve = arming.serve

        def interrupt(*args):
            serve(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(arming, "serve", interrupt)

        with pytest.raises(KeyboardInterrupt):
            arm()

        assert not arming.is_armed()
        assert [] == list(folder.iterdir())

    def test_full_disk(self, folder):
        """
        On a disk that is full, commands are obeyed, though not written down.
        """
        program = (
            "import resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
            "from distdebug.debugger import arm\n"
            "print(arm(), flush=True)\n"
            "sys.stdin.read()\n"
            "print('went on')"
        )
        with running(program) as process:
            path = process.stdout.readline().strip()

            answer = asked(path, op="eval", expression="1 + 1")

            rest, _ = process.communicate("", timeout=60)
        assert "2" == answer["output"]
        assert "went on" in rest
        assert 0 == process.returncode
        assert "" == (folder / "audit.jsonl").read_text()

    def test_fork_in_a_conversation(self, folder):
        """
        A child that is forked keeps no conversation of its parent open.
        """
        program = (
            "import os, sys, time\n"
            "from distdebug.debugger import arm\n"
            "print(arm(), flush=True)\n"
            "sys.stdin.readline()\n"
            "if os.fork() == 0:\n"
            "    sys.stdin.read()\n"
            "    os._exit(0)\n"
            "os._exit(0)\n"
        )
        with running(program) as process:
            path = process.stdout.readline().strip()
            with connected(path) as client:
                first = said(client, b'{"op":"list","id":1}\n')
                process.stdin.write("\n")
                process.stdin.flush()
                process.wait(60)

                assert 1 == first["id"]
                assert b"" == client.recv(10)

    def test_client_that_dies_while_it_waits(self, armed):
        """
        Who hangs up in the middle of a command keeps nobody from being heard.
        """
        stop = open_stop("breakpoint", 1000)
        stop.arrive(sys._getframe())
        reader = threading.Thread(target=stop.read)
        reader.start()
        while "stopped" != stop.state:
            time.sleep(0.001)
        request = {"op": "command", "keys": [stop.key], "line": "n"}
        with connected(armed) as client:
            client.sendall(
                json.dumps({**request, "wait": 60}).encode() + b"\n"
            )
            reader.join(30)

        answer = asked(armed, **request)

        assert "busy" in answer["stops"][stop.key]["error"]
        stop.close()


@contextlib.contextmanager
def running(program):
    """
    A process of its own that can be written to, and is ended.
    """
    source = Path(distdebug.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


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


class TestPatience:
    @pytest.fixture
    def c10d(self, monkeypatch):
        """
        As much of torch.distributed as is needed.
        """
        groups = [
            ModuleType("no group"),
            FakeGroup(timedelta(seconds=8)),
            FakeGroup(timedelta(hours=9)),
        ]
        fake = ModuleType(patience._MODULE)
        fake._world = SimpleNamespace(pg_map=dict.fromkeys(groups))
        fake._register_process_group = lambda name, group: (
            fake._world.pg_map.update({group: name})
        )
        monkeypatch.setitem(sys.modules, patience._MODULE, fake)
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

    def test_raised_and_restored(self, c10d):
        """
        Time-outs are raised, of later groups too, and put back in the end.
        """
        original = c10d._register_process_group

        patience.raise_timeouts(3600)
        c10d._register_process_group("late", FakeGroup(timedelta(seconds=5)))
        raised = self.timeouts(c10d), patience.shortest_timeout_s()
        patience.restore_timeouts()

        assert ([3600, 32400, 3600], 3600) == raised
        assert [8, 32400, 5] == self.timeouts(c10d)
        assert 5 == patience.shortest_timeout_s()
        assert original is c10d._register_process_group

    def test_unknown_torch(self, c10d, caplog):
        """
        If groups that are made later cannot be seen, that is said.
        """
        del c10d._register_process_group

        patience.raise_timeouts(3600)

        assert [3600, 32400] == self.timeouts(c10d)
        assert "made later stay as they are" in caplog.text
        patience.restore_timeouts()

    def test_without_torch(self, folder, monkeypatch, caplog):
        """
        Without torch there is no time-out, and that is said.
        """
        monkeypatch.setitem(sys.modules, patience._MODULE, None)

        arm(collective_timeout=60)

        assert "no torch whose time-outs" in caplog.text
        assert patience.shortest_timeout_s() is None

    @pytest.mark.parametrize(
        ("limit", "is_warned"), [(7, False), (9, True)], ids=["short", "long"]
    )
    def test_warned(self, folder, c10d, caplog, limit, is_warned):
        """
        Who may be held for longer than others wait is warned.
        """
        stop = open_stop("breakpoint", limit)
        stop.arrive(sys._getframe())
        found = stop.to_dict()
        stop.close()

        assert 7 < found["patience_left_s"] <= 8
        for text in (caplog.text, stop.text()):
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


def test_loads_nothing(folder):
    """
    Who answers imports nothing: the locks of modules are inherited by a child
    that is forked meanwhile, which would then wait for ever.
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

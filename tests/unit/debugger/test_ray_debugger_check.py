"""
What is in the way of using Ray's debugger, without a cluster.
"""

from __future__ import annotations

import os
import shlex
import socket
import threading
import time

from contextlib import contextmanager

import pytest

from distdebug.capture import Check
from distdebug.debugger import check_ray_debugger
from distdebug.debugger.ray_debugger import checking, editor, environments
from distdebug.debugger.ray_debugger.dashboard import (
    check_dashboard,
    split_address,
)
from distdebug.debugger.ray_debugger.editor import check_extension
from distdebug.debugger.ray_debugger.environments import Told, ask_environments
from distdebug.debugger.ray_debugger.judging import (
    check_debugpy,
    check_driver,
    check_post_mortem,
    check_ray,
    check_switch,
)
from distdebug.debugger.ray_debugger.model import EXTENSION
from distdebug.debugger.ray_debugger.tunnel import (
    free_port,
    head_of_job,
    tunnel_line,
)
from distdebug.errors import NodesError
from distdebug.findings import Cause


HOST = socket.gethostname()


def told(debugpy="1.8.22", *, who="Trainer", **facts):
    """
    What a worker said.
    """
    base = {
        "ray": "2.60.0",
        "RAY_DEBUG": None,
        "RAY_DEBUG_POST_MORTEM": None,
        "debugpy": debugpy,
        "reason": "",
    }
    return Told(who, "node-1", {**base, **facts})


SILENT = Told("job 01", "node-2", {"reason": "no worker answered in time"})


@pytest.mark.parametrize(
    ("version", "reason", "expected"),
    [
        ("1.8.22", "", ""),
        ("1.8.0", "", ""),
        ("1.9.1+dev", "", ""),
        ("2.0", "", ""),
        ("1.7.9", "", "debugpy 1.7.9 is older than 1.8.0"),
        ("1.10.0", "", "Ray takes debugpy 1.10.0 for older than 1.8.0"),
        (None, "", "debugpy is not installed"),
        (
            None,
            "ModuleNotFoundError: No module named 'debugpy'",
            "debugpy is not installed",
        ),
        (None, "ImportError: no pydevd", "debugpy: ImportError: no pydevd"),
        ("0+unknown", "", "debugpy 0+unknown is older"),
        ("unknown", "", ""),
    ],
    ids=str,
)
def test_debugpy(version, reason, expected):
    """
    The version is judged by its numbers, and as Ray does, by its text.
    """
    check = check_debugpy([told(version, reason=reason), told()])

    assert (not expected) == check.ok
    assert expected in check.detail
    assert bool(expected) == ("debugpy>=1.8.0" in check.remedy)


def test_debugpy_of_many():
    """
    Whose debugpy is missing is told, with the first three of many.
    """
    workers = [told(None, who=f"Actor{i}") for i in range(5)]

    check = check_debugpy([*workers, told(), SILENT])

    expected = (
        "debugpy is not installed (Actor0 on node-1, Actor1 on node-1, "
        "Actor2 on node-1, 2 more)"
    )
    assert (False, expected) == (check.ok, check.detail)


def test_debugpy_unknown():
    """
    Who did not answer is not taken for well.
    """
    silent = check_debugpy([told(), SILENT])
    mute = check_debugpy([Told("job 01", "node-2", {})])
    nobody = check_debugpy([])

    assert [None, None, None] == [silent.ok, mute.ok, nobody.ok]
    assert "job 01 on node-2: no worker answered" in silent.detail
    assert mute.detail.endswith("no answer")
    assert "no worker was asked" == nobody.detail


@pytest.mark.parametrize(
    ("values", "ok", "detail"),
    [
        ([None, "1"], True, "not set, or 1"),
        ([None, "legacy"], False, "legacy for Trainer on node-1"),
        (["0"], False, "'0' for Trainer on node-1: breakpoint() does nothing"),
        ([""], False, "'' for Trainer on node-1: breakpoint() does nothing"),
        (["0", "legacy"], False, "VS Code cannot attach"),
    ],
    ids=["unset", "legacy", "zero", "empty", "both"],
)
def test_switch(values, ok, detail):
    """
    RAY_DEBUG is judged as Ray does: 1, legacy, or nothing at all.
    """
    check = check_switch([SILENT, *(told(RAY_DEBUG=x) for x in values)])

    assert ok is check.ok
    assert detail in check.detail
    assert ok != bool(check.remedy)


def test_switch_unknown():
    """
    Where no worker answered, nothing is said of RAY_DEBUG.
    """
    assert None is check_switch([SILENT]).ok


@pytest.mark.parametrize(
    ("environment", "detail", "remedy"),
    [
        ({}, "wait for VS Code if it has debugpy", "RAY_DEBUG=legacy"),
        ({"RAY_DEBUG": "legacy"}, "open pdb in its shell", "do not hand it"),
        ({"RAY_DEBUG": "0"}, "do nothing", "RAY_DEBUG=legacy"),
    ],
    ids=["unset", "legacy", "zero"],
)
def test_driver(environment, detail, remedy):
    """
    What a breakpoint in the program itself does depends on its own shell.
    """
    check = check_driver(environment)

    assert None is check.ok
    assert detail in check.detail
    assert remedy in check.remedy


def test_post_mortem():
    """
    Whether failing tasks wait is told, and is no problem.
    """
    off = check_post_mortem([told(), SILENT])
    on = check_post_mortem([told(), told(RAY_DEBUG_POST_MORTEM="1")])

    assert (None, None) == (off.ok, on.ok)
    assert off.detail.startswith("not 1")
    assert "1 for Trainer on node-1" in on.detail


@pytest.mark.parametrize(
    ("cluster", "ray", "ok", "detail"),
    [
        ("2.60.0", "2.60.0", True, "2.60.0"),
        ("2.38.0", "2.60.0", False, "Ray 2.38.0 is older than 2.39"),
        ("", "2.9.3", False, "Ray 2.9.3 is older"),
        ("", "", None, "not known"),
        ("3.0.0.dev0", "", True, "3.0.0.dev0"),
        ("main", "", True, "main"),
    ],
    ids=["new", "old", "older", "unknown", "nightly", "words"],
)
def test_ray(cluster, ray, ok, detail):
    """
    Ray is old if the workers or the head have an old one.
    """
    check = check_ray([told(ray=ray)], cluster)

    assert ok is check.ok
    assert detail in check.detail


def tables(**more):
    """
    What the head of a cluster tells.
    """
    nodes = [
        {"id": "aa", "name": HOST, "is_head": True},
        {"id": "bb", "name": "node-2"},
    ]
    return {"address": "h:1", "nodes": nodes, "ray_version": "2.60.0", **more}


def test_environments(monkeypatch):
    """
    Each environment is asked before all nodes of one, and not without end.
    """
    asked = []

    def answer(address, errands, *, timeout_s):
        asked.extend((errand["node"], errand["env"]) for errand in errands)
        return [told().facts] * len(errands)

    monkeypatch.setattr(environments, "ask_workers", answer)
    monkeypatch.setattr(environments, "_MOST_ERRANDS", 3)
    rows = [
        {
            "env": {"a": "1"},
            "who": ["1", "2", "3", "4"],
            "nodes": ["aa", "bb"],
        },
        {"env": {}, "who": "x", "nodes": ["bb", "aa"]},
        {"env": 7, "nodes": []},
        {"env": {}, "nodes": 7},
    ]

    got = ask_environments(None, tables(environments=rows), timeout_s=1)

    assert [("aa", {"a": "1"}), ("bb", {}), ("bb", {"a": "1"})] == asked
    assert ["1, 2, 3, …", "", "1, 2, 3, …"] == [one.who for one in got]
    assert [HOST, "node-2", "node-2"] == [one.node for one in got]


def test_no_environment(monkeypatch):
    """
    Without a job, the nodes themselves are asked; what fails is told.
    """

    def fail(*args, **kwargs):
        msg = "gone"
        raise NodesError(msg)

    monkeypatch.setattr(environments, "ask_workers", fail)

    got = ask_environments("h:1", tables(), timeout_s=1)

    assert [("no job", HOST), ("no job", "node-2")] == [x[:2] for x in got]
    assert {"reason": "gone"} == got[0].facts
    assert () == ask_environments("h:1", {}, timeout_s=1)


@contextmanager
def server(reply, *, drip_s=None):
    """
    Answers one request with these bytes; its address.
    """

    def serve(listening):
        link, _ = listening.accept()
        with link:
            link.recv(1 << 12)
            if drip_s is None:
                link.sendall(reply)
                return
            for byte in reply:
                if stop.wait(drip_s):
                    return
                link.sendall(bytes([byte]))

    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=[listening])
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        stop.set()
        thread.join(10)


OK = b'HTTP/1.1 200 OK\r\nA: b\r\n\r\n{"ray_version": "2.60.0"}'


@pytest.mark.parametrize(
    ("reply", "ok", "detail"),
    [
        (OK, True, "answers: Ray 2.60.0"),
        (OK.replace(b"60", b"10"), False, "of another cluster: Ray 2.10.0"),
        (b"HTTP/1.0 401 No\r\n\r\n", True, "wants a token"),
        (b"HTTP/1.1 302 Go\r\nLocation: x\r\n\r\n", False, "no dashboard"),
        (OK.replace(b"200", b"404"), False, "no dashboard"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", False, "no dashboard"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"ray_version": 7}', False, "no dash"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 9999, False, "no dashboard"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, "no dashboard"),
        (b"", False, "no dashboard"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (1 << 20), False, ""),
    ],
    ids=[
        "ray",
        "other",
        "token",
        "redirection",
        "missing",
        "list",
        "number",
        "deep",
        "ssh",
        "nothing",
        "endless",
    ],
)
def test_dashboard(reply, ok, detail):
    """
    Only what answers as a dashboard of this cluster is one.
    """
    # Who is hung up on while it still talks may see an error.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: None)
        with server(reply) as address:
            check = check_dashboard(address, timeout_s=10, version="2.60.0")

    assert ok is check.ok
    assert detail in check.detail


def test_slow_dashboard():
    """
    One that answers byte by byte does not get more time for that.
    """
    begin = time.monotonic()

    with server(OK, drip_s=0.3) as address:
        check = check_dashboard(address, timeout_s=1)

    assert time.monotonic() - begin < 8
    assert "no answer in time" in check.detail


@pytest.mark.parametrize(
    ("address", "detail"),
    [
        ("", "there is none"),
        ("no\x1b[2J where", "'no where' is no address"),
        ("https://h:1", "is no address"),
        ("127.0.0.1:1", "does not answer"),
    ],
    ids=["none", "words", "scheme", "closed"],
)
def test_no_dashboard(address, detail):
    """
    Where nothing answers, it is said how the dashboard is started.
    """
    check = check_dashboard(address, timeout_s=5)

    assert (False, True) == (check.ok, "ray[default]" in check.remedy)
    assert detail in check.detail


def test_out_of_time():
    """
    Without any time left, nobody is asked.
    """
    assert "no answer in time" in check_dashboard("h:1", timeout_s=0).detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8265", ("10.0.0.1", 8265)),
        ("http://node-1.x:80/", ("node-1.x", 80)),
        ("[fd00::1]:8265", ("fd00::1", 8265)),
        ("h:0", None),
        ("h:65536", None),
        ("h:1/path", None),
        ("h\r\nX: y:1", None),
        ("", None),
    ],
    ids=["ip", "url", "six", "zero", "large", "path", "lines", "nothing"],
)
def test_split_address(text, expected):
    """
    An address is a host and a port, and nothing besides.
    """
    assert expected == split_address(text)


LINE = {"local_port": 52640, "head": "node-12", "user": "me"}


@pytest.mark.parametrize(
    ("dashboard", "login", "expected"),
    [
        (("10.0.0.12", 8265), "login", "52640:node-12:8265 me@login"),
        (("0.0.0.0", 9000), "login", "52640:node-12:9000 me@login"),
        (None, "login", "52640:node-12:8265 me@login"),
        (
            ("127.0.0.1", 8265),
            "login",
            "52640:localhost:8265 -J me@login me@node-12",
        ),
        (None, "", "52640:localhost:8265 me@node-12"),
        (("127.0.0.1", 8265), "", "52640:localhost:8265 me@node-12"),
        (("10.0.0.12", 8265), "", "52640:10.0.0.12:8265 me@node-12"),
        (("fd00::1", 8265), "", "'52640:[fd00::1]:8265' me@node-12"),
    ],
    ids=["out", "any", "unknown", "in", "here", "here in", "here ip", "six"],
)
def test_tunnel_line(dashboard, login, expected):
    """
    The tunnel ends where the dashboard can be reached.
    """
    line = tunnel_line(dashboard=dashboard, login=login, **LINE)

    assert f"ssh -N -L {expected}" == line


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "-oProxyCommand=x"},
        {"login": "a b"},
        {"login": "$(x)"},
        {"user": "-x"},
        {"head": ""},
    ],
    ids=["option", "blank", "shell", "user", "nothing"],
)
def test_hostile_tunnel(changes):
    """
    What ssh or a shell could take for something else is no name.
    """
    given = {"dashboard": None, "login": "login", **LINE, **changes}

    with pytest.raises(NodesError, match="is no name that ssh"):
        tunnel_line(**given)


def test_user(monkeypatch):
    """
    By default the user is the one who asks, if there is a name for that.
    """
    given = {**LINE, "dashboard": None, "login": "login", "user": ""}

    def fail():
        raise KeyError

    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    known = tunnel_line(**given)
    monkeypatch.setattr("getpass.getuser", fail)
    unknown = tunnel_line(**given)

    assert known.endswith(" somebody@login")
    assert unknown.endswith(" USER@login")


def test_free_port():
    """
    A port that is free can be taken.
    """
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert 0 < taken.getsockname()[1]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """
    Writes a stand-in for a command; there are no others.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(name, code):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)

    return write


@pytest.fixture
def slurm(command):
    """
    A Slurm with one job, on these nodes.
    """

    def make(*hosts):
        listed = "\n".join(f"echo {shlex.quote(host)}" for host in hosts)
        command("squeue", "echo '7|RUNNING|node-[12,22]'")
        command("scontrol", listed or "true")
        command("srun", "true")

    return make


def test_head_of_job(slurm):
    """
    The head is the first node of the job, in the order of Slurm.
    """
    slurm("node-12", "node-22")

    assert "node-12" == head_of_job("7")


@pytest.mark.parametrize("hosts", [(), ("$(x)",)], ids=["none", "shell"])
def test_no_head(slurm, hosts):
    """
    What is no name of a node is not taken for one.
    """
    slurm(*hosts)

    with pytest.raises(NodesError, match="no name of a node"):
        head_of_job("7")


@pytest.mark.parametrize(
    ("commands", "ok", "detail"),
    [
        ({}, None, "no editor's command is here"),
        ({"code": f"echo {EXTENSION}"}, True, "is in code"),
        ({"cursor": f"echo {EXTENSION.upper()}@1.2"}, True, "is in cursor"),
        ({"code": "echo other"}, False, "is not in code"),
        (
            {"code": "echo other", "cursor": f"echo {EXTENSION}"},
            True,
            "is in cursor",
        ),
        ({"code": "exit 1"}, None, "code did not list its extensions"),
        ({"code": "exec /bin/sleep 60"}, None, "code did not list"),
    ],
    ids=["none", "code", "cursor", "lacking", "either", "fails", "hangs"],
)
def test_extension(command, commands, ok, detail):
    """
    The extension is looked for in each editor that is here.
    """
    for name, code in commands.items():
        command(name, code)

    check = check_extension(timeout_s=2)

    assert ok is check.ok
    assert detail in check.detail
    assert ok or EXTENSION in check.remedy


def test_broken_editor(command, monkeypatch):
    """
    An editor that cannot be started is as none.
    """

    def fail(*args, **kwargs):
        raise OSError

    command("code", "true")
    monkeypatch.setattr(editor, "run_tool", fail)

    assert None is check_extension().ok


@pytest.fixture
def healthy(monkeypatch, command):
    """
    A cluster of which all is well, or what is given instead.
    """

    def make(error=None, workers=None, **more):
        def ask(address, *, timeout_s):
            if error:
                raise error
            return tables(**more)

        monkeypatch.setattr(checking, "ask_tables", ask)
        monkeypatch.setattr(
            checking, "ask_environments", lambda *_, **__: workers or [told()]
        )

    monkeypatch.delenv("SLURM_SUBMIT_HOST", raising=False)
    for name in ("RAY_DEBUG", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return make


def by_name(report):
    """
    The checks of a report.
    """
    return {check.name: check for check in report.checks}


WAITING = {
    "worker_id": "w1",
    "node_id": "aa",
    "ip": "10.0.0.1",
    "pid": 7,
    "port": 50001,
    "paused": 1,
}


def test_check(healthy, monkeypatch):
    """
    Where all is well, everything is told that a user has to type.
    """
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login-1")
    monkeypatch.setattr("getpass.getuser", lambda: "me")

    with server(OK) as address:
        healthy(dashboard=address)
        report = check_ray_debugger("h:1")

    assert report.is_ready, report
    assert () == report.findings
    assert ("h:1", HOST, EXTENSION) == (
        report.address,
        report.head_node,
        report.extension,
    )
    port = address.rpartition(":")[2]
    assert (
        f"ssh -N -L {report.local_port}:localhost:{port} -J me@login-1 "
        f"me@{HOST}" == report.tunnel
    )
    assert report.tunnel in str(report)
    assert "PROBLEM" not in str(report)


def test_check_problems(healthy):
    """
    Each problem has a line, a remedy, and a finding.
    """
    healthy(workers=(told(None),), workers_waiting=1)
    healthy(
        workers=(told(None, RAY_DEBUG="legacy"),),
        dashboard="127.0.0.1:1",
    )

    report = check_ray_debugger()

    names = ["debugpy", "RAY_DEBUG of the workers", "dashboard"]
    assert names == [c.name for c in report.checks if c.ok is False]
    assert not report.is_ready
    assert 3 == len(report.findings)
    finding = report.findings[0]
    assert (Cause.NODE_MISCONFIGURED, "debugpy") == (
        finding.cause,
        finding.evidence[0].location,
    )
    data = report.to_dict()
    assert (False, 3, []) == (
        data["ready"],
        len(data["findings"]),
        data["sessions"],
    )
    assert len(report.checks) == len(data["checks"])
    assert "PROBLEM  debugpy" in str(report)
    assert "debugpy: add debugpy>=1.8.0" in str(report)


def test_open_ports(monkeypatch, healthy):
    """
    That debug ports ask for no password is said while there are some.
    """
    healthy()
    monkeypatch.setattr(
        checking,
        "ask_tables",
        lambda *_, **__: tables(workers=[WAITING]),
    )

    report = check_ray_debugger()

    assert "those who wait, 1 now" in by_name(report)["open ports"].detail
    assert 50001 == report.sessions[0].port


def test_no_cluster(healthy, slurm):
    """
    Where no cluster answers, the rest is told, and how to ask inside the job.
    """
    slurm("node-12", "node-22")
    healthy(NodesError("no way", remedy="run it there"))

    alone = check_ray_debugger()
    report = check_ray_debugger(job="7", login="login-1")

    assert "run it there" == by_name(alone)["cluster"].remedy
    assert "head node" not in by_name(alone)
    assert "" == alone.tunnel
    checks = by_name(report)
    assert (
        "ask in the job: srun --overlap --jobid=7 -N1 -n1 python -m distdebug "
        "ray-debugger check" in checks["cluster"].remedy
    )
    assert "dashboard" not in checks
    assert "node-12, the first node of Slurm job 7" in (
        checks["head node"].detail
    )
    assert f"{report.local_port}:node-12:8265" in report.tunnel
    assert report.tunnel.endswith("@login-1")


def test_no_nodes(healthy):
    """
    A cluster without a node is not well.
    """
    healthy(nodes=[])

    report = check_ray_debugger()

    check = by_name(report)["cluster"]
    assert not check.ok
    assert "0 nodes" in check.detail
    assert "ray status" in check.remedy


def test_other_head(healthy, slurm):
    """
    A head that is not the first node of the job is the head all the same.
    """
    slurm("node-12")
    healthy()

    report = check_ray_debugger(job="7", login="")

    assert HOST == report.head_node
    assert f"the head is {HOST}, not node-12" in (
        by_name(report)["head node"].detail
    )
    assert "LOGIN" not in report.tunnel


def test_same_head(healthy, slurm):
    """
    A head is the same with and without its domain.
    """
    slurm(f"{HOST}.cluster.example")
    healthy()

    assert by_name(check_ray_debugger(job="7"))["head node"].ok


def test_no_slurm(healthy, command):
    """
    Without Slurm, or when it is busy, the rest is told.
    """
    healthy()

    missing = check_ray_debugger(job="7")

    assert by_name(missing)["head node"].ok is False
    assert HOST == missing.head_node


def test_slow_slurm(healthy, slurm, monkeypatch):
    """
    A Slurm that does not answer does not keep anybody.
    """
    slurm("node-12")
    healthy()
    monkeypatch.setattr(checking, "_SLURM_S", 0.2)
    stop = threading.Event()
    monkeypatch.setattr(checking, "head_of_job", lambda job: stop.wait(60))

    report = check_ray_debugger(job="7")
    stop.set()

    assert "Slurm does not answer in time" in (
        by_name(report)["head node"].detail
    )


def test_ports(healthy):
    """
    A port that is taken is a problem, with one that is free as the remedy.
    """
    healthy()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        report = check_ray_debugger(local_port=number)
    free = check_ray_debugger(local_port=free_port())
    wrong = check_ray_debugger(local_port=1 << 20)

    assert by_name(report)["local port"].ok is False
    assert number == report.local_port
    assert "such as" in by_name(report)["local port"].remedy
    assert by_name(free)["local port"].ok
    assert by_name(wrong)["local port"].ok is False


def test_hidden_dashboard(healthy, monkeypatch):
    """
    A dashboard at the loopback of another node is not looked for here; the
    end of a tunnel to it is.
    """
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    healthy(dashboard="127.0.0.1:8265")

    hidden = check_ray_debugger()
    with server(OK) as address:
        tunneled = check_ray_debugger(dashboard=address)

    assert "localhost:8265 -J" in tunneled.tunnel
    assert (None, True) == (
        by_name(hidden)["dashboard"].ok,
        by_name(tunneled)["dashboard"].ok,
    )
    assert "nobody reaches it but that node" in (
        by_name(hidden)["dashboard"].detail
    )


def test_hostile_head(healthy, monkeypatch):
    """
    A head whose name is no name gets no line for a shell.
    """
    healthy()
    nodes = [{"id": "aa", "name": "-oProxyCommand=x", "is_head": True}]
    monkeypatch.setattr(
        checking, "ask_tables", lambda *_, **__: {"nodes": nodes}
    )

    report = check_ray_debugger()

    assert "" == report.tunnel
    assert by_name(report)["tunnel"].ok is False


def test_nothing_left(healthy):
    """
    With hardly any time, all that can be told is told.
    """
    healthy(dashboard=f"{os.getpid()}")

    report = check_ray_debugger(timeout_s=0.1)

    assert isinstance(report.checks[0], Check)
    assert by_name(report)["dashboard"].ok is False

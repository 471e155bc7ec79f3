"""
What is in the way of using Ray's debugger, without a cluster.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import threading
import time

from contextlib import contextmanager

import pytest

from distdebug.capture import Check
from distdebug.causes import Cause
from distdebug.ray import check_ray_debugger


EXTENSION = "anyscalecompute.ray-distributed-debugger"
HOST = socket.gethostname()


def told(debugpy="1.8.22", *, who="Trainer", **facts):
    """
    The name of a worker, and what it says.
    """
    base = {
        "ray": "2.60.0",
        "RAY_DEBUG": None,
        "RAY_DEBUG_POST_MORTEM": None,
        "debugpy": debugpy,
        "reason": "",
    }
    return who, {**base, **facts}


SILENT = ("job 01", {"reason": "no worker answered in time"})


def tables(*workers, **more):
    """
    What the head of a cluster answers, with an environment for each worker.
    """
    nodes = [
        {"node_id": "aa", "host": HOST},
        {"node_id": "bb", "host": "node-1"},
    ]
    environments = [
        {"env": {"n": str(n)}, "who": [who], "nodes": ["bb"]}
        for n, (who, _) in enumerate(workers)
    ]
    return {
        "address": "h:1",
        "nodes": nodes,
        "head": "aa",
        "ray_version": "2.60.0",
        "environments": environments,
        **more,
    }


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


@pytest.fixture
def cluster(cluster, monkeypatch, command):
    """
    A cluster of which all is well, and a shell that knows of no job.
    """
    for name in ("SLURM_SUBMIT_HOST", "RAY_DEBUG", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    cluster.tables = tables()
    cluster.workers = lambda question: [
        {"answer": json.dumps(told()[1])} for _ in question["tasks"]
    ]
    return cluster


@pytest.fixture
def check(cluster):
    """
    Asks a cluster with these workers; gives the checks by their names.
    """

    def run(*workers, asked=None, **more):
        if workers:
            cluster.workers = [
                {"answer": json.dumps(facts)} if "debugpy" in facts else facts
                for _, facts in workers
            ]
        cluster.tables = tables(*workers, **more)
        return by_name(check_ray_debugger(**(asked or {})))

    return run


def by_name(report):
    """
    The checks of a report.
    """
    return {check.name: check for check in report.checks}


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
def test_debugpy(check, version, reason, expected):
    """
    The version is judged by its numbers, and as Ray does, by its text.
    """
    found = check(told(version, reason=reason), told())["debugpy"]

    assert (not expected) == found.ok
    assert expected in found.detail
    assert bool(expected) == ("debugpy>=1.8.0" in found.remedy)


def test_debugpy_of_many(check):
    """
    The first three of many workers without debugpy are named.
    """
    workers = [told(None, who=f"Actor{i}") for i in range(5)]

    found = check(*workers, told(), SILENT)["debugpy"]

    expected = (
        "debugpy is not installed (Actor0 on node-1, Actor1 on node-1, "
        "Actor2 on node-1, and 2 more)"
    )
    assert (False, expected) == (found.ok, found.detail)


def test_unknown(check):
    """
    A worker that did not answer is not taken for well, nor is a cluster
    without a node.
    """
    silent = check(told(), SILENT)["debugpy"]
    mute = check(("job 01", {}))
    nobody = check(nodes=[])

    assert [None, None] == [silent.ok, mute["debugpy"].ok]
    assert "job 01 on node-1: no worker answered" in silent.detail
    assert mute["debugpy"].detail.endswith("no answer")
    assert None is mute["RAY_DEBUG of the workers"].ok
    assert (None, "no worker was asked") == (
        nobody["debugpy"].ok,
        nobody["debugpy"].detail,
    )
    assert not nobody["cluster"].ok
    assert "0 nodes" in nobody["cluster"].detail
    assert "ray status" in nobody["cluster"].remedy


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
def test_switch(check, values, ok, detail):
    """
    RAY_DEBUG is judged as Ray does: 1, legacy, or nothing at all.
    """
    workers = [told(RAY_DEBUG=value) for value in values]

    found = check(SILENT, *workers)["RAY_DEBUG of the workers"]

    assert ok is found.ok
    assert detail in found.detail
    assert ok != bool(found.remedy)


@pytest.mark.parametrize(
    ("value", "detail", "remedy"),
    [
        (None, "wait for VS Code if it has debugpy", "RAY_DEBUG=legacy"),
        ("legacy", "open pdb in its shell", "do not hand it"),
        ("0", "do nothing", "RAY_DEBUG=legacy"),
    ],
    ids=["unset", "legacy", "zero"],
)
def test_driver(check, monkeypatch, value, detail, remedy):
    """
    What a breakpoint in the program itself does depends on its own shell.
    """
    if value is not None:
        monkeypatch.setenv("RAY_DEBUG", value)

    found = check()["RAY_DEBUG of the driver"]

    assert None is found.ok
    assert detail in found.detail
    assert remedy in found.remedy


def test_post_mortem(check):
    """
    Whether failing tasks wait is said, and is no problem.
    """
    name = "RAY_DEBUG_POST_MORTEM"

    off = check(told(), SILENT)[name]
    on = check(told(), told(RAY_DEBUG_POST_MORTEM="1"))[name]

    assert (None, None) == (off.ok, on.ok)
    assert off.detail.startswith("not 1")
    assert "1 for Trainer on node-1" in on.detail


@pytest.mark.parametrize(
    ("version", "ray", "ok", "detail"),
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
def test_ray(check, version, ray, ok, detail):
    """
    Ray is old if the workers or the head have an old one.
    """
    found = check(told(ray=ray), ray_version=version)["Ray"]

    assert ok is found.ok
    assert detail in found.detail


def test_environments(cluster):
    """
    Each environment is asked before all nodes of one, and not without end.
    """
    rows = [
        {"env": {"a": "1"}, "who": list("1234"), "nodes": ["aa", "bb"]},
        {"env": {}, "who": "x", "nodes": ["bb", "aa"] * 40},
        {"env": 7, "nodes": []},
        {"env": {}, "nodes": 7},
    ]
    cluster.tables = tables(environments=rows)
    cluster.workers = lambda question: [
        {"answer": json.dumps(told(None)[1])} for _ in question["tasks"]
    ]

    found = by_name(check_ray_debugger())["debugpy"]

    errands = cluster.asked[1]["tasks"]
    assert [("aa", {"a": "1"}), ("bb", {}), ("bb", {"a": "1"})] == [
        (errand["node"], errand["env"]) for errand in errands[:3]
    ]
    assert 64 == len(errands)
    assert f"(1, 2, 3, … on {HOST},  on node-1," in found.detail


def test_no_environment(cluster):
    """
    Without a job, the nodes themselves are asked, and a failure is reported.
    """
    cluster.workers = []

    found = by_name(check_ray_debugger())["debugpy"]

    assert ["aa", "bb"] == [e["node"] for e in cluster.asked[1]["tasks"]]
    assert f"not known of no job on {HOST}, no job on node-1:" in found.detail
    assert "is not understood: []" in found.detail


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
def test_dashboard(check, reply, ok, detail):
    """
    Only what answers as a dashboard of this cluster is one.
    """
    # A server that is hung up on while it still talks may see an error.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: None)
        with server(reply) as address:
            found = check(asked={"dashboard": address})["dashboard"]

    assert ok is found.ok
    assert detail in found.detail


def test_slow_dashboard(check):
    """
    One that answers byte by byte does not get more time for that.
    """
    begin = time.monotonic()

    with server(OK, drip_s=0.3) as address:
        found = check(asked={"dashboard": address, "timeout_s": 1})

    assert time.monotonic() - begin < 8
    assert "no answer in time" in found["dashboard"].detail


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
def test_no_dashboard(check, address, detail):
    """
    Where nothing answers, it is said how the dashboard is started.
    """
    found = check(asked={"dashboard": address})["dashboard"]

    assert (False, True) == (found.ok, "ray[default]" in found.remedy)
    assert detail in found.detail


@pytest.fixture
def tunnel(cluster, monkeypatch):
    """
    The line that opens a tunnel to a head, and what is said of it.
    """

    def refuse(*_):
        raise OSError

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("getpass.getuser", lambda: "me")

    def line(dashboard="", login="login", head="node-12"):
        nodes = [{"node_id": "aa", "host": head}]
        cluster.tables = tables(nodes=nodes, dashboard=dashboard)
        return check_ray_debugger(login=login, local_port=52640)

    return line


@pytest.mark.parametrize(
    ("dashboard", "login", "expected"),
    [
        ("10.0.0.12:8265", "login", "52640:node-12:8265 me@login"),
        ("0.0.0.0:9000", "login", "52640:node-12:9000 me@login"),
        ("http://node-1.x:80/", "login", "52640:node-12:80 me@login"),
        ("", "login", "52640:node-12:8265 me@login"),
        ("h:0", "login", "52640:node-12:8265 me@login"),
        ("h:65536", "login", "52640:node-12:8265 me@login"),
        ("h:1/path", "login", "52640:node-12:8265 me@login"),
        ("h\r\nX: y:1", "login", "52640:node-12:8265 me@login"),
        (
            "127.0.0.1:8265",
            "login",
            "52640:localhost:8265 -J me@login me@node-12",
        ),
        ("", "", "52640:localhost:8265 me@node-12"),
        ("127.0.0.1:8265", "", "52640:localhost:8265 me@node-12"),
        ("10.0.0.12:8265", "", "52640:10.0.0.12:8265 me@node-12"),
        ("[fd00::1]:8265", "", "'52640:[fd00::1]:8265' me@node-12"),
    ],
)
def test_tunnel(tunnel, dashboard, login, expected):
    """
    The tunnel ends where the dashboard can be reached.
    """
    assert f"ssh -N -L {expected}" == tunnel(dashboard, login).tunnel


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "-oProxyCommand=x"},
        {"login": "a b"},
        {"login": "$(x)"},
        {"user": "-x"},
    ],
    ids=["option", "blank", "shell", "user"],
)
def test_hostile_tunnel(tunnel, monkeypatch, changes):
    """
    What ssh or a shell could take for something else is no name, and gets no
    line for a shell.
    """
    user = changes.pop("user", "me")
    monkeypatch.setattr("getpass.getuser", lambda: user)

    report = tunnel(**changes)

    assert "" == report.tunnel
    assert by_name(report)["tunnel"].ok is False
    assert "is no name that ssh" in by_name(report)["tunnel"].detail


def test_user(tunnel, monkeypatch):
    """
    A user whom the system does not know has a name to be filled in.
    """

    def fail():
        raise KeyError

    monkeypatch.setattr("getpass.getuser", fail)

    assert tunnel().tunnel.endswith(" USER@login")


@pytest.mark.process
@pytest.mark.parametrize(
    ("hosts", "ok", "detail"),
    [
        ((), False, "no node name"),
        (("$(x)",), False, "no node name"),
        (("node-12",), False, f"the head is {HOST}, not node-12"),
        ((f"{HOST}.cluster.example",), True, "the first node of Slurm job 7"),
        (None, False, ""),
    ],
    ids=["none", "shell", "other", "domain", "no Slurm"],
)
def test_head(cluster, slurm, hosts, ok, detail):
    """
    What is no node name is not taken for one; the head is the head, with
    its domain or without, whatever the first node of the job is.
    """
    if hosts is not None:
        slurm(*hosts)

    report = check_ray_debugger(job="7", login="")

    found = by_name(report)["head node"]
    assert ok is found.ok
    assert detail in found.detail
    assert report.head_node.startswith(HOST)
    assert "LOGIN" not in report.tunnel


@pytest.mark.process
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
def test_extension(check, command, commands, ok, detail):
    """
    The extension is looked for in each editor that is here.
    """
    for name, code in commands.items():
        command(name, code)
    hangs = "sleep" in commands.get("code", "")

    found = check(asked={"timeout_s": 1 if hangs else 60})["extension"]

    assert ok is found.ok
    assert detail in found.detail
    assert ok or EXTENSION in found.remedy


@pytest.mark.process
def test_broken_editor(check, command, tmp_path):
    """
    An editor that cannot be started is as none.
    """
    command("code", "true")
    (tmp_path / "bin" / "code").write_text("#!/no/such/shell\n")

    assert None is check()["extension"].ok


def test_check(cluster, monkeypatch):
    """
    Where all is well, the report has everything that a user has to type.
    """
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login-1")
    monkeypatch.setattr("getpass.getuser", lambda: "me")

    with server(OK) as address:
        cluster.tables = tables(dashboard=address)
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


def test_check_problems(cluster):
    """
    Each problem has a line, a remedy, and a finding.
    """
    bad = told(None, RAY_DEBUG="legacy")
    cluster.tables = tables(bad, dashboard="127.0.0.1:1")
    cluster.workers = [{"answer": json.dumps(bad[1])}]

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


def test_open_ports(cluster):
    """
    That debug ports ask for no password is said while there are some.
    """
    waiting = {"worker_id": "w1", "node_id": "aa", "ip": "10.0.0.1"}
    waiting |= {"pid": 7, "port": 50001, "paused": 1}
    cluster.tables = tables(workers=[waiting])

    report = check_ray_debugger()

    assert "waiting tasks, 1 now" in by_name(report)["open ports"].detail
    assert 50001 == report.sessions[0].port


@pytest.mark.process
def test_no_cluster(cluster, slurm):
    """
    Where no cluster answers, the rest is reported, and how to ask inside the
    job.
    """
    slurm("node-12", "node-22")
    cluster.said = {"reason": "no way"}

    alone = check_ray_debugger()
    report = check_ray_debugger(job="7", login="login-1")

    assert (
        "run it on a node of the cluster" in by_name(alone)["cluster"].remedy
    )
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


@pytest.mark.process
def test_slow_slurm(check, command):
    """
    A Slurm that does not answer does not keep anybody.
    """
    command("squeue", "exec /bin/sleep 2")

    found = check(asked={"job": "7", "timeout_s": 1})["head node"]

    assert "Slurm does not answer in time" in found.detail


def test_ports(cluster):
    """
    A port that is taken is a problem, with one that is free as the remedy.
    """
    some = check_ray_debugger()
    with socket.create_server(("127.0.0.1", some.local_port)):
        report = check_ray_debugger(local_port=some.local_port)
    free = check_ray_debugger(local_port=some.local_port)
    wrong = check_ray_debugger(local_port=1 << 20)

    assert by_name(report)["local port"].ok is False
    assert some.local_port == report.local_port
    assert "such as" in by_name(report)["local port"].remedy
    assert by_name(free)["local port"].ok
    assert by_name(wrong)["local port"].ok is False


def test_hidden_dashboard(cluster, monkeypatch):
    """
    A dashboard at the loopback of another node is not looked for here; the
    end of a tunnel to it is.
    """
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    cluster.tables = tables(dashboard="127.0.0.1:8265")

    hidden = check_ray_debugger()
    with server(OK) as address:
        tunneled = check_ray_debugger(dashboard=address)

    assert "localhost:8265 -J" in tunneled.tunnel
    assert (None, True) == (
        by_name(hidden)["dashboard"].ok,
        by_name(tunneled)["dashboard"].ok,
    )
    assert "only that node can reach it" in (
        by_name(hidden)["dashboard"].detail
    )


def test_nothing_left(cluster):
    """
    With hardly any time, the report has all that can be known.
    """
    cluster.tables = tables(dashboard=f"{os.getpid()}")

    report = check_ray_debugger(timeout_s=0.1)

    assert isinstance(report.checks[0], Check)
    assert by_name(report)["dashboard"].ok is False

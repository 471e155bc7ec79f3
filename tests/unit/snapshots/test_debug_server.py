"""
What is taken from the debug server of torch, and what it cannot do to us.
"""

from __future__ import annotations

import contextlib
import html
import http.server
import json
import os
import socket
import threading
import time

from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.flight_recorder import read_dumps
from distdebug.snapshots import debug_server
from distdebug.snapshots.debug_server import collect_debug_server
from distdebug.stacks import read_stacks


# What the ranks of a job on torch 2.13 answered.
PYSPY = """\
Process {pid}: /usr/bin/python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
{frames}
"""
PYSPY_WAITS = """\
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    <module> (train.py:40)"""
PYSPY_READS = """\
    read_shard (train.py:22)
    <module> (train.py:39)"""
TRACEBACK = """\
Current thread 0x00007f66f6ffd6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f671d7fab8{rank} (most recent call first):
{frames}
"""
TRACEBACK_WAITS = """\
  File "/venv/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/venv/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/job/train.py", line 40 in <module>"""
TRACEBACK_READS = """\
  File "/job/train.py", line 22 in read_shard
  File "/job/train.py", line 39 in <module>"""
NO_PYSPY = (500, "sh: 1: py-spy: not found\n")
NO_NCCL = (
    404,
    "Handler dump_nccl_trace_json not found: Failed to find handler",
)
START_NS = 1795202653987443747


def recorded(last):
    """
    What fr_trace_json answers for a rank that entered so many collectives.
    """
    entries = [
        {
            "collective_seq_id": number,
            "input_dtypes": ["Float"],
            "input_sizes": [[1]],
            "is_p2p": False,
            "op_id": number,
            "output_dtypes": ["Float"],
            "output_sizes": [[1]],
            "p2p_seq_id": 0,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "profiling_name": "gloo:all_reduce",
            "record_id": number - 1,
            "retired": number < 4,
            "state": "scheduled",
            "thread_id": "140080853265280",
            "thread_name": "python",
            "time_created_ns": START_NS + number * 1_000_000,
            "time_discovered_completed_ns": 0,
            "time_discovered_started_ns": 0,
            "timeout_ms": 1800000,
        }
        for number in range(1, last + 1)
    ]
    return json.dumps(
        {
            "comm_lib_version": "",
            "entries": entries,
            "nccl_comm_state": {},
            "pg_config": {
                "": {"desc": "", "name": "", "ranks": "[0, 1, 2, 3]"}
            },
            "pg_status": {
                "0": {
                    "last_completed_collective": "3",
                    "last_enqueued_collective": str(last),
                    "last_started_collective": "-1",
                }
            },
            "version": "2.10",
        }
    )


def pyspy(rank):
    """
    What py-spy sees of a rank; the third reads a file.
    """
    frames = PYSPY_READS if rank == 2 else PYSPY_WAITS
    return PYSPY.format(pid=25534 + rank, frames=frames)


def traceback(rank):
    """
    What faulthandler writes about a rank.
    """
    frames = TRACEBACK_READS if rank == 2 else TRACEBACK_WAITS
    return TRACEBACK.format(rank=rank, frames=frames)


def worker(rank, **others):
    """
    What the worker server of a rank answers, by path.
    """
    return {
        "/handler/pyspy_dump": pyspy(rank),
        "/handler/dump_traceback": traceback(rank),
        "/handler/fr_trace_json": recorded(3 if rank == 2 else 4),
        "/handler/dump_nccl_trace_json": NO_NCCL,
        **{f"/handler/{name}": answer for name, answer in others.items()},
    }


def store(ports, host="node7"):
    """
    The page with the keys of the store.
    """
    lines = [
        f"    debug_server/rank{rank}: b'http://{host}:{port}'"
        for rank, port in enumerate(ports)
        if port is not None
    ]
    other = r"    default_pg/0//cpu//0/0: b'\x02\x00vm\x88\x00\..."
    return "\n".join(["<pre>", *lines, other, "    ", "    </pre>"])


def page(answers, host="node7", *, indent=None):
    """
    A page with the answers of all ranks, as the server shows them.
    """
    parts = ["<!doctype html>\n<section>\n    <h1>Title</h1>\n"]
    for rank, answer in enumerate(answers):
        code, text = answer if isinstance(answer, tuple) else (200, answer)
        if indent and code == 200:
            text = json.dumps(json.loads(text), indent=indent)
        failed = f"<p>Failed to fetch: status={code}</p>\n"
        parts.append(
            f"        <h2>Rank {rank}: http://{host}:5915{rank}/handler/x?"
            f"</h2>\n        \n            {'' if code == 200 else failed}"
            f"            <pre>{text}</pre>\n"
        )
    return "".join([*parts, "</section>\n"])


def pages(**others):
    """
    What the server shows of a job, by path, if it does not show the store.
    """
    ranks = range(4)
    return {
        "/pyspy_dump": page([pyspy(r) for r in ranks]),
        "/stacks": page([traceback(r) for r in ranks]),
        "/fr_trace_json": page(
            [recorded(3 if r == 2 else 4) for r in ranks], indent=2
        ),
        "/fr_trace_nccl_json": page([NO_NCCL] * 4),
        **{f"/{name}": answer for name, answer in others.items()},
    }


class Handler(http.server.BaseHTTPRequestHandler):
    """
    Answers from a table; what is not in it, is not found.
    """

    def do_GET(self):
        """
        Answer, or call what stands in the table.
        """
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        answer = self.server.answers.get(path, (404, "not found"))
        if callable(answer):
            answer(self)
            return

        code, text = answer if isinstance(answer, tuple) else (200, answer)
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        """
        Answer all the same.
        """
        self.do_GET()

    def log_message(self, *_):
        """
        Be quiet.
        """


class Server(http.server.ThreadingHTTPServer):
    """
    A server that may be left in the middle of an answer.
    """

    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_):
        """
        Be quiet.
        """


@pytest.fixture
def serve(monkeypatch):
    """
    Starts servers; node7 and node8 are this node for the time being.
    """
    real = socket.getaddrinfo

    def look_up(host, *args, **kwargs):
        return real(
            "127.0.0.1" if host in {"node7", "node8"} else host,
            *args,
            **kwargs,
        )

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with contextlib.ExitStack() as stack:

        def start(answers):
            server = Server(("127.0.0.1", 0), Handler)
            server.answers, server.asked = answers, []
            thread = threading.Thread(
                target=server.serve_forever, args=(0.01,), daemon=True
            )
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def job(serve):
    """
    Starts four ranks and their server, which knows where they listen.
    """

    def start(*workers, host="node7", **more):
        ranks = [serve(answers) for answers in workers]
        ports = [server.server_port for server in ranks]
        return serve({"/tcpstore": store(ports, host), **more}), ranks

    return start


@pytest.fixture
def keep(tmp_path):
    """
    Keeps what a server, or an address, answers in time.
    """

    def keep_all(server, seconds=20.0):
        place = server if isinstance(server, str) else address(server)
        return collect_debug_server(place, tmp_path / "n1", soon(seconds))

    return keep_all


def address(server):
    """
    Where it listens.
    """
    return f"127.0.0.1:{server.server_port}"


def soon(seconds=20.0):
    """
    A deadline.
    """
    return time.monotonic() + seconds


def names(folder):
    """
    What is in a folder.
    """
    return sorted(
        str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()
    )


def reasons(missing):
    """
    What is missing, in short.
    """
    return {(m.what, m.rank): m.reason for m in missing}


def closed_port():
    """
    A port without a listener.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def never(handler):
    """
    Do not answer.
    """
    handler.server.asked.append("waiting")
    handler.connection.settimeout(30)
    with contextlib.suppress(OSError):
        handler.connection.recv(1)


def test_ranks_are_asked_themselves(job, tmp_path):
    """
    Stacks and calls of each rank are kept so that they explain the hang, with
    rank, node, process, and size of the job.
    """
    server, _ = job(*(worker(rank) for rank in range(4)))
    folder = tmp_path / "n1"

    files, missing = collect_debug_server(address(server), folder, soon())

    assert not missing
    assert sorted(files) == sorted(f for f in folder.rglob("*") if f.is_file())
    assert [
        *(f"flight_recorder/rank_{rank}.json" for rank in (0, 1, 2, 3)),
        *(f"pyspy_node7_{pid}.json" for pid in range(25534, 25538)),
    ] == [name for name in names(folder) if "sidecar" not in name]
    dumps = read_dumps(tmp_path)
    assert ((0, 1, 2, 3), 4) == (tuple(dumps.ranks), dumps.world_size)
    assert {("node7", 25534 + r, "request") for r in range(4)} == {
        (s.host, s.pid, s.reason) for s in dumps.sidecars.values()
    }
    assert [(r, "node7") for r in range(4)] == [
        (p.rank, p.host) for p in read_stacks(tmp_path)
    ]
    verdict = diagnose(folder).verdict
    assert Cause.RANK_NOT_ARRIVED == verdict.cause
    assert (2,) == verdict.ranks
    assert "all_reduce" == verdict.collective.op
    assert ("read_shard", 22) == (
        verdict.location.function,
        verdict.location.line,
    )


@pytest.mark.parametrize("told", [NO_PYSPY, "Error: Permission denied\n"])
def test_without_pyspy_the_process_tells_itself(told, job, tmp_path, keep):
    """
    If there is no py-spy, faulthandler is used; nothing is made up for it.
    """
    workers = [worker(rank, pyspy_dump=told) for rank in range(4)]
    server, _ = job(*workers)

    _, missing = keep(server)

    assert not missing
    assert "stacks-rank2.txt" in names(tmp_path / "n1")
    assert {0, 1, 2, 3} == {p.rank for p in read_stacks(tmp_path)}
    assert {None} == {p.host for p in read_stacks(tmp_path)}
    assert {("", 0)} == {
        (s.host, s.pid) for s in read_dumps(tmp_path).sidecars.values()
    }
    verdict = diagnose(tmp_path).verdict
    assert (2,) == verdict.ranks
    assert "read_shard" == verdict.location.function


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_an_address_is_no_host(host, job, tmp_path, keep):
    """
    Whatever a worker calls itself is kept, but for what no node is called.
    """
    if host == "[::1]":
        answers = page([pyspy(0)], host)
        server, _ = job(tcpstore="", **{"/pyspy_dump": answers})
    else:
        server, _ = job(worker(0), host=host)

    keep(server)

    (process,) = read_stacks(tmp_path)
    assert (0, None) == (process.rank, process.host)


@pytest.mark.parametrize(
    ("answers", "file"),
    [
        (pages(), "pyspy_node7_25536.json"),
        # If there is no py-spy, the page of the processes tells.
        (pages(pyspy_dump=page([NO_PYSPY] * 4)), "stacks-rank3.txt"),
        # It is the same if the server escapes what the ranks answered.
        (
            pages(
                pyspy_dump=page([html.escape(pyspy(r)) for r in range(4)]),
                fr_trace_json=page(
                    [
                        html.escape(recorded(3 if r == 2 else 4))
                        for r in range(4)
                    ]
                ),
            ),
            "pyspy_node7_25536.json",
        ),
    ],
    ids=["plain", "no py-spy", "escaped"],
)
def test_pages_are_the_other_way(serve, tmp_path, keep, answers, file):
    """
    A server that does not show where ranks listen is asked for its pages.
    """
    server = serve(answers)

    _, missing = keep(server)

    assert not missing
    assert file.startswith("stacks") == ("/stacks" in server.asked)
    assert file in names(tmp_path / "n1")
    assert "<module>" in (tmp_path / "n1" / file).read_text()
    verdict = diagnose(tmp_path).verdict
    assert (2,) == verdict.ranks
    assert "read_shard" == verdict.location.function


def test_ranks_out_of_reach_are_taken_from_pages(serve, tmp_path, keep):
    """
    From outside the cluster, the server is the only way to the ranks.
    """
    ports = [closed_port() for _ in range(4)]
    server = serve({**pages(), "/tcpstore": store(ports)})

    _, missing = keep(server)

    assert not missing
    assert (0, 1, 2, 3) == tuple(read_dumps(tmp_path).ranks)


def test_a_rank_that_is_gone_costs_only_itself(job, serve, tmp_path, keep):
    """
    If others on its node answer, the server is not asked for a rank that is
    gone.
    """
    ranks = [serve(worker(rank)) for rank in range(3)]
    ports = [*(server.server_port for server in ranks), closed_port()]
    server = serve({"/tcpstore": store(ports)})

    _, missing = keep(server)

    assert ["/tcpstore"] == server.asked
    assert {
        ("stack", 3): "no connection: Connection refused",
        ("dump", 3): "no connection: Connection refused",
    } == reasons(missing)
    assert {f"http://node7:{ports[3]}"} == {m.source for m in missing}
    assert (0, 1, 2) == tuple(read_dumps(tmp_path).ranks)
    assert 4 == read_dumps(tmp_path).world_size


def test_a_stopped_rank_costs_only_itself(job, tmp_path, keep):
    """
    One that takes a question and never answers is given up in time.
    """
    stopped = dict.fromkeys(worker(1), never)
    server, ranks = job(worker(0), stopped, worker(2), worker(3))
    start = time.monotonic()

    _, missing = keep(server, 4)

    assert time.monotonic() - start < 6
    assert "/handler/fr_trace_json" not in ranks[1].asked
    assert {
        ("stack", 1): "no answer in time",
        ("dump", 1): "no answer in time",
    } == reasons(missing)
    verdict = diagnose(tmp_path).verdict
    assert (2,) == verdict.ranks
    assert "read_shard" == verdict.location.function


def test_a_rank_that_did_not_say_where_it_is(serve, keep):
    """
    A gap in the numbers of ranks is reported.
    """
    ranks = [serve(worker(rank)) for rank in (0, 2)]
    ports = [ranks[0].server_port, None, ranks[1].server_port]
    server = serve({"/tcpstore": store(ports)})

    _, missing = keep(server)

    assert {("debug server", None): "it has no address of rank 1"} == reasons(
        missing
    )


def test_silent_ranks_of_a_page_are_told(serve, tmp_path, keep):
    """
    What the server says of those that it could not reach is kept short.
    """
    late = (408, "Timeout: HTTPConnectionPool(host='node7', port=59151)")
    gone = (503, "ConnectionError: HTTPConnectionPool(host='node7')")
    odd = (500, "Handler failed: \x1b[31mred")
    answers = pages(
        pyspy_dump=page([pyspy(0), late, gone, odd]),
        stacks=page([traceback(0), late, gone, odd]),
        fr_trace_json=page([recorded(4), late, gone, odd]),
    )

    _, missing = keep(serve(answers))

    assert {
        ("stack", 1): "no answer in time",
        ("stack", 2): "no connection",
        ("stack", 3): "status 500: Handler failed: red",
    } == {k: v for k, v in reasons(missing).items() if k[0] == "stack"}
    assert [0] == list(read_dumps(tmp_path).ranks)


@pytest.mark.parametrize(
    ("nccl", "kept"),
    [(recorded(4).replace("gloo:", "nccl:"), "nccl:"), (recorded(0), "gloo:")],
)
def test_the_recorder_of_nccl_comes_first(nccl, kept, job, tmp_path, keep):
    """
    If both recorders hold calls, all ranks keep those of NCCL, which is
    reported; without calls of NCCL, those of other backends count.
    """
    server, _ = job(worker(0, dump_nccl_trace_json=nccl))

    _, missing = keep(server)

    (dump,) = (tmp_path / "n1" / "flight_recorder").glob("rank_0.json")
    assert f"{kept}all_reduce" in dump.read_text()
    assert (kept == "nccl:") == bool(missing)
    assert all("only the calls of NCCL" in lost.reason for lost in missing)


def test_what_was_captured_stays(job, tmp_path):
    """
    Stacks of a capture on this node say more, and are not replaced.
    """
    (tmp_path / "pyspy_node7_25534.json").write_text("more")
    server, _ = job(worker(0))

    files, missing = collect_debug_server(address(server), tmp_path, soon())

    assert not missing
    assert "more" == (tmp_path / "pyspy_node7_25534.json").read_text()
    assert not [f for f in files if "pyspy" in f.name]


@pytest.mark.parametrize(("age_s", "kept"), [(5, False), (3600, True)])
def test_new_dumps_stay(age_s, kept, job, tmp_path):
    """
    A rank that has just written its dump is not kept twice.
    """
    folder = tmp_path / "flight_recorder"
    folder.mkdir()
    own = folder / "n1_rank_0"
    own.write_text(recorded(4))
    then = time.time() - age_s
    os.utime(own, (then, then))
    server, _ = job(worker(0), worker(1))

    _, missing = collect_debug_server(address(server), tmp_path, soon())

    assert not missing
    assert kept == (folder / "rank_0.json").exists()
    assert (folder / "rank_1.json").exists()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, "/pyspy_dump?nonblocking=1: status 404: not found"),
        ({"/tcpstore": "<html>"}, "status 404: not found"),
        (
            dict.fromkeys(pages(), "<html>Welcome</html>"),
            "what answers there shows no ranks",
        ),
        (dict.fromkeys(pages(), (302, "")), "redirections are not followed"),
    ],
)
def test_a_stranger_is_told(answers, reason, serve, tmp_path, keep):
    """
    What listens there may be anything; then there is nothing to keep.
    """
    server = serve(answers)

    files, missing = keep(server)

    assert not files
    assert not (tmp_path / "n1").exists()
    assert any(reason in m.reason for m in missing)
    assert {f"http://{address(server)}"} == {m.source for m in missing}


def test_nobody_is_sent_elsewhere(serve, keep):
    """
    A redirection is not followed.
    """
    other = serve(pages())

    def send_away(handler):
        handler.send_response(302)
        handler.send_header("Location", f"http://{address(other)}/tcpstore")
        handler.end_headers()

    server = serve(dict.fromkeys([*pages(), "/tcpstore"], send_away))

    keep(server)

    assert not other.asked


def test_proxies_are_not_used(monkeypatch, serve, tmp_path, keep):
    """
    Answers of a job are not for a proxy.
    """
    proxy = serve({})
    monkeypatch.setenv("http_proxy", f"http://{address(proxy)}")
    server = serve(pages())

    keep(server)

    assert not proxy.asked
    assert names(tmp_path / "n1")


@pytest.mark.parametrize(
    "place",
    ["", "node7", "node7:0", "node7:65536", "https://node7:1", "a b:1"],
)
def test_what_is_no_address_is_told(place, keep):
    """
    Only HOST:PORT is asked.
    """
    files, missing = keep(place)

    assert not files
    assert f"not HOST:PORT: {place!r}" == missing[0].reason


def test_a_closed_port_is_told(keep):
    """
    A port without a listener yields one entry, with the address.
    """
    place = f"127.0.0.1:{closed_port()}"

    files, (missing,) = keep(place)

    assert not files
    assert "no connection: Connection refused" == missing.reason
    assert f"http://{place}" == missing.source


def test_a_folder_that_vanished_is_told(tmp_path):
    """
    If there is no place to write to, no server is asked.
    """
    files, (missing,) = collect_debug_server(
        "node7:1", tmp_path / "gone" / "n1", soon()
    )

    assert not files
    assert "No such file or directory" == missing.reason


def test_a_full_disk_costs_files_only(monkeypatch, job, keep):
    """
    A failure to write is reported.
    """

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", refuse)
    server, _ = job(worker(0))

    files, missing = keep(server)

    assert not files
    assert "not written: No space left on device" == missing[0].reason


def trickle(handler):
    """
    Send a byte now and then, for ever.
    """
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.02)


def trickle_headers(handler):
    """
    Never come to the end of the headers.
    """
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.02)


@pytest.mark.parametrize("hold", [never, trickle, trickle_headers])
def test_the_time_holds_against_everybody(hold, serve, keep):
    """
    Whatever a server does, it does not take longer than was said.
    """
    server = serve(dict.fromkeys([*pages(), "/tcpstore"], hold))
    start = time.monotonic()

    files, missing = keep(server, 0.5)

    assert time.monotonic() - start < 3
    assert not files
    assert {"debug server"} == {m.what for m in missing}
    assert all("no answer in time" in m.reason for m in missing)


@pytest.mark.parametrize(
    ("module", "name"), [(socket, "getaddrinfo"), (html, "unescape")]
)
def test_the_time_holds_against_ourselves(
    monkeypatch, serve, keep, module, name
):
    """
    The time also holds if the resolver hangs, or if a page keeps us busy.
    """
    hang = threading.Event()
    monkeypatch.setattr(module, name, lambda *_, **__: hang.wait(30))
    start = time.monotonic()

    files, missing = keep(serve(pages()), 0.5)
    hang.set()

    assert time.monotonic() - start < 3
    assert not files
    assert {"debug server"} == {m.what for m in missing}
    assert all(m.reason.endswith("no answer in time") for m in missing)


def test_stacks_too_long_to_read_are_none(job, tmp_path, keep):
    """
    They are read by ourselves, so that there is a limit.
    """
    long = pyspy(0) + "x" * (1 << 20)
    server, _ = job(worker(0, pyspy_dump=long))

    keep(server)

    assert "stacks-rank0.txt" in names(tmp_path / "n1")


def endless(handler):
    """
    Send as much as goes.
    """
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"x" * (1 << 16))


def leave_space(monkeypatch, size):
    """
    Have the disk leave so many bytes to a debug server.
    """
    disk = SimpleNamespace(f_bavail=2 * size, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)


def test_an_endless_answer_costs_only_itself(monkeypatch, job, tmp_path, keep):
    """
    One that never ends is cut off, and what it took is there for others.
    """
    # As it is, it would be 64 MiB for each question.
    monkeypatch.setattr(debug_server, "_MAX_RANK_BYTES", 1 << 20)
    leave_space(monkeypatch, 3 << 20)
    server, _ = job(worker(0), dict.fromkeys(worker(1), endless))

    _, missing = keep(server)

    assert {("stack", 1), ("dump", 1)} == reasons(missing).keys()
    assert "an answer of more than 1,048,576 bytes" == missing[0].reason
    assert [0] == list(read_dumps(tmp_path).ranks)


def test_a_full_allowance_is_told(monkeypatch, job, keep):
    """
    There is a limit for all together.
    """
    leave_space(monkeypatch, 1000)
    server, _ = job(worker(0))

    _, missing = keep(server)

    assert "more bytes than there is space for" == missing[0].reason


@pytest.mark.parametrize(
    "answer",
    [
        "<html>hello</html>",
        "{}",
        "[1]",
        "[" * 100_000,
        '{"entries": [',
        "\x1b]0;title\x07\x00",
        "",
    ],
)
def test_nonsense_costs_only_itself(answer, job, tmp_path, keep):
    """
    What is neither a stack nor a dump is not kept, and is shown harmless.
    """
    server, _ = job(worker(0), dict.fromkeys(worker(1), answer), worker(2))

    _, missing = keep(server)

    assert {("stack", 1), ("dump", 1)} == reasons(missing).keys()
    assert all(m.reason.isprintable() for m in missing)
    assert all(len(m.reason) < 300 for m in missing)
    assert [0, 2] == list(read_dumps(tmp_path).ranks)


@pytest.mark.parametrize(
    "wrong", ['{"entries": [{"x": }]}', '{"a": {"entries": 1}']
)
def test_wrong_json_costs_only_itself(wrong, job, tmp_path, keep):
    """
    What only looks like a dump is reported by the readers.
    """
    server, _ = job(worker(0), worker(1, fr_trace_json=wrong), worker(2))

    _, missing = keep(server)

    assert not missing
    dumps = read_dumps(tmp_path)
    assert [0, 2] == list(dumps.ranks)
    assert [1] == [problem.rank for problem in dumps.problems]


def test_huge_numbers_of_ranks_are_not_believed(job, tmp_path, keep):
    """
    A dump that claims a billion ranks is one of a small job all the same.
    """
    wrong = recorded(4).replace("[0, 1, 2, 3]", "[0, 1, 99999999999, 2000000]")
    server, _ = job(worker(0, fr_trace_json=wrong))

    keep(server)

    assert 1 == read_dumps(tmp_path).sidecars[0].world_size


def test_control_codes_do_not_come_through(job, tmp_path, keep):
    """
    What only a terminal understands is not in the files of stacks.
    """
    red = traceback(0).replace("train.py", "\x1b[31mtrain.py\x00")
    server, _ = job(worker(0, pyspy_dump=NO_PYSPY, dump_traceback=red))

    keep(server)

    text = (tmp_path / "n1" / "stacks-rank0.txt").read_text()
    assert 'File "/job/train.py", line 40' in text


def test_a_rank_that_dies_in_between(job, tmp_path, keep):
    """
    What a rank answered before it died is kept.
    """

    def last(handler):
        handler.server.answers["/handler/pyspy_dump"] = (500, "")
        handler.server.socket.close()
        data = pyspy(0).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    server, _ = job(worker(0, pyspy_dump=last))

    _, missing = keep(server, 5)

    assert {("dump", 0)} == reasons(missing).keys()
    assert ["pyspy_node7_25534.json"] == names(tmp_path / "n1")


def raw(data):
    """
    Sends bytes as they are.
    """
    return lambda handler: handler.wfile.write(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    ],
)
def test_what_is_no_whole_http_is_no_answer(data, job, keep):
    """
    Other protocols, and answers that were cut off, raise no other error.
    """
    server, _ = job(worker(0), dict.fromkeys(worker(1), raw(data)))

    _, missing = keep(server)

    told = reasons(missing)
    assert {("stack", 1), ("dump", 1)} == told.keys()
    assert all(x.startswith("no answer in HTTP") for x in told.values())


@pytest.mark.parametrize("head", [b"Content-Type: text/html\r\n", b""])
def test_errors_as_pages_are_not_quoted(head, job, keep):
    """
    Of an error page only the status is reported.
    """
    page = raw(b"HTTP/1.0 500 Oh\r\n" + head + b"\r\n<p>Oh</p>")
    server, _ = job(worker(0), dict.fromkeys(worker(1), page))

    _, missing = keep(server)

    assert {
        ("stack", 1): "status 500",
        ("dump", 1): "status 500",
    } == reasons(missing)


def test_chunks_are_put_together(job, tmp_path, keep):
    """
    A server may send its answer in chunks.
    """
    text = pyspy(0).encode()
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(part), part)
        for part in (text[:100], text[100:])
    )
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server, _ = job(worker(0, pyspy_dump=raw(head + chunks + b"0\r\n\r\n")))

    keep(server)

    (process,) = read_stacks(tmp_path)
    assert ("node7", 25534) == (process.host, process.pid)


def test_a_time_that_is_over(serve, keep):
    """
    After the deadline no server is asked.
    """
    server = serve(pages())

    files, missing = keep(server, -1)

    assert not files
    assert all("no answer in time" in m.reason for m in missing)
    assert not server.asked


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (["127.0.0.2", "127.0.0.1"], None),
        ([], "no connection: the host has no address"),
    ],
)
def test_the_addresses_of_a_host_are_tried(
    monkeypatch, serve, keep, *, hosts, reason
):
    """
    All addresses of a host are tried; a host may have none.
    """
    server = serve(pages())
    rows = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, server.server_port))
        for ip in hosts
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)

    files, missing = keep("node7:1")

    assert (reason is None) == bool(files)
    assert [reason] * (reason is not None) == [m.reason for m in missing]


@pytest.mark.parametrize(
    ("text", "place", "shown"),
    [
        ("n1:25999", ("n1", 25999), "n1:25999"),
        ("http://n1.x:1/", ("n1.x", 1), "n1.x:1"),
        ("[::1]:25999", ("::1", 25999), "[::1]:25999"),
        ("[fe80::1%eth0]:9", ("fe80::1%eth0", 9), "[fe80::1%eth0]:9"),
    ],
)
def test_places(monkeypatch, keep, *, text, place, shown):
    """
    Places are read, and shown as they are written.
    """
    asked = []
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *args, **_: asked.append(args) or []
    )

    _, (lost,) = keep(text)

    assert {place} == set(asked)
    assert f"http://{shown}" == lost.source


def test_long_values_of_the_store_are_left_out(serve, tmp_path, keep):
    """
    An address that was cut off leads nowhere.
    """
    first, last = (serve(worker(rank)).server_port for rank in (0, 2))
    text = (
        f"  debug_server/rank0: b'http://node7:{first}'\n"
        "  debug_server/rank1: b'http://a-very-long-na...\n"
        f"  debug_server/rank2: b&#39;http://node8:{last}&#39;\n"
        "  debug_server/rank3: b'http://node:port'\n"
        "  debug_server/rank9999999: b'http://node:3'\n"
    )
    server = serve({"/tcpstore": text})

    _, missing = keep(server)

    assert {("debug server", None): "it has no address of rank 1"} == (
        reasons(missing)
    )
    assert [(0, "node7"), (2, "node8")] == [
        (p.rank, p.host) for p in read_stacks(tmp_path)
    ]


def test_a_page_that_was_cut_off(serve, tmp_path, keep):
    """
    A rank whose answer is not whole has none.
    """
    text = page([pyspy(0), pyspy(1)])
    server = serve(pages(pyspy_dump=text[: text.rindex("</pre>")], stacks=""))

    _, missing = keep(server)

    assert ["pyspy_node7_25534.json"] == [
        name for name in names(tmp_path / "n1") if "pyspy" in name
    ]
    assert "the page ends before its answer" == reasons(missing)["stack", 1]


def test_a_page_without_addresses(serve, tmp_path, keep):
    """
    Without an address, nothing is said about the host; no job has millions of
    ranks.
    """
    text = (
        f"<h3>Rank 5: somewhere</h3><pre>{pyspy(5)}</pre>"
        f"<h3>Rank 2000000: x</h3><pre>{pyspy(6)}</pre>"
    )
    server = serve({"/pyspy_dump": text})

    keep(server)

    assert [(5, None)] == [(p.rank, p.host) for p in read_stacks(tmp_path)]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([NO_NCCL, (500, "gone")], "status 500: gone"),
        ([(500, "late"), (500, "late")], "status 500: late"),
        ([(500, "late"), (500, "gone")], "status 500: late; status 500: gone"),
    ],
)
def test_reasons_are_put_together(answers, reason, job, keep):
    """
    Each reason is reported once, unless it is about the question and not the
    rank.
    """
    nccl, other = answers
    server, _ = job(worker(0, dump_nccl_trace_json=nccl, fr_trace_json=other))

    _, missing = keep(server)

    assert {("dump", 0): reason} == reasons(missing)


@pytest.mark.parametrize("dump", [recorded(0), '{"pg_config": {}}'])
def test_dumps_without_any_call_count_too(dump, job, tmp_path, keep):
    """
    That a rank has not called anything is worth to be known.
    """
    server, _ = job(worker(0, fr_trace_json=dump))

    _, missing = keep(server)

    assert not missing
    (kept,) = (tmp_path / "n1" / "flight_recorder").glob("rank_0.json")
    assert dump == kept.read_text()

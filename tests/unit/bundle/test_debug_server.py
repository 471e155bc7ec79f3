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

from urllib.parse import urlsplit

import pytest

from distdebug import diagnose
from distdebug._in_time import answers_in_time
from distdebug.bundle import keep_debug_server
from distdebug.bundle.debug_server import asking as asking_module
from distdebug.bundle.debug_server import fetch as fetch_module
from distdebug.bundle.debug_server import files as files_module
from distdebug.bundle.debug_server import keep as server_module
from distdebug.bundle.debug_server.fetch import (
    Allowance,
    NoAnswerError,
    Place,
    fetch,
    parse_place,
)
from distdebug.bundle.debug_server.files import Told, is_dump, process_in
from distdebug.bundle.debug_server.pages import read_addresses, read_page
from distdebug.findings import Cause
from distdebug.flight_recorder import read_dumps
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
    What fr_trace_json tells of a rank that entered so many collectives.
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

    monkeypatch.setattr(fetch_module.socket, "getaddrinfo", look_up)
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
    A port at which nobody listens.
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
    Stacks and calls of each rank are kept so that they explain the hang.
    """
    server, _ = job(*(worker(rank) for rank in range(4)))
    folder = tmp_path / "n1"

    files, missing = keep_debug_server(address(server), folder, soon())

    assert not missing
    assert sorted(files) == sorted(f for f in folder.rglob("*") if f.is_file())
    assert [
        *(f"flight_recorder/rank_{rank}.json" for rank in (0, 1, 2, 3)),
        *(f"pyspy_node7_{pid}.json" for pid in range(25534, 25538)),
    ] == [name for name in names(folder) if "sidecar" not in name]
    verdict = diagnose(folder).verdict
    assert Cause.RANK_NOT_ARRIVED == verdict.cause
    assert (2,) == verdict.ranks
    assert "all_reduce" == verdict.collective.op
    assert ("read_shard", 22) == (
        verdict.location.function,
        verdict.location.line,
    )


def test_dumps_say_who_and_where(job, tmp_path):
    """
    Readers learn rank, node, process, and size of the job.
    """
    server, _ = job(*(worker(rank) for rank in range(4)))

    keep_debug_server(address(server), tmp_path / "n1", soon())

    dumps = read_dumps(tmp_path)
    assert (0, 1, 2, 3) == tuple(dumps.ranks)
    assert 4 == dumps.world_size
    assert {("node7", 25534 + r, "request") for r in range(4)} == {
        (s.host, s.pid, s.reason) for s in dumps.sidecars.values()
    }
    assert [(r, "node7") for r in range(4)] == [
        (p.rank, p.host) for p in read_stacks(tmp_path)
    ]


@pytest.mark.parametrize("told", [NO_PYSPY, "Error: Permission denied\n"])
def test_without_pyspy_the_process_tells_itself(told, job, tmp_path):
    """
    If there is no py-spy, faulthandler tells; nothing is made up for it.
    """
    workers = [worker(rank, pyspy_dump=told) for rank in range(4)]
    server, _ = job(*workers)

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

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
def test_an_address_is_no_host(host, job, tmp_path):
    """
    Whatever a worker calls itself is kept, but for what no node is called.
    """
    if host == "[::1]":
        answers = page([pyspy(0)], host)
        server, _ = job(tcpstore="", **{"/pyspy_dump": answers})
    else:
        server, _ = job(worker(0), host=host)

    keep_debug_server(address(server), tmp_path / "n1", soon())

    (process,) = read_stacks(tmp_path)
    assert (0, None) == (process.rank, process.host)


def test_pages_are_the_other_way(serve, tmp_path):
    """
    A server that does not tell where ranks listen is asked for its pages.
    """
    server = serve(pages())

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not missing
    assert "/stacks" not in server.asked
    assert "pyspy_node7_25536.json" in names(tmp_path / "n1")
    verdict = diagnose(tmp_path).verdict
    assert (2,) == verdict.ranks
    assert "read_shard" == verdict.location.function


def test_pages_without_pyspy(serve, tmp_path):
    """
    If the page of py-spy holds no stacks, the page of the processes does.
    """
    answers = pages(pyspy_dump=page([NO_PYSPY] * 4))
    server = serve(answers)

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not missing
    assert "stacks-rank3.txt" in names(tmp_path / "n1")


def test_escaped_pages_are_understood(serve, tmp_path):
    """
    It is the same if the server escapes what the ranks answered.
    """
    answers = pages(
        pyspy_dump=page([html.escape(pyspy(r)) for r in range(4)]),
        fr_trace_json=page([html.escape(recorded(4))] * 4),
    )
    server = serve(answers)

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not missing
    (process, *_) = read_stacks(tmp_path)
    assert "<module>" == process.threads[0].frames[-1].name
    assert (0, 1, 2, 3) == tuple(read_dumps(tmp_path).ranks)


def test_ranks_out_of_reach_are_taken_from_pages(serve, tmp_path):
    """
    From outside the cluster, the server is the only way to the ranks.
    """
    ports = [closed_port() for _ in range(4)]
    server = serve({**pages(), "/tcpstore": store(ports)})

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not missing
    assert (0, 1, 2, 3) == tuple(read_dumps(tmp_path).ranks)


def test_a_rank_that_is_gone_costs_only_itself(job, serve, tmp_path):
    """
    If others on its node answer, nobody else is asked for it.
    """
    ranks = [serve(worker(rank)) for rank in range(3)]
    ports = [*(server.server_port for server in ranks), closed_port()]
    server = serve({"/tcpstore": store(ports)})

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert ["/tcpstore"] == server.asked
    assert {
        ("stack", 3): "no connection: Connection refused",
        ("dump", 3): "no connection: Connection refused",
    } == reasons(missing)
    assert {f"http://node7:{ports[3]}"} == {m.source for m in missing}
    assert (0, 1, 2) == tuple(read_dumps(tmp_path).ranks)
    assert 4 == read_dumps(tmp_path).world_size


def test_a_stopped_rank_costs_only_itself(job, tmp_path):
    """
    One that takes a question and never answers is given up in time.
    """
    stopped = dict.fromkeys(worker(1), never)
    server, ranks = job(worker(0), stopped, worker(2), worker(3))
    start = time.monotonic()

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon(4))

    assert time.monotonic() - start < 6
    assert "/handler/fr_trace_json" not in ranks[1].asked
    assert {
        ("stack", 1): "no answer in time",
        ("dump", 1): "no answer in time",
    } == reasons(missing)
    verdict = diagnose(tmp_path).verdict
    assert (2,) == verdict.ranks
    assert "read_shard" == verdict.location.function


def test_a_rank_that_did_not_say_where_it_is(serve, tmp_path):
    """
    A gap in the numbers is told.
    """
    ranks = [serve(worker(rank)) for rank in (0, 2)]
    ports = [ranks[0].server_port, None, ranks[1].server_port]
    server = serve({"/tcpstore": store(ports)})

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert {("debug server", None): "it has no address of rank 1"} == reasons(
        missing
    )


def test_silent_ranks_of_a_page_are_told(serve, tmp_path):
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

    _, missing = keep_debug_server(
        address(serve(answers)), tmp_path / "n1", soon()
    )

    assert {
        ("stack", 1): "no answer in time",
        ("stack", 2): "no connection",
        ("stack", 3): "status 500: Handler failed: red",
    } == {k: v for k, v in reasons(missing).items() if k[0] == "stack"}
    assert [0] == list(read_dumps(tmp_path).ranks)


def test_the_recorder_of_nccl_comes_first(job, tmp_path):
    """
    If both recorders hold calls, all ranks tell those of NCCL, and it is said.
    """
    nccl = recorded(4).replace("gloo:", "nccl:")
    server, _ = job(worker(0, dump_nccl_trace_json=nccl))

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert {("dump", 0)} == reasons(missing).keys()
    assert "only the calls of NCCL" in missing[0].reason
    (dump,) = (tmp_path / "n1" / "flight_recorder").glob("rank_0.json")
    assert "nccl:all_reduce" in dump.read_text()


def test_an_empty_recorder_gives_way(job, tmp_path):
    """
    Without calls of NCCL, those of other backends count.
    """
    server, _ = job(worker(0, dump_nccl_trace_json=recorded(0)))

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not missing
    (dump,) = (tmp_path / "n1" / "flight_recorder").glob("rank_0.json")
    assert "gloo:all_reduce" in dump.read_text()


def test_what_was_captured_stays(job, tmp_path):
    """
    Stacks of a capture on this node say more, and are not replaced.
    """
    (tmp_path / "pyspy_node7_25534.json").write_text("more")
    server, _ = job(worker(0))

    files, missing = keep_debug_server(address(server), tmp_path, soon())

    assert not missing
    assert "more" == (tmp_path / "pyspy_node7_25534.json").read_text()
    assert not [f for f in files if "pyspy" in f.name]


@pytest.mark.parametrize(("age_s", "kept"), [(5, False), (3600, True)])
def test_new_dumps_stay(age_s, kept, job, tmp_path):
    """
    A rank that has just written its dump is not told twice.
    """
    folder = tmp_path / "flight_recorder"
    folder.mkdir()
    own = folder / "n1_rank_0"
    own.write_text(recorded(4))
    then = time.time() - age_s
    os.utime(own, (then, then))
    server, _ = job(worker(0), worker(1))

    _, missing = keep_debug_server(address(server), tmp_path, soon())

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
def test_a_stranger_is_told(answers, reason, serve, tmp_path):
    """
    What listens there may be anything; then there is nothing to keep.
    """
    server = serve(answers)

    files, missing = keep_debug_server(
        address(server), tmp_path / "n1", soon()
    )

    assert not files
    assert not (tmp_path / "n1").exists()
    assert any(reason in m.reason for m in missing)
    assert {f"http://{address(server)}"} == {m.source for m in missing}


def test_nobody_is_sent_elsewhere(serve, tmp_path):
    """
    A redirection is not followed.
    """
    other = serve(pages())

    def send_away(handler):
        handler.send_response(302)
        handler.send_header("Location", f"http://{address(other)}/tcpstore")
        handler.end_headers()

    server = serve(dict.fromkeys([*pages(), "/tcpstore"], send_away))

    keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not other.asked


def test_proxies_are_not_used(monkeypatch, serve, tmp_path):
    """
    Answers of a job are not for a proxy.
    """
    proxy = serve({})
    monkeypatch.setenv("http_proxy", f"http://{address(proxy)}")
    server = serve(pages())

    keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not proxy.asked
    assert names(tmp_path / "n1")


@pytest.mark.parametrize(
    "place",
    ["", "node7", "node7:0", "node7:65536", "https://node7:1", "a b:1"],
)
def test_what_is_no_address_is_told(place, tmp_path):
    """
    Only HOST:PORT is asked.
    """
    files, missing = keep_debug_server(place, tmp_path / "n1", soon())

    assert not files
    assert f"not HOST:PORT: {place!r}" == missing[0].reason


def test_a_closed_port_is_told(tmp_path):
    """
    Where nobody listens, one entry says so, with the address.
    """
    place = f"127.0.0.1:{closed_port()}"

    files, (missing,) = keep_debug_server(place, tmp_path / "n1", soon())

    assert not files
    assert "no connection: Connection refused" == missing.reason
    assert f"http://{place}" == missing.source


def test_a_folder_that_vanished_is_told(tmp_path):
    """
    If there is no place to write to, nobody is asked.
    """
    files, (missing,) = keep_debug_server(
        "node7:1", tmp_path / "gone" / "n1", soon()
    )

    assert not files
    assert "No such file or directory" == missing.reason


def test_a_full_disk_costs_files_only(monkeypatch, job, tmp_path):
    """
    What cannot be written is told.
    """

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files_module, "write_whole", refuse)
    server, _ = job(worker(0))

    files, missing = keep_debug_server(
        address(server), tmp_path / "n1", soon()
    )

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
def test_the_time_holds_against_everybody(hold, serve, tmp_path):
    """
    Whatever a server does, it does not take longer than was said.
    """
    server = serve(dict.fromkeys([*pages(), "/tcpstore"], hold))
    start = time.monotonic()

    files, missing = keep_debug_server(
        address(server), tmp_path / "n1", soon(1.0)
    )

    assert time.monotonic() - start < 3
    assert not files
    assert {"debug server"} == {m.what for m in missing}
    assert all("no answer in time" in m.reason for m in missing)


def test_names_that_are_looked_up_for_ever(monkeypatch, tmp_path):
    """
    The time also holds if the resolver hangs.
    """
    hang = threading.Event()
    monkeypatch.setattr(
        fetch_module.socket, "getaddrinfo", lambda *_, **__: hang.wait(30)
    )
    start = time.monotonic()

    files, missing = keep_debug_server(
        "node7:25999", tmp_path / "n1", soon(1.0)
    )
    hang.set()

    assert time.monotonic() - start < 3
    assert not files
    assert missing


@pytest.mark.parametrize(
    ("module", "name"),
    [(asking_module, "read_page"), (files_module, "process_in")],
)
def test_pages_that_take_for_ever_to_read(
    module, name, monkeypatch, serve, tmp_path
):
    """
    The time also holds if a page keeps us busy.
    """
    hang = threading.Event()
    monkeypatch.setattr(module, name, lambda _: hang.wait(30))
    start = time.monotonic()

    files, missing = keep_debug_server(
        address(serve(pages())), tmp_path / "n1", soon(1.0)
    )
    hang.set()

    assert time.monotonic() - start < 3
    assert not files
    assert {"debug server"} == {m.what for m in missing}
    assert all(m.reason.endswith(": no answer in time") for m in missing)


def test_stacks_too_long_to_read_are_none(job, tmp_path):
    """
    They are read by ourselves, so that there is a limit.
    """
    long = pyspy(0) + "x" * (1 << 20)
    server, _ = job(worker(0, pyspy_dump=long))

    keep_debug_server(address(server), tmp_path / "n1", soon())

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


def test_an_endless_answer_costs_only_itself(monkeypatch, job, tmp_path):
    """
    One that never ends is cut off, and what it took is there for others.
    """
    monkeypatch.setattr(asking_module, "_MOST_OF_RANK", 1 << 20)
    monkeypatch.setattr(server_module, "_MOST_BYTES", 3 << 20)
    server, _ = job(worker(0), dict.fromkeys(worker(1), endless))

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert {("stack", 1), ("dump", 1)} == reasons(missing).keys()
    assert "an answer of more than 1,048,576 bytes" == missing[0].reason
    assert [0] == list(read_dumps(tmp_path).ranks)


def test_a_full_allowance_is_told(monkeypatch, job, tmp_path):
    """
    There is a limit for all together.
    """
    monkeypatch.setattr(server_module, "_MOST_BYTES", 1000)
    server, _ = job(worker(0))

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert "more bytes than there is space for" == missing[0].reason


@pytest.mark.parametrize(
    "answer",
    [
        "<html>hello</html>",
        "{}",
        "[" * 100_000,
        '{"entries": [',
        "\x1b]0;title\x07\x00",
        "",
    ],
)
def test_nonsense_costs_only_itself(answer, job, tmp_path):
    """
    What is neither a stack nor a dump is not kept, and is shown harmless.
    """
    server, _ = job(worker(0), dict.fromkeys(worker(1), answer), worker(2))

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert {("stack", 1), ("dump", 1)} == reasons(missing).keys()
    assert all(m.reason.isprintable() for m in missing)
    assert all(len(m.reason) < 300 for m in missing)
    assert [0, 2] == list(read_dumps(tmp_path).ranks)


@pytest.mark.parametrize(
    "wrong", ['{"entries": [{"x": }]}', '{"a": {"entries": 1}']
)
def test_wrong_json_costs_only_itself(wrong, job, tmp_path):
    """
    What only looks like a dump is told by the readers.
    """
    server, _ = job(worker(0), worker(1, fr_trace_json=wrong), worker(2))

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon())

    assert not missing
    dumps = read_dumps(tmp_path)
    assert [0, 2] == list(dumps.ranks)
    assert [1] == [problem.rank for problem in dumps.problems]


def test_huge_numbers_of_ranks_are_not_believed(job, tmp_path):
    """
    A dump that tells of a billion ranks is one of a small job all the same.
    """
    wrong = recorded(4).replace("[0, 1, 2, 3]", "[0, 1, 99999999999, 2000000]")
    server, _ = job(worker(0, fr_trace_json=wrong))

    keep_debug_server(address(server), tmp_path / "n1", soon())

    assert 1 == read_dumps(tmp_path).sidecars[0].world_size


def test_control_codes_do_not_come_through(job, tmp_path):
    """
    What only a terminal understands is not in the files of stacks.
    """
    red = traceback(0).replace("train.py", "\x1b[31mtrain.py\x00")
    server, _ = job(worker(0, pyspy_dump=NO_PYSPY, dump_traceback=red))

    keep_debug_server(address(server), tmp_path / "n1", soon())

    text = (tmp_path / "n1" / "stacks-rank0.txt").read_text()
    assert 'File "/job/train.py", line 40' in text


def test_a_rank_that_dies_in_between(job, tmp_path):
    """
    What it told before is kept.
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

    _, missing = keep_debug_server(address(server), tmp_path / "n1", soon(5))

    assert {("dump", 0)} == reasons(missing).keys()
    assert ["pyspy_node7_25534.json"] == names(tmp_path / "n1")


def ask(server, target="/", **limits):
    """
    Ask a server for one thing.
    """
    return fetch(
        Place("127.0.0.1", server.server_port),
        target,
        deadline=limits.get("deadline", soon()),
        allowance=limits.get("allowance", Allowance(1 << 20)),
        most=limits.get("most", 1 << 20),
    )


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
def test_what_is_no_whole_http_is_no_answer(data, serve):
    """
    Other protocols, and answers that were cut off, raise no other error.
    """
    server = serve({"/": lambda handler: handler.wfile.write(data)})

    with pytest.raises(NoAnswerError) as caught:
        ask(server)

    assert "bad" == caught.value.kind


def test_chunks_are_put_together(serve):
    """
    A server may send its answer in chunks.
    """
    data = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )
    server = serve({"/": lambda handler: handler.wfile.write(data)})

    assert "abc" == ask(server)


def test_errors_as_pages_are_not_quoted(serve):
    """
    Of an error only its number is told if it comes as a page.
    """
    server = serve({"/": lambda handler: handler.send_error(500, "Oh")})

    with pytest.raises(NoAnswerError) as caught:
        ask(server)

    assert "status 500" == caught.value.reason


def test_a_time_that_is_over(serve):
    """
    Nobody is asked any more.
    """
    server = serve({"/": "yes"})

    with pytest.raises(NoAnswerError) as caught:
        ask(server, deadline=soon(-1))

    assert ("no answer in time", "unseen") == (
        caught.value.reason,
        caught.value.kind,
    )
    assert not server.asked


def test_the_next_address_of_a_host_is_tried(monkeypatch, serve):
    """
    A host may have an address at which nobody listens.
    """
    server = serve({"/": "yes"})
    port = server.server_port
    rows = [
        (family, socket.SOCK_STREAM, 6, "", (ip, port))
        for family, ip in [
            (socket.AF_INET, "127.0.0.2"),
            (socket.AF_INET, "127.0.0.1"),
        ]
    ]
    monkeypatch.setattr(
        fetch_module.socket, "getaddrinfo", lambda *_, **__: rows
    )

    assert "yes" == ask(server)


def test_a_host_without_address(monkeypatch, serve):
    """
    A name may lead nowhere.
    """
    server = serve({})
    monkeypatch.setattr(
        fetch_module.socket, "getaddrinfo", lambda *_, **__: []
    )

    with pytest.raises(NoAnswerError, match="the host has no address"):
        ask(server)


@pytest.mark.parametrize(
    ("text", "place", "shown"),
    [
        ("n1:25999", Place("n1", 25999), "n1:25999"),
        ("http://n1.x:1/", Place("n1.x", 1), "n1.x:1"),
        ("[::1]:25999", Place("::1", 25999), "[::1]:25999"),
        ("[fe80::1%eth0]:9", Place("fe80::1%eth0", 9), "[fe80::1%eth0]:9"),
    ],
)
def test_places(text, place, shown):
    """
    Places are read, and shown as they are written.
    """
    assert place == parse_place(text)
    assert shown == str(parse_place(text))


def test_answers_come_in_time():
    """
    Who is late or fails is left out; all others are there.
    """
    hang = threading.Event()

    def ask_one(number):
        if number == 3:
            hang.wait(30)
        return 6 // number

    answers = dict(answers_in_time(ask_one, range(5), soon(1), threads=2))
    hang.set()

    assert {1: 6, 2: 3, 4: 1} == answers


def test_nobody_is_asked_after_the_end():
    """
    If the time is over at the beginning, there are no answers.
    """
    assert not list(answers_in_time(abs, [1, 2], soon(-1)))


def test_long_values_of_the_store_are_left_out():
    """
    An address that was cut off leads nowhere.
    """
    text = (
        "  debug_server/rank0: b'http://node:1'\n"
        "  debug_server/rank1: b'http://a-very-long-na...\n"
        "  debug_server/rank2: b&#39;http://node:2&#39;\n"
        "  debug_server/rank3: b'http://node:port'\n"
        "  debug_server/rank9999999: b'http://node:3'\n"
    )

    assert {0: Place("node", 1), 2: Place("node", 2)} == read_addresses(text)


def test_a_page_that_was_cut_off():
    """
    A rank whose answer is not whole has none.
    """
    text = page([pyspy(0), pyspy(1)])

    sections = read_page(text[: text.rindex("</pre>")])

    assert pyspy(0) == sections[0].text
    assert "the page ends before its answer" == sections[1].reason


def test_a_page_without_addresses():
    """
    Without an address, nothing is said about the host.
    """
    text = "<h3>Rank 5: somewhere</h3><pre>x</pre><h3>Rank 2000000: x</h3>"

    (section,) = read_page(text).values()

    assert section.place is None
    assert "x" == section.text


def test_what_a_rank_told_first_counts():
    """
    Later answers do not replace an earlier one, and need no excuse.
    """
    told = Told(place=None)

    told.hear("stack", pyspy(0))
    told.hear("stack", pyspy(1))
    told.hear("dump", recorded(4))
    told.hear("dump", recorded(0))
    told.miss("stack", "late")

    assert pyspy(0) == told.stacks
    assert recorded(4) == told.dump
    assert not told.missing


def test_reasons_are_put_together():
    """
    Each is told once, and none that says nothing of the rank.
    """
    told = Told(place=None)

    for reason in ("status 404: not found", "late", "late", "gone"):
        told.miss("dump", reason)

    assert {"dump": "late; gone"} == told.missing


def test_what_looks_like_a_dump():
    """
    Dumps without any call count, too; lists and pages do not.
    """
    assert is_dump(recorded(0))
    assert is_dump('{"pg_config": {}}')
    assert not is_dump("[1]")
    assert not is_dump("{}")
    assert process_in("") is None

"""
Child processes that decode files.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import subprocess
import sys

from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.flight_recorder import read_dumps
from distdebug.flight_recorder.reading import sandbox
from distdebug.testing import SimulatedJob, make_dumps


on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="needs RLIMIT_AS and /proc"
)

# A few bytes that ask for 34 GB of memory, and are a dump without records.
BOMB = b"\x80\x02}r\xff\xff\xff\x7f(X\x07\0\0\0entries]u."


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """
    The dumps of 20 ranks.
    """
    return write(tmp_path / "dumps", 20)


def write(folder, ranks):
    """
    Write the dumps of some ranks.
    """
    job = SimulatedJob(ranks, stack_depth=2)
    job.collective("all_reduce")
    make_dumps(folder, job)
    return folder


def filled(size):
    """
    A dump of so many bytes, which takes about a hundred times as many.
    """
    head = b"\x80\x02}(X\x07\0\0\0entries]X\x01\0\0\0x]("
    return head + b"}" * size + b"eu."


def reasons(dumps):
    """
    Why files could not be read, by rank.
    """
    return {p.rank: p.reason for p in dumps.problems}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """
    Lets children run other code where they would begin to answer.
    """

    def set_program(code):
        wrapper, script = tmp_path / "wrapper.py", tmp_path / "python"
        wrapper.write_text(
            "import sys\n"
            "program, *sys.argv[1:] = sys.argv[1:]\n"
            f"exec(program.replace('main()\\n', {code!r}))\n"
        )
        script.write_text(
            f'#!/bin/sh\nexec {sys.executable} "$1" "$2" "$3" {wrapper} '
            '"$5" "$6"\n'
        )
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return set_program


@pytest.fixture
def children(monkeypatch):
    """
    The processes that are started, and at most how many can be.
    """
    started = []
    start = subprocess.Popen

    def noted(*args, **options):
        if len(started) >= found.most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        started.append(start(*args, **options))
        return started[-1]

    found = SimpleNamespace(started=started, most=100)
    monkeypatch.setattr(subprocess, "Popen", noted)
    return found


def use_cores(monkeypatch, count):
    """
    Let this process have so many cores.
    """
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(range(count)), raising=False
    )


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (64, 5)])
def test_all_answered(folder, monkeypatch, children, cores, expected):
    """
    There is a child per core that this process may use, but not for a few
    files; each file has one answer, whichever child it comes from.
    """
    use_cores(monkeypatch, cores)

    dumps = read_dumps(folder)

    assert tuple(range(20)) == dumps.ranks
    assert {} == reasons(dumps)
    assert expected == len(children.started)


def test_unknown_cores(folder, monkeypatch, children):
    """
    Where it is not known which cores may be used, all are.
    """
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)

    assert 20 == len(read_dumps(folder))
    assert 3 == len(children.started)


@on_linux
def test_goes_on(folder, monkeypatch, children):
    """
    A child that has answered all it was asked for goes on with what is left.
    """
    use_cores(monkeypatch, 1)

    def wait(*_):
        stat = Path(f"/proc/{children.started[0].pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] == "R":
            pass

    dumps = read_dumps(folder, progress=wait)

    assert {} == reasons(dumps)
    assert 1 == len(children.started)


def test_frames(folder):
    """
    Stacks are read of several files at once.
    """
    dumps = read_dumps(folder)

    stacks = dumps.frames_of({rank: [0] for rank in range(6)})

    assert [2] * 6 == [len(stack) for (stack,) in stacks.values()]


def test_isolated(folder, program, tmp_path):
    """
    A child imports neither the package nor what the user has installed.
    """
    out = tmp_path / "modules"
    program(f"open({str(out)!r}, 'w').write(' '.join(sys.modules))")

    read_dumps(folder, ranks=[0])

    modules = set(out.read_text(encoding="utf-8").split())
    assert {"sandboxed.decode", "sandboxed.extract"} <= modules
    assert not {"distdebug", "site", "numpy", "attrs"} & modules


def test_dies(folder, program):
    """
    A child that is killed costs the file it was at; another goes on.
    """
    program(
        "import os, sandboxed.decode as d\n"
        "good = d.answer_request\n"
        "d.answer_request = lambda r: good(r) if '_1' not in r['path'][-3:]"
        " else os.kill(os.getpid(), 9)\n"
        "main()"
    )

    dumps = read_dumps(folder)

    killed = "the process that decoded it was killed by SIGKILL"
    assert dict.fromkeys([1, *range(10, 20)], killed) == reasons(dumps)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise SystemExit(3)",
            "the process that decoded it ended with status 3",
        ),
        # A signal without a name.
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)",
            "the process that decoded it was killed by signal 37",
        ),
        ("sleep()", "it takes more than 0.3 s to decode"),
        # One that was taken over can neither fill memory nor block.
        (
            "say(b'\\xff' * 8)",
            "it was decoded to nonsense: 8,589,934,590 bytes",
        ),
        ("say(bytes(8))", "it was decoded to nonsense: 0 bytes"),
        ("say(b'\\x01')", "it takes more than 0.3 s to decode"),
    ],
    ids=["status", "signal", "hangs", "huge", "empty", "unfinished"],
)
def test_hangs(folder, program, code, reason):
    """
    A child that ends too early, takes too long, or talks nonsense costs its
    file, and is killed.
    """
    program(
        "import time\n"
        "def sleep(): time.sleep(600)\n"
        "def say(x): sys.stdout.buffer.write(x); sys.stdout.flush(); sleep()\n"
        + code
    )
    limit_s = 0.3 if "0.3 s" in reason else 60.0

    found = reasons(read_dumps(folder, ranks=[0, 1], time_limit_s=limit_s))

    assert {0: reason, 1: reason} == found


def test_lies(folder, program):
    """
    Whatever a child that was taken over makes of a file costs that file, and
    no other.
    """
    job = SimulatedJob(20)
    for rank in range(20):
        job.collective("all_reduce", ranks=[rank], sizes=[[rank + 1]])
    make_dumps(folder, job)
    changes = [
        {"shapes": ["[[]]"]},
        {"shapes": [1]},
        {"elements": [[1], []]},
        {"elements": [["x"], [1]]},
        {"elements": [[1 << 64], [1]]},
        {"types": [7]},
        {"dtypes": [[[], [], []]]},
        {"dtypes": [[[[]], []]]},
        {"failure": "x", "reason": "\x1b[31mred"},
        {"failure": "x", "reason": None},
        {"count": 1 << 40},
    ]
    program(
        f"""
import json, sandboxed.decode as d
good, changes = d.answer_request, json.loads({json.dumps(changes)!r})
def lie(request):
    message = good(request)
    rank = int(request["path"].rpartition("_")[2])
    if rank >= len(changes):
        return message
    end = d.LENGTHS.size + d.LENGTHS.unpack_from(message)[0]
    header = json.loads(message[d.LENGTHS.size:end])
    return d.pack_message({{**header, **changes[rank]}}, [message[end:]])
d.answer_request = lie
main()
"""
    )

    dumps = read_dumps(folder)

    found = reasons(dumps)
    assert tuple(range(len(changes), 20)) == dumps.ranks
    assert set(range(len(changes))) == found.keys()
    assert "red" == found.pop(8)
    assert "None" == found.pop(9)
    assert {"it was decoded to nonsense"} == {
        reason.partition(":")[0] for reason in found.values()
    }
    sizes = {int(e) for shape in dumps.shapes for e in shape.input_sizes[0]}
    assert set(range(len(changes) + 1, 21)) == sizes
    assert sizes == set(dumps.shapes.elements.ravel().tolist())


def test_lies_about_stacks(folder, program):
    """
    Nor does it get anything else into stacks.
    """
    dumps = read_dumps(folder, ranks=[0, 1])
    program(
        "import sandboxed.decode as d\n"
        "d.answer_request = lambda r: d.pack_message({'frames': [['x']]})\n"
        "main()"
    )

    assert {0: [()], 1: [()]} == dumps.frames_of({0: [0], 1: [0]})


def test_goes_silent(folder, program, monkeypatch):
    """
    A child that closes its output and lives on is not waited for.
    """
    wait = subprocess.Popen.wait
    monkeypatch.setattr(
        subprocess.Popen, "wait", lambda p, s=None: wait(p, s and 0.1)
    )
    program("import os, time; os.close(1); time.sleep(600)")

    found = reasons(read_dumps(folder, ranks=[0]))

    assert {0: "the process that decoded it went silent"} == found


def test_cannot_start(folder, monkeypatch):
    """
    Without an interpreter there is a reason for each file.
    """
    monkeypatch.setattr(sys, "executable", "/does/not/exist")

    found = reasons(read_dumps(folder))

    assert set(range(20)) == found.keys()
    assert "no process could be started" in found[0]


def test_only_one_starts(folder, monkeypatch, children):
    """
    Where one child can be started and no other, it decodes all files, and
    no time is spent on waiting for an idle one.
    """
    use_cores(monkeypatch, 4)
    children.most = 1

    dumps = read_dumps(folder, time_limit_s=30.0)

    assert tuple(range(20)) == dumps.ranks
    assert {} == reasons(dumps)


def test_does_not_outlive(folder, children):
    """
    If reading is interrupted, no child is left.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_dumps(folder, progress=interrupt)

    assert children.started
    assert all(child.returncode is not None for child in children.started)


def test_pipe_stays_narrow(folder, monkeypatch):
    """
    A system that has no room for wide pipes is fine.
    """
    fcntl = pytest.importorskip("fcntl")

    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert {} == reasons(read_dumps(folder))

    monkeypatch.delattr(fcntl, "F_SETPIPE_SZ", raising=False)
    assert {} == reasons(read_dumps(folder))


class TestLimits:
    @on_linux
    def test_set(self, folder, program, tmp_path):
        """
        For each file the child limits its memory and its time, again and
        again, up or down, and writes no core.
        """
        out = tmp_path / "limits"
        (folder / "nccl_trace_rank_1").write_bytes(b"{" + b" " * (4 << 20))
        program(
            f"""
import resource as r, sandboxed.decode as d
good = d.answer_request
hard = r.getrlimit(r.RLIMIT_CORE)[1]
r.setrlimit(r.RLIMIT_CORE, (hard, hard))
def noted(request):
    message = good(request)
    names = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_CORE")
    with open({str(out)!r}, "a") as file:
        print(*(r.getrlimit(getattr(r, n))[0] for n in names), file=file)
    return message
d.answer_request = noted
main()
"""
        )

        read_dumps(folder, ranks=range(3))

        small, large, again = (
            tuple(map(int, line.split()))
            for line in out.read_text().splitlines()
        )
        assert 512 << 20 < small[0] < 520 << 20
        assert 512 + 4 * 20 == large[0] >> 20
        assert small == again
        assert (6, 8, 0) == (small[1], large[1], large[2])

    @on_linux
    def test_hard(self, folder, program, tmp_path):
        """
        A limit that is there already is not exceeded.
        """
        out = tmp_path / "limit"
        program(
            "import resource as r, atexit\n"
            "r.setrlimit(r.RLIMIT_CPU, (3, 3))\n"
            "atexit.register(lambda: open("
            f"{str(out)!r}, 'w').write(str(r.getrlimit(r.RLIMIT_CPU))))\n"
            "import sandboxed.decode as d\n"
            "good = d.answer_request\n"
            "d.answer_request = lambda q: (good(q), atexit._run_exitfuncs())[0]\n"
            "main()"
        )

        dumps = read_dumps(folder, ranks=[0])

        assert (0,) == dumps.ranks
        assert "(3, 3)" == out.read_text()

    @pytest.mark.parametrize(
        ("code", "is_limited"),
        [
            pytest.param("", True, marks=on_linux),
            ("import resource as r; r.setrlimit = lambda *_: int('x')", False),
            ("sys.modules['resource'] = None", False),
            ("sys.platform = 'darwin'", False),
        ],
        ids=["limited", "refused", "unknown", "nobody minds"],
    )
    def test_memory_bomb(self, folder, program, code, is_limited):
        """
        A few bytes that ask for 34 GB of memory are a dump without records,
        and cost nothing else; where memory cannot be limited, which is known,
        nothing is given to the unpickler of Python, not even what is no dump.
        """
        (folder / "nccl_trace_rank_0").write_bytes(BOMB)
        evil = b"\x80\x02cos\nsystem\n(X\x02\0\0\0idtR."
        (folder / "nccl_trace_rank_4").write_bytes(evil)
        program(f"{code}\nmain()")

        dumps = read_dumps(folder, ranks=range(5))

        assert (0, 1, 2, 3) == dumps.ranks
        assert [0, 1, 1, 1] == [len(dump.entries) for dump in dumps]
        assert is_limited == ("os.system" in reasons(dumps)[4])

    @on_linux
    @pytest.mark.parametrize("cores", [1, 2, 16])
    def test_one_allowance(self, folder, monkeypatch, children, cores):
        """
        All children together may take no more than one could, however many;
        a file for which a part of that is too little is decoded alone.
        """
        use_cores(monkeypatch, cores)
        for rank, size in ((0, 1 << 22), (1, 1 << 23), (2, 1 << 23)):
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(gzip.compress(filled(size), 1))

        dumps = read_dumps(folder)

        assert (0, *range(3, 20)) == dumps.ranks
        assert {1, 2} == reasons(dumps).keys()
        assert "more memory" in reasons(dumps)[1]
        together = min(cores, 5)
        assert together + 3 * (cores > 1) == len(children.started)

    @on_linux
    def test_no_time_alone(self, folder, monkeypatch, children):
        """
        Files that lacked memory are tried alone only for a while.
        """
        use_cores(monkeypatch, 2)
        monkeypatch.setattr(sandbox, "_ALONE_S", 0.0)
        for rank in range(3):
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(gzip.compress(filled(1 << 22), 1))

        dumps = read_dumps(folder)

        assert {0, 1, 2} == reasons(dumps).keys()
        assert 2 == len(children.started)

    @on_linux
    def test_copy_bomb(self, folder, program):
        """
        Lists that hold each other, and take for ever to copy, are given up.
        """
        program("import sandboxed.decode as l; l._SECONDS_BASE = 0; main()")
        value: list[object] = []
        for _ in range(60):
            value = [value, value]
        entry = {"seq_id": 1, "profiling_name": "x", "input_sizes": value}
        (folder / "nccl_trace_rank_0").write_bytes(
            pickle.dumps({"entries": [entry]}, 2)
        )

        dumps = read_dumps(folder)

        assert {
            0: "the process that decoded it was killed by SIGXCPU"
        } == reasons(dumps)


class FakeExecutor(Executor):
    """
    Runs what can travel to another machine, or loses it.
    """

    def __init__(self, error=None):
        self.error = error
        self.batches = []

    def submit(self, *work):
        """
        Do the work at once.
        """
        future = Future()
        if self.error is None:
            function, batch, *options = pickle.loads(pickle.dumps(work))
            self.batches.append(len(batch))
            future.set_result(function(batch, *options))
        else:
            future.set_exception(self.error)
        return future


class TestExecutor:
    def test_batches(self, tmp_path):
        """
        An executor gets batches, which can travel, and gives the same dumps.
        """
        folder = write(tmp_path, 40)
        executor = FakeExecutor()

        dumps = read_dumps(folder, executor=executor)

        assert [32, 8] == executor.batches
        assert tuple(range(40)) == dumps.ranks
        assert {} == reasons(dumps)

    def test_breaks(self, folder):
        """
        If the executor loses work, that is the reason for its files.
        """
        executor = FakeExecutor(RuntimeError("node lost"))

        found = reasons(read_dumps(folder, executor=executor))

        assert (
            dict.fromkeys(
                range(20), "the executor failed: RuntimeError: node lost"
            )
            == found
        )

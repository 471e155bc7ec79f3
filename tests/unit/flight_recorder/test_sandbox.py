"""
Child processes that decode files.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from distdebug.flight_recorder.reading import sandbox
from distdebug.flight_recorder.reading.decode import LENGTHS
from distdebug.flight_recorder.reading.sandbox import (
    decode_batch,
    decode_files,
    decode_frames,
)
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(name="paths")
def _paths(tmp_path):
    """
    The dumps of 20 ranks.
    """
    job = SimulatedJob(20, stack_depth=2)
    job.collective("all_reduce")
    return [str(path) for path in make_dumps(tmp_path, job).values()]


def header_of(message):
    """
    What a message says.
    """
    size, _ = LENGTHS.unpack_from(message)
    return json.loads(message[LENGTHS.size : LENGTHS.size + size])


def reasons_of(answers):
    """
    The failures among answers, by file.
    """
    headers = {path: header_of(message) for path, message in answers}
    return {p: h["reason"] for p, h in headers.items() if "failure" in h}


def program(monkeypatch, code):
    """
    Let children run *code* instead.
    """
    monkeypatch.setattr(sandbox, "_PROGRAM", code)


def test_all_answered(paths, monkeypatch):
    """
    Each file has one answer, whichever child it comes from.
    """
    monkeypatch.setattr(sandbox, "_cores", lambda: 2)

    answers = list(decode_files(paths))

    assert sorted(paths) == sorted(path for path, _ in answers)
    assert {} == reasons_of(answers)


def test_batch(paths):
    """
    One child answers in the order of the files.
    """
    assert paths == [path for path, _ in decode_batch(paths)]


def test_goes_on(paths, monkeypatch):
    """
    A child that has answered all it was asked for goes on with what is left.
    """
    started = []
    start, listen = sandbox.subprocess.Popen, sandbox._listen

    def noted(*args, **options):
        started.append(args)
        return start(*args, **options)

    def listen_to_all(crew, selector):
        while any(len(c._answered) < len(c.asked) for c in crew):
            listen(crew, selector)

    monkeypatch.setattr(sandbox.subprocess, "Popen", noted)
    monkeypatch.setattr(sandbox, "_listen", listen_to_all)
    answers = decode_batch(paths)

    assert {} == reasons_of(answers)
    assert 1 == len(started)


def test_nothing():
    """
    No files need no child.
    """
    assert [] == list(decode_files([]))


def test_frames(paths):
    """
    Stacks come without columns, of several files at once.
    """
    answers = dict(decode_frames({path: [0] for path in paths[:6]}))

    assert set(paths[:6]) == answers.keys()
    assert 2 == len(header_of(answers[paths[0]])["frames"][0])


class TestChild:
    def test_isolated(self, tmp_path, monkeypatch):
        """
        It imports neither the package nor what the user has installed.
        """
        out = tmp_path / "modules"
        program(
            monkeypatch,
            sandbox._PROGRAM.replace(
                "main()",
                f"open({str(out)!r}, 'w').write(' '.join(sys.modules))",
            ),
        )

        decode_batch(["x"])

        modules = set(out.read_text(encoding="utf-8").split())
        assert {"sandboxed.decode", "sandboxed.careful"} <= modules
        assert not {"distdebug", "site", "numpy", "attrs"} & modules

    def test_dies(self, paths, monkeypatch):
        """
        A child that is killed costs the file it was at; another goes on.
        """
        program(
            monkeypatch,
            sandbox._PROGRAM.replace(
                "main()",
                "import os, sandboxed.decode as d\n"
                "good = d.answer\n"
                "d.answer = lambda r: good(r) if '_1' not in r['path'][-3:]"
                " else os.kill(os.getpid(), 9)\n"
                "main()",
            ),
        )

        reasons = reasons_of(decode_batch(paths))

        assert {p for p in paths if "_1" in p[-3:]} == reasons.keys()
        assert {"the process that decoded it was killed by SIGKILL"} == set(
            reasons.values()
        )

    def test_ends(self, paths, monkeypatch):
        """
        A child that ends too early is a failure.
        """
        program(monkeypatch, "raise SystemExit(3)")

        reasons = reasons_of(decode_batch(paths[:3]))

        assert ["the process that decoded it ended with status 3"] * 3 == list(
            reasons.values()
        )

    def test_hangs(self, paths, monkeypatch):
        """
        A child that takes too long is killed.
        """
        program(monkeypatch, "import time; time.sleep(600)")

        reasons = reasons_of(decode_batch(paths[:2], time_limit_s=0.2))

        assert ["it takes more than 0.2 s to decode"] * 2 == list(
            reasons.values()
        )

    @pytest.mark.parametrize(
        ("output", "reason"),
        [
            (b"\xff" * 8, "it was decoded to nonsense: 8,589,934,590 bytes"),
            (b"\x00" * 8, "it was decoded to nonsense: 0 bytes"),
            (b"\x01", "it takes more than 0.5 s to decode"),
        ],
    )
    def test_talks_nonsense(self, paths, monkeypatch, output, reason):
        """
        A child that was taken over can neither fill memory nor block.
        """
        program(
            monkeypatch,
            f"import sys, time; sys.stdout.buffer.write({output!r}); "
            "sys.stdout.flush(); time.sleep(600)",
        )

        reasons = reasons_of(decode_batch(paths[:2], time_limit_s=0.5))

        assert [reason] * 2 == list(reasons.values())

    def test_goes_silent(self, paths, monkeypatch):
        """
        A child that closes its output and lives on is not waited for.
        """
        monkeypatch.setattr(sandbox, "_PATIENCE_S", 0.1)
        program(monkeypatch, "import os, time; os.close(1); time.sleep(600)")

        reasons = reasons_of(decode_batch(paths[:1]))

        assert "the process that decoded it went silent" == reasons[paths[0]]

    def test_cannot_start(self, paths, monkeypatch):
        """
        Without an interpreter there is a reason for each file.
        """
        monkeypatch.setattr(sys, "executable", "/does/not/exist")

        reasons = reasons_of(decode_files(paths))

        assert 20 == len(reasons)
        assert "no process could be started" in reasons[paths[0]]

    def test_only_one_starts(self, paths, monkeypatch):
        """
        Where one child can be started and no other, it decodes all files,
        and nobody waits for who has nothing to do.
        """
        start, made = sandbox.subprocess.Popen, []

        def once(*args, **options):
            if made:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            made.append(start(*args, **options))
            return made[0]

        monkeypatch.setattr(sandbox, "_cores", lambda: 4)
        monkeypatch.setattr(sandbox.subprocess, "Popen", once)

        answers = list(decode_files(paths, time_limit_s=30.0))

        assert sorted(paths) == sorted(path for path, _ in answers)
        assert {} == reasons_of(answers)

    def test_odd_signal(self):
        """
        Signals without a name have a number.
        """
        assert "signal 250" == sandbox._signal(250)

    def test_does_not_outlive(self, paths, monkeypatch):
        """
        If nobody wants the answers, no child is left.
        """
        made = []
        start = sandbox.subprocess.Popen

        def noted(*args, **options):
            made.append(start(*args, **options))
            return made[-1]

        monkeypatch.setattr(sandbox.subprocess, "Popen", noted)
        answers = decode_files(paths)

        next(answers)
        answers.close()

        assert made
        assert all(child.returncode is not None for child in made)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
    def test_memory_bomb(self, paths, tmp_path):
        """
        A few bytes that ask for 34 GB of memory are a dump without records.
        """
        bomb = tmp_path / "bomb_rank_20"
        bomb.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f(X\x07\0\0\0entries]u.")

        answers = decode_batch([*paths, str(bomb)])

        assert {} == reasons_of(answers)
        assert 0 == header_of(answers[-1][1])["count"]

    @pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
    def test_copy_bomb(self, paths, tmp_path, monkeypatch):
        """
        Lists that hold each other, and take for ever to copy, are given up.
        """
        program(
            monkeypatch,
            sandbox._PROGRAM.replace(
                "main()",
                "import sandboxed.limits as l; l._SECONDS_BASE = 0; main()",
            ),
        )
        value: list[object] = []
        for _ in range(60):
            value = [value, value]
        entry = {"seq_id": 1, "profiling_name": "x", "input_sizes": value}
        bomb = tmp_path / "bomb_rank_20"
        bomb.write_bytes(pickle.dumps({"entries": [entry]}, 2))

        answers = decode_batch([str(bomb), *paths])

        assert {
            str(bomb): "the process that decoded it was killed by SIGXCPU"
        } == reasons_of(answers)


class TestExecutor:
    def test_batches(self, paths, monkeypatch):
        """
        An executor gets batches, and gives the same answers.
        """
        monkeypatch.setattr(sandbox, "_BATCH", 8)

        with ThreadPoolExecutor(2) as executor:
            answers = list(decode_files(paths, executor=executor))

        assert sorted(decode_batch(paths)) == sorted(answers)

    def test_work_is_picklable(self):
        """
        What is submitted can travel to another machine.
        """
        assert decode_batch is pickle.loads(pickle.dumps(decode_batch))

    def test_breaks(self, paths):
        """
        If the executor loses work, that is the reason for its files.
        """

        class Broken(ThreadPoolExecutor):
            def submit(self, *args, **options):
                future = Future()
                future.set_exception(RuntimeError("node lost"))
                return future

        reasons = reasons_of(decode_files(paths, executor=Broken()))

        assert 20 == len(reasons)
        assert {"the executor failed: RuntimeError: node lost"} == set(
            reasons.values()
        )


def test_cores(monkeypatch):
    """
    Only the cores that this process may use count, where that is known.
    """
    if hasattr(os, "sched_getaffinity"):
        assert len(os.sched_getaffinity(0)) == sandbox._cores()

    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert os.cpu_count() == sandbox._cores()


def test_pipe_stays_narrow(paths, monkeypatch):
    """
    A system that has no room for wide pipes is fine.
    """
    fcntl = pytest.importorskip("fcntl")

    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert {} == reasons_of(decode_batch(paths))

    monkeypatch.delattr(fcntl, "F_SETPIPE_SZ", raising=False)
    assert {} == reasons_of(decode_batch(paths))

"""
The commands ``stacks`` and ``preflight``.
"""

from __future__ import annotations

import json
import time

from types import SimpleNamespace

import attrs
import pytest

from distdebug.__main__ import main
from distdebug.capture import Capture, CaptureStatus, Check, ProcessCapture
from distdebug.processes import Worker
from distdebug.stacks import ProcessStacks, StackFrame, ThreadStack


DUMP = """\
Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    read_shard (/home/me/data.py:41)
    next (/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py:700)
"""
IDLE = StackFrame(
    "_run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1904
)


def process(rank, frames):
    """
    A rank, and where its main thread is.
    """
    worker = Worker(
        pid=1000 + rank,
        start_ticks=5,
        parent_pid=1,
        uid=0,
        title="python train.py",
        framework="torchrun",
        rank=rank,
    )
    thread = ThreadStack(name="MainThread", frames=frames, is_main=True)
    stacks = ProcessStacks(
        pid=1000 + rank,
        source="py-spy",
        threads=(thread,),
        rank=rank,
        role="rank",
    )
    return ProcessCapture(
        worker=worker, status=CaptureStatus.OK, stacks=stacks
    )


READING = process(
    2, (StackFrame("readinto", "/usr/lib/python3.11/socket.py", 706),)
)


@pytest.fixture
def captured(monkeypatch):
    """
    What is captured, and how it was asked for.
    """
    log = SimpleNamespace(
        capture=Capture(host="n1", processes=(READING,)),
        error=None,
        calls=[],
    )

    def capture(*args, **kwargs):
        log.calls.append((args, kwargs))
        kwargs["tell"]("look 1 of 3", 1, 4)
        if log.error is not None:
            raise log.error
        return log.capture

    monkeypatch.setattr("distdebug.capture.capture_node", capture)
    return log


class TestStacks:
    def test_node(self, captured, capsys):
        """
        Without files the workers of this node are looked at.
        """
        status = main(["stacks"])

        out = capsys.readouterr().out
        assert 1 == status
        assert "rank 2" in out
        assert "readinto (socket.py:706)" in out
        ((_, options),) = captured.calls
        assert (None, (), "none", False, 3, 1.0) == tuple(
            options[name]
            for name in (
                *("pids", "patterns", "native", "cuda", "samples"),
                "interval_s",
            )
        )

    def test_options(self, captured, capsys):
        """
        Options say who is looked at, and how.
        """
        line = "stacks --pid 7 --pid 8 --native --cuda --seconds 4"

        main([*line.split(), "--timeout", "9", "--output-dir", "there"])

        (((folder,), options),) = captured.calls
        assert ("there", [7, 8], "classes", True, 2.0, 9.0) == (
            folder,
            options["pids"],
            options["native"],
            options["cuda"],
            options["interval_s"],
            options["timeout_s"],
        )

    @pytest.mark.parametrize(
        ("options", "native", "patterns"),
        [
            ([], "none", ()),
            (["--native", "--pattern", "a"], "classes", ["a"]),
            (
                ["--all-native", "--pattern", "a", "--pattern", "b"],
                "all",
                ["a", "b"],
            ),
        ],
        ids=["none", "some", "all"],
    )
    def test_native(self, captured, options, native, patterns):
        """
        Native stacks are of none, of some, or of every process.
        """
        main(["stacks", *options])

        ((_, given),) = captured.calls
        assert (native, patterns) == (given["native"], given["patterns"])

    def test_json(self, captured, capsys):
        """
        Everything is there for programs too.
        """
        status = main(["stacks", "--json"])

        data = json.loads(capsys.readouterr().out)
        assert (1, "stacks", 1) == (data["schema"], data["command"], status)
        assert 2 == data["workers"][0]["rank"]
        assert [2] == data["findings"][0]["ranks"]
        assert data["tree"]["nodes"]

    def test_nobody(self, captured, capsys):
        """
        If there is no worker, there is a way to name one.
        """
        captured.capture = Capture(host="n1", processes=())

        status = main(["stacks"])

        assert 2 == status
        assert "--pattern" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("frames", "status", "told"),
        [((IDLE,), 0, "1 process"), ((), 2, "no stack could be read")],
        ids=["healthy", "blind"],
    )
    def test_nothing_wrong(self, captured, capsys, frames, status, told):
        """
        Nothing is wrong with who waits for events; who could not see anything
        does not say that all is well.
        """
        captured.capture = attrs.evolve(
            captured.capture, processes=(process(0, frames),)
        )

        assert status == main(["stacks"])
        assert told in capsys.readouterr().out

    def test_no_such_process(self, captured, capsys):
        """
        A number that no process has is a mistake.
        """
        nobody = process(0, ())
        worker = attrs.evolve(nobody.worker, pid=999999, start_ticks=0)
        captured.capture = attrs.evolve(
            captured.capture, processes=(attrs.evolve(nobody, worker=worker),)
        )

        assert 2 == main(["stacks", "--pid", "999999"])
        assert "no such process: 999999" in capsys.readouterr().err

    @pytest.mark.parametrize("option", [[], ["--json"]])
    def test_repeat(self, captured, capsys, monkeypatch, option):
        """
        It looks again until it is interrupted; as JSON, each is one line.
        """
        slept = []

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(time, "sleep", sleep)

        status = main(["stacks", "--repeat", "5", *option])

        out = capsys.readouterr().out
        assert 1 == status
        assert [5.0, 5.0] == slept
        assert 2 == len(captured.calls)
        if option:
            assert ["stacks"] * 2 == [
                json.loads(line)["command"] for line in out.splitlines()
            ]
        else:
            assert 2 == out.count("1 process")

    def test_interrupted_at_once(self, captured):
        """
        Who is interrupted before anything was seen has seen nothing.
        """
        captured.error = KeyboardInterrupt()

        assert 130 == main(["stacks", "--repeat", "5"])


class TestFiles:
    def test_file(self, tmp_path, capsys):
        """
        Stacks that other tools took are explained as well.
        """
        path = tmp_path / "dump.txt"
        path.write_text(DUMP)

        status = main(["stacks", str(path)])
        out = capsys.readouterr().out
        main(["stacks", "--json", str(path), str(tmp_path / "none.txt")])
        data = json.loads(capsys.readouterr().out)

        assert 1 == status
        assert "read_shard (data.py:41)" in out
        assert "dataloader_wait" in out
        assert "dataloader_wait" == data["findings"][0]["cause"]
        assert ["stack"] == [m["what"] for m in data["missing"]]
        assert 7 == data["tree"]["processes"][0]["pid"]

    def test_empty(self, tmp_path, capsys):
        """
        Stacks without a line do not say that all is well.
        """
        path = tmp_path / "dump.json"
        path.write_text('[{"pid": 1, "thread_id": 1, "frames": []}]')

        status = main(["stacks", str(path)])

        assert 2 == status
        assert "are empty" in capsys.readouterr().err

    @pytest.mark.parametrize("pid", ["0", "-1", "99999999999999999999", "x"])
    def test_bad_pid(self, pid, capsys):
        """
        What is not a number of a process is refused.
        """
        with pytest.raises(SystemExit) as caught:
            main(["stacks", f"--pid={pid}"])

        assert 2 == caught.value.code
        assert "number of a process" in capsys.readouterr().err

    def test_no_stacks(self, tmp_path, capsys):
        """
        A file without a stack is an error, and says which.
        """
        path = tmp_path / "notes.txt"
        path.write_text("nothing\nhere\n")

        status = main(["stacks", str(path)])

        err = capsys.readouterr().err
        assert 2 == status
        assert "notes.txt" in err
        assert "py-spy" in err


class TestPreflight:
    @pytest.fixture
    def checks(self, monkeypatch):
        """
        What is checked.
        """
        checks = [
            Check(name="ptrace", ok=True, detail="may attach", remedy=""),
            Check(
                name="pystack",
                ok=None,
                detail="not installed",
                remedy="pip install pystack",
            ),
        ]
        monkeypatch.setattr(
            "distdebug.snapshots.collect.check_capture",
            lambda: tuple(checks),
        )
        return checks

    def test_ready(self, checks, capsys):
        """
        What would only be nice to have is no problem; if all is well, there is
        nothing but the table.
        """
        status = main(["preflight"])
        out = capsys.readouterr().out
        del checks[1]
        main(["preflight"])

        assert 0 == status
        assert "may attach" in out
        assert "pip install pystack" in out
        assert capsys.readouterr().out.endswith("may attach\n")

    def test_problem(self, checks, capsys):
        """
        What is in the way is a problem.
        """
        checks[0] = attrs.evolve(
            checks[0], ok=False, remedy="--cap-add SYS_PTRACE"
        )

        status = main(["preflight", "--json"])

        data = json.loads(capsys.readouterr().out)
        assert 1 == status
        assert not data["ready"]
        assert "--cap-add SYS_PTRACE" == data["checks"][0]["remedy"]

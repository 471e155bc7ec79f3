"""
The command ``watch``.
"""

from __future__ import annotations

import json
import logging
import os
import time

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.watching import Hang, HangReason, Response


REASON = HangReason(kind="wait", elapsed_s=1800.0, pids=(7, 8))


def found(folder, cause=Cause.IO_WAIT, outcome="explained"):
    """
    What a snapshot finds.
    """
    data = {
        "verdict": {"cause": cause, "summary": "rank 3 is blocked"},
        "folder": str(folder),
    }
    hang = Hang(
        reason=REASON, folder=folder, data=data, report="REPORT: rank 3"
    )
    return Response(outcome, "rank 3 is blocked", folder, hang)


@pytest.fixture(name="watched")
def _watched(monkeypatch, tmp_path):
    """
    A watch that calls once, and a snapshot that finds something.
    """
    log = SimpleNamespace(
        ending="ended",
        error=None,
        calls=1,
        config=None,
        how=None,
        orders=[],
        answers=[],
        responses=[found(tmp_path / "hang")],
    )

    def watch(config, **how):
        log.config, log.how = config, how
        for _ in range(log.calls):
            log.answers.append(how["on_hang"](REASON))
        return log.ending

    def respond(reason, order):
        assert reason is REASON
        log.orders.append(order)
        if log.error is not None:
            raise log.error
        return log.responses[len(log.orders) - 1]

    monkeypatch.setattr("distdebug.watching.watch_processes", watch)
    monkeypatch.setattr("distdebug.watching.respond", respond)
    return log


@pytest.fixture(name="posted")
def _posted(monkeypatch):
    """
    The hangs of which a message was posted, without a network.
    """
    posted = []
    monkeypatch.setattr(
        "distdebug.watching.webhook_hook", lambda file: posted.append
    )
    return posted


class TestFound:
    def test_shown(self, watched, capsys, tmp_path):
        """
        A snapshot is taken of who was watched, where it was wished, and shown.
        """
        status = main(
            [
                *("watch", "--wait-seconds", "1800"),
                *("--output-dir", str(tmp_path), "--dump-dir", "/dumps"),
                *("--log", "a.log", "--log", "b.log"),
            ]
        )

        out, err = capsys.readouterr()
        (order,) = watched.orders
        assert 1 == status
        assert "REPORT: rank 3\n" == out
        assert "1,800 s are over: looking at it" in err
        assert (tmp_path, (7, 8)) == (order.output_dir, order.wanted.pids)
        assert Path("/dumps") == order.wanted.dump_dir
        assert (Path("a.log"), Path("b.log")) == order.wanted.logs
        assert order.inside is None
        assert [None] == watched.answers

    def test_metrics(self, watched, tmp_path):
        """
        What moves, and hangs, are in a file for Prometheus.
        """
        pytest.importorskip("prometheus_client")
        file = tmp_path / "train.prom"

        main(["watch", "--wait-seconds", "5", "--metrics", str(file)])

        sense = watched.how["sense"]
        assert sense((os.getpid(),)).keys() == sense((os.getpid(),)).keys()
        text = file.read_text()
        assert 'distdebug_hangs_total{cause="' in text
        assert "distdebug_last_progress_timestamp_seconds" in text

    def test_healthy(self, watched, capsys, tmp_path):
        """
        A snapshot that finds nothing is shown, and is no hang.
        """
        watched.responses = [found(tmp_path, Cause.PROGRESSING)]

        assert 0 == main(["watch", "--wait-seconds", "5"])
        assert "REPORT" in capsys.readouterr().out

    def test_one_of_several(self, watched, tmp_path):
        """
        One hang is enough.
        """
        watched.calls = 2
        watched.responses.append(found(tmp_path, Cause.PROGRESSING))

        assert 1 == main(["watch"])

    def test_json(self, watched, capsys):
        """
        Each snapshot is one line.
        """
        watched.calls = 2
        watched.responses *= 2

        main(["watch", "--json", "--wait-seconds", "5"])

        lines = map(json.loads, capsys.readouterr().out.splitlines())
        assert [("watch", "io_wait")] * 2 == [
            (x["command"], x["verdict"]["cause"]) for x in lines
        ]

    @pytest.mark.parametrize("outcome", ["fine", "busy", "taken"])
    def test_nothing(self, watched, capsys, outcome):
        """
        What another watch does, or what is fine, is one line.
        """
        watched.responses = [Response(outcome, "it compiles")]

        status = main(["watch"])

        out, err = capsys.readouterr()
        assert (0, "") == (status, out)
        assert "it compiles" in err
        assert None not in watched.answers

    def test_next(self, watched, tmp_path):
        """
        The next snapshot is another one.
        """
        watched.calls = 2
        watched.responses *= 2

        main(["watch"])

        assert [set(), {tmp_path / "hang"}] == [
            set(order.but) for order in watched.orders
        ]

    def test_cannot_take(self, watched, capsys, caplog):
        """
        A disk that is full does not end the watch; but if nothing could be
        looked at, it is not said that all was well.
        """
        watched.error = OSError(28, "No space left on device")

        with caplog.at_level(logging.WARNING, "distdebug"):
            status = main(["watch"])

        assert 2 == status
        assert "No space left on device" in caplog.text
        assert "could not be inspected" in capsys.readouterr().err


class TestWhen:
    def test_only_progress(self, watched):
        """
        Without a wait, it goes on until the job is over.
        """
        watched.calls = 0

        status = main(["watch", "--floor", "20", "--start", "90"])

        assert 0 == status
        assert watched.config.enabled
        assert watched.config.wait_seconds[0] > 1e6
        assert (True, (), (), 5.0, None) == tuple(
            watched.how[name]
            for name in ("until_exit", "pids", "patterns", "poll_s", "sense")
        )
        sensor = watched.how["new_sensor"]()
        assert 90.0 == sensor.limit_s
        sensor.update(0.0, 1)
        sensor.update(1.0, 2)
        assert 20.0 == sensor.limit_s

    @pytest.mark.parametrize("ages", [(0, 90), (50, 40), (80, 20), (500, 20)])
    def test_late(self, watched, monkeypatch, capsys, ages):
        """
        The time for the start of a job counts from there, not from the watch.
        """
        (age_s, limit_s), watched.calls = ages, 0
        main(["watch", "--floor", "20", "--start", "90"])
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        monkeypatch.setattr(
            "distdebug.processes.first_start", lambda _: now - age_s
        )

        watched.how["tell"]((7,))

        sensor = watched.how["new_sensor"]()
        assert limit_s == pytest.approx(sensor.limit_s, abs=1)
        assert (limit_s > 20) == ("(--start)" in capsys.readouterr().err)

    @pytest.mark.parametrize(
        ("hangs", "told"),
        [
            (0, "it had seen nothing wrong yet"),
            (1, "something was wrong once"),
        ],
    )
    def test_stopped(self, watched, capsys, hangs, told):
        """
        Whoever stops it is told what it has seen.
        """
        watched.calls = hangs
        watched.ending = "interrupted"

        assert hangs == main(["watch"])

        assert f"the watch was stopped: {told}" in capsys.readouterr().err

    def test_whom(self, watched):
        """
        Processes are named by number, or by their command lines.
        """
        main(["watch", "--pid", "7", "--pid", "8", "--pattern", "train"])

        assert ([7, 8], ["train"]) == (
            watched.how["pids"],
            watched.how["patterns"],
        )

    @pytest.mark.parametrize(
        ("options", "until_exit"), [([], False), (["--until-exit"], True)]
    )
    def test_waits(self, watched, options, until_exit):
        """
        After the last wait it ends, or goes on if that is wished.
        """
        waits = ["--wait-seconds", "9", "--wait-seconds", "5"]

        main(["watch", *waits, *options])

        assert (5.0, 9.0) == watched.config.wait_seconds
        assert until_exit is watched.how["until_exit"]
        assert 10.0 == watched.how["poll_s"]

    def test_job_file(self, watched, tmp_path):
        """
        A job file says when to look, and where to write.
        """
        pytest.importorskip("yaml")
        job = tmp_path / "job.yaml"
        job.write_text("debug:\n  enabled: true\n  wait_seconds: [60, 120]\n")

        main(["watch", "--config", str(job), "--log-dir", "/logs"])

        assert (60.0, 120.0) == watched.config.wait_seconds
        assert "/logs/backtraces" == str(watched.orders[0].output_dir)

    def test_placeholder(self, watched):
        """
        The folder that is wished comes first, and may name that of the logs.
        """
        main(["watch", "--output-dir", "{log_dir}/x", "--log-dir", "/logs"])

        assert "/logs/x" == str(watched.orders[0].output_dir)

    @pytest.mark.parametrize("ending", ["off", "nobody"])
    def test_nobody(self, watched, capsys, ending):
        """
        If no process was watched, it is not said that all is well.
        """
        watched.ending, watched.calls = ending, 0

        assert 2 == main(["watch"])
        assert "nothing was watched" in capsys.readouterr().err

    def test_no_such_process(self, capsys):
        """
        A process that is not there is not waited for.
        """
        assert 2 == main(["watch", "--pid", "4194303"])

        err = capsys.readouterr().err
        assert "no such process: 4194303" in err
        assert "nothing was watched: no such process" in err

    def test_one_is_there(self, watched, capsys):
        """
        Of several, those are named that are not there.
        """
        us = str(os.getpid())

        main(["watch", "--pid", us, "--pid", "4194303"])

        err = capsys.readouterr().err
        assert "no such process: 4194303" in err
        assert f"no such process: {us}" not in err

    def test_no_floor(self, watched):
        """
        A floor that everything is above is refused.
        """
        assert 2 == main(["watch", "--floor", "1e-9"])
        assert watched.how is None


class TestTold:
    @pytest.fixture(name="tell")
    def _tell(self, watched, monkeypatch):
        """
        Names the processes that are watched.
        """
        watched.calls = 0
        main(["watch", "--floor", "30"])

        def tell(pids, workers):
            def find(**_):
                if workers is None:
                    raise OSError
                return workers

            monkeypatch.setattr("distdebug.processes.find_workers", find)
            watched.how["tell"](pids)

        return tell

    @pytest.mark.parametrize(
        ("pids", "ranks", "expected"),
        [
            ((), (), "no process to watch"),
            ((7,), None, "watching 1 process: 7;"),
            (range(9), (), "watching 9 processes: 0, 1, 2, 3, 4, 5, 6, 7, …;"),
            (
                (7, 8),
                ((7, 0, "torchrun"), (8, 1, "pattern"), (9, 2, "ray")),
                "ranks 0-1 of torchrun; no progress for 30 s counts",
            ),
            ((7,), ((7, 3, "pattern"),), "watching 1 process: rank 3;"),
        ],
    )
    def test_whom(self, tell, capsys, pids, ranks, expected):
        """
        Whom it watches is one line.
        """
        workers = None
        if ranks is not None:
            workers = [
                SimpleNamespace(pid=pid, rank=rank, framework=framework)
                for pid, rank, framework in ranks
            ]

        tell(pids, workers)

        assert expected in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("calls", "expected"),
        [
            (0, "nothing was wrong"),
            (1, "something was wrong once"),
            (2, "something was wrong 2 times"),
        ],
    )
    def test_end(self, watched, capsys, calls, expected):
        """
        At the end it says how it was.
        """
        watched.calls = calls
        watched.responses *= 2

        main(["watch"])

        assert f"have ended: {expected}" in capsys.readouterr().err

    def test_other_ending(self, watched, capsys):
        """
        Who stops before the processes end does not say how they ended.
        """
        watched.ending, watched.calls = "waited", 0

        assert 0 == main(["watch"])
        assert "have ended" not in capsys.readouterr().err


class TestSense:
    def test_progress(self, watched, tmp_path):
        """
        Files and folders show progress; what cannot be seen any more has not
        moved.
        """
        log = tmp_path / "train.log"

        main(["watch", "--progress", str(log), "--progress", "/none"])

        sense = watched.how["sense"]
        before = sense((7,))
        log.write_text("step 1")
        first, again = sense((7,)), sense((7,))
        log.write_text("step 1, step 2")
        second = sense((7,))
        log.unlink()
        assert before is None
        assert first == again
        assert first != second
        assert second == sense((7,))

    def test_gpu(self, watched, monkeypatch):
        """
        GPUs show progress too, of the processes that are there now.
        """
        seen = {(7,): None, (8,): 5}
        monkeypatch.setattr("distdebug.watching.GpuActivity", lambda: seen.get)

        main(["watch", "--gpu"])

        sense = watched.how["sense"]
        assert sense((7,)) is None
        assert 5 in sense((8,))
        assert 5 in sense((7,))


class TestHooks:
    @pytest.mark.process
    def test_called(self, watched, posted, tmp_path):
        """
        Commands and addresses get what was found.
        """
        out = tmp_path / "out"
        command = f"sh -c 'cat > {out}'"

        status = main(["watch", "--on-hang", command, "--webhook", "secret"])

        assert 1 == status
        assert "rank 3 is blocked" == json.loads(out.read_text())["summary"]
        assert [tmp_path / "hang"] == [hang.folder for hang in posted]

    def test_healthy(self, watched, posted, tmp_path):
        """
        Hooks are not called for what takes long, or is fine.
        """
        watched.calls = 2
        watched.responses = [
            found(tmp_path, Cause.PROGRESSING),
            found(tmp_path, Cause.CHECKPOINTING, "fine"),
        ]

        main(["watch", "--webhook", "secret"])

        assert [] == posted

    def test_mistake(self, watched, capsys):
        """
        A hook that cannot work is refused before anything is watched.
        """
        assert 2 == main(["watch", "--webhook", "/no/such/file"])
        assert "/no/such/file" in capsys.readouterr().err
        assert watched.how is None

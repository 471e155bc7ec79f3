"""
How logs are read for phases: files, folders, several of them, huge ones.
"""

from __future__ import annotations

import bz2
import gzip
import os

import pytest

from distdebug.errors import NoLogsError
from distdebug.logs import detect_phase
from distdebug.logs.phases.reader import TimelineReader


HEAD = "[2026-02-20 02:03:57] a.py:1 INFO Resolved config:\n"
READY = (
    "[2026-02-20 02:05:03] a.py:1 INFO Waiting for 2 training actors and 2 "
    "inference engines to initialize in parallel...\n"
)
BAR = "Multi-thread loading shards: {:3}% Completed | {}/64 [05:00<01:00,  4.8s/it]\n"
STEP = (
    "[2026-02-20 03:{:02}:{:02}] x.py:1 INFO TIMING step={}: fwd=1.0 bwd=2.0\n"
)
# Of so many bytes at the beginning, once training has begun, and at the end of
# a log each line is read; in between, what shows a change.
HEAD_SIZE, TRAINING_SIZE, TAIL_SIZE = 16 << 20, 1 << 20, 4 << 20


def steps(count, first=0):
    """
    Lines of training.
    """
    return "".join(
        STEP.format(i // 60 % 60, i % 60, i) for i in range(first, count)
    )


def chatter(size):
    """
    Many bytes of long lines that say nothing.
    """
    line = f"n1:1:2 [0] NCCL INFO Channel 00/0 : {'0[0] -> 1[1] ' * 3000}\n"
    return line * (size // len(line) + 1)


def test_path_and_text_and_lines(tmp_path):
    """
    A path, a text, lines, and an iterator of them give the same.
    """
    text = HEAD + READY + BAR.format(40, 26)
    log = tmp_path / "job.log"
    log.write_text(text)

    reports = [
        detect_phase(one)
        for one in (
            *(log, str(log), [log], [str(log)], tmp_path),
            *(text, text.splitlines(), iter(text.splitlines(keepends=True))),
        )
    ]

    assert {"engine_init"} == {report.current.name for report in reports}
    assert {26} == {report.progress.done for report in reports}
    assert {3} == {report.last_line.number for report in reports}
    assert {str(log), ""} == {report.last_line.source for report in reports}


def test_packed(tmp_path):
    """
    Packed logs are read, also if they were never finished.
    """
    log = tmp_path / "job.log.gz"
    log.write_bytes(gzip.compress((HEAD + READY).encode() * 3000)[:-200])

    report = detect_phase(log)

    assert "torchspec" == report.framework
    assert [str(log)] == [one.source for one in report.missing]
    assert "ended before" in report.missing[0].reason


def test_packed_too_much(tmp_path):
    """
    Of one that unpacks to more than any log, the beginning is read.
    """
    log = tmp_path / "job.log.bz2"
    log.write_bytes(bz2.compress(HEAD.encode() + bytes(17 << 20)))

    report = detect_phase(log)

    assert "config_dataset" == report.current.name
    assert "unpacks to more than" in report.missing[0].reason


def test_workers_beside_the_driver(tmp_path):
    """
    What the workers' own logs say is joined to what the driver's does.
    """
    driver, *workers = (tmp_path / f"{name}.log" for name in "dabc")
    driver.write_text(HEAD + READY)
    workers[0].write_text(BAR.format(100, 64))
    workers[1].write_text(BAR.format(40, 26))
    workers[2].write_text("nothing\n")

    report = detect_phase([driver, *workers])

    assert "engine_init" == report.current.name
    assert 26 == report.progress.done


def test_parts_of_several_logs(tmp_path):
    """
    Ranks that each write their own log are counted together.
    """
    driver = tmp_path / "driver.log"
    driver.write_text(HEAD + READY)
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text(
            f"[2026-02-20 02:05:4{rank}] a.py:1 INFO [Rank {rank}] Eagle3 "
            "model initialized with FSDP2\n"
        )

    report = detect_phase(tmp_path)

    state = report.phase("trainer_init")
    assert ("done", 2, 2) == (state.state, state.parts, state.of)


def test_restart_makes_other_logs_old(tmp_path):
    """
    What other logs said before the job was started again does not count.
    """
    driver = tmp_path / "driver.log"
    driver.write_text(
        HEAD
        + steps(3).replace("2026-02-20 03", "2026-02-20 02")
        + HEAD.replace("02:03:57", "09:00:00")
    )
    worker = tmp_path / "worker.log"
    worker.write_text(
        "[2026-02-20 02:04:00] a.py:1 INFO SglEngine rank 0: BEFORE init\n"
    )

    report = detect_phase([driver, worker])

    assert 2 == report.attempt
    assert "config_dataset" == report.current.name
    assert "not begun" == report.phase("engine_init").state


def test_end_of_another_attempt(tmp_path):
    """
    A job whose driver trains on is not over because an old log is.
    """
    old = tmp_path / "old.log"
    old.write_text("[2026-02-20 02:00:00] x INFO Training completed\n")
    new = tmp_path / "new.log"
    new.write_text(HEAD + steps(5))

    report = detect_phase([old, new])

    assert report.ended is None
    assert "training" == report.current.name


def test_bad_files(tmp_path):
    """
    A file that cannot be read does not lose the others.
    """
    good = tmp_path / "good.log"
    good.write_text(HEAD)
    bad = tmp_path / "bad.log.gz"
    bad.mkdir()
    os.mkfifo(tmp_path / "pipe")

    report = detect_phase([good, tmp_path / "none.log", tmp_path / "pipe"])

    assert "config_dataset" == report.current.name
    assert {"none.log", "pipe"} == {
        os.path.basename(one.source)  # noqa: PTH119 a text
        for one in report.missing
    }


def test_vanished(tmp_path, monkeypatch):
    """
    Neither does one that vanishes while it is read.
    """
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(HEAD)
    real_open = os.open

    def open_gone(path, *args, **options):
        if str(path).endswith("a.log"):
            raise FileNotFoundError(2, "gone", str(path))
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "open", open_gone)

    report = detect_phase(tmp_path)

    assert ["gone"] == [one.reason for one in report.missing]
    assert "config_dataset" == report.current.name


@pytest.mark.parametrize("what", ["none", "folder", "long"])
def test_no_logs(tmp_path, what):
    """
    Where there is no log, that is said.
    """
    (tmp_path / "folder").mkdir()
    path = "x" * 5000 if what == "long" else tmp_path / what

    with pytest.raises(NoLogsError, match="no log in") as caught:
        detect_phase(path)

    assert "folder of logs" in caught.value.remedy


def test_no_lines():
    """
    No lines are an empty log.
    """
    assert detect_phase([]).current is None
    assert detect_phase([3 * "x"]).current is None


def test_bar_over_itself(tmp_path):
    """
    A bar that wrote over itself for hours, without the end of a line, is
    read to its end.
    """
    log = tmp_path / "job.log"
    states = (
        f"Training: {i // 400:3}%|{' ' * 200}| {i}/40000 [00:01<01:00,  1.0it/s]"
        for i in range(2000)
    )
    log.write_text(HEAD + "\r" + "\r".join(states))

    report = detect_phase(log)

    assert 1999 == report.progress.done
    assert 2 == report.last_line.number


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_flood_of_states(tmp_path, monkeypatch, end):
    """
    Of millions of short states, some are read, which is told; the last one is
    among them.
    """
    read, read_line = [], TimelineReader._read_line
    monkeypatch.setattr(
        TimelineReader,
        "_read_line",
        lambda self, *args: read.append(1) or read_line(self, *args),
    )
    log = tmp_path / "job.log"
    log.write_text(HEAD + READY + f"1% {end}" * 700_000 + BAR.format(40, 26))

    report = detect_phase(log)

    assert 26 == report.progress.done
    assert len(read) < 150_000
    (missing,) = report.missing
    assert "short lines, were left out" in missing.reason


def test_prefix_of_a_bar():
    """
    All states of a bar in a line belong to who printed the line.
    """
    bar = "Multi-thread loading shards: {:3}% Completed | {}/9 [00:01<00:02]"
    glued = "\r".join(bar.format(n * 11, n) for n in range(10))

    report = detect_phase(
        [HEAD, READY, f"(SglEngine pid=7, ip=10.0.0.2) {glued}"]
    )

    assert 100 == report.percent
    assert 7 == report.last_line.origin.pid


def test_huge(tmp_path):
    """
    Of a huge log, the beginning and the end show all that matters.
    """
    log = tmp_path / "job.log"
    log.write_text(
        HEAD
        + READY
        + steps(20)
        + chatter(TRAINING_SIZE)
        + steps(8_000, 20)
        + chatter(TAIL_SIZE)
        + steps(8_010, 8_000)
    )

    report = detect_phase(log)

    assert "done" == report.phase("engine_init").state
    assert 8_009 == report.progress.done
    assert log.read_text().count("\n") == report.last_line.number


def test_huge_restarted(tmp_path):
    """
    A restart in the middle of a huge log is seen, and all that followed it.
    """
    log = tmp_path / "job.log"
    log.write_text(
        HEAD
        + READY
        + steps(20)
        + chatter(2 * TRAINING_SIZE)
        + steps(900, 20)
        + HEAD
        + READY
        + chatter(TRAINING_SIZE)
        + BAR.format(40, 26)
        + chatter(TAIL_SIZE + TRAINING_SIZE)
    )

    report = detect_phase(log)

    assert (2, "engine_init") == (report.attempt, report.current.name)
    assert "not begun" == report.phase("training").state
    assert 26 == report.progress.done


def test_huge_failure(tmp_path):
    """
    So is a failure in the middle.
    """
    log = tmp_path / "job.log"
    log.write_text(
        HEAD
        + steps(20)
        + chatter(2 * TRAINING_SIZE)
        + "OSError: [Errno 28] No space left on device\n"
        + steps(40, 20)
        + chatter(TAIL_SIZE)
    )

    report = detect_phase(log)

    assert ["disk_full"] == [finding.cause for finding in report.findings]


def test_huge_failure_among_alike(tmp_path):
    """
    A failure in the middle is found, with its line and its exception, also if
    thousands of lines before it hold a text of its rule and do not match.
    """
    log = tmp_path / "job.log"
    alike = "training goes on, the loss=0.25 is fine and so is all the rest\n"
    failure = (
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 7, in step\n'
        "RuntimeError: loss: nan\n"
    )
    text = HEAD + steps(20) + alike * (2 * TRAINING_SIZE // len(alike))
    lines = text.count("\n")
    log.write_text(text + failure + steps(40, 20) + chatter(TAIL_SIZE))

    report = detect_phase(log)

    (finding,) = report.findings
    assert "loss_not_finite" == finding.cause
    assert f"line {lines + 3}" == finding.evidence[0].location


def test_huge_start(tmp_path):
    """
    A phase that ends after gigabytes of chatter is seen to end, also if what
    begins it is repeated all the time.
    """
    log = tmp_path / "job.log"
    log.write_text(
        HEAD
        + READY
        + chatter(HEAD_SIZE)
        + (READY + chatter(1 << 18)) * 12
        + "[2026-02-20 02:06:03] a INFO All 2 training actors and 2 inference "
        "engines initialized\n" + chatter(TAIL_SIZE)
    )

    report = detect_phase(log)

    assert "done" == report.phase("engine_init").state
    assert "queues" == report.current.name


def test_long_line(tmp_path):
    """
    A line without an end is cut, and does no harm.
    """
    log = tmp_path / "job.log"
    log.write_text("x" * 600_000 + "\n" + HEAD + "y" * 600_000)

    report = detect_phase(log)

    assert "config_dataset" == report.current.name
    assert (2, 3) == (report.current.line.number, report.last_line.number)


def test_many_lines():
    """
    Lines that are given keep their numbers, however many there are.
    """
    lines = [*["y" * 99] * 9_000, HEAD, *["y" * 99] * 9_000]

    report = detect_phase(lines)

    assert 9_001 == report.current.line.number
    assert 18_001 == report.last_line.number


def test_many_steps():
    """
    Of a flood of steps, what comes between them and the last step of each
    process are read.
    """
    lines = [
        f"(RayTrainGroup pid={rank}) 2026-02-20 03:{step // 60:02}:"
        f"{step % 60:02} step {step}/9000 loss: {0.5 if step < 2999 else 'nan'}"
        for step in range(1, 3001)
        for rank in range(1, 5)
        if rank != 3 or step <= 2000
    ]
    lines.insert(8_000, "saving a checkpoint took 3 s")

    report = detect_phase([*lines, "bye"])

    assert "training" == report.current.name
    progress = report.current.progress
    assert (3000, 9000) == (progress.done, progress.total)
    assert ["loss_not_finite"] == [x.cause for x in report.findings]
    assert len(lines) + 1 == report.last_line.number

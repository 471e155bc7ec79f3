"""
How logs are read for phases: files, folders, several of them, huge ones.
"""

from __future__ import annotations

import gzip
import lzma
import os

import pytest

from distdebug._lines import files as lines_of_files
from distdebug.errors import NoLogsError
from distdebug.startup import blocks, detect_phase, follow, sieve
from distdebug.startup.blocks import Block, passages, read_blocks


HEAD = "[2026-02-20 02:03:57] a.py:1 INFO Resolved config:\n"
READY = (
    "[2026-02-20 02:05:03] a.py:1 INFO Waiting for 2 training actors and 2 "
    "inference engines to initialize in parallel...\n"
)
BAR = "Multi-thread loading shards: {:3}% Completed | {}/64 [05:00<01:00,  4.8s/it]\n"
STEP = (
    "[2026-02-20 03:{:02}:{:02}] x.py:1 INFO TIMING step={}: "
    "fwd=1.0 bwd=2.0 and more of the same to fill the line\n"
)


def steps(count, first=0):
    """
    Lines of training.
    """
    return "".join(
        STEP.format(i // 60 % 60, i % 60, i) for i in range(first, count)
    )


@pytest.fixture
def _small(monkeypatch):
    """
    What is read whole is little, so that small files count as huge.
    """
    monkeypatch.setattr(blocks, "_BLOCK", 1 << 12)
    monkeypatch.setattr(blocks, "_TAIL", 1 << 14)
    monkeypatch.setattr(sieve, "_HEAD", 1 << 14)
    monkeypatch.setattr(sieve, "_TRAINS", 1 << 13)


def test_path_and_text_and_lines(tmp_path):
    """
    A path, a text, lines, and an iterator of them tell the same.
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


def test_packed_too_much(tmp_path, monkeypatch):
    """
    Of one that unpacks to more than any log, the beginning is read.
    """
    monkeypatch.setattr(lines_of_files, "_LEAST_MOST", 1 << 20)
    log = tmp_path / "job.log.xz"
    log.write_bytes(lzma.compress(HEAD.encode() + bytes(100 << 20)))

    report = detect_phase(log)

    assert "config_dataset" == report.current.name
    assert "unpacks to more than" in report.missing[0].reason


def test_workers_beside_the_driver(tmp_path):
    """
    What the workers' own logs tell is joined to what the driver's does.
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
    What other logs told before the job was started again does not count.
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

    def read(path, **kwargs):
        if path.name == "a.log":
            raise FileNotFoundError(2, "gone", str(path))
        return read_blocks(path, **kwargs)

    monkeypatch.setattr(follow, "read_blocks", read)

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
        for i in range(8000)
    )
    log.write_text(HEAD + "\r" + "\r".join(states))

    report = detect_phase(log)

    assert 7999 == report.progress.done
    assert 2 == report.last_line.number


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


@pytest.mark.usefixtures("_small")
def test_huge(tmp_path):
    """
    Of a huge log, the beginning and the end tell all that matters.
    """
    log = tmp_path / "job.log"
    log.write_text(HEAD + READY + steps(20_000) + steps(20_010, 20_000))

    report = detect_phase(log)

    assert "done" == report.phase("engine_init").state
    assert 20_009 == report.progress.done
    assert 20_012 == report.last_line.number


@pytest.mark.usefixtures("_small")
def test_huge_restarted(tmp_path):
    """
    A restart in the middle of a huge log is seen, and what followed it.
    """
    log = tmp_path / "job.log"
    placed = "[2026-02-20 03:10:00] a INFO mooncake master actor started\n"
    log.write_text(HEAD + READY + steps(5000) + HEAD + placed + steps(5000))

    report = detect_phase(log)

    assert 2 == report.attempt
    assert "done" == report.phase("mooncake").state
    assert "not begun" == report.phase("engine_init").state
    assert 4999 == report.progress.done


@pytest.mark.usefixtures("_small")
def test_huge_failure(tmp_path):
    """
    So is a failure in the middle.
    """
    log = tmp_path / "job.log"
    log.write_text(
        HEAD
        + steps(5000)
        + "OSError: [Errno 28] No space left on device\n"
        + steps(5000)
    )

    report = detect_phase(log)

    assert ["disk_full"] == [finding.cause for finding in report.findings]


@pytest.mark.usefixtures("_small")
def test_huge_start(tmp_path):
    """
    A phase that ends after gigabytes of chatter is seen to end.
    """
    chatter = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P\n"
    log = tmp_path / "job.log"
    log.write_text(
        HEAD
        + READY
        + chatter * 3000
        + "[2026-02-20 02:06:03] a INFO All 2 training actors and 2 inference "
        "engines initialized\n" + chatter * 3000
    )

    report = detect_phase(log)

    assert "done" == report.phase("engine_init").state
    assert "queues" == report.current.name


def test_long_line(tmp_path, monkeypatch):
    """
    A line without an end is cut, and does no harm.
    """
    monkeypatch.setattr(blocks, "_BLOCK", 1 << 12)
    log = tmp_path / "job.log"
    log.write_text("x" * 300_000 + "\n" + HEAD + "y" * 300_000)

    report = detect_phase(log)

    assert "config_dataset" == report.current.name
    assert 3 == report.last_line.number


def test_lines_in_blocks(monkeypatch):
    """
    Lines are gathered into blocks, and keep their numbers.
    """
    monkeypatch.setattr(blocks, "_BLOCK", 8)

    found = list(read_blocks(["aaaa\n", "bbbb", "cccc"]))

    assert [Block(b"aaaa\nbbbb\n", 1), Block(b"cccc", 3)] == found


def test_all_are_asked_for(monkeypatch):
    """
    Only the end of a log is read without being asked for.
    """
    monkeypatch.setattr(blocks, "_TAIL", 3)
    given = [Block(text, 1) for text in (b"aa", b"bb", b"cc")]

    found = list(passages(given, lambda text: text == b"bb"))

    assert ["bb", "cc"] == [block.text for block in found]

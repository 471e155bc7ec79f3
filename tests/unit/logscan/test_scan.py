"""
What went wrong, as files of logs tell.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle

import pytest

from distdebug.errors import LogError, NoLogsError
from distdebug.findings import Cause
from distdebug.logscan import (
    blocks,
    files,
    gather,
    part,
    place,
    plan,
    scan,
    scan_logs,
)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
CLOSED = "RuntimeError: [pair.cc:547] Connection closed by peer [::1]:7\n"
TIMEOUT = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(\n"
FULL = "OSError: [Errno 28] No space left on device\n"


def write(folder, **texts):
    """
    Files of logs.
    """
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)


def causes(report):
    """
    The causes of the findings, in their order.
    """
    return [finding.cause for finding in report.findings]


def test_first_cause_first(tmp_path):
    """
    What brings a job down comes before what follows, however late it is told.
    """
    write(
        tmp_path,
        rank_0=CLOSED + "Sending process 7 closing signal SIGTERM\n",
        rank_1=TIMEOUT,
        rank_3=OOM,
    )

    report = scan_logs(tmp_path)

    assert Cause.GPU_OUT_OF_MEMORY == report.findings[0].cause
    assert (3,) == report.findings[0].ranks
    assert Cause.COLLECTIVE_TIMEOUT == report.findings[1].cause
    assert {Cause.NETWORK_FAILURE, Cause.KILLED} == set(causes(report)[2:])


def test_first_in_time_first(tmp_path):
    """
    Of two causes the earlier comes first, whatever its file is called.
    """
    write(
        tmp_path,
        a=f"2026-02-20 02:05:00 x\n{FULL}",
        b=f"2026-02-20 02:04:00 x\nno time here\n{OOM}",
    )

    report = scan_logs(tmp_path)

    assert [Cause.GPU_OUT_OF_MEMORY, Cause.DISK_FULL] == causes(report)
    assert 60 == report.groups[1].first.time - report.groups[0].first.time


def test_first_of_all_files(tmp_path):
    """
    The first of several lines is the first in time.
    """
    write(
        tmp_path,
        rank_1=f"2026-02-20 02:05:00 {FULL}",
        rank_2=f"2026-02-20 02:04:00 {FULL}",
        rank_3=f"2026-02-20 02:04:30 {FULL}",
    )

    (group,) = scan_logs(tmp_path).groups

    assert 2 == group.first.rank
    assert 1 == group.last.rank
    assert (1, 2, 3) == group.ranks
    assert 3 == len(group.files)
    assert 3 == group.count


def test_order_of_files(tmp_path):
    """
    Without times, the order of files and lines decides.
    """
    write(tmp_path, a=f"x\n{FULL}{OOM}", b=OOM)

    report = scan_logs(tmp_path)

    assert [Cause.DISK_FULL, Cause.GPU_OUT_OF_MEMORY] == causes(report)
    assert ["line 2", "line 3"] == [x.first.location for x in report.groups]


def test_ray(tmp_path):
    """
    Lines that Ray folded count as many, and tell who printed them.
    """
    write(
        tmp_path,
        driver=(
            "\x1b[36m(Actor(rank=5) pid=7, ip=10.0.0.2)\x1b[0m "
            f"{OOM.rstrip()} [repeated 17x across cluster]\n"
            f"(Other pid=8) {FULL}"
        ),
    )

    report = scan_logs(tmp_path)
    first, second = report.groups

    assert 17 == first.count
    assert (5,) == first.ranks
    assert ("10.0.0.2", 7) == (first.origins[0].ip, first.origins[0].pid)
    assert "Other (pid 8): a file" == report.findings[1].summary[:21]
    assert 1 == second.count


def test_torchrun_folder(tmp_path):
    """
    The folders of torchrun tell ranks, as long as they are of one node.
    """
    for rank in (0, 3):
        folder = tmp_path / "none_ab" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(OOM)

    (one,) = scan_logs(tmp_path).findings
    other = tmp_path / "none_cd" / "attempt_0" / "1"
    other.mkdir(parents=True)
    (other / "stderr.log").write_text(OOM)
    (two,) = scan_logs(tmp_path).findings

    assert (0, 3) == one.ranks
    assert () == two.ranks


@pytest.mark.parametrize(
    ("name", "text", "ranks"),
    [
        pytest.param("rank_3.log", OOM, (3,), id="file"),
        pytest.param("stdout-rank12.txt", OOM, (12,), id="file-2"),
        pytest.param("rank=7.log", OOM, (7,), id="file-3"),
        pytest.param("rank_1_of_rank_2.log", OOM, (), id="file-two"),
        pytest.param("job.log", f"[rank5]: {OOM}", (5,), id="torch"),
        pytest.param("job.log", f"[default2]:{OOM}", (2,), id="torchrun"),
        pytest.param("job.log", f"[Rank 6] {OOM}", (6,), id="text"),
        pytest.param("job.log", f"rank: 6 {OOM}", (6,), id="text-2"),
        pytest.param("job.log", f"local rank 6 {OOM}", (), id="local"),
        pytest.param(
            "job.log", f"[PG 1 Rank 0] {OOM}", (), id="rank-in-group"
        ),
        pytest.param(
            "rank_3.log", f"rank 5 says {OOM}", (3,), id="file-before-text"
        ),
        pytest.param("crank_3.log", OOM, (), id="other-word"),
        pytest.param(
            "job.log", f"(W rank=1 pid=9) {OOM}", (1,), id="vllm-worker"
        ),
    ],
)
def test_ranks(tmp_path, name, text, ranks):
    """
    Ranks are told by prefixes, by names of files, and by texts.
    """
    (tmp_path / name).write_text(text)

    (finding,) = scan_logs(tmp_path).findings

    assert ranks == finding.ranks


def test_folder_of_a_rank(tmp_path):
    """
    A folder may be called after a rank, too.
    """
    (tmp_path / "rank_9").mkdir()
    (tmp_path / "rank_9" / "stderr.log").write_text(OOM)

    (finding,) = scan_logs(tmp_path).findings

    assert (9,) == finding.ranks


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
    ids=["gz", "xz", "bz2"],
)
def test_packed(tmp_path, suffix, pack):
    """
    Packed logs are unpacked; one that is cut is read as far as it goes.
    """
    text = "".join(f"step {n} {n * n}\n" for n in range(50_000))
    packed = pack(f"{FULL}{text}{OOM}".encode())
    (tmp_path / f"a.log{suffix}").write_bytes(packed)
    (tmp_path / f"b.log{suffix}").write_bytes(packed[: len(packed) // 2])
    (tmp_path / f"c.log{suffix}").write_bytes(b"junk, not packed")

    report = scan_logs(tmp_path)

    assert Cause.GPU_OUT_OF_MEMORY in causes(report)
    assert Cause.DISK_FULL in causes(report)
    assert "line 50002" == report.groups[1].first.location
    missing = {m.source[-8 - len(suffix) + 3 :] for m in report.missing}
    assert 2 == len(missing)


def test_bomb(tmp_path, monkeypatch):
    """
    A packed file that holds far too much is not read to its end.
    """
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1000)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(bytes(100_000)))

    report = scan_logs(tmp_path)

    assert 1000 == report.bytes_read
    assert "only its first 1,000 bytes" in report.missing[0].reason


def test_most_bytes(tmp_path):
    """
    Where there is too much, small files are read whole and of others the end.
    """
    write(tmp_path, big="x" * 99_000 + "\n" + OOM, small=FULL)

    report = scan_logs(tmp_path, most_bytes=10_000)

    assert 10_000 == report.bytes_read
    assert {Cause.DISK_FULL, Cause.GPU_OUT_OF_MEMORY} == set(causes(report))
    (missing,) = report.missing
    assert missing.source.endswith("big.log")
    begin = 99_001 + len(OOM) + len(FULL) - 10_000
    assert f"first {begin:,} bytes were not read" in missing.reason
    oom = next(x for x in report.groups if x.rule == "CUDA out of memory")
    assert f"byte {99_001}" == oom.first.location


def test_junk(tmp_path):
    """
    Bytes that are no text, and lines without an end, do no harm.
    """
    (tmp_path / "a.log").write_bytes(
        bytes(range(256)) * 5_000
        + b"\n\x00\x00"
        + OOM.encode()
        + b"y" * 3_000_000
        + b" No space left on device "
        + b"y" * 3_000_000
    )

    report = scan_logs(tmp_path)

    assert {Cause.DISK_FULL, Cause.GPU_OUT_OF_MEMORY} == set(causes(report))
    assert all(len(f.evidence[0].quote) <= 320 for f in report.findings)
    assert str(report).isprintable() or "\x00" not in str(report)


def test_parts_of_a_file(tmp_path, monkeypatch):
    """
    However a file is divided, each line is found once, with its number.
    """
    monkeypatch.setattr(files, "_PART", 5_000)
    monkeypatch.setattr(blocks, "_SIZE", 1_000)
    monkeypatch.setattr(blocks, "AHEAD", 600)
    for module in (blocks, part, place):
        monkeypatch.setattr(module, "BEHIND", 500)
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/a.py", line 1, in f\n'
        "    f()\n"
        "ValueError: x\n"
    )
    text = "".join(
        f"step {n}\n" + (FULL if n % 7 == 0 else trace if n % 5 == 0 else "")
        for n in range(3_000)
    )
    write(tmp_path, a=text)

    report = scan_logs(tmp_path)
    (group,), (traces,) = report.groups, report.tracebacks
    rows = text.splitlines()

    assert text.count(FULL) == group.count
    assert text.count(trace) == traces.count
    assert rows.index(FULL.strip()) + 1 == group.first.line
    last = len(rows) - rows[::-1].index("Traceback (most recent call last):")
    assert last == traces.group.last.line
    assert ["ValueError: x"] == list(map(str, traces.errors))


def test_flood(tmp_path, monkeypatch):
    """
    Of very many lines of a kind only some are looked at; others are found.
    """
    monkeypatch.setattr(plan, "MOST_ALIKE", 50)
    monkeypatch.setattr(part, "MOST_ALIKE", 50)
    monkeypatch.setattr(part, "_MOST_IDLE", 100)
    monkeypatch.setattr(blocks, "_SIZE", 4_000)
    monkeypatch.setattr(blocks, "AHEAD", 600)
    for module in (blocks, part, place):
        monkeypatch.setattr(module, "BEHIND", 500)
    trace = (
        'Traceback (most recent call last):\n  File "a", line 1, in f\nX: y\n'
    )
    text = FULL * 1000 + trace * 1000 + FULL * 1000 + OOM
    write(tmp_path, a=text)

    report = scan_logs(tmp_path)
    full = next(x for x in report.groups if x.rule == "disk full")
    oom = next(x for x in report.groups if x.rule == "CUDA out of memory")

    assert full.is_more
    assert 50 == full.count
    assert report.tracebacks[0].group.is_more
    assert text.count("\n") == oom.first.line
    assert 3 == len(report.findings)
    assert "at least 50 times" in str(report)


def test_long_traceback(tmp_path):
    """
    Whatever follows a header, it is not read for ever.
    """
    write(tmp_path, a="Traceback (most recent call last):\n" + "  x\n" * 3_000)

    (group,) = scan_logs(tmp_path).groups

    assert "Python exception" == group.rule


def test_kinds(tmp_path, monkeypatch):
    """
    The number of kinds that are told apart is limited.
    """
    monkeypatch.setattr(gather, "_MOST_KINDS", 3)
    text = "".join(
        f'Traceback (most recent call last):\n  File "a", line 1, in f{n}x\n'
        "ValueError: y\nok\n"
        for n in range(9)
    )
    write(tmp_path, a=text)

    assert 3 == len(scan_logs(tmp_path).tracebacks)


def test_nobody(tmp_path):
    """
    Where there is no log, that is an error; files that are lost are told.
    """
    write(tmp_path, a=OOM)
    (tmp_path / "pipe.log").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "empty").mkdir()

    report = scan_logs(
        [tmp_path / "a.log", tmp_path / "none", tmp_path / "pipe.log"]
    )

    assert [Cause.GPU_OUT_OF_MEMORY] == causes(report)
    assert 2 == len(report.missing)
    with pytest.raises(NoLogsError, match="no logs there"):
        scan_logs(tmp_path / "empty")
    with pytest.raises(NoLogsError, match="No such file"):
        scan_logs(tmp_path / "none")


def test_unreadable(tmp_path, monkeypatch):
    """
    A file that cannot be read does not lose the others.
    """
    write(tmp_path, a=OOM, b=FULL)
    open_log = blocks.open_log

    def refuse(path):
        if path.endswith("a.log"):
            raise PermissionError(13, "Permission denied")
        return open_log(path)

    monkeypatch.setattr(blocks, "open_log", refuse)

    report = scan_logs(tmp_path)

    assert [Cause.DISK_FULL] == causes(report)
    assert "Permission denied" == report.missing[0].reason


def test_rotated_away(tmp_path, monkeypatch):
    """
    Nor does one that is gone when its turn comes.
    """
    write(tmp_path, a=OOM, b=FULL)
    walk_logs = files.walk_logs

    def walk(paths):
        walked = walk_logs(paths)
        yield from walked
        (tmp_path / "c.log").unlink(missing_ok=True)
        yield tmp_path / "c.log"

    class Walk(list):
        """
        The files, with nothing missing.
        """

        missing = ()

    monkeypatch.setattr(files, "walk_logs", lambda paths: Walk(walk(paths)))

    report = scan_logs(tmp_path)

    assert 2 == len(report.findings)
    assert "No such file" in report.missing[0].reason


def test_links(tmp_path):
    """
    A link out of the folder is not followed; a file is read once.
    """
    folder = tmp_path / "logs"
    folder.mkdir()
    write(tmp_path, secret=OOM)
    write(folder, a=FULL)
    (folder / "out.log").symlink_to(tmp_path / "secret.log")
    (folder / "again.log").symlink_to(folder / "a.log")

    report = scan_logs(folder)

    assert [1] == [group.count for group in report.groups]
    assert [Cause.DISK_FULL] == causes(report)


def test_tell(tmp_path):
    """
    Progress is told, up to the end.
    """
    write(tmp_path, a=OOM * 100, b=FULL)
    told = []

    scan_logs(tmp_path, tell=lambda *numbers: told.append(numbers))

    total = 100 * len(OOM) + len(FULL)
    assert (total, total) == told[-1]
    assert told == sorted(told)


def test_interrupted(tmp_path, monkeypatch):
    """
    Whoever interrupts does not wait until all is read.
    """
    monkeypatch.setattr(files, "_PART", 1_000)
    monkeypatch.setattr(scan, "_TELL_S", 0.0)
    write(tmp_path, a="x\n" * 100_000)
    told = []

    def tell(*numbers):
        told.append(numbers)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan_logs(tmp_path, tell=tell, threads=1)

    assert 1 == len(told)
    assert told[0][0] < told[0][1]


@pytest.mark.parametrize("name", ["most_bytes", "threads"])
def test_nonsense(tmp_path, name):
    """
    What makes no sense is refused.
    """
    with pytest.raises(LogError, match=f"{name} is at least 1"):
        scan_logs(tmp_path, **{name: 0})


def test_cores(monkeypatch):
    """
    There are never more threads than cores.
    """
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)

    assert 1 == scan._cores()


def test_plain_data(tmp_path):
    """
    A report is plain data, and can be pickled.
    """
    trace = (
        'Traceback (most recent call last):\n  File "a", line 1, in f\nX: y\n'
    )
    write(tmp_path, rank_0=f"[rank0]: {OOM}" + trace)

    report = scan_logs([tmp_path, tmp_path / "none"])
    data = json.loads(json.dumps(report.to_dict()))

    assert 2 == len(data["findings"]) == len(report.to_records())
    assert "gpu_out_of_memory" == data["groups"][0]["cause"]
    assert "X" == data["tracebacks"][0]["errors"][0]["type"]
    assert "log" == data["missing"][0]["what"]
    assert report == pickle.loads(pickle.dumps(report))


def test_text(tmp_path):
    """
    A report reads well on a terminal.
    """
    trace = (
        'Traceback (most recent call last):\n  File "a", line 1, in f\nX: y\n'
    )
    write(
        tmp_path,
        rank_3=OOM
        + trace
        + "UserWarning: hello\n"
        + "tokenizers: The current process just got forked\n",
        other="".join(f"NVRM: Xid (PCI:0): {n}, x\n" for n in range(200, 230)),
    )

    text = str(scan_logs([tmp_path, tmp_path / "none"]))

    assert "Rank 3: the memory of the GPU was full" == text.splitlines()[0]
    assert "more" in text
    assert "harmless: " in text
    assert "missing: log: No such file" in text
    assert "read: 2 files" in text


def test_text_of_nothing(tmp_path):
    """
    Where nothing went wrong, it says so.
    """
    write(tmp_path, a="step 1\n")

    report = scan_logs(tmp_path)

    assert str(report).startswith("nothing went wrong")
    assert report.findings == ()


def test_pretty(tmp_path):
    """
    Notebooks show the text.
    """
    write(tmp_path, a="step 1\n")
    report = scan_logs(tmp_path)

    class Printer(list):
        """
        What a notebook hands over.
        """

        text = list.append

    printer = Printer()
    report._repr_pretty_(printer, False)
    report._repr_pretty_(printer, True)

    assert [str(report), "..."] == printer


def test_exception_words(tmp_path):
    """
    An exception of its own kind is told with who raised it.
    """
    trace = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nX: y\n'
    write(tmp_path, rank_3=trace, job="ok\n" + trace.replace("in f", "in g"))

    report = scan_logs(tmp_path)

    assert ["A process raised X: y", "Rank 3 raised X: y"] == [
        x.summary for x in report.findings
    ]
    assert "f (a.py:1)" == report.findings[1].location.brief


def test_ignored(tmp_path):
    """
    What Python ignores at its end is harmless.
    """
    write(
        tmp_path,
        a="Exception ignored in: <function f>\n"
        'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nX: y\n',
    )

    report = scan_logs(tmp_path)

    assert () == report.findings
    assert {"exception that Python ignored": 1} == report.harmless


@pytest.mark.parametrize("word", ["killed", "SIGTERM", "Traceback"])
def test_flood_in_vain(tmp_path, monkeypatch, word):
    """
    Lines that hold a word and tell nothing are soon not looked at any more,
    which the report says; but the end of a file always is.
    """
    monkeypatch.setattr(part, "_MOST_IDLE", 50)
    monkeypatch.setattr(part, "_END", 2_000)
    monkeypatch.setattr(part, "_PIECE", 1_000)
    looked = []
    monkeypatch.setattr(
        part, "_event", spy(part._event, lambda *_: looked.append(1))
    )
    if word == "Traceback":
        word = "Traceback (most recent call last)"
    text = "".join(f"trial {k} of no {word} at all\n" for k in range(5_000))
    write(tmp_path, a=text + "bash: line 1:  77 Killed  python\n" + OOM)

    report = scan_logs(tmp_path)

    assert 500 > len(looked)
    assert {Cause.KILLED, Cause.GPU_OUT_OF_MEMORY} == set(causes(report))
    (missing,) = report.missing
    assert f"'{word.lower()}'" in missing.reason


def spy(function, note):
    """
    The same function, and each call is noted.
    """

    def noted(*args):
        note(*args)
        return function(*args)

    return noted


def test_flood_pauses(tmp_path, monkeypatch):
    """
    A word of a flood is looked for again, so that what follows is found.
    """
    monkeypatch.setattr(part, "_MOST_IDLE", 50)
    monkeypatch.setattr(part, "_PAUSE", 1_000)
    monkeypatch.setattr(part, "_LONGEST_PAUSE", 2_000)
    monkeypatch.setattr(part, "_END", 10)
    monkeypatch.setattr(part, "_PIECE", 500)
    vain = "".join(f"trial {k} was killed, and so on\n" for k in range(500))
    text = vain + "a quiet line\n" * 500 + "Killed\n" + "quiet\n" * 100
    write(tmp_path, a=text)

    report = scan_logs(tmp_path)

    assert [Cause.KILLED] == causes(report)
    assert 1_001 == report.groups[0].first.line


def test_flood_that_tells(tmp_path, monkeypatch):
    """
    A word that tells something now and then is always looked for.
    """
    monkeypatch.setattr(part, "_MOST_IDLE", 50)
    monkeypatch.setattr(part, "_END", 10)
    monkeypatch.setattr(part, "_PIECE", 500)
    text = ("trial 7 was killed, and so on\n" * 30 + "Killed\n") * 20
    write(tmp_path, a=text + "quiet\n" * 100)

    report = scan_logs(tmp_path)

    assert [20] == [x.count for x in report.groups]
    assert () == report.missing


@pytest.mark.parametrize(
    "newline", ["\n", "\r\n", "\r"], ids=["unix", "dos", "bar"]
)
def test_pieces(tmp_path, monkeypatch, newline):
    """
    Wherever the pieces end in which words are looked for, each line counts
    once.
    """
    text = newline.join([*(f"{OOM.strip()} {k}" for k in range(40)), ""])
    (tmp_path / "a.log").write_bytes(text.encode())
    counts = set()

    for size in range(1, 200, 7):
        monkeypatch.setattr(part, "_PIECE", size)
        counts |= {x.count for x in scan_logs(tmp_path).groups}

    assert {40} == counts


def test_one_timeout(tmp_path):
    """
    Ranks that gave up in the same call are one group, however each words it.
    """
    trace = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line {0}, in {1}\n'
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:{0}] Timed out "
        "waiting 8000ms for {1} operation to complete\n"
    )
    write(
        tmp_path,
        rank_0=trace.format(78, "recv"),
        rank_1=trace.format(129, "send"),
        rank_2=trace.format(129, "send").splitlines(keepends=True)[-1],
    )

    report = scan_logs(tmp_path)

    (finding,) = report.findings
    assert Cause.COLLECTIVE_TIMEOUT == finding.cause
    assert (0, 1, 2) == finding.ranks


def test_count_of_lines(tmp_path):
    """
    Lines are counted as lines, and tracebacks as times.
    """
    trace = (
        'Traceback (most recent call last):\n  File "a", line 1, in f\nX: y\n'
    )
    write(tmp_path, a=OOM * 3 + trace * 2)

    summaries = [x.summary for x in scan_logs(tmp_path).findings]

    assert summaries[0].endswith("(3 lines)")
    assert summaries[1].endswith("(2 times)")

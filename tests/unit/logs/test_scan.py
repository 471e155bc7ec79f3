"""
What went wrong, as files of logs show.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import threading

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.causes import Cause
from distdebug.errors import LogError, NoLogsError
from distdebug.logs import scan_logs


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
CLOSED = "RuntimeError: [pair.cc:547] Connection closed by peer [::1]:7\n"
TIMEOUT = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(\n"
FULL = "OSError: [Errno 28] No space left on device\n"
TRACE = """\
Traceback (most recent call last):
  File "/a.py", line 1, in f
    f()
X: y
"""
# What a thread reads at once, and what of it is searched for words at once.
BLOCK, PIECE = (1 << 22) + (1 << 15), 1 << 19
# What is read behind a block, for what begins at its end.
AHEAD = 1 << 17


def causes(report):
    """
    The causes of the findings, in their order.
    """
    return [finding.cause for finding in report.findings]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (
            {
                "rank_0": CLOSED
                + "Sending process 7 closing signal SIGTERM\n",
                "rank_1": TIMEOUT,
                "rank_3": OOM,
            },
            [
                *("gpu_out_of_memory", "collective_timeout"),
                *("network_failure", "killed"),
            ],
        ),
        (
            {
                "a": f"2026-02-20 02:05:00 x\n{FULL}",
                "b": f"2026-02-20 02:04:00 x\nno time here\n{OOM}",
            },
            ["gpu_out_of_memory", "disk_full"],
        ),
        (
            {"a": f"x\n{FULL}{OOM}", "b": OOM},
            ["disk_full", "gpu_out_of_memory"],
        ),
    ],
    ids=["cause", "time", "place"],
)
def test_first_cause_first(scan, logs, expected):
    """
    What brings a job down comes before what follows; of what is alike, the
    earlier comes first; without times, the order of files and lines decides.
    """
    report = scan(**logs)

    assert expected == causes(report)


def test_first_of_all_files(scan):
    """
    The first of several lines is the first in time.
    """
    report = scan(
        rank_1=f"2026-02-20 02:05:00 {FULL}",
        rank_2=f"2026-02-20 02:04:00 {FULL}",
        rank_3=f"2026-02-20 02:04:30 {FULL}",
    )

    (group,) = report.groups
    assert (2, 1) == (group.first.rank, group.last.rank)
    assert 60 == group.last.time - group.first.time
    assert (1, 2, 3) == group.ranks
    assert (3, 3) == (len(group.files), group.count)


def test_ray(scan):
    """
    Lines that Ray folded count as many, and say who printed them.
    """
    report = scan(
        "\x1b[36m(Actor(rank=5) pid=7, ip=10.0.0.2)\x1b[0m "
        f"{OOM.rstrip()} [repeated 17x across cluster]\n"
        f"(Other pid=8) {FULL}"
    )

    first, second = report.groups
    assert (17, 1) == (first.count, second.count)
    assert (5,) == first.ranks
    assert ("10.0.0.2", 7) == (first.origins[0].ip, first.origins[0].pid)
    assert "Other (pid 8): a file" == report.findings[1].summary[:21]


def test_torchrun_folder(tmp_path):
    """
    The folders of torchrun show ranks, as long as they are of one node.
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


RANKS = [
    ("rank_3.log", OOM, (3,)),
    ("stdout-rank12.txt", OOM, (12,)),
    ("rank=7.log", OOM, (7,)),
    ("rank_9/stderr.log", OOM, (9,)),
    ("rank_1_of_rank_2.log", OOM, ()),
    ("crank_3.log", OOM, ()),
    ("job.log", f"[rank5]: {OOM}", (5,)),
    ("job.log", f"[default2]:{OOM}", (2,)),
    ("job.log", f"(W rank=1 pid=9) {OOM}", (1,)),
    ("job.log", f"[Rank 6] {OOM}", (6,)),
    ("job.log", f"rank: 6 {OOM}", (6,)),
    ("job.log", f"local rank 6 {OOM}", ()),
    ("job.log", f"[PG 1 Rank 0] {OOM}", ()),
    ("rank_3.log", f"rank 5 says {OOM}", (3,)),
]


@pytest.mark.parametrize(
    ("name", "text", "ranks"),
    RANKS,
    # A folder is called after the test, and must not name a rank.
    ids=range(len(RANKS)),
)
def test_ranks(tmp_path, name, text, ranks):
    """
    Ranks are known from prefixes, names of files and folders, and texts.
    """
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)

    (finding,) = scan_logs(tmp_path).findings

    assert ranks == finding.ranks


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

    assert {Cause.GPU_OUT_OF_MEMORY, Cause.DISK_FULL} == set(causes(report))
    assert "line 50002" == report.groups[1].first.location
    assert {f"b.log{suffix}", f"c.log{suffix}"} == {
        Path(missing.source).name for missing in report.missing
    }


def test_bomb(tmp_path):
    """
    A packed file that holds far too much is not read to its end.
    """
    data = OOM.encode() + bytes(17 << 20)
    (tmp_path / "a.log.bz2").write_bytes(bz2.compress(data))

    report = scan_logs(tmp_path)

    assert 17 << 20 > report.bytes_read
    assert [Cause.GPU_OUT_OF_MEMORY] == causes(report)
    assert "unpacks to more than 16.0 MiB" in report.missing[0].reason


def test_most_bytes_of_a_packed_file(tmp_path):
    """
    Of a packed file the beginning is read, as far as it is allowed to.
    """
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(bytes(100_000)))

    report = scan_logs(tmp_path, most_bytes=50)

    assert 50 == report.bytes_read
    assert "only its first 50 bytes" in report.missing[0].reason


def test_most_bytes(tmp_path):
    """
    Where there is too much, small files are read whole and of others the end.
    """
    (tmp_path / "big.log").write_text("x" * 99_000 + "\n" + OOM)
    (tmp_path / "small.log").write_text(FULL)

    report = scan_logs(tmp_path, most_bytes=10_000)

    assert 10_000 == report.bytes_read
    assert {Cause.DISK_FULL, Cause.GPU_OUT_OF_MEMORY} == set(causes(report))
    (missing,) = report.missing
    assert missing.source.endswith("big.log")
    begin = 99_001 + len(OOM) + len(FULL) - 10_000
    assert f"first {begin:,} bytes were not read" in missing.reason
    oom = next(x for x in report.groups if x.rule == "CUDA out of memory")
    assert f"byte {99_001}" == oom.first.location


def test_junk(scan):
    """
    Bytes that are no text, and lines without an end, do no harm.
    """
    report = scan(
        bytes(range(256)) * 5_000
        + b"\n\x00\x00"
        + OOM.encode()
        + b"y" * 3_000_000
        + b" No space left on device "
        + b"y" * 3_000_000
    )

    assert {Cause.DISK_FULL, Cause.GPU_OUT_OF_MEMORY} == set(causes(report))
    assert all(len(f.evidence[0].quote) <= 320 for f in report.findings)
    assert str(report).replace("\n", "").isprintable()


@pytest.mark.parametrize("shift", range(0, 150, 12))
def test_many_blocks_of_a_file(scan, monkeypatch, shift):
    """
    However a file is divided into blocks, each line is found once, with its
    number, and none of a traceback that begins in another block.
    """
    # Really, blocks have 4 MiB.
    monkeypatch.setattr("distdebug.logs.engine._BLOCK_BYTES", 500)
    monkeypatch.setattr("distdebug.logs.engine.BYTES_AFTER", 200)
    trace = TRACE.replace("X: y\n", FULL)
    text = "x" * shift + "".join(
        f"step {n}\n" + (FULL if n % 7 == 0 else trace if n % 5 == 0 else "")
        for n in range(400)
    )

    report = scan(text)

    (group,), (traces,) = report.groups, report.tracebacks
    rows = text.splitlines()
    last = len(rows) - rows[::-1].index("Traceback (most recent call last):")
    assert text.count(trace) == traces.count
    assert text.count(FULL) - text.count(trace) == group.count
    assert rows.index(FULL.strip()) + 1 == group.first.line
    assert last == traces.group.last.line
    assert [FULL.strip()] == list(map(str, traces.errors))


@pytest.mark.parametrize("before", range(0, len(FULL + TRACE) + 9, 12))
def test_blocks_of_a_file(scan, before):
    """
    Where a block ends that is read at once, each line is found once, too.
    """
    filler = f"{'step loss 1 ' * 85}\n" * (BLOCK // 1000 + 1)
    found = FULL + TRACE
    text = f"\n{filler[-(BLOCK - before) :]}{found}"
    text += f"{filler[-(AHEAD - len(found)) :]}{found}{filler[: 2 * AHEAD]}\n"

    report = scan(text)

    (group,), (traces,) = report.groups, report.tracebacks
    row = text[: text.index(FULL)].count("\n") + 1
    assert (2, row) == (group.count, group.first.line)
    assert (2, row + 1) == (traces.count, traces.group.first.line)
    assert ["X: y"] == list(map(str, traces.errors))


def test_flood(scan, monkeypatch):
    """
    Of very many lines of a kind only some are looked at; others are found.
    """
    # Really, 2,000, and as many tracebacks take seconds to read.
    monkeypatch.setattr("distdebug.logs.scan._MOST_PER_RULE", 50)
    text = FULL * 100 + TRACE * 100 + FULL * 100 + OOM

    report = scan(text)

    groups = {group.rule: group for group in report.groups}
    assert groups["disk full"].is_more
    assert 50 == groups["disk full"].count
    assert report.tracebacks[0].group.is_more
    assert text.count("\n") == groups["CUDA out of memory"].first.line
    assert 3 == len(report.findings)
    assert "at least 50 times" in str(report)


def test_flood_of_hours(scan, monkeypatch):
    """
    In a long flood, lines are looked at again, and as what they are.
    """
    # Really, after 128 MiB, in blocks of 4 MiB.
    monkeypatch.setattr("distdebug.logs.scan._MOST_PER_RULE", 50)
    monkeypatch.setattr("distdebug.logs.scan._FORGOTTEN_AFTER", 20_000)
    monkeypatch.setattr("distdebug.logs.engine._BLOCK_BYTES", 6_000)
    monkeypatch.setattr("distdebug.logs.engine.BYTES_AFTER", 500)
    line = "n1:7:9 [0] NCCL WARN socketStartConnect: Connection refused\n"

    (group,) = scan(line * 1_000).groups

    assert "peer not reached by NCCL" == group.rule
    assert 100 <= group.count < 300
    assert group.is_more


def test_flood_of_lines(scan):
    """
    Of each kind at least 2,000 lines are counted.
    """
    report = scan(FULL * 2_050)

    assert [2_000] == [group.count for group in report.groups]


def test_long_traceback(scan):
    """
    Whatever follows a header, it is not read for ever.
    """
    report = scan("Traceback (most recent call last):\n" + "  x\n" * 3_000)

    assert ["Python exception"] == [group.rule for group in report.groups]


def test_kinds(scan, tmp_path):
    """
    The number of kinds that are distinguished is limited.
    """
    rules = tmp_path / "mine.toml"
    rules.write_text(
        "".join(
            f"[[rule]]\nname = '{name}'\nwords = ['{name}']\nsays = 'x'\n"
            f"pattern = '{name} (?P<key>[0-9]+)'\n"
            for name in ("apples", "pears")
        )
    )

    report = scan(
        "".join(f"apples {n}\npears {n}\n" for n in range(1_100)),
        rules=[rules],
    )

    assert 2_000 == len(report.groups)


def test_missing(tmp_path):
    """
    Where there is no log, that is an error; files that are lost are reported.
    """
    (tmp_path / "a.log").write_text(OOM)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "empty").mkdir()

    report = scan_logs(
        [tmp_path / "a.log", tmp_path / "none", tmp_path / "pipe.log"]
    )

    assert [Cause.GPU_OUT_OF_MEMORY] == causes(report)
    assert 2 == len(report.missing)
    with pytest.raises(NoLogsError, match="no log in"):
        scan_logs(tmp_path / "empty")
    with pytest.raises(NoLogsError, match="No such file"):
        scan_logs(tmp_path / "none")


def test_unreadable(scan, monkeypatch):
    """
    A file that cannot be read does not lose the others.
    """
    real_open = os.open

    def refuse(path, *args, **options):
        if str(path).endswith("a.log"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)

    report = scan(a=OOM, b=FULL)

    assert [Cause.DISK_FULL] == causes(report)
    assert ["Permission denied"] == [x.reason for x in report.missing]


def cut(path):
    """
    Leave little of a file.
    """
    os.truncate(path, len(FULL))


@pytest.mark.parametrize(
    ("change", "reasons"),
    [(os.unlink, ["No such file or directory"]), (cut, [])],
    ids=["gone", "cut"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
def test_rotated_away(scan, monkeypatch, change, reasons, is_late):
    """
    Nor does one that is gone, or shorter, when its turn comes.
    """
    real_stat = Path.stat

    def stat(path, **options):
        is_it = path.name == "c.log"
        if is_it and not is_late:
            change(path)
        status = real_stat(path, **options)
        if is_it and is_late:
            change(path)
        return status

    monkeypatch.setattr(Path, "stat", stat)

    report = scan(a=OOM, b=FULL, c=FULL * 9)

    assert 2 == len(report.findings)
    assert reasons == [x.reason for x in report.missing]


def test_links(tmp_path):
    """
    A link out of the folder is not followed; a file is read once.
    """
    folder = tmp_path / "logs"
    folder.mkdir()
    (tmp_path / "secret.log").write_text(OOM)
    (folder / "a.log").write_text(FULL)
    (folder / "out.log").symlink_to(tmp_path / "secret.log")
    (folder / "again.log").symlink_to(folder / "a.log")

    report = scan_logs(folder)

    assert [1] == [group.count for group in report.groups]
    assert [Cause.DISK_FULL] == causes(report)


def test_tell(tmp_path):
    """
    Progress is reported, up to the end.
    """
    (tmp_path / "a.log").write_text(OOM * 100)
    (tmp_path / "b.log").write_text(FULL)
    calls = []

    scan_logs(tmp_path, tell=lambda *numbers: calls.append(numbers))

    total = 100 * len(OOM) + len(FULL)
    assert (total, total) == calls[-1]
    assert calls == sorted(calls)


def test_interrupted(tmp_path, monkeypatch):
    """
    An interrupt does not wait until all is read, and leaves no thread.
    """
    for n in range(20):
        with (tmp_path / f"rank{n:02}.log").open("wb") as file:
            file.truncate(1 << 24)
    real_open, opened = os.open, []

    def note(path, *args, **options):
        opened.append(path)
        return real_open(path, *args, **options)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", note)

    with pytest.raises(KeyboardInterrupt):
        scan_logs(tmp_path, tell=interrupt, threads=1)

    assert 20 > len(opened)
    assert not any("distdebug" in x.name for x in threading.enumerate())


@pytest.mark.parametrize("name", ["most_bytes", "threads"])
def test_nonsense(tmp_path, name):
    """
    What makes no sense is refused.
    """
    with pytest.raises(LogError, match=f"{name} is at least 1"):
        scan_logs(tmp_path, **{name: 0})


def test_cores(tmp_path, monkeypatch):
    """
    There are never more threads than cores.
    """
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    names = set()
    for n in range(20):
        (tmp_path / f"{n}.log").write_text(OOM * 100)

    scan_logs(
        tmp_path,
        tell=lambda *_: names.update(x.name for x in threading.enumerate()),
    )

    assert ["distdebug-logs_0"] == [x for x in names if "logs" in x]


def test_plain_data(tmp_path):
    """
    A report is plain data, and can be pickled.
    """
    (tmp_path / "rank_0.log").write_text(f"[rank0]: {OOM}{TRACE}")

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
    (tmp_path / "rank_3.log").write_text(
        f"{OOM}{TRACE}UserWarning: hello\n"
        "tokenizers: The current process just got forked\n"
    )
    (tmp_path / "other.log").write_text(
        "".join(f"NVRM: Xid (PCI:0): {n}, x\n" for n in range(200, 230))
    )

    text = str(scan_logs([tmp_path, tmp_path / "none"]))

    assert "rank 3: the GPU ran out of memory" == text.splitlines()[0]
    assert "more" in text
    assert "harmless: " in text
    assert "note: log: No such file" in text
    assert "read: 2 files" in text


def test_nothing(scan):
    """
    Where nothing went wrong, the report says so; notebooks show its text.
    """
    report = scan("step 1\n")
    printer = SimpleNamespace(text=[].append)
    shown = printer.text.__self__

    report._repr_pretty_(printer, False)
    report._repr_pretty_(printer, True)

    assert str(report).startswith("nothing suspicious")
    assert [str(report), "..."] == shown
    assert () == report.findings


def test_exception_words(scan):
    """
    An exception of its own kind is reported with who raised it.
    """
    report = scan(rank_3=TRACE, job="ok\n" + TRACE.replace("in f", "in g"))

    assert [
        "a process raised X: y at g (a.py:1)",
        "rank 3 raised X: y at f (a.py:1)",
    ] == [x.summary for x in report.findings]
    assert "f (a.py:1)" == report.findings[1].location.brief


def test_ignored(scan):
    """
    What Python ignores at its end is harmless.
    """
    report = scan(f"Exception ignored in: <function f>\n{TRACE}")

    assert () == report.findings
    assert {"exception that Python ignored": 1} == report.harmless


@pytest.mark.parametrize(
    ("word", "real"),
    [
        ("killed", "bash: line 1:  77 Killed  python\n"),
        ("sigterm", "received SIGTERM\n"),
        ("traceback (most recent call last)", TRACE),
    ],
    ids=["killed", "sigterm", "traceback"],
)
def test_flood_in_vain(scan, word, real):
    """
    Lines that hold a word and say nothing are soon not looked at any more,
    which the report says; but the end of a file always is.
    """
    vain = f"{'x' * 250} of no {word} at all\n"

    report = scan(vain * 6_000 + real + vain * 9_000 + real + OOM)

    groups = [*report.groups, *(x.group for x in report.tracebacks)]
    assert [(1, 15_000), (1, 15_000)] == [
        (x.count, x.first.line // 1_000 * 1_000) for x in groups
    ]
    (missing,) = report.missing
    assert f"'{word}'" in missing.reason


def test_flood_pauses(scan):
    """
    A word of a flood is looked for again, so that what follows is found.
    """
    vain = f"{'x' * 99} was killed, and so on\n" * 5_000
    quiet = f"{'quiet ' * 99}\n" * 3_000

    report = scan(f"{vain}{quiet}Killed\n{quiet}")

    assert [Cause.KILLED] == causes(report)
    assert 8_001 == report.groups[0].first.line


def test_flood_that_tells(scan):
    """
    A word that matters now and then is always looked for.
    """
    vain = f"{'x' * 99} was killed, and so on\n" * 300
    quiet = f"{'quiet ' * 99}\n" * 2_000

    report = scan(f"{vain}Killed\n" * 20 + quiet)

    assert [20] == [x.count for x in report.groups]
    assert () == report.missing


@pytest.mark.parametrize(
    "newline", ["\n", "\r\n", "\r"], ids=["unix", "dos", "bar"]
)
def test_pieces(scan, newline):
    """
    Wherever the pieces end in which words are looked for, each line counts
    once.
    """
    filler = f"{'-' * 99}\n" * (PIECE // 100 + 1)
    lines = newline.join(["Killed", OOM.strip(), "Killed", OOM.strip(), ""])

    counts = {
        tuple(x.count for x in scan(f"{filler[size:PIECE]}\n{lines}").groups)
        for size in range(0, len(lines) + 9, 5)
    }

    assert {(2, 2)} == counts


def test_one_timeout(scan):
    """
    Ranks that gave up in the same call are one group, however each words it.
    """
    trace = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line {0}, in {1}\n'
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:{0}] Timed out "
        "waiting 8000ms for {1} operation to complete\n"
    )

    report = scan(
        rank_0=trace.format(78, "recv"),
        rank_1=trace.format(129, "send"),
        rank_2=trace.format(129, "send").splitlines(keepends=True)[-1],
    )

    (finding,) = report.findings
    assert Cause.COLLECTIVE_TIMEOUT == finding.cause
    assert (0, 1, 2) == finding.ranks


def test_count_of_lines(scan):
    """
    Lines are counted as lines, and tracebacks as times.
    """
    report = scan(OOM * 3 + TRACE * 2)

    lines, times = (x.summary for x in report.findings)
    assert lines.endswith("(3 lines)")
    assert times.endswith("(2 times)")


def test_last_of_files(tmp_path):
    """
    The last line of an error is that of the file which ends later.
    """
    error = "CUDA error: an illegal memory access was encountered"
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text(f"2026-11-20 10:00:09 {error}\n")
    second.write_text(f"{error}\n2026-11-20 10:00:01 {error}\n")

    (found,) = scan_logs(tmp_path).findings

    assert str(first) in {e.source for e in found.evidence}
    assert "10:00:01" not in " ".join(e.quote for e in found.evidence)

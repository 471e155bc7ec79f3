"""
Lines of logs: prefixes, times, junk, and files that are none.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import time

from datetime import UTC, datetime

import pytest

from hypothesis import given
from hypothesis import strategies as st

from distdebug.logs import lines as files_module
from distdebug.logs.lines import (
    LogLine,
    LogWalk,
    Origin,
    open_log,
    parse_line,
    parse_time,
    read_lines,
    read_tail,
)


def local(*parts):
    """
    A time of this machine, in seconds since the epoch.
    """
    return time.mktime((*parts, 0, 0, -1))


NOW = local(2026, 3, 1, 12, 0, 0)
# So much is read at once.
BLOCK = 1 << 18
PACKERS = pytest.mark.parametrize(
    ("suffix", "pack"),
    [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)],
    ids=["gz", "bz2", "xz"],
)
# Prefixes of launchers, and what each says of who printed the line.
PREFIXES = {
    "(A pid=1) ": {"name": "A", "pid": 1},
    "(A pid=2, ip=fd00::1)": {"name": "A", "pid": 2, "ip": "fd00::1"},
    "(N(rank=0) pid=3976) ": {"name": "N(rank=0)", "pid": 3976, "rank": 0},
    "(Worker_rank3 pid=4) ": {"name": "Worker_rank3", "pid": 4, "rank": 3},
    "(dp_rank_3 pid=4) ": {"name": "dp_rank_3", "pid": 4},
    "(N(pid=x) pid=5)": {"name": "N(pid=x)", "pid": 5},
    "(pid=33) ": {"pid": 33},
    "(raylet, ip=10.0.0.3) ": {"name": "raylet", "ip": "10.0.0.3"},
    "(autoscaler +1m3s) ": {"name": "autoscaler"},
    "(pid=gcs_server) ": {"name": "gcs_server"},
    "[rank3]: ": {"rank": 3},
    "[rank: 3] ": {"rank": 3},
    "[default2]:": {"local_rank": 2},
    "[local_rank2]:": {"local_rank": 2},
}


def lines_of(log):
    """
    The numbers and texts of the lines of a log.
    """
    return [(line.number, line.text) for line in read_lines(log)]


class TestOrigin:
    @pytest.mark.parametrize("prefix", PREFIXES)
    def test_prefix(self, prefix):
        """
        The prefix of a launcher says who printed a line.
        """
        got = parse_line(f"\x1b[36m{prefix}\x1b[0mtext")

        assert LogLine(text="text", origin=Origin(**PREFIXES[prefix])) == got

    @given(st.lists(st.sampled_from(list(PREFIXES)), min_size=1, max_size=4))
    def test_nested(self, prefixes):
        """
        Of prefixes inside each other, each adds what it says, and the last
        counts.
        """
        # What is the system's own stands inside of others.
        prefixes.sort(key=lambda x: "pid=" not in x or "server" in x)
        origin = {}
        for prefix in prefixes:
            origin |= PREFIXES[prefix]

        got = parse_line(f"{''.join(prefixes)}text")

        assert LogLine(text="text", origin=Origin(**origin)) == got

    @pytest.mark.parametrize(
        "raw",
        [
            "(see pid 3) text",
            "[2026-02-20 02:03:57] text",
            "[INFO] text",
            "text (Trainer pid=12)",
            "[rank]: text",
            "(cupid=4) text",
            f"({'x' * 201} pid=4) text",
            "(A pid=) text",
        ],
    )
    def test_none(self, raw):
        """
        What merely looks like a prefix stays where it is.
        """
        got = parse_line(raw)

        assert LogLine(text=raw) == got

    def test_nested_for_ever(self):
        """
        Of endless prefixes, some are taken off.
        """
        got = parse_line("[rank1]:" * 10)

        assert Origin(rank=1) == got.origin
        assert "[rank1]:" * 6 == got.text


class TestRepeated:
    @pytest.mark.parametrize(
        "more",
        [
            "",
            " (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0.)",
        ],
    )
    def test_count(self, more):
        """
        What Ray folded into one line is counted.
        """
        raw = f"(A pid=1) loaded\x1b[32m [repeated 17x across cluster]{more}"

        got = parse_line(f"{raw}\x1b[0m")

        assert ("loaded", 17) == (got.text, got.count)

    def test_quoted(self):
        """
        Words about folding are no folding.
        """
        raw = "what does [repeated 2x across cluster] mean? (asked)"

        assert LogLine(text=raw) == parse_line(raw)


class TestTime:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2026-02-20 02:03:57,500 INFO", (2026, 2, 20, 2, 3, 57.5)),
            ("[2026-02-20T02:03:57.5] x", (2026, 2, 20, 2, 3, 57.5)),
            ("[2026-02-20 02:03:57 TP0] x", (2026, 2, 20, 2, 3, 57)),
            ("[2026/02/20 02:03:57] x", (2026, 2, 20, 2, 3, 57)),
            ("INFO 02-20 02:03:57 [a.py:3] x", (2026, 2, 20, 2, 3, 57)),
            ("02/20/2026 02:03:57 - INFO - x", (2026, 2, 20, 2, 3, 57)),
            ("[E220 02:03:57.500000000 a.cpp:1] x", (2026, 2, 20, 2, 3, 57.5)),
            ("W1206 02:03:57.5 x", (2025, 12, 6, 2, 3, 57.5)),
            ("I0220 02:03:57 x", (2026, 2, 20, 2, 3, 57)),
            ("Fri Feb 20 02:03:57 2026 x", (2026, 2, 20, 2, 3, 57)),
            ("Fri Feb 20 02:03:57 UTC 2026 x", (2026, 2, 20, 2, 3, 57)),
            ("Dec  6 02:03:57 node kernel: x", (2025, 12, 6, 2, 3, 57)),
        ],
    )
    def test_forms(self, text, expected):
        """
        Times of every framework are understood; the year is the last one
        before now.
        """
        *whole, seconds = expected

        got = parse_time(text, now=NOW)

        assert local(*whole, 0) + seconds == pytest.approx(got)

    @pytest.mark.parametrize(
        ("text", "zone"), [("Z", 0), ("+05:30", 5.5), ("-0800", -8)]
    )
    def test_zone(self, text, zone):
        """
        A zone that the text names counts.
        """
        expected = datetime(2026, 2, 20, 2, 3, 57, tzinfo=UTC).timestamp()

        got = parse_time(f"2026-02-20T02:03:57.25{text} x")

        assert expected + 0.25 - zone * 3600 == pytest.approx(got)

    @pytest.mark.parametrize(
        "text",
        [
            "x",
            "12:33:22 only a clock",
            "2026-02-31 02:03:57 no such day",
            "2026-13-01 02:03:57 no such month",
            "0:00",
            "x" * 200 + "2026-02-20 02:03:57",
            "step 3: loss 2.5 at 10:20",
        ],
    )
    def test_none(self, text):
        """
        What is no time is none.
        """
        assert parse_time(text, now=NOW) is None

    def test_leap_day(self):
        """
        A day that this year has not was one of an earlier year, if any.
        """
        got = parse_time("Feb 29 02:03:57 x", now=local(2025, 3, 1, 0, 0, 0))

        assert local(2024, 2, 29, 2, 3, 57) == got

    def test_of_line(self):
        """
        The time of a line stands behind its prefix.
        """
        line = parse_line("(A pid=1, ip=10.0.0.1) [2026-02-20 02:03:57] x")

        assert local(2026, 2, 20, 2, 3, 57) == line.time


class TestRead:
    def test_file(self, tmp_path):
        """
        Lines are numbered; states of a progress bar share their number.
        """
        log = tmp_path / "a.log"
        log.write_bytes(b"one\n\n 1%\r 50%\r100%\r\n\xff\x00two\r\nthree")

        got = list(read_lines(log))

        assert [
            (1, "one"),
            (3, " 1%"),
            (3, " 50%"),
            (3, "100%"),
            (4, "�two"),
            (5, "three"),
        ] == [(line.number, line.text) for line in got]
        assert {str(log)} == {line.source for line in got}

    @pytest.mark.parametrize("source", ["a\nb\n", ["a\n", "b\r\n"]])
    def test_lines(self, source):
        """
        Lines can be given themselves, as one text or as many.
        """
        got = list(read_lines(source))

        assert [
            LogLine(text=x, number=i) for i, x in enumerate("ab", 1)
        ] == got

    @pytest.mark.parametrize("size", range(1, 9))
    def test_blocks(self, tmp_path, size):
        """
        Where a block ends makes no difference.
        """
        log = tmp_path / "a.log"
        blanks = (" " * 1023 + "\n") * (BLOCK // 1024)
        log.write_text(blanks[size:] + "a\nbb\n\nccc\n")

        assert [(257, "a"), (258, "bb"), (260, "ccc")] == lines_of(log)

    @given(
        st.lists(
            st.sampled_from(
                [
                    *(b"\n", b"\r", b"\r\n", b" ", b"\t", b"\x1c", b"\x00"),
                    *(b"\x1b[36m", b"\x1b[0m", b"\x1b[", b"\x1b", b"\x1b[2K"),
                    *(b"\x1b]0;", b"\x07", b"\xc2\x9b", b"\xc2\x85", b"m"),
                    *(b"(A pid=1, ip=::1)", b"[rank3]: ", b"\xe2\x96\x88"),
                    *(b"\xff", b"\xe2\x96", b"a", b" [repeated 2x across cl"),
                    *(b"uster]", b"x" * 30, b"x" * 65_530),
                ]
            ),
            max_size=30,
        ).map(b"".join),
        st.integers(1, 80),
    )
    def test_at_once(self, tmp_path_factory, data, size):
        """
        That blocks are cleaned as a whole makes no difference.
        """
        log = tmp_path_factory.mktemp("at_once") / "a.log"
        blanks = (b" " * 1023 + b"\n") * (BLOCK // 1024)
        blanks = blanks[size:]
        log.write_bytes(blanks + data)
        lines = [
            [x[:65_536].decode("utf-8", "replace") for x in line.split(b"\r")]
            for line in data.split(b"\n")
        ]

        got = list(read_lines(log))

        assert [
            parse_line(piece, number=number, source=str(log))
            for number, line in enumerate(lines, 257)
            for piece in line
            if piece.strip()
        ] == got

    def test_only_colors(self, tmp_path):
        """
        A line of colors alone is an empty line that counts.
        """
        log = tmp_path / "a.log"
        log.write_bytes(b"\x1b[31ma\n\x1b[0m\n\n \x1b[36m\x1b[0m \r\nb\n")

        assert [(1, "a"), (2, ""), (4, ""), (5, "b")] == lines_of(log)

    def test_endless(self, tmp_path):
        """
        Of an endless line the beginning is kept.
        """
        log = tmp_path / "a.log"
        log.write_bytes(b"x" * 3_000_000 + b"\nlast\n")

        got = list(read_lines(log))

        assert [65536, 4] == [len(line.text) for line in got]
        assert 2 == got[1].number

    @PACKERS
    def test_packed(self, tmp_path, suffix, pack):
        """
        Packed logs are unpacked.
        """
        log = tmp_path / f"a.log.{suffix}"
        log.write_bytes(pack(b"one\ntwo\n"))

        assert ["one", "two"] == [line.text for line in read_lines(log)]

    @pytest.mark.parametrize(
        ("name", "pack"),
        [("a.log", bytes), ("a.log.gz", gzip.compress)],
        ids=["plain", "packed"],
    )
    def test_tail(self, tmp_path, name, pack):
        """
        The end of a log can be read alone, also of one that is shorter.
        """
        data = b"".join(b"%d\n" % n for n in range(BLOCK))
        log = tmp_path / name
        log.write_bytes(pack(data))

        assert [b"3\n", data[-BLOCK - 7 :], data] == [
            read_tail(log, most) for most in (2, BLOCK + 7, len(data) + 1)
        ]

    def test_pipe(self, tmp_path):
        """
        A pipe is refused, not waited at.
        """
        os.mkfifo(tmp_path / "pipe")

        with pytest.raises(ValueError, match="not an ordinary file"):
            list(read_lines(tmp_path / "pipe"))

    @pytest.mark.parametrize(
        "data",
        [b"no such thing", gzip.compress(b"x" * 999)[:-9]],
        ids=["none", "cut"],
    )
    def test_damaged(self, tmp_path, data):
        """
        A packed log that is damaged is refused by a message.
        """
        log = tmp_path / "a.log.gz"
        log.write_bytes(data)

        with pytest.raises(ValueError, match="damaged"), open_log(log) as file:
            file.read()

    @pytest.mark.parametrize(
        ("suffix", "pack"),
        [("bz2", bz2.compress), ("xz", lzma.compress)],
        ids=["bz2", "xz"],
    )
    def test_bomb(self, tmp_path, suffix, pack):
        """
        What unpacks to far more than any log is read up to a limit.
        """
        log = tmp_path / f"a.log.{suffix}"
        log.write_bytes(pack(b"x\n" + bytes(16 << 20)))
        lines = read_lines(log)

        assert "x" == next(lines).text
        with pytest.raises(
            ValueError, match=r"unpacks to more than 16\.0 MiB"
        ):
            list(lines)
        with pytest.raises(
            ValueError, match=r"unpacks to more than 16\.0 MiB"
        ):
            read_tail(log, 100)

    def test_large_bomb(self, tmp_path, monkeypatch):
        """
        Of a large file less is unpacked for each of its bytes.
        """
        # With the real limit, 300 MB would be unpacked.
        monkeypatch.setattr(files_module, "_LEAST_UNPACKED_LIMIT", 1)
        monkeypatch.setattr(files_module, "_SMALL_RATIO_SIZE", 1 << 20)
        data = gzip.compress(b"x\n" * (1 << 20))
        log = tmp_path / "a.log.gz"
        log.write_bytes(data)
        most = (1 << 20) + 48 * len(data)

        with open_log(log) as file:
            assert b"x\n" * (most // 4) == file.read(most // 4 * 2)
            with pytest.raises(ValueError, match="unpack it, and it is read"):
                file.read()

    def test_absent(self, tmp_path):
        """
        A file that is not there gives the usual error.
        """
        with pytest.raises(FileNotFoundError):
            list(read_lines(tmp_path / "no.log"))


class TestWalk:
    def test_folder(self, tmp_path):
        """
        Logs are found in any depth, what holds no text is not.
        """
        (tmp_path / "sub").mkdir()
        for name in ("b.log", "a.out", "model.safetensors", "sub/err"):
            (tmp_path / name).write_text("x")
        os.mkfifo(tmp_path / "pipe")

        walk = LogWalk(tmp_path)

        assert ["a.out", "b.log", "sub/err"] == [
            str(path.relative_to(tmp_path)) for path in walk
        ]
        assert [] == walk.missing

    def test_once(self, tmp_path):
        """
        A file is found once, however many ways lead to it.
        """
        log = tmp_path / "a.log"
        log.write_text("x")
        (tmp_path / "again.log").symlink_to(log)
        (tmp_path / "loop").symlink_to(tmp_path)

        assert [log] == list(LogWalk([log, tmp_path, str(log)]))

    def test_link_out(self, tmp_path):
        """
        A link out of the folder is not followed, nor one to nothing.
        """
        folder = tmp_path / "job"
        folder.mkdir()
        (tmp_path / "secret.log").write_text("x")
        (folder / "a.log").symlink_to(tmp_path / "secret.log")
        (folder / "b").symlink_to(tmp_path)
        (folder / "c.log").symlink_to(folder / "nothing")
        (folder / "d").symlink_to("d")
        (folder / "e").symlink_to("/")
        (tmp_path / "node1").mkdir()
        (folder / "node1").symlink_to(tmp_path / "node1")
        walk = LogWalk(folder)

        assert [] == list(walk)
        # Links to what the folder lies in are loops, and to nothing no loss.
        assert [
            (
                "links that lead out of it are not followed: a.log, node1; "
                "name them, too, if you trust them"
            )
        ] == [m.reason for m in walk.missing]

    def test_missing(self, tmp_path):
        """
        What cannot be read is reported, and loses nothing else.
        """
        log = tmp_path / "model.pt"
        log.write_text("x")
        os.mkfifo(tmp_path / "pipe")

        walk = LogWalk([tmp_path / "no", tmp_path / "pipe", log])

        assert [log] == list(walk)
        assert [
            (str(tmp_path / "no"), "No such file or directory"),
            (str(tmp_path / "pipe"), "not an ordinary file"),
        ] == [(m.source, m.reason) for m in walk.missing]

    def test_unreadable_folder(self, tmp_path, monkeypatch):
        """
        A folder that may not be listed is reported.
        """

        def refuse(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(os, "scandir", refuse)
        walk = LogWalk(tmp_path)

        assert [] == list(walk)
        assert "Permission denied" == walk.missing[0].reason

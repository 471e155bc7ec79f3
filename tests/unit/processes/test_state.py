"""
What the kernel says of processes, however they call themselves.
"""

from __future__ import annotations

import os

import pytest

from distdebug.processes import (
    list_numbers,
    parse_stat,
    parse_status,
    read_link,
    read_proc,
    read_state,
)


NAMES = ["python", "a b", "a) S 1 (b", "(((", ")))", "a\nb) Z 1", "\x1b[31m"]


class TestReadProc:
    def test_limit(self, tmp_path):
        """
        No more is read of a file than was asked for.
        """
        path = tmp_path / "file"
        path.write_bytes(b"x" * 100_000)

        assert 100_000 == len(read_proc(str(path), limit=1 << 20))
        assert 70_000 == len(read_proc(str(path), limit=70_000))

    def test_gone(self, tmp_path):
        """
        What is not there, or is not a file, is nothing, and no error.
        """
        assert read_proc(str(tmp_path / "none")) is None
        assert read_proc(str(tmp_path)) is None
        assert "" == read_link(str(tmp_path / "none"))
        assert [] == list_numbers(str(tmp_path / "none"))

    def test_numbers(self, tmp_path):
        """
        Only names that are numbers count, in the order of numbers.
        """
        for name in ("10", "9", "self", "\u0661"):
            (tmp_path / name).mkdir()

        assert [9, 10] == list_numbers(str(tmp_path))


class TestParse:
    @pytest.mark.parametrize("name", NAMES)
    def test_name(self, fake_proc, name):
        """
        Brackets, blanks, and line breaks in a name mislead no reader.
        """
        folder = fake_proc.add(7, "python", parent=5, name=name)

        stat = parse_stat((folder / "stat").read_bytes())
        status = parse_status((folder / "status").read_bytes())

        assert (name, "S", 5, 200, 7) == stat
        assert "S (fake)" == status["State"]

    @pytest.mark.parametrize(
        "data", [None, b"", b"7 python S", b"7 (python) S x", b"7 python) S 1"]
    )
    def test_damage(self, data):
        """
        What is no such file says nothing.
        """
        assert parse_stat(data) is None


class TestReadState:
    def test_own(self):
        """
        This process is there, and is not traced.
        """
        state = read_state(os.getpid())

        assert state.letter in {"R", "S"}
        assert state.start_ticks > 0
        assert os.geteuid() == state.uid
        assert state.pid_inside > 0

    def test_gone(self, fake_proc):
        """
        A process that is not there has no state.
        """
        assert read_state(7, fake_proc.root) is None

    @pytest.mark.parametrize("name", NAMES)
    def test_all(self, fake_proc, name):
        """
        All that is of use is found, for any name.
        """
        fake_proc.add(7, "python", name=name, state="D", threads=["x"])

        state = read_state(7, fake_proc.root)

        assert ("D", 7, 0) == (
            state.letter,
            state.start_ticks,
            state.tracer_pid,
        )
        assert (1001, 7) == (state.uid, state.pid_inside)
        assert (7, 8) == state.uninterruptible

    def test_no_status(self, fake_proc):
        """
        A process that ends while it is looked at has at least its letter.
        """
        folder = fake_proc.add(7, "python", state="Z")
        (folder / "status").unlink()

        state = read_state(7, fake_proc.root)

        assert ("Z", 0, 7) == (state.letter, state.uid, state.pid_inside)

    def test_namespace(self, fake_proc):
        """
        The number inside the innermost namespace is the last one.
        """
        folder = fake_proc.add(7, "python")
        status = folder / "status"
        text = status.read_text().replace("NSpid:\t7", "NSpid:\t7\t3\t1")
        status.write_text(text)

        state = read_state(7, fake_proc.root)

        assert 1 == state.pid_inside

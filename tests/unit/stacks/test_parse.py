"""
Reading what py-spy wrote.
"""

from __future__ import annotations

import inspect
import json
import os
import sys

import pytest

from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    parse_stacks,
    read_stack_files,
    read_stacks,
)


TEXT = """\
Process 8892: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 8892 (idle): "MainThread"
    Dataset.__getitem__ (/home/me/train.py:5)
    fetch.<locals>.<listcomp> (torch/utils/data/_utils/fetch.py:54)
        Arguments:
            index: 4
    <module> (/home/me/my train (2).py:7)
Thread 0x7F01DEADBEEF (active+gil): "worker "one""
    read (libc.so.6)
Thread 9001 (active)
    spin (/home/me/train.py:9)
Process 9037: python -c "from multiprocessing import spawn"

Thread 9037 (idle): "MainThread"
    poll (selectors.py:415)
"""

JSON = [
    {
        "pid": 8892,
        "thread_id": 139644270070656,
        "thread_name": "MainThread",
        "os_thread_id": 8892,
        "active": False,
        "owns_gil": True,
        "frames": [
            {
                "name": "Dataset.__getitem__",
                "filename": "/home/me/train.py",
                "module": None,
                "short_filename": "train.py",
                "line": 5,
                "locals": None,
            }
        ],
        "process_info": None,
    },
    {
        "pid": 8892,
        "thread_id": 18446744073709551615,
        "thread_name": None,
        "os_thread_id": None,
        "frames": [],
    },
]


def bare(pid, thread_id, name, **changes):
    """
    A thread as py-spy writes it, with one line.
    """
    line = {"name": "f", "filename": "a.py", "line": 1}
    return {
        "pid": pid,
        "thread_id": thread_id,
        "os_thread_id": thread_id,
        "thread_name": name,
        "frames": [line],
        **changes,
    }


def test_text_of_pyspy():
    """
    Processes have their command, threads their names, states, and numbers of
    either kind, and frames are innermost first; what stands between them, or
    before the first thread, is not one.
    """
    one, other = parse_stacks(TEXT)
    (empty,) = parse_stacks("Process 1: x\n    f (a.py:1)\n")

    main, worker, nameless = one.threads
    assert (8892, 9037, ()) == (one.pid, other.pid, empty.threads)
    assert "python train.py" == one.command
    assert [
        ("MainThread", 8892, True, False, None),
        ('worker "one"', 0x7F01DEADBEEF, False, True, True),
        ("", 9001, False, True, False),
    ] == [
        (t.name, t.thread_id, t.is_main, t.active, t.owns_gil)
        for t in (main, worker, nameless)
    ]
    assert [
        "Dataset.__getitem__ (/home/me/train.py:5)",
        "fetch.<locals>.<listcomp> (torch/utils/data/_utils/fetch.py:54)",
        "<module> (/home/me/my train (2).py:7)",
    ] == list(map(str, main.frames))
    assert (StackFrame("read", "libc.so.6", 0, True),) == worker.frames


class TestJson:
    def test_threads(self):
        """
        What py-spy knows is kept; what it does not know stays unknown.
        """
        (got,) = parse_stacks(json.dumps(JSON), "pyspy_node-7_8892.json")

        assert (8892, "node-7", None, "") == (
            got.pid,
            got.host,
            got.rank,
            got.command,
        )
        assert (
            ThreadStack(
                name="MainThread",
                thread_id=8892,
                frames=(
                    StackFrame("Dataset.__getitem__", "/home/me/train.py", 5),
                ),
                is_main=True,
                active=False,
                owns_gil=True,
            ),
            ThreadStack(name="", thread_id=2**64 - 1, frames=()),
        ) == got.threads

    @pytest.mark.parametrize(
        "text",
        [
            "[",
            "[1]",
            "[{}]",
            '[{"pid": -1, "thread_id": 0, "frames": []}]',
            '[{"pid": true, "thread_id": 0, "frames": []}]',
            '[{"pid": 1, "thread_id": 0, "frames": [{"name": "f"}]}]',
            '[{"pid": 1, "thread_id": 0, "frames": 1}]',
            '[{"pid": 1, "process_info": 1, "thread_id": 0, "frames": []}]',
            '[{"pid": 1, "process_info": [1], "thread_id": 0, "frames": []}]',
            '[{"pid": 1, "process_info": {"parent": 1}, "thread_id": 0}]',
            "[" * 100_000,
        ],
    )
    def test_hostile(self, text):
        """
        Whatever else it is, it is a value error.
        """
        with pytest.raises(ValueError, match="not what py-spy writes"):
            parse_stacks(text)

    def test_endless_names(self):
        """
        Names are cut, because patterns are searched for in them.
        """
        frame = {"name": "f" * 10**6, "filename": "g" * 10**6, "line": None}
        thread = {"pid": 1, "thread_id": 2, "frames": [frame]}

        (got,) = parse_stacks(json.dumps([thread]))

        (read,) = got.threads[0].frames
        assert (4096, 4096, 0) == (
            len(read.name),
            len(read.filename),
            read.line,
        )


class TestReadStacks:
    def test_folder(self, tmp_path):
        """
        A folder is searched, and each process is read once, from its JSON.
        """
        (tmp_path / "node").mkdir()
        stem = tmp_path / "node" / "pyspy_a_10"
        stem.with_suffix(".json").write_text(json.dumps([bare(10, 10, "m")]))
        stem.with_suffix(".txt").write_text(TEXT)
        (tmp_path / "pyspy_b_8892.txt").write_text(TEXT)
        (tmp_path / "notes.txt").write_text("nothing")

        got = read_stacks(tmp_path)

        assert [("a", 10), ("b", 8892), ("b", 9037)] == [
            (p.host, p.pid) for p in got
        ]

    @pytest.mark.parametrize("text", [TEXT, json.dumps(JSON)])
    def test_text(self, text):
        """
        A text is read as it is.
        """
        assert 8892 == read_stacks(text)[0].pid

    def test_bad_files(self, tmp_path):
        """
        A file that cannot be read is told; the others are read.
        """
        good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
        pipe = tmp_path / "pyspy_a_1.txt"
        good.write_text(TEXT)
        bad.write_bytes(b"\xff\x00")
        os.mkfifo(pipe)

        got = read_stack_files([bad, good, pipe, tmp_path / "none"])

        assert [8892, 9037] == [p.pid for p in got.stacks]
        assert [
            (str(bad), "no stack of a known tool in it"),
            (str(pipe), "not a file"),
            (str(tmp_path / "none"), "no such file"),
        ] == [(m.source, m.reason) for m in got.missing]

    def test_too_large(self, tmp_path, monkeypatch):
        """
        A file that is larger than any process explains is not read.
        """
        # To read as much as it is in truth takes too long.
        monkeypatch.setattr("distdebug.stacks.parse._MOST_BYTES", 10)
        file = tmp_path / "a.txt"
        file.write_text(TEXT)

        (missing,) = read_stack_files(file).missing

        assert "larger than 10 bytes" == missing.reason

    def test_deep_folder(self, tmp_path):
        """
        A folder may be deeper than Python can call itself.
        """
        usual, few = sys.getrecursionlimit(), len(inspect.stack()) + 100
        folder = tmp_path.joinpath(*["a"] * (few + 50))
        folder.mkdir(parents=True)
        (folder / "pyspy_b_8892.txt").write_text(TEXT)

        sys.setrecursionlimit(few)
        try:
            got = read_stacks(tmp_path)
        finally:
            sys.setrecursionlimit(usual)

        assert [8892, 9037] == [p.pid for p in got]

    def test_forbidden_folder(self, tmp_path, monkeypatch):
        """
        A folder that nobody may look into holds no stacks.
        """

        def refuse(path):
            raise PermissionError(path)

        monkeypatch.setattr(os, "scandir", refuse)

        assert () == read_stacks(tmp_path)


class TestModel:
    def test_main_thread(self):
        """
        The main thread is the marked one, else the first, else none.
        """
        main = ThreadStack(name="m", frames=(), is_main=True)
        other = ThreadStack(name="o", frames=())

        found = [
            ProcessStacks(pid=1, source="", threads=threads).main_thread
            for threads in ((other, main), (other,), ())
        ]

        assert [main, other, None] == found

    def test_frame(self):
        """
        A frame prints itself, without a line if there is none.
        """
        assert "f (a.py:3)" == str(StackFrame("f", "a.py", 3))
        assert "f (lib.so)" == str(StackFrame("f", "lib.so", 0))


@pytest.mark.parametrize("first", [0, 1])
def test_told_once(first):
    """
    What one thread tells of its process holds for all threads of it.
    """
    threads = [bare(7, 7, "MainThread"), bare(7, 8, "worker")]
    threads[first]["process_info"] = {"command_line": "train.py", "rank": 3}

    (process,) = parse_stacks(json.dumps(threads))

    assert ("train.py", 3) == (process.command, process.rank)
    assert [7, 8] == [t.thread_id for t in process.threads]
    assert "MainThread" == process.main_thread.name


def test_no_rank():
    """
    No job has so many ranks.
    """
    info = {"command_line": "a", "rank": 1 << 32}
    forged = [bare(7, 7, "MainThread", process_info=info)]

    (process,) = parse_stacks(json.dumps(forged))

    assert process.rank is None


def test_endless_stack():
    """
    Of a stack without end the innermost lines are kept.
    """
    line = '  File "a.py", line {} in f\n'
    text = "Current thread 0x0000000000000001 (most recent call first):\n"
    text += "".join(line.format(n + 1) for n in range(5000))
    frame = {"name": "f", "filename": "a.py", "line": 1}
    data = [bare(7, 7, "MainThread", frames=[frame] * 5000)]

    (one,) = parse_stacks(text)
    (other,) = parse_stacks(json.dumps(data))

    assert 4096 == len(one.threads[0].frames)
    assert 1 == one.threads[0].frames[0].line
    assert 4096 == len(other.threads[0].frames)

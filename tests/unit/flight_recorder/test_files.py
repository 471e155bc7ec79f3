"""
Finding dumps in folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile

from pathlib import Path

import pytest

from distdebug.flight_recorder import (
    SIDECAR_SUFFIX,
    SearchLimits,
    Sidecar,
    find_files,
    parse_dump_name,
)


def touch(path):
    """
    Make a file, and the folder it lies in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x80\x04N.")
    return path


def note(folder, rank, **fields):
    """
    Write a side-car.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "kind": "distdebug-sidecar",
        "rank": rank,
        "world_size": 4,
        "host": "",
        **fields,
    }
    path = folder / f"{fields.get('dump') or rank}{SIDECAR_SUFFIX}"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def found(folder):
    """
    Rank and host by the path of each file.
    """
    files, _, problems = find_files([str(folder)])
    assert [] == problems
    return {os.path.relpath(f.path, folder): (f.rank, f.host) for f in files}


@contextlib.contextmanager
def as_a_user():
    """
    Do without the rights of the superuser, who may read everything.
    """
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


class TestParseName:
    @pytest.mark.parametrize(
        ("name", "rank", "host"),
        [
            ("nccl_trace_rank_0", 0, ""),
            ("comm_lib_trace_rank_12", 12, ""),
            ("_dump_14", 14, ""),
            ("rank3", 3, ""),
            ("rank-3.json", 3, ""),
            ("RANK_7.pkl.gz", 7, ""),
            ("nccl_trace_rank_5.pickle", 5, ""),
            ("nccl_trace_rank_5_1732108800", 5, ""),
            ("host12_rank_3", 3, "host12"),
            ("rank_3.node7", 3, "node7"),
            ("nccl_trace_rank_host-12_3", 3, "host-12"),
            ("rank_5_local_rank_1", 5, None),
            ("local_rank_1_rank_5", 5, None),
            ("rank_2_of_16", 2, None),
            ("trace.17", 17, ""),
            ("17", 17, ""),
            ("notes", None, None),
            ("model_1234567890123", None, None),
            ("rank_99999999999", None, None),
            ("rank_999999999", None, None),
        ],
    )
    def test_rank(self, name, rank, host):
        """
        The number after the last "rank" counts, or else that at the end; what
        is left of a name may be the host.
        """
        found = parse_dump_name(f"/a/rank_99/{name}")

        assert rank == found.rank
        assert host in {None, found.host}

    @pytest.mark.parametrize(
        ("name", "is_dump_like"),
        [
            ("nccl_trace_rank_0", True),
            ("_dump_0", True),
            ("rank0.json", True),
            ("rank_0.log", False),
            ("stdout_rank_0.txt", False),
            ("core.1234", False),
            ("epoch_3", False),
        ],
    )
    def test_expectation(self, name, is_dump_like):
        """
        Logs and the like are never taken for broken dumps.
        """
        assert is_dump_like == parse_dump_name(name).is_dump_like

    def test_family(self):
        """
        The dumps of a job differ by numbers and suffixes only.
        """
        families = {
            parse_dump_name(name).family
            for name in ("_dump_3", "_dump_14.json", "_dump_5.pkl.gz")
        }

        assert {"_dump_#"} == families


class TestFindFiles:
    @pytest.mark.parametrize(
        "expected",
        [
            # Folders within folders are searched, and may be hosts.
            {"a/fr/rank_97": (97, "a"), "b/fr/rank_98": (98, "b")},
            # A folder that all files lie in is no host.
            {"dumps/rank_0": (0, None), "dumps/rank_1": (1, None)},
            # A file beside the folders has no host.
            {"rank_0": (0, None), "a/rank_1": (1, "a"), "b/rank_2": (2, "b")},
            # Hosts in names are hosts if there are several.
            {"n1_rank_0": (0, "n1"), "n2_rank_1": (1, "n2")},
            # What all names have in common is no host.
            {"exp_rank_0": (0, None), "exp_rank_1": (1, None)},
        ],
        ids=["deep", "one folder", "some folders", "names", "run"],
    )
    def test_hosts(self, tmp_path, expected):
        """
        What ranks and hosts files are of follows from their names and folders.
        """
        for path in expected:
            touch(tmp_path / path)

        assert expected == found(tmp_path)

    def test_links(self, tmp_path):
        """
        A file counts once, by its own name; loops end.
        """
        touch(tmp_path / "z_rank_0")
        (tmp_path / "latest_rank_0").symlink_to("z_rank_0")
        (tmp_path / "hard_rank_1").hardlink_to(touch(tmp_path / "a_rank_1"))
        (tmp_path / "loop").symlink_to(tmp_path)
        (tmp_path / "self").symlink_to("self")
        (tmp_path / "dangling_rank_2").symlink_to("nothing")

        names = set(found(tmp_path))

        assert "z_rank_0" in names
        assert 2 == len(names)

    def test_link_elsewhere(self, tmp_path):
        """
        What is linked from elsewhere is found.
        """
        real = touch(tmp_path / "elsewhere" / "rank_0")
        folder = tmp_path / "dumps"
        folder.mkdir()
        (folder / "rank_0").symlink_to(real)
        (folder / "more").symlink_to(touch(tmp_path / "x" / "rank_1").parent)

        assert {"rank_0", "more/rank_1"} == set(found(folder))

    def test_ignored(self, tmp_path):
        """
        Pipes, and what is not finished, are left alone.
        """
        os.mkfifo(tmp_path / "rank_0.pipe")
        for name in (".DS_Store", "rank_1.tmp", "rank_2.tmp-71", "rank_3~"):
            touch(tmp_path / name)

        assert {} == found(tmp_path)

    def test_file_and_folder(self, tmp_path):
        """
        Files may be named, also twice, and have a relative path.
        """
        path = touch(tmp_path / "rank_0")

        files = find_files([str(path), str(tmp_path), str(path)]).files

        assert [str(path)] == [f.path for f in files]

    @pytest.mark.parametrize(
        ("place", "reason"),
        [("none", "cannot be read: No such file"), ("a\0b", "cannot be read")],
    )
    def test_absent(self, tmp_path, place, reason):
        """
        A place that does not exist, or cannot, is a problem.
        """
        (problem,) = find_files([str(tmp_path / place)]).problems

        assert problem.reason.startswith(reason)

    def test_forbidden(self):
        """
        A folder that may not be listed is a problem, and not the end.
        """
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            Path(folder, "x").mkdir(mode=0)
            touch(Path(folder, "rank_0"))
            with as_a_user():
                files, _, (problem,) = find_files([folder])

        assert 1 == len(files)
        assert "cannot be read: Permission denied" == problem.reason


class TestSearch:
    def test_no_time(self, tmp_path):
        """
        A search that takes too long ends, and says so.
        """
        touch(tmp_path / "rank_0")

        files, _, (problem,) = find_files([str(tmp_path)], SearchLimits(0.0))

        assert [] == files
        assert "the time was over" == problem.reason

    @pytest.mark.parametrize(("most", "count"), [(3, 2), (2, 1), (4, 3)])
    def test_too_many(self, tmp_path, most, count):
        """
        No more is looked at than was asked for, and that is told.
        """
        for number in range(3):
            touch(tmp_path / f"rank_{number}")

        files, _, problems = find_files(
            [str(tmp_path)], SearchLimits(max_files=most)
        )

        assert count == len(files)
        assert (count < 3) == bool(problems)
        assert all(f"its first {most}" in x.reason for x in problems)

    def test_starts(self, tmp_path):
        """
        Known names, and what side-cars are about, are all that counts.
        """
        for name in ("d_0", "e_rank_1", "f_rank_2", "7", "d_/d_1"):
            touch(tmp_path / name)
        note(tmp_path, 1, dump="e_rank_1")

        def names(*starts):
            found = find_files(
                [str(tmp_path)], SearchLimits(prefixes=starts)
            ).files
            return {Path(file.path).name for file in found}

        assert {"d_0", "e_rank_1"} == names("d_")
        assert {"7", "e_rank_1"} == names("")

    @pytest.mark.parametrize(
        ("name", "content", "is_tried"),
        [
            ("job.log", b"step 1\n", False),
            ("job.log", b"\x7fELF", False),
            ("7", b"\x80\x04N.", True),
            ("7.json", b' \n{"entries": []}', True),
            ("7.gz", b"\x1f\x8b\x08", True),
            ("nccl_trace_rank_7", b"step 1\n", True),
        ],
    )
    def test_beginning(self, tmp_path, name, content, is_tried):
        """
        Only what is called like a dump, or begins like one, is decoded.
        """
        (tmp_path / name).write_bytes(content)

        found = find_files([str(tmp_path)])

        assert is_tried == bool(found.files)
        assert [] == found.problems

    @pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
    def test_link_vanishes(self, tmp_path, monkeypatch, error):
        """
        A link that cannot be followed costs nothing else.
        """
        touch(tmp_path / "rank_0")
        (tmp_path / "rank_1").symlink_to("rank_0")

        def fail(_):
            raise error

        monkeypatch.setattr(os.path, "realpath", fail)

        assert {"rank_0": (0, None)} == found(tmp_path)

    def test_vanishing_entry(self, tmp_path, monkeypatch):
        """
        An entry of which the kernel says nothing is taken for a link.
        """
        touch(tmp_path / "rank_0")
        scan = os.scandir

        class Entry:
            """
            A file on a disk that fails.
            """

            def __init__(self, entry):
                self._entry = entry

            def __getattr__(self, name):
                return getattr(self._entry, name)

            def is_symlink(self):
                raise OSError

        @contextlib.contextmanager
        def failing(path):
            with scan(path) as entries:
                yield map(Entry, entries)

        monkeypatch.setattr(os, "scandir", failing)

        assert {"rank_0": (0, None)} == found(tmp_path)


class TestSidecars:
    @pytest.mark.parametrize(("host", "expected"), [("n1", "n1"), ("", None)])
    def test_tells(self, tmp_path, host, expected):
        """
        A side-car knows better than the name; an empty host is none.
        """
        touch(tmp_path / "rank_0")
        note(tmp_path, 7, dump="rank_0", host=host)

        assert {"rank_0": (7, expected)} == found(tmp_path)

    def test_newest(self, tmp_path):
        """
        Of two about the same dump the later one counts.
        """
        touch(tmp_path / "rank_0")
        note(tmp_path, 1, dump="rank_0", written=5).rename(
            tmp_path / f"a{SIDECAR_SUFFIX}"
        )
        note(tmp_path, 2, dump="rank_0", written=4)

        assert {"rank_0": (1, None)} == found(tmp_path)

    def test_elsewhere(self, tmp_path):
        """
        It has no say about files in other folders.
        """
        touch(tmp_path / "rank_0")
        note(tmp_path / "x", 1).write_text(
            json.dumps(
                {
                    "kind": "distdebug-sidecar",
                    "rank": 1,
                    "world_size": 2,
                    "dump": "../rank_0",
                }
            )
        )

        assert {"rank_0": (0, None)} == found(tmp_path)

    def test_alone(self, tmp_path):
        """
        A rank may have a side-car and no dump.
        """
        note(tmp_path, 3)

        (sidecar,) = find_files([str(tmp_path)]).sidecars

        assert isinstance(sidecar, Sidecar)
        assert 3 == sidecar.rank

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", "null", '{"kind": 1}', "[" * 200_000, "\x00"],
        ids=range(7),
    )
    def test_broken(self, tmp_path, text):
        """
        A broken one is a problem of the rank in its name.
        """
        path = tmp_path / f"rank_3{SIDECAR_SUFFIX}"
        path.write_text(text, encoding="utf-8")

        (problem,) = find_files([str(tmp_path)]).problems

        assert ("sidecar", 3) == (problem.what, problem.rank)
        assert problem.reason.startswith("not a sidecar: ")

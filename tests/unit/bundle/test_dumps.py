"""
Which dumps are asked for and kept, and where are they?
"""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

from distdebug.bundle import ask_ranks, find_dump_dirs, keep_dumps
from distdebug.bundle import dump_dirs as dump_dirs_module
from distdebug.bundle import dumps as dumps_module
from distdebug.flight_recorder import DumpRequest
from distdebug.testing import SimulatedJob, make_dumps


def soon():
    """
    A deadline that does not come in a test.
    """
    return time.monotonic() + 60


def names(folder):
    """
    What is in a folder.
    """
    return [path.name for path in folder.iterdir()]


def leave_sidecar(folder, rank, host):
    """
    Write what a rank leaves that died.
    """
    data = {
        "kind": "distdebug-sidecar",
        "rank": rank,
        "world_size": 4,
        "host": host,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{host}_rank_{rank}.sidecar.json"
    path.write_text(json.dumps(data))
    return path.name


class TestDumps:
    def job(self, folder):
        """
        Write the dumps of a small job.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        return make_dumps(folder, job)

    def test_newest(self, tmp_path):
        """
        Of each rank the newest dump and its side-car are kept, with times.
        """
        source = tmp_path / "dumps"
        first = self.job(source)
        for path in source.iterdir():
            os.utime(path, (1000, 1000))
        later = self.job(source / "later")
        (source / "notes.txt").write_text("hello")
        (source / "config.json").write_text("{}")

        files, missing = keep_dumps(source, tmp_path / "kept", soon())

        names = {f.name for f in files}
        assert 2 == len(first) == len(files)
        assert [] == missing
        assert {p.name for p in later.values()} <= names
        assert not {"notes.txt", "config.json"} & names
        kept = tmp_path / "kept" / "later" / later[0].name
        assert later[0].read_bytes() == kept.read_bytes()
        assert later[0].stat().st_mtime_ns == kept.stat().st_mtime_ns
        assert 0o600 == kept.stat().st_mode & 0o777

    def test_sidecar_alone(self, tmp_path):
        """
        What a rank left that died is kept too.
        """
        data = {
            "kind": "distdebug-sidecar",
            "rank": 1,
            "world_size": 2,
            "reason": "start",
        }
        source = tmp_path / "dumps"
        source.mkdir()
        for number, name in enumerate(("1-1-1", "2-2-1")):
            path = source / f"{name}_rank_1.sidecar.json"
            path.write_text(json.dumps({**data, "written": number}))

        files, _ = keep_dumps(source, tmp_path / "kept", soon())

        assert ["2-2-1_rank_1.sidecar.json"] == [f.name for f in files]

    def test_with_sidecar(self, tmp_path):
        """
        A dump and its side-car are kept together.
        """
        (dump, _) = self.job(tmp_path / "dumps").values()
        side = dump.with_name(f"{dump.name}.sidecar.json")
        data = {
            "kind": "distdebug-sidecar",
            "rank": 0,
            "world_size": 2,
            "dump": dump.name,
        }
        side.write_text(json.dumps(data))

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon()
        )

        assert [] == missing
        assert [dump.name, side.name, "nccl_trace_rank_1"] == [
            f.name for f in files
        ]

    def test_bounds(self, tmp_path, monkeypatch):
        """
        What is too large, or comes too late, is told and not kept.
        """
        self.job(tmp_path / "dumps")
        late = tmp_path / "late"

        files, missing = keep_dumps(tmp_path / "dumps", late, 0.0)

        assert [] == files
        assert {"the time was over"} == {m.reason for m in missing}
        monkeypatch.setattr(dumps_module, "_ONE_MOST_BYTES", 1)
        files, missing = keep_dumps(tmp_path / "dumps", late, soon())
        assert [] == files
        assert {"it is too large for the space that is left"} == {
            m.reason for m in missing
        }

    def test_little_space(self, tmp_path, monkeypatch):
        """
        What the disk has left is not used up.
        """
        self.job(tmp_path / "dumps")
        monkeypatch.setattr(dumps_module, "_free_bytes", lambda _: 100)

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon()
        )

        assert [] == files
        assert 2 == len(missing)

    def test_full_disk(self, tmp_path, monkeypatch):
        """
        What could not be written leaves nothing behind.
        """
        self.job(tmp_path / "dumps")

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(dumps_module, "_copy_blocks", fail)

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon()
        )

        assert [] == files
        assert {"No space left on device"} == {m.reason for m in missing}
        assert [] == names(tmp_path / "kept")

    def test_growing(self, tmp_path, monkeypatch):
        """
        What is written meanwhile is not copied without end.
        """
        (tmp_path / "rank_0").write_bytes(b"a" * 8)
        monkeypatch.setattr(dumps_module, "_BLOCK", 3)
        with (tmp_path / "rank_0").open("rb") as file:
            with (tmp_path / "copy").open("wb") as copy:
                dumps_module._copy_blocks(file, copy, 5, soon())

        assert 5 == (tmp_path / "copy").stat().st_size

    def test_slow_disk(self, tmp_path):
        """
        A copy that takes too long is given up, and not left behind.
        """
        (tmp_path / "rank_0").write_bytes(b"a" * 8)

        with pytest.raises(OSError, match="the time was over"):
            dumps_module._copy(tmp_path / "rank_0", tmp_path / "copy", 10, 0.0)

        assert ["rank_0"] == names(tmp_path)

    def test_other_files(self, tmp_path):
        """
        What is named like a dump comes before other, later files of a rank.
        """
        (dump, _) = self.job(tmp_path / "dumps").values()
        os.utime(dump, (1000, 1000))
        (tmp_path / "dumps" / "optim_rank_0.bin").write_bytes(b"weights")

        files, _ = keep_dumps(tmp_path / "dumps", tmp_path / "kept", soon())

        assert [dump.name, "nccl_trace_rank_1"] == [f.name for f in files]

    def test_named(self, tmp_path):
        """
        Where the names of dumps are known, nothing else is looked at.
        """
        source = tmp_path / "home"
        (dump, _) = self.job(source).values()
        (source / "nccl_trace_of").mkdir()
        for name in ("ckpt", "nccl_trace_of"):
            (source / name).mkdir(exist_ok=True)
            (source / name / "nccl_trace_rank_0").write_bytes(b"later")
        (source / "other_trace_rank_0").write_bytes(b"later")

        files, missing = keep_dumps(
            source, tmp_path / "kept", soon(), starts=("nccl_trace_rank_",)
        )

        assert [] == missing
        assert [dump.name, "nccl_trace_rank_1"] == [f.name for f in files]
        assert dump.read_bytes() == files[0].read_bytes()

    def test_room(self, tmp_path):
        """
        Who has little room for all dumps says so.
        """
        self.job(tmp_path / "dumps")

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon(), most_bytes=1
        )

        assert ([], 2) == (files, len(missing))

    def test_became_a_pipe(self, tmp_path):
        """
        A pipe where a dump was found is not waited at.
        """
        os.mkfifo(tmp_path / "pipe")

        with pytest.raises(OSError, match="not a file"):
            dumps_module._copy(tmp_path / "pipe", tmp_path / "x", 10, soon())

    def test_ask(self, tmp_path, monkeypatch):
        """
        Who gave no new dump is told; torch's ranks are known by their files.
        """
        (tmp_path / "nccl_trace_rank_2").write_bytes(b"new")
        rows = (
            DumpRequest(0, "dumped", tmp_path),
            DumpRequest(1, "silent", tmp_path, "no answer in time"),
            DumpRequest(2, "asked", tmp_path),
            DumpRequest(3, "asked", tmp_path),
        )
        monkeypatch.setattr(
            dumps_module, "request_dumps", lambda _, **__: rows
        )

        missing = ask_ranks(tmp_path, 0.05)

        assert [
            (1, "no answer in time"),
            (3, "torch was asked for it, and wrote none"),
        ] == [(m.rank, m.reason) for m in missing]

    def test_torch_wrote(self, tmp_path, monkeypatch):
        """
        When all files are there, nobody waits longer.
        """
        (tmp_path / "nccl_trace_rank_2").write_bytes(b"new")
        rows = (DumpRequest(2, "asked", tmp_path),)
        monkeypatch.setattr(
            dumps_module, "request_dumps", lambda _, **__: rows
        )

        missing = ask_ranks(tmp_path, 600)

        assert [] == missing

    def test_nobody(self, tmp_path):
        """
        Without any pipe there is nobody to ask.
        """
        (missing,) = ask_ranks(tmp_path, 0.1)

        assert "no pipes" in missing.reason

    def test_some(self, tmp_path, monkeypatch):
        """
        Only those are asked who are meant.
        """
        asked = []

        def request(folder, **options):
            asked.append((folder, options["ranks"]))
            return (DumpRequest(2, "dumped", tmp_path),)

        monkeypatch.setattr(dumps_module, "request_dumps", request)

        assert [] == ask_ranks(tmp_path, 1.0, ranks={2})
        assert [(tmp_path, {2})] == asked


class TestOwn:
    def test_others(self, tmp_path):
        """
        What is known to be of another node is left to it.
        """
        source, here = tmp_path / "dumps", socket.gethostname()
        mine = {
            leave_sidecar(source, 0, here),  # died on this node
            leave_sidecar(source, 1, "alias"),  # alive under another name
        }
        leave_sidecar(source, 2, "elsewhere")

        files, _ = keep_dumps(source, tmp_path / "kept", soon(), own={1})

        assert mine == {f.name for f in files}

    def test_dump_of_others(self, tmp_path):
        """
        A dump belongs to the node of its side-car; without, to anybody.
        """
        source = tmp_path / "dumps"
        job = SimulatedJob(3)
        job.collective("all_reduce")
        paths = make_dumps(source, job)
        for rank, host in ((0, "elsewhere"), (1, "alias")):
            data = {
                "kind": "distdebug-sidecar",
                "rank": rank,
                "world_size": 3,
                "host": host,
                "dump": paths[rank].name,
            }
            side = source / f"{paths[rank].name}.sidecar.json"
            side.write_text(json.dumps(data))

        files, missing = keep_dumps(source, tmp_path / "kept", soon(), own={1})

        assert [] == missing
        assert {
            *(paths[1].name, f"{paths[1].name}.sidecar.json", paths[2].name)
        } == {f.name for f in files}


class TestFind:
    @pytest.fixture(name="environs")
    def _environs(self, monkeypatch):
        """
        The environment of each process.
        """
        environs = {}
        monkeypatch.setattr(
            dump_dirs_module,
            "read_environ",
            lambda pid: (environs.get(pid, {}), "memory"),
        )
        return environs

    def test_named(self, environs, tmp_path):
        """
        A folder that ranks name, and in which they wrote, is found once.
        """
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        (tmp_path / "a" / "dump_0").write_bytes(b"")
        (tmp_path / "b" / "pipe_7.pipe").write_bytes(b"")
        environs[1] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a/dump_"}
        environs[2] = {
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/a/dump_",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/b/pipe_",
        }

        found = find_dump_dirs([1, 2, 3])

        assert [tmp_path / "a", tmp_path / "b"] == sorted(found)

    def test_sidecar(self, environs, tmp_path):
        """
        A folder with side-cars is one of ours, whatever the dumps' names.
        """
        leave_sidecar(tmp_path / "d", 0, "n1")
        environs[1] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/d/other_"}

        assert [tmp_path / "d"] == list(find_dump_dirs([1]))

    @pytest.mark.parametrize("prefix", ["d/dump_", "", "dump_"])
    def test_relative(self, environs, tmp_path, monkeypatch, prefix):
        """
        Where a rank is when it writes, nobody knows.
        """
        monkeypatch.chdir(tmp_path)
        (tmp_path / "dump_0").write_bytes(b"")
        environs[1] = {"TORCH_FR_DUMP_TEMP_FILE": prefix}

        assert [] == list(find_dump_dirs([1]))

    def test_somebody_elses(self, environs, tmp_path):
        """
        A folder in which no rank wrote is none of our business.
        """
        (tmp_path / "data.bin").write_bytes(b"")
        environs[1] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"}
        environs[2] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/no/dump_"}
        environs[3] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/\0/dump_"}

        assert [] == list(find_dump_dirs([1, 2, 3]))

    def test_folder_as_prefix(self, environs, tmp_path):
        """
        Who names a folder means that one, and not the one above.
        """
        leave_sidecar(tmp_path / "d", 0, "n1")
        (tmp_path / "e").mkdir()
        environs[1] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/d/"}
        environs[2] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/e/"}

        assert [tmp_path / "d"] == list(find_dump_dirs([1, 2]))

    def test_bounds(self, environs, tmp_path, monkeypatch):
        """
        Neither all ranks of a large node are asked, nor all files read.
        """
        monkeypatch.setattr(dump_dirs_module, "_MOST_RANKS", 1)
        (tmp_path / "dump_0").write_bytes(b"")
        environs[2] = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"}

        assert [] == list(find_dump_dirs([1, 2]))
        monkeypatch.setattr(dump_dirs_module, "_MOST_ENTRIES", 0)
        assert [] == list(find_dump_dirs([2]))

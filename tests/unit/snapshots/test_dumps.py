"""
Which dumps are asked for and kept, and where are they?
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.snapshots.node_files import (
    DumpFolder,
    collect_dumps,
    find_dump_dirs,
    request_rank_dumps,
)
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

        files, missing = collect_dumps(
            DumpFolder(source), tmp_path / "kept", soon()
        )

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

        files, _ = collect_dumps(DumpFolder(source), tmp_path / "kept", soon())

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

        files, missing = collect_dumps(
            DumpFolder(tmp_path / "dumps"), tmp_path / "kept", soon()
        )

        assert [] == missing
        assert [dump.name, side.name, "nccl_trace_rank_1"] == [
            f.name for f in files
        ]

    def keep(self, folder, ends=None, **options):
        """
        Keep the dumps of a small job, and return the files, and the reasons
        for those that are not kept.
        """
        self.job(folder / "dumps")
        files, missing = collect_dumps(
            DumpFolder(folder / "dumps"),
            folder / "kept",
            ends or soon(),
            **options,
        )
        return files, [m.reason for m in missing]

    def test_late(self, tmp_path):
        """
        What comes too late is reported and not kept.
        """
        files, reasons = self.keep(tmp_path, ends=0.1)

        assert [] == files
        assert {"the time was over"} == set(reasons)

    @pytest.mark.parametrize("limit", ["one", "all", "disk"])
    def test_too_large(self, tmp_path, monkeypatch, limit):
        """
        What is too large for a dump, for the room of all dumps, or for half of
        the free space of the disk, is reported and not kept.
        """
        self.job(tmp_path / "dumps")
        for path in (tmp_path / "dumps").iterdir():
            if limit == "one":
                os.truncate(path, (1 << 28) + 1)
        if limit == "disk":
            disk = SimpleNamespace(f_bavail=100, f_frsize=1)
            monkeypatch.setattr(os, "statvfs", lambda _: disk)
        options = {"max_bytes": 1} if limit == "all" else {}

        files, missing = collect_dumps(
            DumpFolder(tmp_path / "dumps"),
            tmp_path / "kept",
            soon(),
            **options,
        )

        assert [] == files
        assert ["it is too large for the space that is left"] * 2 == [
            m.reason for m in missing
        ]

    def test_full_disk(self, tmp_path, monkeypatch):
        """
        What could not be written leaves nothing behind.
        """

        def fail(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "utime", fail)

        got = self.keep(tmp_path)

        assert ([], ["No space left on device"] * 2) == got
        assert [] == names(tmp_path / "kept")

    @pytest.fixture(name="when_opened")
    def _when_opened(self, monkeypatch):
        """
        Does something once a file was opened and looked at.
        """

        def arrange(do):
            real, opened = os.fstat, set()

            def fstat(fd):
                status = real(fd)
                path = Path(f"/proc/self/fd/{fd}").readlink()
                # First its kind is looked at, then its size.
                if path.parent.name == "dumps" and path in opened:
                    do(path)
                opened.add(path)
                return status

            monkeypatch.setattr(os, "fstat", fstat)

        return arrange

    def test_growing(self, tmp_path, when_opened):
        """
        What is written meanwhile is not copied without end.
        """
        sizes = []

        def grow(path):
            with path.open("ab") as file:
                sizes.append(file.tell())
                file.write(b"more")

        when_opened(grow)

        files, missing = self.keep(tmp_path)

        assert [] == missing
        assert sizes == [file.stat().st_size for file in files]

    def test_slow_disk(self, tmp_path, when_opened, monkeypatch):
        """
        A copy that takes too long is given up, and not left behind.
        """
        real, late = time.monotonic, []
        monkeypatch.setattr(
            time, "monotonic", lambda: real() + 100 * len(late)
        )
        when_opened(late.append)

        got = self.keep(tmp_path)

        assert ([], ["the time was over"] * 2) == got
        assert 1 == len(late)
        assert [] == names(tmp_path / "kept")

    def test_became_a_pipe(self, tmp_path, monkeypatch):
        """
        A pipe where a dump was found is not waited at.
        """
        real = os.open

        def open_file(path, *args, **options):
            if Path(path).parent == tmp_path / "dumps":
                Path(path).unlink()
                os.mkfifo(path)
            return real(path, *args, **options)

        monkeypatch.setattr(os, "open", open_file)

        assert ([], ["it is not a file"] * 2) == self.keep(tmp_path)

    def test_other_files(self, tmp_path):
        """
        What is named like a dump comes before other, later files of a rank.
        """
        (dump, _) = self.job(tmp_path / "dumps").values()
        os.utime(dump, (1000, 1000))
        (tmp_path / "dumps" / "optim_rank_0.bin").write_bytes(b"weights")

        files, _ = collect_dumps(
            DumpFolder(tmp_path / "dumps"), tmp_path / "kept", soon()
        )

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

        files, missing = collect_dumps(
            DumpFolder(source, prefixes=("nccl_trace_rank_",)),
            tmp_path / "kept",
            soon(),
        )

        assert [] == missing
        assert [dump.name, "nccl_trace_rank_1"] == [f.name for f in files]
        assert dump.read_bytes() == files[0].read_bytes()


class TestAsk:
    @pytest.fixture(name="listen")
    def _listen(self, tmp_path):
        """
        Opens a pipe for reading, and does something when a request comes.
        """
        with contextlib.ExitStack() as stack:

            def listen(name, do=None):
                os.mkfifo(tmp_path / name)
                pipe = os.open(tmp_path / name, os.O_RDWR)
                stack.callback(os.close, pipe)
                if do is not None:
                    thread = threading.Thread(
                        target=lambda: (os.read(pipe, 1), do())
                    )
                    thread.start()
                    stack.callback(thread.join)
                return pipe

            yield listen

    @staticmethod
    def wrote(path):
        """
        A dump that is of now, whatever the clock of the disk.
        """
        path.write_bytes(b"new")
        os.utime(path, (time.time() + 5,) * 2)

    def test_ours(self, tmp_path, listen):
        """
        A rank that listens and gives no answer is reported.
        """
        data = {
            "kind": "distdebug-sidecar",
            "rank": 0,
            "world_size": 4,
            "dump": "1-5-1_rank_0",
        }
        path = tmp_path / "1-5-1_rank_0.sidecar.json"

        def answer():
            # Whole or not at all, as ranks do.
            part = tmp_path / "part"
            part.write_text(json.dumps(data))
            part.rename(path)

        listen("1-5_request_0.pipe", answer)
        listen("1-6_request_1.pipe")

        (lost,) = request_rank_dumps(DumpFolder(tmp_path), 2.0)

        assert (1, "no answer in time") == (lost.rank, lost.reason)

    def test_torch(self, tmp_path, listen):
        """
        Torch gives no answer; its ranks are known by their files.
        """
        listen("nccl_trace_rank_2.pipe")
        listen("nccl_trace_rank_3.pipe")
        self.wrote(tmp_path / "nccl_trace_rank_2")

        (lost,) = request_rank_dumps(DumpFolder(tmp_path), 0.5)

        assert (3, "torch was asked for it, and wrote none") == (
            lost.rank,
            lost.reason,
        )

    def test_torch_wrote(self, tmp_path, listen):
        """
        When all files are there, the wait is over.
        """
        path = tmp_path / "nccl_trace_rank_2"
        listen(f"{path.name}.pipe", lambda: self.wrote(path))

        assert [] == request_rank_dumps(DumpFolder(tmp_path), 600)

    def test_nobody(self, tmp_path):
        """
        Without any pipe there is no rank to ask.
        """
        (missing,) = request_rank_dumps(DumpFolder(tmp_path), 0.1)

        assert "no pipes" in missing.reason

    def test_some(self, tmp_path, listen):
        """
        Only the given ranks are asked.
        """
        asked, other = (
            listen(f"nccl_trace_rank_{rank}.pipe") for rank in (2, 3)
        )
        self.wrote(tmp_path / "nccl_trace_rank_2")

        missing = request_rank_dumps(
            DumpFolder(tmp_path, local_ranks={2}), 600
        )

        assert [] == missing
        for pipe in (asked, other):
            os.set_blocking(pipe, False)
        assert b"1" == os.read(asked, 2)
        with pytest.raises(BlockingIOError):
            os.read(other, 1)


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

        files, _ = collect_dumps(
            DumpFolder(source, local_ranks={1}), tmp_path / "kept", soon()
        )

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

        files, missing = collect_dumps(
            DumpFolder(source, local_ranks={1}), tmp_path / "kept", soon()
        )

        assert [] == missing
        assert {
            *(paths[1].name, f"{paths[1].name}.sidecar.json", paths[2].name)
        } == {f.name for f in files}


@pytest.mark.process
class TestFind:
    def test_named(self, process, tmp_path):
        """
        A folder that ranks name, and in which they wrote, is found once.
        """
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        (tmp_path / "a" / "dump_0").write_bytes(b"")
        (tmp_path / "b" / "pipe_7.pipe").write_bytes(b"")
        ranks = [
            process({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a/dump_"}),
            process(
                {
                    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/a/dump_",
                    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/b/pipe_",
                }
            ),
        ]

        found = find_dump_dirs([*ranks, 1 << 22])

        assert {
            tmp_path / "a": ("dump_",),
            tmp_path / "b": ("pipe_",),
        } == found

    @pytest.mark.parametrize("name", ["d/other_", "d/"])
    def test_sidecar(self, process, tmp_path, name):
        """
        A folder with side-cars is used, whatever the names of dumps; a prefix
        that is a folder means that one, and not the one above.
        """
        leave_sidecar(tmp_path / "d", 0, "n1")
        rank = process({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/{name}"})

        assert [tmp_path / "d"] == list(find_dump_dirs([rank]))

    @pytest.mark.parametrize(
        "prefix",
        ["d/dump_", "", "dump_", "{0}/other_", "{0}/no/dump_", "{0}/e/"],
    )
    def test_no_folder(self, process, tmp_path, monkeypatch, prefix):
        """
        A relative prefix is not used, because the rank's working folder is
        unknown; nor is a folder without files of ranks.
        """
        monkeypatch.chdir(tmp_path)
        (tmp_path / "dump_0").write_bytes(b"")
        (tmp_path / "e").mkdir()
        rank = process({"TORCH_FR_DUMP_TEMP_FILE": prefix.format(tmp_path)})

        assert {} == find_dump_dirs([rank])

    def test_many_ranks(self, process, tmp_path):
        """
        Not all ranks of a large node are asked.
        """
        (tmp_path / "dump_0").write_bytes(b"")
        rank = process({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"})

        asked = [
            find_dump_dirs([*[1 << 22] * others, rank])
            for others in (255, 256)
        ]

        assert [1, 0] == [len(found) for found in asked]

    def test_many_files(self, process, tmp_path, monkeypatch):
        """
        A folder with files without end is looked at in part.
        """
        rank = process({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"})
        count = itertools.count()
        entries = (SimpleNamespace(name=f"x{number}") for number in count)
        monkeypatch.setattr(
            os, "scandir", lambda _: contextlib.nullcontext(entries)
        )

        assert {} == find_dump_dirs([rank])
        assert 100_000 <= next(count) <= 100_001

"""
How is a dump of this process written, now?
"""

import json
import os
import sys
import threading

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import distdebug

from distdebug.errors import NotRecordingError, RecorderError
from distdebug.flight_recorder import (
    disable_flight_recorder,
    dump_flight_recorder,
    enable_flight_recorder,
    read_progress,
    read_sidecar,
)


pytestmark = pytest.mark.usefixtures("rank_3")


def described(**options):
    """
    What the side-car of a new dump says.
    """
    path = dump_flight_recorder(**options)
    return read_sidecar(path.with_name(f"{path.name}.sidecar.json"))


def main_thread(sidecar):
    """
    The stack of the main thread, innermost line first.
    """
    return dict(sidecar.threads)["MainThread"]


class TestDump:
    def test_call(self, fake_torch, recording):
        """
        The dump comes without stacks first, and then with.
        """
        path = dump_flight_recorder(reason="why", only_active=True)

        assert f"{recording.settings.token}-1_rank_3" == path.name
        assert path.read_bytes().endswith(b"frames")
        assert [(True, False, True), (True, True, True)] == fake_torch.asked
        sidecar = json.loads(
            path.with_name(f"{path.name}.sidecar.json").read_text()
        )
        assert ("why", path.name) == (sidecar["reason"], sidecar["dump"])
        assert path == path.with_name("latest_rank_3").resolve()

    def test_without_stacks(self, fake_torch, recording):
        """
        Who does not want stacks does not wait for them.
        """
        dump_flight_recorder(stacks=False)

        assert [(True, False, False)] == fake_torch.asked

    def test_path(self, fake_torch, recording, tmp_path):
        """
        A path of one's own is used as it is.
        """
        path = dump_flight_recorder(tmp_path / "mine")

        assert tmp_path / "mine" == path
        assert [] == recording.dumps

    @pytest.mark.process
    def test_not_enabled(self, tmp_path, run_rank):
        """
        Recording need not have been enabled: this torch records anyway.
        """
        ended = run_rank(
            "print(distdebug.dump_flight_recorder().parent)",
            enable=False,
            DISTDEBUG_DUMP_DIR=str(tmp_path / "own"),
        )

        assert (f"{tmp_path / 'own'}\n", "") == (ended.stdout, ended.stderr)

    def test_slow_stacks(self, fake_torch, recording):
        """
        Stacks that do not come in time are not waited for.
        """
        gate = threading.Event()
        fast = fake_torch.dump
        fake_torch.c10d._dump_fr_trace = lambda *a: (
            gate.wait(30) if a[1] else None,
            fast(*a),
        )[1]

        path = dump_flight_recorder(stacks_timeout_s=0.01)
        early = path.read_bytes()
        # Others of ours may still be ending.
        (thread,) = [
            t for t in threading.enumerate() if t.name.endswith(" stacks")
        ]
        gate.set()
        thread.join(30)

        assert not early.endswith(b"frames")
        assert path.read_bytes().endswith(b"frames")

    def test_no_thread(self, fake_torch, recording, monkeypatch):
        """
        Where no thread can be had any more, the stacks come by the way.
        """

        def start(self):
            raise RuntimeError

        monkeypatch.setattr(threading.Thread, "start", start)

        assert dump_flight_recorder().read_bytes().endswith(b"frames")

    def test_no_links(self, fake_torch, recording, monkeypatch):
        """
        Where links cannot be had, there is none.
        """

        def refuse(*args, **options):
            raise PermissionError

        monkeypatch.setattr(os, "symlink", refuse)

        assert dump_flight_recorder().exists()

    def test_cannot_write(self, fake_torch, recording, tmp_path):
        """
        A file that cannot be written is an error with a remedy.
        """
        with pytest.raises(RecorderError, match="cannot write"):
            dump_flight_recorder(tmp_path / "missing" / "x")

    def test_many(self, fake_torch, recording):
        """
        The first two and the last eight are kept, with all that is theirs.
        """
        for _ in range(15):
            dump_flight_recorder(stacks=False)

        folder, token = recording.settings.dump_dir, recording.settings.token
        numbers = sorted(
            int(p.name.removeprefix(f"{token}-").partition("_")[0])
            for p in folder.glob(f"{token}-*_rank_3")
        )
        assert [1, 2, *range(8, 16)] == numbers
        assert 10 == len(list(folder.glob("*.sidecar.json")))

    def test_restart(self, fake_torch, recording):
        """
        A name that is taken is never used again.
        """
        folder, token = recording.settings.dump_dir, recording.settings.token
        (folder / f"{token}-1_rank_3").write_bytes(b"of an earlier process")

        path = dump_flight_recorder()

        assert f"{token}-2_rank_3" == path.name


@pytest.mark.usefixtures("recording")
class TestTrace:
    @pytest.mark.parametrize("torch", [None, ModuleType("torch")])
    def test_no_recorder(self, monkeypatch, torch):
        """
        torch is not loaded for a dump, and one without a recorder has nothing.
        """
        monkeypatch.setitem(sys.modules, "torch", torch)
        if torch is None:
            monkeypatch.delitem(sys.modules, "torch")

        with pytest.raises(NotRecordingError, match="no Flight Recorder"):
            dump_flight_recorder()

        assert torch is sys.modules.get("torch")

    def test_nccl(self, fake_torch):
        """
        The recorder that has seen calls is dumped, NCCL's first.
        """
        fake_torch.c10d._dump_nccl_trace = lambda *_: b"nccl record_id"
        first = dump_flight_recorder(stacks=False).read_bytes()
        fake_torch.c10d._dump_nccl_trace = lambda *_: b"nccl"
        second = dump_flight_recorder(stacks=False).read_bytes()

        assert b"nccl record_id" == first
        assert fake_torch.entries == second

    @pytest.mark.parametrize(
        ("environ", "version", "is_off"),
        [
            ({"TORCH_FR_BUFFER_SIZE": "0"}, "2.13.0", True),
            ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, "2.9.0", False),
            ({}, "2.9.0", True),
            ({}, "2.13.0", False),
            ({}, "", False),
        ],
    )
    def test_off(self, fake_torch, monkeypatch, environ, version, is_off):
        """
        A recorder that holds nothing may be off, or new.
        """
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        fake_torch.__version__ = version
        fake_torch.entries = b"nothing"

        if is_off:
            with pytest.raises(NotRecordingError, match="is off"):
                dump_flight_recorder(stacks=False)
        else:
            path = dump_flight_recorder(stacks=False)
            assert b"nothing" == path.read_bytes()


class TestProgress:
    def test_counters(self, fake_torch):
        """
        What a rank has begun and completed is known by group, and moves;
        only counters are asked for, never calls, whose number is large.
        """
        asked = []
        status = fake_torch.status
        fake_torch.c10d._dump_fr_trace_json = lambda *args: (
            asked.append(args),
            status(*args),
        )[1]

        before = read_progress()
        fake_torch.unfinished = 1

        assert (("0", 4, None, 4),) == before
        assert (("0", 5, None, 4),) == read_progress()
        assert [(False, False)] * 2 == asked
        assert [] == fake_torch.asked

    def test_both(self, fake_torch):
        """
        NCCL's recorder and that of the others count together.
        """
        fake_torch.c10d._dump_nccl_trace_json = lambda *_: (
            '{"pg_status": {"7": {"last_enqueued_collective": 9, '
            '"last_started_collective": 8, "last_completed_collective": 7}}}'
        )

        assert (("7", 9, 8, 7), ("0", 4, None, 4)) == read_progress()

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"pg_status": {}}',
            '{"pg_status": 5}',
            '{"pg_status": {"0": 5}}',
        ],
    )
    def test_nothing(self, fake_torch, text):
        """
        Where nothing was recorded, or it cannot be parsed, it is unknown.
        """
        fake_torch.c10d._dump_fr_trace_json = lambda *_: text

        assert read_progress() is None

    def test_no_torch(self, monkeypatch):
        """
        Where torch is not loaded, it is not loaded for this.
        """
        monkeypatch.delitem(sys.modules, "torch", raising=False)

        assert read_progress() is None
        assert "torch" not in sys.modules


@pytest.mark.usefixtures("recording")
class TestSymbolizer:
    @pytest.fixture
    def during(self, fake_torch):
        """
        Does something while torch names the frames of a dump.
        """

        def dump(act):
            fake_torch.c10d._dump_fr_trace = lambda *_: (
                act(fake_torch),
                b"record_id",
            )[1]
            dump_flight_recorder(stacks=False)

        return dump

    def test_absent(self, fake_torch, during, monkeypatch):
        """
        The thread that dumps sees no compiler; the others do, and afterwards
        nothing has changed.
        """
        real = ModuleType("torch._inductor")
        real.codecache = "real"
        monkeypatch.setitem(sys.modules, "torch._inductor", real)
        found = []

        def look(torch):
            found.append(hasattr(torch._inductor, "codecache"))
            other = threading.Thread(
                target=lambda: found.append(torch._inductor.codecache)
            )
            other.start()
            other.join()

        during(look)

        assert [False, "real"] == found
        assert not hasattr(fake_torch, "_inductor")

    def test_loaded_meanwhile(self, fake_torch, during):
        """
        A compiler that was loaded meanwhile stays.
        """
        during(lambda torch: setattr(torch, "_inductor", "real"))

        assert "real" == fake_torch._inductor

    def test_loaded_before(self, fake_torch, during):
        """
        A compiler that is there is asked.
        """
        fake_torch._inductor = "real"
        found = []

        during(lambda torch: found.append(torch._inductor))

        assert ["real"] == found


class Group:
    """
    A process group, as torch keeps it.
    """

    def __init__(self, desc):
        self.group_desc = desc


class TestDescribe:
    def test_groups(self, fake_torch, recording, monkeypatch):
        """
        Groups, their members in order, and the mesh are told.
        """
        world, tp, dp, one = map(
            Group, ["default_pg", "mesh_tp", "mesh_dp", "mesh_pp"]
        )
        c10d = SimpleNamespace(
            _world=SimpleNamespace(
                pg_map={
                    world: ("undefined", None),
                    tp: ("nccl", None),
                    dp: ("undefined", None),
                    one: ("gloo", None),
                },
                pg_group_ranks={
                    world: {0: 0, 1: 1, 2: 2, 3: 3},
                    tp: {3: 1, 2: 0},
                    dp: {1: 0, 3: 1},
                    one: {3: 0},
                    -100: {0: 0},
                },
                pg_names={world: "0", tp: "1", dp: "2", one: "3"},
                pg_backend_config={
                    world: "cpu:gloo,cuda:nccl",
                    dp: "cpu:gloo,cuda:gloo",
                },
            )
        )
        monkeypatch.setitem(
            sys.modules, "torch.distributed.distributed_c10d", c10d
        )

        sidecar = described()

        assert [
            ("0", "default_pg", (0, 1, 2, 3), "cpu:gloo,cuda:nccl"),
            ("1", "mesh_tp", (2, 3), "nccl"),
            ("2", "mesh_dp", (1, 3), "gloo"),
            ("3", "mesh_pp", (3,), "gloo"),
        ] == [tuple(g) for g in sidecar.groups]
        assert (("dp", 2), ("tp", 2), ("pp", 1)) == sidecar.mesh
        assert "2.13.0" == sidecar.torch

    def test_another_torch(self, fake_torch, recording):
        """
        A torch that keeps no groups costs the groups.
        """
        fake_torch.__version__ = None
        del fake_torch.__version__

        sidecar = described()

        assert ((), (), "") == (sidecar.groups, sidecar.mesh, sidecar.torch)

    def test_threads(self, recording):
        """
        Every thread is told, innermost line first; ours are not.
        """
        gate = threading.Event()
        names = ["loader", "loader", "distdebug x"]
        threads = [threading.Thread(target=gate.wait, name=n) for n in names]
        for thread in threads:
            thread.start()

        sidecar = described()
        gate.set()
        for thread in threads:
            thread.join()

        found = dict(sidecar.threads)
        assert "MainThread" == next(iter(found))
        assert 2 == len([n for n in found if n.startswith("loader")])
        assert "distdebug x" not in found
        assert "test_threads" in {f.name for f in found["MainThread"]}

    def test_deep(self, recording):
        """
        A stack that never ends is cut.
        """

        def down(n):
            return down(n - 1) if n else described()

        sidecar = down(300)

        assert 100 == len(dict(sidecar.threads)["MainThread"])

    def test_no_rank(self, recording, monkeypatch):
        """
        A process that knew its rank goes on to know it.
        """
        before = described().rank
        monkeypatch.delenv("RANK")

        assert (3, 3) == (before, described().rank)

    def test_never_a_rank(self, recording, monkeypatch, tmp_path):
        """
        A process that does not know its rank has a dump and no side-car.
        """
        monkeypatch.delenv("RANK")
        disable_flight_recorder()
        enable_flight_recorder(dump_dir=tmp_path / "e", extras=False)

        path = dump_flight_recorder()

        assert path.name.endswith("-1_rank_unknown")
        assert [] == list(path.parent.glob("*.sidecar.json"))

    def test_own_frames(self, recording):
        """
        The innermost line is that of the caller, not one of ours.
        """
        path = dump_flight_recorder()

        frames = main_thread(
            read_sidecar(path.with_name(f"{path.name}.sidecar.json"))
        )
        assert ("test_own_frames", __file__) == frames[0][:2]

    def test_other_rooms(self, recording):
        """
        A program that comes with us is a program like any other.
        """
        program = Path(distdebug.__file__).with_name("demo") / "train.py"
        scope = {"describe": described}
        exec(
            compile("def step():\n  return describe()", program, "exec"), scope
        )

        frames = main_thread(scope["step"]())

        assert [("described", __file__), ("step", str(program))] == [
            f[:2] for f in frames[:2]
        ]

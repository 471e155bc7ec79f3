"""
How is a dump of this process written, now?
"""

import json
import sys
import threading

from types import ModuleType, SimpleNamespace

import pytest

from distdebug.errors import NotRecordingError, RecorderError
from distdebug.flight_recorder import (
    current_recording,
    dump_flight_recorder,
    plan_flight_recorder,
    read_progress,
)
from distdebug.flight_recorder import dump as dump_module
from distdebug.flight_recorder.dump import write_dump
from distdebug.flight_recorder.recording.current import (
    Recording,
    begin_recording,
    end_recording,
)
from distdebug.flight_recorder.recording.describe import describe_process
from distdebug.flight_recorder.recording.symbolizer import without_inductor
from distdebug.flight_recorder.recording.trace import is_in_flight, read_trace


pytestmark = pytest.mark.usefixtures("rank_3")


@pytest.fixture
def recording(tmp_path):
    """
    A recording of this process.
    """
    settings = plan_flight_recorder(
        {}, "2.13", dump_dir=tmp_path / "d", token="1-2"
    )
    yield begin_recording(Recording(settings))
    end_recording()


class TestDump:
    def test_call(self, fake_torch, recording):
        """
        The dump comes without stacks first, and then with.
        """
        path = dump_flight_recorder(reason="why", only_active=True)

        assert "1-2-1_rank_3" == path.name
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

    def test_not_enabled(self, fake_torch, tmp_path, monkeypatch):
        """
        Nobody needs to have enabled anything: this torch records anyway.
        """
        monkeypatch.setenv("DISTDEBUG_DUMP_DIR", str(tmp_path))

        path = dump_flight_recorder()

        assert tmp_path == path.parent
        end_recording()

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

        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(dump_module, "replace_link", refuse)

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
        recording.settings.dump_dir.mkdir()
        for _ in range(15):
            write_dump(recording, "call", stacks=False)

        folder = recording.settings.dump_dir
        numbers = sorted(
            int(p.name[4:-7]) for p in folder.glob("1-2-*_rank_3")
        )
        assert [1, 2, *range(8, 16)] == numbers
        assert 10 == len(list(folder.glob("*.sidecar.json")))

    def test_restart(self, fake_torch, recording):
        """
        A name that is taken is never used again.
        """
        first = dump_flight_recorder()
        begin_recording(Recording(recording.settings))
        second = dump_flight_recorder()

        assert first != second


class TestTrace:
    def test_no_torch(self, monkeypatch):
        """
        torch is not loaded for a dump.
        """
        monkeypatch.delitem(sys.modules, "torch", raising=False)

        with pytest.raises(NotRecordingError, match="no Flight Recorder"):
            read_trace(stacks=False)

    def test_no_recorder(self, monkeypatch):
        """
        A torch without a recorder has nothing to dump.
        """
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))

        with pytest.raises(NotRecordingError, match="no Flight Recorder"):
            read_trace(stacks=False)

    def test_nccl(self, fake_torch):
        """
        The recorder that has seen calls is dumped, NCCL's first.
        """
        fake_torch.c10d._dump_nccl_trace = lambda *_: b"nccl record_id"
        first = read_trace(stacks=False)
        fake_torch.c10d._dump_nccl_trace = lambda *_: b"nccl"
        second = read_trace(stacks=False)

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
                read_trace(stacks=False)
        else:
            assert b"nothing" == read_trace(stacks=False)

    def test_in_flight(self, fake_torch):
        """
        A call is in flight if it stays unfinished.
        """
        found = [is_in_flight(0)]
        fake_torch.unfinished = 1
        found += [is_in_flight(0.02)]
        fake_torch.c10d._dump_fr_trace_json = None
        found += [is_in_flight(0)]

        fake_torch.c10d._dump_nccl_trace_json = fake_torch.status
        found += [is_in_flight(0)]

        assert [False, True, False, True] == found


class TestProgress:
    def test_counters(self, fake_torch):
        """
        What a rank has begun and completed is told by group, and moves.
        """
        before = read_progress()
        fake_torch.unfinished = 1

        assert (("0", 4, None, 4),) == before
        assert (("0", 5, None, 4),) == read_progress()
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

    def test_no_calls(self, fake_torch):
        """
        It asks for counters, and never for calls, whose number is large.
        """
        asked = []
        status = fake_torch.status
        fake_torch.c10d._dump_fr_trace_json = lambda *args: (
            asked.append(args),
            status(*args),
        )[1]

        read_progress()

        assert [(False, False)] == asked

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
        Where nothing was recorded, or it cannot be understood, it is unknown.
        """
        fake_torch.c10d._dump_fr_trace_json = lambda *_: text

        assert read_progress() is None
        assert not is_in_flight(0)

    def test_no_torch(self, monkeypatch):
        """
        Where torch is not loaded, it is not loaded for this.
        """
        monkeypatch.delitem(sys.modules, "torch", raising=False)

        assert read_progress() is None
        assert "torch" not in sys.modules


class TestSymbolizer:
    def test_absent(self):
        """
        The thread that dumps sees no compiler; the others do, and afterwards
        nothing has changed.
        """
        torch = ModuleType("torch")
        real = ModuleType("torch._inductor")
        real.codecache = "real"
        found = []

        with without_inductor(torch):
            found.append(hasattr(torch._inductor, "codecache"))
            sys.modules["torch._inductor"] = real
            try:
                other = threading.Thread(
                    target=lambda: found.append(torch._inductor.codecache)
                )
                other.start()
                other.join()
            finally:
                del sys.modules["torch._inductor"]

        assert [False, "real"] == found
        assert not hasattr(torch, "_inductor")

    def test_loaded_meanwhile(self):
        """
        A compiler that was loaded meanwhile stays.
        """
        torch = ModuleType("torch")

        with without_inductor(torch):
            torch._inductor = "real"

        assert "real" == torch._inductor

    def test_loaded_before(self):
        """
        A compiler that is there is asked.
        """
        torch = ModuleType("torch")
        torch._inductor = "real"

        with without_inductor(torch):
            assert "real" == torch._inductor


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

        sidecar = describe_process(recording, "call")

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
        del fake_torch.__version__

        sidecar = describe_process(recording, "call")

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

        sidecar = describe_process(recording, "call")
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
            return down(n - 1) if n else describe_process(recording, "call")

        sidecar = down(300)

        assert 100 == len(dict(sidecar.threads)["MainThread"])

    def test_no_rank(self, recording, monkeypatch):
        """
        A process that does not know its rank has no side-car, and one that
        knew it goes on to know it.
        """
        before = describe_process(recording, "call").rank
        monkeypatch.delenv("RANK")
        after = describe_process(recording, "call").rank
        never = describe_process(Recording(recording.settings), "call")

        assert (3, 3, None) == (before, after, never)
        assert "unknown" in Recording(recording.settings).next_path().name


def test_forked(recording, monkeypatch):
    """
    A forked child has no recording.
    """
    recording.pid += 1

    assert current_recording() is None

"""
What is done on the nodes of a job that makes no progress?

The workers are made up; folders, locks, manifests, and diagnoses are real.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.findings import Finding
from distdebug.processes import Worker
from distdebug.snapshots import (
    CollectedNode,
    Manifest,
    NodeEntry,
    SharedBundle,
    SnapshotOptions,
    read_manifest,
    write_manifest,
)
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    stacks_to_json,
)
from distdebug.watching import CaptureRequest, HangReason, response


MARK = ".unfinished"
TORCH = "/v/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
STALLED = HangReason(
    kind="no progress",
    elapsed_s=700.0,
    pids=(7,),
    stalled=(("rank 0", 65.0),),
)
WAIT = HangReason(kind="wait", elapsed_s=1800.0, pids=(7,))


def worker(rank, *, job="run 7", size=2, **options):
    """
    A rank of a job.
    """
    values = {
        "pid": 100 + rank,
        "start_ticks": 5,
        "parent_pid": 1,
        "uid": 0,
        "title": "train.py",
        "framework": "torchrun",
        "rank": rank,
        "world_size": size,
        "job": job,
    }
    return Worker(**(values | options))


def finding(cause, **options):
    """
    What a look finds.
    """
    return Finding(
        cause=cause, ranks=(0,), summary=f"it is {cause}", **options
    )


SLEEPS = StackFrame("sleep", "/home/me/train.py", 40)
SAVES = StackFrame("save", f"{TORCH}/serialization.py", 900)


def write_stacks(folder, rank, frame=SLEEPS):
    """
    Write what a rank does: rank 1 sleeps, and the others wait for it.
    """
    if rank != 1:
        frame = StackFrame("all_reduce", C10D, 2800)
    thread = ThreadStack(name="MainThread", frames=(frame,), is_main=True)
    stacks = ProcessStacks(
        pid=100 + rank, source="", threads=(thread,), rank=rank, role="rank"
    )
    path = folder / f"pyspy_{folder.name}_{100 + rank}.json"
    path.write_text(stacks_to_json(stacks))


class Job:
    """
    A job on nodes that do not exist; each thread here is one of them.
    """

    def __init__(self, folder):
        self.folder = folder
        self.order = CaptureRequest(
            output_dir=folder / "hang", wanted=SnapshotOptions()
        )
        self.workers = {"n1": (worker(0), worker(1))}
        self.seen = finding(Cause.COLLECTIVE_WAIT)
        self.looks, self.wanted, self.asked = [], [], []
        self.during_look = self.during_collect = lambda: None
        self.now, self.plan = 1000.0, []
        self.environ, self.frame = {}, SLEEPS
        self._here = threading.local()

    @property
    def host(self):
        """
        The node that this thread is.
        """
        return getattr(self._here, "name", "n1")

    @host.setter
    def host(self, name):
        """
        Let this thread be another node.
        """
        self._here.name = name

    def find(self, patterns=(), *, include_ancestors=False):
        """
        Find the workers of this node.
        """
        self.asked.append((tuple(patterns), include_ancestors))
        return self.workers.get(self.host, ())

    def find_by_number(self, pids):
        """
        Find some of them.
        """
        mine = self.workers.get(self.host, ())
        return tuple(x for x in mine if x.pid in pids)

    def look(self, *, pids, patience_s, timeout_s):
        """
        Look at processes.
        """
        self.looks.append(tuple(pids))
        self.during_look()
        findings = () if self.seen is None else (self.seen,)
        return SimpleNamespace(findings=findings)

    def collect(self, folder, wanted, *, host, is_one_of_many):
        """
        Take what this node has.
        """
        assert is_one_of_many
        self.wanted.append(wanted)
        self.during_collect()
        for each in self.find_by_number(wanted.pids or ()):
            write_stacks(folder, each.rank, self.frame)
        node = NodeEntry(host=host, status="ok", files=1)
        manifest = Manifest(version="1", created=5.0, nodes=(node,))
        write_manifest(folder, manifest)
        return CollectedNode(manifest, ())

    def sleep(self, seconds):
        """
        Let time pass.
        """
        self.now += seconds
        for due, do in [x for x in self.plan if x[0] <= self.now]:
            self.plan.remove((due, do))
            do()

    def at(self, seconds, do):
        """
        Do something so many seconds after the start.
        """
        self.plan.append((1000.0 + seconds, do))

    def respond(self, reason=STALLED, **options):
        """
        Respond on this node.
        """
        order = attrs.evolve(self.order, **options)
        return response.respond(reason, order, sleep=self.sleep)

    def join(self, host, *, is_done=False):
        """
        Have a node take part, and be done with it.
        """
        bundle = SharedBundle(
            self.folder / "hang", host, window_s=300.0, run="run 7"
        )
        part = bundle.join()
        if is_done:
            node = NodeEntry(host=host, status="ok")
            manifest = Manifest(version="1", created=5.0, nodes=(node,))
            write_manifest(part.folder, manifest)

    def nodes(self):
        """
        Which nodes the snapshot is of, and what came of each.
        """
        nodes = read_manifest(self.folder / "hang").nodes
        return [(node.host, node.status) for node in nodes]

    def names(self):
        """
        Which snapshots there are.
        """
        return sorted(x.name for x in self.folder.iterdir())


@pytest.fixture(name="job")
def _job(tmp_path, monkeypatch):
    """
    A job of two ranks on one node, which hangs.
    """
    (tmp_path / "shared").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    job = Job(tmp_path / "shared")
    for name in ("SLURMD_NODENAME", "DISTDEBUG_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: job.host)
    # Processes of several nodes cannot be had on one, nor can ranks that
    # hang for minutes: what finds them and looks at them is made up.
    monkeypatch.setattr(response, "read_environ", lambda _: (job.environ, ""))
    monkeypatch.setattr(response, "find_workers", job.find)
    monkeypatch.setattr(response, "find_workers_by_pid", job.find_by_number)
    monkeypatch.setattr(response, "capture_node", job.look)
    monkeypatch.setattr(response, "collect_node", job.collect)
    monkeypatch.setattr(time, "monotonic", lambda: job.now)
    return job


class TestOutcome:
    def test_explained(self, job):
        """
        A job on one node is looked at, taken, and explained at once.
        """
        got = job.respond()

        assert ("explained", job.folder / "hang") == (got.outcome, got.bundle)
        assert (Cause.SLEEPING, STALLED) == (got.hang.cause, got.hang.reason)
        assert got.bundle == got.hang.folder
        assert got.summary == got.hang.summary
        assert str(got.bundle) in got.hang.report
        assert ["n1"] == [host for host, _ in job.nodes()]
        assert [(100, 101)] == job.looks
        assert [(100, 101)] == [x.pids for x in job.wanted]
        assert 1000.0 == job.now
        assert (got.bundle / "report.html").is_file()

    @pytest.mark.parametrize(
        ("cause", "detail"),
        [
            (Cause.PROGRESSING, None),
            (Cause.IDLE, None),
            (Cause.CHECKPOINTING, None),
            (Cause.RANK_NOT_ARRIVED, Cause.COMPILING),
            (Cause.RANK_NOT_ARRIVED, Cause.PROGRESSING),
            (Cause.PYTHON_LOOP, None),
            (Cause.RANK_NOT_ARRIVED, Cause.NATIVE_SPIN),
        ],
    )
    def test_fine(self, job, cause, detail):
        """
        If nothing is wrong, that is all, and no folder is left behind.
        """
        job.seen = finding(cause, detail_cause=detail)

        got = job.respond(patience_s=66.0, running_s=66.0)

        assert ("fine", f"it is {cause}") == (got.outcome, got.summary)
        assert (None, None) == (got.bundle, got.hang)
        assert [] == job.names()

    @pytest.mark.parametrize(
        ("cause", "detail", "patience_s", "running_s"),
        [
            (Cause.CHECKPOINTING, None, 65.0, 1e9),
            (Cause.RANK_NOT_ARRIVED, Cause.COMPILING, 65.0, 1e9),
            (Cause.RANK_NOT_ARRIVED, Cause.PROGRESSING, 65.0, 1e9),
            (Cause.PROGRESSING, None, 65.0, 1e9),
            (Cause.PYTHON_LOOP, None, 1e9, 65.0),
            (Cause.RANK_NOT_ARRIVED, Cause.NATIVE_SPIN, 1e9, 65.0),
            (Cause.IO_WAIT, None, 1e9, 1e9),
        ],
    )
    def test_slow(self, job, *, cause, detail, patience_s, running_s):
        """
        What just takes long is fine for as long as it may take, and not for
        ever.
        """
        job.seen = finding(cause, detail_cause=detail)

        got = job.respond(patience_s=patience_s, running_s=running_s)

        assert "explained" == got.outcome
        assert ["hang"] == job.names()

    def test_nothing_seen(self, job):
        """
        A look that finds nothing does not prevent a snapshot.
        """
        job.seen = None

        assert "explained" == job.respond().outcome

    def test_wait(self, job):
        """
        When a fixed wait is over, a snapshot is taken whatever a look would
        find.
        """
        job.seen = finding(Cause.PROGRESSING)

        got = job.respond(WAIT)

        assert "explained" == got.outcome
        assert [] == job.looks

    def test_fine_after_all(self, job):
        """
        What a snapshot shows to be fine is reported as fine, and kept.
        """
        job.frame = SAVES

        got = job.respond()

        assert ("fine", Cause.CHECKPOINTING) == (got.outcome, got.hang.cause)
        assert got.hang.folder == got.bundle
        assert ["hang"] == job.names()

    def test_busy(self, job):
        """
        While another watcher of this node is at work, nothing is done.
        """
        inside = []
        job.during_look = lambda: inside.append(run_beside(job))

        got = job.respond()

        assert ("explained", "busy") == (got.outcome, inside[0].outcome)
        assert "another watcher" in inside[0].summary
        assert 1 == len(job.looks)

    def test_no_lock(self, job, monkeypatch, caplog):
        """
        Where there can be no lock, twice is better than never.
        """
        run = job.folder.parent / "run"
        run.rmdir()
        run.write_text("a file")
        monkeypatch.setattr(os, "access", lambda *_: True)

        got = job.respond()

        assert "explained" == got.outcome
        assert "cannot be used" in caplog.text

    def test_another_folder(self, job):
        """
        A watcher that writes elsewhere watches another job, and need not wait.
        """
        inside = []
        other = job.folder / "other"

        def once():
            job.during_look = lambda: None
            inside.append(run_beside(job, output_dir=other))

        job.during_look = once

        got = job.respond()

        assert ("explained", "explained") == (got.outcome, inside[0].outcome)
        assert ["hang", "other"] == job.names()

    def test_odd_name(self, job):
        """
        A folder may have any name that the system allows.
        """
        folder = job.folder / os.fsdecode(b"hang-\xff")

        assert "explained" == job.respond(output_dir=folder).outcome

    def test_elsewhere(self, job):
        """
        What this node has taken is not looked at again.
        """
        first = job.respond()

        second = job.respond()

        assert ("elsewhere", first.bundle) == (second.outcome, second.bundle)
        assert second.hang is None
        assert 1 == len(job.looks) == len(job.wanted)

    def test_known(self, job):
        """
        The next hang is another snapshot.
        """
        first = job.respond()

        second = job.respond(but=frozenset({first.bundle}))

        assert ("explained", "hang.2") == (second.outcome, second.bundle.name)

    def test_overtaken(self, job):
        """
        A watcher that was overtaken while it looked leaves the snapshot to the
        other.
        """

        def overtake():
            job.join("n0", is_done=True)
            job.join("n1", is_done=True)

        job.during_look = overtake

        got = job.respond()

        assert ("elsewhere", job.folder / "hang") == (got.outcome, got.bundle)
        assert [] == job.wanted

    def test_no_folder(self, job):
        """
        If the folder cannot be made, the finding of the stacks is reported.
        """
        (job.folder / "file").write_text("")

        got = job.respond(output_dir=job.folder / "file" / "hang")

        assert ("explained", None) == (got.outcome, got.bundle)
        assert Cause.COLLECTIVE_WAIT is got.hang.cause
        (lost,) = got.hang.data["manifest"]["skipped"]
        assert ("snapshot", "Not a directory") == (
            lost["what"],
            lost["reason"],
        )

    def test_folder_vanishes(self, job):
        """
        Nor is anybody left in the dark if it vanishes meanwhile.
        """
        job.during_collect = lambda: shutil.rmtree(job.folder / "hang")

        got = job.respond(WAIT)

        assert "explained" == got.outcome
        assert Cause.COLLECTIVE_WAIT is got.hang.cause

    @pytest.mark.parametrize(
        ("before", "after", "attempt"),
        [
            ({}, {"job": "run 8"}, "0"),
            ({}, {}, "1"),
            ({"job": ""}, {"job": "", "pid": 300}, "0"),
        ],
    )
    def test_another_job(self, job, before, after, attempt):
        """
        What was taken of another job, or of an earlier run, is not ours; a
        job without a name is known by its processes.
        """
        job.workers["n1"] = (worker(0, **before), worker(1, **before))
        job.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
        first, again = job.respond(), job.respond()
        job.workers["n1"] = (worker(0, **after), worker(1, **after))
        job.environ["TORCHELASTIC_RESTART_COUNT"] = attempt

        second = job.respond()

        assert ["explained", "elsewhere", "explained"] == [
            first.outcome,
            again.outcome,
            second.outcome,
        ]
        assert ["hang", "hang.2"] == job.names()


def run_beside(job, **options):
    """
    Respond on the same node, in another thread.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(job.respond, **options).result(10)


class TestFindJobProcesses:
    def test_own_job(self, job):
        """
        A rank has its own job looked at, with those that it descends from.
        """
        job.workers["n1"] = (
            *(worker(0), worker(1)),
            worker(2, job="run 8"),
        )

        job.respond(inside=100)

        assert [(100, 101)] == job.looks
        assert [((), True)] == job.asked

    def test_strangers(self, job):
        """
        Ranks without a job name are distinguished by the process that started
        them.
        """
        job.workers["n1"] = (
            *(worker(0, job=""), worker(1, job="")),
            worker(2, job="", parent_pid=100, role="dataloader"),
            worker(3, job="", parent_pid=60),
            worker(4, job="", size=8),
            worker(5),
        )

        job.respond(inside=100)

        assert [(100, 101, 102)] == job.looks

    def test_unknown_rank(self, job):
        """
        If the rank that asks is not known as one, no other job is looked at.
        """
        job.workers["n1"] = (worker(0), worker(1, job="run 8"))

        job.respond(inside=9)

        assert [()] == job.looks

    def test_patterns(self, job):
        """
        From outside, only processes that match the user's patterns are looked
        at.
        """
        job.respond(wanted=SnapshotOptions(patterns=["train"]))

        assert [(("train",), False)] == job.asked

    def test_pids(self, job):
        """
        If processes are named, exactly these are taken.
        """
        job.respond(wanted=SnapshotOptions(pids=[101, 5]))

        assert [] == job.asked
        assert [(101,)] == job.looks
        assert [(101, 5)] == [x.pids for x in job.wanted]

    def test_nobody(self, job):
        """
        If no process was found, the snapshot looks for them once more.
        """
        job.workers.clear()

        got = job.respond()

        assert [None] == [x.pids for x in job.wanted]
        assert Cause.UNKNOWN is got.hang.cause
        assert 1000.0 == job.now


class TestNodes:
    def test_at_once(self, job):
        """
        Two nodes that begin together have one snapshot; one explains it.
        """
        job.workers = {"n1": (worker(0),), "n2": (worker(1),)}
        both = threading.Barrier(2)
        job.during_collect = lambda: both.wait(10)

        def run(host):
            job.host = host
            return response.respond(
                STALLED, job.order, sleep=lambda _: time.sleep(0.001)
            )

        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(run, ("n1", "n2")))

        (hang,) = [x.hang for x in got if x.hang is not None]
        assert ["explained", "taken"] == sorted(x.outcome for x in got)
        assert {job.folder / "hang"} == {x.bundle for x in got}
        assert (Cause.SLEEPING, [1]) == (
            hang.cause,
            hang.data["verdict"]["ranks"],
        )
        assert [("n1", "ok"), ("n2", "ok")] == job.nodes()
        assert not (hang.folder / MARK).exists()

    def test_wait_for_others(self, job):
        """
        The first node waits until no more nodes join, and all are done.
        """
        job.workers = {"n1": (worker(0),), "n2": (worker(1),)}

        def done():
            write_stacks(job.folder / "hang" / "n2", 1)
            node = NodeEntry(host="n2", status="ok")
            manifest = Manifest(version="1", created=5.0, nodes=(node,))
            write_manifest(job.folder / "hang" / "n2", manifest)

        job.at(20, lambda: job.join("n2"))
        job.at(100, done)

        got = job.respond()

        assert 1100.0 <= job.now <= 1105.0
        assert Cause.SLEEPING is got.hang.cause

    @pytest.mark.parametrize(
        "workers",
        [(worker(0),), (worker(0, size=4), worker(1, size=None))],
    )
    def test_nobody_comes(self, job, workers):
        """
        Others may have no watcher, or see another file system.
        """
        job.workers["n1"] = workers

        got = job.respond()

        assert "explained" == got.outcome
        assert 1025.0 <= job.now <= 1035.0

    def test_never_done(self, job):
        """
        A node that died while it took its part is reported, and not awaited.
        """
        job.workers["n1"] = (worker(0),)
        job.at(5, lambda: job.join("n2"))

        got = job.respond()

        assert 1180.0 == job.now
        assert [("n1", "ok"), ("n2", "partial")] == job.nodes()
        assert "n2" in got.hang.report

    def test_always_more(self, job):
        """
        However many come one after another, there is an end.
        """
        job.workers["n1"] = (worker(0, size=999),)

        for number in range(2, 60):
            host = f"n{number}"
            job.at(5 * number, lambda x=host: job.join(x, is_done=True))

        job.respond()

        assert 1180.0 == job.now

    def test_taken(self, job):
        """
        A node that is not first leaves the explanation to the first, and does
        not wait.
        """
        job.workers["n2"] = (worker(1),)
        job.join("n1")
        job.host = "n2"

        got = job.respond()

        assert ("taken", job.folder / "hang") == (got.outcome, got.bundle)
        assert got.hang is None
        assert (got.bundle / "n2" / "manifest.json").exists()
        assert 1000.0 == job.now

    def test_first_dies(self, job):
        """
        If the node that began it died, another one explains it later, once.
        """
        job.workers["n2"] = (worker(1),)
        job.join("n1")
        job.host = "n2"
        taken = job.respond()
        soon = job.respond()
        mark = taken.bundle / MARK
        past = time.time() - 290
        os.utime(mark, (past, past))

        late = job.respond()
        again = job.respond()

        assert ["taken", "elsewhere", "explained", "elsewhere"] == [
            got.outcome for got in (taken, soon, late, again)
        ]
        assert Cause.SLEEPING is late.hang.cause
        assert [("n1", "partial"), ("n2", "ok")] == job.nodes()

    def test_late(self, job):
        """
        A node that comes after the end explains the snapshot once more, with
        all parts.
        """
        job.workers = {"n1": (worker(0),), "n2": (worker(1),)}
        job.respond()
        job.host = "n2"

        got = job.respond()

        assert "explained" == got.outcome
        assert Cause.SLEEPING is got.hang.cause
        assert ["n1", "n2"] == [host for host, _ in job.nodes()]

    def test_left(self, job):
        """
        If it was killed while it waited, what is there is explained.
        """
        job.workers["n1"] = (worker(0),)
        killed = iter([KeyboardInterrupt()])

        def sleep(seconds):
            for error in killed:
                raise error
            job.sleep(seconds)

        with pytest.raises(KeyboardInterrupt):
            response.respond(STALLED, job.order, sleep=sleep)

        got = job.respond()

        assert ("explained", job.folder / "hang") == (got.outcome, got.bundle)
        assert 1 == len(job.wanted)
        assert ["n1"] == [host for host, _ in job.nodes()]
        assert not (got.bundle / MARK).exists()
        assert "elsewhere" == job.respond().outcome

    def test_take_over(self, job):
        """
        If the first watcher was killed, the next of its node explains it.
        """
        job.join("n1")

        got = job.respond()

        assert ("explained", job.folder / "hang") == (got.outcome, got.bundle)
        assert Cause.SLEEPING is got.hang.cause

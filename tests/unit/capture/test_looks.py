"""
Looking at one process several times, with stand-ins for py-spy and the kernel.
"""

from __future__ import annotations

import os

import attrs
import pytest

from distdebug.capture import looks
from distdebug.capture.looks import (
    Look,
    describe_process,
    no_look,
    take_look,
)
from distdebug.capture.model import Attempt, CaptureStatus
from distdebug.capture.pyspy import PythonDump
from distdebug.capture.values import Digest
from distdebug.processes import ProcessState, ThreadFacts, Worker
from distdebug.stacks import (
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
)


PID = 4711
NOBODY = 999_999_999
WORKER = Worker(
    pid=PID,
    start_ticks=5,
    parent_pid=1,
    uid=0,
    title="python train.py",
    framework="torchrun",
    rank=3,
    world_size=8,
    coordinates=(("tp", 1),),
)
ALIVE = ProcessState(letter="S", start_ticks=5)
OK = Attempt(tool="py-spy", status=CaptureStatus.OK)


def thread(line=1, name="step", **kwargs):
    """
    The main thread, somewhere.
    """
    return ThreadStack(
        name="MainThread",
        frames=(StackFrame(name, "train.py", line),),
        thread_id=kwargs.pop("thread_id", PID),
        is_main=True,
        **kwargs,
    )


def facts(voluntary=0, cpu_s=0.0, name="python"):
    """
    What the kernel tells of a thread.
    """
    return ThreadFacts(
        name=name,
        state="S",
        voluntary=voluntary,
        involuntary=0,
        cpu_s=cpu_s,
    )


def look(when, *threads, state=ALIVE, attempt=OK, **kwargs):
    """
    One look at the process.
    """
    return Look(
        when=when,
        state=state,
        facts=kwargs.get("facts", {PID: facts()}),
        threads=threads,
        attempt=attempt,
    )


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    """
    A kernel that knows the process, and what its threads wait for.
    """
    monkeypatch.setattr(looks, "idle_seconds", lambda *_: 7.0)
    monkeypatch.setattr(looks, "read_system_call", lambda *_: ("read", "f"))


class TestDescribeProcess:
    def test_worker(self):
        """
        What is known of the worker goes with its stacks.
        """
        process = describe_process(WORKER, [look(0, thread())], host="n1")

        assert (PID, 3, 8, "n1", "S", "rank", "python train.py") == (
            process.pid,
            process.rank,
            process.world_size,
            process.host,
            process.state,
            process.role,
            process.command,
        )
        assert (("tp", 1),) == process.coordinates
        assert process.tracer_pid is None

    def test_one_look(self):
        """
        From one look nobody knows who moves, but the kernel tells the rest.
        """
        (only,) = describe_process(
            WORKER, [look(0, thread())], host="n1"
        ).threads

        assert only.activity is None
        assert SystemCall(name="read", target="f") == only.system_call
        assert 7.0 == only.idle_s
        assert "S" == only.state

    def test_activity(self):
        """
        Several looks tell what became of a thread between the first and last.
        """
        seen = [
            look(10, thread(), facts={PID: facts(5, 1.0)}),
            look(11, thread(line=2), facts={PID: facts(6, 1.2)}),
            look(12, thread(), facts={PID: facts(9, 1.5)}),
        ]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert (
            ThreadActivity(
                seconds=2,
                voluntary=4,
                involuntary=0,
                cpu_s=0.5,
                has_moved=True,
                has_left=False,
            )
            == only.activity
        )

    def test_left(self):
        """
        Another function is more than another line.
        """
        seen = [look(0, thread()), look(1, thread(name="save"))]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert only.activity.has_left

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([(1,), (1,), (1,)], False),
            ([(1,), (1,), (2,)], True),
            ([(1,), (), (2,)], True),
            ([(1,), (), (1,)], False),
            ([(1,), (), ()], None),
            ([(), (), ()], None),
        ],
    )
    def test_new_values(self, values, expected):
        """
        Who has new values went on, at the same line too.
        """
        seen = [
            attrs.evolve(
                look(n, thread()), values=tuple(Digest(i, 0) for i in v)
            )
            for n, v in enumerate(values)
        ]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert expected is only.activity.has_new_values

    @pytest.mark.parametrize(
        ("owners", "expected"),
        [
            ([True, False], True),
            ([True, True], False),
            ([None, True], False),
            ([None, None], None),
        ],
    )
    def test_let_go(self, owners, expected):
        """
        Who was seen while nobody held the lock had let go of it.
        """
        seen = [
            look(n, attrs.evolve(thread(), owns_gil=owner))
            for n, owner in enumerate(owners)
        ]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert expected is only.activity.has_let_go

    def test_lock_of_another(self):
        """
        While another thread holds the lock, who has none may wait for it.
        """
        waits = attrs.evolve(thread(), owns_gil=False)
        holds = attrs.evolve(
            thread(), owns_gil=True, thread_id=2, is_main=False
        )
        seen = [look(n, waits, holds) for n in range(2)]

        first, _ = describe_process(WORKER, seen, host="n1").threads

        assert first.activity.has_let_go is False

    @pytest.mark.parametrize(
        ("callers", "outer_line", "expected"),
        [
            ((1, 1), 5, False),
            ((1, 2), 5, True),
            ((1, 1), 6, True),
            ((), 6, True),
            ((), 5, None),
        ],
        ids=["same", "values", "line", "line alone", "unknown"],
    )
    def test_returned(self, callers, outer_line, expected):
        """
        If those that had called a function went on, it came to its end, even
        if it is in the same functions again.
        """
        frames = [
            (*thread().frames, StackFrame("train", "t.py", line))
            for line in (5, outer_line)
        ]
        digests = [(Digest(n, c),) for n, c in enumerate(callers)]
        seen = [
            attrs.evolve(look(n, attrs.evolve(thread(), frames=f)), values=v)
            for n, (f, v) in enumerate(
                zip(frames, digests or [(), ()], strict=True)
            )
        ]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert expected is only.activity.has_returned
        assert only.activity.has_left is False

    def test_stack_seen_once(self):
        """
        Whoever had a stack only once is not known to stand still.
        """
        seen = [look(0), look(1, thread())]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert only.activity.has_moved is None

    def test_native_thread(self):
        """
        A thread that Python does not know is there all the same.
        """
        both = {PID: facts(), 4712: facts(name="pt_nccl_watchdg")}

        process = describe_process(
            WORKER, [look(0, thread(), facts=both)], host="n1"
        )

        main, native = process.threads
        assert main.is_main
        assert ("pt_nccl_watchdg", (), 4712, False) == (
            native.name,
            native.frames,
            native.thread_id,
            native.is_main,
        )

    def test_new_thread(self):
        """
        A thread that was not there before has no activity.
        """
        later = {PID: facts(), 4712: facts()}
        seen = [look(0, thread()), look(1, thread(), facts=later)]

        _, new = describe_process(WORKER, seen, host="n1").threads

        assert new.activity is None

    def test_ended_meanwhile(self):
        """
        Of a process that ended between two looks the last stack is kept.
        """
        gone = Attempt(tool="proc", status=CaptureStatus.EXITED)
        seen = [look(0, thread()), look(1, state=None, attempt=gone)]

        process = describe_process(WORKER, seen, host="n1")

        assert "X" == process.state
        assert ["step"] == [f.name for f in process.threads[0].frames]

    def test_unknown_number(self):
        """
        The main thread has the number of the process, if it is not told.
        """
        seen = [look(0, thread(thread_id=None))]

        (only,) = describe_process(WORKER, seen, host="n1").threads

        assert PID == only.thread_id

    def test_debugger(self):
        """
        The debugger that holds a process is named.
        """
        held = attrs.evolve(ALIVE, letter="t", tracer_pid=99)

        process = describe_process(
            WORKER, [look(0, thread(), state=held)], host="n1"
        )

        assert ("t", 99) == (process.state, process.tracer_pid)


class TestTakeLook:
    @pytest.fixture(autouse=True)
    def py_spy(self, monkeypatch):
        """
        A py-spy that sees one thread in every process.
        """
        answer = PythonDump((thread(),), OK, (7,))
        monkeypatch.setattr(looks, "dump_python", lambda *_, **__: answer)
        monkeypatch.setattr(looks, "read_threads", lambda _: {PID: facts()})

    def test_alive(self, monkeypatch):
        """
        The kernel and py-spy are asked.
        """
        monkeypatch.setattr(looks, "read_state", lambda _: ALIVE)

        taken = take_look(WORKER, timeout_s=1)

        assert (ALIVE, (thread(),), OK) == (
            taken.state,
            taken.threads,
            taken.attempt,
        )
        assert {PID} == set(taken.facts)
        assert (7,) == taken.values

    @pytest.mark.parametrize(
        ("letter", "expected"), [("R", True), ("S", False)]
    )
    def test_busy(self, monkeypatch, letter, expected):
        """
        Only of those that run it is asked whether variables change.
        """
        asked = []

        def dump(*_, values, **__):
            asked.append(values)
            return PythonDump((), OK)

        runs = {PID: attrs.evolve(facts(), state=letter)}
        monkeypatch.setattr(looks, "read_state", lambda _: ALIVE)
        monkeypatch.setattr(looks, "read_threads", lambda _: runs)
        monkeypatch.setattr(looks, "dump_python", dump)

        take_look(WORKER, timeout_s=1)

        assert [expected] == asked

    @pytest.mark.parametrize(
        ("state", "status"),
        [
            (None, CaptureStatus.EXITED),
            (ProcessState(letter="Z", start_ticks=5), CaptureStatus.ZOMBIE),
            (ProcessState(letter="X", start_ticks=5), CaptureStatus.EXITED),
            (ProcessState(letter="S", start_ticks=6), CaptureStatus.EXITED),
        ],
        ids=["gone", "zombie", "dead", "its number was used again"],
    )
    def test_gone(self, monkeypatch, state, status):
        """
        No tool is let loose on what is no process any more.
        """
        worker = attrs.evolve(WORKER, pid=NOBODY)
        monkeypatch.setattr(looks, "read_state", lambda _: state)

        taken = take_look(worker, timeout_s=1)
        described = describe_process(worker, [taken], host="n1")

        assert status is taken.attempt.status
        assert () == taken.threads
        assert described.state == ("Z" if status == "zombie" else "X")

    def test_unread(self, monkeypatch):
        """
        A process of which nothing can be read, because no more files may be
        open, is not called dead.
        """
        worker = attrs.evolve(WORKER, pid=os.getpid())
        monkeypatch.setattr(looks, "read_state", lambda _: None)

        taken = take_look(worker, timeout_s=1)
        described = describe_process(worker, [taken], host="n1")

        assert "tool_failed" == taken.attempt.status
        assert "ulimit -n" in taken.attempt.remedy
        assert "" == described.state

    def test_unread_when_named(self, monkeypatch):
        """
        One that could not be read at first is looked at once it can be.
        """
        worker = attrs.evolve(WORKER, start_ticks=0)
        monkeypatch.setattr(looks, "read_state", lambda _: ALIVE)

        taken = take_look(worker, timeout_s=1)

        assert OK == taken.attempt


class TestOtherCollector:
    @pytest.fixture
    def held(self, monkeypatch):
        """
        A process that a debugger holds, and who started that.
        """
        files = {
            "/proc/99/stat": b"99 (gdb) S 98 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0"
            b" 1 0 77 0 0",
        }
        state = ProcessState(letter="t", start_ticks=5, tracer_pid=99)
        monkeypatch.setattr(looks, "read_proc", files.get)
        monkeypatch.setattr(looks, "read_state", lambda _: state)
        monkeypatch.setattr(
            looks, "dump_python", lambda *_, **__: ((), OK, ())
        )
        monkeypatch.setattr(looks, "read_threads", lambda _: {})
        return files

    def test_ours(self, held):
        """
        One that our own tool holds will go on in a moment.
        """
        held["/proc/98/cmdline"] = b"python\0-I\0/x/guard_program.py\0--"

        state = take_look(WORKER, timeout_s=1).state

        assert ("S", 0) == (state.letter, state.tracer_pid)

    def test_of_others(self, held):
        """
        One that somebody else holds is stopped.
        """
        held["/proc/98/cmdline"] = b"bash\0"

        state = take_look(WORKER, timeout_s=1).state

        assert ("t", 99) == (state.letter, state.tracer_pid)


def test_zombie_leader(monkeypatch):
    """
    Of a process whose main thread has ended, the other threads are seen.
    """
    zombie = ProcessState(letter="Z", start_ticks=5)
    monkeypatch.setattr(looks, "read_state", lambda _: zombie)
    monkeypatch.setattr(looks, "read_threads", lambda _: {4712: facts()})

    process = describe_process(
        WORKER, [take_look(WORKER, timeout_s=1)], host="n1"
    )

    assert [(4712, "S")] == [(t.thread_id, t.state) for t in process.threads]


def test_no_look():
    """
    Even if the kernel does not answer, there is something to be shown.
    """
    process = describe_process(WORKER, [no_look()], host="n1")

    assert ("", ()) == (process.state, process.threads)
    assert CaptureStatus.TIMED_OUT is no_look().attempt.status


def test_real_process():
    """
    This very process runs.
    """
    assert os.getpid() in looks.read_threads(os.getpid())

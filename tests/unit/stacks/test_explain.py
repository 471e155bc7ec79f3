"""
What the main thread is waiting for.
"""

from __future__ import annotations

import os

import attrs
import pytest

from distdebug.findings import Cause
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
    explain_stacks,
)
from distdebug.stacks.explain import explain_process
from distdebug.stacks.rules import DOING, read_rules


LIB = "/usr/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
USER = ("train", "/home/me/train.py")


def thread(*frames, **changes):
    """
    A main thread; its frames are given as (function, file), innermost first.
    """
    return ThreadStack(
        **{
            "name": "MainThread",
            "frames": tuple(
                StackFrame(*f, i) for i, f in enumerate(frames, start=1)
            ),
            "is_main": True,
            **changes,
        }
    )


def view(*threads, **kwargs):
    """
    What a process with these threads is doing.
    """
    process = ProcessStacks(pid=1, source="", threads=threads)
    return explain_process(process, **kwargs)


def cause_of(*threads, **kwargs):
    """
    The cause that these threads stand for, if it is known.
    """
    cause = view(*threads, **kwargs).cause
    return None if cause is Cause.UNKNOWN else cause


def explain(*frames, code="", **changes):
    """
    The cause that these frames stand for, if it is known.
    """
    return cause_of(thread(*frames, **changes), read_line=lambda *_: code)


STACKS = [
    (
        Cause.COLLECTIVE_WAIT,
        [
            ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py"),
            ("wrapper", f"{TORCH}/distributed/c10d_logger.py"),
            USER,
        ],
    ),
    (
        Cause.COLLECTIVE_WAIT,
        [
            ("__call__", f"{TORCH}/_ops.py"),
            (
                "wait_tensor",
                f"{TORCH}/distributed/_functional_collectives.py",
            ),
            USER,
        ],
    ),
    (
        Cause.COLLECTIVE_WAIT,
        [
            ("epoll_wait", "libc.so.6"),
            ("gloo::transport::tcp::Buffer::waitRecv", "libtorch_cpu.so"),
            USER,
        ],
    ),
    (
        Cause.RENDEZVOUS_WAIT,
        [
            ("_create_c10d_store", f"{TORCH}/distributed/rendezvous.py"),
            (
                "init_process_group",
                f"{TORCH}/distributed/distributed_c10d.py",
            ),
            USER,
        ],
    ),
    (
        Cause.DATALOADER_WAIT,
        [
            ("DS.__getitem__", "/home/me/data.py"),
            ("fetch", f"{TORCH}/utils/data/_utils/fetch.py"),
            USER,
        ],
    ),
    (
        Cause.DATALOADER_WAIT,
        [
            ("select", f"{LIB}/selectors.py"),
            ("wait", f"{LIB}/multiprocessing/connection.py"),
            ("Queue.get", f"{LIB}/multiprocessing/queues.py"),
            ("_try_get_data", f"{TORCH}/utils/data/dataloader.py"),
            USER,
        ],
    ),
    (
        Cause.CHECKPOINTING,
        [
            ("write", f"{LIB}/x.py"),
            ("save", f"{TORCH}/serialization.py"),
            USER,
        ],
    ),
    (Cause.CHECKPOINTING, [("f", "/a.py"), ("Me.save_checkpoint", "/b.py")]),
    (
        Cause.COMPILING,
        [
            ("wait", f"{LIB}/threading.py"),
            ("compile", f"{TORCH}/_inductor/async_compile.py"),
        ],
    ),
    (
        Cause.GPU_SYNC_WAIT,
        [("synchronize", f"{TORCH}/cuda/__init__.py"), USER],
    ),
    (
        Cause.GPU_SYNC_WAIT,
        [("ioctl", "libc.so"), ("cudaStreamSynchronize", "libcudart.so")],
    ),
    (
        Cause.SUBPROCESS_WAIT,
        [("Popen._try_wait", f"{LIB}/subprocess.py"), USER],
    ),
    (
        Cause.IMPORT_LOCK,
        [("acquire", "<frozen importlib._bootstrap>"), USER],
    ),
    (
        Cause.FUTURE_WAIT,
        [
            ("wait", f"{LIB}/threading.py"),
            ("result", f"{LIB}/concurrent/futures/_base.py"),
            USER,
        ],
    ),
    (
        Cause.FUTURE_WAIT,
        [("Thread.join", f"{LIB}/threading.py"), USER],
    ),
    (
        Cause.QUEUE_WAIT,
        [
            ("Condition.wait", f"{LIB}/threading.py"),
            ("Queue.get", f"{LIB}/queue.py"),
            USER,
        ],
    ),
    (
        Cause.EVENT_LOOP_IDLE,
        [
            ("select", f"{LIB}/selectors.py"),
            ("BaseEventLoop._run_once", f"{LIB}/asyncio/base_events.py"),
        ],
    ),
    (Cause.IO_WAIT, [("readinto", f"{LIB}/socket.py"), USER]),
    (Cause.IO_WAIT, [("Path.open", f"{LIB}/pathlib.py"), USER]),
    (Cause.IO_WAIT, [("open", f"{LIB}/pathlib/_local.py"), USER]),
    (Cause.LOCK_DEADLOCK, [("Event.wait", f"{LIB}/threading.py"), USER]),
    (Cause.LOCK_DEADLOCK, [("acquire", "/x/filelock/_api.py"), USER]),
    (Cause.SLEEPING, [("sleep", "/x/tenacity/nap.py"), USER]),
    (Cause.SLEEPING, [("clock_nanosleep@@GLIBC_2.17", "libc.so.6"), USER]),
]

CODE = [
    (Cause.SLEEPING, "    time.sleep(3600)"),
    (Cause.SUBPROCESS_WAIT, "os.waitpid(pid, 0)"),
    (Cause.LOCK_DEADLOCK, "with self._lock:"),
    (Cause.LOCK_DEADLOCK, "lock.acquire()"),
    (Cause.LOCK_DEADLOCK, "fcntl.flock(file, fcntl.LOCK_EX)"),
    (Cause.LOCK_DEADLOCK, "lockf(file, LOCK_EX)"),
    (Cause.GPU_SYNC_WAIT, "event.synchronize()"),
    (Cause.IO_WAIT, "with open(path) as file:"),
    (Cause.IO_WAIT, "data = file.read(16)"),
    (None, "x = asleep + reading"),
    (None, "flocks = birds(3)"),
]


class TestMainThread:
    @pytest.mark.parametrize(("cause", "frames"), STACKS)
    def test_stack(self, cause, frames):
        """
        The stack tells what is waited for.
        """
        assert cause == explain(*frames)

    @pytest.mark.parametrize(("cause", "frames"), STACKS)
    def test_windows(self, cause, frames):
        """
        So does one of another system.
        """
        frames = [(name, file.replace("/", "\\")) for name, file in frames]

        assert cause == explain(*frames)

    @pytest.mark.parametrize(("cause", "code"), CODE)
    def test_code(self, cause, code):
        """
        Functions in C are told by the line that calls them.
        """
        assert cause == explain(USER, code=code)

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("fcntl.flock(file, fcntl.LOCK_EX)", Cause.LOCK_DEADLOCK),
            ("time.sleep(60)", Cause.SLEEPING),
            ("write_all(state)", Cause.CHECKPOINTING),
            ("", Cause.CHECKPOINTING),
        ],
    )
    @pytest.mark.parametrize("active", [True, None])
    def test_name(self, code, expected, active):
        """
        The name of a function tells what it does, unless the line that waits
        tells more.
        """
        stack = [("save_checkpoint", "/home/me/save.py"), USER]

        assert expected == explain(*stack, code=code, active=active)

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("dist.irecv(grad, rank + 1).wait()", True),
            ("dist.isend(x, 1, tag=2).wait()", True),
            ("reqs[0].wait()", True),
            ("work.wait()", True),
            ("for r in reqs: r.wait()", True),
            ("w.wait()", True),
            ("dist.broadcast(x, 0, async_op=True).wait()", True),
            ("done.wait()", False),
        ],
    )
    def test_waits_for_work(self, code, expected):
        """
        Who waits for what torch does in the background waits for the others.
        """
        call = SystemCall(name="futex")

        got = explain(USER, code=code, system_call=call)

        assert expected == (got is Cause.COLLECTIVE_WAIT)

    def test_waits_for_key(self):
        """
        A key of the store is no rendezvous of all ranks.
        """
        got = explain(USER, code='store.wait(["lr/3"], timeout)')

        assert Cause.RENDEZVOUS_WAIT is got

    def test_code_of_innermost(self):
        """
        Only the innermost line can be the one that waits.
        """
        lines = {"/a.py": "b()", "/b.py": "time.sleep(1)"}
        stack = thread(("a", "/a.py"), ("b", "/b.py"))

        got = cause_of(stack, read_line=lambda f, _: lines[f])

        assert got is None

    def test_code_in_dump(self):
        """
        The code that a tool showed counts more than what is on this machine.
        """
        frame = StackFrame("f", "/a.py", 1, code="with self._lock:")
        stack = ThreadStack(name="", frames=(frame,), is_main=True)

        got = cause_of(stack, read_line=lambda *_: "time.sleep(1)")

        assert Cause.LOCK_DEADLOCK == got

    def test_loop(self):
        """
        A thread that runs, and does nothing that is known, is in a loop.
        """
        assert Cause.PYTHON_LOOP == explain(USER, active=True)
        assert explain(USER, active=False) is None
        assert explain(USER, active=None) is None

    def test_evidence(self):
        """
        The frame that tells it is returned.
        """
        got = view(thread(("f", "/a.py"), ("sleep", "/b.py"), USER))

        assert StackFrame("sleep", "/b.py", 2) == got.frame

    def test_which_thread(self):
        """
        The main thread counts; without one, the first that has frames.
        """
        sleeping = thread(("sleep", "/a.py"), is_main=False)
        waiting = thread(("join", f"{LIB}/threading.py"))
        empty = thread()

        assert (
            waiting
            == view(attrs.evolve(sleeping, name="wandb"), waiting).thread
        )
        assert Cause.SLEEPING == cause_of(empty, sleeping)
        assert view(empty) is None
        assert view() is None


class TestSourceLine:
    def explain(self, path, line):
        """
        The cause that a line of a file on this machine stands for.
        """
        frame = StackFrame("f", str(path), line)

        return cause_of(ThreadStack(name="", frames=(frame,)))

    def test_read(self, tmp_path):
        """
        The code is read where it is there.
        """
        file = tmp_path / "a.py"
        file.write_text("import time\ntime.sleep(1)\n")

        assert Cause.SLEEPING == self.explain(file, 2)
        assert self.explain(file, 1) is None
        assert self.explain(file, 0) is None
        assert self.explain(file, 99) is None

    def test_not_there(self, tmp_path, monkeypatch):
        """
        Without the code nothing is guessed, and no strange file is opened.
        """
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.py").write_text("time.sleep(1)\n")
        os.mkfifo(tmp_path / "pipe")
        monkeypatch.setattr("distdebug.stacks.source._MOST_SOURCE", 20)
        (tmp_path / "long.py").write_text("#" * 30 + "\nsleep(1)\n")

        assert self.explain("a.py", 1) is None
        assert self.explain("/a\0b", 1) is None
        assert self.explain(tmp_path / "pipe", 1) is None
        assert self.explain(tmp_path / "none", 1) is None
        assert self.explain(tmp_path / "long.py", 2) is None

    def test_unreadable(self, tmp_path, monkeypatch):
        """
        A file that cannot be read says nothing.
        """

        def fail(*_):
            raise OSError

        file = tmp_path / "a.py"
        file.write_text("sleep(1)\n")
        monkeypatch.setattr("pathlib.Path.open", fail)

        assert self.explain(file, 1) is None


def process(pid, *frames, **changes):
    """
    A process with one thread.
    """
    return ProcessStacks(
        pid=pid, source=f"pyspy_{pid}", threads=(thread(*frames),), **changes
    )


class TestExplainStacks:
    def test_outlier(self):
        """
        Who waits in a collective is not to blame if somebody else is not.
        """
        waiting = STACKS[0][1]
        late = [("sleep", "/usr/lib/python3.11/x.py"), USER]

        (got,) = explain_stacks(
            [
                process(1, *waiting, rank=0),
                process(2, *waiting, rank=1),
                process(3, *late, rank=2),
            ]
        )

        assert (Cause.SLEEPING, (2,)) == (got.cause, got.ranks)
        assert got.summary == (
            "rank 2 is sleeping in train (train.py:2); "
            "ranks 0-1 are waiting in all_reduce"
        )
        assert "/home/me/train.py" == got.location.file
        assert ("pyspy_3", "rank 2") == (
            got.evidence[0].source,
            got.evidence[0].location,
        )

    def test_all_in_collective(self):
        """
        If all wait in a collective, that is what there is to say.
        """
        (got,) = explain_stacks(
            process(pid, *STACKS[0][1], rank=pid - 1) for pid in (1, 2)
        )

        assert (Cause.COLLECTIVE_WAIT, (0, 1)) == (got.cause, got.ranks)
        assert got.summary.startswith("ranks 0-1 are waiting in all_reduce")

    def test_rare_first(self):
        """
        What the fewest processes do comes first.
        """
        got = explain_stacks(
            [
                process(1, ("sleep", "/a.py")),
                process(2, ("sleep", "/a.py")),
                process(3, ("join", f"{LIB}/threading.py")),
            ]
        )

        assert [Cause.FUTURE_WAIT, Cause.SLEEPING] == [f.cause for f in got]
        assert "pid 3" == got[0].evidence[0].location
        assert got[1].summary.startswith("processes 1, 2 are sleeping")

    def test_children(self):
        """
        Children are told by their parents; nothing known is nothing said.
        """
        got = explain_stacks(
            [
                process(1, *STACKS[4][1], rank=0),
                process(2, ("sleep", "/a.py"), parent_pid=1),
                process(3, USER),
            ]
        )

        assert [Cause.DATALOADER_WAIT] == [f.cause for f in got]

    def test_nothing(self):
        """
        Without stacks there is nothing to say.
        """
        assert () == explain_stacks([])


def test_words():
    """
    Every cause that a rule can name has its words.
    """
    causes = {rule.cause for rule in read_rules().rules}

    assert causes | {Cause.PYTHON_LOOP} <= set(DOING)

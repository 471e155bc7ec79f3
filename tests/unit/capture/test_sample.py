"""
Looking at one process several times, with stand-ins for py-spy and the kernel.
"""

from __future__ import annotations

import pytest

from distdebug.capture import CaptureStatus, capture_process
from distdebug.stacks import SystemCall, ThreadActivity


pytestmark = pytest.mark.process


STEP = (("step", "train.py", 1), ("<module>", "t.py", 9))
LATER = (("step", "train.py", 2), ("<module>", "t.py", 9))
SAVE = (("save", "train.py", 1), ("<module>", "t.py", 9))


@pytest.fixture
def pid(kernel):
    """
    A process that runs, and is rank 3 of 8.
    """
    return kernel.rank(3, 8, state="R")


@pytest.fixture
def look(pid, py_spy):
    """
    Looks as often as there are answers of py-spy.
    """

    def give(*answers):
        py_spy.sees(pid, *answers)
        return capture_process(pid, samples=len(answers), interval_s=0).stacks

    return give


@pytest.fixture
def activity(look):
    """
    Gives what became of the main thread.
    """
    return lambda *answers: look(*answers).main_thread.activity


def thread(frames=STEP, pid=None, variables=None, **fields):
    """
    A thread as py-spy shows it, the innermost of whose functions has these
    variables.
    """
    keys = ("name", "filename", "line")
    shown = [dict(zip(keys, frame, strict=True)) for frame in frames]
    for frame, values in zip(shown, variables or (), strict=False):
        frame["locals"] = values
    return {
        "pid": 7,
        "thread_id": 1,
        "os_thread_id": pid,
        "thread_name": "MainThread",
        "frames": shown,
        **fields,
    }


def variable(address, text="[1]", name="x"):
    """
    A variable as py-spy shows it.
    """
    return {"name": name, "addr": address, "repr": text}


def with_variables(*variables, frames=STEP):
    """
    An answer of py-spy with the variables of each frame.
    """
    return [thread(frames, variables=variables)]


class TestOneLook:
    def test_worker(self, kernel, look, pid):
        """
        What is known of the worker goes with its stacks; from one look it is
        not known who moves, but the kernel says the rest.
        """
        kernel.path(pid, f"task/{pid}/syscall").write_text("running\n")

        process = look(STEP)

        assert (pid, 3, 8, "R", "rank", "python train.py") == (
            process.pid,
            process.rank,
            process.world_size,
            process.state,
            process.role,
            process.command,
        )
        assert process.tracer_pid is None
        (only,) = process.threads
        assert (None, "R") == (only.activity, only.state)
        assert SystemCall(name="running", target="") == only.system_call
        # py-spy did not tell its number.
        assert pid == only.thread_id

    def test_native_thread(self, kernel, py_spy):
        """
        A thread that Python does not know is there all the same.
        """
        pid = kernel.rank(0, threads=["pt_nccl_watchdg"])
        py_spy.sees(pid, STEP)

        main, native = capture_process(pid).stacks.threads

        assert main.is_main
        assert ("pt_nccl_watchdg", (), pid + 1, False) == (
            native.name,
            native.frames,
            native.thread_id,
            native.is_main,
        )

    @pytest.mark.parametrize(
        ("starter", "letter", "tracer"),
        [
            (("python", "-I", "/x/guard_program.py", "--"), "S", None),
            (("bash",), "t", 99),
        ],
    )
    def test_debugger(self, kernel, py_spy, starter, letter, tracer):
        """
        The debugger that holds a process is named; but one that our own tool
        holds will go on in a moment.
        """
        pid = kernel.rank(0, state="t")
        py_spy.sees(pid, STEP)
        kernel.fake_proc.add(99, "gdb", parent=98)
        kernel.fake_proc.add(98, *starter)
        status = f"/proc/{pid}/status"
        kernel.change(status, "TracerPid:\t0", "TracerPid:\t99")

        process = capture_process(pid).stacks

        assert (letter, tracer) == (process.state, process.tracer_pid)


class TestNoLook:
    @pytest.mark.parametrize(
        ("letter", "status"),
        [("Z", CaptureStatus.ZOMBIE), ("X", CaptureStatus.EXITED)],
    )
    def test_ended(self, kernel, py_spy, letter, status):
        """
        No tool is let loose on what is no process any more; but other threads
        of one whose main thread has ended are seen.
        """
        pid = kernel.rank(0, state=letter, threads=["other"])

        got = capture_process(pid)

        assert status is got.status
        assert letter == got.stacks.state
        assert [pid, pid + 1] == [t.thread_id for t in got.stacks.threads]
        assert [] == py_spy.calls

    @pytest.mark.parametrize("is_used_again", [True, False])
    def test_ended_meanwhile(self, kernel, pid, py_spy, is_used_again):
        """
        Of a process that ended between two looks the last stack is kept, also
        if another one has its number now.
        """
        py_spy.sees(pid, STEP, SAVE)
        stat = kernel.path(pid, "stat")
        new = "sed -i 's/ 0 5 1000/ 0 6 1000/'" if is_used_again else "rm"
        py_spy.does(pid, 0, f"{new} {stat}")

        got = capture_process(pid, samples=2, interval_s=0)

        assert CaptureStatus.EXITED is got.status
        assert "X" == got.stacks.state
        assert "step" == got.stacks.main_thread.frames[0].name
        assert 1 == len(py_spy.calls)

    def test_unread(self, kernel, py_spy, sleeper):
        """
        A process of which nothing can be read, because no more files may be
        open, is not called dead.
        """
        path = f"/proc/{sleeper.pid}/stat"
        kernel.answers[path] = OSError(24, "Too many open files")

        got = capture_process(sleeper.pid)

        assert "tool_failed" == got.status
        assert "ulimit -n" in got.remedy
        assert "" == got.stacks.state

    def test_unread_when_named(self, kernel, pid, py_spy):
        """
        One that could not be read at first is looked at once it can be.
        """
        py_spy.sees(pid, STEP)
        path = f"/proc/{pid}/stat"
        kernel.answers[path] = [OSError(24, "Too many open files")]

        got = capture_process(pid)

        assert (0, "ok") == (got.worker.start_ticks, got.status)


class TestActivity:
    def test_facts(self, kernel, pid, py_spy):
        """
        Several looks show what became of a thread between the first and last;
        one that was not there before has no activity.
        """
        py_spy.sees(pid, STEP, LATER, STEP)
        task = kernel.path(pid, f"task/{pid}")
        (task / "schedstat").write_text("1000000000 5 6\n")
        py_spy.does(
            pid,
            0,
            f"sed -i 's/ctxt_switches:.*/ctxt_switches:\t16/' {task}/status\n"
            f"echo 1500000000 5 6 >{task}/schedstat\n"
            f"cp -r {task} {kernel.path(pid, 'task')}/8",
        )

        got = capture_process(pid, samples=3, interval_s=0).stacks

        main, new = got.threads
        assert new.activity is None
        assert (
            ThreadActivity(
                seconds=main.activity.seconds,
                voluntary=4,
                involuntary=13,
                cpu_s=0.5,
                has_moved=True,
                has_left=False,
                has_new_values=True,
                has_returned=False,
            )
            == main.activity
        )
        assert 0 < main.activity.seconds < 60

    def test_left(self, activity):
        """
        Another function is more than another line.
        """
        assert activity(STEP, SAVE).has_left
        assert not activity(STEP, LATER).has_left

    def test_stack_seen_once(self, pid, py_spy):
        """
        What had a stack only once is not known to stand still.
        """
        py_spy.sees(pid, "oops", "oops", "oops", STEP)

        got = capture_process(pid, samples=2, interval_s=0)

        assert got.stacks.main_thread.activity.has_moved is None

    @pytest.mark.parametrize(
        ("owners", "expected"),
        [
            ([True, False], True),
            ([True, True], False),
            ([None, True], False),
            ([None, None], None),
        ],
    )
    def test_let_go(self, activity, owners, expected):
        """
        One that was seen while the lock was free had let go of it.
        """
        seen = [
            [thread() if owner is None else thread(owns_gil=owner)]
            for owner in owners
        ]

        assert expected is activity(*seen).has_let_go

    def test_lock_of_another(self, activity, pid):
        """
        While another thread holds the lock, one without may wait for it.
        """
        waits = thread(pid=pid, owns_gil=False)
        holds = thread(pid=pid + 1, owns_gil=True, thread_name="other")

        assert activity([waits, holds], [waits, holds]).has_let_go is False

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([1, 1, 1], False),
            ([1, 1, 2], True),
            ([1, None, 2], True),
            ([1, None, 1], False),
            ([1, None, None], None),
            ([None, None, None], None),
        ],
    )
    def test_new_values(self, activity, values, expected):
        """
        What has new values went on, at the same line too.
        """
        seen = [
            with_variables("?" if value is None else [variable(value)])
            for value in values
        ]

        assert expected is activity(*seen).has_new_values

    @pytest.mark.parametrize(
        ("variables", "is_new"),
        [
            ([variable(2, "3"), variable(4, "[1]", "y")], False),
            ([variable(2, "4"), variable(4, "[1]", "y")], True),
            ([variable(9, "3"), variable(4, "[1]", "y")], True),
            # Another thread could change that.
            ([variable(2, "3"), variable(4, "[1, 2]", "y")], False),
            ([variable(2, "3")], True),
        ],
        ids=["same", "number", "place", "changed by another", "fewer"],
    )
    def test_what_is_new(self, activity, variables, is_new):
        """
        A variable that is set is new; what it holds does not count, if another
        thread could change that.
        """
        same = with_variables([variable(2, "3"), variable(4, "[1]", "y")])

        got = activity(same, with_variables(variables))

        assert is_new is got.has_new_values

    @pytest.mark.parametrize(
        "frames", [5, [{}], None], ids=["number", "nameless", "none"]
    )
    def test_no_values(self, activity, frames):
        """
        Lines of C have no variables; and what was not expected says nothing.
        """
        odd = with_variables(frames)

        got = activity(odd, odd)

        assert (False if frames is None else None) is got.has_new_values
        assert got.has_moved is False

    @pytest.mark.parametrize(
        ("inner", "outer", "line", "expected"),
        [
            (2, 1, 5, False),
            (1, 2, 5, True),
            (1, 1, 6, True),
            (None, None, 6, True),
            (None, None, 5, None),
        ],
        ids=["inner", "values", "line", "line alone", "unknown"],
    )
    def test_returned(self, activity, inner, outer, line, expected):
        """
        If those that had called a function went on, it came to its end, even
        if it is in the same functions again.
        """

        def answer(inner, outer, line):
            return with_variables(
                *([variable(x)] if x else "?" for x in (inner, outer)),
                frames=(("step", "t.py", 1), ("train", "t.py", line)),
            )

        first = answer(inner and 1, outer and 1, 5)
        got = activity(first, answer(inner, outer, line))

        assert expected is got.has_returned
        assert got.has_left is False
        assert (inner == 2) <= bool(got.has_new_values)

    @pytest.mark.parametrize(("state", "asks"), [("R", True), ("S", False)])
    def test_busy(self, kernel, py_spy, state, asks):
        """
        Only of those that run it is asked whether variables change.
        """
        pid = kernel.rank(0, state=state)
        py_spy.sees(pid, STEP)

        capture_process(pid)

        assert [asks] == ["--locals" in call for call in py_spy.calls]

"""
Tools that attach never harm the process, with stand-ins for the tools.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from pathlib import Path

import pytest

from distdebug.capture import guard_program
from distdebug.capture.attach import _find_problem, run_attached
from distdebug.errors import CaptureError
from distdebug.processes import read_state


pytestmark = pytest.mark.process


SLEEP = "import time; time.sleep(600)"


def python(code, *arguments):
    """
    The command line of a small program.
    """
    return [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]


def sh(code):
    """
    The command line of a small program of the shell.
    """
    return ["/bin/sh", "-c", code]


def attach(process, argv, *, timeout_s=60, **options):
    """
    What a tool leaves that is attached to a process.
    """
    return run_attached(argv, process.pid, timeout_s=timeout_s, **options)


def wait_for(condition):
    """
    Whether something becomes true before long.
    """
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def is_gone(pid):
    """
    Whether a process has ended.
    """
    state = read_state(pid)
    return state is None or state.letter == "Z"


@pytest.fixture(autouse=True)
def _impatient(tmp_path, monkeypatch):
    """
    Stops that arrive late arrive within shorter time here.
    """
    text = Path(guard_program.__file__).read_text(encoding="utf-8")
    copy = tmp_path / "guard_program.py"
    copy.write_text(text.replace("_LATE_S = 1.0", "_LATE_S = 0.1"))
    monkeypatch.setattr(guard_program, "__file__", str(copy))
    monkeypatch.setattr(guard_program, "_LATE_S", 0.1)


@pytest.fixture
def note(tmp_path):
    """
    A file that a stand-in writes its number to, and what reads that.
    """
    path = tmp_path / "pid"

    def read():
        return int(path.read_text() or 0) if path.exists() else 0

    return path, read


WRITE = "echo $$ >"
STOP = "import os, sys, signal; os.kill(int(sys.argv[1]), signal.SIGSTOP); "


class TestRunAttached:
    def test_output(self, sleeper):
        """
        Output, complaint, and status are kept apart; nothing can be read.
        """
        got = attach(sleeper, sh("cat; echo out; echo err >&2; exit 3"))

        assert (3, "out\n", "err\n") == (
            got.status,
            got.output,
            got.complaint,
        )
        assert (False, False, "") == (got.resumed, got.killed, got.trouble)
        assert 0 == got.paused_s
        assert got.seconds > 0

    def test_not_asked_to_end(self, sleeper):
        """
        A tool does not hear requests to end: it might hand them on to the
        process, which would end.
        """
        code = (
            "import os, signal\n"
            "for n in (1, 2, 3, 15): os.kill(os.getpid(), n)\n"
            "print(*sorted(signal.sigpending()))"
        )

        got = attach(sleeper, python(code))

        assert (0, "1 2 3 15\n") == (got.status, got.output)

    @pytest.mark.parametrize(
        ("argv", "status", "complaint"),
        [
            (["/bin/sh", "-c", "kill -11 $$"], -11, ""),
            (["/none"], 127, "/none cannot be run: [Errno 2]"),
        ],
    )
    def test_bad_end(self, sleeper, argv, status, complaint):
        """
        A tool that a signal ended has a negative status; one that cannot be
        started says so.
        """
        got = attach(sleeper, argv)

        assert status == got.status
        assert got.complaint.startswith(complaint)

    def test_own_surroundings(self, sleeper, monkeypatch):
        """
        Signals work in the tool as usual, and no symbols are downloaded.
        """
        monkeypatch.setenv("DEBUGINFOD_URLS", "https://example.invalid")
        code = (
            "import os, resource, signal; "
            "print(os.environ.get('DEBUGINFOD_URLS'), os.environ['LC_ALL'], "
            "signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "
            "os.getpgid(0) == os.getpid(), "
            "resource.getrlimit(resource.RLIMIT_CORE)[0], "
            "sorted(os.listdir('/proc/self/fd'))[:3])"
        )

        got = attach(sleeper, python(code))

        assert "None C.UTF-8 True True 0 ['0', '1', '2']\n" == got.output

    def test_cannot_be_run(self, sleeper):
        """
        A tool that cannot be started says so.
        """
        got = run_attached(["/none"], sleeper.pid, timeout_s=60)

        assert 127 == got.status
        assert "/none cannot be run: [Errno 2]" in got.complaint

    def test_deadline(self, sleeper, note):
        """
        A tool that ignores requests to end is killed in time, and so is what
        it started.
        """
        path, read = note
        code = f"trap '' TERM; sh -c 'echo $$ >{path}; exec sleep 600' & "

        got = attach(
            sleeper, sh(code + "echo so far; sleep 600"), timeout_s=0.5
        )

        assert (None, True, "so far\n") == (
            got.status,
            got.killed,
            got.output,
        )
        assert wait_for(lambda: is_gone(read()))

    @pytest.mark.parametrize("ending", ["", SLEEP, "os.kill(os.getpid(), 9)"])
    def test_left_stopped(self, sleeper, ending):
        """
        However the tool ends, the process goes on.
        """
        code = STOP + ending

        got = attach(sleeper, python(code, sleeper.pid), timeout_s=0.5)

        assert got.resumed
        assert "" == got.trouble
        assert "S" == read_state(sleeper.pid).letter

    def test_pause(self, sleeper):
        """
        The time for which the process could not run is measured.
        """
        code = (
            STOP + "import time; time.sleep(0.4); "
            "os.kill(int(sys.argv[1]), signal.SIGCONT); time.sleep(0.1)"
        )

        got = attach(sleeper, python(code, sleeper.pid))

        assert 0.39 < got.paused_s < got.seconds
        assert not got.resumed

    def test_was_stopped_before(self, sleeper):
        """
        What was stopped before stays so.
        """
        sleeper.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: read_state(sleeper.pid).letter == "T")

        got = run_attached(python(SLEEP), sleeper.pid, timeout_s=0.2)

        assert (True, False, "") == (got.killed, got.resumed, got.trouble)
        assert "T" == read_state(sleeper.pid).letter

    def test_target_ends(self, sleeper):
        """
        A process that ends while it is looked at is reported.
        """
        code = "import os, sys; os.kill(int(sys.argv[1]), 9)"

        got = attach(sleeper, python(code, sleeper.pid))
        sleeper.wait()

        assert 0 == got.status
        assert f"process {sleeper.pid} ended meanwhile" == got.trouble
        with pytest.raises(CaptureError, match="has ended"):
            run_attached(["true"], sleeper.pid, timeout_s=60)

    def test_another_process(self, sleeper):
        """
        A number that is used again is not that process.
        """
        with pytest.raises(CaptureError, match="has ended"):
            attach(sleeper, ["true"], start_ticks=1)

    @pytest.mark.parametrize(
        ("pid", "reason"),
        [
            (os.getpid(), "is ourselves, or waits for us"),
            (os.getppid(), "is ourselves, or waits for us"),
            (-1, "has ended"),
        ],
        ids=["we", "our parent", "no number"],
    )
    def test_never(self, pid, reason):
        """
        No tool is attached to ourselves, to what waits for us and would stop
        with us, or to numbers that mean something else to the system.
        """
        with pytest.raises(CaptureError, match=reason):
            run_attached(["true"], pid, timeout_s=60)

    def test_debugger(self, tmp_path):
        """
        A debugger is recognized by its name.
        """
        (tmp_path / "gdb").symlink_to("/bin/sleep")
        with subprocess.Popen([tmp_path / "gdb", "600"]) as process:
            with pytest.raises(CaptureError, match="is a debugger"):
                attach(process, ["true"])
            process.kill()

    def test_traced(self, sleeper):
        """
        What is attached to another, and that other, are known by that.
        """
        code = (
            "import ctypes, sys; libc = ctypes.CDLL(None); "
            "libc.ptrace(0x4206, int(sys.argv[1]), None, None); "
            f"print(flush=True); {SLEEP}"
        )
        with subprocess.Popen(
            python(code, sleeper.pid), stdout=subprocess.PIPE
        ) as tracer:
            tracer.stdout.readline()
            if not read_state(sleeper.pid).tracer_pid:
                tracer.kill()
                pytest.skip("ptrace is not permitted here")
            traced = f"is traced by process {tracer.pid}"
            with pytest.raises(CaptureError, match=traced):
                attach(sleeper, ["true"])
            with pytest.raises(CaptureError, match="is a debugger"):
                attach(tracer, ["true"])
            tracer.kill()

    def test_side_by_side(self, sleeper):
        """
        Several tools run at once, each with its own output.
        """
        answers = {}

        def look(number):
            answers[number] = attach(sleeper, sh(f"echo {number}")).output

        threads = [threading.Thread(target=look, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert {n: f"{n}\n" for n in range(8)} == answers


class TestInterruption:
    def test_interrupt(self, sleeper, note):
        """
        Ctrl-C passes through when the tool is gone and the process goes on.
        """
        path, read = note

        def interrupt():
            assert wait_for(read)
            assert wait_for(lambda: read_state(sleeper.pid).letter == "T")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            attach(
                sleeper,
                sh(f"kill -STOP {sleeper.pid}; {WRITE}{path}; sleep 600"),
            )
        thread.join()

        assert is_gone(read())
        assert "S" == read_state(sleeper.pid).letter

    @pytest.mark.parametrize("victim", ["guard", "stopped guard"])
    def test_guard_dies(self, sleeper, note, monkeypatch, victim):
        """
        When the guard is gone, we do its work, and the tool died with it.
        """
        monkeypatch.setattr("distdebug.capture.attach._CLEANING_S", 0.5)
        path, read = note
        got = []
        argv = sh(f"kill -STOP {sleeper.pid}; {WRITE}{path}; sleep 600")
        timeout_s = 60 if victim == "guard" else 1
        thread = threading.Thread(
            target=lambda: got.append(
                attach(sleeper, argv, timeout_s=timeout_s)
            )
        )
        thread.start()
        assert wait_for(read)
        guard_pid = os.getsid(read())
        number = signal.SIGKILL if victim == "guard" else signal.SIGSTOP
        os.kill(guard_pid, number)

        thread.join(30)

        assert [(None, True, True, "")] == [
            (g.status, g.killed, g.resumed, g.trouble) for g in got
        ]
        assert wait_for(lambda: is_gone(read()))
        assert "S" == read_state(sleeper.pid).letter

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_collector_dies(self, sleeper, note, number):
        """
        The guard does its work, too, when there is nothing to report to.
        """
        path, read = note
        program = (
            "import sys; from distdebug.capture.attach import run_attached; "
            "run_attached(sys.argv[2:], int(sys.argv[1]), timeout_s=60)"
        )
        command = sh(f"kill -STOP {sleeper.pid}; {WRITE}{path}; sleep 600")
        argv = [sys.executable, "-c", program, str(sleeper.pid), *command]
        with subprocess.Popen(
            argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ) as collector:
            assert wait_for(read)
            collector.send_signal(number)

        assert wait_for(lambda: is_gone(read()))
        assert wait_for(lambda: read_state(sleeper.pid).letter == "S")


class TestTrouble:
    def test_left_behind(self, sleeper):
        """
        A tool that cannot be ended is reported.
        """
        before = guard_program.read_target_state(sleeper.pid)

        text = _find_problem(sleeper.pid, before, is_left=True)

        assert "inside the kernel" in text

    def test_stopped(self, sleeper):
        """
        A process that could not be resumed is reported, and how to do it.
        """
        before = guard_program.read_target_state(sleeper.pid)
        sleeper.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: read_state(sleeper.pid).letter == "T")

        text = _find_problem(sleeper.pid, before, is_left=False)

        assert f"kill -CONT {sleeper.pid}" in text


class TestResume:
    def test_late_stop(self, sleeper):
        """
        A stop that arrives late is undone.
        """
        before = guard_program.read_target_state(sleeper.pid)
        late = threading.Timer(0.2, sleeper.send_signal, [signal.SIGSTOP])
        late.start()

        resumed = guard_program.resume(sleeper.pid, before, watch_s=1.0)

        assert resumed
        assert "S" == read_state(sleeper.pid).letter

    def test_pending_stop(self):
        """
        A stop that a process will see only when the kernel lets it is taken
        back before.
        """
        # A process that has forked by vfork waits inside the kernel.
        code = (
            "import ctypes, sys; libc = ctypes.CDLL(None); "
            "print(flush=True); libc.vfork() or libc.pause()"
        )
        argv = python(code)
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            process.stdout.readline()
            assert wait_for(lambda: read_state(process.pid).letter == "D")
            before = guard_program.read_target_state(process.pid)
            process.send_signal(signal.SIGSTOP)
            assert guard_program._is_stopping(process.pid)

            resumed = guard_program.resume(process.pid, before, watch_s=0)
            is_stopping = guard_program._is_stopping(process.pid)
            os.killpg(process.pid, signal.SIGKILL)

        assert (True, False) == (resumed, is_stopping)

    def test_gone(self, sleeper):
        """
        There is nothing to do about a process that has ended.
        """
        before = guard_program.read_target_state(sleeper.pid)
        sleeper.kill()
        sleeper.wait()

        assert not guard_program.resume(sleeper.pid, before, watch_s=60)
        assert not guard_program._is_stopping(sleeper.pid)
        assert guard_program.read_target_state(sleeper.pid) is None

    def test_not_permitted(self, sleeper, monkeypatch):
        """
        What may not send a signal does not claim to have done so.
        """

        def refuse(*_):
            raise PermissionError

        before = guard_program.read_target_state(sleeper.pid)
        sleeper.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refuse)

            resumed = guard_program.resume(sleeper.pid, before, watch_s=0.1)

        assert not resumed


# Other tests may have left threads behind, which fork warns of.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestProgram:
    """
    The guard itself, in this process.
    """

    @pytest.fixture
    def stage(self, tmp_path, monkeypatch):
        """
        Runs the program on a process; the line that it writes.
        """

        def run(pid, *command, ticks=None, seconds=60, wanted=True):
            out = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
            err = os.open(tmp_path / "err", os.O_RDWR | os.O_CREAT)
            ticks = (
                guard_program.read_target_state(pid).ticks
                if ticks is None
                else ticks
            )
            wish, control = os.pipe()
            answer, line = os.pipe()
            fds = [os.dup(0), os.dup(1)]
            handlers = {
                number: signal.getsignal(number)
                for number in signal.valid_signals()
            }
            os.dup2(wish, 0)
            os.dup2(line, 1)
            if not wanted:
                os.close(control)
            try:
                limit = guard_program.MAX_BYTES
                arguments = (pid, ticks, seconds, out, err, limit, *command)
                guard_program.main([str(a) for a in arguments])
            finally:
                for number, handler in handlers.items():
                    if number not in {signal.SIGKILL, signal.SIGSTOP}:
                        signal.signal(number, handler or signal.SIG_DFL)
                os.dup2(fds[0], 0)
                os.dup2(fds[1], 1)
                os.close(line)
                text = os.read(answer, 100).decode()
                for fd in (out, err, wish, answer, *fds):
                    os.close(fd)
                if wanted:
                    os.close(control)
            return text

        return run

    def test_good_end(self, stage, sleeper):
        """
        Status, pause, and what had to be done are in one line.
        """
        line = stage(sleeper.pid, *python("raise SystemExit(3)"))

        assert ["3", "0", "0", "0"] == [line.split()[i] for i in (0, 2, 3, 4)]

    def test_time_is_over(self, stage, sleeper):
        """
        The tool is killed when its time is over.
        """
        line = stage(sleeper.pid, *python(SLEEP), seconds=0.2)

        assert ["-", "0", "1", "0"] == [line.split()[i] for i in (0, 2, 3, 4)]

    def test_stopped_slowly(self, stage, sleeper):
        """
        A pause of more than a second is measured as well.
        """
        code = STOP + "import time; time.sleep(1.3)"

        line = stage(sleeper.pid, *python(code, sleeper.pid))

        assert "1" == line.split()[2]
        assert 1.2 < float(line.split()[1]) < 30

    def test_not_wanted(self, stage, sleeper):
        """
        Nothing is started for a collector that is gone, or on a process that
        is another.
        """
        assert "" == stage(sleeper.pid, "true", wanted=False)
        assert "" == stage(sleeper.pid, "true", ticks=1)
        assert "" == stage(999999999, "true", ticks=1)

    def test_cannot_be_ended(self, stage, sleeper, monkeypatch):
        """
        A tool inside the kernel is waited for after the report.
        """
        reap, patience = guard_program._reap, []

        def slow(tool, patience_s, step_s):
            patience.append(patience_s)
            return reap(tool, 10, 0.01) if len(patience) > 1 else None

        monkeypatch.setattr(guard_program, "_reap", slow)

        line = stage(sleeper.pid, *python(SLEEP), seconds=0.1)

        assert ["-", "1", "1"] == [line.split()[i] for i in (0, 3, 4)]
        assert [5, 600] == patience

    def test_no_reaping(self, monkeypatch):
        """
        Waiting for a tool has an end.
        """
        with subprocess.Popen(python(SLEEP)) as process:
            assert guard_program._reap(process.pid, 0.05, 0.01) is None
            process.kill()

    def test_tracer_goes(self, monkeypatch):
        """
        As long as a dying tool is attached, its process is watched.
        """
        sights = [
            guard_program.TargetState(1, "t", 7),
            guard_program.TargetState(1, "t", 7),
            guard_program.TargetState(1, "S", 0),
        ]
        monkeypatch.setattr(guard_program, "_LATE_S", 0.0)
        monkeypatch.setattr(
            guard_program, "read_target_state", lambda _: sights.pop(0)
        )

        assert not guard_program.resume(
            999999999, guard_program.TargetState(1, "S", 0), watch_s=0.02
        )


def test_no_ptrace_needed():
    """
    The number that ends a tool with its guard is that of the kernel.
    """
    libc = ctypes.CDLL(None)

    value = ctypes.c_int()

    assert 0 == libc.prctl(2, ctypes.byref(value))
    assert 1 == guard_program._PR_SET_PDEATHSIG


def test_file_limit(sleeper):
    """
    A tool may write larger files than others, but no larger than the process
    that looks may: without root, that limit cannot be raised.
    """
    code = (
        "import resource, sys; "
        "from distdebug.capture.attach import run_attached; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24)); "
        "got = run_attached(['/bin/sh', '-c', 'ulimit -H -f'], "
        "int(sys.argv[1]), timeout_s=60, max_file_bytes=1 << 31); "
        "print(got.status, got.output.strip())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(sleeper.pid)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    status, blocks = done.stdout.split()
    assert ("0", 1 << 24) == (status, int(blocks) * 512)

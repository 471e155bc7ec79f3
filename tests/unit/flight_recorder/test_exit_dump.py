"""
What does a rank leave behind when it dies?
"""

import contextlib
import faulthandler
import fcntl
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.flight_recorder import (
    current_recording,
    disable_flight_recorder,
    enable_flight_recorder,
    request_dumps,
)
from distdebug.usercode import user_location


SPARE = signal.SIGSTKFLT if sys.platform == "linux" else 16

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="signals are read from /proc"
)


def raised(fail):
    """
    The exception that a function raises.
    """
    with pytest.raises(ValueError) as info:
        fail()
    return info.value


def die(exc, trace=None):
    """
    Let this program end by an exception, as far as we notice.
    """
    sys.excepthook(type(exc), exc, trace or exc.__traceback__)


def read_shard():
    """
    Fails, as user code does.
    """
    msg = "bad shard"
    raise ValueError(msg)


def names_of(sidecar):
    """
    The functions in the main thread's stack, innermost first.
    """
    return [frame["name"] for frame in sidecar["threads"]["MainThread"]]


def of_reason(sidecars, reason):
    """
    The side-car of this process that was written for that reason.
    """
    found = sidecars(current_recording())
    (sidecar,) = (s for s in found if s["reason"] == reason)
    return sidecar


def test_no_rank(with_extras, sidecars, monkeypatch, tmp_path):
    """
    A process that is no rank leaves nothing.
    """
    disable_flight_recorder()
    monkeypatch.delenv("RANK")

    enable_flight_recorder(dump_dir=tmp_path / "e")

    assert [] == sidecars(current_recording())


class TestException:
    def test_main_thread(self, at_end, sidecars):
        """
        After an uncaught exception there is a dump, and the main thread is
        where it was raised, not in our hook.
        """
        die(raised(read_shard))

        sidecar = of_reason(sidecars, "exception")
        line = read_shard.__code__.co_firstlineno + 5
        first = sidecar["threads"]["MainThread"][0]
        assert [sidecar["dump"]] == [p.name for p in current_recording().dumps]
        assert "ValueError: bad shard" == sidecar["error"]
        assert ["read_shard", "raised"] == names_of(sidecar)[:2]
        assert (__file__, line) == (first["filename"], first["line"])
        frames = [
            SimpleNamespace(**f) for f in sidecar["threads"]["MainThread"]
        ]
        assert "read_shard" == user_location(frames).function

    def test_deep(self, at_end, sidecars):
        """
        Of a recursion without end the innermost lines are kept.
        """

        def down(n):
            if not n:
                read_shard()
            down(n - 1)

        die(raised(lambda: down(300)))

        names = names_of(of_reason(sidecars, "exception"))
        assert 100 == len(names)
        assert ["read_shard", "down"] == names[:2]

    def test_no_line(self, at_end, sidecars):
        """
        Code without line numbers raises at line 0, which can be written.
        """

        def fail():
            raise ValueError

        fail.__code__ = fail.__code__.replace(co_linetable=b"")

        die(raised(fail))

        frame = of_reason(sidecars, "exception")["threads"]["MainThread"][0]
        assert ("fail", 0) == (frame["name"], frame["line"])

    def test_without_traceback(self, at_end, sidecars):
        """
        An exception without a traceback leaves the stack as it is.
        """
        die(ValueError("x"))

        names = names_of(of_reason(sidecars, "exception"))
        assert ["die", "test_without_traceback"] == names[:2]

    def test_no_recorder(self, at_end, sidecars, monkeypatch):
        """
        A rank that records nothing still says who it was, and where.
        """
        monkeypatch.delitem(sys.modules, "torch")

        die(raised(read_shard))

        sidecar = of_reason(sidecars, "exception")
        assert "" == sidecar["dump"]
        assert "read_shard" in names_of(sidecar)

    def test_fails(self, at_end, no_complaints, caplog):
        """
        If nothing can be written, nothing is raised, and the log says so.
        """
        for path in current_recording().settings.dump_dir.iterdir():
            path.unlink()
        current_recording().settings.dump_dir.rmdir()

        with caplog.at_level(logging.WARNING, "distdebug"):
            die(ValueError("x"))

        assert [] == current_recording().dumps
        assert "recording goes on without: FileNotFound" in caplog.text

    def test_complaints(self, at_end, no_complaints, caplog, monkeypatch):
        """
        The same error is said once, and not many are.
        """
        texts = iter(["a", "a", *map(str, range(100))])

        def fail():
            raise OSError(next(texts))

        monkeypatch.setattr(socket, "gethostname", fail)

        with caplog.at_level(logging.WARNING, "distdebug"):
            for _ in range(50):
                die(ValueError("x"))

        assert 20 == len(caplog.records)
        assert 1 == caplog.text.count("OSError: a\n")

    def test_hooks(self, with_extras, monkeypatch, tmp_path):
        """
        An exception is noted while we record, and the hook that was there is
        called as ever.
        """
        calls = []
        disable_flight_recorder()
        monkeypatch.setattr(
            sys, "excepthook", lambda *args: calls.append(args)
        )
        exc = ValueError("x")
        theirs = sys.excepthook

        enable_flight_recorder(dump_dir=tmp_path)
        recording = current_recording()
        die(exc)
        disable_flight_recorder()
        die(exc)

        assert [(ValueError, exc, None)] * 2 == calls
        assert theirs is sys.excepthook
        assert "ValueError: x" == recording.error
        assert 1 == len(recording.dumps)

    def test_later_hook(self, at_end):
        """
        A hook that came after ours stays.
        """
        later = sys.excepthook = lambda *_: None

        disable_flight_recorder()

        assert later is sys.excepthook


class TestEnd:
    def test_normal(self, at_end, sidecars):
        """
        A normal end is noted, beside torch's own dump if there is one, ends
        the listening, and where the rank was is of no interest.
        """
        recording = current_recording()
        recording.torch_path().touch()

        at_end()

        (sidecar,) = sidecars(recording)
        assert ("exit", f"{recording.settings.token}_rank_3", {}) == (
            sidecar["reason"],
            sidecar["dump"],
            sidecar["threads"],
        )
        assert [] == list(recording.settings.dump_dir.glob("*.pipe"))
        assert "distdebug listener" not in {
            thread.name for thread in threading.enumerate()
        }

    @pytest.mark.parametrize("has_error", [False, True])
    def test_in_flight(self, at_end, fake_torch, monkeypatch, has_error):
        """
        An end in the middle of a call leaves a dump, unless an exception has.
        """
        recording = current_recording()
        fake_torch.unfinished = 1
        if has_error:
            die(ValueError("x"))
        passing = itertools.count(time.monotonic(), 0.2)
        monkeypatch.setattr(time, "monotonic", lambda: next(passing))

        at_end()

        assert 1 == len(recording.dumps)

    @pytest.mark.parametrize("status", ['{"pg_status": {"0": 5}}', "{}"])
    def test_unknown_flight(self, at_end, fake_torch, status):
        """
        Where torch does not say what is in flight there is no dump.
        """
        recording = current_recording()
        fake_torch.c10d._dump_fr_trace_json = lambda *_: status

        at_end()

        assert [] == recording.dumps

    @pytest.mark.parametrize(
        ("code", "context", "expected"),
        [
            (0, ValueError("x"), ""),
            (None, None, ""),
            (1, ValueError("a\nb"), "ValueError: a b"),
            (1, None, "Exception: exit status 1"),
        ],
    )
    def test_child(self, at_end, code, context, expected):
        """
        A child that ends while it handles an exception notes that one.
        """
        recording = current_recording()
        end = SystemExit(code)
        end.__context__ = context

        try:
            raise end
        except SystemExit:
            at_end()

        assert expected == recording.error
        assert bool(expected) == bool(recording.dumps)

    def test_line_of_child(self, at_end, sidecars):
        """
        So it does with the line that raised it, and the last side-car, which
        counts, says so as well.
        """
        recording = current_recording()

        try:
            read_shard()
        except ValueError:
            at_end()

        found = {s["reason"]: s for s in sidecars(recording)}
        assert {"exit-after-error", "exit"} == found.keys()
        assert ["read_shard"] * 2 == [names_of(s)[0] for s in found.values()]

    def test_broken_exception(self, at_end):
        """
        An exception that cannot be shown is named.
        """

        class BrokenError(Exception):
            def __str__(self):
                raise ValueError

        recording = current_recording()
        with contextlib.suppress(BrokenError):
            try:
                raise BrokenError
            finally:
                at_end()

        assert "BrokenError:" == recording.error

    def test_advice(self, at_end):
        """
        What torch appends to each error of CUDA is not kept.
        """
        recording = current_recording()
        text = (
            "CUDA error: device-side assert triggered\n"
            "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda\n"
            "CUDA kernel errors might be asynchronously reported at some other"
        )
        with contextlib.suppress(RuntimeError):
            try:
                raise RuntimeError(text)
            finally:
                at_end()

        error = "RuntimeError: CUDA error: device-side assert triggered"
        assert error == recording.error

    def test_multiprocessing(self, with_extras, monkeypatch, tmp_path):
        """
        In a child of multiprocessing its own list is used as well.
        """
        calls = []

        class Finalize:
            def __init__(self, _, call, exitpriority):
                calls.append((callable(call), exitpriority))

            def cancel(self):
                calls.append("cancel")

        disable_flight_recorder()
        for name, module in {
            "multiprocessing": {"parent_process": lambda: "parent"},
            "multiprocessing.util": {"Finalize": Finalize},
        }.items():
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(**module))

        enable_flight_recorder(dump_dir=tmp_path)
        disable_flight_recorder()

        assert [(True, 0), "cancel"] == calls


@on_linux
@pytest.mark.usefixtures("no_watchdogs", "no_settings", "rank_3", "fake_torch")
class TestCaught:
    """
    Signals of this process while it records.
    """

    @pytest.fixture(autouse=True)
    def default(self):
        """
        What the program itself does about SIGTERM is put back.
        """
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        yield
        disable_flight_recorder()
        signal.signal(signal.SIGTERM, before)
        signal.signal(SPARE, signal.SIG_DFL)

    @pytest.fixture
    def states(self, tmp_path, signal_state):
        """
        What is done about SIGTERM, SIGABRT, and the signal that limits the
        time of SIGABRT, while recording is enabled and afterwards.
        """

        def both(between=lambda: None):
            numbers = (signal.SIGTERM, signal.SIGABRT, SPARE)
            enable_flight_recorder(dump_dir=tmp_path)
            during = [signal_state(n) for n in numbers]
            between()
            disable_flight_recorder()
            return during, [signal_state(n) for n in numbers]

        return both

    @pytest.mark.parametrize(
        ("prepare", "during", "after"),
        [
            (lambda: None, ["caught"] * 3, ["default"] * 3),
            # What is ignored stays ignored.
            (
                lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
                ["ignored", "caught", "caught"],
                ["ignored", "default", "default"],
            ),
            # Nothing is caught that could not be ended in time.
            (
                lambda: signal.signal(signal.SIGALRM, lambda *_: None),
                ["default"] * 3,
                ["default"] * 3,
            ),
            # A faulthandler that the program has enabled is left alone.
            (
                lambda: faulthandler.enable(file=sys.__stderr__),
                ["caught", "caught", "default"],
                ["default", "caught", "default"],
            ),
        ],
        ids=["free", "ignored", "alarm", "faulthandler"],
    )
    def test_states(self, states, prepare, during, after):
        """
        Signals that have no other use are caught, and no trace of that is
        left afterwards.
        """
        prepare()
        was_enabled = faulthandler.is_enabled()

        assert (during, after) == states()
        assert was_enabled == faulthandler.is_enabled()

    def test_faulthandler_after(self, states):
        """
        So is one that came after ours.
        """
        states(lambda: faulthandler.enable(file=sys.__stderr__))

        assert faulthandler.is_enabled()
        faulthandler.disable()
        signal.signal(signal.SIGABRT, signal.SIG_DFL)

    def test_handler_after(self, states):
        """
        A handler of SIGTERM that came after ours stays when ours goes.
        """
        calls = []

        states(
            lambda: signal.signal(
                signal.SIGTERM, lambda *_: calls.append("later")
            )
        )
        os.kill(os.getpid(), signal.SIGTERM)

        assert ["later"] == calls

    def test_no_limit(self, states, monkeypatch, no_complaints):
        """
        Where SIGABRT cannot be limited it is not caught.
        """
        call = fcntl.fcntl

        def refuse(fd, command, *value):
            if command == 15:  # F_SETOWN_EX
                raise OSError
            return call(fd, command, *value)

        monkeypatch.setattr(fcntl, "fcntl", refuse)

        during, after = states()

        assert ("default", "default") == (during[1], after[1])

    def test_no_proc(self, tmp_path, monkeypatch, no_complaints):
        """
        Where signals cannot be caught, requests are still answered.
        """
        read = Path.read_text

        def refuse(path, *args, **options):
            if path.parts[:2] == ("/", "proc"):
                raise FileNotFoundError
            return read(path, *args, **options)

        monkeypatch.setattr(Path, "read_text", refuse)

        enable_flight_recorder(dump_dir=tmp_path)

        assert ["dumped"] == [r.status for r in request_dumps(tmp_path)]

    def test_nothing_works(
        self, states, tmp_path, monkeypatch, no_complaints, sidecars
    ):
        """
        Without pipes and threads nothing would react to a signal, so none is
        caught; the rest goes on.
        """

        def refuse(*_):
            raise OSError

        def start(_):
            raise RuntimeError

        found = []
        monkeypatch.setattr(os, "mkfifo", refuse)
        monkeypatch.setattr(threading.Thread, "start", start)

        during, after = states(
            lambda: found.extend(sidecars(current_recording()))
        )

        assert (["default"] * 3, ["default"] * 3) == (during, after)
        assert ["start"] == [s["reason"] for s in found]

    def test_own_handler(self, tmp_path, sidecars):
        """
        Where the program handles SIGTERM itself it is called, a dump with the
        stacks is left, and life goes on.
        """
        calls = []
        signal.signal(signal.SIGTERM, lambda *args: calls.append(args[0]))
        enable_flight_recorder(dump_dir=tmp_path)

        os.kill(os.getpid(), signal.SIGTERM)
        (row,) = request_dumps(tmp_path, timeout_s=30)  # comes after it

        sidecar = of_reason(sidecars, "SIGTERM")
        words = (tmp_path / f"{sidecar['dump']}.traceback.txt").read_text()
        assert "dumped" == row.status
        assert "in test_own_handler" in words
        assert [signal.SIGTERM] == calls

    def test_full_pipe(self, tmp_path, fake_torch):
        """
        A handler never waits for a pipe that is full.
        """
        calls = []
        gate, busy = threading.Event(), threading.Event()
        signal.signal(signal.SIGTERM, lambda *args: calls.append(args[0]))
        enable_flight_recorder(dump_dir=tmp_path)

        def wait(*_):
            busy.set()
            gate.wait(30)
            return b"record_id"

        fake_torch.c10d._dump_fr_trace = wait
        os.kill(os.getpid(), signal.SIGTERM)
        assert busy.wait(30)

        for _ in range(500):
            os.kill(os.getpid(), signal.SIGTERM)
        gate.set()

        assert 501 == len(calls)

    def test_words_of_another(self, tmp_path, sidecars):
        """
        Words that a forked child wrote on its SIGABRT are not taken for ours,
        and the alarm that the kernel made us set is cleared.
        """
        before = {fd.name for fd in Path("/proc/self/fd").iterdir()}
        enable_flight_recorder(dump_dir=tmp_path)
        pipes = {}
        for fd in Path("/proc/self/fd").iterdir():
            if fd.name not in before and fd.is_symlink():
                pipes.setdefault(str(fd.readlink()), []).append(int(fd.name))
        (writer,) = (
            fds[1]
            for fds in map(sorted, pipes.values())
            if fcntl.fcntl(fds[0], fcntl.F_GETFL) & os.O_ASYNC
        )

        os.write(writer, b"words of another")
        (row,) = request_dumps(tmp_path, timeout_s=30)  # comes after it

        assert "dumped" == row.status
        assert {"start", "request"} == {
            s["reason"] for s in sidecars(current_recording())
        }
        assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)


@pytest.mark.process
@on_linux
class TestKilled:
    """
    Programs that are killed.
    """

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGABRT"])
    def test_dies_of_it(self, run_rank, tmp_path, name):
        """
        On a signal there is a dump with a side-car and the stacks, and the
        process ends as it would have; the pipe is gone.
        """
        number = signal.Signals[name]

        ended = run_rank(
            "print('ready', flush=True); time.sleep(60)", send=number
        )

        assert -number == ended.returncode
        (dump,) = tmp_path.glob("d/*-1_rank_3")
        (words,) = tmp_path.glob("d/*.traceback.txt")
        assert b"record_id gloo:all_reduce" == dump.read_bytes()
        assert f'"reason": "{name}"' in (
            dump.with_name(f"{dump.name}.sidecar.json").read_text()
        )
        assert f"{dump.name}.traceback.txt" == words.name
        assert 'File "<string>", line' in words.read_text()
        assert [] == list(tmp_path.glob("d/*.pipe"))
        # As faulthandler would, which we keep from saying it.
        expected = words.read_text() if name == "SIGABRT" else ""
        assert expected == ended.stderr

    def test_child(self, run_rank, tmp_path):
        """
        A child that is killed just after the fork ends, and its parent, to
        which its words go, lives on and still listens to signals.
        """
        ended = run_rank(
            """
            from distdebug.flight_recorder import request_dumps
            # What is registered first comes first: before we can put back.
            os.register_at_fork(
                after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM)
            )
            distdebug.enable_flight_recorder(dump_dir="d")
            if pid := os.fork():
                print(-os.waitpid(pid, 0)[1], flush=True)
                (row,) = request_dumps("d", timeout_s=30)  # comes after it
                print(row.status, flush=True)
                print("ready", flush=True)
            time.sleep(60)
            """,
            enable=False,
            send=signal.SIGABRT,
        )

        reasons = {
            path.read_text().split('"reason": "')[1].partition('"')[0]
            for path in tmp_path.glob("d/*.sidecar.json")
        }
        assert f"{-signal.SIGTERM}\ndumped\n" == ended.stdout
        assert -signal.SIGABRT == ended.returncode
        assert {"start", "request", "SIGABRT"} == reasons

"""
What does a watcher do with what was found, and when does it ask again?
"""

from __future__ import annotations

import logging
import os
import threading
import time

from pathlib import Path

import pytest

from distdebug._proc import in_time
from distdebug.causes import Cause
from distdebug.errors import HookError
from distdebug.snapshots import SnapshotOptions
from distdebug.watching import (
    CaptureRequest,
    Hang,
    HangHandler,
    HangReason,
    Response,
    RetryLater,
    find_output_dir,
)
from distdebug.watching import hang as module


REASON = HangReason(
    kind="no progress",
    elapsed_s=700.0,
    pids=(7,),
    stalled=(("rank 3", 65.0), ("rank 4", 61.0)),
)
FOLDER = Path("/shared/hang")


def hang(cause=Cause.SLEEPING):
    """
    A job that hangs.
    """
    verdict = {"cause": cause, "summary": "rank 3\nsleeps \x1b[31mhere"}
    return Hang(reason=REASON, folder=FOLDER, data={"verdict": verdict})


EXPLAINED = Response("explained", "x", FOLDER, hang())


class Watcher:
    """
    A duty, the answers that it gets, and the hooks that it calls.
    """

    def __init__(self, *answers, hooks=(), hook_timeout_s=None):
        self.answers = list(answers)
        self.orders, self.told, self.shown = [], [], []
        self.handler = HangHandler(
            CaptureRequest(output_dir=FOLDER, wanted=SnapshotOptions()),
            self.look,
            hooks or (self.told.append,),
            self.shown.append,
            hook_timeout_s,
        )

    def look(self, reason, order):
        """
        Give the next answer.
        """
        assert reason is REASON
        self.orders.append(order)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestHangHandler:
    def test_explained(self):
        """
        What was found goes to every hook, and is not asked for again.
        """
        found = hang()
        watcher = Watcher(Response("explained", "x", FOLDER, found))

        assert watcher.handler(REASON) is None
        assert [found] == watcher.told == watcher.shown

    def test_healthy(self):
        """
        No hook is called for a job that makes progress.
        """
        found = hang(Cause.PROGRESSING)
        watcher = Watcher(Response("explained", "x", FOLDER, found))

        watcher.handler(REASON)

        assert [found] == watcher.shown
        assert [] == watcher.told

    def test_fine_after_all(self):
        """
        What takes long is shown, and judged again when it lasts on.
        """
        found = hang(Cause.CHECKPOINTING)
        watcher = Watcher(Response("fine", "x", FOLDER, found))

        assert RetryLater(65.0, is_free=False) == watcher.handler(REASON)
        assert [found] == watcher.shown
        assert [] == watcher.told

    @pytest.mark.parametrize(
        ("outcome", "answer"),
        [
            ("fine", RetryLater(65.0)),
            ("busy", RetryLater(30.0)),
            ("taken", RetryLater(290.0)),
            ("elsewhere", None),
        ],
    )
    def test_nothing(self, caplog, outcome, answer):
        """
        A stall that is fine is judged anew when it has lasted twice as long.
        """
        caplog.set_level(logging.INFO, "distdebug")
        watcher = Watcher(Response(outcome, "it compiles"))

        assert answer == watcher.handler(REASON)
        assert [] == watcher.told == watcher.shown
        assert "no progress for 65 s (rank 3 and 1 more)" in caplog.text
        assert "it compiles" in caplog.text

    def test_no_stall(self):
        """
        A fixed wait has no stall that could last twice as long.
        """
        reason = HangReason(kind="wait", elapsed_s=1800.0, pids=(7,))
        order = CaptureRequest(output_dir=FOLDER, wanted=SnapshotOptions())
        handler = HangHandler(
            order, lambda *_: Response("fine", "it compiles")
        )

        assert RetryLater(30.0) == handler(reason)

    def test_known(self):
        """
        A snapshot that was seen once is none of the next hang's.
        """
        others = Path("/shared/hang.2")
        watcher = Watcher(
            EXPLAINED,
            Response("busy", "x"),
            Response("elsewhere", "x", others),
            Response("fine", "x"),
        )

        for _ in range(4):
            watcher.handler(REASON)

        assert [set(), {FOLDER}, {FOLDER}, {FOLDER, others}] == [
            set(order.but) for order in watcher.orders
        ]

    def test_cannot_look(self, caplog):
        """
        If the look fails, that is logged in one line, and tried again later.
        """
        watcher = Watcher(
            OSError(28, "No space left on device"),
            EXPLAINED,
        )

        assert RetryLater(65.0) == watcher.handler(REASON)
        assert "No space left on device" in caplog.text
        assert "Traceback" not in caplog.text
        assert watcher.handler(REASON) is None
        assert 1 == len(watcher.told)

    @pytest.mark.parametrize(
        ("error", "has_trace"),
        [(HookError("refused: 403"), False), (ValueError("a bug"), True)],
    )
    def test_hook_fails(self, caplog, error, has_trace):
        """
        A hook that fails is logged, and costs the others nothing.
        """
        told = []

        def fail(_):
            raise error

        watcher = Watcher(
            EXPLAINED,
            hooks=(fail, told.append),
        )

        assert watcher.handler(REASON) is None
        assert 1 == len(told)
        assert "a hook failed" in caplog.text
        assert str(error) in caplog.text
        assert has_trace == ("Traceback" in caplog.text)

    def test_hooks_first(self):
        """
        Hooks are called before anything is written to a log that may block.
        """
        calls = []
        watcher = Watcher(
            EXPLAINED,
            hooks=(lambda _: calls.append("hook"),),
        )
        watcher.handler.on_result = lambda _: calls.append("tell")

        watcher.handler(REASON)

        assert ["hook", "tell"] == calls

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
    def test_hook_exits(self, caplog, error):
        """
        A hook that wants to exit does not end the watch of a rank.
        """

        def leave(_):
            raise error

        told = []
        watcher = Watcher(
            EXPLAINED,
            hooks=(leave, told.append),
        )

        in_time(lambda: watcher.handler(REASON), 30)

        assert 1 == len(told)
        assert "a hook failed" in caplog.text

    def test_interrupted(self):
        """
        Ctrl-C ends a side-car, also while it calls a hook.
        """

        def interrupt(_):
            raise KeyboardInterrupt

        watcher = Watcher(EXPLAINED, hooks=(interrupt,))

        with pytest.raises(KeyboardInterrupt):
            watcher.handler(REASON)

    def test_hook_hangs(self, caplog):
        """
        A hook that does not end is left behind.
        """
        end, told = threading.Event(), []
        watcher = Watcher(
            EXPLAINED,
            hooks=(lambda _: end.wait(30), told.append),
            hook_timeout_s=0.2,
        )

        assert watcher.handler(REASON) is None
        end.set()
        assert 1 == len(told)
        assert "did not end in time" in caplog.text


class TestHang:
    def test_plain(self):
        """
        What is sent is plain, with what matters most at the top.
        """
        data = hang().to_dict()

        assert "rank 3 sleeps here" == data["summary"]
        assert str(FOLDER) == data["folder"]
        assert [["rank 3", 65.0], ["rank 4", 61.0]] == [
            list(x) for x in data["reason"]["stalled"]
        ]
        assert Cause.SLEEPING == data["diagnosis"]["verdict"]["cause"]

    def test_line(self):
        """
        It says why it was looked at, what was found, and what to do next,
        safe to print.
        """
        assert (
            "no progress for 65 s (rank 3 and 1 more): rank 3 sleeps here\n"
            "  cause: sleeping\n"
            f"  see {FOLDER}/REPORT.txt"
        ) == str(hang())

    def test_remedy(self):
        """
        Confidence and remedy are shown where they are known.
        """
        found = hang()
        found.data["verdict"].update(
            confidence="likely", remedy="wake\nit \x1b[31mup"
        )

        assert [
            "  cause: sleeping (likely)",
            "  next: wake it up",
            f"  see {FOLDER}/REPORT.txt",
        ] == str(found).splitlines()[1:]

    @pytest.mark.parametrize(
        ("cause", "told"),
        [(Cause.SLEEPING, False), (Cause.HEALTHY, True)],
    )
    def test_healthy(self, cause, told):
        """
        Whether anything is wrong follows from the verdict.
        """
        assert told == hang(cause).is_healthy


class TestOutputDir:
    def test_writable(self, tmp_path, caplog):
        """
        A folder in which reports can be written is made, and stays empty.
        """
        got = find_output_dir(tmp_path / "a" / "hangs")

        assert tmp_path / "a" / "hangs" == got
        assert [] == list(got.iterdir())
        assert [] == caplog.records

    def test_elsewhere(self, tmp_path, caplog, monkeypatch):
        """
        If nothing can be written there, that is said at once, and reports go to
        the temporary folder.
        """
        monkeypatch.setattr(
            module.tempfile, "gettempdir", lambda: str(tmp_path)
        )
        (tmp_path / "file").write_text("")

        got = find_output_dir(tmp_path / "file" / "hangs")

        assert tmp_path / f"distdebug-hangs-{os.getuid()}" == got
        assert (
            f"nothing can be written to {tmp_path}/file/hangs (Not a directory): "
            f"reports on hangs go to {got}" == caplog.messages[0]
        )

    @pytest.mark.parametrize("is_link", [False, True])
    def test_not_ours(self, is_link, tmp_path, monkeypatch):
        """
        A temporary folder that others may change, or a link, is not used.
        """
        monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
        taken = tmp_path / f"distdebug-hangs-{os.getuid()}"
        (tmp_path / "theirs").mkdir(mode=0o700)
        if is_link:
            taken.symlink_to(tmp_path / "theirs")
        else:
            taken.mkdir()
            taken.chmod(0o777)

        got = find_output_dir(Path("/proc/x"))

        assert got != taken
        assert tmp_path == got.parent
        assert 0o700 == got.stat().st_mode & 0o777

    def test_hangs(self, tmp_path, monkeypatch):
        """
        A file system that does not answer keeps no job from its start.
        """
        monkeypatch.setattr(module, "_PROBE_S", 0.1)
        monkeypatch.setattr(module, "_probe", lambda _: time.sleep(5))

        begin = time.monotonic()
        got = find_output_dir(tmp_path)

        assert got != tmp_path
        assert time.monotonic() - begin < 3

    def test_problem(self, tmp_path):
        """
        A report that could not be written is not promised.
        """
        found = Hang(
            reason=REASON,
            folder=tmp_path,
            data={"verdict": {"cause": "sleeping", "summary": "it sleeps"}},
            problem="No space left on device",
        )

        assert (
            "the report could not be written (No space left on device): "
            f"{tmp_path}/REPORT.txt" in str(found)
        )

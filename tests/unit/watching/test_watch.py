"""
Whom a watcher calls and when, with clocks and nodes that are made up.
"""

from __future__ import annotations

import shutil
import threading

import pytest

from distdebug._in_time import in_time
from distdebug.errors import ConfigError, PatternError
from distdebug.processes import Worker
from distdebug.watching import (
    HangDebugConfig,
    HangReason,
    ProgressSensor,
    watch_processes,
)
from distdebug.watching.alarm import ProgressAlarm
from distdebug.watching.crew import crew_of
from distdebug.watching.hang import NotYet


class Node:
    """
    A node whose time passes only while somebody sleeps.
    """

    def __init__(self, root):
        self.root = root
        self.now = 1000.0
        self.plan = []
        self.calls = []

    def process(self, pid, *, started=5, letter="S", switches=0):
        """
        Start a process, or change what is known about it.
        """
        folder = self.root / str(pid)
        main = folder / "task" / str(pid)
        main.mkdir(parents=True, exist_ok=True)
        rest = " ".join(["0"] * 17 + [str(started)])
        (folder / "stat").write_text(f"{pid} (py) {letter} 1 {rest}")
        (main / "status").write_text(f"voluntary_ctxt_switches:\t{switches}\n")

    def end(self, pid):
        """
        A process ends.
        """
        shutil.rmtree(self.root / str(pid))

    def hide(self, pid):
        """
        Nothing can be read of a process, though it is there.
        """
        (self.root / str(pid) / "stat").unlink()

    def at(self, seconds, do):
        """
        Do something that many seconds after the start.
        """
        self.plan.append((1000.0 + seconds, do))

    def sleep(self, seconds):
        """
        Let time pass.
        """
        self.now += max(seconds, 0.001)
        for due, do in [x for x in self.plan if x[0] <= self.now]:
            self.plan.remove((due, do))
            do()

    def on_hang(self, reason):
        """
        Take note of a call.
        """
        self.calls.append((round(reason.elapsed_s), reason.kind))

    def watch(self, config, **kwargs):
        """
        Watch this node.
        """
        arguments = {
            "on_hang": self.on_hang,
            "sleep": self.sleep,
            "clock": lambda: self.now,
            "root": str(self.root),
            "pids": [7],
        }
        return watch_processes(config, **(arguments | kwargs))


@pytest.fixture(name="node")
def _node(tmp_path):
    node = Node(tmp_path)
    node.process(7)
    return node


def worker(pid, role="rank"):
    """
    A worker of which only its number and role matter.
    """
    return Worker(
        pid=pid,
        start_ticks=5,
        parent_pid=1,
        uid=0,
        title="",
        framework="torchrun",
        role=role,
    )


class TestWaits:
    def test_each(self, node):
        """
        Each wait calls once, and the watch ends with the processes.
        """
        node.at(3000, lambda: node.end(7))

        ending = node.watch([1800, 2400], sense=lambda _: node.now)

        assert "ended" == ending
        assert [(1800, "wait"), (2400, "wait")] == node.calls

    def test_after_the_last(self, node):
        """
        If nothing else was asked for, it ends after the last wait.
        """
        ending = node.watch(35, until_exit=False)

        assert "waited" == ending
        assert [(35, "wait")] == node.calls

    def test_ended_before(self, node):
        """
        A job that ended in time is not looked at.
        """
        node.at(100, lambda: node.end(7))

        assert "ended" == node.watch(600)
        assert [] == node.calls

    def test_slow_call(self, node):
        """
        Waits that pass while somebody is called count as one.
        """

        def on_hang(reason):
            node.on_hang(reason)
            node.now += 500

        node.watch([100, 200, 300], until_exit=False, on_hang=on_hang)

        # The second call is for the waits that passed during the first.
        assert [(100, "wait"), (600, "wait")] == node.calls

    def test_config(self, node):
        """
        A configuration tells the waits.
        """
        config = HangDebugConfig(enabled=True, wait_seconds=50)

        node.watch(config, until_exit=False)

        assert [(50, "wait")] == node.calls

    def test_off(self, node):
        """
        A configuration that is off does not watch.
        """
        assert "off" == node.watch(HangDebugConfig())

    def test_call_fails(self, node, caplog):
        """
        If what is called fails, the watch goes on, and says so.
        """
        calls = []

        def on_hang(reason):
            calls.append(reason)
            raise OSError(28, "No space left on device")

        node.watch([10, 20], until_exit=False, on_hang=on_hang)

        assert 2 == len(calls)
        assert "what is called at a hang failed" in caplog.text


class TestProgress:
    def test_stuck(self, node):
        """
        A main thread that does not run any more is told once.
        """
        for second in range(10, 110, 10):
            node.at(second, lambda x=second: node.process(7, switches=x))
        node.at(2000, lambda: node.end(7))

        node.watch(10_000)

        assert [(170, "no progress")] == node.calls

    def test_any(self, node):
        """
        One that is stuck is enough, whatever the others do.
        """
        node.process(8)
        for second in range(10, 2000, 10):
            node.at(second, lambda x=second: node.process(8, switches=x))
        for second in (10, 20):
            node.at(second, lambda x=second: node.process(7, switches=x))
        node.at(2000, lambda: (node.end(7), node.end(8)))
        reasons = []

        node.watch(10_000, pids=[7, 8], on_hang=reasons.append)

        assert [(7, 8)] == [x.pids for x in reasons]
        assert ["process 7"] == [x.stalled[0][0] for x in reasons]

    def test_irregular(self, node):
        """
        A job whose steps take 1 to 20 seconds is never told to be stuck.
        """
        moment, count = 0, 0
        while moment < 3600:
            moment += 1 + (count * 7) % 20
            count += 1
            node.at(moment, lambda x=count: node.process(7, switches=x))
        node.at(3600, lambda: node.end(7))

        node.watch(10_000)

        assert [] == node.calls

    def test_own_source(self, node):
        """
        One value of the caller's own will do; both triggers make one call.
        """
        reasons = []

        node.watch(
            100,
            sense=lambda _: min(node.now, 1030),
            on_hang=reasons.append,
            until_exit=False,
        )

        (reason,) = reasons
        assert ("wait", ("the job", 70.0)) == (reason.kind, reason.stalled[0])

    def test_looking_moves_it(self, node):
        """
        What moves because somebody was called is no progress.
        """
        node.at(5000, lambda: node.end(7))

        def on_hang(reason):
            node.on_hang(reason)
            node.process(7, switches=99)

        node.watch(10_000, on_hang=on_hang)

        assert [(610, "no progress")] == node.calls

    def test_sensor(self, node):
        """
        Another sensor decides by other limits.
        """
        node.at(500, lambda: node.end(7))

        node.watch(
            10_000, new_sensor=lambda: ProgressSensor(floor_s=1, start_s=20)
        )

        assert [(30, "no progress")] == node.calls

    def test_source_fails(self, node, caplog):
        """
        A source that fails tells nothing, and costs nothing else.
        """

        def sense(_):
            raise RuntimeError

        node.watch(100, sense=sense, until_exit=False)

        assert [(100, "wait")] == node.calls
        assert 1 == caplog.text.count("cannot tell what moves")

    def test_source_fails_once(self, node):
        """
        What was learned of the job survives a source that fails for a while.
        """

        def sense(_):
            if 1050 < node.now < 1300:
                raise OSError
            return min(node.now, 1300)

        node.at(1500, lambda: node.end(7))

        node.watch(10_000, sense=sense)

        assert [] == node.calls  # 250 s were fine, so 1,200 s are


class TestNotYet:
    def stall(self, node, *, at, **options):
        """
        Watch something that moves once a second until then, and no more.
        """
        return node.watch(
            10_000,
            sense=lambda _: {"rank 0": min(node.now, 1000 + at)},
            new_sensor=lambda: ProgressSensor(floor_s=60, start_s=60),
            **options,
        )

    def test_again(self, node):
        """
        What is fine is asked for again when it has lasted twice as long.
        """
        stalls = []

        def on_hang(reason):
            ((_, seconds),) = reason.stalled
            stalls.append(seconds)
            return NotYet(seconds)

        node.at(1500, lambda: node.end(7))

        self.stall(node, at=100, on_hang=on_hang)

        assert 70 == stalls[0]
        assert [140, 280, 560, 1120] == stalls[1:]

    def test_forever(self, node):
        """
        What is never news does not use up the number of times.
        """
        calls = []

        def on_hang(reason):
            calls.append(reason)
            return NotYet(20)

        node.at(1000, lambda: node.end(7))

        self.stall(node, at=100, on_hang=on_hang)

        assert 30 < len(calls)

    def test_news_after_all(self, node):
        """
        When it is told in the end, it is told once.
        """
        answers = [NotYet(100), NotYet(100), None]
        calls = []

        def on_hang(reason):
            calls.append(round(reason.elapsed_s))
            return answers.pop(0)

        node.at(5000, lambda: node.end(7))

        self.stall(node, at=100, on_hang=on_hang)

        assert [170, 270, 370] == calls

    def test_moved(self, node):
        """
        What has moved meanwhile is not asked for again.
        """
        calls = []

        def on_hang(reason):
            calls.append(reason)
            return NotYet(100)

        node.at(5000, lambda: node.end(7))

        node.watch(
            10_000,
            sense=lambda _: 1 if 1100 < node.now < 1200 else node.now,
            new_sensor=lambda: ProgressSensor(floor_s=60, start_s=60),
            on_hang=on_hang,
        )

        assert 1 == len(calls)

    def test_others(self, node):
        """
        Only what was told is taken back, and not what was told before.
        """
        told = []

        def on_hang(reason):
            told.append(tuple(name for name, _ in reason.stalled))
            return NotYet(50) if told[-1] == ("b",) else None

        node.at(1000, lambda: node.end(7))

        node.watch(
            10_000,
            sense=lambda _: {
                "a": min(node.now, 1010),
                "b": min(node.now, 1600),
            },
            new_sensor=lambda: ProgressSensor(floor_s=60, start_s=60),
            on_hang=on_hang,
        )

        assert ("a",) == told[0]
        assert {("b",)} == set(told[1:])
        assert 1 < len(told[1:])

    def test_wait(self, node):
        """
        A fixed wait is over once, whatever is answered.
        """
        calls = []

        def on_hang(reason):
            calls.append(round(reason.elapsed_s))
            return NotYet(5)

        node.at(500, lambda: node.end(7))

        node.watch([100, 200], sense=lambda _: node.now, on_hang=on_hang)

        assert [100, 200] == calls

    def test_nothing_to_take_back(self):
        """
        Who told nothing takes nothing back, and tells as often as before.
        """
        alarm = ProgressAlarm(
            new_sensor=lambda: ProgressSensor(floor_s=1, start_s=1), most=1
        )
        alarm.saw(0, {"a": 1})
        alarm.withdraw(1000)

        first = alarm.news(5)
        alarm.news(6)  # nothing new
        alarm.withdraw(0)

        assert (("a", 5),) == first
        assert () == alarm.news(7)


class TestStopped:
    @pytest.mark.parametrize("answer", [True, 1, "yes", None, False])
    def test_told(self, node, answer):
        """
        Whoever sleeps for us may end it, by nothing but the truth.
        """

        def sleep(seconds):
            node.sleep(seconds)
            return answer

        node.at(100, lambda: node.end(7))

        ending = node.watch(10_000, sleep=sleep)

        assert ("stopped" if answer is True else "ended") == ending

    @pytest.mark.parametrize("wait", [5, 10_000])
    def test_event(self, node, wait):
        """
        An event ends it at once, however long the next rest would be.
        """
        stop = threading.Event()
        stop.set()

        ending = node.watch(wait, sleep=stop.wait)

        assert "stopped" == ending

    def test_during_call(self, node):
        """
        If it is ended while somebody is called, nobody is called again.
        """
        stop = threading.Event()
        calls = []

        def on_hang(reason):
            calls.append(reason)
            stop.set()

        def sleep(seconds):
            node.sleep(seconds)
            return stop.is_set()

        ending = node.watch([10, 20, 30], sleep=sleep, on_hang=on_hang)

        assert "stopped" == ending
        assert 1 == len(calls)


class TestEnding:
    def test_interrupted(self, node):
        """
        Ctrl-C ends it in order, also while somebody is called.
        """

        def interrupt(*_):
            raise KeyboardInterrupt

        assert "interrupted" == node.watch(600, sleep=interrupt)
        assert "interrupted" == node.watch(10, on_hang=interrupt)

    def test_another_process(self, node):
        """
        A process that got the number of another one is not watched.
        """
        node.at(50, lambda: node.process(7, started=6))

        assert "ended" == node.watch(600)

    def test_zombie(self, node):
        """
        A process that nobody reaps has ended.
        """
        node.at(50, lambda: node.process(7, letter="Z"))

        assert "ended" == node.watch(600)

    def test_nobody(self, node):
        """
        Nobody is waited for longer than the last wait.
        """
        ending = node.watch([10, 600], pids=(), find=lambda *_, **__: ())

        assert "nobody" == ending
        assert 1600 == node.now
        assert [] == node.calls

    @pytest.mark.parametrize(
        "poll_s", [0, -1, 0.01, float("nan"), float("inf"), 1e308, "x"]
    )
    def test_no_poll(self, node, poll_s):
        """
        To look without rest is refused.
        """
        with pytest.raises(ConfigError, match="poll_s"):
            node.watch(600, poll_s=poll_s)

    def test_one_pattern(self, node):
        """
        One pattern need not be in a list.
        """
        asked = []

        def find(patterns, **_):
            asked.append(patterns)
            return ()

        node.watch(5, pids=(), patterns="train", find=find)

        assert {("train",)} == set(asked)

    def test_no_such_process(self, node):
        """
        Nobody waits for a process that was named and is not there.
        """
        assert "nobody" == node.watch(600, pids=[99])
        assert 1000 == node.now

    def test_exit_on_a_thread(self, node, caplog):
        """
        What wants to exit ends neither its thread nor the watch.
        """

        def leave(*_):
            raise SystemExit

        ending = in_time(
            lambda: node.watch(
                [10, 20], until_exit=False, on_hang=leave, sense=leave
            ),
            30,
        )

        assert "waited" == ending
        assert 2 == caplog.text.count("what is called at a hang failed")
        assert 1 == caplog.text.count("cannot tell what moves")

    def test_exit(self, node):
        """
        On the main thread, who wants to exit may.
        """

        def leave(*_):
            raise SystemExit

        with pytest.raises(SystemExit):
            node.watch(10, sense=leave)

    def test_no_pattern(self, node):
        """
        A pattern that is none is told at once.
        """
        with pytest.raises(PatternError):
            node.watch(600, pids=(), patterns=["("])

    def test_cannot_look(self, node, caplog):
        """
        If processes cannot be looked for, that is no end.
        """

        def find(*_, **__):
            raise OSError

        assert "nobody" == node.watch(30, pids=(), find=find)
        assert "cannot look for processes" in caplog.text


class TestMended:
    def alarm(self, *, is_fine):
        """
        An alarm that told of something that moved again.
        """
        alarm = ProgressAlarm(
            new_sensor=lambda: ProgressSensor(floor_s=10, start_s=10)
        )
        for now in range(4):
            alarm.saw(now, {"a": now})
        alarm.news(21)
        if is_fine:
            alarm.withdraw(30)
        alarm.saw(23, {"a": "moved"})
        return alarm

    def test_hang(self):
        """
        What was told as a hang is no pause that is fine from now on.
        """
        assert 10 == self.alarm(is_fine=False)._sensors["a"].limit_s

    def test_fine(self):
        """
        What was taken back is.
        """
        assert 100 == self.alarm(is_fine=True)._sensors["a"].limit_s


class TestCrew:
    def test_later(self, node):
        """
        Workers may start after the watch, and be started again.
        """
        found = []
        node.at(100, lambda: found.append(worker(7)))
        node.at(200, lambda: (node.process(8), found.append(worker(8))))
        node.at(400, lambda: (node.end(7), found.pop(0)))
        node.at(2000, lambda: (node.end(8), found.clear()))
        reasons = []

        ending = node.watch(
            [150, 300, 600],
            pids=(),
            patterns=["x"],
            find=lambda *_, **__: tuple(found),
            sense=lambda _: node.now,
            on_hang=reasons.append,
        )

        assert "ended" == ending
        assert [(7,), (7, 8), (8,)] == [x.pids for x in reasons]

    def test_told(self, node):
        """
        Whoever is watched is told at the start, and when others are.
        """
        found, told = [], []
        node.at(100, lambda: found.append(worker(7)))
        node.at(300, lambda: node.end(7))

        node.watch(
            1000,
            pids=(),
            find=lambda *_, **__: tuple(found),
            sense=lambda _: node.now,
            tell=told.append,
        )

        assert [(), (7,), ()] == told

    def test_unreadable(self, node):
        """
        Who cannot be read for a moment is watched all the same.
        """
        crew = crew_of([7], (), find=None, root=str(node.root))

        node.hide(7)
        meanwhile = crew.look(10)
        node.process(7)
        afterwards = crew.look(20)
        node.end(7)

        assert ((7,), (7,), ()) == (meanwhile, afterwards, crew.look(30))

    @pytest.mark.parametrize("change", [{"started": 9}, {"letter": "Z"}])
    def test_number_used_again(self, node, change):
        """
        Who has the number of one that ended, or is dead, is not watched.
        """
        crew = crew_of([7], (), find=None, root=str(node.root))

        node.process(7, **change)

        assert () == crew.look(10)

    def test_late_ranks(self, node):
        """
        As long as only launchers are there, ranks are looked for each time.
        """
        node.process(8)
        node.process(9)
        found = [worker(8, "launcher")]
        crew = crew_of(
            (), (), find=lambda *_, **__: tuple(found), root=str(node.root)
        )

        alone = [crew.look(now) for now in (0, 10, 20)]
        found.append(worker(7))
        first = crew.look(30)
        found.append(worker(9))
        second = crew.look(40)
        found[:] = [worker(8, "launcher")]
        kept = crew.look(50)
        node.end(7)
        node.end(9)
        restarted = crew.look(60)
        found.append(worker(7))
        node.process(7, started=9)

        assert [(8,)] * 3 == alone
        assert ((7,), (7, 9)) == (first, second)
        assert ((7, 9), (8,)) == (kept, restarted)
        assert (7,) == crew.look(70)

    def test_ranks_first(self, node):
        """
        Launchers count only as long as there are no ranks.
        """
        node.process(8)
        found = [worker(8, "launcher")]
        crew = crew_of(
            (), (), find=lambda *_, **__: tuple(found), root=str(node.root)
        )

        alone = crew.look(0)
        found.append(worker(7))
        together = crew.look(60)

        assert (8,) == alone
        assert (7,) == together

    def test_seldom(self, node):
        """
        Others are looked for once a minute as long as the same are there.
        """
        looks = []

        def find(*patterns, **_):
            looks.append(patterns)
            return (worker(7),)

        crew = crew_of((), ["a"], find=find, root=str(node.root))
        for now in range(0, 60, 10):
            crew.look(now)
        soon = len(looks)
        for now in range(100, 700, 10):
            crew.look(now)

        assert {(("a",),)} == set(looks)
        assert 4 <= soon <= 6
        assert 12 >= len(looks) - soon


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            HangReason(kind="wait", elapsed_s=1800, pids=(7,)),
            "1,800 s are over",
        ),
        (
            HangReason(
                kind="wait", elapsed_s=600, pids=(), stalled=(("a", 70.0),)
            ),
            "600 s are over; no progress for 70 s",
        ),
        (
            HangReason(
                kind="no progress",
                elapsed_s=600,
                pids=(),
                stalled=(("\x1b[2Ja", 1070.0), ("b", 60.0)),
            ),
            "no progress for 1,070 s (a and 1 more)",
        ),
    ],
)
def test_reason(reason, text):
    """
    A reason is a sentence, safe to print.
    """
    assert text == str(reason)

"""
When a watcher calls, and for which processes, with clocks and nodes that are
made up.
"""

from __future__ import annotations

import itertools
import shutil
import threading

from bisect import bisect

import pytest

from distdebug._proc import in_time
from distdebug.errors import ConfigError, PatternError
from distdebug.processes import Worker
from distdebug.watching import (
    HangDebugConfig,
    HangReason,
    ProgressSensor,
    RetryLater,
    watch_processes,
)


class Node:
    """
    A node whose time passes only while the watch sleeps.
    """

    def __init__(self, root):
        self.root = root
        self.now = 1000.0
        self.plan = []
        self.calls = []
        self.answer = lambda _: None
        self.ending = ""

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
        Take note of a call, and answer as it was said.
        """
        names = [name for name, _ in reason.stalled]
        self.calls.append((round(reason.elapsed_s), reason.kind, names))
        return self.answer(reason)

    def watch(self, config=1e5, *, ends=None, values=None, **options):
        """
        Watch this node, whose process ends at *ends*, and shows *values* at
        each time; return when and why the hook was called, and for what.
        """
        if ends is not None:
            self.at(ends, lambda: self.end(7))
        if values is not None:
            options["sense"] = lambda _: values(round(self.now - 1000))
        arguments = {
            "on_hang": self.on_hang,
            "sleep": self.sleep,
            "clock": lambda: self.now,
            "root": str(self.root),
            "pids": [7],
        }
        self.ending = watch_processes(config, **(arguments | options))
        return self.calls


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


def moving(second):
    """
    What is seen of something that moves all the time.
    """
    return second


def stall(at):
    """
    What is seen of something that moves once a second until then.
    """
    return lambda second: {"rank 0": min(second, at)}


def sensors(floor_s=60, start_s=60):
    """
    Makes sensors of their own limits.
    """
    return lambda: ProgressSensor(floor_s=floor_s, start_s=start_s)


def leave(*_):
    """
    Want to exit.
    """
    raise SystemExit


class TestWaits:
    @pytest.mark.parametrize(
        ("config", "options", "expected", "ending"),
        [
            ([1800, 2400], {"ends": 3000}, [1800, 2400], "ended"),
            (600, {"ends": 100}, [], "ended"),
            (35, {"until_exit": False}, [35], "waited"),
            (HangDebugConfig(), {}, [], "off"),
            (
                HangDebugConfig(enabled=True, wait_seconds=50),
                *({"until_exit": False}, [50], "waited"),
            ),
        ],
        ids=["each", "ended before", "after the last", "off", "enabled"],
    )
    def test_each(self, node, *, config, options, expected, ending):
        """
        Each wait calls once; the watch ends with the processes, or after the
        last wait if nothing else was asked for.
        """
        calls = node.watch(config, values=moving, **options)

        assert [(second, "wait", []) for second in expected] == calls
        assert ending == node.ending

    def test_slow_call(self, node):
        """
        Waits that pass during a call count as one.
        """

        def answer(_):
            node.now += 500

        node.answer = answer

        calls = node.watch([100, 200, 300], values=moving, until_exit=False)

        # The second call is for the waits that passed during the first.
        assert [100, 600] == [second for second, _, _ in calls]

    def test_call_fails(self, node, caplog):
        """
        If what is called fails, the watch goes on, and says so.
        """

        def fail(_):
            raise OSError(28, "No space left on device")

        node.answer = fail

        assert 2 == len(node.watch([10, 20], until_exit=False))
        assert "what is called at a hang failed" in caplog.text


class TestProgress:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (lambda t: {"a": min(t, 100), "b": t}, [(170, ["a"])]),
            (
                # That it took 900 s once does not make 4,500 s fine.
                lambda t: {"a": min(t, 100) + (t >= 1000)},
                [(170, ["a"]), (1070, ["a"])],
            ),
            (
                lambda t: {
                    "a": min(t, 100),
                    "b": min(t, 120),
                    "c": min(t, 110),
                    "d": None,
                    "e": t if t > 400 else min(t, 120),
                },
                [(170, ["a"]), (470, ["c", "b"])],
            ),
        ],
        ids=["once", "again", "pause"],
    )
    def test_told(self, node, values, expected):
        """
        A stall is reported once, and a second one too if the first was over;
        what stalls soon after a report is reported later, all at once, unless
        it moves before.
        """
        calls = node.watch(ends=5000, values=values)

        assert [(t, "no progress", names) for t, names in expected] == calls

    def test_most(self, node):
        """
        There is an end to it.
        """
        calls = node.watch(
            ends=8000,
            values=lambda t: {f"{t // 400}": 1},
            new_sensor=sensors(1, 20),
        )

        assert [400 * n + 30 for n in range(10)] == [t for t, _, _ in calls]

    def test_main_thread(self, node):
        """
        By default, a main thread that does not run any more is reported,
        whatever the others do.
        """
        node.process(8)
        for second in range(10, 2000, 10):
            node.at(second, lambda x=second: node.process(8, switches=x))
        for second in range(10, 110, 10):
            node.at(second, lambda x=second: node.process(7, switches=x))
        node.at(2000, lambda: node.end(8))

        calls = node.watch(ends=2000, pids=[7, 8])

        assert [(170, "no progress", ["process 7"])] == calls

    def test_no_number(self, node):
        """
        A count that is not a number shows nothing.
        """
        node.process(7, switches="many")

        assert [] == node.watch(ends=3600)

    def test_irregular(self, node):
        """
        A job whose steps take 1 to 20 seconds is never reported as stuck.
        """
        pauses = (1 + number * 7 % 20 for number in range(400))
        moments = list(itertools.accumulate(pauses))

        calls = node.watch(
            ends=3600, values=lambda second: bisect(moments, second)
        )

        assert [] == calls
        assert moments[-1] > 3600

    def test_own_source(self, node):
        """
        One value of the caller's own will do; both triggers make one call.
        """
        calls = node.watch(100, values=lambda t: min(t, 30), until_exit=False)

        assert [(100, "wait", ["the job"])] == calls

    def test_looking_moves_it(self, node):
        """
        A movement that is caused by the look itself is no progress.
        """
        node.answer = lambda _: node.process(7, switches=99)

        calls = node.watch(ends=5000)

        assert [(610, "no progress", ["process 7"])] == calls

    def test_source_fails(self, node, caplog):
        """
        A source that fails is logged once, and costs nothing else; what was
        learned before is kept.
        """

        def values(second):
            if 50 < second < 300:
                raise OSError
            return min(second, 300)

        calls = node.watch([100, 1e5], ends=500, values=values)

        # 250 s were fine, so 1,200 s are.
        assert [(100, "wait", [])] == calls
        assert 1 == caplog.text.count("cannot determine what moves")


class TestRetryLater:
    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            # What is fine is asked for again when it has lasted twice as long.
            (RetryLater, [170, 240, 380, 660, 1220]),
            # What is never news does not use up the number of times.
            (lambda _: RetryLater(60), [*range(170, 1500, 60)]),
            # When it is told in the end, it is told once.
            (lambda s: RetryLater(100) if s < 270 else None, [170, 270, 370]),
        ],
        ids=["twice as long", "for ever", "in the end"],
    )
    def test_again(self, node, answers, expected):
        """
        A stall that is fine so far is reported again later.
        """
        node.answer = lambda reason: answers(reason.stalled_s)

        calls = node.watch(ends=1500, values=stall(100), new_sensor=sensors())

        assert expected == [second for second, _, _ in calls]

    def test_moved(self, node):
        """
        What has moved meanwhile is not asked for again.
        """
        node.answer = lambda _: RetryLater(100)

        calls = node.watch(
            ends=5000,
            values=lambda t: 1 if 100 < t < 200 else t,
            new_sensor=sensors(),
        )

        assert 1 == len(calls)

    def test_others(self, node):
        """
        Only the last report is taken back, and not an earlier one.
        """
        node.answer = lambda reason: (
            RetryLater(50) if reason.stalled[0][0] == "b" else None
        )

        calls = node.watch(
            ends=1000,
            values=lambda t: {"a": min(t, 10), "b": min(t, 600)},
            new_sensor=sensors(),
        )

        (first, *others) = (names for _, _, names in calls)
        assert ["a"] == first
        assert 1 < len(others)
        assert all(["b"] == names for names in others)

    def test_nothing_to_take_back(self, node):
        """
        Without a report nothing is taken back, and the number of reports
        stays; a fixed wait is over once, whatever the answer.
        """
        answers = {5: RetryLater(1000), 200: RetryLater(0)}
        node.answer = lambda reason: answers.get(round(reason.elapsed_s))

        calls = node.watch(
            [5, 200, 10_000],
            ends=1000,
            values=stall(10),
            new_sensor=sensors(),
        )

        assert [
            (5, "wait", []),
            (85, "no progress", ["rank 0"]),
            (200, "wait", []),
        ] == calls

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [(None, [10.0]), (RetryLater(60), [10.0, 100.0])],
    )
    def test_mended(self, node, answer, expected):
        """
        A reported hang is no pause that is fine from now on; one that was
        taken back is.
        """
        limits, made = [], []
        node.answer = lambda _: answer

        def new_sensor():
            made.append(ProgressSensor(floor_s=10, start_s=10))
            return made[-1]

        def values(second):
            limits.append(made[0].limit_s if made else 10.0)
            return min(second, 3) + (second > 22)

        node.watch(ends=30, poll_s=1, values=values, new_sensor=new_sensor)

        assert expected == sorted(set(limits))


class TestEnding:
    @pytest.mark.parametrize("answer", [True, 1, "yes", None, False])
    def test_stopped(self, node, answer):
        """
        The sleep function ends the watch by returning `True`, and by nothing
        else.
        """
        node.watch(ends=100, sleep=lambda s: (node.sleep(s), answer)[1])

        assert ("stopped" if answer is True else "ended") == node.ending

    def test_during_call(self, node):
        """
        If the watch is ended during a call, there is no further call.
        """
        stop = threading.Event()
        node.answer = lambda _: stop.set()

        calls = node.watch(
            [10, 20, 30], sleep=lambda s: (node.sleep(s), stop.is_set())[1]
        )

        assert "stopped" == node.ending
        assert 1 == len(calls)

    def test_interrupted(self, node):
        """
        Ctrl-C ends the watch in order, also during a call.
        """

        def interrupt(*_):
            raise KeyboardInterrupt

        for options in ({"sleep": interrupt}, {"on_hang": interrupt}):
            node.watch(10, **options)

            assert "interrupted" == node.ending

    @pytest.mark.parametrize("change", [{"started": 6}, {"letter": "Z"}])
    def test_number_used_again(self, node, change):
        """
        A process that has the number of one that ended, or is dead, is not
        watched.
        """
        node.at(50, lambda: node.process(7, **change))

        node.watch(600)

        assert ("ended", 1050) == (node.ending, node.now)

    @pytest.mark.parametrize(
        ("options", "until"),
        [({"pids": (), "find": lambda *_, **__: ()}, 600), ({"pids": [9]}, 0)],
    )
    def test_nobody(self, node, options, until):
        """
        The watch does not wait for processes longer than the last wait; nor at
        all for one that was named and does not exist.
        """
        calls = node.watch([10, 600], **options)

        assert ("nobody", 1000 + until) == (node.ending, node.now)
        assert [] == calls

    @pytest.mark.parametrize(
        "poll_s", [0, -1, 0.01, float("nan"), float("inf"), 1e308, "x"]
    )
    def test_no_poll(self, node, poll_s):
        """
        To look without rest is refused.
        """
        with pytest.raises(ConfigError, match="poll_s"):
            node.watch(600, poll_s=poll_s)

    def test_exit_on_a_thread(self, node, caplog):
        """
        What wants to exit ends neither its thread nor the watch.
        """
        options = {"until_exit": False, "on_hang": leave, "sense": leave}

        in_time(lambda: node.watch([10, 20], **options), 30)

        assert "waited" == node.ending
        assert 2 == caplog.text.count("what is called at a hang failed")
        assert 1 == caplog.text.count("cannot determine what moves")

    def test_exit(self, node):
        """
        On the main thread, a wish to exit is honoured.
        """
        with pytest.raises(SystemExit):
            node.watch(10, sense=leave)

    def test_no_pattern(self, node):
        """
        An invalid pattern is refused at once.
        """
        with pytest.raises(PatternError):
            node.watch(600, pids=(), patterns=["("])

    def test_cannot_look(self, node, caplog):
        """
        If processes cannot be looked for, that is no end.
        """

        def find(*_, **__):
            raise OSError

        node.watch(30, pids=(), find=find)

        assert "nobody" == node.ending
        assert "cannot look for processes" in caplog.text


class TestWatchedProcesses:
    def follow(self, node, found, waits=1e5, **options):
        """
        Which processes were watched since when, of those that are found
        meanwhile.
        """
        told = []
        node.watch(
            waits,
            **{"pids": (), "find": lambda *_, **__: tuple(found)} | options,
            sense=lambda _: node.now,
            tell=lambda pids: told.append((round(node.now - 1000), pids)),
        )
        return told

    def test_later(self, node):
        """
        Workers may start after the watch, and be started again; the processes
        that are watched are reported at the start, and at each change.
        """
        found = []
        node.at(100, lambda: found.append(worker(7)))
        node.at(200, lambda: (node.process(8), found.append(worker(8))))
        node.at(400, lambda: (node.end(7), found.pop(0)))
        node.at(2000, lambda: (node.end(8), found.clear()))
        reasons = []

        told = self.follow(
            node, found, waits=[150, 300, 600], on_hang=reasons.append
        )

        assert "ended" == node.ending
        assert [(7,), (7, 8), (8,)] == [x.pids for x in reasons]
        assert [
            *((0, ()), (100, (7,)), (250, (7, 8)), (400, (8,)), (2000, ()))
        ] == told

    def test_unreadable(self, node):
        """
        A process that cannot be read for a moment is still watched.
        """
        node.at(20, lambda: node.hide(7))
        node.at(40, lambda: node.process(7))
        node.at(60, lambda: node.end(7))

        told = self.follow(node, (), pids=[7])

        assert [(0, (7,)), (60, ())] == told

    def test_late_ranks(self, node):
        """
        Launchers count only as long as there are no ranks, which are looked
        for each time until then.
        """
        node.process(8)
        node.process(9)
        found = [worker(8, "launcher")]
        node.at(30, lambda: found.append(worker(7)))
        node.at(40, lambda: found.append(worker(9)))
        node.at(50, lambda: found.__setitem__(slice(1, 3), []))
        node.at(60, lambda: (node.end(7), node.end(9)))
        node.at(
            70, lambda: (node.process(7, started=9), found.append(worker(7)))
        )
        node.at(80, lambda: (node.end(7), node.end(8)))

        told = self.follow(node, found)

        assert [
            *((0, (8,)), (30, (7,)), (40, (7, 9)), (60, (8,)), (70, (7,))),
            (80, ()),
        ] == told

    def test_seldom(self, node):
        """
        Others are looked for once a minute as long as the same are there; one
        pattern need not be in a list.
        """
        looks = []

        def find(*patterns, **_):
            looks.append((round(node.now - 1000), patterns))
            return (worker(7),)

        node.at(700, lambda: node.end(7))

        self.follow(node, (), patterns="a", find=find)

        assert {(("a",),)} == {patterns for _, patterns in looks}
        assert 4 <= sum(when < 60 for when, _ in looks) <= 6
        assert 12 >= sum(100 <= when < 700 for when, _ in looks)


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

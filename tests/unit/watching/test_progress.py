"""
Is this still moving, with times that are made up?
"""

from __future__ import annotations

import pytest

from distdebug.errors import ConfigError
from distdebug.watching import ProgressSensor
from distdebug.watching.alarm import ProgressAlarm


def moved(times, **kwargs):
    """
    A sensor that saw a change at each of these times.
    """
    sensor = ProgressSensor(**kwargs)
    for time in times:
        sensor.saw(time, time)
    return sensor


class TestSensor:
    def test_floor(self):
        """
        A job with quick steps is stuck after the floor, and not before.
        """
        sensor = moved([0, 1, 2])

        assert not sensor.is_hung(62)
        assert sensor.is_hung(62.1)

    def test_nothing_seen(self):
        """
        Who never saw anything does not say that it hangs.
        """
        sensor = ProgressSensor()
        sensor.saw(0, None)

        assert not sensor.is_hung(1e9)
        assert 0 == sensor.stalled_s(1e9)

    def test_start(self):
        """
        The first change may take longer, but not for ever.
        """
        sensor = moved([0])

        assert not sensor.is_hung(600)
        assert sensor.is_hung(601)

    def test_start_is_no_step(self):
        """
        How long the start took does not make the limit higher.
        """
        sensor = moved([0, 500])

        assert 60 == sensor.limit_s

    def test_checkpoint(self):
        """
        A long checkpoint that was seen once is no hang the second time.
        """
        sensor = moved([0, 1, 2, 302])

        assert 1500 == sensor.limit_s
        assert not sensor.is_hung(602)

    def test_forgets(self):
        """
        What is long ago does not count any more.
        """
        sensor = moved([0, 1, 1001, *range(1002, 2002)])

        assert 60 == sensor.limit_s

    def test_arms_again(self):
        """
        After it moved again, the next stall is one again.
        """
        sensor = moved([0, 1], factor=1)
        assert sensor.is_hung(100)

        sensor.saw(100, "moved")

        assert not sensor.is_hung(199)
        assert sensor.is_hung(200)

    def test_unseen(self):
        """
        What cannot be seen for a while did not move.
        """
        sensor = moved([0, 1])

        sensor.saw(50, None)

        assert 49 == sensor.stalled_s(50)

    def test_excuse(self):
        """
        A change that is not its own does not count.
        """
        sensor = moved([0, 1])

        sensor.excuse("other")
        sensor.excuse(None)
        sensor.saw(100, "other")

        assert sensor.is_hung(100)

    def test_excuse_first(self):
        """
        Before anything was seen, there is nothing to excuse.
        """
        sensor = ProgressSensor()

        sensor.excuse("x")
        sensor.saw(0, "y")

        assert 600 == sensor.limit_s

    def test_mended(self):
        """
        A hang that was mended makes no other hang wait longer.
        """
        sensor = moved([0, 1, 2])

        sensor.saw(100, "moved", learns=False)

        assert 60 == sensor.limit_s
        assert sensor.is_hung(161)

    def test_clock_goes_back(self):
        """
        A clock that goes back is no stall.
        """
        assert 0 == moved([10, 11]).stalled_s(5)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"floor_s": 0},
            {"floor_s": float("nan")},
            {"floor_s": float("inf")},
            {"floor_s": 1e-9},
            {"floor_s": "a"},
            {"floor_s": True},
            {"floor_s": 10**400},
            {"factor": 0.5},
            {"factor": float("inf")},
            {"start_s": -1},
        ],
    )
    def test_refused(self, kwargs):
        """
        Limits that would call every job stuck are refused.
        """
        with pytest.raises(ConfigError, match="must be a number from"):
            ProgressSensor(**kwargs)


class TestAlarm:
    @staticmethod
    def play(alarm, times, values):
        """
        What was told, and when; *values* makes what is seen at a time.
        """
        told = []
        for time in times:
            alarm.saw(time, values(time))
            news = alarm.news(time)
            if news:
                told.append((time, [name for name, _ in news]))
        return told

    def test_once(self):
        """
        A stall is told once.
        """
        told = self.play(
            ProgressAlarm(),
            range(0, 5000, 10),
            lambda t: {"a": min(t, 100), "b": t},
        )

        assert [(170, ["a"])] == told

    def test_again(self):
        """
        A second stall is told too, if the first was over.
        """
        told = self.play(
            ProgressAlarm(),
            range(0, 5000, 10),
            lambda t: {"a": min(t, 100) + (t >= 1000)},
        )

        # That it took 900 s once does not make 4,500 s fine.
        assert [(170, ["a"]), (1070, ["a"])] == told

    def test_pause(self):
        """
        What stalls soon after the news is told later, all at once.
        """
        alarm = ProgressAlarm(pause_s=300)

        told = self.play(
            alarm,
            range(0, 5000, 10),
            lambda t: {
                "a": min(t, 100),
                "b": min(t, 120),
                "c": min(t, 110),
                "d": None,
            },
        )

        assert [(170, ["a"]), (470, ["c", "b"])] == told

    def test_pause_and_recovery(self):
        """
        What moves again before the pause is over is not told.
        """
        told = self.play(
            ProgressAlarm(pause_s=300),
            range(0, 600, 10),
            lambda t: {"a": min(t, 100), "b": t if t > 400 else min(t, 120)},
        )

        assert [(170, ["a"])] == told

    def test_most(self):
        """
        There is an end to it.
        """
        told = self.play(
            ProgressAlarm(
                new_sensor=lambda: ProgressSensor(floor_s=1, start_s=1),
                pause_s=0,
                most=3,
            ),
            range(1000),
            lambda t: {f"{t // 10}": 1},
        )

        assert [2, 12, 22] == [time for time, _ in told]

    def test_excuse(self):
        """
        A change that is not its own does not arm it again.
        """
        alarm = ProgressAlarm(pause_s=0)
        self.play(alarm, (0, 1, 100), lambda t: {"a": min(t, 1)})

        alarm.excuse({"a": "looked at", "b": "unknown"})

        assert [] == self.play(
            alarm, range(110, 5000), lambda t: {"a": "looked at"}
        )

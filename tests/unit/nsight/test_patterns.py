"""
Which workers match, and which steps are meant?
"""

from __future__ import annotations

import logging
import pickle

import pytest

from distdebug.errors import NsightError
from distdebug.nsight import StepProfiler, match_worker


class TestMatch:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("*policy*", "*policy*"),
            ("*vllm*", None),
            ("*vllm*, *policy* ,*", "*policy*"),
            (" , ,dtensor_policy_worker,", "dtensor_policy_worker"),
            ("policy", None),
            ("*Policy*", None),
            ("dtensor_polic?_worker", "dtensor_polic?_worker"),
            ("[cd]tensor*", "[cd]tensor*"),
            ("[!d]tensor*", None),
            ("", None),
            (["*vllm*", "d*, x"], "d*"),
            ([], None),
            (" \t,dtensor policy*,\t d*_worker\t", "d*_worker"),
            ("x" * 1001 + ",*", "*"),
        ],
    )
    def test_patterns(self, given, expected):
        """
        The first pattern that matches all of the name wins.
        """
        assert expected == match_worker("dtensor_policy_worker", given)

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({}, None),
            ({"NRL": "n*"}, "n*"),
            ({"DISTDEBUG": "na*", "NRL": "n*"}, "na*"),
            ({"DISTDEBUG": "x", "NRL": "n*"}, None),
            ({"DISTDEBUG": " ", "NRL": "n*"}, "n*"),
        ],
    )
    def test_environment(self, environ, expected, monkeypatch):
        """
        By default the patterns of the environment count, ours before theirs;
        those that are given count alone.
        """
        for prefix, text in environ.items():
            monkeypatch.setenv(f"{prefix}_NSYS_WORKER_PATTERNS", text)

        assert expected == match_worker("name")
        assert match_worker("name", "") is None

    def test_logged_once(self, caplog):
        """
        That a worker matches is logged once, in the words of the document.
        """
        caplog.set_level(logging.INFO, "distdebug.nsight")

        for name in ("policy_x", "policy_x", "value_x", "other_x"):
            match_worker(name, "pol*,val*")
            match_worker(name, "pol*")

        assert [
            (
                "Nsight profiling enabled for worker 'policy_x' "
                "(matched pattern 'pol*')"
            ),
            (
                "Nsight profiling enabled for worker 'value_x' "
                "(matched pattern 'val*')"
            ),
        ] == caplog.messages


class TestSteps:
    @pytest.mark.parametrize("text", ["3:6", " 3 : 6 ", "003:6", "3:6\n"])
    def test_parse(self, text):
        """
        A range holds its start, and not its end.
        """
        steps = StepProfiler(text).step_range

        assert [3, 4, 5] == [n for n in range(10) if n in steps]
        assert "3:6" == str(steps)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "no range"),
            ("3", "no range"),
            ("3:", "no range"),
            (":6", "no range"),
            ("3-6", "no range"),
            ("3:6:2", "no range"),
            ("-3:6", "no range"),
            ("a:b", "no range"),
            ("٣:٦", "no range"),
            ("0:6", "counted from 1"),
            ("6:6", "holds no step"),
            ("6:3", "holds no step"),
            ("1:9999999999999", "no range"),
        ],
        ids=ascii,
    )
    def test_errors(self, text, said):
        """
        What is no range is refused, with what was written and what helps.
        """
        with pytest.raises(NsightError, match=said) as caught:
            StepProfiler(text)

        assert caught.value.remedy
        assert str(caught.value) == str(
            pickle.loads(pickle.dumps(caught.value))
        )

    def test_environment(self, monkeypatch):
        """
        The environment names the steps, ours before theirs.
        """
        names = ("NRL", "DISTDEBUG")
        found = [StepProfiler().step_range]
        for name, text in zip(names, ("1:2", "2:4"), strict=True):
            monkeypatch.setenv(f"{name}_NSYS_PROFILE_STEP_RANGE", text)
            found.append(StepProfiler().step_range)

        assert ["None", "1:2", "2:4"] == list(map(str, found))

    def test_environment_is_wrong(self, monkeypatch):
        """
        A mistake in the environment names the variable.
        """
        monkeypatch.setenv("NRL_NSYS_PROFILE_STEP_RANGE", "4:2")

        with pytest.raises(NsightError, match="NRL_NSYS_PROFILE_STEP_RANGE:"):
            StepProfiler()

"""
Which workers match, and which steps are meant?
"""

from __future__ import annotations

import logging
import pickle

import pytest

from distdebug.errors import NsightError
from distdebug.nsight import match_worker
from distdebug.nsight.options import patterns
from distdebug.nsight.options.patterns import split_patterns
from distdebug.nsight.options.steps import (
    StepRange,
    parse_step_range,
    step_range_of_environment,
)


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """
    No worker was told yet, and the environment says nothing.
    """
    monkeypatch.setattr(patterns, "_told", set())
    for prefix in ("DISTDEBUG", "NRL"):
        for name in ("WORKER_PATTERNS", "PROFILE_STEP_RANGE"):
            monkeypatch.delenv(f"{prefix}_NSYS_{name}", raising=False)


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
        By default the patterns of the environment count, ours before theirs.
        """
        for prefix, text in environ.items():
            monkeypatch.setenv(f"{prefix}_NSYS_WORKER_PATTERNS", text)

        assert expected == match_worker("name")

    def test_argument_wins(self, monkeypatch):
        """
        Patterns that are given count alone.
        """
        monkeypatch.setenv("NRL_NSYS_WORKER_PATTERNS", "*")

        assert match_worker("name", "") is None

    def test_logged_once(self, caplog):
        """
        That a worker matches is logged once, in the words of the document.
        """
        caplog.set_level(logging.INFO, "distdebug.nsight")

        for name in ("policy", "policy", "value", "other"):
            match_worker(name, "pol*,val*")
            match_worker(name, "pol*")

        assert [
            (
                "Nsight profiling enabled for worker 'policy' "
                "(matched pattern 'pol*')"
            ),
            (
                "Nsight profiling enabled for worker 'value' "
                "(matched pattern 'val*')"
            ),
        ] == caplog.messages

    def test_split(self):
        """
        Blanks around patterns, and patterns of nothing else, are left out.
        """
        assert ("a b", "*") == split_patterns(" a b ,, \t,*")


class TestSteps:
    @pytest.mark.parametrize("text", ["3:6", " 3 : 6 ", "003:6"])
    def test_parse(self, text):
        """
        A range holds its start, and not its end.
        """
        steps = parse_step_range(text)

        assert StepRange(start=3, stop=6) == steps
        assert [3, 4, 5] == [n for n in range(10) if n in steps]
        assert ("3:6", "3-6") == (str(steps), steps.in_file_name)

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
            ("3:6\n", None),
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
        if said is None:
            assert parse_step_range(text)
            return

        with pytest.raises(NsightError, match=said) as caught:
            parse_step_range(text)

        assert caught.value.remedy
        assert str(caught.value) == str(
            pickle.loads(pickle.dumps(caught.value))
        )

    def test_environment(self, monkeypatch):
        """
        The environment names the steps, ours before theirs.
        """
        assert step_range_of_environment() is None

        monkeypatch.setenv("NRL_NSYS_PROFILE_STEP_RANGE", "1:2")
        first = step_range_of_environment()
        monkeypatch.setenv("DISTDEBUG_NSYS_PROFILE_STEP_RANGE", "2:4")
        second = step_range_of_environment()

        assert ("1:2", "2:4") == (str(first), str(second))

    def test_environment_is_wrong(self):
        """
        A mistake in the environment names the variable.
        """
        environ = {"NRL_NSYS_PROFILE_STEP_RANGE": "4:2"}

        with pytest.raises(NsightError, match="NRL_NSYS_PROFILE_STEP_RANGE:"):
            step_range_of_environment(environ)

"""
The plugin of pytest: its marker, and what it cannot pass on to ranks.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest

from distdebug.integrations.pytest_ranks import Marker


MODULE = "distdebug.integrations.pytest_plugin"
LOADED = any(x.value == MODULE for x in entry_points(group="pytest11"))
OPTIONS = [] if LOADED else ["-p", MODULE]

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.process


def run(pytester, source, *options):
    """
    Run pytest on a test file, in a process of its own.
    """
    pytester.makepyfile(source)
    command = [*OPTIONS, "--strict-markers", *options]
    return pytester.runpytest_subprocess(*command, timeout=120)


def test_the_marker_is_declared(pytester):
    """
    Strict markers know it, and ``--markers`` explains it.
    """
    result = run(pytester, "", "--markers")

    result.stdout.fnmatch_lines(
        ["@pytest.mark.ranks(count, timeout_s=60, schedule=False): *"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("0", "the marker ranks(0) is wrong: 'count' must be >= 1: 0"),
        (
            "2, timeout_s=-1",
            "*ranks(2, timeout_s=-1) is wrong: 'timeout_s' must be > 0: -1",
        ),
        ("'2'", "the marker ranks('2') is wrong: *"),
        (
            "2, timeout=1",
            "*wrong: got an unexpected keyword argument 'timeout'",
        ),
        ("", "*wrong: missing 1 required positional argument: 'count'"),
    ],
)
def test_a_wrong_marker_fails_the_test(pytester, arguments, message):
    """
    The message says which arguments the marker takes.
    """
    source = f"""
        import pytest

        @pytest.mark.ranks({arguments})
        def test_it(): ...
    """

    result = run(pytester, source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message, "Try: ranks(count, timeout_s=60*"])


def test_an_argument_that_cannot_travel_is_named(pytester):
    """
    The message names the fixture, why, and what to do.
    """
    source = """
        import threading

        import pytest

        @pytest.fixture
        def lock():
            return threading.Lock()

        @pytest.mark.ranks(2)
        def test_it(lock): ...
    """

    result = run(pytester, source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "the argument 'lock' cannot be passed on to the ranks: TypeError*",
            "Try: make it in the function, which runs on every rank",
        ]
    )


def test_a_global_that_cannot_travel_fails_the_test(pytester):
    """
    So does what the test function uses of its module.
    """
    source = """
        import threading

        import pytest

        lock = threading.Lock()

        @pytest.mark.ranks(2)
        def test_it():
            lock.acquire()
    """

    result = run(pytester, source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["the function cannot be passed on to the ranks: TypeError*"]
    )


def test_similar_tests_have_schedules_of_their_own(tmp_path):
    """
    Names that would become the same are told apart, others stay readable.
    """

    def file_of(parameter):
        item = SimpleNamespace(
            nodeid=f"test_it.py::test_p[{parameter}]",
            path=tmp_path / "test_it.py",
        )
        return Marker(2).schedule_file(item).name

    assert "test_it-test_p-4.txt" == file_of("4")
    assert file_of("x y") != file_of("x/y")

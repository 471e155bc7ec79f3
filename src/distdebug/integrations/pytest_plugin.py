"""
Run tests on several local ranks, and say why one hangs: a plugin of *pytest*.

Every session of *pytest* loads this module, so it imports little::

    @pytest.mark.ranks(4, timeout_s=60)
    def test_all_ranks_agree(): ...
"""

from __future__ import annotations

from pathlib import Path

import pytest


_MARKER = (
    "ranks(count, timeout_s=60, schedule=False): run the test function on this "
    "many local ranks, each a process with a Gloo process group, for at most "
    "timeout_s seconds; a hang is diagnosed; with a schedule, the collectives "
    "must be those in the file kept beside the test"
)
_SCHEDULE = "collective_schedule"


def pytest_addoption(parser: pytest.Parser) -> None:
    """
    Declare the option that writes schedules.
    """
    parser.getgroup("distdebug").addoption(
        "--update-schedules",
        action="store_true",
        help="write the kept schedules of collectives instead of comparing",
    )


def pytest_configure(config: pytest.Config) -> None:
    """
    Declare the marker.
    """
    config.addinivalue_line("markers", _MARKER)


def pytest_itemcollected(item: pytest.Item) -> None:
    """
    Have a marked test ask for folders.
    """
    if isinstance(item, pytest.Function) and item.get_closest_marker("ranks"):
        item.fixturenames.append("tmp_path_factory")


@pytest.fixture(name=_SCHEDULE)
def _collective_schedule(request: pytest.FixtureRequest) -> Path:
    """
    Compare the collectives of a test on ranks with those in a kept file.

    It does what the marker does with ``schedule=True``.

    Returns:
        The file.
    """
    marker = request.node.get_closest_marker("ranks")
    if marker is None:
        msg = "collective_schedule is for tests with the marker ranks(count)"
        pytest.fail(msg, pytrace=False)

    from .pytest_ranks import read_marker

    return read_marker(marker, _MARKER).schedule_file(request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """
    Run a marked test function on its ranks instead of here.
    """
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None

    from .pytest_ranks import read_marker, run_test

    has_schedule = _SCHEDULE in pyfuncitem.fixturenames
    options = read_marker(marker, _MARKER)
    run_test(pyfuncitem, options, has_schedule=has_schedule)
    return True

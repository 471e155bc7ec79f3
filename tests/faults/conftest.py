"""
What the tests of faults share.
"""

from __future__ import annotations

import sys

from collections.abc import Iterator

import pytest

from .checking import IS_THOROUGH
from .scenes import start_rank


# Some try hundreds of faults, each of which may take seconds.
THOROUGH_S = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Give tests time to try everything, if they are to.
    """
    if IS_THOROUGH:
        for item in items:
            item.add_marker(pytest.mark.timeout(THOROUGH_S))


@pytest.fixture(scope="session")
def target() -> Iterator[int]:
    """
    A process that is looked at, and asked.
    """
    with start_rank() as process:
        yield process.pid


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No variable of a job, or of a debugger, is set; and no torch is loaded.
    """
    for name in ("DISTDEBUG", "DISTDEBUG_DIR", "DISTDEBUG_DUMP_DIR", "RANK"):
        monkeypatch.delenv(name, raising=False)
    if "torch" in sys.modules:
        monkeypatch.delitem(sys.modules, "torch")

"""
Run one test of *pytest* on the ranks that its marker asks for.
"""

from __future__ import annotations

import inspect
import re

from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import pytest

from ..errors import DistdebugError
from ..testing import RanksOutcome, run_ranks


@attrs.frozen
class Marker:
    """
    The arguments of the marker.
    """

    count: int = attrs.field(validator=attrs.validators.ge(1))
    timeout_s: float = attrs.field(
        default=60.0, validator=attrs.validators.gt(0)
    )
    schedule: bool | str = attrs.field(default=False, kw_only=True)

    def schedule_file(self, item: pytest.Item) -> Path:
        """
        Return the file of the schedule: as named, or by the name of the test.
        """
        name = self.schedule
        if not isinstance(name, str):
            test = item.nodeid.partition("::")[2]
            safe = re.sub(r"[^\w.-]+", "-", test).strip("-")
            if re.search(r"[^\w.:\[\]-]", test):  # others may look like it
                safe += f"-{crc32(test.encode(errors='replace')):08x}"
            name = f"schedules/{item.path.stem}-{safe}.txt"
        return item.path.parent / name


def read_marker(marker: pytest.Mark, about: str) -> Marker:
    """
    Return the arguments of a marker; wrong ones fail the test.

    Args:
        about: The line that declares the marker to *pytest*.
    """
    try:
        return Marker(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as exc:
        given = [*map(repr, marker.args)]
        given += [f"{name}={value!r}" for name, value in marker.kwargs.items()]
        reason = str(exc).removeprefix("Marker.__init__() ")
        msg = f"the marker ranks({', '.join(given)}) is wrong: {reason}"
    pytest.fail(f"{msg}\nTry: {about.partition(':')[0]}", pytrace=False)


def run_test(
    item: pytest.Function, marker: Marker, *, has_schedule: bool
) -> None:
    """
    Run a test, and fail or skip it as its ranks did.

    The ranks import neither test modules nor conftest files, whose names may
    mean nothing there.

    Args:
        has_schedule: Whether a fixture asks for a kept schedule; the marker
            may, too.
    """
    has_schedule |= bool(marker.schedule)
    names = inspect.signature(item.obj).parameters
    plugins = item.config.pluginmanager.get_plugins()
    temporary: Any = item.funcargs["tmp_path_factory"]
    try:
        outcome = run_ranks(
            item.obj,
            marker.count,
            arguments={
                x: item.funcargs[x] for x in names if x in item.funcargs
            },
            modules={item.module, *filter(_is_conftest, plugins)},
            timeout_s=marker.timeout_s,
            # pytest keeps the folders of its last runs.
            folder=temporary.mktemp("ranks"),
            schedule=marker.schedule_file(item) if has_schedule else None,
            update=item.config.getoption("--update-schedules"),
        )
    except DistdebugError as exc:
        msg = f"{exc}\nTry: {exc.remedy}"
        raise pytest.fail.Exception(msg, pytrace=False) from None
    for rank, output in outcome.outputs.items():
        if output:
            item.add_report_section("call", f"rank {rank}", output)
    _conclude(outcome)


def _is_conftest(plugin: object) -> bool:
    path = getattr(plugin, "__file__", None) or ""
    return Path(path).name == "conftest.py"


def _conclude(outcome: RanksOutcome) -> None:
    if outcome.failure:
        pytest.fail(outcome.failure, pytrace=False)
    end = outcome.ends[0]  # as those of all
    if end.kind == "skip":
        pytest.skip(end.summary)
    if end.kind == "xfail":
        pytest.xfail(end.summary)

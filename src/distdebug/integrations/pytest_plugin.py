"""
Run tests on several local ranks, and say why one hangs: a plugin of *pytest*.

Every session of *pytest* loads this module, so it imports little::

    @pytest.mark.ranks(4, timeout_s=60)
    def test_all_ranks_agree(): ...
"""

from __future__ import annotations

import inspect
import io
import marshal
import re
import shutil

from collections import ChainMap
from contextlib import ExitStack
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

import pytest


if TYPE_CHECKING:
    from .local_ranks import LocalRanks


_MARKER = (
    "ranks(count, timeout_s=60, schedule=False): run the test function on this "
    "many local ranks, each a process with a Gloo process group, for at most "
    "timeout_s seconds; a hang is diagnosed; with a schedule, the collectives "
    "must be those in the file kept beside the test"
)
_MAX_OUTPUT_BYTES = 1 << 16
_TEMPORARY = "tmp_path_factory"
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
        item.fixturenames.append(_TEMPORARY)


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
    return _read_options(marker).schedule_file(request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """
    Run a marked test function on its ranks instead of here.
    """
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None

    # Imported here, so that sessions without such tests do not load them.
    from .local_ranks import local_ranks

    options = _read_options(marker)
    call = _pickle_call(pyfuncitem)
    temporary: Any = pyfuncitem.funcargs[_TEMPORARY]
    folder = temporary.mktemp("ranks")
    failure = ""
    try:
        with local_ranks(call, options.count, folder) as ranks:
            ranks.wait(options.timeout_s)
            _add_output(pyfuncitem, ranks)
            failure = _failure(pyfuncitem, ranks, options)
    finally:
        # pytest keeps the folders of its last runs; this one is the evidence.
        if not failure:
            shutil.rmtree(folder, ignore_errors=True)
    _conclude(failure, ranks)
    return True


class _Options:
    """
    The arguments of the marker.
    """

    def __init__(
        self,
        count: int,
        timeout_s: float = 60.0,
        *,
        schedule: bool | str = False,
    ) -> None:
        if count < 1 or timeout_s <= 0:
            msg = "count and timeout_s are numbers above 0"
            raise ValueError(msg)

        self.count, self.timeout_s = count, timeout_s
        self.schedule = schedule

    def schedule_file(self, item: pytest.Item) -> Path:
        """
        Return the file of the schedule: as named, or by the name of the test.
        """
        name = self.schedule
        if not isinstance(name, str):
            test = item.nodeid.partition("::")[2]
            safe = re.sub(r"[^\w.-]+", "-", test).strip("-")
            name = f"schedules/{item.path.stem}-{safe}.txt"
        return item.path.parent / name


def _read_options(marker: pytest.Mark) -> _Options:
    try:
        return _Options(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as exc:
        given = [*map(repr, marker.args)]
        given += [f"{name}={value!r}" for name, value in marker.kwargs.items()]
        reason = str(exc).removeprefix("_Options.__init__() ")
        msg = f"the marker ranks({', '.join(given)}) is wrong: {reason}"
    pytest.fail(f"{msg}\nTry: {_MARKER.partition(':')[0]}", pytrace=False)


def _pickle_call(item: pytest.Function) -> bytes:
    """
    Pickle the test function and what it asks for.

    The ranks import neither test modules nor conftest files, whose names may
    mean nothing there: these travel by value.
    """
    import cloudpickle

    names = inspect.signature(item.obj).parameters
    arguments = {x: item.funcargs[x] for x in names if x in item.funcargs}
    plugins = item.config.pluginmanager.get_plugins()
    tests = {item.module, *(x for x in plugins if _is_conftest(x))}
    known = cloudpickle.list_registry_pickle_by_value()
    with ExitStack() as stack:
        for module in tests:
            if module.__name__ not in known:
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        # One by one first, so that an error names the culprit.
        for name, value in arguments.items():
            _pickle(value, f"the argument {name!r}")
        return _pickle((item.obj, arguments), "the test function")


def _is_conftest(plugin: object) -> bool:
    path = getattr(plugin, "__file__", None) or ""
    return Path(path).name == "conftest.py"


def _dumps(value: object) -> bytes:
    """
    Pickle a value by *cloudpickle*, and keep the file names of its code.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap(
            {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
        )

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[object, tuple[bytes]]:
    return marshal.loads, (marshal.dumps(code),)


def _pickle(value: object, what: str) -> bytes:
    try:
        pickled = _dumps(value)
    except Exception as exc:  # noqa: BLE001 any object may be part of it
        reason = f"{type(exc).__name__}: {exc}"
    else:
        return pickled

    msg = (
        f"{what} cannot be passed on to the ranks: {reason}\n"
        "Try: make it in the test function, which runs on every rank"
    )
    pytest.fail(msg, pytrace=False)


def _add_output(item: pytest.Item, ranks: LocalRanks) -> None:
    for rank in range(len(ranks.processes)):
        output, end = ranks.log(rank).read_bytes(), ranks.ends.get(rank)
        if end is not None:
            output = output[: end.printed]
        if output:
            text = output[-_MAX_OUTPUT_BYTES:].decode("utf-8", "replace")
            item.add_report_section("call", f"rank {rank}", text)


def _failure(
    item: pytest.Function, ranks: LocalRanks, options: _Options
) -> str:
    """
    Return why the test failed; empty if it did not.
    """
    from .rank_failures import check_schedule, describe_failure, describe_hang

    if ranks.failed:
        return describe_failure(ranks)
    if ranks.running:
        return describe_hang(ranks, options.timeout_s)
    kinds = {end.kind for end in ranks.ends.values()}
    is_kept = options.schedule or _SCHEDULE in item.fixturenames
    if kinds == {"returned"} and is_kept:
        update: bool = item.config.getoption("--update-schedules")
        file = options.schedule_file(item)
        return check_schedule(ranks, file, update=update)
    if len(kinds) == 1:
        return ""

    each = (f"rank {rank}: {end.kind}" for rank, end in ranks.ends.items())
    return f"the ranks ended differently: {', '.join(sorted(each))}"


def _conclude(failure: str, ranks: LocalRanks) -> None:
    """
    Fail or skip the test as its ranks did.
    """
    if failure:
        pytest.fail(failure, pytrace=False)
    end = ranks.ends[0]
    if end.kind == "skip":
        pytest.skip(end.summary)
    if end.kind == "xfail":
        pytest.xfail(end.summary)

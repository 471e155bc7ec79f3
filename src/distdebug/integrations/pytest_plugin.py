"""
Run tests on several local ranks, and say why one hangs: a plugin of *pytest*.

Every session of *pytest* loads this module, so it imports little::

    @pytest.mark.ranks(4, timeout_s=60)
    def test_all_ranks_agree(): ...
"""

from __future__ import annotations

import inspect
import shutil

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from .local_ranks import LocalRanks

_MARKER = (
    "ranks(count, timeout_s=60): run the test function on this many local "
    "ranks, each a process with a Gloo process group, for at most timeout_s "
    "seconds; a hang is diagnosed"
)
_MAX_LOG_BYTES = 1 << 16


def pytest_configure(config: pytest.Config) -> None:
    """
    Declare the marker.
    """
    config.addinivalue_line("markers", _MARKER)


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

    count, timeout_s = _marker_arguments(*marker.args, **marker.kwargs)
    call = _pickle_call(pyfuncitem)
    factory: pytest.TempPathFactory = pyfuncitem.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    folder = factory.mktemp("ranks")
    with local_ranks(call, count, folder) as ranks:
        ranks.wait(timeout_s)
        for rank in range(count):
            _add_output(pyfuncitem, rank, ranks.log(rank))
        _check(ranks, timeout_s)
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _marker_arguments(
    count: int, timeout_s: float = 60.0
) -> tuple[int, float]:
    if not isinstance(count, int) or count < 1 or not timeout_s > 0:
        msg = f"ranks({count!r}, timeout_s={timeout_s!r}): both are numbers above 0"
        raise pytest.UsageError(msg)

    return count, timeout_s


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


def _pickle(value: object, what: str) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as exc:  # noqa: BLE001 any object may be part of it
        reason = f"{type(exc).__name__}: {exc}"
    else:
        return pickled

    msg = (
        f"{what} cannot be passed on to the ranks: {reason}\n"
        "Try: make it in the test function, which runs on every rank"
    )
    pytest.fail(msg, pytrace=False)


def _add_output(item: pytest.Item, rank: int, log: Path) -> None:
    text = log.read_bytes()[-_MAX_LOG_BYTES:].decode("utf-8", "replace")
    if text:
        item.add_report_section("call", f"rank {rank}", text)


def _check(ranks: LocalRanks, timeout_s: float) -> None:
    """
    Fail or skip the test as its ranks did.
    """
    from .rank_failures import describe_failure, describe_hang

    if ranks.failed:
        pytest.fail(describe_failure(ranks), pytrace=False)
    if ranks.running:
        pytest.fail(describe_hang(ranks, timeout_s), pytrace=False)
    kinds = {end.kind for end in ranks.ends.values()}
    if len(kinds) > 1:
        each = (f"rank {i}: {ranks.ends[i].kind}" for i in sorted(ranks.ends))
        msg = f"the test ended differently on its ranks: {', '.join(each)}"
        pytest.fail(msg, pytrace=False)
    if kinds == {"skip"}:
        pytest.skip(ranks.ends[0].summary)
    if kinds == {"xfail"}:
        pytest.xfail(ranks.ends[0].summary)

"""
What the unit tests share.
"""

from __future__ import annotations

import sys

from types import ModuleType, SimpleNamespace

import pytest


class FakeTorch(ModuleType):
    """
    As much of torch as a recording looks at, with one call on record.
    """

    def __init__(self) -> None:
        super().__init__("torch")
        self.__version__ = "2.13.0"
        self.asked: list[tuple[bool, ...]] = []
        self.entries = b"record_id gloo:all_reduce"
        self.unfinished = 0
        self.c10d = SimpleNamespace(
            _dump_fr_trace=self.dump, _dump_fr_trace_json=self.status
        )
        self._C = SimpleNamespace(_distributed_c10d=self.c10d)

    def dump(self, *args: bool) -> bytes:
        """
        Give what torch would give.
        """
        self.asked.append(args)
        return self.entries + (b" frames" if args[1] else b"")

    def status(self, *args: bool) -> str:
        """
        Give the counters that torch would give.
        """
        last = f'"last_enqueued_collective": {4 + self.unfinished}'
        done = '"last_completed_collective": 4'
        return f'{{"pg_status": {{"0": {{{last}, {done}}}}}}}'


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """
    A torch that records, and none of the real one.
    """
    fake = FakeTorch()
    for name in list(sys.modules):
        if name.partition(".")[0] == "torch":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def rank_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    This process is rank 3 of 8.
    """
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")

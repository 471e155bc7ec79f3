"""
What came of feeding one target, or several?
"""

from __future__ import annotations

import hashlib
import json
import sys

from collections.abc import Sequence
from pathlib import Path

from .demand import DefectError, feed
from .seeds import seeds_of
from .target import TARGETS


__all__ = ["Bench"]


class Bench:
    """
    Feeds targets, and keeps what breaks them.

    If there are several, the first two bytes of an input choose one.

    Attributes:
        seeds: What to start from.

        defects: What broke, and where that is kept.

        new: How many inputs led to new lines.
    """

    def __init__(self, names: Sequence[str], found: Path) -> None:
        self._targets = [TARGETS[name] for name in names]
        self._found = found
        self._seen: set[str] = set()
        self.inputs = 0
        self.seeds = tuple(self._seeds())
        self.defects: list[dict[str, str]] = []
        self.new = 0

    def _seeds(self) -> list[bytes]:
        if len(self._targets) == 1:
            return list(seeds_of(self._targets[0].name))

        return [
            number.to_bytes(2, "big") + seed
            for number, target in enumerate(self._targets)
            for seed in seeds_of(target.name)[:6]
        ]

    def feed(self, data: bytes) -> None:
        """
        Feed a target.
        """
        self.inputs += 1
        target = self._targets[0]
        if len(self._targets) > 1:
            number = int.from_bytes(data[:2], "big")
            target = self._targets[number % len(self._targets)]
            data = data[2:]
        try:
            feed(target, data)
        except DefectError as exc:
            self._keep(target.name, data, exc)

    def _keep(self, name: str, data: bytes, exc: DefectError) -> None:
        place = _place(exc)
        # One of each kind is enough.
        if f"{name} {place}" in self._seen:
            return

        self._seen.add(f"{name} {place}")
        folder = self._found / name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(data).hexdigest()[:16]
        path.write_bytes(data)
        what = f"{str(exc)[:300]!a} at {place}"
        self.defects.append({"what": what, "file": str(path)})

    def report(self, mark: str) -> None:
        """
        Print what came of it in one line.
        """
        told = {
            "inputs": self.inputs,
            "new": self.new,
            "defects": self.defects,
        }
        sys.stdout.write(f"\n{mark}{json.dumps(told)}\n")
        sys.stdout.flush()


def _place(exc: DefectError) -> str:
    """
    The innermost line of ours that was not ready for this.
    """
    cause = exc.__cause__
    trace = cause.__traceback__ if cause else None
    place = str(exc)[:60] if cause is None else type(cause).__name__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "distdebug" in file and "tests" not in file:
            place = f"{file.rpartition('distdebug/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place

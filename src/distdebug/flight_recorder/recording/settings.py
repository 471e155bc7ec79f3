"""
How is recording set up, and why so?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import shlex

from pathlib import Path
from typing import Any, Literal, NamedTuple


TYPE_CHECKING = False
if TYPE_CHECKING:
    import pandas as pd


__all__ = ["RecorderSettings", "Setting"]

_HEADERS = ("variable", "value", "action", "reason")


class Setting(NamedTuple):
    """
    What becomes of one environment variable.

    Attributes:
        name: Name of the variable.

        value: Its value afterwards; ``None`` if it is not there.

        action: ``"set"`` by us, ``"kept"`` as it was, ``"unset"``, or
            ``"ignored"`` because this torch does not know it.

        reason: Why, in a few words.

        is_harmful: Whether recording suffers from it.
    """

    name: str
    value: str | None
    action: Literal["set", "kept", "unset", "ignored"]
    reason: str
    is_harmful: bool = False


class RecorderSettings(NamedTuple):
    """
    How recording is set up.

    Attributes:
        variables: Every variable that was considered.

        dump_dir: Folder of the dumps.

        dump_prefix: torch's own dumps are called this plus the rank.

        pipe_prefix: A byte written to this plus ``RANK.pipe`` asks torch's
            NCCL backend for a dump; ``""`` if there is no such pipe.

        token: Starts every file name of this process; unique to it.
    """

    variables: tuple[Setting, ...]
    dump_dir: Path
    dump_prefix: str
    pipe_prefix: str
    token: str

    @property
    def request_prefix(self) -> str:
        """
        A byte written to this plus ``RANK.pipe`` asks *distdebug* for a dump.
        """
        return str(self.dump_dir / f"{self.token}_request_")

    @property
    def warnings(self) -> tuple[str, ...]:
        """
        What keeps recording from working as it should, one line each.
        """
        return tuple(
            f"{s.name}={s.value}: {s.reason}"
            for s in self.variables
            if s.is_harmful
        )

    def to_exports(self) -> str:
        """
        The same settings as lines for a POSIX shell.

        Returns:
            ``export NAME=value`` and ``unset NAME`` lines, quoted so that
            ``eval`` takes them as they are.
        """
        lines = []
        for s in self.variables:
            if s.action == "set" and s.value is not None:
                lines.append(f"export {s.name}={shlex.quote(s.value)}\n")
            elif s.action == "unset":
                lines.append(f"unset {s.name}\n")
        return "".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of ``distdebug env --json``.
        """
        records = self.to_records()
        return {"dump_dir": str(self.dump_dir), "variables": records}

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per variable.
        """
        return [s._asdict() for s in self.variables]

    def to_frame(self) -> pd.DataFrame:
        """
        The records as a data frame of *pandas*.

        Raises:
            MissingDependencyError: *pandas* is not installed.
        """
        from ..._showing import frame_of

        return frame_of(self.to_records())

    def _repr_pretty_(self, p: Any, cycle: bool) -> None:  # noqa: FBT001
        p.text("..." if cycle else str(self))

    def _repr_html_(self) -> str:
        from ..._showing import Table, blocks_html

        rows = [
            (s.name, "-" if s.value is None else s.value, s.action, s.reason)
            for s in self.variables
        ]
        table = Table(_HEADERS, rows, len(rows))
        return blocks_html([f"Dumps go to {self.dump_dir}", table])

    def __str__(self) -> str:
        rows = [_HEADERS]
        rows += [
            (s.name, "-" if s.value is None else s.value, s.action, s.reason)
            for s in self.variables
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        table = "\n".join(
            "  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows
        )
        return f"Dumps go to {self.dump_dir}\n\n{table}"

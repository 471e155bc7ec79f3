"""
What does an Xid error of NVIDIA's driver mean, and what is to be done?

The table is data, in ``xids.toml`` beside this file.
"""

from __future__ import annotations

import tomllib

from functools import cache
from pathlib import Path
from typing import Literal

import attrs


__all__ = ["Xid", "XidKind", "explain_xid"]

XidKind = Literal["program", "hardware", "driver", "result", "note", "unknown"]


@attrs.frozen(kw_only=True)
class Xid:
    """
    What is known of one number.

    Attributes:
        number: The number.

        kind: Whose fault it is: ``"program"`` (the GPU is well),
            ``"hardware"``, ``"driver"``, ``"result"`` (of another error),
            ``"note"`` (nothing to do now), or ``"unknown"``.

        means: What happened, as a clause.

        action: What to do.
    """

    number: int
    kind: XidKind
    means: str
    action: str


def explain_xid(number: int) -> Xid:
    """
    Look a number up.

    Args:
        number: The number behind ``Xid (PCI:…):`` in the kernel log.

    Returns:
        What it means; of kind ``"unknown"`` if it is not in the table.
    """
    known = _table().get(number)
    return known or Xid(
        number=number,
        kind="unknown",
        means="an error without a public meaning",
        action="look the number up in NVIDIA's catalog of Xid errors",
    )


@cache
def _table() -> dict[int, Xid]:
    text = Path(__file__).with_name("xids.toml").read_text("utf-8")
    data = tomllib.loads(text)
    return {
        int(number): Xid(
            number=int(number),
            kind=entry["kind"],
            means=entry["means"],
            action=entry.get("action", data["action"][entry["kind"]]),
        )
        for number, entry in data["xid"].items()
    }

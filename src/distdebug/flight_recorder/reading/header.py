"""
What does a dump say about itself?

This runs in the child processes that decode dumps, and needs nothing but the
standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .plain import WRONG, number, text


__all__ = ["KEYS", "NotADumpError", "describe"]

# What stands in a dump of some version, and in hardly any other file.
KEYS = (
    "comm_lib_version",
    "entries",
    "nccl_comm_state",
    "nccl_version",
    "pg_config",
    "pg_status",
    "profiling_name",
    "record_id",
    "seq_id",
)


class NotADumpError(Exception):
    """
    The file holds something else.
    """


def describe(value: Any) -> tuple[dict[str, Any], list[Any]]:
    """
    What does a dump say about itself, and which records does it hold?

    Args:
        value: What the file holds: a dictionary, or (up to torch 2.2) the
            bare list of records.

    Returns:
        Version, configurations and counters of the process groups, fit for
        JSON; and the records, unchecked.

    Raises:
        NotADumpError: *value* is something else.
    """
    if isinstance(value, list):
        value = {"entries": value}
        if not any(isinstance(e, dict) for e in value["entries"]):
            msg = "it holds a list, but not of records"
            raise NotADumpError(msg)

    if not isinstance(value, dict) or not (
        {"entries", "pg_config", "pg_status"} & value.keys()
    ):
        msg = "it does not hold what the Flight Recorder writes"
        raise NotADumpError(msg)

    entries = value.get("entries") or []
    if not isinstance(entries, list):
        msg = "its entries are not a list"
        raise NotADumpError(msg)

    version = value.get("version")
    library = value.get("comm_lib_version") or value.get("nccl_version")
    header = {
        "version": version[:20] if isinstance(version, str) else "",
        "comm_lib_version": library[:20] if isinstance(library, str) else "",
        "configs": list(_configs(value.get("pg_config"))),
        "status": dict(_status(value.get("pg_status"))),
    }
    return header, entries


def _configs(data: Any) -> Iterator[tuple[str, str, str]]:
    """
    Name, description, and ranks of each group, as ``"[0, 1]"``.
    """
    for key, config in data.items() if isinstance(data, dict) else ():
        if not isinstance(config, dict):
            continue

        ranks = config.get("ranks", "")
        try:
            if not isinstance(ranks, str):
                ranks = str([number(rank, bits=31) for rank in ranks])
            yield (
                text(config.get("name", key)),
                text(config.get("desc", "")),
                ranks,
            )
        except WRONG:
            continue


def _status(data: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """
    The counters of each group, by its number in the process.
    """
    for key, status in data.items() if isinstance(data, dict) else ():
        try:
            yield (
                number(int(key), bits=31),
                tuple(
                    # JSON has them as strings.
                    number(int(status[f"last_{what}_collective"]))
                    for what in ("enqueued", "started", "completed")
                ),
            )
        except WRONG:
            continue

"""
What is in a timeline that was written, and does it keep to the rules?

The rules are those that viewers of the Trace Event Format rely on.
"""

from __future__ import annotations

import gzip
import json
import os

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple


Event = dict[str, Any]

_EXACT_US = 1e-3


class DrawnTimeline(NamedTuple):
    """
    The events of a timeline, by what they are.

    Attributes:
        slices: Calls.

        marks: Moments.

        arrows: Both ends of each arrow.

        processes: Names by process.

        labels: What is said beside them.

        tracks: Names by process and track.

        about: What the file says of itself.
    """

    slices: list[Event]
    marks: list[Event]
    arrows: list[tuple[Event, Event]]
    processes: dict[int, str]
    labels: dict[int, str]
    tracks: dict[tuple[int, int], str]
    about: Mapping[str, Any]


def read_timeline(path: str | os.PathLike[str]) -> DrawnTimeline:
    """
    Read a timeline back, and check it.

    Args:
        path: A file of :func:`distdebug.write_timeline`, as JSON.

    Returns:
        Its events.

    Raises:
        AssertionError: It breaks a rule.
    """
    data = Path(path).read_bytes()
    if os.fspath(path).endswith(".gz"):
        data = gzip.decompress(data)
    trace = json.loads(data)
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in trace["traceEvents"]:
        by_kind[event["ph"]].append(event)
    _demand(by_kind.keys() <= set("MXisf"), f"events {set(by_kind)}")
    names = by_kind["M"]
    drawn = DrawnTimeline(
        slices=by_kind["X"],
        marks=by_kind["i"],
        arrows=_paired(by_kind["s"], by_kind["f"]),
        processes={e["pid"]: n for e, n in _named(names, "process_name")},
        labels={e["pid"]: n for e, n in _named(names, "process_labels")},
        tracks={
            (e["pid"], e["tid"]): n for e, n in _named(names, "thread_name")
        },
        about=trace["otherData"],
    )
    _check(drawn)
    return drawn


def _demand(condition: object, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)


def _named(events: Iterable[Event], what: str) -> Iterable[tuple[Event, str]]:
    for event in events:
        if event["name"] == what:
            (name,) = event["args"].values()
            yield event, name


def _paired(
    starts: Iterable[Event], ends: Iterable[Event]
) -> list[tuple[Event, Event]]:
    sources = {event["id"]: event for event in starts}
    targets = {event["id"]: event for event in ends}
    _demand(sources.keys() == targets.keys(), "every arrow has two ends")
    return [(sources[number], targets[number]) for number in sources]


def _check(drawn: DrawnTimeline) -> None:
    on_track: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in drawn.slices:
        _demand(event["ts"] >= 0, "no slice begins before zero")
        _demand(event["dur"] >= 0, "no slice ends before it begins")
        on_track[event["pid"], event["tid"]].append(event)
    for slices in on_track.values():
        for one, following in pairwise(slices):
            # The end is not written, and numbers of JSON are not exact.
            end = one["ts"] + one["dur"]
            _demand(
                following["ts"] > end - _EXACT_US,
                "the slices of a track come in order and do not overlap",
            )
    _demand(drawn.tracks.keys() == on_track.keys(), "every track has a name")
    _demand(
        {pid for pid, _ in on_track} <= drawn.processes.keys(),
        "every process has a name",
    )
    for mark in drawn.marks:
        _demand(mark["ts"] >= 0, "no mark is before zero")
        _demand(mark["pid"] in drawn.processes, "marks are of processes")
    for source, target in drawn.arrows:
        _demand(source["pid"] != target["pid"], "arrows join processes")
        _demand(source["ts"] <= target["ts"], "no arrow leads backwards")
        for end in (source, target):
            here = on_track[end["pid"], end["tid"]]
            _demand(
                any(_is_within(end["ts"], event) for event in here),
                "an arrow has its ends in slices",
            )


def _is_within(ts: float, event: Event) -> bool:
    end: float = event["ts"] + event["dur"]
    begin: float = event["ts"]
    return begin <= ts < end

"""
What the tests of all rooms share.
"""

from __future__ import annotations

import signal

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from distdebug.flight_recorder import DumpFile, Dumps, Frame, Sidecar
from distdebug.flight_recorder.reading.assemble import Tables
from distdebug.flight_recorder.reading.decode import pack_message
from distdebug.flight_recorder.reading.extract import (
    build_columns,
    entry_frames,
    read_header,
)
from distdebug.flight_recorder.reading.files import FileName
from distdebug.testing import SimulatedJob, plain_dump


@pytest.fixture(scope="session", autouse=True)
def heard_signals() -> Iterator[None]:
    """
    What tests start hears Ctrl-C, also if they run in the background, where a
    shell has it ignored.
    """
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ignored = [n for n in usual if signal.getsignal(n) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def dumps_of() -> Callable[..., Dumps]:
    """
    Reads the dumps of a simulated job without writing them.

    No file and no process is involved, so laws can be checked on many jobs.
    """
    return _dumps_of


def _dumps_of(
    job: SimulatedJob,
    *,
    missing: Collection[int] = (),
    order: Sequence[int] | None = None,
    sidecars: Mapping[int, Sidecar] | None = None,
    hosts: Mapping[int, str] | None = None,
    written_s: float = 0.0,
    clock_offsets_s: Mapping[int, float] | None = None,
    with_frames: bool = True,
    **options: Any,
) -> Dumps:
    sidecars, tables = sidecars or {}, Tables()
    by_rank, stacks = {}, {}
    for rank in order or job.records:
        if rank in missing:
            continue

        offset = (clock_offsets_s or {}).get(rank, 0.0)
        header, entries = read_header(
            plain_dump(job, rank, clock_offset_s=offset, **options)
        )
        named, columns, kept = build_columns(entries)
        counts = {"count": len(kept), "unreadable": 0, "damage": ""}
        file = DumpFile(
            path=f"rank_{rank}",
            name=FileName(rank, "", "rank_", is_dump_like=True),
            host=(hosts or {}).get(rank),
            modified=written_s + offset if written_s else 0.0,
            sidecar=sidecars.get(rank),
        )
        message = pack_message({**header, **named, **counts}, columns)
        by_rank[rank], _ = tables.add(file, message)
        stacks[file.path] = [
            tuple(Frame(*line) for line in entry_frames(entry))
            for entry in kept
        ]

    members = {r for d in by_rank.values() for c in d.configs for r in c.ranks}
    sizes = [s.world_size for s in sidecars.values()]
    return Dumps(
        by_rank=dict(sorted(by_rank.items())),
        groups=tuple(tables.groups),
        ops=tuple(tables.ops),
        shapes=tables.shapes,
        sidecars=sidecars,
        world_size=max(sizes or [r + 1 for r in members], default=None),
        read_frames=(
            (
                lambda wanted: {
                    p: [stacks[p][r] for r in wanted[p]] for p in wanted
                }
            )
            if with_frames
            else None
        ),
    )

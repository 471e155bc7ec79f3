"""
What the tests of diagnoses share.
"""

from __future__ import annotations

import pytest

from distdebug.flight_recorder import Sidecar, SidecarFrame, write_sidecar


@pytest.fixture
def write_side():
    """
    Writes the side-car of a rank, with the stack of its main thread.
    """

    def write(folder, rank, *lines, size=4, **options):
        frames = tuple(SidecarFrame(*line) for line in lines)
        fields = {
            "path": "",
            "host": "node1",
            "pid": 7 + rank,
            "started": 0.0,
            "written": 1_750_000_001.0,
            "reason": "request",
            "threads": (("MainThread", frames),) if lines else (),
        }
        sidecar = Sidecar(rank=rank, world_size=size, **(fields | options))
        write_sidecar(sidecar, folder / f"nccl_trace_rank_{rank}")

    return write

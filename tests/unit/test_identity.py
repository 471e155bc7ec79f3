"""
Which rank of which job is this process?
"""

import sys

from types import SimpleNamespace

import pytest

from distdebug.identity import current_identity, identify


def environ_of(text):
    """
    An environment out of a line.
    """
    return dict(pair.split("=") for pair in text.split())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1", (3, 8, 1, "torchrun")),
        (
            (
                "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 "
                "OMPI_COMM_WORLD_LOCAL_RANK=1"
            ),
            (3, 8, 1, "Open MPI"),
        ),
        ("PMI_RANK=3 PMI_SIZE=8", (3, 8, None, "PMI")),
        ("PMIX_RANK=3", (3, None, None, "PMIx")),
        (
            "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1",
            (3, 8, 1, "Slurm"),
        ),
        (
            "RANK=9 SLURM_PROCID=1 SLURM_NTASKS=2",
            (9, None, None, "torchrun"),
        ),
        ("WORLD_SIZE=8", (None, 8, None, "")),
        ("", (None, None, None, "")),
    ],
)
def test_launchers(environ, expected):
    """
    Every launcher is understood, and that next to torch wins.
    """
    found = identify(environ_of(environ))

    place = found.rank, found.world_size, found.local_rank
    assert expected == (*place, found.source)


@pytest.mark.parametrize("text", ["", "-1", "x", "²", "99999999999", "1" * 99])
def test_not_a_rank(text):
    """
    What is not a rank counts as unknown.
    """
    assert identify({"RANK": text}).rank is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            (
                "TORCHELASTIC_RUN_ID=run TORCHELASTIC_RESTART_COUNT=2 "
                "MASTER_ADDR=host MASTER_PORT=29500"
            ),
            "run restart2 host:29500",
        ),
        ("TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=7", "7"),
        ("SLURM_JOB_ID=7 SLURM_STEP_ID=0", "7.0"),
        ("TORCHELASTIC_RESTART_COUNT=0 MASTER_ADDR=host", ""),
    ],
)
def test_job(environ, expected):
    """
    A run is distinguished from others by what its launcher calls it.
    """
    assert expected == identify(environ_of(environ)).job


NO_GROUP = SimpleNamespace(is_initialized=lambda: False)
GROUP = SimpleNamespace(
    is_initialized=lambda: True,
    get_rank=lambda: 1,
    get_world_size=lambda: 2,
)


@pytest.mark.parametrize(
    ("dist", "expected"),
    [
        (GROUP, (1, 2, "torch")),
        (NO_GROUP, (5, 6, "torchrun")),
        (None, (5, 6, "torchrun")),
    ],
    ids=["group", "no group", "no torch"],
)
def test_current(monkeypatch, dist, expected):
    """
    A process group knows better than the environment, which counts without.
    """
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)

    found = current_identity()

    assert expected == (found.rank, found.world_size, found.source)

"""
Which rank of which job is this process?
"""

import sys

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.debugger import protocol
from distdebug.flight_recorder import parse_dump_name
from distdebug.identity import (
    LAUNCHER_RULES,
    current_identity,
    identify,
    rank_in_name,
    rank_in_names,
    ranks_in_name,
    ranks_in_text,
    same_host,
)
from distdebug.stacks.headings import parse_file_name


def environ_of(text):
    """
    An environment out of a line.
    """
    return dict(pair.split("=") for pair in text.split())


@pytest.mark.parametrize("rule", LAUNCHER_RULES, ids=lambda x: x.launcher)
def test_rules(rule):
    """
    Every rule reads its own example, and no other rule comes before it.
    """
    found = identify(environ_of(rule.example))

    assert (3, rule.launcher) == (found.rank, found.source)


def test_arming():
    """
    The module that arms ranks at start, and imports nothing, knows them all.
    """
    path = Path(protocol.__file__).with_name("on_path") / "sitecustomize.py"
    source = path.read_text()

    assert not [x for x in LAUNCHER_RULES if f'"{x.rank}",' not in source]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1", (3, 8, 1, "torchrun")),
        ("PMI_RANK=3 PMI_SIZE=8", (3, 8, None, "PMI")),
        ("PMI_RANK=3 PMI_LOCAL_RANK=1", (3, None, 1, "PMI")),
        ("PMIX_RANK=3", (3, None, None, "PMIx")),
        (
            "MV2_COMM_WORLD_RANK=3 PMI_RANK=3 PMI_SIZE=8",
            (3, None, None, "MVAPICH2"),
        ),
        (
            "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1",
            (3, 8, 1, "Slurm"),
        ),
        (
            "RANK=9 SLURM_PROCID=1 SLURM_NTASKS=2",
            (9, None, None, "torchrun"),
        ),
        (
            "NODE_RANK=0 LOCAL_RANK=3 WORLD_SIZE=8 SLURM_PROCID=0",
            (3, 8, 3, "Lightning"),
        ),
        ("NODE_RANK=1 LOCAL_RANK=3 WORLD_SIZE=8", (None, 8, 3, "")),
        ("NODE_RANK=0 WORLD_SIZE=8", (None, 8, None, "")),
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
        ("FLUX_JOB_ID=f5 MASTER_ADDR=host MASTER_PORT=1", "f5 host:1"),
        ("PBS_JOBID=7.pbs", "7.pbs"),
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


# A name, and the global rank in it, for every kind of evidence.
NAMES = [
    ("rank3.log", 3),
    ("rank_3", 3),
    ("rank=3.log", 3),
    ("rank-00012.txt", 12),
    ("Actor(rank=0)", 0),
    ("Worker_rank3", 3),
    ("my.rank.3.out", 3),
    ("global_rank_3", 3),
    ("globalrank3", 3),
    ("world-rank3", 3),
    ("dp_rank_1_rank_5.out", 5),
    ("rank3_of_rank3.log", 3),
    ("nccl_trace_rank_3", 3),
]
# Numbers of a node, of a place in a mesh, and of other words.
OTHER_NAMES = [
    *("local_rank_3.log", "localrank3", "node_rank3", "noderank3"),
    *("group_rank_3", "role_rank3", "dp_rank_3", "tp_rank3", "PP-rank-3"),
    *("pipeline_rank_3", "frank3.txt", "rank.log", "rank_x3", "rank123456789"),
]


class TestRankInName:
    """
    Global ranks in names of files, folders, and actors.
    """

    @pytest.mark.parametrize(("name", "rank"), NAMES)
    def test_global(self, name, rank):
        """
        Everybody who reads a rank from a name reads the same.
        """
        assert rank == rank_in_name(name)
        assert rank == parse_dump_name(name).rank
        assert rank == rank_in_names([None, name])

    @pytest.mark.parametrize("name", OTHER_NAMES)
    def test_other(self, name):
        """
        A rank of another kind is not the global one.
        """
        assert rank_in_name(name) is None
        assert rank_in_names([None, name]) is None

    @pytest.mark.parametrize("name", ["dp_rank_3", "localrank3", "tp-rank3"])
    def test_dump(self, name):
        """
        The number at the end of a dump's name is no rank if it says what it is.
        """
        assert parse_dump_name(name).rank is None

    @pytest.mark.parametrize("name", ["tp_rank3.txt", "local_rank_3.txt"])
    def test_stack_file(self, name):
        """
        Files of stacks are named by the same rule.
        """
        assert parse_file_name(name).rank is None
        assert 3 == parse_file_name("stacks-rank3.txt").rank

    def test_contradiction(self):
        """
        Two ranks that differ are none; torch appends the rank of a dump.
        """
        assert rank_in_name("rank0_rank3.log") is None
        assert 3 == parse_dump_name("rank0_rank3").rank
        assert [0, 3] == [x.number for x in ranks_in_name("rank0_rank3.log")]

    def test_long(self):
        """
        Of names that are too long, the beginning is read, in linear time.
        """
        assert rank_in_name("a" * 1_000_000 + "rank3") is None
        assert 3 == rank_in_name("rank3" + "_rank" * 200_000)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("rank 3 failed", [3]),
        ("global_rank = 3", [3]),
        ("[rank3]: x", [3]),
        ("[Rank 3/8] x", [3]),
        ("rank3/8: x", [3]),
        ("local rank 1, global rank: 11", [11]),
        ("tp rank 1/2", []),
        ("data parallel rank 1", []),
        ("node rank: 1 of 2", []),
        ("my_rank=3 lora rank 16 frank 3", []),
        ("rank3 and tank 4", []),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 1] [Rank 1] watchdog", []),
    ],
)
def test_text(text, ranks):
    """
    Lines of logs name global ranks, ranks of other kinds, and variables.
    """
    assert ranks == [x.number for x in ranks_in_text(text) if x.is_global]


def test_leading_zeros():
    """
    Zeros before a number do not cut it off.
    """
    assert 7 == identify({"RANK": "000000000007"}).rank
    assert identify({"RANK": "9" * 5_000}).rank is None


@pytest.mark.parametrize(
    ("a", "b", "is_same"),
    [
        ("node-1", "node-1", True),
        ("node-1", "Node-1.cluster.local", True),
        ("node-1.cluster", "node-1.cluster.local", True),
        ("node-1", "node-12", False),
        ("node-1", "node-2.node-1", False),
        ("node-1.a", "node-1.b", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1.nip.io", False),
        ("fe80::1", "fe80::1.x", False),
        ("", "", False),
        ("", "node-1", False),
    ],
)
def test_same_host(a, b, is_same):
    """
    Short and full names are of one host; addresses only equal themselves.
    """
    assert same_host(a, b) is same_host(b, a) is is_same

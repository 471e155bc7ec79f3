"""
What a cause implies.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose, read_collective_logs
from distdebug.causes import Cause
from distdebug.findings import Finding, GroupRef, blames_ranks
from distdebug.logs import collective_findings
from distdebug.testing import SimulatedJob, make_dumps


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("is_idle", {"idle", "event_loop_idle"}),
        ("is_fine", {"idle", "event_loop_idle", "healthy", "progressing"}),
        ("is_computing", {"python_loop", "native_spin"}),
        ("is_peer_wait", {"collective_wait", "rendezvous_wait"}),
        ("is_absence", {"rank_not_arrived", "rank_crashed"}),
        ("is_slow", {"compiling", "checkpointing"}),
        (
            "is_mismatch",
            {"type_mismatch", "size_mismatch", "dtype_mismatch"},
        ),
        ("is_miscount", {"skipped_collective", "extra_collective"}),
        (
            "is_consequence",
            {"collective_timeout", "rendezvous_timeout", "network_failure"},
        ),
        ("is_network", {"network_failure", "network_misconfigured"}),
        (
            "is_death",
            {"native_crash", "rank_crashed", "killed", "actor_died"},
        ),
        ("is_kill", {"killed", "actor_died"}),
        (
            "is_blameless",
            {"unknown", "collective_timeout", "collective_stuck_in_flight"},
        ),
        (
            "ends_process",
            {
                *("native_crash", "rank_crashed", "killed", "actor_died"),
                *("host_out_of_memory", "gpu_out_of_memory", "gpu_fault"),
                *("disk_full", "io_wait", "node_misconfigured"),
            },
        ),
        (
            "ends_job",
            {
                *("native_crash", "rank_crashed", "killed", "actor_died"),
                *("host_out_of_memory", "gpu_out_of_memory"),
                *("collective_timeout", "rendezvous_timeout"),
                *("network_failure", "node_misconfigured"),
                *("ray_worker_start_timeout", "start_up_stalled"),
            },
        ),
    ],
)
def test_properties(name, causes):
    """
    Each property holds for these causes, and for no other.
    """
    assert causes == {x.value for x in Cause if getattr(x, name)}


@pytest.mark.parametrize(
    ("cause", "ranks", "is_blame"),
    [
        ("rank_not_arrived", (1,), True),
        ("collective_timeout", (1,), False),
        ("collective_stuck_in_flight", (0, 1), False),
        # Part of the group: the call is stuck at these ranks.
        ("collective_stuck_in_flight", (1,), True),
    ],
)
def test_blames_ranks(cause, ranks, is_blame):
    """
    Ranks that report a problem, or share it with the group, have no blame.
    """
    group = GroupRef(name="0", desc="", ranks=(0, 1))
    finding = Finding(cause=Cause(cause), ranks=ranks, summary="", group=group)

    assert blames_ranks(finding) is is_blame


def test_remedy(tmp_path):
    """
    Dumps and logs give the advice that belongs to the cause.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])
    make_dumps(tmp_path, job)
    log = (
        "[E1120 10:10:11.5 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
        "NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600040 "
        "milliseconds before timing out.\n"
    )

    from_dumps = diagnose(tmp_path).findings[0]
    from_logs = collective_findings(read_collective_logs(log, world_size=2))[0]

    assert Cause.RANK_NOT_ARRIVED is from_dumps.cause
    assert Cause.RANK_NOT_ARRIVED.remedy == from_dumps.remedy
    assert Cause.COLLECTIVE_TIMEOUT is from_logs.cause
    assert Cause.COLLECTIVE_TIMEOUT.remedy == from_logs.remedy

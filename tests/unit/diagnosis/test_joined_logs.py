"""
What the logs of one job say together, of several files and kinds.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose
from distdebug.causes import Cause


WATCHDOG = (
    "[rank{rank}]:[E1008 08:30:30.46{rank}0000 ProcessGroupNCCL.cpp:632] [PG ID 0 PG "
    "GUID 0(default_pg) Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5591, "
    "OpType=ALLREDUCE, NumelIn=13, NumelOut=13, Timeout(ms)=600000) ran for 600010 "
    "milliseconds before timing out.\n"
)
STEP = "2025-10-08 08:00:0{n} INFO step {n} of 900\n"
LOSS = "{{'loss': {loss}, 'grad_norm': {norm}, 'epoch': 0.{n}}}\n"
HANGS = "INFO: task pt_data_worker:31733 blocked for more than 120 seconds.\n"
NFS = "nfs: server nfs01 not responding, still trying\n"


def timeouts(*ranks):
    """
    The communicator of four ranks, and the watchdogs of some.
    """
    return "".join(
        f"n0:70{r}:80{r} [{r}] NCCL INFO ncclCommInitRank comm 0x7f rank {r} "
        f"nranks 4 cudaDev {r} nvmlDev {r} busId 4e000 commId 0x5 - Init COMPLETE\n"
        for r in range(4)
    ) + "".join(WATCHDOG.format(rank=rank) for rank in ranks)


def losses(*norms):
    """
    The steps of a trainer.
    """
    return "".join(
        LOSS.format(loss=0.4, norm=norm, n=n) for n, norm in enumerate(norms)
    )


def waits_for_data(pid):
    """
    What py-spy shows of a process that waits for its data loader.
    """
    return (
        f"Process {pid}: python -u train.py\n"
        "Python v3.11.9 (/usr/bin/python3.11)\n\n"
        f'Thread {pid} (idle): "MainThread"\n'
        "    wait (threading.py:331)\n"
        "    get (queue.py:180)\n"
        "    _try_get_data (torch/utils/data/dataloader.py:1284)\n"
        "    __next__ (torch/utils/data/dataloader.py:733)\n"
        "    main (/job/train.py:40)\n"
    )


def answers(count, wrong, error="prompt too long"):
    """
    A server that answers, and raises at some requests.
    """
    lines = []
    for n in range(count):
        lines.append(
            f'INFO: 10.0.0.7:{4000 + n} - "POST /v1/completions HTTP/1.1" 200 OK\n'
        )
        if n in wrong:
            lines.append(
                "Traceback (most recent call last):\n"
                '  File "/vllm/serving.py", line 5, in check\n'
                f"ValueError: {error}\n"
            )
    return "".join(lines)


CASES = {
    "files without a date are of the year of the others": (
        {
            "n0.log": STEP.format(n=1) + timeouts(0, 1),
            "n1.log": timeouts(3),
        },
        (Cause.RANK_NOT_ARRIVED, None, (2,)),
    ),
    "a stack without a rank is that of the one that is missing": (
        {
            "n0.log": timeouts(0, 1, 3),
            "pyspy_31061.txt": waits_for_data(31061),
        },
        (Cause.RANK_NOT_ARRIVED, Cause.DATALOADER_WAIT, (2,)),
    ),
    "a stack whose process is known to be another rank": (
        {
            "n0.log": timeouts(0, 1, 3),
            "pyspy_701.txt": waits_for_data(701),
        },
        (Cause.DATALOADER_WAIT, None, (1,)),
    ),
    "a file system that hangs may keep the missing rank": (
        {"n0.log": timeouts(0, 1, 3), "dmesg.txt": HANGS},
        (Cause.RANK_NOT_ARRIVED, Cause.IO_WAIT, (2,)),
    ),
    "a file server that answered again": (
        {
            "n0.log": timeouts(0, 1, 3),
            "dmesg.txt": NFS + "nfs: server nfs01 OK\n",
        },
        (Cause.RANK_NOT_ARRIVED, None, (2,)),
    ),
    "a file server that answered, and a process that hangs": (
        {"dmesg.txt": NFS + "nfs: server nfs01 OK\n" + HANGS},
        (Cause.IO_WAIT, None, ()),
    ),
    "one of two file servers that answered again": (
        {"dmesg.txt": NFS + "nfs: server nfs02 OK\n"},
        (Cause.IO_WAIT, None, ()),
    ),
    "an exception before the time was up": (
        {
            "job.out": timeouts(0, 2, 3)
            + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to "
            "allocate 2 GiB\n"
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-07-03T12:30:11 "
            "DUE TO TIME LIMIT ***\n"
        },
        (Cause.GPU_OUT_OF_MEMORY, None, (1,)),
    ),
    "a server that ended after requests that were wrong": (
        {
            "server.log": answers(90, {3, 30, 60})
            + "server.service: Main process exited, code=exited, status=1/FAILURE\n"
        },
        (Cause.RANK_CRASHED, None, ()),
    ),
    "a straggler for a moment": (
        {
            "train.log": "MnEtpt/Rnk: 230.86TF/18 | MxEtpt/Rnk: 457.31TF/3\n"
            + "MnEtpt/Rnk: 450.86TF/7 | MxEtpt/Rnk: 457.31TF/3\n" * 30
        },
        (Cause.HEALTHY, None, ()),
    ),
    "one gradient that overflowed": (
        {"run.log": losses(1.0, "nan", 1.5, 1.4, 1.3, 1.2, 1.1, 1.0)},
        (Cause.HEALTHY, None, ()),
    ),
    "a gradient that stays so": (
        {"run.log": losses(1.0, 1.1, "nan", "nan", "nan", "nan", "nan")},
        (Cause.LOSS_NOT_FINITE, None, ()),
    ),
    "Composer": (
        {"run.log": "batch=1600\n\t Train loss/train/total: nan\n" * 6},
        (Cause.LOSS_NOT_FINITE, None, ()),
    ),
    "a machine that JAX was told it loses": (
        {
            "task2.log": "I0603 17:47:12.0 24 preemption_sync_manager.cc:253] "
            "PreemptionSyncManager received preemption notice: "
            "/job:jax_worker/task:2 will be preempted at 2025-06-03\n"
        },
        (Cause.KILLED, None, (2,)),
    ),
    "a server that goes on after requests that were wrong": (
        {
            "server.log": answers(
                200,
                {3, 7, 11},
                "This model's maximum context length is 16384",
            )
        },
        (Cause.HEALTHY, None, ()),
    ),
    "a server that was asked wrongly just now": (
        {"server.log": answers(200, {30, 60, 196})},
        (Cause.HEALTHY, None, ()),
    ),
    "a hang that lasted until the time was up": (
        {
            "job.out": "torch.distributed.DistStoreError: Timed out after 901 "
            "seconds waiting for clients. 3/4 clients joined.\n"
            "slurmstepd: error: *** STEP 77201.0 ON n1 CANCELLED AT "
            "2024-07-03T12:30:11 DUE TO TIME LIMIT ***\n"
        },
        (Cause.RENDEZVOUS_TIMEOUT, None, ()),
    ),
    "a job whose time was up": (
        {
            "job.out": "step 1 of 900\nslurmstepd: error: *** STEP 77201.0 ON n1 "
            "CANCELLED AT 2024-07-03T12:30:11 DUE TO TIME LIMIT ***\n"
        },
        (Cause.KILLED, None, ()),
    ),
    "an exception that a disk explains": (
        {
            "driver.log": "ray.exceptions.RayTaskError(RuntimeError): "
            "ray::Trainer.fit() (pid=2, ip=10.0.0.1, actor_id=0a, "
            "repr=Trainer(rank=2))\n"
            '  File "/job/a.py", line 7, in save\n'
            "RuntimeError: [enforce fail at inline_container.cc:626] . unexpected "
            "pos 1811939328 vs 1811939222\n"
        },
        (Cause.DISK_FULL, None, (2,)),
    ),
    "retries that were used up": (
        {"run.log": "UCX ERROR Transport retry count exceeded on mlx5_0:1\n"},
        (Cause.NETWORK_FAILURE, None, ()),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict(tmp_path, name):
    """
    Each says what the others leave open.
    """
    files, expected = CASES[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    verdict = diagnose(tmp_path).verdict

    assert expected == (verdict.cause, verdict.detail_cause, verdict.ranks)

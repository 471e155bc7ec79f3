"""
Ranks of whole nodes: by the number of the node, its launcher, and its name.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose
from distdebug.causes import Cause


RUN = "torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment\n"
AGENT = "torch/distributed/elastic/multiprocessing/api.py:897]"
UNUSABLE = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804\n"
)
LINK_DOWN = "mlx5_core 0000:9a:00.0 ibp154s0: Link down\n"
KILLED = "kernel: Out of memory: Killed process {} (python)\n"


def steps(label="", count=20):
    """
    What a healthy job prints.
    """
    return "".join(
        f"{label}step {n} of 900, all is well\n" for n in range(count)
    )


def traceback(label=""):
    """
    A process that cannot import torch.
    """
    return (
        f"{label}Traceback (most recent call last):\n"
        f'{label}  File "/job/train.py", line 3, in <module>\n'
        f"{label}    import torch\n"
        f"{label}ImportError: libcusparse.so.12: undefined symbol: __nvJit_12_4\n"
    )


def ends(first, label="", count=4):
    """
    A launcher that ends its processes.
    """
    return "".join(
        f"{label}W0702 11:00:19.410000 7 {AGENT} Sending process {first + n} "
        "closing signal SIGTERM\n"
        for n in range(count)
    )


def communicator(size, ranks, *, host="a0{}", state="COMPLETE"):
    """
    Ranks that set up their communicator, four on a node.
    """
    return "".join(
        f"{host.format(r // 4)}:70{r}:80{r} [{r % 4}] NCCL INFO ncclCommInitRank "
        f"comm 0x7f rank {r} nranks {size} cudaDev {r % 4} nvmlDev {r % 4} busId "
        f"4e000 commId 0x5 - Init {state}\n"
        for r in ranks
    )


def spawned(label, first, node):
    """
    What DeepSpeed's launcher prints on a node of four.
    """
    prefix = f"{label}[2025-03-11 15:40:25,115] [INFO]"
    return (
        f"{prefix} [launch.py:152:main] nnodes=2, num_local_procs=4, "
        f"node_rank={node}\n"
    ) + "".join(
        f"{prefix} [launch.py:256:main] process {first + n} spawned with "
        f"command: ['python', '-u', 'sft.py', '--local_rank={n}']\n"
        for n in range(4)
    )


CASES = {
    "tasks that launch ranks are nodes": (
        {
            "train.log": "".join(
                f"{n}: W0702 11:00:02.510000 702{n} {RUN}" for n in range(3)
            )
            + traceback("1: ") * 4
            + ends(70301, "0: ")
            + ends(5192, "2: ")
            + "1:   rank      : 5 (local_rank: 1)\n"
        },
        (Cause.NODE_MISCONFIGURED, (4, 5, 6, 7)),
    ),
    "a task that is a node names no rank": (
        {
            "train.log": f"W0702 11:00:02.510000 7021 {RUN}"
            + ends(70301)
            + "srun: error: gpu-c114: task 2: Killed\n"
        },
        (Cause.KILLED, ()),
    ),
    "labels of ranks in which torch's @record prints": (
        {
            "train.log": steps("2: ", 9)
            + "3: [2024-01-09 10:00:00,1] torch/distributed/elastic/"
            'multiprocessing/errors/error_handler.py:141] {"message": "x"}\n'
            + "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
            "2 GiB\n" + steps("3: ", 9)
        },
        (Cause.GPU_OUT_OF_MEMORY, (3,)),
    ),
    "a task that is a rank names it": (
        {"train.log": steps() + "srun: error: gpu-c114: task 2: Killed\n"},
        (Cause.KILLED, (2,)),
    ),
    "the number of the node in a file of its own": (
        {
            "cn31.out": f"MACHINE_RANK=0\n{steps()}{ends(90070)}",
            "cn40.out": f"MACHINE_RANK=1\n{steps()}{UNUSABLE}",
        },
        (Cause.NODE_MISCONFIGURED, (4, 5, 6, 7)),
    ),
    "a log of the kernel, by the name of its file": (
        {
            # The others printed nothing, but lie between these.
            "job.log": communicator(8, (0, 3, 4, 7)),
            "a01_dmesg.txt": LINK_DOWN,
        },
        (Cause.NETWORK_FAILURE, (4, 5, 6, 7)),
    ),
    "one rank of a node is not all of them": (
        {
            "job.log": communicator(8, (0, 4)),
            "a01_dmesg.txt": LINK_DOWN,
        },
        (Cause.NETWORK_FAILURE, ()),
    ),
    "a process of one of two containers with equal numbers": (
        {
            "worker-0.log": spawned("", 212, 0) + steps(),
            "worker-1.log": spawned("", 212, 1) + KILLED.format(215),
        },
        (Cause.HOST_OUT_OF_MEMORY, (7,)),
    ),
    "lines with the names of nodes": (
        {
            "nohup.out": spawned("ml-a01: ", 28811, 0)
            + spawned("ml-a02: ", 33207, 1)
            + steps("ml-a01: "),
            "journal.txt": KILLED.format(33208),
        },
        (Cause.HOST_OUT_OF_MEMORY, (5,)),
    ),
    "a local rank of a node whose number is known": (
        {
            "n1.log": "NODE_RANK=1 nproc_per_node=8\n"
            + traceback("[default3]:")
        },
        (Cause.NODE_MISCONFIGURED, (11,)),
    ),
    "the log of one node alone": (
        {
            "n1.log": "".join(
                f"  rank      : {r} (local_rank: {r - 4})\n"
                for r in range(4, 8)
            )
            + traceback() * 4
        },
        (Cause.NODE_MISCONFIGURED, (4, 5, 6, 7)),
    ),
    "a number that two logs name": (
        {
            "a.log": f"NODE_RANK=0 nproc_per_node=4\n{steps()}",
            "b.log": "torchrun --nnodes 2 --node_rank=0 --nproc_per_node=4\n"
            + UNUSABLE,
        },
        (Cause.NODE_MISCONFIGURED, ()),
    ),
    "a node that had other ranks before a restart": (
        {
            "n1.log": "  global_ranks=[4, 5, 6, 7]\n"
            + traceback("[default1]:")
            + "  global_ranks=[0, 1, 2, 3]\n"
        },
        (Cause.NODE_MISCONFIGURED, (1,)),
    ),
    "processes of two attempts": (
        {
            "n1.log": "NODE_RANK=1\n"
            + "".join(
                f"E0208 13:14:08.2 7 {AGENT} failed (exitcode: 1) local_rank: 3 "
                f"(pid: {first + 3}) of binary: python\n{ends(first, count=3)}"
                for first in (100, 200)
            )
            + traceback("[default3]:")
        },
        (Cause.NODE_MISCONFIGURED, (7,)),
    ),
    "hosts of one short name, and a file of one": (
        {
            "job.log": "".join(
                f"rank={r} world_size=4 host=dgx1.{'ab'[r // 2]}.corp\n"
                for r in range(4)
            ),
            "dmesg_dgx1.b.corp.txt": LINK_DOWN,
        },
        (Cause.NETWORK_FAILURE, (2, 3)),
    ),
    "a file that is named after two hosts": (
        {
            "job.log": "".join(
                f"rank={r} world_size=6 host=10.0.0.{r // 2}\n"
                for r in range(6)
            ),
            "dmesg-10.0.0.1-10.0.0.2.log": LINK_DOWN,
        },
        (Cause.NETWORK_FAILURE, ()),
    ),
    "a file of another host": (
        {
            "job.log": "".join(
                f"rank={r} world_size=4 host=node{r // 2 or ''}\n"
                for r in range(4)
            ),
            "dmesg_node-7.txt": LINK_DOWN,
        },
        (Cause.NETWORK_FAILURE, ()),
    ),
    "files of workers that are nodes": (
        {
            "worker-0.log": "".join(f"RANK={r}\n" for r in range(4)) + steps(),
            "worker-1.log": "".join(f"RANK={r}\n" for r in range(4, 8))
            + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
        },
        (Cause.GPU_OUT_OF_MEMORY, ()),
    ),
    "a launcher that reports as many ranks as failed elsewhere": (
        {
            "n0.log": "".join(
                f"  rank      : {r} (local_rank: {r % 4})\n"
                f"  exitcode  : 1 (pid: 9{r})\n"
                for r in (0, 2)
            ),
            "n1.log": traceback() * 2,
        },
        (Cause.NODE_MISCONFIGURED, ()),
    ),
    "a line of NCCL": (
        {
            "serve.log": communicator(
                8, range(8), host="gpu-2{}", state="START"
            )
            + "gpu-21:705:805 [1] misc/shmutils.cc:113 NCCL WARN Error while creating "
            "shared memory segment /dev/shm/nccl-70130 (size 9637888)\n",
        },
        (Cause.NODE_MISCONFIGURED, (4, 5, 6, 7)),
    ),
    "a logger that prints both": (
        {
            "train.log": "[axolotl.config:103] [PID:3002] [RANK:6] setting x\n"
            + KILLED.format(3002)
        },
        (Cause.HOST_OUT_OF_MEMORY, (6,)),
    ),
    "a prefix of torch behind that of Ray": (
        {
            "driver.log": "(WorkerDict pid=81607, ip=10.0.4.18) [rank11]:[W0618 "
            "02:11:43.6 ProcessGroupNCCL.cpp:4561] using GPU 0\n"
            + KILLED.format(81607)
        },
        (Cause.HOST_OUT_OF_MEMORY, (11,)),
    ),
    "a worker of vLLM": (
        {
            "server.log": "(Worker_TP5 pid=406) ERROR 10-20 09:44:00 "
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
        },
        (Cause.GPU_OUT_OF_MEMORY, (5,)),
    ),
    "a worker of one of several engines of vLLM": (
        {
            "server.log": "(Worker_DP1_TP5 pid=406) ERROR 10-20 09:44:00 "
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
        },
        (Cause.GPU_OUT_OF_MEMORY, ()),
    ),
    "a worker of SGLang": (
        {
            "server.log": "[2025-04-23 21:27:51 TP2] torch.OutOfMemoryError: CUDA "
            "out of memory. Tried to allocate 2 GiB\n"
        },
        (Cause.GPU_OUT_OF_MEMORY, (2,)),
    ),
    "a line of mpirun that was broken": (
        {
            "run.log": "prterun noticed that process rank 2 with PID 48814 on node "
            "h-2 exited on\nsignal 11 (Segmentation fault).\n"
        },
        (Cause.NATIVE_CRASH, (2,)),
    ),
    "those who have not joined the store": (
        {
            f"out_n{n}.txt": "".join(
                f"Initializing distributed: GLOBAL_RANK: {r}, MEMBER: {r + 1}/8\n"
                for r in ranks
            )
            + "torch.distributed.DistStoreError: Timed out after 1801 seconds "
            "waiting for clients. 6/8 clients joined.\n" * (n == 0)
            for n, ranks in enumerate([(0, 1), (2, 3), (6, 7)])
        },
        (Cause.RENDEZVOUS_TIMEOUT, (4, 5)),
    ),
    "a few who printed something before": (
        {
            "job.log": "[rank0]: hello\n[rank3]: hello\n"
            "torch.distributed.DistStoreError: Timed out after 601 seconds "
            "waiting for clients. 2/8 clients joined.\n"
        },
        (Cause.RENDEZVOUS_TIMEOUT, ()),
    ),
    "a number that no job has": (
        {
            "n1.log": "NODE_RANK=99999 nproc_per_node=9999\n"
            + traceback("[default3]:")
        },
        (Cause.NODE_MISCONFIGURED, (3,)),
    ),
    "a number below zero": (
        {
            "n1.log": "  rank      : 1 (local_rank: 3)\n"
            + ends(100)
            + traceback("[default3]:")
        },
        (Cause.NODE_MISCONFIGURED, (3,)),
    ),
    "each report of Horovod lists all": (
        {
            "run.log": "Stalled ops:\nallreduce.a [missing ranks: 1]\n"
            + steps("[1,0]<stdout>:")
            + "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:6: [allreduce.b]\n"
        },
        (Cause.RANK_NOT_ARRIVED, (6,)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks(tmp_path, name):
    """
    What is known of nodes shows whose lines these are, and no more.
    """
    files, expected = CASES[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)

    verdict = diagnose(tmp_path).verdict

    assert expected == (verdict.cause, verdict.ranks)

"""
Ranks of the processes, nodes, and GPUs that lines name, and of lists of ranks.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.logs.lines import parse_line
from distdebug.logs.process_ranks import process_forms


def init(rank, *, host="n1", bus="4e000"):
    """
    A rank of four that sets up the communicator of all of them.
    """
    return (
        f"{host}:{700 + rank}:{800 + rank} [{rank}] NCCL INFO ncclCommInitRank "
        f"comm 0x7f{rank} rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} "
        f"busId {bus} commId 0x5 - Init COMPLETE\n"
    )


COMMUNICATOR = "".join(
    init(rank, host=f"n{rank // 2}", bus=bus)
    for rank, bus in enumerate(("7000", "4e000", "8a000", "b7000"))
)
KERNEL = "Nov 21 16:18:30 n1 kernel: [913311.1] "
WORKER = (
    "RuntimeError: DataLoader worker (pid 8213) is killed by signal: Killed.\n"
)
CASES = {
    "a process by NCCL": (
        f"{COMMUNICATOR}{KERNEL}Out of memory: Killed process 702 (python)\n",
        (Cause.HOST_OUT_OF_MEMORY, (2,)),
    ),
    "a process by its rank": (
        (
            f"{KERNEL}pt_data_worker invoked oom-killer: gfp_mask=0x140cca\n"
            f"{KERNEL}Out of memory: Killed process 8213 (pt_data_worker)\n"
            f"[rank3]: {WORKER}"
        ),
        (Cause.HOST_OUT_OF_MEMORY, (3,)),
    ),
    "an unknown process": (
        f"{COMMUNICATOR}{KERNEL}Out of memory: Killed process 17 (python)\n",
        (Cause.HOST_OUT_OF_MEMORY, ()),
    ),
    "a segmentation fault": (
        (
            f"{COMMUNICATOR}{KERNEL}python[701]: segfault at 10 ip 00007f3d2c8ba1d4 "
            "sp 00007ffd0c2f7a40 error 4 in async_io.so[7f3d2c8a0000+31000]\n"
        ),
        (Cause.NATIVE_CRASH, (1,)),
    ),
    "a pod": (
        (
            "rank=0 world_size=2 host=gnn-master-0\n"
            "rank=1 world_size=2 host=gnn-worker-0\n"
            "NAME           READY   STATUS      RESTARTS   AGE\n"
            "gnn-master-0   1/1     Running     0          12m\n"
            "gnn-worker-0   0/1     OOMKilled   0          12m\n"
        ),
        (Cause.HOST_OUT_OF_MEMORY, (1,)),
    ),
    "a pod that is described": (
        (
            "rank=0 world_size=2 host=gnn-master-0\n"
            "rank=1 world_size=2 host=gnn-worker-0\n"
            "Name:             gnn-worker-0\nNamespace:        graph\n"
            "Status:           Failed\nContainers:\n  pytorch:\n"
            "    State:          Terminated\n      Reason:       OOMKilled\n"
        ),
        (Cause.HOST_OUT_OF_MEMORY, (1,)),
    ),
    "a process of DeepSpeed": (
        (
            "n2: [2025-05-21 17:10:07,320] [INFO] [launch.py:163:main] "
            "global_rank_mapping=defaultdict(<class 'list'>, {'n1': [0, 1], "
            "'n2': [2, 3]})\n"
            "n2: [2025-05-21 17:10:09,320] [INFO] [launch.py:256:main] process "
            "702 spawned with command: ['python', '-u', 'x.py', '--local_rank=1']\n"
            f"{KERNEL}Out of memory: Killed process 702 (python)\n"
        ),
        (Cause.HOST_OUT_OF_MEMORY, (3,)),
    ),
    "a process that names itself": (
        (
            "2025-03-03 14:20:00,861 INFO rank=2 pid=702 reads 412 files\n"
            f"{KERNEL}Out of memory: Killed process 702 (python)\n"
        ),
        (Cause.HOST_OUT_OF_MEMORY, (2,)),
    ),
    "a process of Ray": (
        (
            "(WorkerDict pid=702, ip=10.0.0.2) [rank-1]: Saving to /ckpt\n"
            f"{KERNEL}Out of memory: Killed process 702 (python)\n"
        ),
        (Cause.HOST_OUT_OF_MEMORY, (1,)),
    ),
    "two processes of one number": (
        (
            "2025-03-03 14:20:00,861 INFO rank=2 pid=702 reads 412 files\n"
            "2025-03-03 14:20:00,861 INFO rank=5 pid=702 reads 412 files\n"
            f"{KERNEL}Out of memory: Killed process 702 (python)\n"
        ),
        (Cause.HOST_OUT_OF_MEMORY, ()),
    ),
    "a GPU": (
        (
            f"{COMMUNICATOR}{KERNEL}NVRM: Xid (PCI:0000:8a:00): 79, pid=702, GPU has "
            "fallen off the bus.\n"
        ),
        (Cause.GPU_FAULT, (2,)),
    ),
    "a GPU that two nodes have": (
        (
            f"{init(0)}{init(1, host='n2')}{KERNEL}NVRM: Xid (PCI:0000:4e:00): 79, "
            "GPU has fallen off the bus.\n"
        ),
        (Cause.GPU_FAULT, ()),
    ),
    "a node": (
        f"{COMMUNICATOR}srun: error: Node failure on n1.example.org\n",
        (Cause.RANK_CRASHED, (2, 3)),
    ),
    "a list": (
        (
            "[rank0]: torch.distributed.checkpoint.api.CheckpointException: "
            "CheckpointException ranks:dict_keys([4, 5, 12])\n"
        ),
        (Cause.RANK_CRASHED, (4, 5, 12)),
    ),
    "Horovod": (
        (
            "[1,0]<stderr>:Missing ranks:\n"
            "[1,0]<stderr>:5: [allreduce.bn1.bias, allreduce.conv1.weight ...]\n"
            "[1,0]<stderr>:7: [allreduce.bn1.bias ...]\n"
            "[1,0]<stderr>:[2025-01-09 10:41:17.1: W stall_inspector.cc:107] x\n"
        ),
        (Cause.RANK_NOT_ARRIVED, (5, 7)),
    ),
    "Horovod before 0.19": (
        "Stalled ops:\nallreduce.conv1.weight [missing ranks: 1, 13]\n",
        (Cause.RANK_NOT_ARRIVED, (1, 13)),
    ),
    "NVRx": (
        (
            "[NeMo W 2025-05-11 21:00:55] STRAGGLER DETECTION WARNING: Some GPUs "
            "have worse relative performance. Affected ranks: {StragglerId(rank=17, "
            "node='pool0-0031'), StragglerId(rank=20, node='pool0-0032')}\n"
        ),
        (Cause.STRAGGLER, (17, 20)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks(tmp_path, name):
    """
    What a line names has a rank, if other lines show it.
    """
    text, expected = CASES[name]
    (tmp_path / "job.log").write_text(text)

    verdict = diagnose(tmp_path).verdict

    assert expected == (verdict.cause, verdict.ranks)


STAMPS = (
    "[pod/train-0/pytorch] ",
    "2025-11-22T03:52:01.123456789Z stderr F ",
    "trainer-1  | ",
    "Nov 22 03:52:01 node7 python[123]: ",
)


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("name", ["a list", "Horovod", "a node"])
def test_collector(tmp_path, name, stamp):
    """
    The prefix of a log collector changes nothing.
    """
    text, expected = CASES[name]
    lines = text.splitlines(keepends=True)
    (tmp_path / "job.log").write_text("".join(stamp + x for x in lines))

    verdict = diagnose(tmp_path).verdict

    assert expected == (verdict.cause, verdict.ranks)


def test_time_of_collector(scan):
    """
    A line without a time has that of the collector.
    """
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )

    (late,) = scan(a=f"2025-11-22T03:52:01.5Z {oom}").groups

    assert 1_763_783_521.5 == late.first.time
    assert "torch." == late.first.text[:6]


FORMS = {form.example: form for x in process_forms().values() for form in x}


@pytest.mark.parametrize("example", FORMS, ids=lambda x: x[:40])
def test_examples(example):
    """
    A line that is an example has a word of its form, and fits it.
    """
    form, line = FORMS[example], parse_line(example)

    assert any(word.lower() in example.lower() for word in form.words)
    assert form.pattern.search(line.text)


def test_prefixes_tell_little(tmp_path, monkeypatch):
    """
    Where thousands of lines tell nothing new, the rest is not read.
    """
    monkeypatch.setattr("distdebug.logs.process_ranks._MOST_IDLE", 50)
    said = "rank=2 pid=702 reads 412 files\n"
    late = "rank=3 pid=703 reads 412 files\n"
    killed = "kernel: Out of memory: Killed process {} (python)\n"
    (tmp_path / "train.log").write_text(
        said + said * 100 + late + killed.format(703)
    )

    assert () == diagnose(tmp_path).verdict.ranks

    (tmp_path / "train.log").write_text(said * 10 + late + killed.format(703))

    assert (3,) == diagnose(tmp_path).verdict.ranks


def test_many_processes(tmp_path):
    """
    All of hundreds of processes that print the same error are at fault.
    """
    size = 200
    log = tmp_path / "driver.log"
    log.write_text(
        "".join(
            f"n1:{700 + rank}:1 [0] NCCL INFO ncclCommInitRank comm 0x7 rank "
            f"{rank} nranks {size} cudaDev 0 nvmlDev 0 busId {rank:x}000 "
            "commId 0x5 - Init COMPLETE\n"
            for rank in range(size)
        )
        + "".join(
            f"(Trainer pid={700 + rank}) torch.OutOfMemoryError: CUDA out of "
            "memory. Tried to allocate 2.00 GiB.\n"
            for rank in range(size)
        )
    )

    finding = diagnose(log).findings[0]

    assert Cause.GPU_OUT_OF_MEMORY is finding.cause
    assert tuple(range(size)) == finding.ranks

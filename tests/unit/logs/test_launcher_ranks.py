"""
Ranks that launchers print.
"""

from __future__ import annotations

import pytest

from distdebug.causes import Cause


TP_HEADER = "initialized, tp rank {}/2, pp rank 0/1"
TRACE = [
    "Traceback (most recent call last):",
    '  File "/opt/app/train.py", line 312, in main',
    "    loss = step(model, batch)",
    "KeyError: 'labels'",
]
FULL = "OSError: [Errno 28] No space left on device"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
TERMINATED = "srun: error: gpu-1: tasks 0-3: Terminated"


@pytest.fixture
def scan_lines(scan):
    """
    Scans a log of some lines.
    """
    return lambda *lines: scan("\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("tasks", "ranks"),
    [
        ("task 5", (5,)),
        ("tasks 0-3,6", (0, 1, 2, 3, 6)),
        ("tasks 1,-,3-", (1, 3)),
        ("tasks 2,-1-13,1-2-3", (2,)),
        ("tasks 0-999999999999", tuple(range(20_000))),
    ],
)
def test_tasks(scan_lines, tasks, ranks):
    """
    Slurm names tasks one by one, and as ranges; so many are no job's.
    """
    report = scan_lines(f"srun: error: gpu-b17: {tasks}: Killed")

    assert [ranks] == [finding.ranks for finding in report.findings]


@pytest.mark.parametrize(
    ("says", "cause"),
    [
        ("Killed", Cause.KILLED),
        ("Segmentation fault", Cause.NATIVE_CRASH),
        ("Segmentation fault (core dumped)", Cause.NATIVE_CRASH),
        ("Bus error", Cause.NATIVE_CRASH),
        ("Out Of Memory", Cause.HOST_OUT_OF_MEMORY),
        ("Exited with exit code 1", Cause.RANK_CRASHED),
        ("Aborted (core dumped)", Cause.NATIVE_CRASH),
    ],
)
def test_slurm(scan_lines, says, cause):
    """
    The task that failed is the rank, not those that were ended then.
    """
    report = scan_lines(f"srun: error: gpu-2: task 5: {says}", TERMINATED)

    first, last = report.findings[0], report.findings[-1]
    assert (cause, (5,)) == (first.cause, first.ranks)
    assert (Cause.KILLED, (0, 1, 2, 3)) == (last.cause, last.ranks)


EXITED = "srun: error: gpu-2: task 13: Exited with exit code 1"
CONTAINER = "2025-06-11T03:00:01.123456789Z stderr F "
LABELLED = [f"{n % 4}: step {n} loss 1" for n in range(40)]
PLAIN = [f"iteration {n} loss 1" for n in range(40)]
LOADER = "RuntimeError: DataLoader worker (pid 12) is killed by signal: {}. "
# What is true, with lines, the first cause, and its ranks.
FIRST = {
    "the rank of Slurm's event stands in the line of srun behind it": (
        [
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
            "srun: error: gpu-2: task 5: Out Of Memory",
        ],
        "host_out_of_memory",
        (5,),
    ),
    "a traceback is that of the only task that failed": (
        [*TRACE, EXITED, TERMINATED],
        "rank_crashed",
        (13,),
    ),
    "of two tracebacks it is unknown whose they are": (
        [*TRACE, *TRACE, EXITED],
        "rank_crashed",
        (),
    ),
    "as many tracebacks as tasks that failed are theirs": (
        [
            *TRACE,
            *TRACE,
            "srun: error: gpu-2: tasks 4-5: Exited with exit code 1",
        ],
        "rank_crashed",
        (4, 5),
    ),
    "a traceback is that of the only rank that says the same": (
        [
            "[2026-06-16 19:06:31 TP3] Scheduler hit an exception: "
            + TRACE[0],
            *TRACE[1:3],
            f"RuntimeError: {ILLEGAL}",
            f"[rank3]:[E616 19:06:32.2 ProcessGroupNCCL.cpp:1896] {ILLEGAL}",
        ],
        "gpu_fault",
        (3,),
    ),
    "a traceback is not told apart where two ranks say the same": (
        [
            *TRACE[:3],
            f"RuntimeError: {ILLEGAL}",
            *(
                f"[rank{x}]:[E616 19:06:32.2 a.cpp:1] {ILLEGAL}"
                for x in (1, 3)
            ),
        ],
        "gpu_fault",
        (),
    ),
    "a rank that waited in vain is not the one that ended first": (
        [
            "DistStoreError: Timed out after 601 seconds waiting for clients.",
            EXITED,
        ],
        "rendezvous_timeout",
        (),
    ),
    "a rank may stand behind what a container runtime writes": (
        [f"{CONTAINER}[rank2]: {row}" for row in TRACE],
        "rank_crashed",
        (2,),
    ),
    "what a process says of itself counts more than its label": (
        [*LABELLED, *(f"1: [rank7]: {row}" for row in TRACE)],
        "rank_crashed",
        (7,),
    ),
    "what a launcher says is not about the task that it runs for": (
        [
            *LABELLED,
            "0: slurmstepd: error: *** STEP 1.0 ON gpu-1 CANCELLED AT noon ***",
        ],
        "killed",
        (),
    ),
    "a traceback whose lines all have one label has that rank": (
        [*PLAIN, *(f"40: {row}" for row in TRACE)],
        "rank_crashed",
        (40,),
    ),
    "a data loader worker may be killed by a segmentation fault": (
        [f"[rank3]: {LOADER.format('Segmentation fault')}"],
        "native_crash",
        (3,),
    ),
    "a data loader worker may be killed by an abort": (
        [f"[rank3]: {LOADER.format('Aborted')}"],
        "native_crash",
        (3,),
    ),
    "a data loader worker may be killed by a bus error": (
        [f"[rank3]: {LOADER.format('Bus error')}"],
        "node_misconfigured",
        (3,),
    ),
    "a data loader worker may be killed from outside": (
        [f"[rank3]: {LOADER.format('Killed')}"],
        "killed",
        (3,),
    ),
    "what Slurm killed for memory was no victim of anything else": (
        [
            LOADER.format("Killed"),
            "slurmstepd: error: Detected 3 oom_kill events in StepId=71.0.",
        ],
        "host_out_of_memory",
        (),
    ),
}


@pytest.mark.parametrize("truth", FIRST)
def test_first(scan_lines, truth):
    """
    Lines of launchers and labels show which rank failed first, and why.
    """
    lines, cause, ranks = FIRST[truth]

    first = scan_lines(*lines).findings[0]

    assert (cause, ranks) == (first.cause, first.ranks)


def test_assertion_of_a_gpu(scan_lines):
    """
    An assertion is that of the rank that raises it.
    """
    report = scan_lines(
        "../Indexing.cu:12: f: block: [1,0,0], thread: [3,0,0] "
        "Assertion `a < b` failed.",
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/opt/app/train.py", line 312, in main',
        "[rank3]: RuntimeError: CUDA error: device-side assert triggered",
    )

    assert [(3,), (3,)] == [finding.ranks for finding in report.findings]


@pytest.mark.parametrize(
    "label", ["{}: ", " {}: ", "[{}] ", "[1,{}]<stderr>:", "[1,{}]<stderr>: "]
)
def test_labels(scan_lines, label):
    """
    Labels show the rank, and tracebacks are read without them.
    """
    lines = [f"{label.format(n % 4)}step {n} loss 1" for n in range(40)]
    mixed = [f"{label.format(rank)}{row}" for row in TRACE for rank in (2, 3)]

    report = scan_lines(*lines, *mixed)

    (finding,) = report.findings
    assert (2, 3) == finding.ranks
    assert "KeyError: 'labels'" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        [f"{n}: loss 1.5" for n in range(100)],
        [f"[{n}] epoch" for n in range(100)],
        ["0: ready", "1: ready", *["step"] * 50],
        ["time 3: 5"] * 50,
    ],
    ids=["steps", "epochs", "few", "inside"],
)
def test_no_labels(scan_lines, lines):
    """
    Numbers of steps, and a few lines, are no labels.
    """
    report = scan_lines(*lines, f"7: {FULL}", f"[7] {FULL}")

    assert [()] == [finding.ranks for finding in report.findings]


def test_no_time_comes_before(scan_lines):
    """
    A traceback without a time is as early as the next line with one.
    """
    report = scan_lines(
        *TRACE,
        "2025-06-11 03:20:02,201 ERROR tune.py:12 -- Trial failed",
        "2025-06-11 03:20:02,301 ERROR ValueError: no result",
    )

    assert "KeyError" in report.findings[0].summary


def test_header_of_another_kind(scan):
    """
    Ranks within a tensor-parallel group are not those of the files.
    """
    logs = {
        f"node{x}.log": "\n".join([TP_HEADER.format(x), *TRACE, ""])
        for x in range(2)
    }

    assert [()] == [finding.ranks for finding in scan(**logs).findings]


def test_origin_without_rank(scan):
    """
    A prefix that names an actor without its rank leaves that of the file.
    """
    report = scan(**{"rank3.log": f"(Trainer pid=7) {FULL}\n"})

    assert [(3,)] == [finding.ranks for finding in report.findings]

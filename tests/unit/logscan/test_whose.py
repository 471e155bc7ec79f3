"""
Ranks that launchers tell.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.logscan import scan_logs
from distdebug.logscan.labels import find_label
from distdebug.logscan.who import tasks_in, tasks_of_line


TRACE = [
    "Traceback (most recent call last):",
    '  File "/opt/app/train.py", line 312, in main',
    "    loss = step(model, batch)",
    "KeyError: 'labels'",
]
TERMINATED = "srun: error: gpu-1: tasks 0-3: Terminated"


def scan(tmp_path, *lines):
    """
    Look at a log of these lines.
    """
    (tmp_path / "job.log").write_text("\n".join([*lines, ""]))
    return scan_logs(tmp_path)


@pytest.mark.parametrize(
    ("tasks", "ranks"),
    [
        ("task 5", (5,)),
        ("tasks 0-3,6", (0, 1, 2, 3, 6)),
        ("tasks 1,-,3-", (1, 3)),
        ("tasks 0-999999999999", tuple(range(20_000))),
        ("nothing", ()),
    ],
)
def test_tasks(tasks, ranks):
    """
    Slurm names tasks one by one, and as ranges.
    """
    line = f"srun: error: gpu-b17: {tasks}: Killed"

    assert ranks == tasks_in(tasks_of_line(line))


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
def test_slurm(tmp_path, says, cause):
    """
    The task that failed is the rank; who was ended then is told apart.
    """
    report = scan(tmp_path, f"srun: error: gpu-2: task 5: {says}", TERMINATED)

    first, last = report.findings[0], report.findings[-1]
    assert (cause, (5,)) == (first.cause, first.ranks)
    assert (Cause.KILLED, (0, 1, 2, 3)) == (last.cause, last.ranks)


def test_memory_of_a_task(tmp_path):
    """
    The rank of Slurm's event stands in the line of srun behind it.
    """
    report = scan(
        tmp_path,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
        "srun: error: gpu-2: task 5: Out Of Memory",
    )

    assert (5,) == report.findings[0].ranks


def test_lone_traceback(tmp_path):
    """
    A traceback is that of the only task that failed.
    """
    report = scan(
        tmp_path,
        *TRACE,
        "srun: error: gpu-2: task 13: Exited with exit code 1",
        TERMINATED,
    )

    assert (13,) == report.findings[0].ranks


def test_prefix_of_others(tmp_path):
    """
    A rank may stand behind what a container runtime writes before each line.
    """
    head = "2025-06-11T03:00:01.123456789Z stderr F [rank2]: "

    report = scan(tmp_path, *(head + row for row in TRACE))

    assert (2,) == report.findings[0].ranks


def test_several_tracebacks(tmp_path):
    """
    Of two tracebacks nobody knows whose they are.
    """
    report = scan(
        tmp_path,
        *TRACE,
        *TRACE,
        "srun: error: gpu-2: task 13: Exited with exit code 1",
    )

    assert () == report.findings[0].ranks


def test_other_cause(tmp_path):
    """
    Who waited in vain is not the one that ended first.
    """
    report = scan(
        tmp_path,
        "DistStoreError: Timed out after 601 seconds waiting for clients.",
        "srun: error: gpu-2: task 13: Exited with exit code 1",
    )

    assert () == report.findings[0].ranks


def test_assertion_of_a_gpu(tmp_path):
    """
    An assertion is that of the rank that raises it.
    """
    report = scan(
        tmp_path,
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
def test_labels(tmp_path, label):
    """
    Labels tell the rank, and tracebacks are read without them.
    """
    lines = [f"{label.format(n % 4)}step {n} loss 1" for n in range(40)]
    mixed = [f"{label.format(rank)}{row}" for row in TRACE for rank in (2, 3)]

    report = scan(tmp_path, *lines, *mixed)

    (finding,) = report.findings
    assert (2, 3) == finding.ranks
    assert "KeyError: 'labels'" in finding.summary


def test_label_and_prefix(tmp_path):
    """
    What a process says of itself counts more than its label.
    """
    lines = [f"{n % 4}: step {n} loss 1" for n in range(40)]

    report = scan(tmp_path, *lines, *(f"1: [rank7]: {row}" for row in TRACE))

    assert (7,) == report.findings[0].ranks


def test_label_of_a_launcher(tmp_path):
    """
    What a launcher says is not about the task that it runs for.
    """
    lines = [f"{n % 4}: step {n} loss 1" for n in range(40)]

    report = scan(
        tmp_path,
        *lines,
        "0: slurmstepd: error: *** STEP 1.0 ON gpu-1 CANCELLED AT noon ***",
    )

    assert () == report.findings[0].ranks


def test_few_labels(tmp_path):
    """
    A traceback whose lines all have one label has that rank.
    """
    lines = [f"iteration {n} loss 1" for n in range(40)]

    report = scan(tmp_path, *lines, *(f"40: {row}" for row in TRACE))

    assert (40,) == report.findings[0].ranks


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
def test_no_labels(lines):
    """
    Numbers of steps, and a few lines, are no labels.
    """
    data = "\n".join(lines).encode()

    assert find_label(data) is None


@pytest.mark.parametrize(
    ("signal", "cause"),
    [
        ("Segmentation fault", "native_crash"),
        ("Aborted", "native_crash"),
        ("Bus error", "node_misconfigured"),
        ("Killed", "killed"),
    ],
)
def test_data_loader(tmp_path, signal, cause):
    """
    The signal tells why a data loader worker is gone.
    """
    line = f"DataLoader worker (pid 12) is killed by signal: {signal}. "

    report = scan(tmp_path, f"[rank3]: RuntimeError: {line}")

    first = report.findings[0]
    assert (Cause(cause), (3,)) == (first.cause, first.ranks)


def test_data_loader_without_memory(tmp_path):
    """
    Whom Slurm killed for memory was no victim of anything else.
    """
    report = scan(
        tmp_path,
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.",
        "slurmstepd: error: Detected 3 oom_kill events in StepId=71.0.",
    )

    assert Cause.HOST_OUT_OF_MEMORY == report.findings[0].cause


def test_no_time_comes_before(tmp_path):
    """
    A traceback without a time is as early as the next line with one.
    """
    report = scan(
        tmp_path,
        *TRACE,
        "2025-06-11 03:20:02,201 ERROR tune.py:12 -- Trial failed",
        "2025-06-11 03:20:02,301 ERROR ValueError: no result",
    )

    assert "KeyError" in report.findings[0].summary

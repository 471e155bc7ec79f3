"""
What Ray Train's own detector of hangs leaves.

The texts have the form that ``train/v2/_internal/callbacks/nccl_ras.py`` of Ray
2.60 writes; the dumps and the output of nvidia-smi are those of Ray 2.61.
"""

from __future__ import annotations

import json

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.errors import NoDumpsError


RANKS = range(4)
LATE = 2
LAYER = "ray/train/v2/_internal/execution/worker_group/thread_runner.py"

# Of `py-spy dump --native`: the function of the user runs beside the main thread.
PY_SPY = """\
Process {pid}: ray::RayTrainWorker.execute
Python v3.11.9 (/opt/env/bin/python3.11)

Thread {pid} (idle): "MainThread"
    epoll_wait (libc.so.6)
    ray::core::CoreWorker::RunTaskExecutionLoop() (ray/_raylet.so)
    main_loop (ray/_private/worker.py:1022)
    <module> (ray/_private/workers/default_worker.py:325)
Thread {pid}9 ({state}): "TrainingThread(train_func)"
{frames}
    train_func (job/train.py:71)
    _run_target ({layer}:38)
    run (threading.py:982)
    _bootstrap_inner (threading.py:1045)
    _bootstrap (threading.py:1002)
    thread_run (python3.11)
"""
FRAMES = {
    True: ("idle", "    read (libc.so.6)\n    read_shard (job/data.py:41)"),
    False: (
        "active",
        (
            "    cudaStreamSynchronize (libcudart.so.13)\n"
            "    item (torch/lib/libtorch_python.so)\n"
            "    train_step (job/train.py:57)"
        ),
    ),
}

# Where py-spy is not installed: `sys._current_frames()`.
NO_PY_SPY = """\
[py-spy unavailable: py-spy not installed; Python-only traceback follows]

# Thread 1398221543644{rank}
  File "/opt/env/lib/python3.11/threading.py", line 1002, in _bootstrap
    self._bootstrap_inner()
  File "/opt/env/lib/python3.11/site-packages/{layer}", line 38, in _run_target
    result = target()
  File "/home/me/job/train.py", line 71, in train_func
    {call}
{last}

# Thread 139823005726528
  File "/opt/env/lib/python3.11/site-packages/ray/_private/workers/\
default_worker.py", line 325, in <module>
    worker.main_loop()
  File "/opt/env/lib/python3.11/site-packages/ray/_private/worker.py", \
line 1022, in main_loop
    self.core_worker.run_task_loop()
"""
LAST_LINES = {
    True: '  File "/home/me/job/data.py", line 41, in read_shard\n'
    "    return file.read()",
    False: '  File "/home/me/job/train.py", line 57, in train_step\n'
    "    return loss.item()",
}

REPORT = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (9d6d05220c26ffde) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 7
  Rank 2 has launched up to operation 6 -- GPU 2 managed by process 4002 on \
node 10.0.0.5
"""
FOUND = "rank 2 launched all_reduce #6 last, and others #7"

SUSPECTED = (
    "Possible NCCL hang detected! 1 of 1 communicators (0x9d6d05220c26ffde) "
    "have made no progress over 60 seconds (4 consecutive polls). Continuing "
    "to monitor, this might be a transient stall. A NCCLHangError will be "
    "raised after 600 seconds if this persists."
)
STILL = (
    "NCCL hang still suspected! 1 of 1 communicators (0x9d6d05220c26ffde for "
    "120s) have made no progress. A NCCLHangError will be raised in 480 "
    "seconds (32 more polls) if this persists."
)
CONFIRMED = """\
1 of 1 communicators have a collective mismatch and made no progress for \
600 seconds (40 polls). This usually means that the collective is deadlocked \
/ hanging. The possible reasons for this is: a rank hit a divergent code \
path, exited early, a GPU or network hardware failure, or a collective was \
launched with a mismatched shape, dtype, or call order.
To debug:
  - Read NCCL RAS report in the logs (identifies the deadlocked \
ranks/communicators)
  - Your experiment directory contains the per-rank stack traces \
(/mnt/run/hang_detector/stack_traces)
"""
RAISED = """\
Traceback (most recent call last):
  File "/home/me/job/main.py", line 20, in <module>
    result = trainer.fit()
  File "/opt/env/lib/python3.11/site-packages/ray/train/v2/api/\
data_parallel_trainer.py", line 190, in fit
    raise result.error
ray.train.v2.api.exceptions.NCCLHangError: Training failed due to worker errors:
"""


def py_spy(rank):
    """
    What py-spy shows of a rank.
    """
    state, frames = FRAMES[rank == LATE]
    return PY_SPY.format(
        pid=4000 + rank, state=state, frames=frames, layer=LAYER
    )


def no_py_spy(rank):
    """
    What a rank shows of itself.
    """
    is_late = rank == LATE
    return NO_PY_SPY.format(
        rank=rank,
        layer=LAYER,
        call="read_shard(path)" if is_late else "train_step(batch)",
        last=LAST_LINES[is_late],
    )


def answer(*counts):
    """
    What RAS answers in JSON: how many operations each rank has launched.
    """
    place = {"host": "10.0.0.5", "cuda_dev": 0}
    ranks = [
        {
            "rank": rank,
            "pid": 4000 + rank,
            **place,
            "collective_counts": {"Broadcast": 1, "AllReduce": count},
        }
        for rank, count in enumerate(counts)
    ]
    one = {"hash": "0x9d6d05220c26ffde", "size": len(counts), "ranks": ranks}
    return json.dumps({"nccl_version": "2.28.9", "communicators": [one]})


def record(rank):
    """
    The dump of a rank, as ``_dump_fr_trace_json`` returns it.
    """
    entries = [
        {
            "collective_seq_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "state": "completed" if number < 7 else "started",
            "is_p2p": False,
        }
        for number in range(5, 7 if rank == LATE else 8)
    ]
    ranks = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    return json.dumps(
        {"version": "2.10", "pg_config": {"0": ranks}, "entries": entries}
    )


def printed(*messages, prefix="(TrainController pid=3900, ip=10.0.0.4) "):
    """
    What the log has of messages of the controller.
    """
    head = "2026-11-27 17:23:04,123\tWARNING nccl_ras.py:850 -- "
    return "".join(
        f"{prefix}{line}\n"
        for message in messages
        for line in f"{head}{message}".split("\n")
    )


def put(folder, kind, files):
    """
    Write the files of one tool; the folder with those of all.
    """
    place = folder / "hang_detector" / kind
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name).write_text(text)
    return folder


def history(folder, *answers, report=REPORT):
    """
    Write the answers of RAS; the folder.
    """
    files = {
        f"ncclras_2026-11-27-17-2{number}-04.json": text
        for number, text in enumerate(answers)
    }
    return put(folder, "nccl_ras", files | {"ncclras_report.txt": report})


def summaries(path):
    """
    The cause, the confidence, and the summary of each finding.
    """
    return [
        (x.cause, x.confidence, x.summary) for x in diagnose(path).findings
    ]


@pytest.mark.parametrize("stack", [py_spy, no_py_spy])
def test_stacks(stack, tmp_path):
    """
    The stacks that it took give the cause and the line, with and without
    py-spy; RAS adds the call.
    """
    put(tmp_path, "stack_traces", {f"rank_{x}.log": stack(x) for x in RANKS})
    history(tmp_path, answer(7, 7, 6, 7), answer(7, 7, 6, 7))

    diagnosis = diagnose(tmp_path)

    verdict = diagnosis.verdict
    assert (Cause.IO_WAIT, (LATE,)) == (verdict.cause, verdict.ranks)
    assert "read_shard (data.py:41)" in verdict.summary
    assert FOUND in {x.summary for x in diagnosis.findings}
    assert all(x.what == "dump" for x in diagnosis.missing)


def test_failed_stacks(tmp_path):
    """
    A placeholder for a stack that it could not take costs no other.
    """
    files = {f"rank_{x}.log": py_spy(x) for x in RANKS}
    files["rank_0.log"] = "stack dump timed out after 30s"

    verdict = diagnose(put(tmp_path, "stack_traces", files)).verdict

    assert (Cause.IO_WAIT, (LATE,)) == (verdict.cause, verdict.ranks)


@pytest.mark.parametrize(
    ("answers", "confidence"),
    [
        (
            [answer(5, 5, 5, 5), answer(7, 7, 6, 7), answer(7, 7, 6, 7)],
            "likely",
        ),
        ([answer(7, 7, 6, 7)], "likely"),
        ([], "possible"),
    ],
)
def test_history(answers, confidence, tmp_path):
    """
    The files are one history: who has not moved since the one before is stuck.
    """
    found = summaries(history(tmp_path, *answers))

    assert [(Cause.RANK_NOT_ARRIVED, confidence, FOUND)] == found


def test_earlier_delay(tmp_path):
    """
    Who was late earlier in the history, and is not any more, is not at fault.
    """
    answers = [answer(4, 4, 4, 3), answer(5, 5, 5, 4), answer(7, 7, 6, 7)]

    found = summaries(history(tmp_path, *answers, answer(7, 7, 6, 7)))

    assert [(Cause.RANK_NOT_ARRIVED, "likely", FOUND)] == found


@pytest.mark.parametrize("prefix", ["", "(TrainController pid=39) "])
def test_report_in_a_log(prefix, tmp_path):
    """
    The report that is printed into a log names the ranks; the second one says
    that they stand still.
    """
    log = tmp_path / "driver.log"
    log.write_text(f"step 7\n{printed(SUSPECTED, REPORT, prefix=prefix)}")
    (one,) = summaries(tmp_path)
    log.write_text(
        f"step 7\n{printed(SUSPECTED, REPORT, REPORT, prefix=prefix)}"
    )
    (two,) = diagnose(tmp_path).findings

    assert (Cause.RANK_NOT_ARRIVED, "possible", FOUND) == one
    assert ("likely", FOUND) == (two.confidence, two.summary)
    (evidence,) = two.evidence
    number = int(evidence.location.removeprefix("line "))
    assert "Rank 2 has launched" in log.read_text().splitlines()[number - 1]


@pytest.mark.parametrize(
    "text",
    [
        printed(STILL),
        printed(SUSPECTED, CONFIRMED),
        f"{printed(SUSPECTED)}{RAISED}{CONFIRMED}",
    ],
)
def test_messages(text, tmp_path):
    """
    Its messages say that ranks wait, and where the evidence lies; the error
    that it raises is no crash of a rank.
    """
    (tmp_path / "driver.log").write_text(text)

    verdict = diagnose(tmp_path).verdict

    assert Cause.COLLECTIVE_TIMEOUT is verdict.cause
    assert "hang_detector" in verdict.remedy


@pytest.mark.parametrize(
    "line",
    [
        "    except NCCLHangError: raise",
        "    except (ValueError, ray.train.NCCLHangError): ...",
        "WARNING raise ray.train.NCCLHangError: on (NCCLHangConfig)",
    ],
)
def test_code(line, tmp_path):
    """
    Code and settings that name its error are no evidence.
    """
    (tmp_path / "driver.log").write_text(f"{line}\n")

    with pytest.raises(NoDumpsError):
        diagnose(tmp_path)


def test_transient(tmp_path):
    """
    A first suspicion may mean nothing, and is no evidence.
    """
    (tmp_path / "driver.log").write_text(printed(SUSPECTED))

    with pytest.raises(NoDumpsError):
        diagnose(tmp_path)


def test_error_and_report(tmp_path):
    """
    The rank that the report names comes before the error that followed.
    """
    text = f"{printed(REPORT)}{RAISED}{CONFIRMED}"
    (tmp_path / "driver.log").write_text(text)

    verdict = diagnose(tmp_path).verdict

    assert (Cause.RANK_NOT_ARRIVED, (LATE,)) == (verdict.cause, verdict.ranks)


def test_dumps(tmp_path):
    """
    The dumps that it took are read as others are; a rank that gave none is
    named.
    """
    put(tmp_path, "stack_traces", {f"rank_{x}.log": py_spy(x) for x in RANKS})
    files = {f"rank_{x}.json": record(x) for x in RANKS}
    files["rank_0.json"] = '{"ray_train_dump_error": "timed out after 30s"}'
    put(tmp_path, "flight_recorder", files)
    put(tmp_path, "nvidia_smi", {"node_10.0.0.5.log": "no GPU\n"})

    diagnosis = diagnose(tmp_path)

    verdict = diagnosis.verdict
    assert (Cause.RANK_NOT_ARRIVED, (LATE,)) == (verdict.cause, verdict.ranks)
    assert verdict.summary.startswith("rank 2 never entered all_reduce #7")
    assert "read_shard (data.py:41)" in verdict.summary
    assert ["rank_0.json"] == [
        x.source.rpartition("/")[2] for x in diagnosis.missing
    ]

"""
What is said of a start-up that takes long, and of what goes wrong.
"""

from __future__ import annotations

import json
import os

from datetime import datetime

import pytest

from distdebug.findings import Cause
from distdebug.startup import detect_phase


BEGUN = datetime(2026, 2, 20, 2, 4, 0).timestamp()  # noqa: DTZ001 as logs do
HEAD = """\
[2026-02-20 02:03:57] train_entry.py:120 INFO Resolved config:
[2026-02-20 02:03:59] training_controller.py:88 INFO Controller loaded dataset: 5200 samples
"""
PLACE = HEAD + (
    "[2026-02-20 02:04:00] placement_group.py:9 INFO "
    "Creating unified placement group with 16 GPUs...\n"
)
ENGINE = HEAD + (
    "[2026-02-20 02:04:00] sgl_engine.py:9 INFO "
    "SglEngine rank 0: BEFORE init\n"
)
PREFIX = "(SglEngine pid=514428, ip=10.0.0.2) "
SHARDS = (
    ENGINE
    + PREFIX
    + ("Multi-thread loading shards: {} Completed | {}/64 [00:00<?, ?it/s]\n")
)
SHARDS_40 = SHARDS.format(" 40%", 26)
SHARDS_100 = SHARDS.format("100%", 64)


def test_shards_go_on():
    """
    A bar that was moved a minute ago is normal.
    """
    report = detect_phase(SHARDS_40, now=BEGUN + 60)

    assert report.is_normal
    assert () == report.findings
    assert 60 == report.silent_s
    assert "shards 40 % (26/64)" in report.verdict


def test_shards_stall():
    """
    A bar that stands still below 100 % is a slow disk or lack of memory.
    """
    report = detect_phase(SHARDS_40, now=BEGUN + 720)

    (finding,) = report.findings
    assert report.is_normal is False
    assert Cause.START_UP_STALLED == finding.cause
    assert () == finding.ranks
    assert "file system is slow" in finding.summary
    assert "dmesg" in finding.remedy
    assert "line 4" == finding.evidence[0].location


def test_shards_full_is_normal():
    """
    For minutes after 100 %, silence is normal, and the verdict says why.
    """
    report = detect_phase(SHARDS_100, now=BEGUN + 180)

    assert report.is_normal
    assert (
        "loading and starting the inference engines, shards 100 % (64/64), "
        "now KV cache and graph capture: silent for 3 min is normal, "
        "alarming after 10 min."
    ) == report.verdict


def test_shards_full_too_long():
    """
    After ten minutes it is not.
    """
    report = detect_phase(SHARDS_100, now=BEGUN + 700)

    (finding,) = report.findings
    assert "CUDA graphs" in finding.summary
    assert "nvidia-smi" in finding.remedy


def test_no_time_no_silence():
    """
    Without the time, nothing is said about silence.
    """
    report = detect_phase(SHARDS_40)

    assert report.silent_s is None
    assert report.is_normal is None
    assert "silent" not in report.verdict
    assert () == report.findings


def test_placement_waits():
    """
    GPUs that do not come are told, with how many are there.
    """
    log = PLACE + "".join(
        f"[2026-02-20 02:{minute:02}:30] placement_group.py:155 INFO "
        "Ray cluster GPUs: 8/16\n"
        for minute in range(4, 12)
    )

    report = detect_phase(log)

    (finding,) = report.findings
    assert "8 of 16 GPUs" in finding.summary
    assert "workers have not joined" in finding.summary
    assert "ray status" in finding.remedy


def test_placement_silent():
    """
    The same where nothing is printed while it waits.
    """
    report = detect_phase(PLACE, now=BEGUN + 200)

    assert "placement" == report.current.name
    assert "workers have not joined" in report.findings[0].summary


def test_placement_timed_out():
    """
    A job that gave up waiting failed, in that phase.
    """
    log = PLACE + (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n'
        "RuntimeError: Timed out waiting for GPUs: 8/16 after 300s. Check "
        "that all Ray worker nodes have joined the cluster.\n"
    )

    report = detect_phase(log, now=BEGUN + 9000)

    assert "failed" == report.ended
    assert "failed" == report.phase("placement").state
    assert "8" == report.phase("placement").facts["have"]
    assert report.is_normal is False
    assert "The job failed while reserving GPUs" in report.verdict


def test_slime_waits():
    """
    slime tells itself for how long it waits.
    """
    log = (
        "[2026-02-20 02:04:00] x.py:1 - Creating placement group with 16 GPUs...\n"
        "[2026-02-20 02:14:00] x.py:1 - Waiting for placement group of 16 GPUs "
        "(elapsed 600s): 8 GPUs registered with Ray, 8 available.\n"
    )

    report = detect_phase(log)

    assert "8 of 16 GPUs" in report.findings[0].summary


def test_actor_died():
    """
    The death of an actor names it, and the file to look into.
    """
    log = SHARDS_40 + (
        "ray.exceptions.RayActorError: The actor died unexpectedly before "
        "finishing this task.\n"
        "\tclass_name: SglEngine\n"
        "\tactor_id: 4f5c\n"
        "\tpid: 514428\n"
        "\tnamespace: x\n"
        "\tip: 10.0.0.2\n"
        "The actor is dead because its worker process has died.\n"
    )

    report = detect_phase(log)

    (finding,) = report.findings
    assert Cause.ACTOR_DIED == finding.cause
    assert "SglEngine, pid 514428 on 10.0.0.2" in finding.summary
    assert "worker-*-514428.err" in finding.remedy
    assert "node 10.0.0.2" in finding.remedy


def test_nccl_timeout():
    """
    A time-out of NCCL leads to the network interfaces.
    """
    log = ENGINE + (
        "[rank3]:[E220 02:30:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog "
        "caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
        "600012 milliseconds before timing out.\n"
    )

    report = detect_phase(log)

    (finding,) = report.findings
    assert Cause.COLLECTIVE_TIMEOUT == finding.cause
    assert (3,) == finding.ranks
    assert "NCCL_SOCKET_IFNAME" in finding.remedy
    assert "GLOO_SOCKET_IFNAME" in finding.remedy
    assert "TP_SOCKET_IFNAME" in finding.remedy


def test_process_group_hangs():
    """
    So does a process group that does not come together.
    """
    log = (
        "[2026-02-20 02:04:00,000] [INFO] [comm.py:652:init_distributed] "
        "cdb=None\n[2026-02-20 02:04:00,100] [INFO] [comm.py:683:"
        "init_distributed] Initializing TorchBackend in DeepSpeed with "
        "backend nccl\n"
    )

    report = detect_phase(log, now=BEGUN + 900)

    assert "process_group" == report.current.name
    assert "NCCL_SOCKET_IFNAME" in report.findings[0].remedy


def test_metrics_exporter_is_harmless():
    """
    Ray's complaint about its metrics means nothing.
    """
    log = (
        SHARDS_40
        + (
            "(raylet) [2026-02-20 02:04:01,000 E 12 13] metrics.cc:1: Failed to "
            "establish connection to the metrics exporter agent. Metrics will "
            "not be exported.\n"
        )
        * 3
    )

    report = detect_phase(log)

    assert () == report.findings
    assert [("metrics_exporter", 3)] == [
        (one.name, one.count) for one in report.harmless
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}",
        "{'loss': 'nan', 'grad_norm': 'nan'}",
        (
            "[rank0]:[titan] 2026-03-01 08:01:41,201 - root - INFO - step: 11  "
            "loss:      nan  grad_norm:  1.23"
        ),
        " iteration      110/     500 | lm loss: NAN | loss scale: 1.0 |",
        "step:11 - actor/pg_loss:nan - actor/grad_norm:0.2",
        "Training:   3%|3  | 30/1000 [01:00<32:20,  2.00s/step, loss=nan]",
        "Epoch 0:  10%|1    | 5/50 [00:01<00:09, 4.1it/s, train_loss=nan.0]",
        "  • Loss: nan",
        "(TaskRunner pid=3) {'train/loss': inf}",
    ],
    ids=[
        *("hf", "hf5", "titan", "megatron", "verl", "torchspec"),
        *("lightning", "nemo", "slime"),
    ],
)
def test_loss_is_nan(line):
    """
    A loss that is no number is found, however it is written.
    """
    report = detect_phase([line])

    (finding,) = report.findings
    assert Cause.LOSS_NOT_FINITE == finding.cause
    assert "max_grad_norm" in finding.remedy


@pytest.mark.parametrize(
    "line",
    [
        " iteration  110/  500 | lm loss: 9.1E+00 | number of nan iterations: 0 |",
        "loss_scale: inf is not allowed",
        "{'loss': 0.3, 'grad_norm': nan}",
        "checking for nan in loss and grad: True",
        "loss: nanosecond timer",
        "[info] no loss information",
    ],
)
def test_loss_is_not_nan(line):
    """
    The word alone means nothing.
    """
    report = detect_phase([line])

    assert () == report.findings


def test_too_slow():
    """
    A bar that moves, but for much too long, is told.
    """
    log = ENGINE + (
        "[2026-02-20 03:04:00] x.py:1 INFO hello\n"
        + PREFIX
        + "Multi-thread loading shards:  40% Completed | 26/64 [58:00<1:20:00, 60s/it]\n"
    )

    report = detect_phase(log, now=BEGUN + 3630)

    (finding,) = report.findings
    assert "it takes 60 min already, and usually 10 min" in finding.summary
    assert "possible" == finding.confidence


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("Training completed: 10 steps in 3.0s | avg\n", "completed"),
        (
            "Traceback (most recent call last):\n  File 'x'\nValueError: no\n",
            "failed",
        ),
        (
            "./run.sh: line 12:  4711 Killed                  python x.py\n",
            "killed",
        ),
        (
            "slurmstepd: error: *** JOB 77 ON node-12 CANCELLED AT 2026-02-20T03:00:00 DUE TO TIME LIMIT ***\n",
            "killed",
        ),
        ("srun: error: node-12: task 3: Exited with exit code 1\n", "failed"),
    ],
    ids=["completed", "exception", "killed", "slurm", "srun"],
)
def test_ended(text, how):
    """
    A log that ended is not called stalled.
    """
    report = detect_phase(SHARDS_40 + text, now=BEGUN + 90_000)

    assert how == report.ended
    assert Cause.START_UP_STALLED not in {f.cause for f in report.findings}
    assert (how == "completed") is report.is_normal


def test_exception_of_an_actor():
    """
    An exception inside an actor does not end the log of the driver.
    """
    text = (
        f"{PREFIX}Traceback (most recent call last):\n"
        f"{PREFIX}  File 'x'\n{PREFIX}ValueError: retry\n"
    )

    report = detect_phase(SHARDS_40 + text)

    assert report.ended is None


def test_goes_on_after_an_exception():
    """
    A job that goes on after an exception was not over.
    """
    text = (
        "Traceback (most recent call last):\n  File 'x'\nValueError: no\n"
        + SHARDS_100.removeprefix(ENGINE)
    )

    report = detect_phase(SHARDS_40 + text)

    assert report.ended is None
    assert 100 == report.percent


def test_trains_on_after_a_signal():
    """
    A step after the supposed end shows that the job lives.
    """
    steps = [
        f"Training:  {n}%|x| {n}/100 [00:10<01:00, 1.0s/it]" for n in (3, 4)
    ]

    report = detect_phase([HEAD, steps[0], "Terminated", steps[1]])

    assert report.ended is None
    assert 4 == report.progress.done


def test_second_attempt():
    """
    If a job was started again, the last attempt counts.
    """
    first = (
        SHARDS_100 + "Training:   3%|x| 30/1000 [01:00<32:20,  2.00s/step]\n"
    )

    report = detect_phase(first + SHARDS_40)

    assert 2 == report.attempt
    assert "engine_init" == report.current.name
    assert 40 == int(report.percent)
    assert "not begun" == report.phase("training").state


def test_second_attempt_after_the_end():
    """
    What begins after the end is another attempt, also without a first text.
    """
    bar = "Loading checkpoint shards:  {}%|x| {}/4 [00:04<00:04,  2.01s/it]"
    log = [
        *(bar.format(0, 0), bar.format(100, 4)),
        "{'loss': 1.2, 'grad_norm': 0.5}",
        "ERROR: torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        *(bar.format(0, 0), bar.format(50, 2)),
    ]

    report = detect_phase(log)

    assert (2, "shards") == (report.attempt, report.current.name)
    assert report.ended is None


def test_slowest_engine():
    """
    Of several engines, the slowest tells how far they are.
    """
    lines = [
        f"(SglEngine pid={pid}, ip=10.0.0.{pid}) Multi-thread loading shards: "
        f" {percent}% Completed | {percent}/100 [00:08<00:12,  2.0s/it]"
        for pid, percent in ((2, 10), (3, 20), (2, 90), (3, 40), (2, 100))
    ]

    report = detect_phase([ENGINE, *lines])

    assert 40 == report.percent


def test_deduplicated_engines():
    """
    Where Ray leaves lines out, a bar that stands still tells nothing.
    """
    lines = [
        f"(SglEngine pid={pid}, ip=10.0.0.{pid}) Multi-thread loading shards: "
        f" {percent}% Completed | {percent}/100 [00:08<00:12,  2.0s/it]"
        for pid, percent in ((2, 10), (3, 40), (2, 100))
    ]
    lines[1] += " [repeated 3x across cluster]"

    report = detect_phase([ENGINE, *lines])

    assert 100 == report.percent


def test_text_time_without_mtime_in_range(tmp_path):
    """
    For a copy that is younger than the moment in question, the text counts.
    """
    log = tmp_path / "job.log"
    log.write_text(SHARDS_40)

    report = detect_phase(log, now=BEGUN + 120)

    assert 120 == report.silent_s


@pytest.mark.parametrize(
    ("written", "silent"),
    [(8 * 3600, 30), (-7 * 3600, 30), (15, 15)],
    ids=["zone-east", "zone-west", "same"],
)
def test_live_file(tmp_path, written, silent):
    """
    The clock of the text may be that of another zone; that of the file is
    not.
    """
    log = tmp_path / "job.log"
    log.write_text(ENGINE)
    os.utime(log, (BEGUN + written, BEGUN + written))

    report = detect_phase(log, now=BEGUN + written + silent)

    assert 30 == report.silent_s


def test_bars_tell_no_time(tmp_path):
    """
    A file that is written further by a bar is not silent.
    """
    log = tmp_path / "job.log"
    log.write_text(SHARDS_40)
    os.utime(log, (BEGUN + 1000, BEGUN + 1000))

    report = detect_phase(log, now=BEGUN + 1030)

    assert 30 == report.silent_s


def test_copied_log(tmp_path):
    """
    A log that was copied is as old as its last line says.
    """
    log = tmp_path / "job.log"
    log.write_text(ENGINE)
    os.utime(log, (BEGUN + 5000, BEGUN + 5000))

    report = detect_phase(log, now=BEGUN + 5010)

    assert 5010 == report.silent_s


def test_bar_tells_how_long_it_ran():
    """
    A bar without a time is dated by how long it has run.
    """
    bar = (
        PREFIX
        + "Multi-thread loading shards: {:3}% Completed | {}/64 [{}<01:00,  4.8s/it]\n"
    )
    log = ENGINE + bar.format(0, 0, "00:00") + bar.format(50, 32, "05:00")

    report = detect_phase(log, now=BEGUN + 360)

    assert 60 == report.silent_s


def test_future():
    """
    If the text is ahead of the clock and no file tells, silence is unknown.
    """
    report = detect_phase(ENGINE, now=BEGUN - 5000)

    assert report.silent_s is None


def test_between_phases():
    """
    When nothing follows a phase that is done, that is told.
    """
    report = detect_phase(HEAD, now=BEGUN + 1200)

    assert ("config_dataset", "done") == (
        report.current.name,
        report.current.state,
    )
    assert "nothing was printed for 20 min" in report.findings[0].summary


def test_training_stalls():
    """
    A job that trains may be silent for ten of its steps, and for long.
    """
    steps = "".join(
        f"[2026-02-20 02:{minute:02}:00] x INFO step: {minute}  loss: 1.0\n"
        for minute in (3, 4)
    )

    normal = detect_phase(steps, now=BEGUN + 600)
    stalled = detect_phase(steps, now=BEGUN + 2000)

    assert normal.is_normal
    assert "training, step 4" in normal.verdict
    assert "possible" == stalled.findings[0].confidence


def test_plain():
    """
    A report is plain data, and a text with all of it.
    """
    report = detect_phase(SHARDS_40, now=BEGUN + 720)

    data = json.loads(json.dumps(report.to_dict()))
    text = str(report)

    assert "engine_init" == data["current"]
    assert 40 == int(data["percent"])
    assert len(report.phases) == len(report.to_records())
    assert report.verdict in text
    assert "torchspec: engine_init" in text
    assert "try: look for" in text
    assert "last line: Multi-thread" in text
    assert report.phase("nothing") is None


def test_empty():
    """
    An empty log tells nothing, and that is said.
    """
    report = detect_phase("\n")

    assert report.framework is None
    assert report.current is None
    assert "No phase" in report.verdict
    assert "No phase" in str(report)
    assert report.percent is None
    assert report.left_s is None
    assert report.rate is None


def test_two_actors_died():
    """
    Each actor that died is a finding of its own, however often it is named.
    """
    death = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly\n"
        "\tclass_name: SglEngine\n\tpid: {}\n"
    )
    log = ["x\n" * 30, *(death.format(pid) + "x\n" * 30 for pid in (7, 8, 7))]

    report = detect_phase("".join(log))

    assert ["pid 7", "pid 8"] == [
        f.summary.split(",")[1].split(";")[0].strip() for f in report.findings
    ]


def test_engine_started_again():
    """
    An engine that is started again does not start the job again.
    """
    engine = (
        "(SglEngine pid=7) [2026-02-20 02:05:00] server_args=ServerArgs(x)"
    )

    report = detect_phase([ENGINE, engine, engine])

    assert 1 == report.attempt


def test_server_started_again():
    """
    A server that is started again in the same log is at its beginning.
    """
    log = [
        "INFO 05-24 14:27:36 [api_server.py:1043] vLLM API server version 0.8",
        "INFO 05-24 14:27:39 [core.py:77] Initializing a V1 LLM engine (v0.8)",
        "INFO 05-24 14:28:39 [gpu.py:77] Model loading took 3.2 GiB memory",
    ]

    report = detect_phase([*log, log[0]])

    assert (2, "engine") == (report.attempt, report.current.name)


def test_steps_begin_again():
    """
    If steps are counted again, the rate is that of the new count.
    """
    lines = [
        f"[2026-02-20 02:00:{second:02}] INFO step: {step} loss: 1.0"
        for second, step in ((0, 8), (1, 9), (10, 1), (20, 2))
    ]

    report = detect_phase(lines)

    assert 0.1 == pytest.approx(report.rate)


def test_harmless_in_several_logs(tmp_path):
    """
    Harmless lines of several logs are counted together.
    """
    for name in "ab":
        (tmp_path / f"{name}.log").write_text(
            "No available shared memory broadcast block found in 60 seconds\n"
        )

    report = detect_phase(tmp_path)

    assert 2 == report.harmless[0].count
    assert "harmless: vLLM's workers" in str(report)


def test_killed_before_all():
    """
    A job that ended before it told any phase still ended.
    """
    report = detect_phase(["x", "Killed"])

    assert "The job was killed." == report.verdict
    assert report.is_normal is False


def test_file_without_times(tmp_path):
    """
    A log that tells no time is as old as its file.
    """
    log = tmp_path / "job.log"
    log.write_text("colocated worker base class <class 'Worker'>\n")
    os.utime(log, (BEGUN, BEGUN))

    report = detect_phase(log, now=BEGUN + 900)

    assert 900 == report.silent_s
    assert "never register" in report.findings[0].summary


def test_inner_verdict():
    """
    What an engine inside is busy with stands in the verdict.
    """
    log = (
        "colocated worker base class <class 'Worker'>\n"
        "INFO 07-17 10:03:00 [gpu.py:2338] Starting to load model x\n"
        "Loading safetensors checkpoint shards:  25% Completed | 1/4 "
        "[00:10<00:30, 10.0s/it]\n"
    )

    report = detect_phase(log)

    assert (
        "starting the worker groups and initializing the models; inside it "
        "vllm: loading the model's weights, shards 25 % (1/4), about 30 s "
        "left."
    ) == report.verdict

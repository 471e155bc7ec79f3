"""
What is said of a start-up that takes long, and of what goes wrong.
"""

from __future__ import annotations

import json
import os

from datetime import datetime

import pytest

from distdebug.causes import Cause
from distdebug.logs import detect_phase


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
TRACE = ["Traceback (most recent call last):", "  File 'x'", "ValueError: no"]
SHARDS_40 = SHARDS.format(" 40%", 26)
SHARDS_100 = SHARDS.format("100%", 64)


TRAINS = "".join(
    f"[2026-02-20 02:{minute:02}:00] x INFO step: {minute}  loss: 1.0\n"
    for minute in (3, 4)
)
PROCESS_GROUP = (
    "[2026-02-20 02:04:00,000] [INFO] [comm.py:652:init_distributed] cdb=None\n"
    "[2026-02-20 02:04:00,100] [INFO] [comm.py:683:init_distributed] "
    "Initializing TorchBackend in DeepSpeed with backend nccl\n"
)


@pytest.mark.parametrize(
    ("log", "seconds", "phase", "words"),
    [
        (SHARDS_40, 60, "engine_init", "shards 40 % (26/64)"),
        (
            SHARDS_100,
            180,
            "engine_init",
            (
                "loading and starting the inference engines, shards 100 % "
                "(64/64), now KV cache and graph capture: silent for 3 min is "
                "normal, alarming after 10 min."
            ),
        ),
        (TRAINS, 600, "training", "training, step 4"),
    ],
    ids=["bar", "full", "steps"],
)
def test_silence_is_normal(log, seconds, phase, words):
    """
    A job may be silent for as long as its phase usually is, which the verdict
    says.
    """
    report = detect_phase(log, now=BEGUN + seconds)

    assert (True, ()) == (report.is_normal, report.findings)
    assert (phase, seconds) == (report.current.name, report.silent_s)
    assert words in report.verdict


@pytest.mark.parametrize(
    ("log", "seconds", "expected", "summary", "remedy"),
    [
        (SHARDS_40, 720, "engine_init likely", "file system is", "dmesg"),
        (SHARDS_100, 700, "engine_init possible", "CUDA graphs", "smi"),
        (PLACE, 200, "placement possible", "have not joined", "ray status"),
        (PROCESS_GROUP, 900, "process_group possible", "network", "_IFNAME"),
        (HEAD, 1200, "config_dataset likely", "printed for 20 min", ""),
        (TRAINS, 2000, "training possible", "", ""),
    ],
    ids=["bar", "full", "placement", "group", "between", "steps"],
)
def test_silence_is_too_long(log, seconds, expected, summary, remedy):
    """
    Beyond that, the finding says what is likely, and what to do.
    """
    report = detect_phase(log, now=BEGUN + seconds)

    (finding,) = report.findings
    assert report.is_normal is False
    assert (Cause.START_UP_STALLED, ()) == (finding.cause, finding.ranks)
    assert expected == f"{report.current.name} {finding.confidence}"
    assert summary in finding.summary
    assert remedy in finding.remedy
    assert f"line {log.count(chr(10))}" == finding.evidence[0].location


@pytest.mark.parametrize("options", [{}, {"now": BEGUN - 5000}])
def test_no_time_no_silence(options):
    """
    Without the time, or if the text is ahead of it, nothing is said about
    silence.
    """
    report = detect_phase(SHARDS_40, **options)

    assert (None, None) == (report.silent_s, report.is_normal)
    assert "silent" not in report.verdict
    assert () == report.findings


SLIME = "[2026-02-20 02:04:00] x.py:1 - Creating placement group with 16 GPUs"


@pytest.mark.parametrize(
    "log",
    [
        PLACE
        + "".join(
            f"[2026-02-20 02:{minute:02}:30] placement_group.py:155 INFO "
            "Ray cluster GPUs: 8/16\n"
            for minute in range(4, 12)
        ),
        (
            f"{SLIME}...\n"
            "[2026-02-20 02:14:00] x.py:1 - Waiting for placement group of 16 GPUs "
            "(elapsed 600s): 8 GPUs registered with Ray, 8 available.\n"
        ),
    ],
    ids=["torchspec", "slime"],
)
def test_placement_waits(log):
    """
    GPUs that do not come are reported, with how many are there.
    """
    (finding,) = detect_phase(log).findings

    assert "8 of 16 GPUs" in finding.summary
    assert "workers have not joined" in finding.summary
    assert "ray status" in finding.remedy


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


def test_harmless(tmp_path):
    """
    Harmless lines of all logs are counted, and are no finding.
    """
    metrics = (
        "(raylet) [2026-02-20 02:04:01,000 E 12 13] metrics.cc:1: Failed to "
        "establish connection to the metrics exporter agent. Metrics will not "
        "be exported.\n"
    )
    broadcast = (
        "No available shared memory broadcast block found in 60 seconds\n"
    )
    (tmp_path / "a.log").write_text(SHARDS_40 + metrics * 3 + broadcast)
    (tmp_path / "b.log").write_text(broadcast)

    report = detect_phase(tmp_path)

    assert () == report.findings
    assert {("metrics_exporter", 3), ("shared_memory_wait", 2)} == {
        (one.name, one.count) for one in report.harmless
    }
    assert "harmless: vLLM's workers" in str(report)


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
        "{'loss': 0.3, 'grad_norm': nan}",
        "(TaskRunner pid=3) {'train/loss': inf}",
    ],
    ids=[
        *("hf", "hf5", "titan", "megatron", "verl", "torchspec"),
        *("lightning", "nemo", "gradient", "slime"),
    ],
)
def test_loss_is_nan(line):
    """
    A loss that is not a number is found, however it is written.
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
    A bar that moves, but for much too long, is a finding.
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
        ("Training completed: 10 steps in 3.0s | avg", "completed"),
        ("\n".join(TRACE), "failed"),
        ("./run.sh: line 12:  4711 Killed            python x.py", "killed"),
        (
            (
                "slurmstepd: error: *** JOB 77 ON node-12 CANCELLED AT "
                "2026-02-20T03:00:00 DUE TO TIME LIMIT ***"
            ),
            "killed",
        ),
        ("srun: error: node-12: task 3: Exited with exit code 1", "failed"),
    ],
    ids=["completed", "exception", "killed", "slurm", "srun"],
)
def test_ended(text, how):
    """
    A log that ended is not called stalled.
    """
    report = detect_phase(f"{SHARDS_40}{text}\n", now=BEGUN + 90_000)

    assert how == report.ended
    assert Cause.START_UP_STALLED not in {f.cause for f in report.findings}
    assert (how == "completed") is report.is_normal


STEPS = [f"Training:  {n}%|x| {n}/100 [00:10<01:00, 1.0s/it]" for n in (3, 4)]


@pytest.mark.parametrize(
    ("lines", "percent"),
    [
        ([f"{PREFIX}{line}" for line in TRACE], 40),
        ([*TRACE, SHARDS_100.removeprefix(ENGINE)], 100),
        ([STEPS[0], "Terminated", STEPS[1]], 4),
    ],
    ids=["actor", "exception", "signal"],
)
def test_goes_on(lines, percent):
    """
    An exception in an actor, or what is followed by progress, is no end.
    """
    report = detect_phase([*SHARDS_40.splitlines(), *lines])

    assert report.ended is None
    assert percent == int(report.percent)


LOADS = "Loading checkpoint shards:  {}%|x| {}/4 [00:04<00:04,  2.01s/it]"
ENGINE_ARGS = (
    "(SglEngine pid=7) [2026-02-20 02:05:00] server_args=ServerArgs(x)"
)
SERVER = [
    "INFO 05-24 14:27:36 [api_server.py:1043] vLLM API server version 0.8",
    "INFO 05-24 14:27:39 [core.py:77] Initializing a V1 LLM engine (v0.8)",
    "INFO 05-24 14:28:39 [gpu.py:77] Model loading took 3.2 GiB memory",
]


@pytest.mark.parametrize(
    ("lines", "attempt", "phase"),
    [
        ([SHARDS_100, STEPS[0], SHARDS_40], 2, "engine_init"),
        (
            [
                *(LOADS.format(0, 0), LOADS.format(100, 4)),
                "{'loss': 1.2, 'grad_norm': 0.5}",
                (
                    "ERROR: torch.distributed.elastic.multiprocessing.errors."
                    "ChildFailedError:"
                ),
                *(LOADS.format(0, 0), LOADS.format(50, 2)),
            ],
            2,
            "shards",
        ),
        ([ENGINE, ENGINE_ARGS, ENGINE_ARGS], 1, "engine_init"),
        ([*SERVER, SERVER[0]], 2, "engine"),
    ],
    ids=["job", "after-the-end", "engine", "server"],
)
def test_attempts(lines, attempt, phase):
    """
    If a job was started again, the last attempt counts; an engine that is
    started again does not start the job again.
    """
    report = detect_phase("\n".join(lines))

    assert (attempt, phase) == (report.attempt, report.current.name)
    assert report.ended is None
    assert not any(x.state == "begun" and x.trains for x in report.phases)


@pytest.mark.parametrize(
    ("states", "folded", "percent"),
    [
        ([(2, 10), (3, 20), (2, 90), (3, 40), (2, 100)], "", 40),
        ([(2, 10), (3, 40), (2, 100)], " [repeated 3x across cluster]", 100),
    ],
    ids=["all", "folded"],
)
def test_slowest_engine(states, folded, percent):
    """
    Of several engines, the slowest shows how far they are, unless Ray leaves
    lines out, where a bar that stands still says nothing.
    """
    lines = [
        f"(SglEngine pid={pid}, ip=10.0.0.{pid}) Multi-thread loading shards: "
        f" {done}% Completed | {done}/100 [00:08<00:12,  2.0s/it]"
        for pid, done in states
    ]
    lines[1] += folded

    report = detect_phase([ENGINE, *lines])

    assert percent == report.percent


@pytest.mark.parametrize(
    ("text", "written", "now", "silent"),
    [
        (ENGINE, 8 * 3600, 8 * 3600 + 30, 30),
        (ENGINE, -7 * 3600, -7 * 3600 + 30, 30),
        (ENGINE, 15, 30, 30),
        (ENGINE, 5000, 5010, 5010),
        (SHARDS_40, 1000, 1030, 30),
        (SHARDS_40, 1 << 29, 120, 120),
        ("colocated worker base class <class 'Worker'>\n", 0, 900, 900),
    ],
    ids=["east", "west", "same", "copied", "bar", "younger", "no-times"],
)
def test_age_of_a_file(tmp_path, text, written, now, silent):
    """
    The clock of the text may be that of another zone, and a bar shows no
    time, but that of the file is right, unless it was copied.
    """
    log = tmp_path / "job.log"
    log.write_text(text)
    os.utime(log, (BEGUN + written, BEGUN + written))

    report = detect_phase(log, now=BEGUN + now)

    assert silent == report.silent_s


def test_bar_tells_how_long_it_ran():
    """
    A bar without a time is dated by how long it has run.
    """
    bar = SHARDS.removeprefix(ENGINE).replace("00:00<?, ?", "{}<01:00,  4.8s")
    log = bar.format("  0%", 0, "00:00") + bar.format(" 50%", 32, "05:00")

    report = detect_phase(ENGINE + log, now=BEGUN + 360)

    assert 60 == report.silent_s


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
    The verdict about an empty log is that no phase was found.
    """
    report = detect_phase("\n")

    assert report.framework is None
    assert report.current is None
    assert "No phase" in report.verdict
    assert "No phase" in str(report)
    assert report.percent is None
    assert report.left_s is None
    assert report.rate is None


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

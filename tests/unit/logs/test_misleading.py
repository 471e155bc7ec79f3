"""
Logs that look like something that they are not.
"""

from __future__ import annotations

import pytest

from distdebug.logs import detect_phase


@pytest.mark.parametrize(
    ("lines", "phase", "percent"),
    [
        (
            [
                "Collecting torch",
                "   ━━━━━━━━━━━━━━━━━━━━━━ 12.3/45.6 MB 10.2 MB/s eta 0:00:03",
                "  0  100M    0   99k    0     0  80012      0  0:21:50",
                " 40% [=====>         ] 40,000,000  1.20M/s",
                "100%|██████████| 45.6M/45.6M [00:04<00:00, 10.2MB/s]",
                "tokenizer.json: 100%|██████████| 9.09M/9.09M [00:00<00:00]",
            ],
            None,
            None,
        ),
        (
            [
                "Sanity Checking DataLoader 0:  50%|█| 1/2 [00:01<00:01]",
                "Epoch 1:  40%|█| 40/100 [00:40<01:00, 1.0it/s, v_num=3]",
                "Validation DataLoader 0:  90%|█| 9/10 [00:09<00:01, 1.0it/s]",
                "Evaluating: 100%|█████| 10/10 [00:09<00:00, 1.0it/s]",
                "Processed prompts:  70%|███| 7/10 [00:09<00:01, 1.0it/s]",
            ],
            "training",
            40,
        ),
        ([" 40%|████      | 4/10 [00:08<00:12,  2.00s/it]"], None, None),
    ],
    ids=["downloads", "evaluation", "nameless"],
)
def test_other_bars(lines, phase, percent):
    """
    Bars of downloads and of evaluations are not those of training, and a bar
    without a name may count anything.
    """
    report = detect_phase(lines)

    assert report.framework is None
    assert phase == (report.current and report.current.name)
    assert percent == report.percent


def test_other_frameworks_in_the_configuration():
    """
    What a configuration names does not run.
    """
    log = [
        "[rank0]:[titan] 2026-03-01 08:00:00,001 - root - INFO - Starting job: x",
        (
            "[rank0]:[titan] 2026-03-01 08:00:09,001 - root - INFO - Building "
            "device mesh with parallelism: pp=1, dp_shard=8"
        ),
        "{'rollout': {'name': 'vllm', 'engine': 'sglang'}, 'trainer': 'verl',",
        "  'banner': 'The server is fired up and ready to roll!',",
        "  'text': '***** Running training *****', 'backend': 'megatron',",
        "  'note': \"colocated worker base class is TaskRunner hostname: x\"}",
    ]

    report = detect_phase(log)

    assert "torchtitan" == report.framework
    assert "job" == report.current.name
    assert report.inner is None


@pytest.mark.parametrize(
    "line",
    [
        "assistant: The server is fired up and ready to roll!",
        "we saw Training completed",
        "assistant: Training completed",
        '"Training completed',
        "the value: 'Training completed'",
        "{'a': 1, 'text': 'Training completed'}",
        "x " * 200 + "Training completed",
        'Sample: "Traceback (most recent call last)" RayActorError',
        "user: Training completed: 30 steps in 3.0s",
        "prompt: [INFO] Starting job: build the house",
        "{'response': 'Load weight begin. avail mem=3 GB'}",
        "the loss is nan-free and ***** Running training *****",
    ],
)
def test_chat(line):
    """
    What models say is not what their framework prints.
    """
    report = detect_phase([line])

    assert report.current is None
    assert report.ended is None
    assert () == report.findings


@pytest.mark.parametrize(
    "before",
    [
        "",
        "2026-02-20T02:03:57.123456789Z stdout F ",
        "[2026-02-20 02:03:57] train.py:12 INFO ",
        "INFO 02-20 02:03:57 [core.py:77] ",
        "INFO:megatron.core.datasets.gpt_dataset:",
        "02/20/2026 02:03:57 - INFO - __main__ - ",
        "2026-08-01 10:00:00.123 | INFO     | skyrl_train.worker:f:606 - ",
        "[INFO|trainer.py:2414] 2025-06-01 10:00:00,123 >> ",
        "[2026-02-20 02:03:57,123] [INFO] [comm.py:652:init] [Rank 3] ",
        "2026-02-20 02:03:57 my.module WARNING ",
        "Fri Feb 20 02:03:57 2026 node-3 : ",
        "[1,3]<stdout>:",
        "  • ",
        "I0220 02:03:57.123 4711 main.cc:3] ",
    ],
)
def test_begins(before):
    """
    A message begins behind what loggers write.
    """
    report = detect_phase([f"{before}Training completed"])

    assert "completed" == report.ended


def test_junk():
    """
    Bytes that are no text do no harm.
    """
    report = detect_phase(
        ["\x00\x1b]0;\x07", "\udcff\ufffd %|| % /", "━" * 300]
    )

    assert report.current is None


def test_hostile_lines_end():
    """
    Long lines of what bars are made of take no long time.
    """
    lines = [
        "40%|" * 10_000,
        "━ " * 30_000,
        "1%" + " " * 60_000,
        "=+" * 30_000 + " Step 1/2 =",
        "a: " * 20_000 + "loss: nan",
        "Loading " * 8_000,
        "[" * 60_000 + "step: 1 loss",
    ]

    report = detect_phase(lines)

    assert report.framework is None


@pytest.mark.parametrize(
    ("framework", "phase", "lines"),
    [
        (
            "huggingface",
            "training",
            [
                "Loading checkpoint shards: 100%|█| 4/4 [00:08<00:00,  2.01s/it]",
                "  5%|▌    | 10/200 [00:20<06:20,  2.00s/it]",
            ],
        ),
        (
            None,
            "training",
            [
                "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8",
                "All distributed processes registered. Starting with 8 processes",
                "Epoch 0:  12%|█▏   | 12/100 [00:12<01:28,  1.00it/s, v_num=0]",
            ],
        ),
        (
            None,
            "process_group",
            ["Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8"],
        ),
        (
            None,
            "extensions",
            [
                "Detected CUDA files, patching ldflags",
                "Building extension module fused_adam...",
            ],
        ),
        (
            None,
            "training",
            [
                (
                    "[2026-02-20 02:04:00,100] [INFO] [logging.py:96:log_dist] "
                    "[Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]"
                ),
            ],
        ),
        (
            None,
            "training",
            ["1|10|Loss: 1.23:  10%|█   | 10/100 [00:20<03:00]"],
        ),
        (None, "training", ["epoch 3 step 130/1000 loss 1.22"]),
        (None, "training", ["[2026-02-20 02:05:00] Step 130 | loss: 1.2"]),
        (
            None,
            "nccl",
            ["n1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"],
        ),
        (
            "huggingface",
            "dataset",
            [
                "Tokenizing train dataset (num_proc=4):  30%|█| 3/10 [00:01<00:02]"
            ],
        ),
        (
            None,
            "rendezvous",
            [
                (
                    "INFO:torch.distributed.launcher.api:Starting elastic_operator "
                    "with launch configs:"
                ),
            ],
        ),
    ],
    ids=[
        *("quiet-hf", "lightning", "lightning-waits", "deepspeed-builds"),
        *("deepspeed", "torchtune", "epochs", "steps", "nccl", "trl"),
        "torchrun",
    ],
)
def test_unknown(framework, phase, lines):
    """
    Where little or nothing shows the framework, the phase is still found.
    """
    report = detect_phase(lines)

    assert (framework, phase) == (report.framework, report.current.name)


def test_bars_of_evaluation_have_no_name_either():
    """
    Of bars without names, those that count other things are not training.
    """
    bar = "{:3}%|█    | {}/{} [00:20<06:20,  2.00s/it]"
    lines = [
        "Loading checkpoint shards: 100%|█| 4/4 [00:08<00:00,  2.01s/it]",
        *(bar.format(100, 7, 7), bar.format(1, 2, 200)),
        "{'loss': 1.2, 'grad_norm': 0.5, 'epoch': 0.05}",
        *(bar.format(5, 10, 200), bar.format(50, 4, 8)),
        bar.format(100, 8, 8),
    ]

    report = detect_phase(lines)

    assert (10, 200) == (report.progress.done, report.progress.total)

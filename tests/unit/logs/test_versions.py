"""
Logs of other versions, with other prefixes, cut at other moments.
"""

from __future__ import annotations

import time

import pytest

from distdebug.logs import detect_phase


# Each with whose it is, the current phase, what goes on inside, and the steps.
LOGS = {
    "openrlhf-engines-only": (
        r"""
2025-03-01 10:00:00,378	INFO worker.py:1694 -- Using address 10.0.1.4:6379 set in the environment variable RAY_ADDRESS
(LLMRayActor pid=595, ip=10.0.1.5) INFO 03-01 10:00:21 [core.py:69] Initializing a V1 LLM engine (v0.8.5) with config: model='m'
(LLMRayActor pid=595, ip=10.0.1.5) INFO 03-01 10:00:31 [gpu_model_runner.py:1770] Starting to load model m...
(LLMRayActor pid=595, ip=10.0.1.5) Loading safetensors checkpoint shards:   0% Completed | 0/8 [00:00<?, ?it/s]
Loading safetensors checkpoint shards:  25% Completed | 2/8 [00:04<00:12,  2.0s/it]
""",
        ("openrlhf", "engines", "load_weights", (2, 8)),
    ),
    "openrlhf-no-emoji": (
        r"""
(PolicyModelActor pid=59701) [2025-02-21 10:01:11,289] [INFO] [comm.py:689:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl
(PPOTrainer pid=1) Episode [1/2]:   0%|          | 0/40 [00:00<?, ?it/s]
(PPOTrainer pid=1) Generate samples: 100%|##########| 64/64 [01:00<00:00,  1.0it/s]
(PPOTrainer pid=1) 2025-02-21 10:03:11.000 INFO experience_maker - Starting experience making with 64 samples
""",
        ("openrlhf", "training", "logprobs", (0, 40)),
    ),
    "verl-old-main-task": (
        r"""
2025-04-02 00:05:00,000	INFO worker.py:1841 -- Started a local Ray instance.
(main_task pid=163292) Size of train dataloader: 176
(main_task pid=163292) Size of val dataloader: 28
(main_task pid=163292) Total training steps: 35
(WorkerDict pid=163711) Model config after override: Qwen2Config {
(WorkerDict pid=163711) Loading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]
(WorkerDict pid=163711) Loading checkpoint shards:  75%|███████▌  | 3/4 [00:06<00:02,  2.0s/it]
""",
        ("verl", "workers", "shards", (3, 4)),
    ),
    "verl-update": (
        r"""
(TaskRunner pid=1) Size of train dataloader: 7, Size of val dataloader: 1
(TaskRunner pid=1) colocated worker base class <class 'Worker'>
(TaskRunner pid=1) Training Progress:   2%|▏         | 2/105 [03:00<2:30:00, 90.0s/it]
(WorkerDict pid=7) INFO:2025-08-24 10:00:00,001:Before generate_sequences, memory allocated (GB): 10.1
(WorkerDict pid=7) INFO:2025-08-24 10:00:40,001:After generate_sequences, memory allocated (GB): 10.1
(WorkerDict pid=7) INFO:2025-08-24 10:00:41,001:Before compute_log_prob, memory allocated (GB): 10.1
(WorkerDict pid=7) INFO:2025-08-24 10:00:48,001:After compute_log_prob, memory allocated (GB): 10.1
(WorkerDict pid=7) INFO:2025-08-24 10:00:50,001:Before update policy, memory allocated (GB): 10.1
""",
        ("verl", "training", "update", (2, 105)),
    ),
    "slime-sync": (
        r"""
[2025-12-05 10:00:03] placement_group.py:152 - Creating placement group with 8 GPUs...
(RolloutManager pid=13011, ip=10.1.2.3) [2025-12-05 10:00:07] http_utils.py:151 - Launch router with args: RouterArgs(port=3411)
(RolloutManager pid=13011, ip=10.1.2.3) Rollout generation: 100%|██████████| 256/256 [01:19<00:00,  3.2it/s]
(RolloutManager pid=13011, ip=10.1.2.3) [2025-12-05 10:05:06] rollout.py:512 - perf 0: {'perf/rollout_time': 79.4}
(MegatronTrainRayActor pid=140, ip=10.1.2.3) [2025-12-05 10:05:07] timer.py:24 - Timer actor_train start
(MegatronTrainRayActor pid=140, ip=10.1.2.3) [2025-12-05 10:05:47] timer.py:32 - Timer actor_train end (elapsed: 40.0s)
(MegatronTrainRayActor pid=140, ip=10.1.2.3) [2025-12-05 10:05:48] timer.py:24 - Timer update_weights start
(MegatronTrainRayActor pid=140, ip=10.1.2.3) Update weights:  20%|██        | 3/15 [00:01<00:04,  3.0it/s]
""",
        ("slime", "training", "resync", (3, 15)),
    ),
    "slime-first-sync": (
        r"""
(MegatronTrainRayActor pid=140, ip=10.1.2.3)  loading distributed checkpoint from /m at iteration 1
(MegatronTrainRayActor pid=140, ip=10.1.2.3)   successfully loaded checkpoint from /m [ t 1/2, p 1/1 ] at iteration 0
(MegatronTrainRayActor pid=140, ip=10.1.2.3) [2025-12-05 10:03:48] timer.py:24 - Timer train_wait start
(MegatronTrainRayActor pid=140, ip=10.1.2.3) [2025-12-05 10:03:49] timer.py:24 - Timer update_weights start
""",
        ("slime", "sync", None, None),
    ),
    "nemo-logprobs": (
        r"""
▶ Setting up compute cluster...
  ✓ Ray cluster for policy initialized with 1 nodes
(VllmGenerationWorker pid=7) INFO 08-21 11:02:02 [core.py:172] init engine (profile, create kv cache, warmup model) took 41.21 seconds

============================================================
                  SETUP COMPLETE
============================================================

========================= Step 3/100 =========================
▶ Preparing batch...
▶ Generating responses for batch of size 2048...
(VllmGenerationWorker pid=7) Processed prompts:  50%|#####     | 512/1024 [00:10<00:10,  51.0it/s]
▶ Processing rewards...
▶ Computing advantages...
▶ Computing logprobs...
""",
        ("nemo_rl", "training", "logprobs", (3, 100)),
    ),
    "nemo-sft": (
        r"""
▶ Setting up data...
▶ Setting up compute cluster...
▶ Setting up model...
(DTensorPolicyWorkerV2 pid=70111) Loading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]
(DTensorPolicyWorkerV2 pid=70111) Loading checkpoint shards:  25%|██        | 1/4 [00:02<00:06,  2.00s/it]
""",
        ("nemo_rl", "model", "shards", (1, 4)),
    ),
    "skyrl-generation": (
        r"""
(skyrl_entrypoint pid=77) Total steps: 290
(skyrl_entrypoint pid=77) 2025-10-01 10:01:35.054 | INFO     | skyrl_train.trainer:build_models:590 - init policy/ref/critic models done
(skyrl_entrypoint pid=77) 2025-10-01 10:02:22.329 | INFO     | skyrl_train.utils.utils:__enter__:46 - Started: 'step'
(skyrl_entrypoint pid=77) 2025-10-01 10:02:22.918 | INFO     | skyrl_train.utils.utils:__enter__:46 - Started: 'generate'
(skyrl_entrypoint pid=77) Generating Trajectories:   0%|          | 0/1280 [00:00<?, ?it/s]
Generating Trajectories:  10%|█         | 128/1280 [00:20<03:00,  6.4it/s]
""",
        ("skyrl", "training", "generation", (128, 1280)),
    ),
    "skyrl-train": (
        r"""
(skyrl_entrypoint pid=77) 2025-10-01 10:02:22.329 | INFO     | skyrl_train.utils.utils:__enter__:46 - Started: 'step'
(skyrl_entrypoint pid=77) 2025-10-01 10:02:22.918 | INFO     | skyrl_train.utils.utils:__enter__:46 - Started: 'generate'
(skyrl_entrypoint pid=77) 2025-10-01 10:02:44.380 | INFO     | skyrl_train.utils.utils:__exit__:52 - Finished: 'generate', time cost: 21.49s
(skyrl_entrypoint pid=77) 2025-10-01 10:02:51.470 | INFO     | skyrl_train.utils.utils:__enter__:46 - Started: 'train_critic_and_policy'
(FSDPPolicyWorkerBase pid=78) Policy Train epoch [1/1]:  40%|████      | 4/10 [00:04<00:06,  1.0s/it, pg=0.1]
""",
        ("skyrl", "training", "update", (4, 10)),
    ),
    "vllm-core-prefix": (
        r"""
(APIServer pid=11980) INFO 02-12 19:33:31 [api_server.py:1272] vLLM API server version 0.15.1
(APIServer pid=11980) INFO 02-12 19:33:41 [vllm.py:624] Asynchronous scheduling is enabled.
(EngineCore_DP0 pid=12321) INFO 02-12 19:34:53 [core.py:96] Initializing a V1 LLM engine (v0.15.1) with config: model='m', tensor_parallel_size=2
(Worker_TP0 pid=12400) INFO 02-12 19:35:10 [gpu_model_runner.py:3808] Starting to load model m...
(Worker_TP0 pid=12400) Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:09<00:00,  2.25s/it]
(Worker_TP0 pid=12400) INFO 02-12 19:35:25 [gpu_model_runner.py:3905] Model loading took 7.5 GiB memory and 12.2 seconds
(EngineCore_DP0 pid=12321) INFO 02-12 19:36:00 [kv_cache_utils.py:1305] GPU KV cache size: 405,008 tokens
(Worker_TP0 pid=12400) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|█         | 5/51 [00:01<00:09,  5.0it/s]
""",
        ("vllm", "cuda_graphs", None, (5, 51)),
    ),
    "vllm-second-graphs": (
        r"""
INFO 02-12 19:34:53 [core.py:96] Initializing a V1 LLM engine (v0.11.0) with config: model='m'
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##########| 51/51 [00:09<00:00,  5.5it/s]
Capturing CUDA graphs (decode, FULL):   6%|6         | 2/35 [00:00<00:06,  5.0it/s]
""",
        ("vllm", "cuda_graphs", None, (2, 35)),
    ),
    "sglang-draft": (
        r"""
[2025-11-01 10:00:01] server_args=ServerArgs(model_path='m', speculative_algorithm='EAGLE3')
[2025-11-01 10:00:10 TP0] Load weight begin. avail mem=78.61 GB
Multi-thread loading shards: 100% Completed | 30/30 [02:12<00:00,  4.4s/it]
[2025-11-01 10:02:30 TP0] Load weight end. type=Qwen3, avail mem=21.90 GB.
[2025-11-01 10:02:31 TP0] Load weight begin. avail mem=20.61 GB
Multi-thread loading shards:  50% Completed | 1/2 [00:02<00:02,  2.0s/it]
""",
        ("sglang", "load_weights", None, (1, 2)),
    ),
    "torchtitan-resumed": (
        r"""
[titan] 2025-06-02 10:00:04,001 - root - INFO - torchtitan version: 0.2.1 (0.0.0 means __version__ is not defined correctly).
[titan] 2025-06-02 10:00:23,842 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)
[titan] 2025-06-02 10:00:24,042 - root - INFO - Loading the checkpoint from ./outputs/checkpoint/step-500.
[titan] 2025-06-02 10:00:54,042 - root - INFO - Finished loading the checkpoint in 30.00 seconds.
[titan] 2025-06-02 10:00:54,246 - root - INFO - Training starts at step 501
""",
        ("torchtitan", "training", None, (500, 1000)),
    ),
    "megatron-data": (
        r"""
using world size: 64, data-parallel size: 8, tensor-model-parallel size: 8, pipeline-model-parallel size: 1
> setting random seeds to 1234 ...
[after megatron is initialized] datetime: 2025-01-20 10:01:00
[after model, optimizer, and learning rate scheduler are built] datetime: 2025-01-20 10:02:00
> building train, validation, and test datasets for GPT ...
""",
        ("megatron", "data", None, None),
    ),
    "hf-verbose": (
        r"""
06/02/2025 10:00:00 - WARNING - __main__ - Process rank: 0, device: cuda:0, n_gpu: 1, distributed training: True, 16-bits training: False
[INFO|configuration_utils.py:715] 2025-06-02 10:00:01,100 >> loading configuration file config.json from cache at /c/config.json
[INFO|modeling_utils.py:3941] 2025-06-02 10:00:03,100 >> loading weights file model.safetensors from cache at /c/model.safetensors.index.json
Loading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]
Loading checkpoint shards:  50%|█████     | 2/4 [00:04<00:04,  2.0s/it]
""",
        ("huggingface", "shards", None, (2, 4)),
    ),
    "hf-step-0": (
        r"""
Loading checkpoint shards: 100%|██████████| 4/4 [00:08<00:00,  2.0s/it]
Map: 100%|██████████| 1000/1000 [00:01<00:00, 900.00 examples/s]
  0%|          | 0/1000 [00:00<?, ?it/s]
""",
        ("huggingface", "training", None, (0, 1000)),
    ),
    "hf-told-only": (
        r"""
[INFO|trainer.py:2409] 2025-06-02 10:03:01,100 >> ***** Running training *****
[INFO|trainer.py:2410] 2025-06-02 10:03:01,100 >>   Num examples = 8,000
[INFO|trainer.py:2411] 2025-06-02 10:03:01,100 >>   Num Epochs = 1
[INFO|trainer.py:2416] 2025-06-02 10:03:01,100 >>   Total optimization steps = 1,000
""",
        ("huggingface", "training", None, (0, 1000)),
    ),
    "accelerate": (
        r"""
06/02/2025 10:00:00 - INFO - __main__ - Distributed environment: DistributedType.MULTI_GPU  Backend: nccl
Num processes: 8
Process index: 0
06/02/2025 10:01:00 - INFO - __main__ - ***** Running training *****
06/02/2025 10:01:00 - INFO - __main__ -   Num examples = 2048
06/02/2025 10:01:00 - INFO - __main__ -   Total optimization steps = 384
  1%|          | 3/384 [00:06<12:00,  1.9s/it]
""",
        ("huggingface", "training", None, (3, 384)),
    ),
    "torchspec-engine-log": (
        r"""
:actor_name:SglEngine
[2026-02-20 02:05:03] sgl_engine.py:101 INFO SglEngine rank 0: BEFORE init
[2026-02-20 02:05:10 TP0] Load weight begin. avail mem=78.61 GB
Multi-thread loading shards:  40% Completed | 26/64 [02:10<03:10,  5.0s/it]
""",
        ("torchspec", "engine_init", "load_weights", (26, 64)),
    ),
    "unknown-weights-of": (
        r"""
2025-04-05 12:00:01,100 INFO mytrainer.io Loading model weights: 3/12 files
2025-04-05 12:00:31,100 INFO mytrainer.io Loading model weights: 4/12 files
""",
        (None, "shards", None, (4, 12)),
    ),
    "unknown-loaded": (
        r"""
2025-04-05 12:00:01 | INFO | Loaded 17 of 30 checkpoint shards (41.2 GB)
""",
        (None, "shards", None, (17, 30)),
    ),
    "unknown-silent-model": (
        r"""
2025-04-05 12:00:01 INFO Loading base model from /models/llama
""",
        (None, "model", None, None),
    ),
}


CARRIERS = {
    "none": "",
    "srun": "12: ",
    "srun of many tasks": " 3: ",
    "mpirun": "[1,0]<stdout>:",
    "kubectl": "[pod/trainer-0/main] ",
    "compose": "trainer-1  | ",
    "journald": "Nov 22 03:52:01 host python[123]: ",
    "docker": "2025-11-22T03:52:01.123456789Z ",
    "containerd": "2025-11-22T03:52:01.123456789Z stderr F ",
}


def summary(report):
    """
    Framework, phase, what goes on inside, and steps.
    """
    progress = report.progress
    return (
        report.framework if report.framework != "common" else None,
        report.current and report.current.name,
        report.inner and report.inner.name,
        progress and (progress.done, progress.total),
    )


def read(name, **options):
    """
    What is found in a log, and what is expected of it.
    """
    text, expected = LOGS[name]
    return detect_phase(text.strip("\n") + "\n", **options), expected


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", LOGS)
def test_carried(name, carrier):
    """
    Framework, phase, what goes on inside, and steps are found in each log,
    whatever carries its lines.
    """
    text, expected = LOGS[name]
    lines = [CARRIERS[carrier] + x for x in text.strip("\n").split("\n")]

    report = detect_phase(lines)

    assert expected == summary(report)


def test_time_of_a_carrier(tmp_path):
    """
    The time that a carrier writes is that of the line.
    """
    log = tmp_path / "pod.log"
    mark = CARRIERS["containerd"]
    log.write_text(
        f"{mark}Loading checkpoint shards:  50%|5| 2/4 [00:04<00:04]"
    )

    report = detect_phase(log)

    assert 1763783521 == pytest.approx(report.last_time, abs=1)


@pytest.mark.parametrize("name", LOGS)
def test_healthy_versions(name):
    """
    Nothing is found in them, nor after a minute of silence.
    """
    told, _ = read(name)

    report, _ = read(name, now=(told.last_time or 0.0) + 60)

    assert ((), ()) == (told.findings, report.findings)
    assert report.is_normal is (True if told.last_time else None)


STEP = r"""
[2025-12-05 10:00:03] placement_group.py:152 - Creating placement group with 8 GPUs...
(MegatronTrainRayActor pid=140) [2025-12-05 10:05:47] model.py:612 - step 7: {'train/loss': 0.1}
(RolloutManager pid=13) [2025-12-05 10:06:00] rollout.py:10 - next
(RolloutManager pid=13) Rollout generation:  20%|██        | 50/250 [00:50<03:20,  1.0it/s]
"""


@pytest.mark.parametrize(
    ("minutes", "causes"), [(30, []), (50, ["start_up_stalled"])]
)
def test_part_stalls(minutes, causes):
    """
    A part of a step may be silent as long as training may.
    """
    last = detect_phase(STEP).last_time

    report = detect_phase(STEP, now=last + minutes * 60)

    assert causes == [str(finding.cause) for finding in report.findings]
    assert "now generating samples" in report.verdict
    assert (50, 250) == (report.progress.done, report.progress.total)


def test_part_comes_again():
    """
    A part that comes again counts from the beginning; the others are over.
    """
    again = STEP + (
        "(MegatronTrainRayActor pid=140) [2025-12-05 10:08:00] timer.py:24 - "
        "Timer actor_train start\n"
        "(RolloutManager pid=13) Rollout generation:   4%|4| 10/250 [00:10<]\n"
    )

    report = detect_phase(again)

    assert "generation" == report.inner.name
    assert 10 == report.progress.done
    assert "done" == report.phase("update").state


def test_part_before_the_whole():
    """
    What only a step has is no step before the training has begun.
    """
    log = (
        "(RolloutManager pid=1) [2025-12-05 10:05:07] a.py:1 - Launch router x\n"
        "(MegatronTrainRayActor pid=2) [2025-12-05 10:05:09] timer.py:24 - "
        "Timer train_wait start\n"
    )

    report = detect_phase(log)

    assert "engines" == report.current.name
    assert report.inner is None
    assert report.phase("generation") is None


def test_unsigned_bars_of_two():
    """
    Bars that Ray signed only once go on, also those of two actors.
    """
    bar = (
        "Loading safetensors checkpoint shards: {}% Completed | {}/10 [00:01<]"
    )
    signed = [f"(LLMRayActor pid={pid}) {bar.format(0, 0)}" for pid in (1, 2)]
    unsigned = [bar.format(n * 10, n) for n in (3, 3, 5, 4)]

    report = detect_phase([*signed, *unsigned])

    assert 4 == report.progress.done


def test_unsigned_bar_again():
    """
    A bar that begins again without a name takes the place of the one before.
    """
    bar = (
        "Loading safetensors checkpoint shards: {}% Completed | {}/10 [00:01<]"
    )
    lines = [f"(LLMRayActor pid=1) {bar.format(60, 6)}", bar.format(0, 0)]

    report = detect_phase(lines)

    assert 0 == report.progress.done


@pytest.mark.parametrize(
    "line",
    [
        "INFO Loading training data shard 3/64",
        "INFO Reading dataset shard 3/64 done",
        "INFO saving checkpoint shard 3/64",
        "INFO request 3/64 done",
    ],
)
def test_no_weights(line):
    """
    Shards of data, and what is saved, are not taken for weights.
    """
    report = detect_phase([f"2025-04-05 12:00:00 {line}"])

    assert report.phase("shards") is None or not report.phase("shards").line


def test_unknown_at_100():
    """
    Weights of an unknown framework that are all loaded are followed by
    silence, but not for ever.
    """
    log = [f"2025-04-05 12:00:0{n} [my] shard {n}/9 loaded" for n in range(10)]
    last = detect_phase(log).last_time

    reports = [detect_phase(log, now=last + s) for s in (500, 5400)]

    assert [(), ("start_up_stalled",)] == [
        tuple(str(finding.cause) for finding in report.findings)
        for report in reports
    ]
    assert 100 == reports[0].percent


@pytest.mark.parametrize("word", ["loading ", "shard ### ", "loading model "])
def test_long_lines(word):
    """
    Patterns are tried where a message begins, not all along a huge line.
    """
    lines = [word * (60_000 // len(word)) + "shard 3/9 loaded"] * 20
    began = time.process_time()

    detect_phase(lines)

    assert 5 > time.process_time() - began

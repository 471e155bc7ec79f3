"""
The phases of each framework, on logs as it writes them.
"""

from __future__ import annotations

import pytest

from distdebug.logs import detect_phase


TORCHSPEC = r"""
[2026-02-20 02:03:57] train_entry.py:120 INFO Resolved config:
model:
  target_model_path: moonshotai/Kimi-K2.5
@config_dataset
[2026-02-20 02:04:00] placement_group.py:121 INFO Connected to Ray cluster at auto
[2026-02-20 02:04:00] placement_group.py:150 INFO Waiting for 24 GPUs (currently 16), timeout=300s...
[2026-02-20 02:04:05] placement_group.py:155 INFO Ray cluster GPUs: 16/24
@placement
[2026-02-20 02:04:10] placement_group.py:155 INFO Ray cluster GPUs: 24/24
[2026-02-20 02:04:10] placement_group.py:157 INFO All 24 GPUs available
[2026-02-20 02:04:11] placement_group.py:200 INFO Creating training placement group first (placement_strategy=training_first)...
[2026-02-20 02:04:13] placement_group.py:101 INFO   bundle    0, actual_bundle_index:    3, node: 10.0.0.1, gpu: 0
[2026-02-20 02:04:13] placement_group.py:210 INFO Creating inference placement group...
@placement
[2026-02-20 02:04:14] placement_group.py:101 INFO   bundle    0, actual_bundle_index:    0, node: 10.0.0.2, gpu: 0
[2026-02-20 02:04:15] utils.py:55 INFO Auto-resolved mooncake master_server_address: 10.0.0.1:50051
@mooncake
[2026-02-20 02:04:18] utils.py:90 INFO mooncake master actor started
(AsyncTrainingController pid=881) [2026-02-20 02:05:00] training_controller.py:88 INFO Controller loaded dataset: 52,000 samples
[2026-02-20 02:05:01] train_entry.py:270 INFO Dataset loaded on controller: 52000 train, 500 eval
[2026-02-20 02:05:02] factory.py:300 INFO Preparing sgl inference engines
[2026-02-20 02:05:03] train_entry.py:330 INFO Waiting for 2 training actors and 2 inference engines to initialize in parallel...
(TrainerActor pid=901) [2026-02-20 02:05:20 RANK:0] trainer.py:60 INFO [Rank 0] Device mesh (1D): DeviceMesh('cuda', [0, 1])
(TrainerActor pid=901) [2026-02-20 02:05:24 RANK:0] eagle3_trainer.py:99 INFO Draft model: 2,331,234,304 trainable parameters
(TrainerActor pid=901) [2026-02-20 02:05:40 RANK:0] eagle3_trainer.py:150 INFO [Rank 0] Eagle3 model initialized with FSDP2
(SglEngine pid=514428, ip=10.0.0.2) Multi-thread loading shards:   5% Completed | 3/64 [00:15<04:50,  4.8s/it]
(SglEngine pid=514428, ip=10.0.0.2) Multi-thread loading shards:  40% Completed | 26/64 [02:10<03:10,  5.0s/it]
@engine_init 40
(SglEngine pid=514428, ip=10.0.0.2) Multi-thread loading shards: 100% Completed | 64/64 [05:20<00:00,  5.0s/it]
@engine_init 100
(TrainerActor pid=902) [2026-02-20 02:10:40 RANK:1] eagle3_trainer.py:150 INFO [Rank 1] Eagle3 model initialized with FSDP2
(SglEngine pid=514428, ip=10.0.0.2) [2026-02-20 02:12:40] sgl_engine.py:210 INFO SglEngine rank 0: initialized from /models/kimi
@engine_init
[2026-02-20 02:13:00] train_entry.py:338 INFO All 2 training actors and 2 inference engines initialized
@queues
[2026-02-20 02:13:03] train_entry.py:93 INFO Initialization timing:
  Create controller                                    0.41s
  Dataset loading                                     60.10s  (blocked 40.20s)
  Actor initialization                               478.00s  (blocked 477.10s)
  ─────────────────────────────────────────────────────────
  Total                                              546.12s
[2026-02-20 02:13:05] loop.py:300 INFO Starting: num_steps=1000, num_epochs=1, steps_per_epoch=1000, global_batch_size=8, accumulation_steps=1, dp_size=8, per_dp_rank_batch_size=1
@training
Training:   0%|          | 0/1000 [00:00<?, ?step/s]
Training:   3%|▎         | 30/1000 [01:00<32:20,  2.00s/step, loss=3.210, acc=0.211, epoch=1/1]
@training 3
"""

TORCHSPEC_OLD = r"""
[2026-01-10 12:00:00] train_entry.py:100 INFO Resolved config:
[2026-01-10 12:00:09] train_entry.py:140 INFO Added 2000 samples to controller
@config_dataset
[2026-01-10 12:00:10] placement_group.py:88 INFO Creating unified placement group with 8 GPUs...
@placement
[2026-01-10 12:00:14] placement_group.py:101 INFO   bundle    0, actual_bundle_index:    0, node: 10.0.0.1, gpu: 0
[2026-01-10 12:00:15] placement_group.py:120 INFO Placement (strategy=PACK): training=4 inference=4
[2026-01-10 12:00:16] utils.py:55 INFO Auto-resolved mooncake master_server_address: 10.0.0.1:50051
@mooncake
(TrainerActor pid=5) [2026-01-10 12:01:00] trainer.py:60 INFO [Rank 0] Device mesh (1D): 4
@trainer_init
(SglEngine pid=9) Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:04<00:04,  2.01s/it]
@engine_init 50
"""

NEMO_RL = r"""
[NRL_PHASE][2026-08-01T10:00:00Z][+12.5s] srun ray head
[INFO] Number of actors online: 1/2
@launch
[INFO] Number of actors online: 2/2
All workers connected!

▶ Setting up data...
@data
  ✓ Training dataloader loaded with 7473 samples
  ✓ Validation dataloader loaded with 1319 samples

▶ Setting up compute cluster...
@cluster
  ✓ Ray cluster for policy initialized with 2 nodes

▶ Setting up model and training...
@model
(VllmGenerationWorker pid=77) INFO 08-01 10:02:00 [gpu_model_runner.py:2338] Starting to load model Qwen/Qwen2.5-7B...
(VllmGenerationWorker pid=77) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:02<00:06,  2.10s/it]
@model 25
(VllmGenerationWorker pid=77) INFO 08-01 10:02:10 [gpu_model_runner.py:2392] Model loading took 14.2 GiB memory and 9.1 seconds
  ✓ vLLM backend generation initialized
============================================================
                    SETUP COMPLETE
============================================================
Total setup time: 181.2s

========================= Step 1/500 =========================
▶ Preparing batch...
▶ Generating responses for batch of size 512...
@training 0
  • Loss: 0.0213
========================= Step 2/500 =========================
▶ Training policy...
@training 0
"""

VERL = r"""
ray init kwargs: {'num_cpus': None, 'runtime_env': {'env_vars': {'TOKENIZERS_PARALLELISM': 'true'}}}
2025-07-17 10:00:01,123	INFO worker.py:1942 -- Started a local Ray instance. View the dashboard at http://127.0.0.1:8265
(TaskRunner pid=1673) TaskRunner hostname: gpu-1, PID: 1673
(TaskRunner pid=1673) {'actor_rollout_ref': {'rollout': {'name': 'vllm', 'mode': 'async'},
(TaskRunner pid=1673)  'trainer': {'nnodes': 1}}
@config
(TaskRunner pid=1673) Using dataset class: RLHFDataset
Generating train split: 7473 examples [00:00, 99621.50 examples/s]
(TaskRunner pid=1673) dataset len: 7473
Filtering prompts longer than 512 tokens (num_proc=8):  53%|█████▎    | 4000/7473 [00:02<00:01, 2001.50 examples/s]
@dataset 53
(TaskRunner pid=1673) filter dataset len: 7400
(TaskRunner pid=1673) [validate_config] All configuration checks passed successfully!
(TaskRunner pid=1673) Size of train dataloader: 28, Size of val dataloader: 1
(TaskRunner pid=1673) Total training steps: 435
@dataset
(TaskRunner pid=1673) colocated worker base class <class 'verl.single_controller.base.worker.Worker'>
@workers
(WorkerDict pid=2001) Qwen2ForCausalLM contains 3.09B parameters
(WorkerDict pid=2001) Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.20s/it] [repeated 7x across cluster]
@workers
(WorkerDict pid=2001) After init actor, memory allocated (GB): 1.5, memory reserved (GB): 2.1
(vLLMHttpServer pid=2100) INFO 07-17 10:03:00 [gpu_model_runner.py:2338] Starting to load model Qwen/Qwen2.5-3B...
(vLLMHttpServer pid=2100) INFO 07-17 10:03:09 [gpu_model_runner.py:2392] Model loading took 5.8 GiB memory and 9.1 seconds
Capturing CUDA graphs (decode, FULL):  20%|██        | 7/35 [00:01<00:04,  6.10it/s]
@workers 20
(TaskRunner pid=1673) Training from scratch
Training Progress:   0%|          | 0/435 [00:00<?, ?it/s]
@training 0
(TaskRunner pid=1673) step:1 - actor/pg_loss:0.01 - actor/grad_norm:0.2 - training/global_step:1
Training Progress:   1%|          | 3/435 [02:00<4:48:00, 40.00s/it]
@training 0
"""

SLIME = r"""
[2025-08-05 12:10:00] placement_group.py:100 - Creating placement group with 16 GPUs...
[2025-08-05 12:10:30] placement_group.py:60 - Waiting for placement group of 16 GPUs (elapsed 30s): 8 GPUs registered with Ray, 8 available.
@placement
[2025-08-05 12:10:55] placement_group.py:84 -   bundle    0, actual_bundle_index:    0, node: 10.0.0.1, gpu: 0
@placement
(RolloutManager pid=100) import slime.rollout.sglang_rollout.generate_rollout as generate_rollout function.
(RolloutManager pid=100) Ports for engines: [{'port': 10000}]
@engines
(SGLangEngine pid=3549162)
Loading safetensors checkpoint shards:  33% Completed | 1/3 [00:01<00:02,  1.10s/it]
@engines 33
Loading safetensors checkpoint shards: 100% Completed | 3/3 [00:03<00:00,  1.10s/it]
(SGLangEngine pid=3549160) [2025-08-05 12:15:15 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=30.27 GB
(SGLangEngine pid=3549160) [2025-08-05 12:15:15 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=21.28 GB
Capturing batches (bs=1 avail_mem=21.28 GB): 100%|██████████| 23/23 [00:03<00:00,  7.28it/s]
(SGLangEngine pid=3549160) [2025-08-05 12:15:16] The server is fired up and ready to roll!
(MegatronTrainRayActor pid=200) > initializing torch distributed ...
@actors
(MegatronTrainRayActor pid=200)  loading distributed checkpoint from /ckpt at iteration 0
@actors
(RolloutManager pid=100) Rollout generation:  40%|████      | 102/256 [00:40<01:00,  2.50it/s]
(RolloutManager pid=100) rollout 0: {'rollout/raw_reward': 0.41, 'rollout/response_lengths': 801.0}
(MegatronTrainRayActor pid=200) step 0: {'train/loss': 0.0, 'train/grad_norm': 0.31}
(RolloutManager pid=100) perf 0: {'perf/rollout_time': 55.0}
@training
"""

OPENRLHF = r"""
dataset: OpenRLHF/prompt-collection-v0.1
loaded OpenRLHF/prompt-collection-v0.1 from files
Preprocessing data:  30%|███       | 3000/10000 [00:03<00:07, 1000.10it/s]
@dataset 30
Preprocessing data: 100%|██████████| 10000/10000 [00:10<00:00, 1000.10it/s]
@dataset
(LLMRayActor pid=31) creating LLM with bundle_indices=[0, 1]
@engines
(LLMRayActor pid=31) Loading safetensors checkpoint shards:  75% Completed | 3/4 [00:06<00:02,  2.00s/it]
@engines 75
(LLMRayActor pid=31) INFO 08-02 11:00:31 [core.py:193] init engine (profile, create kv cache, warmup model) took 40.12 seconds
(ActorModelRayActor pid=41) [2026-08-02 11:00:40,123] [INFO] [comm.py:652:init_distributed] cdb=None
@models
Episode [1/20]:   0%|          | 0/100 [00:00<?, ?it/s]
@training 0
(ActorModelRayActor pid=41) 🚀 Starting experience making with 128 samples
✨ Global step 3: {'policy_loss': 0.01, 'reward': 0.6}
Episode [1/20]:   3%|▎         | 3/100 [06:00<3:14:00, 120.00s/it]
@training 3
"""

SKYRL = r"""
2026-08-03 09:00:00.123 | INFO     | skyrl_train.utils.utils:initialize_ray:606 - Synced registries to ray actor
2026-08-03 09:00:05.123 | INFO     | skyrl_train.workers.worker:_initiate_actors:606 - Initializing process group for RayActorGroup
@process_groups
2026-08-03 09:00:35.123 | INFO     | skyrl_train.workers.worker:_initiate_actors:610 - Initialized process group for RayActorGroup
2026-08-03 09:00:35.223 | INFO     | skyrl_train.workers.worker:_initiate_actors:612 - Mesh Ranks: [MeshRank(dp=0, sp=0, tp=0, pp=0)]
@models
2026-08-03 09:02:35.223 | INFO     | skyrl_train.trainer:build_models:612 - init policy/ref/critic models done
2026-08-03 09:02:40.000 | INFO     | skyrl_train.trainer:init_weight_sync_state:700 - Initialized weight sync state for policy model and inference engines.
@weight_sync
Training Batches Processed:   2%|▏         | 1/50 [01:10<57:10, 70.02s/it]
2026-08-03 09:03:40.000 | INFO     | skyrl_train.utils.utils:__enter__:70 - Started: 'generate'
@training 2
"""

VLLM = r"""
INFO 05-24 14:27:36 [api_server.py:1043] vLLM API server version 0.8.5.post1
(EngineCore_DP0 pid=212) INFO 10-06 12:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B'
(EngineCore_DP0 pid=212) INFO 10-06 12:00:02 [parallel_state.py:1208] rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0
@engine
(EngineCore_DP0 pid=212) INFO 10-06 12:00:03 [gpu_model_runner.py:2338] Starting to load model Qwen/Qwen3-8B...
@load_weights
Loading safetensors checkpoint shards:   0% Completed | 0/5 [00:00<?, ?it/s]
Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:08<00:12,  4.10s/it]
@load_weights 40
Loading safetensors checkpoint shards: 100% Completed | 5/5 [00:20<00:00,  4.10s/it]
@load_weights 100
(EngineCore_DP0 pid=212) INFO 10-06 12:00:25 [default_loader.py:268] Loading weights took 20.41 seconds
(EngineCore_DP0 pid=212) INFO 10-06 12:00:26 [gpu_model_runner.py:2392] Model loading took 15.27 GiB memory and 22.1 seconds
@load_weights
(EngineCore_DP0 pid=212) INFO 10-06 12:00:30 [backends.py:539] Using cache directory: /root/.cache/vllm/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile
(EngineCore_DP0 pid=212) INFO 10-06 12:00:31 [backends.py:550] Dynamo bytecode transform time: 5.31 s
@compile
(EngineCore_DP0 pid=212) INFO 10-06 12:00:51 [monitor.py:34] torch.compile takes 26.71 s in total
(EngineCore_DP0 pid=212) INFO 10-06 12:00:53 [gpu_worker.py:298] Available KV cache memory: 51.50 GiB
@kv_cache
(EngineCore_DP0 pid=212) INFO 10-06 12:00:53 [kv_cache_utils.py:1087] GPU KV cache size: 375,024 tokens
(EngineCore_DP0 pid=212) INFO 10-06 12:00:53 [kv_cache_utils.py:1091] Maximum concurrency for 40,960 tokens per request: 9.16x
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  45%|████▍     | 30/67 [00:01<00:01, 21.10it/s]
@cuda_graphs 44
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██████████| 67/67 [00:03<00:00, 21.10it/s]
(EngineCore_DP0 pid=212) INFO 10-06 12:01:00 [gpu_model_runner.py:3118] Graph capturing finished in 5 secs, took 0.55 GiB
(EngineCore_DP0 pid=212) INFO 10-06 12:01:01 [core.py:218] init engine (profile, create kv cache, warmup model) took 34.71 seconds
@ready
(APIServer pid=1) INFO:     Application startup complete.
@ready
"""

SGLANG = r"""
[2026-07-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2)
[2026-07-01 10:00:10 TP0] Init torch distributed begin.
[2026-07-01 10:00:10 TP1] Init torch distributed begin.
@process_group
[2026-07-01 10:00:12 TP0] Init torch distributed ends. mem usage=0.50 GB
[2026-07-01 10:00:13 TP0] Load weight begin. avail mem=78.10 GB
@load_weights
Multi-thread loading shards:  60% Completed | 3/5 [00:05<00:03,  1.70s/it]
@load_weights 60
[2026-07-01 10:00:25 TP0] Load weight end. elapsed=11.20 s, type=Qwen3ForCausalLM, avail mem=70.50 GB, mem usage=7.6 GB.
@load_weights
[2026-07-01 10:00:26 TP0] KV Cache is allocated. #tokens: 398000, K size: 27.3 GB, V size: 27.3 GB
@kv_cache
[2026-07-01 10:00:26 TP0] Memory pool end. avail mem=14.10 GB
[2026-07-01 10:00:27 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, avail mem=14.01 GB
Capturing batches (bs=96 avail_mem=13.20 GB):  26%|██▌       | 6/23 [00:02<00:05,  3.00it/s]
@cuda_graphs 26
[2026-07-01 10:00:40 TP0] Capture target decode CUDA graph end. Time elapsed: 12.9 s. mem usage=0.9 GB. avail mem=13.1 GB.
[2026-07-01 10:00:41 TP0] max_total_num_tokens=398000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4096, context_len=40960
@ready
[2026-07-01 10:00:45] INFO:     Application startup complete.
[2026-07-01 10:00:47] The server is fired up and ready to roll!
@ready
"""

TITAN = r"""
[rank0]:[titan] 2026-03-01 08:00:00,001 - root - INFO - Starting job: Llama 3 8B training
[rank0]:[titan] 2026-03-01 08:00:09,001 - root - INFO - Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1
@job
[rank0]:[titan] 2026-03-01 08:00:12,001 - root - INFO - Successfully created meshes with active dimensions: ['batch', 'loss', 'fsdp']
[rank0]:[titan] 2026-03-01 08:00:13,001 - root - INFO - Preparing c4 dataset from allenai/c4
@dataset
[rank0]:[titan] 2026-03-01 08:00:20,001 - root - INFO - Building llama3 8B
[rank0]:[titan] 2026-03-01 08:00:21,001 - root - INFO - [34mModel llama3 8B [31msize: 8,030,261,248 total parameters[39m
[rank0]:[titan] 2026-03-01 08:00:22,001 - root - INFO - Applied FSDP to the model
@model
[rank0]:[titan] 2026-03-01 08:00:30,001 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200).
[rank0]:[titan] 2026-03-01 08:00:31,001 - root - INFO - Loading the checkpoint from ./outputs/checkpoint/step-500.
@checkpoint
[rank0]:[titan] 2026-03-01 08:01:31,001 - root - INFO - [GC] GC collection for checkpoint loading. 0.02 seconds
[rank0]:[titan] 2026-03-01 08:01:31,101 - root - INFO - Finished loading the checkpoint in 60.12 seconds.
[rank0]:[titan] 2026-03-01 08:01:31,201 - root - INFO - Training starts at step 501
@training
[rank0]:[titan] 2026-03-01 08:01:41,201 - root - INFO - [31mstep: 501  [32mloss:  4.12345  [38;2;180;60;0mgrad_norm:  1.2345  [36mmemory: 40.23GiB(50.84%)  [34mtps: 7,123
[rank0]:[titan] 2026-03-01 08:01:51,201 - root - INFO - [31mstep: 510  [32mloss:  4.02345  [38;2;180;60;0mgrad_norm:  1.2345  [36mmemory: 40.23GiB(50.84%)  [34mtps: 7,123
@training 51
"""

MEGATRON = r"""
using world size: 8, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 2
------------------------ arguments ------------------------
  accumulate_allreduce_grads_in_fp32 .............. False
-------------------- end of arguments ---------------------
> building GPT2BPETokenizer tokenizer ...
> initializing torch distributed ...
@distributed
> initialized tensor model parallel with size 2
> initialized pipeline model parallel with size 1
> setting random seeds to 1234 ...
> compiling dataset index builder ...
@compile
>>> done with dataset index builder. Compilation time: 0.061 seconds
time to initialize megatron (seconds): 12.312
[after megatron is initialized] datetime: 2025-11-13 16:26:00
building GPT model ...
 > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 354871296
@model
 loading checkpoint from /ckpt at iteration 100
@checkpoint
  successfully loaded checkpoint from /ckpt [ t 0/1, p 0/1 ] at iteration 100
[after model, optimizer, and learning rate scheduler are built] datetime: 2025-11-13 16:26:05
> building train, validation, and test datasets ...
INFO:megatron.core.datasets.gpt_dataset:Build and save the GPTDataset train indices
@data
> finished creating GPT datasets ...
[after dataloaders are built] datetime: 2025-11-13 16:26:11
done with setup ...
training ...
[before the start of training step] datetime: 2025-11-13 16:26:12
@training
 [2025-11-13 16:27:12] iteration      110/  500000 | consumed samples:          880 | elapsed time per iteration (ms): 612.1 | learning rate: 1.5E-05 | global batch size:     8 | lm loss: 9.101E+00 | loss scale: 1.0 | grad norm: 1.1 | number of skipped iterations:   0 | number of nan iterations:   0 |
@training 0
"""

HF = r"""
Map (num_proc=8):  45%|████▌     | 4500/10000 [00:10<00:12, 450.00 examples/s]
@dataset 45
Map (num_proc=8): 100%|██████████| 10000/10000 [00:22<00:00, 450.00 examples/s]
Loading checkpoint shards:  50%|█████     | 2/4 [00:04<00:04,  2.01s/it]
@shards 50
Loading checkpoint shards: 100%|██████████| 4/4 [00:08<00:00,  2.01s/it]
@shards 100
[INFO|trainer.py:698] 2025-06-01 10:00:00,123 >> Using auto half precision backend
@trainer
[INFO|trainer.py:2414] 2025-06-01 10:00:10,123 >> ***** Running training *****
[INFO|trainer.py:2415] 2025-06-01 10:00:10,123 >>   Num examples = 10,000
[INFO|trainer.py:2421] 2025-06-01 10:00:10,124 >>   Total optimization steps = 200
@training
  0%|          | 0/200 [00:00<?, ?it/s]
  5%|▌         | 10/200 [00:20<06:20,  2.00s/it]
{'loss': 1.2345, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': 0.05}
@training 5
***** Running Evaluation *****
 50%|█████     | 4/8 [00:01<00:01,  4.00it/s]
@training 5
"""

LOGS = {
    "torchspec": TORCHSPEC,
    "torchspec-old": TORCHSPEC_OLD,
    "nemo_rl": NEMO_RL,
    "verl": VERL,
    "slime": SLIME,
    "openrlhf": OPENRLHF,
    "skyrl": SKYRL,
    "vllm": VLLM,
    "sglang": SGLANG,
    "torchtitan": TITAN,
    "megatron": MEGATRON,
    "huggingface": HF,
}


def moments():
    """
    Each moment of each log that is marked by an ``@``, and what is expected.
    """
    for name, log in LOGS.items():
        lines = []
        for line in log.strip("\n").split("\n"):
            if line.startswith("@"):
                phase, _, percent = line[1:].partition(" ")
                yield pytest.param(
                    name.partition("-")[0],
                    list(lines),
                    phase,
                    int(percent) if percent else None,
                    id=f"{name}-{len(lines)}-{phase}",
                )
            else:
                lines.append(line)


@pytest.mark.parametrize(
    ("framework", "lines", "phase", "percent"), list(moments())
)
def test_moment(framework, lines, phase, percent):
    """
    At each moment, the phase is found, and how far it is.
    """
    report = detect_phase(lines, framework=framework)

    assert phase == report.current.name
    if percent is not None:
        assert percent == int(report.percent)


def strip(log):
    """
    A log without the marks.
    """
    return "\n".join(x for x in log.split("\n") if not x.startswith("@"))


def colored(log):
    """
    The same with the colors of Ray.
    """
    return "\n".join(
        line.replace("(", "\x1b[36m(", 1).replace(") ", ")\x1b[0m ", 1)
        if " pid=" in line
        else line
        for line in log.split("\n")
    )


def stamped(log):
    """
    The same as `docker logs -t` shows it.
    """
    return "\n".join(
        f"2026-08-01T10:00:00.123456789Z {line}" for line in log.split("\n")
    )


def all_ranks(log):
    """
    The same, printed by eight ranks that torchrun marks.
    """
    return "\n".join(
        f"[default{rank}]:{line}"
        for line in log.split("\n")
        for rank in "0123"
    )


@pytest.mark.parametrize("change", [strip, colored, stamped])
@pytest.mark.parametrize("name", LOGS)
def test_framework(name, change):
    """
    The framework of each log is found, also with what launchers add.
    """
    log = change(strip(LOGS[name]))

    report = detect_phase(log)

    assert name.partition("-")[0] == report.framework


@pytest.mark.parametrize("name", ["torchtitan", "megatron", "huggingface"])
def test_all_ranks(name):
    """
    A log in which every rank prints the same is that of one attempt.
    """
    log = all_ranks(strip(LOGS[name]))

    report = detect_phase(log)

    assert name == report.framework
    assert "training" == report.current.name
    assert 1 == report.attempt


@pytest.mark.parametrize("name", [n for n in LOGS if n != "torchspec-old"])
def test_healthy(name):
    """
    Nothing is found in a log of a healthy job.
    """
    report = detect_phase(strip(LOGS[name]))

    assert () == report.findings
    assert report.ended is None
    assert not any(phase.state == "failed" for phase in report.phases)


@pytest.mark.parametrize(
    "name",
    [n for n in LOGS if n not in {"torchspec-old", "vllm", "sglang"}],
)
def test_done_before_training(name):
    """
    When a job trains, all that began before is done.
    """
    report = detect_phase(strip(LOGS[name]))

    assert report.current.trains
    assert {"done", "not begun"} >= {
        phase.state
        for phase in report.phases
        if not (phase.trains or phase.part_of)
    }


def test_concurrent():
    """
    TorchSpec prepares trainers and engines at once, and both are shown.
    """
    lines = TORCHSPEC.split("@engine_init 40", maxsplit=1)[0]

    report = detect_phase(strip(lines))

    assert "begun" == report.phase("trainer_init").state
    assert (1, 2) == (
        report.phase("trainer_init").parts,
        report.phase("trainer_init").of,
    )
    assert "begun" == report.phase("engine_init").state
    assert "done" == report.phase("config_dataset").state
    assert "52000" == report.phase("config_dataset").facts["samples"]
    assert "24" == report.phase("placement").facts["want"]


def test_timings():
    """
    TorchSpec's table of seconds is read.
    """
    report = detect_phase(strip(TORCHSPEC))

    assert 478.0 == report.timings["Actor initialization"]
    assert 546.12 == report.timings["Total"]


def test_inner():
    """
    An engine inside a trainer is shown beside the trainer's phase.
    """
    log = strip(VERL.split("@workers 20", maxsplit=1)[0])

    report = detect_phase(log)

    assert "verl" == report.framework
    assert "workers" == report.current.name
    assert ("vllm", "cuda_graphs") == (
        report.inner.framework,
        report.inner.name,
    )
    assert "done" == report.phase("vllm/load_weights").state


def test_steps():
    """
    Steps without a bar give rate and time left by the times of their lines.
    """
    report = detect_phase(strip(TITAN))

    assert 0.9 == pytest.approx(report.rate)
    assert 490 / 0.9 == pytest.approx(report.left_s)
    assert 1000 == report.progress.total


def test_colors_of_steps():
    """
    torchtitan's steps are read with colors, and with what copying left.
    """
    copied = strip(TITAN)
    real = copied.replace("[3", "\x1b[3")

    reports = [detect_phase(log) for log in (copied, real)]

    assert [510, 510] == [report.progress.done for report in reports]

"""
Logs of jobs that are well, however bad they look.
"""

from __future__ import annotations

import pytest


HEALTHY = {
    "megatron": """
using world size: 8, data-parallel size: 2, tensor-model-parallel size: 4
------------------------ arguments ------------------------
  check_for_nan_in_loss_and_grad .................. True
  check_for_large_grads ........................... False
  exit_on_missing_checkpoint ...................... False
  log_loss_scale_to_tensorboard ................... True
  distributed_timeout_minutes ..................... 10
  clip_grad ....................................... 1.0
  rerun_mode ...................................... disabled
  loss_scale_window ............................... 1000
  error_injection_rate ............................ 0
  error_injection_type ............................ transient_error
WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt
    will not load any checkpoints and will start from random
 [2026-02-20 02:03:57] iteration      10/  500000 | consumed samples:          640 | elapsed time per iteration (ms): 1042.1 | learning rate: 1.0E-05 | global batch size:    64 | lm loss: 1.098E+01 | loss scale: 1.0 | grad norm: 12.345 | number of skipped iterations:   0 | number of nan iterations:   0 |
[Rank 0] (after 10 iterations) memory (MB) | allocated: 12345.1 | max allocated: 23456.1 | reserved: 30000.0 | max reserved: 30000.0
""",
    "megatron-fp16": """
 iteration        3/     100 | lm loss: 1.0E+01 | loss scale: 2147483648.0 | number of skipped iterations:   1 | number of nan iterations:   0 |
 iteration        4/     100 | loss scale: 1073741824.0 | number of skipped iterations:   2 | number of nan iterations:   0 |
""",
    "deepspeed": """
[2026-02-20 02:03:57,123] [INFO] [real_accelerator.py:203:get_accelerator] Setting ds_accelerator to cuda (auto detect)
[2026-02-20 02:03:57,123] [INFO] [config.py:999:print]   dump_state ................... False
[2026-02-20 02:03:57,123] [INFO] [config.py:999:print]   check_grad_overflow ............. True
[2026-02-20 02:03:57,123] [INFO] [config.py:999:print]   memory_breakdown ............. False
[2026-02-20 02:03:57,123] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
[2026-02-20 02:03:57,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[1e-05], mom=[(0.9, 0.999)]
[2026-02-20 02:03:57,123] [INFO] [launch.py:351:main] Process 4711 exits successfully.
[2026-02-20 02:03:57,123] [WARNING] [runner.py:202:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.
async_io requires the dev libaio .so object and headers but these were not found.
[WARNING]  async_io: please install the libaio-dev package with apt
""",
    "hf-trainer": """
***** Running training *****
  Num examples = 12,000
  Instantaneous batch size per device = 8
{'loss': 1.2345, 'grad_norm': 0.987, 'learning_rate': 4.9e-05, 'epoch': 0.01}
{'eval_loss': 1.1, 'eval_runtime': 12.3, 'eval_samples_per_second': 81.1, 'epoch': 1.0}
/opt/lib/python3.11/site-packages/torch/utils/checkpoint.py:429: UserWarning: torch.utils.checkpoint: please pass in use_reentrant=True or use_reentrant=False explicitly.
  warnings.warn(
/opt/lib/python3.11/site-packages/transformers/optimization.py:591: FutureWarning: This implementation of AdamW is deprecated
huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...
To disable this warning, you can either:
	- Avoid using `tokenizers` before the fork if possible
	- Explicitly set the environment variable TOKENIZERS_PARALLELISM=(true | false)
TrainingArguments(
_n_gpu=1,
ignore_data_skip=False,
logging_nan_inf_filter=True,
max_grad_norm=1.0,
auto_find_batch_size=False,
ddp_timeout=1800,
skip_memory_metrics=True,
Some weights of LlamaForSequenceClassification were not initialized from the model checkpoint at x and are newly initialized: ['score.weight']
{'train_runtime': 123.4, 'train_loss': 0.98, 'epoch': 3.0}
""",
    "accelerate": """
The following values were not passed to `accelerate launch` and had defaults used instead:
	`--num_processes` was set to a value of `8`
	`--dynamo_backend` was set to a value of `'no'`
To avoid this warning pass in values for each of the problematic parameters or run `accelerate config`.
02/20/2026 02:03:57 - INFO - __main__ - Distributed environment: MULTI_GPU  Backend: nccl
Num processes: 8
Process index: 0
Local process index: 0
Device: cuda:0
Mixed precision type: bf16
Steps:   3%|3         | 30/1000 [00:31<16:48,  1.04s/it, lr=1e-5, step_loss=0.123]
""",
    "lightning": """
GPU available: True (cuda), used: True
TPU available: False, using: 0 TPU cores
Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8
----------------------------------------------------------------------------------------------------
distributed_backend=nccl
All distributed processes registered. Starting with 8 processes
----------------------------------------------------------------------------------------------------
LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3,4,5,6,7]
The 'train_dataloader' does not have many workers which may be a bottleneck. Consider increasing the value of the `num_workers` argument
EarlyStopping mode set to min for val_loss; initial best: inf
Metric val_loss improved. New best score: 0.412
ModelCheckpoint(monitor='val_loss', best_model_score=inf, save_top_k=1)
`Trainer.fit` stopped: `max_epochs=3` reached.
Epoch 2: 100%|##########| 100/100 [00:12<00:00,  8.1it/s, v_num=2, train_loss=0.312, val_loss=0.402]
""",
    "best-so-far": """
best_loss: inf, patience: 5
current best val loss = inf
Validation loss decreased (inf --> 0.693147).  Saving model ...
min_loss=inf max_loss=-inf
Best loss inf -> 3.41
early stopping: best=inf wait=0
initial best loss: inf
clip_grad_norm: inf
max_norm=inf
""",
    "torchtitan": """
[titan] 2026-02-20 02:03:57,123 - root - INFO - Starting job: Llama 3 8B training
[titan] 2026-02-20 02:03:57,123 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory
[titan] 2026-02-20 02:03:57,123 - root - INFO - step: 10  loss:  8.1234  grad_norm:  2.1234  memory: 40.12GiB(50.71%)  tps: 5,123  tflops: 301.22  mfu: 30.45%
[titan] 2026-02-20 02:03:57,123 - root - INFO - Synchronizing and adjusting timeout for all ProcessGroups to 0:01:40
[titan] 2026-02-20 02:03:57,123 - root - INFO - [GC] Performing periodic GC collection took 0.02 seconds
[titan] 2026-02-20 02:03:57,123 - root - INFO - Destroying the purge thread.
""",
    "torchrun": """
W0220 02:03:57.123000 140 torch/distributed/run.py:793] *****************************************
W0220 02:03:57.123000 140 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed.
[W220 02:03:57.123456789 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.
[rank0]:[W220 02:03:57.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())
[rank0]:[W220 02:03:57.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group
[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).
[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).
[W220 socket.cpp:755] [c10d] The IPv6 network addresses of (node-0, 29500) cannot be retrieved (gai error: -2 - Name or service not known).
I0220 02:03:57.1 140 torch/distributed/elastic/agent/server/api.py:866] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish.
""",
    "nccl-info": """
n1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
n1:71:71 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation
n1:71:71 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
n1:71:71 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.
n1:71:71 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v3 symbol. Using internal tuner plugin.
n1:71:71 [0] NCCL INFO NET/IB : No device found.
n1:71:99 [0] NCCL INFO Failed to open libibverbs.so[.1]
n1:71:99 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
n1:71:99 [0] NCCL INFO comm 0x55a rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 - Init COMPLETE
n1:71:99 [0] NCCL INFO ncclCommInitRank comm 0x55a - Init COMPLETE. Init timings: total 0.41 (errors=0)
n1:71:99 [0] NCCL INFO AllReduce: opCount 13a0 sendbuff 0x7f recvbuff 0x7f count 1 datatype 7 op 0 root 0 comm 0x55a [nranks=8] stream 0x5
n1:71:99 [0] NCCL INFO [Service thread] Connection closed by localRank 0
n1:71:99 [0] NCCL INFO comm 0x55a rank 0 nranks 8 - Destroy COMPLETE
n1:71:71 [0] graph/topo.cc NCCL WARN NUMA auto balancing enabled which can lead to variability in the NCCL performance! Disable by "sudo sysctl kernel.numa_balancing=0"
""",
    "vllm": """
INFO 02-20 02:03:57 [api_server.py:1043] vLLM API server version 0.9.0
INFO 02-20 02:03:57 [cli_args.py:300] non-default args: {'model': 'x', 'disable_log_requests': True, 'on_error': 'raise'}
WARNING 02-20 02:03:57 [cuda.py:87] Detected different devices in the system
INFO 02-20 02:03:57 [gpu_worker.py:227] Available KV cache memory: 58.12 GiB
INFO 02-20 02:03:57 [kv_cache_utils.py:634] GPU KV cache size: 476,112 tokens
INFO 02-20 02:03:57 [kv_cache_utils.py:637] Maximum concurrency for 8,192 tokens per request: 58.12x
INFO 02-20 02:03:57 [loggers.py:116] Engine 000: Avg prompt throughput: 120.1 tokens/s, Avg generation throughput: 512.2 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.2%, Prefix cache hit rate: 12.1%
INFO 02-20 02:03:57 [gpu_worker.py:492] Initial free memory 31.16 GiB, reserved 4.25 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. If OOM'ed, check the difference of initial free memory between the current run and the previous run
WARNING 02-20 02:03:57 [scheduler.py:1057] Sequence group 3 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance.
INFO:     127.0.0.1:44410 - "POST /v1/chat/completions HTTP/1.1" 200 OK
INFO:     127.0.0.1:44410 - "GET /v1/chat/completions HTTP/1.1" 404 Not Found
INFO:     Shutting down
INFO:     Finished server process [7]
""",
    "sglang": """
[2026-02-20 02:03:57] server_args=ServerArgs(model_path='x', mem_fraction_static=0.88, watchdog_timeout=300, dist_timeout=None, crash_dump_folder=None, disable_cuda_graph=False, enable_nan_detection=False, log_level_http=None)
[2026-02-20 02:03:57 TP0] Load weight begin. avail mem=78.50 GB
[2026-02-20 02:03:57 TP0] Memory pool end. avail mem=9.10 GB
[2026-02-20 02:03:57 TP0] Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0
[2026-02-20 02:03:57 TP0] Decode batch. #running-req: 2, #token: 21312, token usage: 0.01, accept len: 3.36, cuda graph: True, gen throughput (token/s): 551.63, #queue-req: 0
[2026-02-20 02:03:57 TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.5 -> 0.6
[2026-02-20 02:03:57 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.6000 -> 0.7000
[2026-02-20 02:03:57] INFO:     127.0.0.1:44410 - "GET /health_generate HTTP/1.1" 200 OK
[2026-02-20 02:03:57] The server is fired up and ready to roll!
""",
    "ray": """
2026-02-20 02:03:57,123	INFO worker.py:1841 -- Started a local Ray instance. View the dashboard at http://127.0.0.1:8265
\x1b[36m(TrainerActor pid=514428)\x1b[0m [2026-02-20 02:03:57,123 E 514428 514490] core_worker_process.cc:842: Failed to establish connection to the metrics exporter agent. Metrics will not be exported. Exporter agent status: RpcError: Running out of retries to initialize the metrics agent. rpc_code: 14
\x1b[33m(raylet)\x1b[0m [2026-02-20 02:03:57,123 E 1 2] (raylet) main.cc:975: Failed to establish connection to the metrics exporter agent. Metrics will not be exported.
[2026-02-20 02:03:57,123 I 1 2] (gcs_server) gcs_worker_manager.cc: Reporting worker exit, worker id = ab, node id = cd, address = 10.0.0.1, exit_type = INTENDED_USER_EXIT, exit_detail = Worker exits by calling exit_actor.
[2026-02-20 02:03:57,123 I 1 2] core_worker.cc:4501: Force kill actor request has received. exiting immediately... The actor is dead because its owner has died.
(SglEngine pid=7, ip=10.0.0.2) 100%|##########| 5/5 [00:01<00:00] [repeated 7x across cluster] (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable log deduplication, or see https://docs.ray.io for more options.)
2026-02-20 02:03:57,123	WARNING utils.py:460 -- Detecting docker specified CPUs. In previous versions of Ray, CPU detection in containers was incorrect.
{"asctime":"2026-02-20 02:03:57,123","levelname":"INFO","message":"Task finished, errors: 0"}
""",
    "verl": """
(TaskRunner pid=88) step:1 - global_seqlen/min:5,123 - actor/entropy_loss:0.41 - actor/pg_loss:0.001 - actor/grad_norm:0.12 - critic/score/mean:0.3 - response_length/clip_ratio:0.0 - timing_s/gen:12.1
(TaskRunner pid=88) {'actor_rollout_ref': {'actor': {'checkpoint': {'contents': ['model']}, 'clip_ratio': 0.2, 'entropy_coeff': 0.001, 'grad_clip': 1.0, 'ignore_eos': False}}, 'trainer': {'default_hdfs_dir': None, 'ray_wait_register_center_timeout': 300}}
""",
    "slurm": """
srun: job 4711 queued and waiting for resources
srun: job 4711 has been allocated resources
slurmstepd: error: mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx library
error: MPI: Cannot create context for mpi/pmix_v4
SLURM_JOB_ID=4711 SLURM_TIME_LIMIT=1440
JobState=COMPLETED Reason=None ExitCode=0:0
   JobID    JobName  Partition      State ExitCode
   4711      train        gpu  COMPLETED      0:0
""",
    "mpi": """
--------------------------------------------------------------------------
WARNING: Linux kernel CMA support was requested via the btl_vader_single_copy_mechanism MCA variable, but CMA support is not available
--------------------------------------------------------------------------
[n1:00071] 7 more processes have sent help message help-btl-vader.txt / cma-permission-denied
[n1:00071] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
""",
    "kernel": """
[    0.000000] Linux version 6.8.0-45-generic
[    1.234567] mce: CPU supports 20 MCE banks
[    2.345678] nvidia-nvlink: Nvlink Core is being initialized, major device number 510
[    2.345679] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15
[    3.456789] RAS: Correctable Errors collector initialized.
[    9.876543] audit: type=1400 apparmor="DENIED" operation="open"
[   12.345678] mlx5_core 0000:98:00.0 ens1f0np0: Link up
[   13.3] PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
""",
    "nvidia-smi": """
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   32C    P0             71W /  700W |       1MiB /  81559MiB |      0%      Default |
|  Volatile Uncorr. ECC                                          |                    0 |
        Uncorrectable ECC errors            : 0
            DRAM Uncorrectable              : 0
            SRAM Uncorrectable              : 0
""",
    "configuration": """
  on_error: raise
  error_handler: ignore
  handle_errors = True
  exceptions: [ValueError, RuntimeError, torch.OutOfMemoryError, KeyError]
  retry_on: torch.cuda.OutOfMemoryError
  retry_exceptions=(ConnectionResetError, TimeoutError)
  kill_timeout: 30
  nccl_timeout: 1800
  nccl_timeout_s=600
  timeout: 600
  fail_fast: true
  nan_policy: omit
  allow_nan_loss: false
  skip_nan_batches: True
  detect_anomaly: False
  TORCH_NCCL_ASYNC_ERROR_HANDLING=1
  NCCL_ASYNC_ERROR_HANDLING: "1"
  TORCH_NCCL_DUMP_ON_TIMEOUT=1
  max_restarts: 3
  oom_score_adj: 0
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
  terminate_on_nan: true
  termination_grace_period: 30
  segfault_handler: true
""",
    "counters": """
finished with 0 errors and 3 warnings
errors=0 retries=0 timeouts=0
error_rate: 0.0
failed: 0, passed: 120
no error was found
Total errors: 0
no errors detected; 0 failed requests
completed without errors
dropped=0 nan_count=0 inf_count=0
nan ratio: 0.0
grad has nan: False
found_inf: 0
found_inf=tensor(0.)
oom_kill 0
oom 0
health check passed
""",
    "words": """
the governance of finance and the nanotechnology of bananas
loading dataset nan_zhong/inf_corpus
Tokenizer: 'nan' -> 1234, 'inf' -> 99
INFO: information about infinity and infrastructure
loss: information gain 0.3
loss info: epoch 3
Infinity-Instruct loaded: 7,000,000 rows
user nan logged in
model: infinity-parser-7b loss: 0.3
country: NaN-tong
column 'age': NaN values replaced by the median
name=nancy value=info
train_loss_info: ok
killed the time by waiting; dead weights pruned
""",
    "handlers": """
Installing signal handlers for SIGTERM, SIGINT, SIGSEGV
Registered handler for signal 15
faulthandler enabled for SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL
preemption: will save a checkpoint on SIGTERM (signal 15)
Signal handlers installed: SIGUSR1 -> save, SIGTERM -> save and exit
enabling core dumps: ulimit -c unlimited
core file size          (blocks, -c) 0
open files                      (-n) 1048576
max locked memory       (kbytes, -l) unlimited
""",
    "disk": """
Filesystem      Size  Used Avail Use% Mounted on
/dev/nvme0n1p1  3.5T  1.2T  2.3T  35% /
tmpfs           1.0T   12G  988G   2% /dev/shm
disk_full_threshold: 0.95
Checking free space on /ckpt: 12.3 TB available
Saved checkpoint to /ckpt/step_1000 in 12.3 s
If the disk is full, old checkpoints are deleted
""",
    "retry": """
Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno 101] Network is unreachable')': /models
WARNING: Connection reset by peer, retrying in 2 s (1/5)
connection refused; will retry in 5 seconds
urllib3.connectionpool WARNING Retrying after connection broken by ProtocolError: Connection aborted
download succeeded after 2 attempts
port 8265 is in use, trying another one
""",
    "waiting": """
curl: (7) Failed to connect to localhost port 8000 after 0 ms: Connection refused
waiting for the server: connection refused
server not ready yet (ConnectionRefusedError: [Errno 111] Connection refused)
setting timeout to 600 s for monitoredBarrier
NCCL timeout: 1800
find_executable_batch_size: CUDA out of memory, retrying with batch size 4
wandb: Network error (ConnectionError), entering retry loop.
Could not import flash_attn: No module named 'flash_attn', using sdpa
INFO 02-20 02:03:57 [async_llm.py:420] Aborted request cmpl-123.
""",
    "web-server": """
10.0.0.9 - - [20/Feb/2026:02:03:57 +0000] "GET /metrics HTTP/1.1" 200 5123
10.0.0.9 - - [20/Feb/2026:02:03:57 +0000] "GET /errors/500.html HTTP/1.1" 304 0
2026/02/20 02:03:57 [notice] 1#1: signal 17 (SIGCHLD) received from 29
2026/02/20 02:03:57 [notice] 1#1: worker process 29 exited with code 0
""",
    "wandb": """
wandb: Currently logged in as: me. Use `wandb login --relogin` to force relogin
wandb: WARNING Symlinked 3 files into the W&B run directory
wandb: Run history:
wandb:       train/loss █▆▅▄▃▃▂▂▁▁
wandb: Run summary:
wandb:       train/loss 0.123
wandb:  train/grad_norm 0.9
wandb: Synced 5 W&B file(s), 0 media file(s), 2 artifact file(s) and 0 other file(s)
""",
    "compile": """
[rank0]:W0220 02:03:57.123000 88 torch/_dynamo/convert_frame.py:844] [3/8] torch._dynamo hit config.cache_size_limit (8)
[rank0]:I0220 02:03:57.123000 88 torch/_dynamo/output_graph.py:500] step 1: torchdynamo start tracing forward
AUTOTUNE mm(4096x4096, 4096x4096)
  triton_mm_12 0.1234 ms 98.1% ACC_TYPE='tl.float32', ALLOW_TF32=False
  triton_mm_13 inf ms 0.0% (out of resource: shared memory)
SingleProcess AUTOTUNE benchmarking takes 1.2 seconds and 0.3 seconds precompiling
""",
    "data": """
Map (num_proc=8): 100%|##########| 12000/12000 [00:03<00:00, 3921.1 examples/s]
Filter: dropped 12 samples longer than 4096
Skipping 3 corrupt samples
 > loading shuffle-idx mapping from /data/cache
Token indices sequence length is longer than the specified maximum sequence length for this model (5123 > 4096). Running this sequence through the model will result in indexing errors
Setting `pad_token_id` to `eos_token_id`:2 for open-end generation.
""",
    "tensorflow-lines": """
2026-02-20 02:03:57.123456: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:485] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered
2026-02-20 02:03:57.123456: I tensorflow/core/platform/cpu_feature_guard.cc:182] This TensorFlow binary is optimized to use available CPU instructions in performance-critical operations.
2026-02-20 02:03:57.123456: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
""",
    "code": """
+ set -euo pipefail
+ export NCCL_DEBUG=WARN
+ trap 'echo killed' SIGTERM
+ grep -c 'CUDA_ERROR' out.txt
assert loss is not None
raise ValueError if the batch is empty
except torch.cuda.OutOfMemoryError:
    except (RuntimeError, ValueError) as exc:
from requests.exceptions import ConnectionError
import torch.distributed.elastic.multiprocessing.errors
""",
    "tests": """
tests/test_a.py::test_raises_value_error PASSED
tests/test_b.py::test_out_of_memory_is_handled PASSED
============================== 12 passed in 3.21s ==============================
""",
    "quoted-samples": r"""
[prompt] Fix this: 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nValueError: x'
{"prompt": "Why do I get Traceback (most recent call last): here?", "answer": "because"}
response: the output would be "Traceback (most recent call last)" followed by the frames
reward 0.3 for: "I'd check for NaN in the loss"
""",
    "kubernetes": """
I0220 02:03:57.123456       1 controller.go:88] pod train-0 is Running
Normal  Pulled   12s   kubelet  Container image "x" already present on machine
  Exit Code:    0
  Reason:       Completed
Liveness probe succeeded
""",
    "exit": """
Process 4711 finished with exit code 0
worker exited with code 0
[default0]: exitcode: 0
Killing subprocess: none left
""",
    "shutdown": """
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown
  warnings.warn('resource_tracker: There appear to be %d '
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1479, in __del__
    self._shutdown_workers()
AssertionError: can only test a child process
""",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(scan, name):
    """
    Nothing is found in a log of a job that is well.
    """
    report = scan(HEALTHY[name])

    assert () == report.findings, report

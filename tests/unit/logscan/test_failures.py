"""
Logs of jobs that failed, in the words of many frameworks.
"""

from __future__ import annotations

import textwrap

from pathlib import Path

import pytest

from distdebug.findings import Cause
from distdebug.logscan import scan_logs


FAILURES = {
    # --------------------------------------------------- memory of the host
    "kernel": (
        "host_out_of_memory",
        (
            "[12345.678] Out of memory: Killed process 4242 (python3) "
            "total-vm:98765432kB, anon-rss:64000000kB, file-rss:0kB, UID:1000"
        ),
    ),
    "kernel-old": (
        "host_out_of_memory",
        (
            "Feb  3 04:05:06 gpu-17 kernel: Out of memory: Kill process 812 "
            "(pt_data_worker) score 901 or sacrifice child"
        ),
    ),
    "cgroup": (
        "host_out_of_memory",
        (
            "Memory cgroup out of memory: Killed process 99 (ray::Trainer.st) "
            "total-vm:1kB"
        ),
    ),
    "oom-kill": (
        "host_out_of_memory",
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,"
            "oom_memcg=/kubepods,task=python,pid=31,uid=0"
        ),
    ),
    "slurm-event": (
        "host_out_of_memory",
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=113007.0. "
            "Some of the step tasks have been OOM Killed."
        ),
    ),
    "slurm-event-old": (
        "host_out_of_memory",
        (
            "slurmstepd: error: Detected 2 oom-kill event(s) in step "
            "3756240.batch cgroup."
        ),
    ),
    "srun-oom": (
        "host_out_of_memory",
        "srun: error: node17: task 0: Out Of Memory",
    ),
    "slurm-limit": (
        "host_out_of_memory",
        "slurmstepd: error: Exceeded job memory limit at some point.",
    ),
    "ray-oom": (
        "host_out_of_memory",
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node "
            "running low on memory."
        ),
    ),
    "raylet-oom": (
        "host_out_of_memory",
        (
            "(raylet) node_manager.cc:3041: 2 Workers (tasks / actors) killed "
            "due to memory pressure (OOM), 0 Workers crashed due to other "
            "reasons at node (ID: ab12, IP: 10.0.0.3) over the last time period."
        ),
    ),
    "ray-node": (
        "host_out_of_memory",
        (
            "Memory on the node (IP: 10.0.0.3, ID: ff) where the task (actor ID: "
            "1, name=A.__init__, pid=7) was running was 30.58GB / 32.00GB "
            "(0.955), which exceeds the memory usage threshold of 0.95. Ray "
            "killed this worker because it was above the threshold"
        ),
    ),
    "kubernetes": (
        "host_out_of_memory",
        "    Reason:       OOMKilled",
    ),
    "cpu-allocator": (
        "host_out_of_memory",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. "
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
            "137438953472 bytes. Error code 12 (Cannot allocate memory)"
        ),
    ),
    "fork": (
        "host_out_of_memory",
        "OSError: [Errno 12] Cannot allocate memory",
    ),
    "numpy": (
        "host_out_of_memory",
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 74.5 "
            "GiB for an array with shape (100000, 100000) and data type float64"
        ),
    ),
    "bad-alloc": (
        "host_out_of_memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    "shm": (
        "node_misconfigured",
        (
            "RuntimeError: DataLoader worker (pid 2281) is killed by signal: Bus "
            "error. It is possible that dataloader's workers are out of shared "
            "memory. Please try to raise your shared memory limit."
        ),
    ),
    "shm-nccl": (
        "node_misconfigured",
        (
            "misc/shmutils.cc:72 NCCL WARN Error: failed to extend "
            "/dev/shm/nccl-AbCdEf to 9637892 bytes, No space left on device "
            "/dev/shm"
        ),
    ),
    "shm-torch": (
        "node_misconfigured",
        (
            "RuntimeError: unable to allocate shared memory(shm) for file "
            "</torch_1_2_3>: Resource temporarily unavailable (11)"
        ),
    ),
    "loader-killed": (
        "killed",
        (
            "RuntimeError: DataLoader worker (pid 48215) is killed by signal: "
            "Killed. "
        ),
    ),
    "loader-exited": (
        "killed",
        (
            "RuntimeError: DataLoader worker (pid(s) 1182, 1183) exited "
            "unexpectedly"
        ),
    ),
    # ---------------------------------------------------- memory of the GPU
    "cuda-new": (
        "gpu_out_of_memory",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 "
            "GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.2 GiB is "
            "free."
        ),
    ),
    "cuda-old": (
        "gpu_out_of_memory",
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU "
            "0; 10.76 GiB total capacity; 9.71 GiB already allocated)"
        ),
    ),
    "cuda-error": (
        "gpu_out_of_memory",
        "RuntimeError: CUDA error: out of memory",
    ),
    "hip": (
        "gpu_out_of_memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1 GiB.",
    ),
    "cublas": (
        "gpu_out_of_memory",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
            "`cublasCreate(handle)`"
        ),
    ),
    "nccl-calloc": (
        "gpu_out_of_memory",
        (
            "node3:71:99 [4] include/alloc.h:165 NCCL WARN Cuda failure 2 'out "
            "of memory'"
        ),
    ),
    "vllm-kv": (
        "gpu_out_of_memory",
        (
            "ValueError: No available memory for the cache blocks. Try "
            "increasing `gpu_memory_utilization` when initializing the engine."
        ),
    ),
    "vllm-kv-length": (
        "gpu_out_of_memory",
        (
            "ValueError: To serve at least one request with the models's max seq "
            "len (131072), (16.00 GiB KV cache is needed, which is larger than "
            "the available KV cache memory (7.4 GiB)."
        ),
    ),
    "vllm-start": (
        "gpu_out_of_memory",
        (
            "ValueError: Free memory on device (60.2/79.3 GiB) on startup is "
            "less than desired GPU memory utilization (0.9, 71.4 GiB)."
        ),
    ),
    "sglang-memory": (
        "gpu_out_of_memory",
        (
            "RuntimeError: Not enough memory. Please try to increase "
            "--mem-fraction-static."
        ),
    ),
    # -------------------------------------------------------- faults of GPUs
    "xid-79": (
        "gpu_fault",
        (
            "[ 1234.5] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', "
            "name=<unknown>, GPU has fallen off the bus."
        ),
    ),
    "xid-13": (
        "gpu_fault",
        (
            "kernel: NVRM: Xid (PCI:0000:3b:00): 13, pid=4121, name=python, "
            "Graphics SM Warp Exception"
        ),
    ),
    "xid-94": (
        "gpu_fault",
        (
            "NVRM: Xid (PCI:0000:90:00): 94, pid=7194, name=python3, Contained: "
            "SM (0x1). RST: No, D-RST: No"
        ),
    ),
    "xid-74": (
        "gpu_fault",
        "NVRM: Xid (PCI:0000:90:00): 74, pid=7, NVLink: fatal error detected",
    ),
    "illegal": (
        "gpu_fault",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    "illegal-acc": (
        "gpu_fault",
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was "
            "encountered"
        ),
    ),
    "amd-fault": (
        "gpu_fault",
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address "
            "0x7f. Reason: Unknown."
        ),
    ),
    "assert": (
        "gpu_fault",
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    "assert-kernel": (
        "gpu_fault",
        (
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelect"
            "LargeIndex: block: [24,0,0], thread: [64,0,0] Assertion `srcIndex < "
            "srcSelectDimSize` failed."
        ),
    ),
    "ecc": (
        "gpu_fault",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    "launch": (
        "gpu_fault",
        "RuntimeError: CUDA error: unspecified launch failure",
    ),
    "cublas-failed": (
        "gpu_fault",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when "
            "calling `cublasGemmEx(...)`"
        ),
    ),
    "driver-old": (
        "node_misconfigured",
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found "
            "version 11040)."
        ),
    ),
    "fabric": (
        "node_misconfigured",
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error "
            "802: system not yet initialized"
        ),
    ),
    "ordinal": (
        "node_misconfigured",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
    # -------------------------------------------------------- native crashes
    "segfault": (
        "native_crash",
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f "
            '(most recent call first):\n  File "a.py", line 3 in f'
        ),
    ),
    "segfault-bash": (
        "native_crash",
        (
            "run.sh: line 12: 31337 Segmentation fault      (core dumped) python "
            "train.py"
        ),
    ),
    "segfault-kernel": (
        "native_crash",
        (
            "kernel: python[88]: segfault at 10 ip 00007f sp 00007ff error 4 in "
            "libtorch_cuda.so"
        ),
    ),
    "segfault-torchrun": (
        "native_crash",
        "  traceback : Signal 11 (SIGSEGV) received by PID 4021",
    ),
    "segfault-mpi": (
        "native_crash",
        "[node1:2912] Signal: Segmentation fault (11)",
    ),
    "segfault-deepspeed": (
        "native_crash",
        (
            "[2023-07-19 10:43:05,393] [ERROR] [launch.py:321:sigkill_handler] "
            "['/usr/bin/python', 'train.py'] exits with return code = -11"
        ),
    ),
    "segfault-ray": (
        "native_crash",
        "*** SIGSEGV received at time=1708394637 on cpu 3 ***",
    ),
    "bus": ("native_crash", "Fatal Python error: Bus error"),
    "bus-bash": ("native_crash", "Bus error (core dumped)"),
    "smash": (
        "native_crash",
        "*** stack smashing detected ***: terminated",
    ),
    "free": ("native_crash", "double free or corruption (!prev)"),
    "free-invalid": ("native_crash", "free(): invalid pointer"),
    "malloc": ("native_crash", "malloc(): corrupted top size"),
    "abort": (
        "native_crash",
        "./run.sh: line 3: 881 Aborted                 (core dumped) python",
    ),
    "illegal-instruction": (
        "native_crash",
        "Illegal instruction (core dumped)",
    ),
    "terminate": (
        "native_crash",
        "terminate called after throwing an instance of 'std::runtime_error'",
    ),
    "check": (
        "native_crash",
        (
            "[2026-02-20 02:03:57,123 C 77 88] core_worker.cc:1020:  Check "
            "failed: addr.has_value()"
        ),
    ),
    # --------------------------------------------------------- disk and files
    "disk": (
        "disk_full",
        "OSError: [Errno 28] No space left on device: '/ckpt/step_1000'",
    ),
    "quota": ("disk_full", "OSError: [Errno 122] Disk quota exceeded"),
    "disk-torch": (
        "disk_full",
        (
            "RuntimeError: [enforce fail at inline_container.cc:603] . "
            "PytorchStreamWriter failed writing file data/17: file write failed"
        ),
    ),
    "disk-ray": (
        "disk_full",
        (
            "(raylet) file_system_monitor.cc:116: /tmp/ray/session_2026-02-20 is "
            "over 95% full, available space: 12.3 GB; capacity: 500 GB."
        ),
    ),
    "disk-rust": (
        "disk_full",
        (
            "safetensors_rust.SafetensorError: Error while serializing: IoError("
            'Os { code: 28, kind: StorageFull, message: "No space left on '
            'device" })'
        ),
    ),
    "files": ("node_misconfigured", "OSError: [Errno 24] Too many open files"),
    "ancdata": (
        "node_misconfigured",
        "RuntimeError: received 0 items of ancdata",
    ),
    "threads": (
        "node_misconfigured",
        "RuntimeError: can't start new thread",
    ),
    "stale": ("io_wait", "OSError: [Errno 116] Stale file handle: '/nfs/a'"),
    "input-output": ("io_wait", "OSError: [Errno 5] Input/output error"),
    "nfs": (
        "io_wait",
        "kernel: nfs: server filer3 not responding, still trying",
    ),
    "hung-task": (
        "io_wait",
        "kernel: INFO: task python:4242 blocked for more than 120 seconds.",
    ),
    "checkpoint": (
        "rank_crashed",
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: "
            "failed finding central directory"
        ),
    ),
    "safetensors": (
        "rank_crashed",
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: "
            "HeaderTooLarge"
        ),
    ),
    "state-dict": (
        "rank_crashed",
        "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:",
    ),
    "hub": (
        "rank_crashed",
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened "
            "while trying to locate the file on the Hub"
        ),
    ),
    "hub-path": (
        "rank_crashed",
        (
            "OSError: mistralai/Nope is not a local folder and is not a valid "
            "model identifier listed on 'https://huggingface.co/models'"
        ),
    ),
    "permission": (
        "node_misconfigured",
        "PermissionError: [Errno 13] Permission denied: '/data/index'",
    ),
    "module": (
        "node_misconfigured",
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
    "module-python": (
        "node_misconfigured",
        "/usr/bin/python3: No module named torch.distributed.run",
    ),
    "symbol": (
        "node_misconfigured",
        "ImportError: /opt/flash_attn_2_cuda.so: undefined symbol: _ZN3c10",
    ),
    "glibc": (
        "node_misconfigured",
        (
            "python: /lib/libc.so.6: version `GLIBC_2.34' not found (required by "
            "/opt/libx.so)"
        ),
    ),
    # ---------------------------------------------------------------- numbers
    "nan-hf": (
        "loss_not_finite",
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 9e-06, 'epoch': 1}",
    ),
    "nan-hf-grad": (
        "loss_not_finite",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9e-06, 'epoch': 1}",
    ),
    "nan-megatron": (
        "loss_not_finite",
        (
            " iteration     5426/  250000 | consumed samples:        43408 | "
            "learning rate: 2.999E-04 | lm loss: NAN | loss scale: 1.0 | grad "
            "norm: 1.2 | number of nan iterations:   0 |"
        ),
    ),
    "nan-megatron-grad": (
        "loss_not_finite",
        (
            " iteration     5426/  250000 | loss scale: 1.0 | grad norm: nan | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        ),
    ),
    "nan-mmengine": (
        "loss_not_finite",
        (
            "10/30 22:19:57 - mmengine - INFO - Epoch(train) [1][240/735]  lr: "
            "1.9e-04  memory: 10762  loss: 2.5128  grad_norm: nan"
        ),
    ),
    "nan-lightning": (
        "loss_not_finite",
        (
            "Epoch 3:  45%|####5     | 45/100 [00:12<00:14,  3.7it/s, v_num=2, "
            "train_loss=nan]"
        ),
    ),
    "nan-verl": (
        "loss_not_finite",
        "step:12 - actor/pg_loss:nan - actor/grad_norm:0.1 - timing_s/gen:3",
    ),
    "nan-json": (
        "loss_not_finite",
        '{"epoch": 1, "train_loss": NaN, "lr": 0.1}',
    ),
    "nan-torchtitan": (
        "loss_not_finite",
        (
            "[titan] 2026-02-20 02:03:57,123 - root - INFO - step: 70  loss: "
            "    nan  grad_norm:    nan  memory: 30.2GiB"
        ),
    ),
    "nan-keras": ("loss_not_finite", "32/100 - 1s - loss: nan - accuracy: 0"),
    "nan-table": ("loss_not_finite", "| 12 | loss nan | lr 0.1 |"),
    "nan-megatron-check": (
        "loss_not_finite",
        (
            "AssertionError: Rank 3: found NaN in local grad norm in backward "
            "pass before data-parallel communication collective."
        ),
    ),
    "nan-anomaly": (
        "loss_not_finite",
        (
            "RuntimeError: Function 'MulBackward0' returned nan values in its "
            "0th output."
        ),
    ),
    "nan-sampling": (
        "loss_not_finite",
        (
            "RuntimeError: probability tensor contains either `inf`, `nan` or "
            "element < 0"
        ),
    ),
    "nan-detr": ("loss_not_finite", "Loss is nan, stopping training"),
    "nan-fairseq": (
        "loss_not_finite",
        (
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss "
            "is probably exploding."
        ),
    ),
    "nan-deepspeed": (
        "loss_not_finite",
        (
            "Exception: Current loss scale already at minimum - cannot decrease "
            "scale anymore. Exiting run."
        ),
    ),
    "inf-grad": (
        "loss_not_finite",
        "{'loss': 12.3, 'grad_norm': inf, 'learning_rate': 1e-5}",
    ),
    # ----------------------------------------------------------- Slurm, nodes
    "time-limit": (
        "killed",
        (
            "slurmstepd: error: *** STEP 494583.0 ON n1 CANCELLED AT "
            "2024-04-20T09:09:37 DUE TO TIME LIMIT ***"
        ),
    ),
    "node-fail": (
        "node_misconfigured",
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT "
            "2024-04-20T09:09:37 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
        ),
    ),
    "preempted": (
        "killed",
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT "
            "2024-04-20T09:09:37 DUE TO PREEMPTION ***"
        ),
    ),
    "cancelled": (
        "killed",
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT "
            "2024-04-20T09:09:37 ***"
        ),
    ),
    "machine-check": (
        "node_misconfigured",
        "mce: [Hardware Error]: Machine check events logged",
    ),
    # ---------------------------------------------------------------- network
    "ib": (
        "network_failure",
        (
            "kp-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got "
            "completion from peer 10.216.210.236<54862> with status=12 opcode=0 "
            "len=0 vendor err 129 (Recv)"
        ),
    ),
    "ib-event": (
        "network_failure",
        "n1:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    ),
    "nccl-system": (
        "network_failure",
        (
            "torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/ProcessGroupNCCL.cpp:1275, unhandled system error "
            "(run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1"
        ),
    ),
    "nccl-remote": (
        "network_failure",
        (
            "ncclRemoteError: A call failed possibly due to a network error or a "
            "remote process exiting prematurely."
        ),
    ),
    "interface": (
        "network_misconfigured",
        (
            "n1:1:2 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket "
            "interface found"
        ),
    ),
    "dns": (
        "network_misconfigured",
        "socket.gaierror: [Errno -2] Name or service not known",
    ),
    "route": (
        "network_misconfigured",
        (
            "n1:1:2 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect "
            "to 192.168.1.2<4455> failed : No route to host"
        ),
    ),
    "port": (
        "node_misconfigured",
        (
            "RuntimeError: The server socket has failed to listen on any local "
            "network address. The server socket has failed to bind to "
            "[::]:29500 (errno: 98 - Address already in use)."
        ),
    ),
    "duplicate-gpu": (
        "node_misconfigured",
        (
            "init.cc:795 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 "
            "both on CUDA device 1a000"
        ),
    ),
    "watchdog-2.1": (
        "collective_timeout",
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, "
            "Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out."
        ),
    ),
    "watchdog-2.6": (
        "collective_timeout",
        (
            "[rank1]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:629] [Rank 1] "
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=10000)"
        ),
    ),
    "heartbeat": (
        "collective_timeout",
        (
            "[F ProcessGroupNCCL.cpp:1185] ProcessGroupNCCL's watchdog got stuck "
            "for 480 seconds without making progress in monitoring enqueued"
        ),
    ),
    "gloo-wait": (
        "collective_timeout",
        (
            "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:84] Timed "
            "out waiting 1800000ms for recv operation to complete"
        ),
    ),
    "gloo-closed": (
        "network_failure",
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
            "pair.cc:547] Connection closed by peer [127.0.0.1]:3211"
        ),
    ),
    "fingerprint": (
        "type_mismatch",
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank "
            "1 is running collective: CollectiveFingerPrint(SequenceNumber=485"
        ),
    ),
    "store-clients": (
        "rendezvous_timeout",
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds "
            "waiting for clients. 1/2 clients joined."
        ),
    ),
    "store-socket": (
        "rendezvous_timeout",
        (
            "[E521 10:00:00 socket.cpp:1023] [c10d] The client socket has timed "
            "out after 600000ms while trying to connect to (10.0.0.1, 29500)."
        ),
    ),
    "rendezvous": (
        "rendezvous_timeout",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    "store-gone": (
        "network_failure",
        (
            "[W socket.cpp:460] [c10d] TCPStore recvValue failed on "
            "SocketImpl(fd=3, addr=[a]:1, remote=[b]:2): failed to recv, got 0 "
            "bytes"
        ),
    ),
    # -------------------------------------------------------------------- Ray
    "ray-register": (
        "ray_worker_start_timeout",
        (
            "(raylet) Some workers of the worker process(88) have not registered "
            "within the timeout. The process is dead, probably it crashed"
        ),
    ),
    "ray-env": (
        "ray_worker_start_timeout",
        (
            "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime "
            "environment."
        ),
    ),
    "ray-actor": (
        "actor_died",
        (
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before "
            "finishing this task."
        ),
    ),
    "ray-actor-long": (
        "actor_died",
        (
            "The actor is dead because its worker process has died. Worker exit "
            "type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits "
            "with a connection error code 2. End of file. There are some "
            "potential root causes. (1) The process is killed by SIGKILL by OOM "
            "killer due to high memory usage. (2) ray stop --force is called. "
            "(3) The worker is crashed unexpectedly due to SIGSEGV or other "
            "unexpected errors."
        ),
    ),
    "ray-node-died": (
        "actor_died",
        (
            "(raylet) The node with node id: 12ab and address: 10.0.0.4 and node "
            "name: 10.0.0.4 has been marked dead because the detector has missed "
            "too many heartbeats from it."
        ),
    ),
    "ray-gpus": (
        "start_up_stalled",
        "TimeoutError: Timed out waiting for GPUs: 8/16 after 300s",
    ),
    "sglang-quit": (
        "rank_crashed",
        (
            "[2025-08-08 09:09:09] Received sigquit from a child process. It "
            "usually means the child failed."
        ),
    ),
    "vllm-engine": (
        "rank_crashed",
        "ERROR 06-13 11:37:08 [core.py:515] EngineCore failed to start.",
    ),
    # ----------------------------------------------------------------- deaths
    "killed": ("killed", "Killed"),
    "killed-bash": (
        "killed",
        (
            "/var/spool/slurmd/job191/slurm_script: line 28:  8156 Killed        "
            "          python3 main.py"
        ),
    ),
    "killed-torchrun": (
        "killed",
        "    traceback : Signal 9 (SIGKILL) received by PID 2123",
    ),
    "killed-torchrun-agent": (
        "killed",
        (
            "E1122 02:54:41.000000 1234 torch/distributed/elastic/"
            "multiprocessing/api.py:882] failed (exitcode: -9) local_rank: 3 "
            "(pid: 1234) of binary: /usr/bin/python"
        ),
    ),
    "killed-by-torchrun": (
        "killed",
        (
            "W1123 14:05:30.980000 15336 torch/distributed/elastic/"
            "multiprocessing/api.py:1047] Unable to shutdown process 15342 "
            "via 15, forcefully exiting via 9"
        ),
    ),
    "killed-deepspeed": (
        "killed",
        (
            "[launch.py:434:sigkill_handler] ['/usr/bin/python3', '-u', "
            "'main.py'] exits with return code = -9"
        ),
    ),
    "killed-accelerate": (
        "killed",
        (
            "subprocess.CalledProcessError: Command '['python', 'a.py']' died "
            "with <Signals.SIGKILL: 9>."
        ),
    ),
    "killed-mpi": (
        "killed",
        (
            "mpirun noticed that process rank 3 with PID 0 on node n1 exited on "
            "signal 9 (Killed)."
        ),
    ),
    "killed-srun": ("killed", "srun: error: n1: task 3: Killed"),
    "killed-spawn": (
        "killed",
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 "
            "terminated with signal SIGKILL"
        ),
    ),
    "killed-gunicorn": (
        "killed",
        "[ERROR] Worker (pid:7) was sent SIGKILL! Perhaps out of memory?",
    ),
    "terminated": (
        "killed",
        (
            "W1122 02:54:41.0 12 api.py:897] Sending process 1235 closing signal "
            "SIGTERM"
        ),
    ),
    "mpi-abort": (
        "rank_crashed",
        "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD",
    ),
    "srun-exited": (
        "rank_crashed",
        "srun: error: n17: tasks 0-7: Exited with exit code 1",
    ),
    "torchrun-failed": (
        "rank_crashed",
        (
            "E1122 02:54:41.0 12 torch/distributed/elastic/multiprocessing/"
            "api.py:882] failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: "
            "/usr/bin/python"
        ),
    ),
    # --------------------------------------------------------------- programs
    "build": (
        "rank_crashed",
        "RuntimeError: Error building extension 'fused_adam'",
    ),
    "triton": (
        "rank_crashed",
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared "
            "memory, Required: 147456, Hardware limit: 101376."
        ),
    ),
    "assertion": ("rank_crashed", "AssertionError: batch is empty"),
    "value": (
        "rank_crashed",
        "ValueError: Expected more than 1 value per channel",
    ),
}


# More of them: a cause and a text in each line.
DATA = Path(__file__).parents[2] / "data" / "logscan_failures.txt"
MORE = dict(enumerate(DATA.read_text("utf-8").splitlines(), start=1))


@pytest.mark.parametrize("number", MORE)
def test_more(tmp_path, number):
    """
    So are the texts of a longer list.
    """
    cause, _, text = MORE[number].partition("|")
    lines = text.replace("\\n", "\n")
    (tmp_path / "job.log").write_text(f"step 1 ok\n{lines}\nbye\n")

    report = scan_logs(tmp_path)

    assert [Cause(cause)] == [x.cause for x in report.findings][:1], report


@pytest.mark.parametrize("name", FAILURES)
def test_alone(tmp_path, name):
    """
    A line that tells of a failure is found, and taken for what it is.
    """
    cause, text = FAILURES[name]
    (tmp_path / "job.log").write_text(f"step 1 ok\n{text}\nbye\n")

    report = scan_logs(tmp_path)

    assert [Cause(cause)] == [x.cause for x in report.findings][:1], report


@pytest.mark.parametrize("name", FAILURES)
def test_in_ray(tmp_path, name):
    """
    The prefix and the color of Ray's driver do not hide it.
    """
    cause, text = FAILURES[name]
    lines = [
        f"\x1b[36m(Trainer pid=7, ip=10.0.0.2)\x1b[0m {line}"
        for line in text.splitlines()
    ]
    (tmp_path / "job.log").write_text("\n".join(lines))

    report = scan_logs(tmp_path)

    assert Cause(cause) == report.findings[0].cause, report


@pytest.mark.parametrize("name", FAILURES)
def test_in_torchrun(tmp_path, name):
    """
    Nor do the prefixes of torchrun and of torch.
    """
    cause, text = FAILURES[name]
    lines = [f"[default3]:[rank11]: {x}" for x in text.splitlines()]
    (tmp_path / "job.log").write_text("\r\n".join(lines))

    report = scan_logs(tmp_path)

    assert Cause(cause) == report.findings[0].cause, report


EXCEPTIONS = [
    name
    for name, (_, text) in FAILURES.items()
    if "Error: " in text.partition(" ")[0] + " " and "\n" not in text
]


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_in_traceback(tmp_path, name):
    """
    At the end of a traceback it is found once, with its place.
    """
    cause, text = FAILURES[name]
    trace = textwrap.dedent(
        """\
        Traceback (most recent call last):
          File "/home/me/train.py", line 17, in main
            step()
        """
    )
    (tmp_path / "rank_3.log").write_text(f"{trace}{text}\n")

    report = scan_logs(tmp_path)
    (finding,) = report.findings

    assert Cause(cause) == finding.cause
    assert (3,) == finding.ranks
    assert "main (train.py:17)" == finding.location.brief

"""
Texts that speak of errors, and errors that look like such texts.
"""

from __future__ import annotations

import pytest


REAL = r"""
ERROR 06-11 03:40:11 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
[gpu1:2312 :0:2312] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)
/var/spool/slurmd/job12/slurm_script: line 41: 12345 Segmentation fault      (core dumped) python train.py
bash: line 1:  4111 Bus error               (core dumped) python3 train.py
2025-06-11 03:00:01,123 ERROR trainer: step failed: CUDA out of memory
Exception in worker 3: CUDA out of memory while running forward
{"level": "ERROR", "text": "CUDA out of memory. Tried to allocate 2 GiB"}
{"severity":"ERROR","message":"RuntimeError: CUDA error: device-side assert triggered"}
{"text": "2025-06-11 | ERROR | CUDA out of memory. Tried", "record": {"level": {"name": "ERROR"}}}
Error handling request 17: CUDA out of memory. Tried to allocate 1 GiB
Trial trainable_12 errored with CUDA out of memory. Tried to allocate 1 GiB
[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered
terminate called after throwing an instance of 'std::bad_alloc'
OSError: [Errno 28] No space left on device: '/scratch/ckpt.pt'
cp: error writing '/scratch/x': No space left on device
rsync: write failed on "/x/y": No space left on device (28)
tar: ckpt.pt: Wrote only 2048 of 10240 bytes: No space left on device
Failed to save checkpoint: [Errno 122] Disk quota exceeded
gpu-a1 kernel: python3[4242]: segfault at 10 ip 00007f3b2be42520 sp 00007ffd error 4 in libnccl.so
*** Process received signal *** Signal: Segmentation fault (11)
Fatal Python error: Segmentation fault
RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled system error
[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.
what():  CUDA error: an illegal memory access was encountered
User provided function raised: RuntimeError: CUDA out of memory. Tried to allocate
Worker (TP0 pid=12) ERROR CUDA out of memory
thread 'main' panicked at src/x.rs: CUDA_ERROR_OUT_OF_MEMORY "out of memory"
slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.
Job 12 on host=gpu1 user=root: Out of memory: Killed process 4242 (python3)
Loss is nan, stopping training
step 12 | loss: nan | lr 1e-4
ERROR: rank 3: found NaN in local grad norm in backward pass
GPU 3 has 2 uncorrectable ECC errors
RuntimeError: uncorrectable ECC error encountered
#  SIGSEGV (0xb) at pc=0x00007f3b2be42520, pid=4242, tid=4242
Response from server: 500 Internal error, CUDA out of memory
""".strip().splitlines()

QUOTED = r"""
Q: How do I fix CUDA out of memory? A: reduce the batch size.
A: The error Segmentation fault (core dumped) means that a pointer is bad.
### Human: I got OSError: [Errno 28] No space left on device when saving
<|user|> my program dies with Bus error (core dumped)
{"prompt": "What is a segmentation fault?", "completion": "A segmentation fault is a crash."}
{"role": "user", "content": "Why do I get CUDA out of memory?"}
{"role": "assistant", "content": "CUDA out of memory can be caused by large batches."}
[generated text]: If you see RuntimeError: CUDA error: device-side assert triggered, check labels
* Fix segmentation fault in data loader (#123)
- Fixed CUDA out of memory in long runs
commit 8812: avoid CUDA out of memory on eval
This option prevents CUDA out of memory on small GPUs.
  --skip-oom            skip batches with CUDA out of memory
+ echo 'No space left on device'
++ grep -q Killed dmesg.txt
Note: A bus error usually means that /dev/shm is too small
Tip: how to fix CUDA out of memory: use gradient checkpointing
test_bus_error (tests.TestSignals.test_bus_error) ... ok
Simulating CUDA out of memory at step 3 for the resilience test
Instruction: explain the error "RuntimeError: CUDA out of memory."
caption: "a T-shirt that reads Segmentation fault"
Decoded text: segmentation fault segmentation fault
Prediction 3: the process was killed with SIGKILL
reference: No space left on device
## CUDA out of memory
-    raise RuntimeError('CUDA out of memory')
+    logger.warning("CUDA out of memory, skipping")
The disk is full of stars
Legend: X = uncorrectable ECC errors
""".strip().splitlines()


@pytest.mark.parametrize("number", range(len(REAL)))
def test_real(scan, number):
    """
    An error is found, whatever a logger or a program writes before it.
    """
    report = scan(f"start\n{REAL[number]}\n")

    assert report.findings
    assert "possible" != report.findings[0].confidence


@pytest.mark.parametrize("number", range(len(QUOTED)))
def test_quoted(scan, number):
    """
    Questions, answers, help texts, and lists of changes are no errors.
    """
    report = scan(f"start\n{QUOTED[number]}\n")

    assert () == report.findings


def test_users(scan, tmp_path):
    """
    A rule of the user finds all that fits it.
    """
    rules = tmp_path / "mine.toml"
    rules.write_text(
        '[[rule]]\nname = "mine"\nwords = ["tokens gone"]\n'
        'cause = "io_wait"\nsays = "the tokens are gone"\n'
    )

    report = scan("Response: why are the tokens gone?\n", rules=[rules])

    assert "mine" == report.groups[0].rule

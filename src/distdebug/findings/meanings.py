"""
What does a cause mean, in one sentence for somebody who never heard of it?
"""

from __future__ import annotations

from .model import Cause


__all__ = ["meaning_of"]

_MEANINGS = {
    Cause.UNKNOWN: "Something may be wrong, and what was looked at does not "
    "tell what.",
    Cause.HEALTHY: "Nothing was found, not even a suspect.",
    # From Flight Recorder dumps.
    Cause.RANK_NOT_ARRIVED: "The others wait in a call that not every rank "
    "entered; the reason is on the host of who is missing, not on its GPU.",
    Cause.RANK_CRASHED: "Whoever is at fault is gone; the others only lost a "
    "peer.",
    Cause.RANK_NOT_STARTED: "The call was asked for, but never began on the "
    "GPU: something before it does not end.",
    Cause.RANK_BLOCKED_IN_LAUNCH: "The host is stuck while it launches a "
    "call.",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "All ranks are in the call, with equal "
    "arguments, and it does not end: look at network and GPUs, not at the "
    "code.",
    Cause.TYPE_MISMATCH: "In the same place, another call was made than on "
    "the other ranks.",
    Cause.SIZE_MISMATCH: "The same call was made with tensors of other sizes "
    "than on the other ranks.",
    Cause.DTYPE_MISMATCH: "The same call was made with tensors of another "
    "data type than on the other ranks.",
    Cause.SKIPPED_COLLECTIVE: "A call was left out that the others made, so "
    "all later calls are one off.",
    Cause.EXTRA_COLLECTIVE: "A call was made that the others did not make.",
    Cause.GROUP_ORDER_DEADLOCK: "Ranks wait for each other in a circle: they "
    "use several groups in different orders.",
    Cause.P2P_DEADLOCK: "Ranks wait for each other in a circle of sends and "
    "receives.",
    Cause.STRAGGLER: "Nothing is stuck, but the others wait for the same "
    "ranks again and again.",
    # From stacks and the state of processes.
    Cause.COLLECTIVE_WAIT: "Waits for other ranks in a collective.",
    Cause.RENDEZVOUS_WAIT: "Waits for other ranks while the job, or a group, "
    "is set up.",
    Cause.GIL_CONTENTION: "One thread holds the lock of the Python "
    "interpreter, and the others cannot run.",
    Cause.DATALOADER_WAIT: "Waits for data.",
    Cause.LOCK_DEADLOCK: "Waits for a lock that nobody gives up.",
    Cause.IO_WAIT: "Waits for a file, a pipe, or a socket.",
    Cause.SLEEPING: "Sleeps, as it was told to, or waits for a signal.",
    Cause.IMPORT_LOCK: "Imports a module, or waits for a thread that does.",
    Cause.SUBPROCESS_WAIT: "Waits for a process that it started.",
    Cause.QUEUE_WAIT: "Waits for a queue that is empty, or full.",
    Cause.FUTURE_WAIT: "Waits for the result of another thread or process.",
    Cause.PYTHON_LOOP: "Runs Python code and does not leave its function.",
    Cause.NATIVE_SPIN: "Runs native code that does not return.",
    Cause.EVENT_LOOP_STALL: "Something blocks an event loop, so that nothing "
    "else of it runs.",
    Cause.EVENT_LOOP_IDLE: "An event loop waits for something to do.",
    Cause.GPU_KERNEL: "Waits for a kernel that runs on its GPU.",
    Cause.GPU_SYNC_WAIT: "Waits for its GPU to finish what it was given.",
    Cause.LAUNCH_BLOCKED: "Is stuck while it gives work to its GPU.",
    Cause.IDLE: "Waits for requests, as it should.",
    Cause.COMPILING: "Compiles code, or tries out kernels.",
    Cause.CHECKPOINTING: "Reads or writes a checkpoint.",
    Cause.STOPPED: "Was stopped by a signal or a debugger.",
    Cause.DEAD: "Has ended.",
    Cause.UNINTERRUPTIBLE: "Waits in the kernel for a device or a file "
    "system, where no signal reaches it.",
    Cause.PROGRESSING: "Is not stuck: it moved while it was watched.",
    # From logs and nodes.
    Cause.HOST_OUT_OF_MEMORY: "A node had no memory left, and a process was "
    "killed for it.",
    Cause.GPU_OUT_OF_MEMORY: "A GPU had no memory left for what was asked.",
    Cause.GPU_FAULT: "A GPU or its driver reported a fault.",
    Cause.ACTOR_DIED: "A Ray actor died.",
    Cause.NATIVE_CRASH: "A process died of a fault in native code.",
    Cause.KILLED: "A process was killed from outside.",
    Cause.COLLECTIVE_TIMEOUT: "A collective took longer than its time-out, "
    "and torch gave it up.",
    Cause.RENDEZVOUS_TIMEOUT: "Not all ranks came together in time.",
    Cause.NETWORK_MISCONFIGURED: "Addresses, interfaces, or transports do not "
    "fit together.",
    Cause.NETWORK_FAILURE: "A connection or a link broke while the job ran.",
    Cause.NODE_MISCONFIGURED: "A node, a limit, or a variable is set so that "
    "the job cannot work well.",
    Cause.START_UP_STALLED: "A phase of the start-up takes too long.",
    Cause.LOSS_NOT_FINITE: "The loss became infinite, or not a number.",
    Cause.DISK_FULL: "A disk had no space left.",
    Cause.RAY_WORKER_START_TIMEOUT: "A Ray worker did not start in time.",
    Cause.NSIGHT_WRONG_PYTHON: "A profiler started another Python than the "
    "job needs.",
}


def meaning_of(cause: Cause) -> str:
    """
    What does a cause mean?

    Args:
        cause: Any cause.

    Returns:
        One sentence; the reference tells more.
    """
    return _MEANINGS[cause]

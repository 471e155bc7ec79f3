"""
Causes of stuck and failed jobs, with their meaning, traits, and remedy.
"""

from __future__ import annotations

from enum import Flag, StrEnum, auto
from typing import Any, NamedTuple, Self


class Trait(Flag):
    """
    What a cause implies; :class:`Cause` has a property for most.
    """

    FINE = auto()
    IDLE = auto()
    COMPUTING = auto()
    SLOW = auto()
    LAGS = auto()
    PEER_WAIT = auto()
    # A child process may show what is waited for.
    CHILD_WAIT = auto()
    # The kernel that runs on the GPU may show it.
    GPU_WAIT = auto()
    # Another thread of the process may show it.
    DEFERS = auto()
    # Of another thread, it explains why the first one waits.
    EXPLAINS_WAIT = auto()
    # In a callback of an event loop, it blocks the loop.
    BLOCKS_LOOP = auto()
    ABSENCE = auto()
    MISMATCH = auto()
    MISCOUNT = auto()
    CONSEQUENCE = auto()
    NETWORK = auto()
    DEATH = auto()
    KILL = auto()
    ENDS_PROCESS = auto()
    ENDS_JOB = auto()
    BLAMELESS = auto()
    LASTS = auto()


class _Row(NamedTuple):
    value: str
    meaning: str
    traits: Trait = Trait(0)
    remedy: str | None = None


class Cause(StrEnum):
    """
    Causes of a stuck or failed job.  Each has a page in the documentation.

    Attributes:
        meaning: One sentence that explains it; the reference has more.

        traits: What it implies.

        remedy: What to do, where nothing more particular is known.
    """

    _value_: str
    meaning: str
    traits: Trait
    remedy: str | None

    def __new__(cls, value: str, *implied: Any) -> Self:
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.meaning, cause.traits, cause.remedy = implied
        return cause

    UNKNOWN = _Row(
        "unknown",
        "Something may be wrong; the evidence does not show what.",
        Trait.BLAMELESS | Trait.GPU_WAIT,
    )
    HEALTHY = _Row(
        "healthy", "Nothing was found, not even a suspect.", Trait.FINE
    )

    # From Flight Recorder dumps.
    RANK_NOT_ARRIVED = _Row(
        "rank_not_arrived",
        "The others wait in a call that not every rank entered; the reason is "
        "on the host of who is missing, not on its GPU.",
        Trait.ABSENCE,
        "look at the Python stack there, and at the log of these ranks: they "
        "are busy, stuck, or dead outside of this call",
    )
    RANK_CRASHED = _Row(
        "rank_crashed",
        "The rank at fault has ended; the others only lost a peer.",
        Trait.ABSENCE | Trait.DEATH | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
        "look for the exit of these ranks in the logs of their nodes (out of "
        "memory, signal, node lost)",
    )
    RANK_NOT_STARTED = _Row(
        "rank_not_started",
        "The call was asked for, but never began on the GPU: something before "
        "it does not end.",
        remedy="look at what runs on the GPUs of these ranks: an earlier kernel does "
        "not finish",
    )
    RANK_BLOCKED_IN_LAUNCH = _Row(
        "rank_blocked_in_launch",
        "The host is stuck while it launches a call.",
        remedy="take native stacks of these ranks (py-spy dump --native): a call of "
        "CUDA or NCCL does not return, or a thread keeps the GIL",
    )
    COLLECTIVE_STUCK_IN_FLIGHT = _Row(
        "collective_stuck_in_flight",
        "All ranks are in the call, with equal arguments, and it does not "
        "end: look at network and GPUs, not at the code.",
        Trait.BLAMELESS,
        "all ranks entered the call: check the network between them, and on GPUs "
        "their health (Xid) and the NCCL logs",
    )
    TYPE_MISMATCH = _Row(
        "type_mismatch",
        "In the same place, another call was made than on the other ranks.",
        Trait.MISMATCH,
        "make all ranks of the group call the same operation; or find the "
        "call that was left out or made once too often before",
    )
    SIZE_MISMATCH = _Row(
        "size_mismatch",
        "The same call was made with tensors of other sizes than on the other "
        "ranks.",
        Trait.MISMATCH,
        "make all ranks of the group pass the same sizes; or find the call "
        "that was left out or made once too often before",
    )
    DTYPE_MISMATCH = _Row(
        "dtype_mismatch",
        "The same call was made with tensors of another data type than on the "
        "other ranks.",
        Trait.MISMATCH,
        "make all ranks of the group pass the same dtype",
    )
    SKIPPED_COLLECTIVE = _Row(
        "skipped_collective",
        "A call was left out that the others made, so all later calls are one "
        "off.",
        Trait.MISCOUNT,
        "look for a branch that leaves the call out, or a loop that ends "
        "earlier, on these ranks only",
    )
    EXTRA_COLLECTIVE = _Row(
        "extra_collective",
        "A call was made that the others did not make.",
        Trait.MISCOUNT,
        "look for a branch that makes the call on these ranks only",
    )
    GROUP_ORDER_DEADLOCK = _Row(
        "group_order_deadlock",
        "Ranks wait for each other in a circle: they use several groups in "
        "different orders.",
        remedy="call the collectives of these groups in the same order on all ranks",
    )
    P2P_DEADLOCK = _Row(
        "p2p_deadlock",
        "Ranks wait for each other in a circle of sends and receives.",
        remedy="let one side of each pair send first, or use batch_isend_irecv",
    )
    STRAGGLER = _Row(
        "straggler",
        "Nothing is stuck, but the others wait for the same ranks again and "
        "again.",
        Trait.LAGS | Trait.LASTS,
    )
    SLOW_LINK = _Row(
        "slow_link",
        "Transfers between two nodes, or to and from one, take longer than "
        "those between other nodes.",
        Trait.LAGS | Trait.LASTS,
        "compare the network of these nodes with that of the others: errors and "
        "speed of the link (ethtool, ibstat), cables and switches, and which "
        "interface NCCL chose (NCCL_DEBUG=INFO)",
    )

    # From stacks and the state of processes.
    COLLECTIVE_WAIT = _Row(
        "collective_wait",
        "Waits for other ranks in a collective.",
        Trait.PEER_WAIT | Trait.GPU_WAIT | Trait.EXPLAINS_WAIT,
    )
    RENDEZVOUS_WAIT = _Row(
        "rendezvous_wait",
        "Waits for other ranks while the job, or a group, is set up.",
        Trait.PEER_WAIT | Trait.EXPLAINS_WAIT,
    )
    GIL_CONTENTION = _Row(
        "gil_contention",
        "One thread holds the GIL, and the others cannot run.",
    )
    DATALOADER_WAIT = _Row(
        "dataloader_wait",
        "Waits for data.",
        Trait.CHILD_WAIT | Trait.EXPLAINS_WAIT,
    )
    LOCK_DEADLOCK = _Row(
        "lock_deadlock",
        "Waits for a lock that is never released.",
        Trait.GPU_WAIT | Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    IO_WAIT = _Row(
        "io_wait",
        "Waits for a file, a pipe, or a socket.",
        Trait.ENDS_PROCESS | Trait.BLOCKS_LOOP,
    )
    SLEEPING = _Row(
        "sleeping",
        "Sleeps on purpose, or waits for a signal.",
        Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    IMPORT_LOCK = _Row(
        "import_lock",
        "Imports a module, or waits for a thread that does.",
        Trait.EXPLAINS_WAIT,
    )
    SUBPROCESS_WAIT = _Row(
        "subprocess_wait",
        "Waits for a process that it started.",
        Trait.CHILD_WAIT | Trait.BLOCKS_LOOP,
    )
    QUEUE_WAIT = _Row(
        "queue_wait",
        "Waits for a queue that is empty, or full.",
        Trait.CHILD_WAIT | Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    FUTURE_WAIT = _Row(
        "future_wait",
        "Waits for the result of another thread or process.",
        Trait.CHILD_WAIT | Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    PYTHON_LOOP = _Row(
        "python_loop",
        "Runs Python code and does not leave its function.",
        Trait.COMPUTING | Trait.GPU_WAIT | Trait.BLOCKS_LOOP,
    )
    NATIVE_SPIN = _Row(
        "native_spin",
        "Runs native code that does not return.",
        Trait.COMPUTING | Trait.GPU_WAIT | Trait.BLOCKS_LOOP,
    )
    EVENT_LOOP_STALL = _Row(
        "event_loop_stall",
        "Something blocks an event loop, so that nothing else of it runs.",
    )
    EVENT_LOOP_IDLE = _Row(
        "event_loop_idle",
        "An event loop waits for something to do.",
        Trait.FINE | Trait.IDLE | Trait.DEFERS,
    )
    GPU_KERNEL = _Row("gpu_kernel", "Waits for a kernel that runs on its GPU.")
    GPU_SYNC_WAIT = _Row(
        "gpu_sync_wait",
        "Waits for its GPU to finish its work.",
        Trait.GPU_WAIT | Trait.EXPLAINS_WAIT,
    )
    LAUNCH_BLOCKED = _Row(
        "launch_blocked",
        "Is stuck launching work on its GPU.",
        Trait.GPU_WAIT | Trait.EXPLAINS_WAIT,
    )
    IDLE = _Row(
        "idle",
        "Waits for requests, as it should.",
        Trait.FINE | Trait.IDLE | Trait.DEFERS,
    )
    COMPILING = _Row(
        "compiling",
        "Compiles code, or autotunes kernels.",
        Trait.SLOW | Trait.EXPLAINS_WAIT,
    )
    CHECKPOINTING = _Row(
        "checkpointing",
        "Reads or writes a checkpoint.",
        Trait.SLOW | Trait.EXPLAINS_WAIT,
    )
    STOPPED = _Row("stopped", "Was stopped by a signal or a debugger.")
    DEAD = _Row("dead", "Has ended.")
    UNINTERRUPTIBLE = _Row(
        "uninterruptible",
        "Waits in the kernel for a device or a file system, where no signal "
        "reaches it.",
    )
    PROGRESSING = _Row(
        "progressing",
        "Is not stuck: it made progress between two samples.",
        Trait.FINE,
    )

    # From logs and nodes.
    HOST_OUT_OF_MEMORY = _Row(
        "host_out_of_memory",
        "A node ran out of memory, and a process was killed for it.",
        Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    GPU_OUT_OF_MEMORY = _Row(
        "gpu_out_of_memory",
        "A GPU ran out of memory.",
        Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    GPU_FAULT = _Row(
        "gpu_fault",
        "A GPU or its driver reported a fault.",
        Trait.ENDS_PROCESS,
    )
    ACTOR_DIED = _Row(
        "actor_died",
        "A Ray actor died.",
        Trait.DEATH | Trait.KILL | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    NATIVE_CRASH = _Row(
        "native_crash",
        "A process died of a fault in native code.",
        Trait.DEATH | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    KILLED = _Row(
        "killed",
        "A process was killed from outside.",
        Trait.DEATH | Trait.KILL | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    COLLECTIVE_TIMEOUT = _Row(
        "collective_timeout",
        "A collective took longer than its timeout, and torch aborted it.",
        Trait.CONSEQUENCE | Trait.ENDS_JOB | Trait.BLAMELESS,
        "collect the logs of all ranks, with "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
        "so that each leaves a Flight Recorder dump",
    )
    RENDEZVOUS_TIMEOUT = _Row(
        "rendezvous_timeout",
        "Not all ranks joined in time.",
        Trait.CONSEQUENCE | Trait.ENDS_JOB,
    )
    NETWORK_MISCONFIGURED = _Row(
        "network_misconfigured",
        "Addresses, interfaces, or transports do not fit together.",
        Trait.NETWORK,
    )
    NETWORK_FAILURE = _Row(
        "network_failure",
        "A connection or a link broke while the job ran.",
        Trait.CONSEQUENCE | Trait.NETWORK | Trait.ENDS_JOB,
    )
    NODE_MISCONFIGURED = _Row(
        "node_misconfigured",
        "A node, a limit, or a variable is set so that the job cannot work "
        "well.",
        Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    START_UP_STALLED = _Row(
        "start_up_stalled",
        "A phase of the start-up takes too long.",
        Trait.ENDS_JOB,
    )
    LOSS_NOT_FINITE = _Row(
        "loss_not_finite",
        "The loss became infinite, or not a number.",
        Trait.LASTS,
    )
    DISK_FULL = _Row(
        "disk_full", "A disk had no space left.", Trait.ENDS_PROCESS
    )
    RAY_WORKER_START_TIMEOUT = _Row(
        "ray_worker_start_timeout",
        "A Ray worker did not start in time.",
        Trait.ENDS_JOB,
    )
    NSIGHT_WRONG_PYTHON = _Row(
        "nsight_wrong_python",
        "A profiler started another Python than the job needs.",
    )

    @property
    def is_fine(self) -> bool:
        """
        Return whether the cause needs no action.
        """
        return Trait.FINE in self.traits

    @property
    def is_idle(self) -> bool:
        """
        Return whether a process waits for work that may come.
        """
        return Trait.IDLE in self.traits

    @property
    def is_computing(self) -> bool:
        """
        Return whether a process computes, which is seen as work or as a spin.
        """
        return Trait.COMPUTING in self.traits

    @property
    def is_slow(self) -> bool:
        """
        Return whether a process does what may take minutes.
        """
        return Trait.SLOW in self.traits

    @property
    def is_lag(self) -> bool:
        """
        Whether the job makes progress, only slower than it could.
        """
        return Trait.LAGS in self.traits

    @property
    def is_peer_wait(self) -> bool:
        """
        Return whether a process waits for other ranks, and is not the cause.
        """
        return Trait.PEER_WAIT in self.traits

    @property
    def is_absence(self) -> bool:
        """
        Return whether ranks are missing in a call; why is a further question.
        """
        return Trait.ABSENCE in self.traits

    @property
    def is_mismatch(self) -> bool:
        """
        Return whether ranks passed different arguments to one call.
        """
        return Trait.MISMATCH in self.traits

    @property
    def is_miscount(self) -> bool:
        """
        Return whether ranks made a call too few or too many.
        """
        return Trait.MISCOUNT in self.traits

    @property
    def is_consequence(self) -> bool:
        """
        Return whether a process only reports that another one failed it.
        """
        return Trait.CONSEQUENCE in self.traits

    @property
    def is_network(self) -> bool:
        """
        Return whether the network is at fault.
        """
        return Trait.NETWORK in self.traits

    @property
    def is_death(self) -> bool:
        """
        Return whether a process died, whatever it died of.
        """
        return Trait.DEATH in self.traits

    @property
    def is_kill(self) -> bool:
        """
        Return whether a process was ended from outside.
        """
        return Trait.KILL in self.traits

    @property
    def ends_process(self) -> bool:
        """
        Return whether the cause ends or blocks the process that meets it.
        """
        return Trait.ENDS_PROCESS in self.traits

    @property
    def ends_job(self) -> bool:
        """
        Return whether the cause ends a job, so that later steps show recovery.
        """
        return Trait.ENDS_JOB in self.traits

    @property
    def is_lasting(self) -> bool:
        """
        Return whether it stays true while the job goes on, and at its end.
        """
        return Trait.LASTS in self.traits

    @property
    def is_blameless(self) -> bool:
        """
        Return whether its ranks share or report a problem, and did not cause it.
        """
        return Trait.BLAMELESS in self.traits

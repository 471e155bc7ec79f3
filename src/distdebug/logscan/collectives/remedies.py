"""
What is to be done about it?
"""

from __future__ import annotations

from ...findings import Cause


__all__ = ["COLLECT", "OTHER_INTERFACE", "REMEDIES"]

COLLECT = (
    "collect the logs of all ranks, with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 so that each leaves a Flight Recorder dump"
)
REMEDIES = {
    Cause.RANK_NOT_ARRIVED: "look at the Python stack there, and at the log "
    "of these ranks: they are busy, stuck, or dead outside of this call",
    Cause.RANK_NOT_STARTED: "look at what runs on the GPUs of these ranks: "
    "an earlier kernel does not finish",
    Cause.RANK_BLOCKED_IN_LAUNCH: "take native stacks of these ranks "
    "(py-spy dump --native): a call of CUDA or NCCL does not return, or a "
    "thread keeps the GIL",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "everyone arrived: check the network "
    "between these ranks, and on GPUs their health (Xid) and the NCCL logs",
    Cause.COLLECTIVE_TIMEOUT: COLLECT,
    Cause.TYPE_MISMATCH: "make all ranks of the group call the same operation; "
    "or find the call that was left out or made once too often before",
    Cause.SIZE_MISMATCH: "make all ranks of the group pass the same sizes; or "
    "find the call that was left out or made once too often before",
    Cause.DTYPE_MISMATCH: "make all ranks of the group pass the same dtype",
    Cause.SKIPPED_COLLECTIVE: "look for a branch that leaves a call out on "
    "these ranks only",
    Cause.GROUP_ORDER_DEADLOCK: "call the collectives of these groups in the "
    "same order on all ranks",
}
OTHER_INTERFACE = (
    "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) on every node to the "
    "interface through which the nodes reach each other"
)

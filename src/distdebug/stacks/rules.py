"""
Which function, in which file, tells what a thread is waiting for?

The rules are data.  They are tried in order, so what is special comes before
what is general: a thread that reads a file *for a data loader* waits for data.
"""

from __future__ import annotations

import re

import attrs

from ..findings import Cause


__all__ = [
    "CODE_RULES",
    "DOING",
    "NAME_RULES",
    "RULES",
    "CodeRule",
    "Rule",
]


def _compile(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _compile_path(text: str) -> re.Pattern[str]:
    # Written with slashes for legibility, and meant for every system.
    return re.compile(text.replace("/", r"[/\\]"))


@attrs.frozen
class Rule:
    """
    If one of the innermost lines is of this function in this file, then ….

    Attributes:
        cause: What the thread is doing.

        file: Is searched for in the name of the file.

        function: Has to match the name of the function, without its class.

        within: How many of the innermost lines to look at.
    """

    cause: Cause
    file: re.Pattern[str] = attrs.field(converter=_compile_path)
    function: re.Pattern[str] = attrs.field(converter=_compile, default="")
    within: int = 1_000_000


@attrs.frozen
class CodeRule:
    """
    If the innermost line of code reads like this, then ….

    Functions that are written in C leave no line in a Python stack; who calls
    them does.
    """

    cause: Cause
    code: re.Pattern[str] = attrs.field(converter=_compile)


RULES = (
    Rule(
        Cause.RENDEZVOUS_WAIT,
        r"(^|/)torch/distributed/",
        r"init_process_group|_?rendezvous|.*_rendezvous_handler|next_rendezvous"
        r"|_store_based_barrier|_create_c10d_store|_new_group_with_tag",
        within=8,
    ),
    Rule(
        Cause.COLLECTIVE_WAIT,
        r"(^|/)(torch/distributed/(distributed_c10d|_functional_collectives"
        r"|nn/functional|c10d_logger)\.py|deepspeed/comm/"
        r"|megatron/core/pipeline_parallel/p2p_communication)",
        within=6,
    ),
    Rule(
        Cause.COLLECTIVE_WAIT,
        "",
        r".*(c10d::|gloo::|ProcessGroup|ncclComm|ncclGroupEnd).*",
        within=30,
    ),
    Rule(
        Cause.GPU_SYNC_WAIT,
        r"(^|/)torch/(cuda|xpu|hip|accelerator)/",
        "synchronize|wait_event|wait_stream",
        within=4,
    ),
    Rule(
        Cause.GPU_SYNC_WAIT,
        "",
        r"cu(da)?(StreamSynchronize|EventSynchronize|DeviceSynchronize"
        r"|CtxSynchronize)(_.*)?",
        within=30,
    ),
    Rule(
        Cause.CHECKPOINTING,
        r"(^|/)(torch/(serialization\.py|distributed/checkpoint/)"
        r"|safetensors/|orbax/)",
    ),
    Rule(
        Cause.DATALOADER_WAIT,
        r"(^|/)(torch/utils/data|torchdata|webdataset|litdata|nvidia/dali"
        r"|streaming/base)/",
    ),
    Rule(
        Cause.COMPILING,
        r"(^|/)(torch/_inductor/(compile_fx|codecache|async_compile|graph"
        r"|scheduler)|torch/_dynamo/convert_frame|torch/utils/cpp_extension"
        r"|triton/(compiler|runtime/build))",
    ),
    Rule(
        Cause.SUBPROCESS_WAIT,
        r"(^|/)(subprocess|multiprocessing/popen_\w+)\.py$",
        within=6,
    ),
    Rule(Cause.IMPORT_LOCK, r"importlib\._bootstrap", within=6),
    Rule(
        Cause.FUTURE_WAIT,
        r"(^|/)(concurrent/futures/|ray/_private/worker\.py)",
        within=6,
    ),
    Rule(
        Cause.QUEUE_WAIT,
        r"(^|/)(queue\.py$|multiprocessing/(queues|connection)\.py$)",
        within=6,
    ),
    Rule(
        Cause.EVENT_LOOP_IDLE, r"(^|/)asyncio/base_events\.py$", "_run_once", 2
    ),
    Rule(
        Cause.IO_WAIT,
        r"(^|/)(socket|ssl|socketserver|selectors|pathlib(/\w+)?|gzip|tarfile"
        r"|zipfile(/\w+)?|shutil|http/client|urllib/request)\.py$"
        r"|(^|/)(urllib3|requests|botocore|s3fs|gcsfs|fsspec|aiohttp)/",
        within=4,
    ),
    Rule(
        Cause.FUTURE_WAIT,
        r"(^|/)threading\.py$",
        "join|_wait_for_tstate_lock",
        within=3,
    ),
    Rule(
        Cause.LOCK_DEADLOCK,
        r"(^|/)threading\.py$",
        "wait|wait_for|acquire|__enter__|_acquire_restore",
        within=4,
    ),
    Rule(Cause.LOCK_DEADLOCK, r"(^|/)filelock/", within=4),
    Rule(
        Cause.SLEEPING,
        "",
        r"_?sleep|pysleep|(clock_)?nanosleep",
        within=6,
    ),
)

CODE_RULES = (
    CodeRule(Cause.SLEEPING, r"\bsleep\("),
    CodeRule(Cause.SUBPROCESS_WAIT, r"\bos\.(system|popen|wait\w*)\("),
    CodeRule(
        Cause.LOCK_DEADLOCK,
        r"\b(flock|lockf)\(|\.acquire\(|\bwith\b.*\b\w*(lock|mutex)\b",
    ),
    CodeRule(Cause.GPU_SYNC_WAIT, r"\bsynchronize\(\)"),
    CodeRule(
        Cause.IO_WAIT,
        r"\bopen\(|\binput\(|\.(read|readline|readlines|readinto|pread"
        r"|recv|accept|connect|flush|fsync)\(|\bfor\b.*\bin (sys\.stdin|\w*file)\b",
    ),
)

# What a name tells is weaker than what the code at its innermost line calls.
NAME_RULES = (
    Rule(Cause.CHECKPOINTING, "", r"_?save_(checkpoint|pretrained|sharded)"),
)

DOING = {
    Cause.RENDEZVOUS_WAIT: "is waiting in the rendezvous",
    Cause.COLLECTIVE_WAIT: "is waiting in a collective",
    Cause.GPU_SYNC_WAIT: "is waiting for its GPU",
    Cause.CHECKPOINTING: "is writing or reading a checkpoint",
    Cause.DATALOADER_WAIT: "is waiting for data",
    Cause.COMPILING: "is compiling",
    Cause.SUBPROCESS_WAIT: "is waiting for a subprocess",
    Cause.IMPORT_LOCK: "is importing a module",
    Cause.FUTURE_WAIT: "is waiting for another thread",
    Cause.QUEUE_WAIT: "is waiting for a queue",
    Cause.EVENT_LOOP_IDLE: "has an idle event loop",
    Cause.IO_WAIT: "is blocked in I/O",
    Cause.LOCK_DEADLOCK: "is waiting for a lock",
    Cause.SLEEPING: "is sleeping",
    Cause.PYTHON_LOOP: "is running Python code",
}

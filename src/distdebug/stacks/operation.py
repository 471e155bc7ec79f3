"""
Which collective is it that a rank waits in?
"""

from __future__ import annotations

import re

from .places import is_native, last_name
from .view import ProcessView


__all__ = ["is_receiving", "operation_of"]

_COMMUNICATION = re.compile(
    r"(^|/)(torch/(_ops|distributed/(?!elastic|launcher|checkpoint|fsdp)[\w/]+"
    r"|nn/parallel/distributed)|deepspeed/comm/\w+|torch/utils/_contextlib"
    r"|torch/_dynamo/eval_frame|megatron/core/pipeline_parallel/p2p_\w+"
    r"|horovod/.*|(vllm|sglang)/(srt/)?distributed/.*)\.py$"
)
# What is around a call, and says nothing.
_WRAPPERS = frozenset(
    {
        "wrapper",
        "_fn",
        "inner",
        "log_wrapper",
        "decorate_context",
        "wrapped_fn",
        "__call__",
        "wait_tensor",
        "wait",
        "_wait",
        "__torch_dispatch__",
        "__torch_function__",
    }
)
_RECEIVES = re.compile(
    r"(^|_)i?recv(_|$)|^receive|^recv_(forward|backward|prev|next|object)"
)


def operation_of(view: ProcessView) -> str:
    """
    Name the call that the user, or a framework, made.

    Args:
        view: What a rank does.

    Returns:
        Such as ``"all_reduce"``; ``""`` if it is not known.
    """
    frames = view.thread.frames if view.thread else ()
    found = innermost = ""
    for frame in frames:
        if is_native(frame):
            continue
        path = frame.filename.replace("\\", "/")
        if not _COMMUNICATION.search(path[-300:]):
            break
        name = last_name(frame.name)
        innermost = innermost or name
        if name not in _WRAPPERS:
            found = name
    return found or innermost


def is_receiving(view: ProcessView) -> bool:
    """
    Whether a rank waits for a message of one other rank.

    Args:
        view: What the rank does.
    """
    return bool(_RECEIVES.search(operation_of(view)))

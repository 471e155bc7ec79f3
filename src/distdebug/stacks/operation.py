"""
Which collective is it that a rank waits in?
"""

from __future__ import annotations

import re

from collections.abc import Sequence

from .model import StackFrame
from .places import is_native, last_name
from .view import ProcessView


__all__ = ["is_message", "is_receiving", "operation_of"]

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
_MESSAGE = re.compile(r"\b(i(?:send|recv))\(.{0,400}\)\.wait\(")
_P2P = re.compile(r"(^|_)i?(send|recv)(_|$)|^(receive|batch_isend_irecv)")
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
    return found or innermost or _message_of(frames)


def _message_of(frames: Sequence[StackFrame]) -> str:
    """
    Name the message that a line waits for, as torch itself has no line there.
    """
    line = next((f.code for f in frames if not is_native(f)), "")
    told = _MESSAGE.search(line)
    return told[1] if told else ""


def is_message(operation: str) -> bool:
    """
    Whether a call concerns one other rank only.

    Args:
        operation: What :func:`operation_of` returned.
    """
    return bool(_P2P.search(operation))


def is_receiving(view: ProcessView) -> bool:
    """
    Whether a rank waits for a message of one other rank.

    Args:
        view: What the rank does.
    """
    return bool(_RECEIVES.search(operation_of(view)))

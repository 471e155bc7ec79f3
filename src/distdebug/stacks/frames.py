"""
How does a stack look that is to be compared with those of other ranks?

Ranks that do the same have different addresses, wrappers, and places inside
the communication library.  Those are left out, and what tells ranks apart is
kept.
"""

from __future__ import annotations

import re
import sys

from collections.abc import Iterable
from functools import lru_cache

from .._frameworks import is_framework
from .model import StackFrame


__all__ = ["is_own", "normal_frame", "normal_frames"]

_INSTALLED = re.compile(
    r"\A.*[/\\](?:site-packages|dist-packages|lib/python3(?:\.\d+)?t?)[/\\]"
)
_LIBRARY_VERSION = re.compile(r"(?:-[\d.]+)?\.so(?:\.[\d.]+)?$")
_TAGS = re.compile(
    r"@.*$|\[abi:\w*\]| ?\[clone [^\]]*\]|\.(?:constprop|isra)\..*"
)

# What wraps a call, and is no place in a program.
_WRAPPERS = {
    "_call_impl": "torch/nn/modules/module.py",
    "_wrapped_call_impl": "torch/nn/modules/module.py",
    "wrapper": "torch/distributed/c10d_logger.py",
    "decorate_context": "torch/utils/_contextlib.py",
    "_fn": "torch/_dynamo/eval_frame.py",
    "wrapped_fn": "deepspeed/utils/nvtx.py",
    "log_wrapper": "deepspeed/comm/comm.py",
    "_resume_span": "ray/util/tracing/tracing_helper.py",
    "auto_init_wrapper": "ray/_private/auto_init_hook.py",
    "inner": "contextlib.py",
    "_run_code": "<frozen runpy>",
    "_run_module_as_main": "<frozen runpy>",
}
_OTHER_WRAPPERS = {
    ("wrapper", "ray/_private/client_mode_hook.py"),
    (
        "wrapper",
        "torch/distributed/elastic/multiprocessing/errors/__init__.py",
    ),
    ("_run_code", "runpy.py"),
    ("_run_module_as_main", "runpy.py"),
}

# The innermost frame that is kept: what the library for communication does
# inside differs from rank to rank, and from moment to moment.
_CUT_FILE = re.compile(
    r"(?:^|[/\\])torch[/\\]distributed[/\\]"
    r"(?:distributed_c10d|_functional_collectives|nn[/\\]functional)\.py$"
)
_CUT_NAME = re.compile(
    r"(?:c10d|gloo|torch::distributed)::|p?nccl[A-Z_]|cuda[A-Z]\w|cu[A-Z][a-z]"
    r"|nvshmem|ucp_|MPI_"
)
# The machinery of the interpreter and of bindings says nothing.
_MACHINERY = re.compile(
    r"_?Py(?!Thread_acq|GILState|Eval_(?:Restore|Acq)|COND|M(?:UTEX|utex))_?[A-Z]\w*"
    r"|(?:cfunction|method|type|object|function|partial)"
    r"_\w*(?:call|vectorcall)\w*|slot_\w+|call_function|do_call(?:_core)?"
    r"|(?:dynamic_)?pybind11::.*|torch::detail::.*|thread_run|run_mod"
    r"|pyrun_\w+|pymain_\w+|run_eval_code_obj|(?:__)?clone3?|start_thread"
    r"|pythread_wrapper|_start|__libc_start\w*|main|\?\?|0x[0-9a-f]+"
)
# One function of the C library has many names.
_ALIAS = re.compile(
    r"_{1,3}(?:GI_{1,3})?(?:libc_)?(?=pthread|futex|clock_|nanosleep|sleep|e?poll"
    r"|select|read|write|recv|send|accept|connect|wait|sem_|lll_|new_sem_)"
)
_VARIANT = re.compile(r"(?:64|_nocancel|_time64|_cancel)$")
_WAITS = re.compile(
    r"futex|pthread_(?:cond|mutex)|lll_|do_futex|(?:new_)?sem_|\w*sleep"
)
# Packages whose lines no user of a job changes, as py-spy abbreviates them.
_PACKAGES = frozenset(sys.stdlib_module_names) | {
    "accelerate",
    "deepspeed",
    "filelock",
    "grpc",
    "lightning",
    "numpy",
    "pytorch_lightning",
    "ray",
    "requests",
    "torch",
    "torchdata",
    "tqdm",
    "transformers",
    "triton",
    "urllib3",
    "zmq",
}


@lru_cache(maxsize=1 << 14)
def normal_frame(frame: StackFrame) -> StackFrame | None:
    """
    How does this frame look on every rank?

    Args:
        frame: A frame, as a tool told it.

    Returns:
        The frame without what differs from rank to rank; ``None`` if it says
        nothing about what the program does.
    """
    if frame.is_native:
        name = _native_name(frame.name)
        if not name or _MACHINERY.fullmatch(name):
            return None
        library = frame.filename.replace("\\", "/").rpartition("/")[2]
        return StackFrame(
            name, _LIBRARY_VERSION.sub(".so", library), 0, is_native=True
        )

    name = frame.name.rpartition(".")[2]
    filename = _INSTALLED.sub("", frame.filename)
    if filename == _WRAPPERS.get(name) or (name, filename) in _OTHER_WRAPPERS:
        return None
    return StackFrame(name, filename, frame.line)


def normal_frames(frames: Iterable[StackFrame]) -> tuple[StackFrame, ...]:
    """
    How does this stack look on every rank that does the same?

    Args:
        frames: A stack, innermost first.

    Returns:
        The stack, innermost first, without wrappers and addresses, and
        without what is inside the library for communication.  Never nothing
        if there was something.
    """
    known = tuple(frames)
    kept: list[StackFrame] = []
    for frame in reversed(known):
        normal = normal_frame(frame)
        if normal is None or (kept and _both_wait(kept[-1], normal)):
            continue
        kept.append(normal)
        if _is_cut(normal):
            break
    return tuple(reversed(kept)) or known[:1]


def _both_wait(outer: StackFrame, inner: StackFrame) -> bool:
    # How the C library waits differs between its versions, and between tools.
    return all(
        frame.is_native and _WAITS.match(frame.name)
        for frame in (outer, inner)
    )


def _is_cut(frame: StackFrame) -> bool:
    if frame.is_native:
        return _CUT_NAME.match(frame.name) is not None
    return _CUT_FILE.search(frame.filename) is not None


def _native_name(name: str) -> str:
    """
    A function without its arguments, of any kind.
    """
    name = _TAGS.sub("", name).strip()
    if alias := _ALIAS.match(name):
        name = _VARIANT.sub("", name[alias.end() :])
    depth, kept = 0, []
    for char in name.replace("operator<", "operator_").replace("->", "_"):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif not depth:
            kept.append(char)
    plain = "".join(kept).removesuffix(" const").strip()
    # A name like "(anonymous namespace)" is all brackets.
    return plain.removeprefix("::") or name


@lru_cache(maxsize=1 << 14)
def is_own(frame: StackFrame) -> bool:
    """
    Is this a line that the user of a job may have written?

    Args:
        frame: A frame, as a tool told it.

    Returns:
        Whether it is neither machine code, nor of Python, nor of a framework.
    """
    if frame.is_native or is_framework(frame.filename):
        return False
    package = frame.filename.replace("\\", "/").partition("/")[0]
    return package.removesuffix(".py") not in _PACKAGES

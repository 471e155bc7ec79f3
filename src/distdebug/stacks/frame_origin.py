"""
Classify stack frames as user, framework, library, or native code.

Tools shorten file names, so that ``threading.py`` may be all that is left of a
path.
"""

from __future__ import annotations

import re
import sys
import threading

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ..findings import Location
from .model import StackFrame


_MOST_NAME = 300

_INSTALLED = re.compile(
    r"^<|(^|/)(site-packages|dist-packages|s?bin)/|/lib/python3?\.?\d*/"
    r"|\.(so|pyx|pxi)\b"
)
# Packages by name, because tools may cut the path before it.
_FRAMEWORKS = (
    "accelerate|apex|axolotl|colossalai|composer|datasets|deepspeed|diffusers"
    "|fairscale|fairseq2?|hydra|lightning|lightning_fabric|litgpt|lmdeploy"
    "|megatron|nemo|nemo_rl|peft|pytorch_lightning|ray|sentence_transformers"
    "|sglang|tensorrt_llm|text_generation_server|torchrl|torchtitan|torchtune"
    "|transformer_engine|transformers|trl|unsloth|verl|vllm|xformers"
)
_LIBRARIES = (
    "aiohttp|anyio|boto3|botocore|click|cupy|debugpy|distdebug|fastapi|filelock"
    "|flash_attn|flashinfer|fsspec|functorch|gevent|grpc|h5py|httpcore|httpx"
    "|huggingface_hub|ipykernel|joblib|mpi4py|numba|numpy|omegaconf|pandas"
    "|pyarrow|pydantic|redis|requests|s3fs|safetensors|scipy|sklearn|starlette"
    "|tensorboard|tensorflow|tokenizers|torch|torch_npu|torch_xla|torchaudio"
    "|torchdata|torchmetrics|torchvision|tornado|tqdm|triton|typer|urllib3"
    "|uvicorn|uvloop|wandb|webdataset|zmq"
)
_TOP_PACKAGE = re.compile(r"^(?P<top>[^/]+?)(\.py)?(/|$)")
_TORCH_PARTS = re.compile(
    r"(^|/)torch/(_\w+|autograd|cuda|distributed|jit|multiprocessing|nn|optim"
    r"|utils)/|(^|/)torch/\w+\.py$"
    r"|(^|/)distdebug/(capture|debugger|flight_recorder|stacks|watching)/"
)
_FRAMEWORK_PARTS = re.compile(
    r"(^|/)(megatron/(core|training|legacy)|deepspeed/(runtime|comm|pipe)"
    r"|vllm/(v1|engine|worker|executor|distributed|entrypoints|model_executor)"
    r"|sglang/(srt|launch_server)|ray/(_private|train|util|data|air|tune)"
    r"|tensorrt_llm/(_torch|executor|llmapi))\b"
)
_NATIVE = re.compile(
    r"\.so\b|\.(cc|cpp|cxx|cu|cuh|c|h|hpp|inl|S|rs)$|^lib[\w.+-]*$|^\[vdso\]"
    r"|(^|/)(python|pypy)\d[\d.]*$|^$"
)

_INTERPRETER = re.compile(
    r"^(_?PyEval_(EvalFrame\w*|EvalCode\w*|Vector)|_PyFunction_Vectorcall"
    r"|PyEval_EvalCode|py_trampoline_evaluator|_PyEval_EvalFrame\w*)"
)
# What tools print for a function without a symbol.
_NO_SYMBOL = re.compile(r"\?*|0x[0-9a-f]+|_start|clone3?", re.IGNORECASE)


def is_native(frame: StackFrame) -> bool:
    """
    Return whether a frame is native code; not every tool marks it.
    """
    return frame.is_native or _is_native_file(frame.filename[-_MOST_NAME:])


@lru_cache(maxsize=1 << 14)
def _is_native_file(filename: str) -> bool:
    is_python = filename.endswith(".py") or filename.startswith("<")
    return not is_python and bool(_NATIVE.search(filename))


def function_name(name: str) -> str:
    """
    Return a function name without its class and symbol version.
    """
    return name[:_MOST_NAME].partition("@")[0].rpartition(".")[2]


def native_callees(frames: Iterable[StackFrame]) -> Iterator[StackFrame]:
    """
    Yield the native frames that the innermost Python function called.

    Args:
        frames: Innermost first.
    """
    for frame in frames:
        if not is_native(frame) or _INTERPRETER.match(frame.name):
            return
        yield frame


def innermost_native_name(frames: Iterable[StackFrame]) -> str:
    """
    Return the innermost native function below Python; ``""`` if unknown.

    Args:
        frames: Innermost first.
    """
    names = (f.name for f in native_callees(frames))
    return next((n for n in names if not _NO_SYMBOL.fullmatch(n)), "")


def is_user_frame(frame: StackFrame) -> bool:
    """
    Return whether a frame is user code.
    """
    return not is_native(frame) and _code_layer(frame.filename) == 0


def is_library_frame(frame: StackFrame) -> bool:
    """
    Return whether a frame is neither of the user nor of a framework.
    """
    return is_native(frame) or _code_layer(frame.filename) > 1


def find_user_frame(frames: Iterable[StackFrame]) -> StackFrame | None:
    """
    Find the frame that the user can change.

    Args:
        frames: Innermost first.

    Returns:
        The innermost frame of the user; else of a framework; else of Python;
        else of all.
    """
    best, best_layer = None, 4
    for frame in frames:
        layer = 3 if is_native(frame) else _code_layer(frame.filename)
        if layer < best_layer:
            best, best_layer = frame, layer
        if not layer:
            break
    return best


def to_location(frame: StackFrame | None) -> Location | None:
    """
    Convert a frame to a location.
    """
    if frame is None:
        return None

    return Location(function=frame.name, file=frame.filename, line=frame.line)


@lru_cache(maxsize=1 << 14)
def _code_layer(filename: str) -> int:
    """
    Return the layer of a file: 0 is user code, 1 a framework, 2 a library.
    """
    path = filename[-_MOST_NAME:].replace("\\", "/")
    if _FRAMEWORK_DIR.search(path) or _FRAMEWORK_PARTS.search(path):
        return 1
    if _INSTALLED.search(path) or _TORCH_PARTS.search(path):
        return 2

    top = _TOP_PACKAGE.match(path)
    name = top["top"] if top else ""
    if name in _FRAMEWORK_NAMES and "/" in path:
        return 1
    if name in sys.stdlib_module_names or (
        name in _LIBRARY_NAMES and "/" in path
    ):
        return 2
    return 0


_FRAMEWORK_NAMES = frozenset(_FRAMEWORKS.split("|"))
_LIBRARY_NAMES = frozenset(_LIBRARIES.split("|"))
_FRAMEWORK_DIR = re.compile(
    rf"(^|/)(site|dist)-packages/({_FRAMEWORKS})(/|\.py$)"
)


_LOOP = re.compile(r"\s*(async\s+for|for|while)\b")
_INLINE_LOOP = re.compile(r"\bfor\b.+\bin\b")
_DEFINITION = re.compile(r"\s*(async\s+def|def|class)\b")
_MOST_BODY = 500

ReadLine = Callable[[str, int], str]

_MOST_SOURCE = 1 << 22
_MOST_LINE = 500
_MOST_FILES = 10_000
_READ_TIMEOUT_S = 1.0


class SourceLines:
    """
    Reads lines of source code, each file once.

    After the first file that is not read in time, no other file is opened.

    Args:
        timeout_s: How long to wait for a file, in seconds.
    """

    def __init__(self, timeout_s: float = _READ_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._files: dict[str, list[bytes]] = {}
        self._has_timed_out = False

    def __call__(self, filename: str, line: int) -> str:
        """
        Return one line; ``""`` if it is not on this machine.

        Args:
            line: Counted from 1.
        """
        lines = self._files.get(filename)
        if lines is None and len(self._files) < _MOST_FILES:
            lines = self._files[filename] = self._read_in_time(filename)
        found = lines[line - 1] if lines and 0 < line <= len(lines) else b""
        return found[:_MOST_LINE].decode("utf-8", "replace")

    def is_in_loop(self, filename: str, line: int) -> bool | None:
        """
        Return whether a line can run repeatedly without a new call.

        Args:
            line: Counted from 1.

        Returns:
            ``None`` if the code is not on this machine.
        """
        code = self(filename, line)
        if not code.strip():
            return None

        # A comprehension loops within one line.
        if _LOOP.match(code) or _INLINE_LOOP.search(code):
            return True
        indent = _indent(code)
        for number in range(line - 1, max(0, line - _MOST_BODY), -1):
            above = self(filename, number)
            if not above.strip() or _indent(above) >= indent:
                continue
            indent = _indent(above)
            if _LOOP.match(above):
                return True
            if _DEFINITION.match(above):
                return False
        return False

    def _read_in_time(self, filename: str) -> list[bytes]:
        if self._has_timed_out or not Path(filename).is_absolute():
            # The process ran in another folder, which is unknown.
            return []

        found: list[list[bytes]] = []
        # A read from a dead file server never returns, and must not block the
        # exit of this process.
        reader = threading.Thread(
            target=lambda: found.append(_read(filename)),
            name="distdebug source",
            daemon=True,
        )
        with suppress(RuntimeError):  # no more threads can be started
            reader.start()
            reader.join(self._timeout_s)
        self._has_timed_out = not found
        return found[0] if found else []


def _indent(code: str) -> int:
    return len(code) - len(code.lstrip())


def _read(filename: str) -> list[bytes]:
    path = Path(filename)
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(_MOST_SOURCE).splitlines()
    except (OSError, ValueError):
        return []

"""
Whose code is this line of a stack?

Of the user, of a framework that runs the user's job, or of the plumbing below.
Tools shorten names of files, so that ``threading.py`` may be all that is left.
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
# Wherever they are, and however much of their name is left.
_FRAMEWORKS = (
    "accelerate|apex|axolotl|colossalai|composer|datasets|deepspeed|diffusers"
    "|fairscale|fairseq2?|hydra|lightning|lightning_fabric|litgpt|lmdeploy"
    "|megatron|nemo|nemo_rl|peft|pytorch_lightning|ray|sentence_transformers"
    "|sglang|tensorrt_llm|text_generation_server|torchrl|torchtitan|torchtune"
    "|transformer_engine|transformers|trl|unsloth|verl|vllm|xformers"
)
_PLUMBING = (
    "aiohttp|anyio|boto3|botocore|click|cupy|debugpy|distdebug|fastapi|filelock"
    "|flash_attn|flashinfer|fsspec|functorch|gevent|grpc|h5py|httpcore|httpx"
    "|huggingface_hub|ipykernel|joblib|mpi4py|numba|numpy|omegaconf|pandas"
    "|pyarrow|pydantic|redis|requests|s3fs|safetensors|scipy|sklearn|starlette"
    "|tensorboard|tensorflow|tokenizers|torch|torch_npu|torch_xla|torchaudio"
    "|torchdata|torchmetrics|torchvision|tornado|tqdm|triton|typer|urllib3"
    "|uvicorn|uvloop|wandb|webdataset|zmq"
)
_START = re.compile(r"^(?P<top>[^/]+?)(\.py)?(/|$)")
_TORCH = re.compile(
    r"(^|/)torch/(_\w+|autograd|cuda|distributed|jit|multiprocessing|nn|optim"
    r"|utils)/|(^|/)torch/\w+\.py$"
    r"|(^|/)distdebug/(capture|debugger|flight_recorder|stacks|watching)/"
)
_WITHIN = re.compile(
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
# What a tool that found no symbol writes.
_NAMELESS = re.compile(r"\?*|0x[0-9a-f]+|_start|clone3?", re.IGNORECASE)


def is_native(frame: StackFrame) -> bool:
    """
    Whether a line is machine code.

    Args:
        frame: The line; tools do not always tell.
    """
    return frame.is_native or _looks_native(frame.filename[-_MOST_NAME:])


@lru_cache(maxsize=1 << 14)
def _looks_native(filename: str) -> bool:
    is_python = filename.endswith(".py") or filename.startswith("<")
    return not is_python and bool(_NATIVE.search(filename))


def last_name(name: str) -> str:
    """
    Name a function without its class, and without the version of a symbol.

    Args:
        name: As the tool gives it.
    """
    return name[:_MOST_NAME].partition("@")[0].rpartition(".")[2]


def called_natively(frames: Iterable[StackFrame]) -> Iterator[StackFrame]:
    """
    Find what the innermost function of Python called in native code.

    Args:
        frames: Innermost first.
    """
    for frame in frames:
        if not is_native(frame) or _INTERPRETER.match(frame.name):
            return
        yield frame


def native_name(frames: Iterable[StackFrame]) -> str:
    """
    Name the innermost native function below Python; ``""`` if none is known.

    Args:
        frames: Innermost first.
    """
    names = (f.name for f in called_natively(frames))
    return next((n for n in names if not _NAMELESS.fullmatch(n)), "")


def is_users(frame: StackFrame) -> bool:
    """
    Whether a line is code of the user.

    Args:
        frame: The line.
    """
    return not is_native(frame) and _depth(frame.filename) == 0


def is_plumbing(frame: StackFrame) -> bool:
    """
    Whether a line is neither of the user nor of a framework.

    Args:
        frame: The line.
    """
    return is_native(frame) or _depth(frame.filename) > 1


def user_frame(frames: Iterable[StackFrame]) -> StackFrame | None:
    """
    Find the line that a person can do something about.

    Args:
        frames: Innermost first.

    Returns:
        The innermost line of the user; else of a framework; else of Python;
        else of all.
    """
    best, best_depth = None, 4
    for frame in frames:
        depth = 3 if is_native(frame) else _depth(frame.filename)
        if depth < best_depth:
            best, best_depth = frame, depth
        if not depth:
            break
    return best


def where(frame: StackFrame | None) -> Location | None:
    """
    Say where a line is.

    Args:
        frame: The line, if there is one.
    """
    if frame is None:
        return None

    return Location(function=frame.name, file=frame.filename, line=frame.line)


@lru_cache(maxsize=1 << 14)
def _depth(filename: str) -> int:
    """
    How far below the user: 0 is theirs, 1 a framework, 2 plumbing.
    """
    path = filename[-_MOST_NAME:].replace("\\", "/")
    if _FRAMEWORK_DIR.search(path) or _WITHIN.search(path):
        return 1
    if _INSTALLED.search(path) or _TORCH.search(path):
        return 2

    top = _START.match(path)
    name = top["top"] if top else ""
    if name in _FRAMEWORK_NAMES and "/" in path:
        return 1
    if name in sys.stdlib_module_names or (
        name in _PLUMBING_NAMES and "/" in path
    ):
        return 2
    return 0


_FRAMEWORK_NAMES = frozenset(_FRAMEWORKS.split("|"))
_PLUMBING_NAMES = frozenset(_PLUMBING.split("|"))
_FRAMEWORK_DIR = re.compile(
    rf"(^|/)(site|dist)-packages/({_FRAMEWORKS})(/|\.py$)"
)


_LOOP = re.compile(r"\s*(async\s+for|for|while)\b")
_INLINE_LOOP = re.compile(r"\bfor\b.+\bin\b")
_FUNCTION = re.compile(r"\s*(async\s+def|def|class)\b")
_MOST_BODY = 500

ReadLine = Callable[[str, int], str]

_MOST_SOURCE = 1 << 22
_MOST_LINE = 500
_MOST_FILES = 10_000
_PATIENCE_S = 1.0


class SourceLines:
    """
    Reads lines of source code, each file once.

    After the first file that does not come in time, no other is opened.

    Args:
        patience_s: How long to wait for a file, in seconds.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._files: dict[str, list[bytes]] = {}
        self._gave_up = False

    def __call__(self, filename: str, line: int) -> str:
        """
        Read one line; ``""`` if it is not on this machine.

        Args:
            filename: The file.

            line: Its number, counted from 1.
        """
        lines = self._files.get(filename)
        if lines is None and len(self._files) < _MOST_FILES:
            lines = self._files[filename] = self._read_in_time(filename)
        found = lines[line - 1] if lines and 0 < line <= len(lines) else b""
        return found[:_MOST_LINE].decode("utf-8", "replace")

    def is_in_loop(self, filename: str, line: int) -> bool | None:
        """
        Tell whether a line can run again and again without a new call.

        Args:
            filename: The file.

            line: Its number, counted from 1.

        Returns:
            ``None`` if the code is not on this machine.
        """
        code = self(filename, line)
        if not code.strip():
            return None

        # A generator or a list that is made in one line loops, too.
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
            if _FUNCTION.match(above):
                return False
        return False

    def _read_in_time(self, filename: str) -> list[bytes]:
        if self._gave_up or not Path(filename).is_absolute():
            # Relative to where?  The process ran in another folder.
            return []

        found: list[list[bytes]] = []
        # A thread that reads from a dead file server never returns, and must
        # not keep us from ending.
        reader = threading.Thread(
            target=lambda: found.append(_read(filename)),
            name="distdebug source",
            daemon=True,
        )
        with suppress(RuntimeError):  # no more threads can be had
            reader.start()
            reader.join(self._patience_s)
        self._gave_up = not found
        return found[0] if found else []


def source_line(filename: str, line: int) -> str:
    """
    Read one line of source code; ``""`` if it is not on this machine.

    Args:
        filename: The file.

        line: Its number, counted from 1.
    """
    return SourceLines()(filename, line)


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

"""
Distinguish the user's code from frameworks and libraries, by file name.

Tools shorten file names, so that ``threading.py`` may be all that is left of a
path.
"""

from __future__ import annotations

import sys

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from ._lazy import late_pattern


if TYPE_CHECKING:
    from .findings import Location


_MOST_NAME = 300

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

# A checkout of the source holds the package in a folder of about its name,
# such as Megatron-LM/megatron, ray/python/ray, and transformers/src/….
_FRAMEWORK_FILE = late_pattern(
    rf"(^|/)(site|dist)-packages/({_FRAMEWORKS})(/|\.py$)|^({_FRAMEWORKS})/"
    rf"|(?i:/(?P<name>{_FRAMEWORKS})(-[\w.-]+)?/((src|python)/)?(?P=name)/)"
    r"|(^|/)(megatron/(core|training|legacy)|deepspeed/(runtime|comm|pipe)"
    r"|vllm/(v1|engine|worker|executor|distributed|entrypoints|model_executor)"
    r"|sglang/(srt|launch_server)|ray/(_private|train|util|data|air|tune)"
    r"|tensorrt_llm/(_torch|executor|llmapi))\b"
)
# Code that cloudpickle sends by value (<dynamic-code>) is the user's; since
# 3.1.3, cloudpickle does not name its file.  So are cells of a notebook.
_LIBRARY_FILE = late_pattern(
    r"^<(?!dynamic-code>|i?python-input-)|(^|/)(site-packages|dist-packages)/"
    r"|(^|/)lib/(python|pypy)\d[\d.]*t?/|(^|/)s?bin/[^/.]+$|\.(so|pyx|pxi)\b"
    r"|(^|/)torch/(_\w+|autograd|cuda|distributed|jit|multiprocessing|nn|optim"
    r"|utils)/|(^|/)torch/\w+\.py$"
    r"|(^|/)distdebug/(_\w+\.py$|(capture|debugger|flight_recorder"
    r"|integrations|stacks|watching)/)"
    rf"|^({_LIBRARIES})/"
)
_NATIVE_FILE = late_pattern(
    r"\.so\b|\.(cc|cpp|cxx|cu|cuh|c|h|hpp|inl|S|rs)$|^lib[\w.+-]*$|^\[vdso\]"
    r"|(^|/)(python|pypy)\d[\d.]*$|^$"
)
_INSTALL_PREFIX = late_pattern(
    r"\A.*[/\\](?:site-packages|dist-packages|lib/python\d[\d.]*t?)[/\\]"
)


class Layer(IntEnum):
    """
    How far code is from the user, who can change the first most easily.
    """

    USER = 0
    FRAMEWORK = 1
    LIBRARY = 2
    NATIVE = 3


@lru_cache(maxsize=1 << 14)
def code_layer(filename: str) -> Layer:
    """
    Return the layer of a file: a checkout of a framework is a framework.
    """
    path = filename[-_MOST_NAME:].replace("\\", "/")
    is_python = path.endswith(".py") or path.startswith("<")
    if not is_python and _NATIVE_FILE.search(path):
        return Layer.NATIVE
    if _FRAMEWORK_FILE.search(path):
        return Layer.FRAMEWORK
    package = path.partition("/")[0].removesuffix(".py")
    is_library = package in sys.stdlib_module_names
    if is_library or _LIBRARY_FILE.search(path):
        return Layer.LIBRARY
    return Layer.USER


def is_user_code(filename: str) -> bool:
    """
    Return whether a file belongs to the user, and to no framework or library.
    """
    return code_layer(filename) is Layer.USER


def strip_install_prefix(filename: str) -> str:
    """
    Return the path of a file from the folder on that packages are in.
    """
    return _INSTALL_PREFIX.sub("", filename)


class FrameLike(Protocol):
    """
    One line of a stack, of any frame class.
    """

    @property
    def name(self) -> str:
        """
        Return the name of the function.
        """

    @property
    def filename(self) -> str:
        """
        Return the path of its file.
        """

    @property
    def line(self) -> int:
        """
        Return the current line, counted from 1.
        """


FrameT = TypeVar("FrameT", bound=FrameLike)


def frame_layer(frame: FrameLike) -> Layer:
    """
    Return the layer of a frame; not every tool marks native ones.
    """
    is_native = getattr(frame, "is_native", False)
    return Layer.NATIVE if is_native else code_layer(frame.filename)


def is_user_frame(frame: FrameLike) -> bool:
    """
    Return whether a frame is user code.
    """
    return frame_layer(frame) is Layer.USER


def find_user_frame(frames: Iterable[FrameT]) -> FrameT | None:
    """
    Find the frame that the user can change.

    Args:
        frames: Innermost first.

    Returns:
        The innermost frame of the user; else of a framework; else of Python;
        else of all.
    """
    return min(frames, key=frame_layer, default=None)


def to_location(frame: FrameLike | None) -> Location | None:
    """
    Convert a frame to a location.
    """
    # Jobs load this module, and need no attrs for it.
    from .findings import Location

    if frame is None:
        return None
    return Location(function=frame.name, file=frame.filename, line=frame.line)


def user_location(frames: Iterable[FrameLike]) -> Location | None:
    """
    Find the line that the user can change, as :func:`find_user_frame` does.
    """
    return to_location(find_user_frame(frames))


def find_fork(
    mine: Iterable[FrameT], others: Iterable[FrameT]
) -> tuple[FrameT, FrameT] | None:
    """
    Find where two stacks part: one function, at different lines.

    Args:
        mine: Stack, innermost frame first.

        others: Another stack.

    Returns:
        The frame of each; ``None`` if they part by function, or not at all.
    """
    for x, y in zip(reversed([*mine]), reversed([*others]), strict=False):
        if (x.name, x.filename) != (y.name, y.filename):
            return None
        if x.line != y.line:
            return x, y
    return None

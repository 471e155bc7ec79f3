"""
Parse the running GPU kernels that cuda-gdb lists, and add them to views.

cuda-gdb lists kernels (``info cuda kernels``), and names the kernel in focus,
also in GPU core dumps.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

import attrs

from ...findings import Cause, Evidence
from ..model import GpuKernel
from ..process_view import ProcessView
from ..rules import RuleBook
from .frames import MOST_NAME, shorten, split_brackets


_TITLE = re.compile(r"\s*Kernel\s+Parent\s+Dev\s+Grid\s+Status\b")
_ROW = re.compile(
    r"\s*\*?\s*\d{1,9}\s+\S{1,20}\s+(?P<device>\d{1,4})\s+-?\d{1,20}\s+"
    r"\S{1,20}\s+0x[0-9a-fA-F]{1,64}\s+(?P<rest>\(.*)"
)
_SIZE = re.compile(r"\((\d{1,10}),\s?(\d{1,10}),\s?(\d{1,10})\)\s*")
# The short form of a kernel in documentation.
_PROSE = re.compile(
    r"\s*\*?\s*Kernel \d{1,9}: (?P<name>\S.*?)"
    r"(?: on device (?P<device>\d{1,4}))?\s*"
)
_FOCUS = re.compile(
    r"\[(?:Switching focus to|Current focus set to) CUDA kernel (\d{1,9}), "
    r"grid \d{1,20}, .{0,400}?\bdevice (?P<device>\d{1,4}),"
)
_LAUNCH = re.compile(
    r"\((?P<grid>[\d, ]{1,40})\),\s?\((?P<block>[\d, ]{1,40})\)>>>"
)
_FRAME = re.compile(r"#0\s{1,4}(?:0x[0-9a-f]{1,16} in )?(?P<call>\S.*)")


def parse_kernels(text: str) -> tuple[GpuKernel, ...]:
    """
    Parse the running GPU kernels.

    Args:
        text: The output of cuda-gdb, for a process or a core dump.

    Returns:
        The kernels, in the order of the tool.
    """
    lines = [shorten(line).rstrip() for line in text.splitlines()]
    return tuple(_parse_kernel_list(lines)) or tuple(
        dict.fromkeys(_parse_focus(lines))
    )


def _parse_kernel_list(lines: list[str]) -> Iterator[GpuKernel]:
    title: list[str] | None = None
    for line in lines:
        if _TITLE.match(line):
            title = line.split()
        elif title is not None and (match := _ROW.fullmatch(line)):
            yield _parse_kernel(match["rest"], int(match["device"]), title)
        elif (match := _PROSE.fullmatch(line)) and "CUDA" not in line:
            device = match["device"]
            yield GpuKernel(
                name=match["name"][:MOST_NAME],
                device=int(device) if device else None,
            )
        elif line.startswith(("Thread ", "#")):
            title = None


def _parse_kernel(rest: str, device: int, title: list[str]) -> GpuKernel:
    sizes: dict[str, tuple[int, ...]] = {}
    for column in title or ["GridDim", "BlockDim"]:
        if column.endswith("Dim") and (match := _SIZE.match(rest)):
            sizes[column] = tuple(map(int, match.groups()))
            rest = rest[match.end() :]
    name = rest.strip()
    if title[-2:] == ["Name", "Args"]:
        name = name.partition(" ")[0]
    return GpuKernel(
        name=name[:MOST_NAME],
        device=device,
        grid=sizes.get("GridDim", ()),
        block=sizes.get("BlockDim", ()),
    )


def _parse_focus(lines: list[str]) -> Iterator[GpuKernel]:
    """
    Parse the kernels in focus, if the tool printed no list.
    """
    device = None
    for line in lines:
        if match := _FOCUS.search(line):
            device = int(match["device"])
        elif device is not None and (frame := _FRAME.match(line)):
            name, _, launch = frame["call"].partition("<<<")
            sizes = _LAUNCH.match(launch)
            yield GpuKernel(
                name=_kernel_name(name.strip())[:MOST_NAME],
                device=device,
                grid=_parse_sizes(sizes["grid"]) if sizes else (),
                block=_parse_sizes(sizes["block"]) if sizes else (),
            )
            device = None


def _kernel_name(call: str) -> str:
    call = call.partition(" at ")[0].removeprefix("void ")
    if call.endswith(" ()"):
        call = call.removesuffix(" ()")
    found = split_brackets(call)
    return found[0] if found and found[0] else call


def _parse_sizes(text: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in text.replace(" ", "").split(",") if part
    )


# A communication kernel waits for other ranks, and is not the cause.
_COLLECTIVE_KERNEL = re.compile(
    r"nccl|rccl|nvshmem|all_?reduce|allgather|hccl", re.IGNORECASE
)
_WAITS_FOR_GPU = frozenset(
    {
        Cause.GPU_SYNC_WAIT,
        Cause.LAUNCH_BLOCKED,
        Cause.COLLECTIVE_WAIT,
        Cause.NATIVE_SPIN,
        Cause.PYTHON_LOOP,
        Cause.UNKNOWN,
        Cause.LOCK_DEADLOCK,
    }
)
_MOST_NAME = 80


def add_kernels(view: ProcessView, book: RuleBook) -> ProcessView:
    """
    Explain a wait for the GPU by the kernel that runs on it.

    Args:
        view: The explanation of the host process.

        book: Provides the remedies of causes.

    Returns:
        The view; if the host waits for its GPU, with the name of the kernel.
    """
    kernels = view.process.kernels
    if not kernels or view.cause not in _WAITS_FOR_GPU:
        return view

    compute_kernels = [
        k for k in kernels if not _COLLECTIVE_KERNEL.search(k.name[:200])
    ]
    kernel = (compute_kernels or list(kernels))[0]
    cause = Cause.GPU_KERNEL if compute_kernels else Cause.COLLECTIVE_WAIT
    name = short_kernel_name(kernel)
    device = "" if kernel.device is None else f"device {kernel.device}"
    return attrs.evolve(
        view,
        cause=cause,
        doing=f"is waiting for the kernel {name}"
        + (f" of {device}" if device else ""),
        confidence="likely",
        remedy=book.remedy.get(cause, ""),
        evidence=(
            Evidence(
                kind="gpu",
                source=view.process.source,
                location=device,
                quote=kernel.name,
            ),
            *view.evidence,
        ),
    )


def short_kernel_name(kernel: GpuKernel) -> str:
    """
    Return the name of a kernel without its arguments.
    """
    name = kernel.name.partition("<<<")[0].partition("(")[0].strip()
    name = (name or kernel.name).removeprefix("void ")
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"

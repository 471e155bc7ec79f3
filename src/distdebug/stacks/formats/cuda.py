"""
What were the GPUs running, as cuda-gdb says?

It lists kernels (``info cuda kernels``), and names the one that it looks at,
also in core dumps of a GPU.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

import attrs

from ...findings import Cause, Evidence
from ..model import GpuKernel
from ..rules import RuleBook
from ..view import ProcessView
from .gdb import MOST_NAME, shorten, split_brackets


_TITLE = re.compile(r"\s*Kernel\s+Parent\s+Dev\s+Grid\s+Status\b")
_ROW = re.compile(
    r"\s*\*?\s*\d{1,9}\s+\S{1,20}\s+(?P<device>\d{1,4})\s+-?\d{1,20}\s+"
    r"\S{1,20}\s+0x[0-9a-fA-F]{1,64}\s+(?P<rest>\(.*)"
)
_SIZE = re.compile(r"\((\d{1,10}),\s?(\d{1,10}),\s?(\d{1,10})\)\s*")
# As the documentation of others abbreviates it.
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
    Which kernels were on the GPUs?

    Args:
        text: What cuda-gdb printed, of a process or a core dump.

    Returns:
        The kernels, in the order of the tool; none if there was none.
    """
    lines = [shorten(line).rstrip() for line in text.splitlines()]
    return tuple(_listed(lines)) or tuple(dict.fromkeys(_focused(lines)))


def _listed(lines: list[str]) -> Iterator[GpuKernel]:
    title: list[str] | None = None
    for line in lines:
        if _TITLE.match(line):
            title = line.split()
        elif title is not None and (match := _ROW.fullmatch(line)):
            yield _kernel(match["rest"], int(match["device"]), title)
        elif (match := _PROSE.fullmatch(line)) and "CUDA" not in line:
            device = match["device"]
            yield GpuKernel(
                name=match["name"][:MOST_NAME],
                device=int(device) if device else None,
            )
        elif line.startswith(("Thread ", "#")):
            title = None


def _kernel(rest: str, device: int, title: list[str]) -> GpuKernel:
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


def _focused(lines: list[str]) -> Iterator[GpuKernel]:
    """
    The kernels in whose code the debugger stood, if it told no list.
    """
    device = None
    for line in lines:
        if match := _FOCUS.search(line):
            device = int(match["device"])
        elif device is not None and (frame := _FRAME.match(line)):
            name, _, launch = frame["call"].partition("<<<")
            sizes = _LAUNCH.match(launch)
            yield GpuKernel(
                name=_name(name.strip())[:MOST_NAME],
                device=device,
                grid=_sizes(sizes["grid"]) if sizes else (),
                block=_sizes(sizes["block"]) if sizes else (),
            )
            device = None


def _name(call: str) -> str:
    call = call.partition(" at ")[0].removeprefix("void ")
    if call.endswith(" ()"):
        call = call.removesuffix(" ()")
    found = split_brackets(call)
    return found[0] if found and found[0] else call


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in text.replace(" ", "").split(",") if part
    )


# Communication waits for other ranks, and is no kernel of its own.
_OF_RANKS = re.compile(
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


def with_kernels(view: ProcessView, book: RuleBook) -> ProcessView:
    """
    Let the kernels on its GPU tell what a process waits for.

    Args:
        view: What the host does.

        book: Says what to do about it.

    Returns:
        The view; of a host that waits for its GPU, with the kernel's name.
    """
    kernels = view.process.kernels
    if not kernels or view.cause not in _WAITS_FOR_GPU:
        return view

    own = [k for k in kernels if not _OF_RANKS.search(k.name[:200])]
    kernel = (own or list(kernels))[0]
    cause = Cause.GPU_KERNEL if own else Cause.COLLECTIVE_WAIT
    name = short_name(kernel)
    device = "" if kernel.device is None else f" of device {kernel.device}"
    return attrs.evolve(
        view,
        cause=cause,
        doing=f"is waiting for the kernel {name}{device}",
        confidence="likely",
        remedy=book.remedy.get(cause, ""),
        evidence=(
            Evidence(
                kind="gpu",
                source=view.process.source,
                location=f"device {kernel.device}",
                quote=kernel.name,
            ),
            *view.evidence,
        ),
    )


def short_name(kernel: GpuKernel) -> str:
    """
    Name a kernel without its arguments.

    Args:
        kernel: The kernel.
    """
    name = kernel.name.partition("<<<")[0].partition("(")[0].strip()
    name = (name or kernel.name).removeprefix("void ")
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"

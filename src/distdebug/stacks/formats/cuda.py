"""
What were the GPUs running, as cuda-gdb says?

It lists kernels (``info cuda kernels``), and names the one that it looks at,
also in core dumps of a GPU.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

from ..model import GpuKernel
from .gdb import MOST_NAME, shorten, split_brackets


__all__ = ["parse_kernels"]

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

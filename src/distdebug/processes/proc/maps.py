"""
What is mapped into a process?
"""

from __future__ import annotations

import re

import attrs

from .procfs import read_link, read_proc


__all__ = ["Maps", "read_maps"]

# A process with torch and CUDA has some 5,000 lines of 100 characters.
_MOST = 1 << 23
# glibc up to 2.33 (libc-2.31.so) and later (libc.so.6), and musl.
_LIBC = re.compile(
    rb"/(?:libc(?:-[\d.]+)?\.so(?:\.6)?|ld-musl-[\w-]+\.so\.1)$"
)
_ADDRESS = re.compile(rb"[0-9a-f]{1,16}")
_TORCH = re.compile(rb"/libtorch(?:_cpu|_python|_cuda|_hip)?\.so")


@attrs.frozen(kw_only=True)
class Maps:
    """
    What of the memory of a process matters here.

    Attributes:
        images: Where the program and the C library begin, in the order in
            which the loader looks for a name in them.

        has_torch: Whether torch is loaded.
    """

    images: tuple[int, ...] = ()
    has_torch: bool = False


def read_maps(pid: int, root: str = "/proc") -> Maps | None:
    """
    What is mapped into a process?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

    Returns:
        What matters of it; ``None`` if that may not be read.
    """
    data = read_proc(f"{root}/{pid}/maps", limit=_MOST)
    if data is None:
        return None

    program = read_link(f"{root}/{pid}/exe").encode(errors="surrogateescape")
    starts: dict[str, int] = {}
    for line in data.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[2] == b"00000000":
            kind = _kind(fields[5], program)
            begin = _ADDRESS.match(fields[0])
            if kind and begin:
                starts.setdefault(kind, int(begin[0], 16))

    images = [starts[kind] for kind in ("program", "libc") if kind in starts]
    return Maps(
        images=tuple(images), has_torch=_TORCH.search(data) is not None
    )


def _kind(path: bytes, program: bytes) -> str:
    if path == program:
        return "program"
    return "libc" if _LIBC.search(path.removesuffix(b" (deleted)")) else ""

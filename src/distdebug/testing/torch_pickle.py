"""
How does torch pickle a dump?

Its own pickler writes protocol 2, but not the way Python does: strings are
remembered by their value, only frames are shared, and lists have a mark even
if they are empty.
"""

from __future__ import annotations

import struct

from collections.abc import Hashable
from typing import Any


__all__ = ["torch_pickle"]


def torch_pickle(value: Any) -> bytes:
    """
    Pickle plain data as torch would pickle a dump.

    Args:
        value: What the dump holds.  Stacks are lists under the key
            ``"frames"``; frames that are the same object are written once.
    """
    writer = _Writer()
    writer.write(value)
    # Torch remembers the outermost value, which nothing refers to.
    if isinstance(value, dict):
        writer.remember("outermost")
    return b"\x80\x02" + bytes(writer.out) + b"."


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self._memo: dict[Hashable, int] = {}

    def write(self, value: Any) -> None:  # noqa: C901, PLR0912
        # One chain of tests, because this runs fifty times per record.
        out = self.out
        kind = type(value)
        if kind is str:
            if not self.recall(value):
                data = value.encode("utf-8", "surrogatepass")
                out += b"X" + struct.pack("<I", len(data)) + data
                self.remember(value)
        elif kind is bool:
            out += b"\x88" if value else b"\x89"
        elif kind is int:
            out += _number(value)
        elif value is None:
            out += b"N"
        elif kind is float:
            out += b"G" + struct.pack(">d", value)
        elif kind is dict:
            out += b"}("
            for key, item in value.items():
                self.write(key)
                if key == "frames":
                    self.write_frames(item)
                else:
                    self.write(item)
            out += b"u"
        elif kind is list:
            out += b"]("
            for item in value:
                self.write(item)
            out += b"e"
        else:
            first, second = value
            self.write(first)
            self.write(second)
            out += b"\x86"

    def write_frames(self, frames: list[dict[str, Any]]) -> None:
        self.out += b"]("
        for frame in frames:
            # A frame lives as long as the dump, so its address is its name.
            if not self.recall(id(frame)):
                self.write(frame)
                self.remember(id(frame))
        self.out += b"e"

    def recall(self, key: Hashable) -> bool:
        index = self._memo.get(key)
        if index is None:
            return False

        if index < 256:
            self.out += b"h" + index.to_bytes(1)
        else:
            self.out += b"j" + struct.pack("<I", index)
        return True

    def remember(self, key: Hashable) -> None:
        index = self._memo[key] = len(self._memo)
        if index < 256:
            self.out += b"q" + index.to_bytes(1)
        else:
            self.out += b"r" + struct.pack("<I", index)


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + value.to_bytes(1)

    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)

    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)

    return b"\x8a\x08" + struct.pack("<q", value)

"""
How do samples become what nobody has tried yet?
"""

from __future__ import annotations

import random

from collections.abc import Sequence


__all__ = ["mutate", "mutated"]

# What has broken parsers before.
_TOKENS = (
    *(b"\0", b"\r", b"\n", b"\r\n", b"\x1b[31m", b"\x1b]0;", b"\x9b", b"\x7f"),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\xef\xbb\xbf"),
    *("²".encode(), "٣".encode(), "\u2028".encode(), "\x85".encode()),
    *(b"-1", b"0", b"1e999", b"NaN", b"Infinity", b"1" * 5000, b"9" * 30),
    *(b"null", b"true", b"[]", b"{}", b'""', b"[" * 100, b"{" * 100),
    *(b'{"a":', b"(", b")", b":", b",", b"=", b"|", b";", b"%", b"#", b"\\"),
    *(b"'", b'"', b"<", b">", b"..", b"/", b"~", b"*", b"?", b"$", b"\t"),
    *(b"\x80\x04", b".", b"\x1f\x8b", b"-0", b"0x", b"1_0", b"+1", b" 7 "),
)


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """
    Change a sample in one to four ways.
    """
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_WAYS)(data, others, rng)
    return data


def mutated(
    samples: Sequence[bytes], rng: random.Random, *, most: int = 1 << 16
) -> bytes:
    """
    One sample of many, changed.
    """
    return mutate(rng.choice(samples), samples, rng)[:most]


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randint(0, len(data))


def _flip(data: bytes, _: object, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _insert(data: bytes, _: object, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(_TOKENS) + data[at:]


def _replace(data: bytes, _: object, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(_TOKENS) + data[at + rng.randint(1, 20) :]


def _cut(data: bytes, _: object, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _drop(data: bytes, _: object, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.randint(1, 200) :]


def _repeat(data: bytes, _: object, rng: random.Random) -> bytes:
    at = _place(data, rng)
    piece = data[at : at + rng.randint(1, 300)]
    return data[:at] + piece * rng.randint(2, 20) + data[at:]


def _swap_lines(data: bytes, _: object, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def _drop_line(data: bytes, _: object, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def _number(data: bytes, _: object, rng: random.Random) -> bytes:
    digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return data
    at = rng.choice(digits)
    numbers = (b"-1", b"0", b"9" * 25, b"1e400", b"NaN", "²".encode())
    return data[:at] + rng.choice(numbers) + data[at + 1 :]


def _splice(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return data[: _place(data, rng)] + other[_place(other, rng) :]


_WAYS = (
    *(_flip, _insert, _replace, _cut, _drop, _repeat),
    *(_swap_lines, _drop_line, _number, _splice),
)

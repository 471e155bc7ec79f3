"""
Which large inputs cost a parser most?

They are of a kind that has made parsers slow: one line, many lines, deep, and
the samples of a target over and over, whole and line by line.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from .seeds import seeds_of


__all__ = ["junk_for"]

_PLAIN = {
    "zeros": b"\0",
    "high": b"\xff",
    "letters": b"a",
    "digits": b"1",
    "blanks": b" ",
    "line breaks": b"\n",
    "carriage returns": b"\r",
    "bars": b"\r 50%|#####     | 5/10 [00:01<00:01,  5.00it/s]",
    "brackets": b"[",
    "braces": b'{"a":',
    "parentheses": b"(",
    "dots": b"a.",
    "escapes": b"\x1b]0;",
    "words": b"error rank ",
    "frames": b"#0  0x00007f in f (a=",
    "lines": b"x y: z=1\n",
    "commas": b"1,",
    "ranks": b"[rank1]: ",
    "marks": b"\n@@@ a\n",
}


def junk_for(
    name: str, size: int, *, most: int = 3
) -> Iterator[tuple[str, bytes]]:
    """
    Large inputs for a target, with a name for each.

    So many samples are taken, and so many lines of each.
    """
    for kind, piece in _PLAIN.items():
        yield kind, _filled(piece, size)
    yield "noise", Random(1).randbytes(size)
    rng = Random(name)
    seeds = [x for x in seeds_of(name) if x]
    for number, seed in enumerate(rng.sample(seeds, min(most, len(seeds)))):
        yield f"sample {number}", _filled(seed + b"\n", size)
        lines = [x for x in seed.split(b"\n") if x]
        for line in rng.sample(lines, min(most, len(lines))):
            shown = line[:30].decode("ascii", "replace")
            yield f"line {shown!r}", _filled(line + b"\n", size)
            yield f"long line {shown!r}", _filled(line, size)


def _filled(piece: bytes, size: int) -> bytes:
    return (piece * (size // len(piece) + 1))[:size]

"""
What did a method raise, and where?
"""

from __future__ import annotations

import re

from collections.abc import Mapping, Sequence

import attrs

from ..._text import clean
from ...findings import Location
from ..deaths.ranks import rank_of
from .blocks import Block
from .model import Failure


__all__ = ["calls_in", "error_in", "found_in", "raised_failure"]

_MOST_FRAMES = 40
_CALL = re.compile(
    r"ray::(?:(?P<name>[^()\n:]{1,100}):)?(?P<function>[\w.<>]{1,200})\(\)"
    r"[^(\n]{0,20}\((?P<about>[^\n]{1,600})"
)
# What Ray calls the exception, if its own lines are cut off.
_WRAPPED = re.compile(r"RayTaskError\((?P<error>[A-Za-z_][\w.]{0,100})\)")
_ABOUT = {
    "pid": re.compile(r"\bpid=(\d{1,10})"),
    "ip": re.compile(r"\bip=([^,)\s]{1,60})"),
    "actor_id": re.compile(r"\bactor_id=([0-9a-f]{32})"),
    "actor_repr": re.compile(r"\brepr=([^\n]{1,300}?)\)?$"),
}
_FRAME = re.compile(
    r'^\s{1,40}File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in '
    r"(?P<function>[^\n]{1,200})$",
    re.MULTILINE,
)
_ERROR = re.compile(
    r"^(?P<error>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80})"
    r"(?:: (?P<message>[^\n]{0,1000}))?$"
)


def calls_in(lines: Sequence[str]) -> list[tuple[int, re.Match[str]]]:
    """
    Find the lines that tell in which call something was raised.

    Args:
        lines: Some lines.

    Returns:
        Where each of them is, and what it tells.
    """
    found = ((i, _CALL.search(line)) for i, line in enumerate(lines))
    return [(i, call) for i, call in found if call]


def error_in(line: str) -> tuple[str, str]:
    """
    Read the last line of a traceback.

    Args:
        line: Such as ``"torch.cuda.OutOfMemoryError: CUDA out of memory"``.

    Returns:
        The class without its module, and the message; both empty if it is no
        such line.
    """
    found = _ERROR.match(line)
    if found is None:
        return "", ""

    error = clean(found["error"]).rpartition(".")[2]
    return error, clean(found["message"] or "", limit=400)


def found_in(
    patterns: Mapping[str, re.Pattern[str]], text: str
) -> dict[str, str]:
    """
    Look for several patterns.

    Args:
        patterns: By name; of each the first group counts.

        text: Where to look.

    Returns:
        What was found, by name.
    """
    found = ((name, x.search(text)) for name, x in patterns.items())
    return {name: x[1] for name, x in found if x}


def raised_failure(base: Failure, block: Block) -> Failure:
    """
    Read what a method raised.

    Args:
        base: What is known already.

        block: The lines; some of them tell of a call.

    Returns:
        The failure.
    """
    # The innermost call is where it happened; the others only waited.
    index, call = calls_in(block.lines)[-1]
    is_last = index == len(block.lines) - 1
    error, message = error_in("" if is_last else block.lines[-1])
    wrapped = _WRAPPED.search(call.string[: call.start()])
    if not error and wrapped:
        error = wrapped["error"].rpartition(".")[2]
    about = found_in(_ABOUT, call["about"])
    name = clean(call["function"])
    return attrs.evolve(
        base,
        function=name,
        actor_class=name.split(".")[0] if "." in name else None,
        actor_id=about.get("actor_id"),
        actor_name=clean(call["name"]) if call["name"] else None,
        actor_repr=_own_repr(about.get("actor_repr")),
        rank=rank_of((about.get("actor_repr"),), ""),
        pid=int(about["pid"]) if "pid" in about else None,
        ip=about.get("ip"),
        error=error,
        message=message,
        frames=_frames("\n".join(block.lines[index:])),
    )


def _frames(text: str) -> tuple[Location, ...]:
    """
    The innermost first.
    """
    frames = [
        Location(
            function=clean(x["function"]),
            file=clean(x["file"], limit=500),
            line=int(x["line"]),
        )
        for x in _FRAME.finditer(text)
    ]
    return tuple(reversed(frames))[:_MOST_FRAMES]


def _own_repr(text: str | None) -> str | None:
    """
    That of an object without a ``__repr__`` tells nothing.
    """
    if text is None or " object at 0x" in text:
        return None
    return clean(
        text.removesuffix(")") if text.count(")") > text.count("(") else text
    )

"""
Which nsys is installed here, and which options does it know?
"""

from __future__ import annotations

import functools
import re
import shutil

from collections.abc import Mapping
from pathlib import Path

from ..capture.tool import run_tool


__all__ = ["find_nsys", "known_switches", "nsys_version", "read_switches"]

_TIMEOUT_S = 10.0
_VERSION = re.compile(r"\b(20\d\d\.\d{1,3}(?:\.\d{1,5}){0,3})")
# One line of the help names one switch: "-t, --trace=".
_SWITCH = re.compile(
    r"\s{0,16}(?:-(?P<short>\w), )?--(?P<long>[a-z][a-z0-9-]{0,60})"
    r"(?P<either>\[\w{1,20}\|\w{1,20}\])?(?:[=\[ <].{0,200})?"
)


def find_nsys(nsys: str = "nsys") -> str | None:
    """
    Where is nsys?

    Args:
        nsys: Its name, or a path.

    Returns:
        Its path; ``None`` if it is not installed here.
    """
    return shutil.which(nsys)


def nsys_version(path: str, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """
    Which version of nsys is this?

    Args:
        path: Where it is.

        timeout_s: How long it may take to answer, in seconds.

    Returns:
        Such as ``"2022.4.2.1"``; ``None`` if it does not tell.
    """
    match = _VERSION.search(_answer(path, "--version", timeout_s=timeout_s))
    return match[1] if match else None


def known_switches(
    path: str, *, timeout_s: float = _TIMEOUT_S
) -> Mapping[str, str]:
    """
    Which options does ``nsys profile`` have, and what does it say of them?

    Args:
        path: Where nsys is.

        timeout_s: How long it may take to answer, in seconds.

    Returns:
        As `read_switches`; nothing if it does not answer.
    """
    try:
        changed = Path(path).stat().st_mtime_ns
    except OSError:
        return {}

    return _known(path, changed, timeout_s)


@functools.lru_cache(8)
def _known(path: str, _changed: int, timeout_s: float) -> Mapping[str, str]:
    text = _answer(path, "profile", "--help", timeout_s=timeout_s)
    return read_switches(text)


def read_switches(text: str) -> dict[str, str]:
    """
    Read what ``nsys profile --help`` prints.

    Args:
        text: The output.

    Returns:
        For each name of an option, short and long, without dashes, what is
        said about it.
    """
    found: dict[str, str] = {}
    names: list[str] = []
    about: list[str] = []
    for line in [*text.splitlines(), "--end"]:
        match = _SWITCH.fullmatch(line.rstrip())
        if match is None:
            about.append(line.strip())
            continue
        found.update(dict.fromkeys(names, " ".join(about).strip()))
        names, about = _names(match), []
    return found


def _names(match: re.Match[str]) -> list[str]:
    short, long, either = match["short"], match["long"], match["either"]
    if either:
        return [long + end for end in either[1:-1].split("|")]
    return [name for name in (short, long) if name]


def _answer(*argv: str, timeout_s: float) -> str:
    try:
        answer = run_tool(argv, timeout_s=timeout_s)
    except OSError:
        return ""
    # Some versions print their help to the standard error.
    return answer.output or answer.complaint

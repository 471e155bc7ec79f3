"""
Does nsys take these options?
"""

from __future__ import annotations

import difflib
import json
import re

from collections.abc import Mapping
from typing import Any

from ..._text import clean
from ...errors import NsightError
from ..installed import find_nsys, known_switches
from .variables import variable


__all__ = ["check_switches", "extra_switches"]

_NAME = re.compile(r"[A-Za-z]|[a-z][a-z0-9]{1,30}(?:-[a-z0-9]{1,30}){0,8}")
_LONGEST = 4096
# Options of one letter, which is the form that Ray's own examples have.
_SHORT = {
    "backtrace": "b",
    "capture-range": "c",
    "duration": "d",
    "env-var": "e",
    "force-overwrite": "f",
    "help": "h",
    "inherit-environment": "n",
    "output": "o",
    "nvtx-capture": "p",
    "sample": "s",
    "trace": "t",
    "show-output": "w",
    "stop-on-exit": "x",
    "delay": "y",
}
_OURS = {
    "o": "reports are named after the worker; choose the folder with "
    "output_dir",
    "h": "see: nsys profile --help",
}
_VALUES = re.compile(r"Possible values are:? ([^.]{1,2000})\.(?: |$)")
_QUOTED = re.compile(r"['`]([^'`]{1,80})['`]")
_BETWEEN = re.compile(r"[\s,]{0,20}(?:(?:or|and)\b)?[\s,]{0,20}")


def extra_switches(
    extra: Mapping[str, Any] | str | None = None,
) -> dict[str, str]:
    """
    Which options does the user add?

    Args:
        extra: Names of options without dashes, and their values; or the same
            as a JSON object.  By default what
            ``DISTDEBUG_NSYS_EXTRA_OPTIONS`` says, or else
            ``NRL_NSYS_EXTRA_OPTIONS``.

    Returns:
        The options as nsys takes them; those that have a name of one letter
        by that.

    Raises:
        NsightError: It is no such object, or no option can be called so.
    """
    source = "extra_options"
    if extra is None:
        source, extra = variable("EXTRA_OPTIONS")
    if isinstance(extra, str):
        extra = _parse(source, extra) if extra else {}
    found: dict[str, str] = {}
    for name, value in extra.items():
        key, text = _pair(source, name, value)
        if key in found:
            msg = f"{source}: {name!r} is given twice"
            raise NsightError(msg, remedy="keep one of its names")
        found[key] = text
    return found


def check_switches(switches: Mapping[str, str], nsys: str = "nsys") -> None:
    """
    Does the nsys that is installed here take these options?

    Args:
        switches: Names without dashes, and values.

        nsys: The name of nsys, or its path.  If it is not here, or does not
            tell in time what it takes, nothing is checked.

    Raises:
        NsightError: It knows no such option, or not that value.
    """
    path = find_nsys(nsys)
    known = known_switches(path) if path else {}
    if not known:
        return

    for name, value in switches.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else ""
            msg = f"{path} profile has no option {name!r}"
            raise NsightError(msg, remedy=hint or "see: nsys profile --help")
        _check_value(name, value, known[name])


def _parse(source: str, text: str) -> Mapping[str, Any]:
    remedy = 'write {"trace": "cuda,nvtx,osrt", "delay": 5}'
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        msg = f"{source} is no JSON: {exc}"
        raise NsightError(msg, remedy=remedy) from None
    if not isinstance(data, dict):
        msg = f"{source} is no JSON object, but {type(data).__name__}"
        raise NsightError(msg, remedy=remedy)

    return data


def _pair(source: str, name: object, value: object) -> tuple[str, str]:
    key = name.lstrip("-") if isinstance(name, str) else ""
    if not _NAME.fullmatch(key):
        msg = f"{source}: {name!r:.60} is no name of an option of nsys"
        raise NsightError(msg, remedy='write it as "trace" or "t"')
    key = _SHORT.get(key, key)
    if key in _OURS:
        msg = f"{source}: {name!r} cannot be chosen"
        raise NsightError(msg, remedy=_OURS[key])

    return key, _text(source, key, value)


def _text(source: str, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()

    text = str(value) if isinstance(value, (str, int, float)) else ""
    if not 0 < len(text) <= _LONGEST or not text.isprintable():
        msg = f"{source}: {name!r} cannot be {value!r:.60}"
        raise NsightError(
            msg, remedy="give one line of text, a number, true, or false"
        )

    return text


def _check_value(name: str, value: str, about: str) -> None:
    choices = _choices(about)
    is_list = "comma" in about or "','" in about
    parts = value.split(",") if is_list else [value]
    if "after ':'" in about:  # each of them may have a threshold
        parts = [part.partition(":")[0] for part in parts]
    wrong = [part for part in parts if not _is_one_of(part, choices)]
    if choices and wrong:
        msg = f"option {name!r} of nsys cannot be {clean(wrong[0])!r}"
        raise NsightError(msg, remedy=f"it is one of {', '.join(choices)}")


def _choices(about: str) -> list[str]:
    """
    Which values are there, if the help names nothing but values?
    """
    match = _VALUES.search(f"{about} ")
    if match is None:
        return []
    rest = _QUOTED.sub("\n", match[1]).split("\n")
    if not all(_BETWEEN.fullmatch(part) for part in rest):
        return []
    return _QUOTED.findall(match[1])


def _is_one_of(value: str, choices: list[str]) -> bool:
    # What stands for several values begins with what they have in common:
    # 'repeat[:N]'.
    beginnings = [re.match(r"[\w-]*", c) for c in choices]
    return any(
        value == choice
        or (m is not None and m[0] != choice and value.startswith(m[0]))
        for choice, m in zip(choices, beginnings, strict=True)
    )

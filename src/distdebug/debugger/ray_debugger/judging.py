"""
Will a breakpoint stop in the workers of a Ray cluster?

Ray's rules are in ``ray/util/rpdb.py`` and ``ray/util/debugpy.py``.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...capture.blockers import Check
from .asking import plain_text
from .environments import Told


__all__ = [
    "check_debugpy",
    "check_driver",
    "check_post_mortem",
    "check_ray",
    "check_switch",
]

# With this version the debugger that VS Code attaches to came to be the
# default.
_OLDEST_RAY = (2, 39)
_OLDEST_DEBUGPY = (1, 8, 0)


def check_debugpy(told: Sequence[Told]) -> Check:
    """
    Is debugpy where the workers are, and new enough for Ray?

    Args:
        told: What the workers said.
    """
    bad: dict[str, list[Told]] = {}
    versions, silent = set(), []
    for one in told:
        version = plain_text(one.facts.get("debugpy"))
        if not _answered(one):
            silent.append(one)
        elif problem := _debugpy_problem(version, one.facts):
            bad.setdefault(problem, []).append(one)
        else:
            versions.add(version)
    if bad:
        detail = "; ".join(
            f"{problem} ({_names(ones)})" for problem, ones in bad.items()
        )
        return Check("debugpy", ok=False, detail=detail, remedy=_ADD_DEBUGPY)
    if silent:
        why = plain_text(silent[0].facts.get("reason"))
        detail = f"not known of {_names(silent)}: {why or 'no answer'}"
        return Check("debugpy", ok=None, detail=detail, remedy=_ASK_YOURSELF)
    if not versions:
        return Check("debugpy", ok=None, detail="no worker was asked")
    listed = ", ".join(sorted(versions))
    return Check("debugpy", ok=True, detail=f"{listed} ({len(told)} asked)")


_ADD_DEBUGPY = (
    "add debugpy>=1.8.0,<1.10 to the dependencies that the workers get (the "
    "project's, or the runtime_env's), and start the job again: without it "
    "breakpoint() is passed over, and one line in the worker's log says so"
)
_ASK_YOURSELF = "give it more time, or import debugpy in a task of the job"


def _debugpy_problem(version: str, facts: Mapping[str, Any]) -> str:
    if not version:
        why = plain_text(facts.get("reason"))
        missing = not why or "No module named" in why
        return "debugpy is not installed" if missing else f"debugpy: {why}"
    if (_version(version) or _OLDEST_DEBUGPY) < _OLDEST_DEBUGPY:
        return f"debugpy {version} is older than 1.8.0"
    # Ray compares the texts.
    if version < "1.8.0":
        return f"Ray takes debugpy {version} for older than 1.8.0"
    return ""


def check_switch(told: Iterable[Told]) -> Check:
    """
    Which debugger does the environment of the workers choose?

    Args:
        told: What the workers said.
    """
    values: dict[str, list[Told]] = {}
    for one in told:
        if _answered(one):
            value = one.facts.get("RAY_DEBUG")
            # Without it, and with 1, it is the one VS Code attaches to.
            text = "1" if value is None else plain_text(value)
            values.setdefault(text, []).append(one)
    name = "RAY_DEBUG of the workers"
    if not values:
        return Check(name, ok=None, detail="no worker told it")
    if ones := values.pop("legacy", None):
        detail = f"it is legacy for {_names(ones)}: VS Code cannot attach"
        return Check(name, ok=False, detail=detail, remedy=_UNSET)
    values.pop("1", None)
    for value, ones in values.items():
        detail = (
            f"it is {value!r} for {_names(ones)}: breakpoint() does nothing"
        )
        return Check(name, ok=False, detail=detail, remedy=_UNSET)
    return Check(name, ok=True, detail="not set, or 1")


_UNSET = (
    "take RAY_DEBUG out of the environment of `ray start` and of "
    "runtime_env['env_vars'], which hand it to the workers, and start again"
)


def check_driver(environment: Mapping[str, str] = os.environ) -> Check:
    """
    What does a breakpoint in the program itself do, if started from here?

    Args:
        environment: What it would be started with.
    """
    value = environment.get("RAY_DEBUG", "1")
    name = "RAY_DEBUG of the driver"
    if value == "legacy":
        detail = "legacy here: breakpoints in the driver open pdb in its shell"
        remedy = (
            "workers started with the same environment are not for VS Code: "
            "do not hand it on by `ray start` or runtime_env"
        )
        return Check(name, ok=None, detail=detail, remedy=remedy)
    if value != "1":
        detail = f"{value!r} here: breakpoints in the driver do nothing"
        return Check(name, ok=None, detail=detail, remedy=_DRIVER)
    detail = (
        "not legacy here: breakpoints in the driver wait for VS Code if it "
        "has debugpy, and are passed over if not"
    )
    return Check(name, ok=None, detail=detail, remedy=_DRIVER)


_DRIVER = "for pdb in the driver's own shell, start it with RAY_DEBUG=legacy"


def check_post_mortem(told: Iterable[Told]) -> Check:
    """
    Do failing tasks wait for the debugger?

    Args:
        told: What the workers said.
    """
    ones = [
        one for one in told if one.facts.get("RAY_DEBUG_POST_MORTEM") == "1"
    ]
    name = "RAY_DEBUG_POST_MORTEM"
    if ones:
        detail = f"1 for {_names(ones)}: tasks that fail wait for a debugger"
        remedy = "without anybody to attach they wait for ever: unset it then"
        return Check(name, ok=None, detail=detail, remedy=remedy)
    detail = "not 1: tasks that fail do not wait for a debugger"
    remedy = "set it to 1 for the workers if they should"
    return Check(name, ok=None, detail=detail, remedy=remedy)


def check_ray(told: Iterable[Told], cluster: str) -> Check:
    """
    Is Ray new enough for the debugger that VS Code attaches to?

    Args:
        told: What the workers said.

        cluster: The version that the cluster was started with, or ``""``.
    """
    versions = {plain_text(one.facts.get("ray")) for one in told} | {cluster}
    known = sorted(versions - {""})
    name = "Ray"
    if not known:
        return Check(name, ok=None, detail="its version is not known")
    old = [x for x in known if (_version(x) or _OLDEST_RAY) < _OLDEST_RAY]
    if old:
        detail = f"Ray {', '.join(old)} is older than 2.39"
        remedy = "use a newer one: before, its default was `ray debug`"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    return Check(name, ok=True, detail=", ".join(known))


def _version(text: str) -> tuple[int, ...] | None:
    match = re.match(r"\d{1,6}(?:\.\d{1,6}){0,3}", text)
    return tuple(map(int, match[0].split("."))) if match else None


def _answered(one: Told) -> bool:
    return "debugpy" in one.facts


def _names(ones: Sequence[Told]) -> str:
    return ", ".join(_distinct(f"{x.who} on {x.node}" for x in ones))


def _distinct(names: Iterable[str]) -> Iterator[str]:
    found = list(dict.fromkeys(names))
    yield from found[:3]
    if len(found) > 3:
        yield f"{len(found) - 3} more"

"""
Has the editor what it takes to show Ray's breakpoints?
"""

from __future__ import annotations

import shutil

from ...capture.blockers import Check
from ...capture.tool import run_tool
from .model import EXTENSION


__all__ = ["check_extension"]

_EDITORS = ("code", "cursor", "code-insiders", "codium")


def check_extension(*, timeout_s: float = 10.0) -> Check:
    """
    Is the extension for Ray's debugger installed?

    That can only be seen where the editor is; elsewhere it is no problem.

    Args:
        timeout_s: How long each editor may take, in seconds.
    """
    name = "extension"
    tools = {tool: shutil.which(tool) for tool in _EDITORS}
    lacking, silent = [], []
    for editor, path in tools.items():
        if path is None:
            continue
        listed = _extensions(path, timeout_s)
        if listed is None:
            silent.append(editor)
        elif EXTENSION in listed:
            return Check(name, ok=True, detail=f"{EXTENSION} is in {editor}")
        else:
            lacking.append(editor)
    remedy = f"code --install-extension {EXTENSION}"
    if lacking:
        detail = f"{EXTENSION} is not in {', '.join(lacking)}"
        return Check(name, ok=False, detail=detail, remedy=remedy)
    detail = (
        f"{', '.join(silent)} did not list its extensions"
        if silent
        else "no editor's command is here"
    )
    remedy += ", where VS Code runs; a launch.json of ours does without it"
    return Check(name, ok=None, detail=detail, remedy=remedy)


def _extensions(path: str, timeout_s: float) -> set[str] | None:
    try:
        got = run_tool([path, "--list-extensions"], timeout_s=timeout_s)
    except OSError:
        return None
    if got.status != 0:
        return None
    # With --show-versions, which a wrapper may add, a version follows.
    lines = got.output.lower().splitlines()
    return {line.strip().partition("@")[0] for line in lines}

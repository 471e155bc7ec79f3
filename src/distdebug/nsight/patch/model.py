"""
What is known of Ray's nsight plugin, and what was done about it?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from ..._showing import Block, Lines, Shown


__all__ = ["PatchState", "PatchStatus"]

PatchState = Literal[
    "needs_patch",
    "patched",
    "fixed_upstream",
    "unknown",
    "absent",
    "read_only",
    "not_permitted",
    "busy",
]

_SENTENCES: dict[PatchState, str] = {
    "needs_patch": "starts workers with whatever 'python' is on PATH",
    "patched": "is patched: it starts workers with the right Python",
    "fixed_upstream": "starts workers with the right Python by itself",
    "unknown": "has a text that is not known, and is left alone",
    "absent": "is not installed here",
    "read_only": "cannot be changed: its file system is read-only",
    "not_permitted": "cannot be changed by this user",
    "busy": "was not changed",
}
_REMEDIES: dict[PatchState, str] = {
    "needs_patch": "run 'distdebug nsight patch' on every node before "
    "'ray start', or start workers by mode=\"py_executable\"",
    "unknown": "look at the line that sets context.py_executable, or start "
    'workers by mode="py_executable"',
    "absent": "name the environment that Ray runs in",
    "read_only": "patch it while the image is built, or start workers by "
    'mode="py_executable"',
    "not_permitted": "let the owner of the file run 'distdebug nsight patch', "
    'or start workers by mode="py_executable"',
    "busy": "try again",
}


@attrs.frozen(kw_only=True)
class PatchStatus(Shown):
    """
    The state of Ray's nsight plugin in one installation.

    Attributes:
        state: ``"needs_patch"``, ``"patched"``, ``"fixed_upstream"``,
            ``"unknown"`` (no text that we know), ``"absent"`` (no such file),
            or why nothing was changed that should be: ``"read_only"``,
            ``"not_permitted"``, or ``"busy"``.

        path: The file.

        ray_version: The version of its package, if that tells.

        changed: Whether this call changed the file.

        detail: What the system said, if something went wrong.

        stale_bytecode: Compiled files that Python would load although they do
            not belong to the source.

        stale_agents: Processes of Ray on this node that loaded the plugin
            before the file got as it is, and so know nothing of it.
    """

    state: PatchState
    path: str | None = None
    ray_version: str | None = None
    changed: bool = False
    detail: str = ""
    stale_bytecode: tuple[str, ...] = ()
    stale_agents: tuple[int, ...] = ()

    @property
    def is_fine(self) -> bool:
        """
        Whether workers that Ray starts from now on get the right Python.
        """
        is_good = self.state in {"patched", "fixed_upstream"}
        return is_good and not self.stale_bytecode and not self.stale_agents

    @property
    def remedy(self) -> str | None:
        """
        What to do about it; ``None`` if nothing.
        """
        if self.state in _REMEDIES:
            return _REMEDIES[self.state]
        if self.stale_bytecode:
            return f"remove {', '.join(self.stale_bytecode)}"
        if self.stale_agents:
            return "restart Ray on this node: 'ray stop', then 'ray start'"
        return None

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            **attrs.asdict(self),
            "stale_bytecode": list(self.stale_bytecode),
            "stale_agents": list(self.stale_agents),
            "fine": self.is_fine,
            "remedy": self.remedy,
        }

    def _blocks_(self) -> Iterable[Block]:
        version = f" {self.ray_version}" if self.ray_version else ""
        lines = [f"Ray{version}'s nsight plugin {_SENTENCES[self.state]}"]
        if self.changed:
            lines[0] += " (changed just now)"
        lines += [f"  {self.path}"] if self.path else []
        lines += [f"  {self.detail}"] if self.detail else []
        lines += [f"  stale byte code: {x}" for x in self.stale_bytecode]
        if self.stale_agents:
            pids = ", ".join(map(str, self.stale_agents))
            lines.append(
                "  Ray runs here already and will not see it: process "
                f"{pids} started before the file got as it is"
            )
        lines += [f"  Try: {self.remedy}"] if self.remedy else []
        yield Lines(lines)

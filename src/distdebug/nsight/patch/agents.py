"""
Which processes of Ray loaded the plugin before it got as it is?
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...processes.proc.procfs import read_proc


__all__ = ["stale_agents"]

_PROGRAM = "_private/runtime_env/agent/main.py"
# What replaces its command line in newer versions.
_TITLE = "ray::RuntimeEnvAgent"
_MOST_MAPS = 1 << 22


def stale_agents(plugin: Path) -> tuple[int, ...]:
    """
    Which agents on this node started before the plugin was last written?

    Args:
        plugin: The file.

    Returns:
        Their numbers; those that surely are of other installations are left
        out.
    """
    import psutil

    from ..orphans import all_processes

    try:
        written = plugin.stat().st_mtime
        package = plugin.resolve().parents[2]
    except (OSError, IndexError):
        return ()

    found = []
    for process in all_processes():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if _is_agent(process.pid, words, package) and (
                process.create_time() < written
            ):
                found.append(process.pid)
    return tuple(sorted(found))


def _is_agent(pid: int, words: list[str], package: Path) -> bool:
    if words and words[0].startswith(_TITLE):
        loaded = read_proc(f"/proc/{pid}/maps", limit=_MOST_MAPS)
        library = bytes(package / "_raylet.so")
        return loaded is None or library in loaded

    # An interpreter, perhaps its options, and then the program.
    for word in words[1:5]:
        if word.endswith(_PROGRAM) and word.startswith("/"):
            return Path(word).resolve().is_relative_to(package)
    return False

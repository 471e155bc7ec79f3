"""
How are stacks kept, for people and for programs?

Both forms are those of py-spy, so that other tools can read them.
"""

from __future__ import annotations

import json

from typing import Any

from .model import ProcessStacks, ThreadStack


__all__ = ["stacks_to_json", "stacks_to_text"]


def stacks_to_json(process: ProcessStacks) -> str:
    """
    Write a process as ``py-spy dump --json`` does.

    Args:
        process: The process.

    Returns:
        The JSON; :func:`~distdebug.stacks.parse.parse_stacks` reads it.
    """
    info: dict[str, Any] = {
        "pid": process.pid,
        "command_line": process.command,
        "parent": None,
        "rank": process.rank,
    }
    if process.parent_pid is not None:
        info["parent"] = {"pid": process.parent_pid}
    threads = [
        {
            "pid": process.pid,
            "thread_id": thread.thread_id or 0,
            "thread_name": thread.name or None,
            "os_thread_id": thread.thread_id,
            "active": thread.active,
            "owns_gil": thread.owns_gil,
            "frames": [
                {"name": f.name, "filename": f.filename, "line": f.line}
                for f in thread.frames
            ],
            "process_info": info,
        }
        for thread in process.threads
    ]
    return json.dumps(threads, indent=1)


def stacks_to_text(process: ProcessStacks) -> str:
    """
    Write a process as ``py-spy dump`` does.

    Args:
        process: The process.

    Returns:
        The text; :func:`~distdebug.stacks.parse.parse_stacks` reads it.
    """
    lines = [f"Process {process.pid}: {_one_line(process.command)}", ""]
    for thread in process.threads:
        lines.append(_thread_title(thread))
        lines += (f"    {_one_line(str(frame))}" for frame in thread.frames)
    return "\n".join(lines) + "\n"


def _thread_title(thread: ThreadStack) -> str:
    state = "active" if thread.active else "idle"
    gil = "+gil" if thread.owns_gil else ""
    name = f': "{_one_line(thread.name)}"' if thread.name else ""
    return f"Thread {thread.thread_id or 0} ({state}{gil}){name}"


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]

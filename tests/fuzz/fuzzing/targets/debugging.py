"""
What travels between the prompt and the ranks, and what people type.
"""

from __future__ import annotations

import json

from distdebug.debugger.client.commands import parse_command
from distdebug.debugger.client.model import Process
from distdebug.debugger.client.reading import (
    process_of,
    read_output,
    stack_text,
)
from distdebug.debugger.wire import Feed, WireError

from ..target import target


def _answers() -> list[bytes]:
    place = {"function": "f", "file": "a.py", "line": 3}
    stop = {"key": "1", "number": 1, "thread": "MainThread", "left_s": 2.5}
    listed = {
        "process": {
            "group": "job",
            "rank": 3,
            "coords": {"dp": 1},
            "host": "node0",
            "pid": 7,
        },
        "stops": [{**stop, "reason": "x", "state": "stopped", **place}],
        "main": place,
    }
    frames = [{**place, "code": "x = 1"}]
    told = {"threads": [{"thread": "MainThread", "frames": frames}]}
    given = {"stops": {"1": {"state": "stopped", "output": "3"}}}
    return [
        json.dumps(x).encode() + b"\n"
        for x in (listed, told, given, {"output": "x", "error": "y"})
    ]


@target(WireError, seeds=_answers)
def debugger_frames(data: bytes) -> object:
    """
    Answers of ranks, in pieces.
    """
    feed, shown = Feed(), []
    for start in range(0, len(data), 4096):
        for answer in feed.take(data[start : start + 4096]):
            process = process_of("socket", answer)
            output = read_output(process, answer)
            stack_text(answer.get("threads"))
            shown += [_line(process), output.text, output.state]
    return shown


def _line(process: Process) -> str:
    stops = [f"{s.thread} {s.reason} {s.file}" for s in process.sessions]
    return " ".join([process.group, process.host, process.file, *stops])


@target()
def debugger_command(data: bytes) -> object:
    """
    What was typed at the prompt.
    """
    command = parse_command(data.decode("utf-8", "replace"))
    return str(command.ranks)

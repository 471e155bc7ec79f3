"""
What travels between the prompt and the ranks, and what people type.
"""

from __future__ import annotations

import json

from distdebug.debugger import Listing, parse_command
from distdebug.debugger.client.connections import Peer, parse_relay_ranks
from distdebug.debugger.client.model import (
    Process,
    parse_process,
    parse_stack_texts,
    process_key,
    read_output,
    stack_text,
    thread_answer,
)
from distdebug.debugger.inside.agent import handle_request
from distdebug.debugger.protocol import (
    MessageDecoder,
    WireError,
    encode_message,
)

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
    decoder, shown = MessageDecoder(), []
    for start in range(0, len(data), 4096):
        for answer in decoder.decode(data[start : start + 4096]):
            process = parse_process("socket", answer)
            process_key(process, answer)
            output = read_output(process, thread_answer(answer, "1"))
            stack_text(answer.get("threads"))
            shown += [_line(process), output.text, output.state]
    return shown


def _line(process: Process) -> str:
    stops = [f"{s.thread} {s.reason} {s.file}" for s in process.sessions]
    return " ".join([process.group, process.host, process.file, *stops])


def _requests() -> list[bytes]:
    asked = (
        {"op": "list"},
        {"op": "command", "line": "n", "keys": ["1"], "wait": 0},
        {"op": "last", "keys": ["1", "2"]},
        {"op": "extend", "keys": ["1"], "seconds": 5},
        {"op": "stack", "all": True},
        {"op": "source", "file": "a.py", "text": "x = 1\n"},
        {"op": "resume", "wait": 0},
    )
    return [json.dumps({"id": 1, **x}).encode() + b"\n" for x in asked]


@target(WireError, seeds=_requests)
def debugger_requests(data: bytes) -> object:
    """
    What somebody asks a rank that holds no thread.
    """
    for request in MessageDecoder().decode(data):
        # These run code of the owner, or stop this very thread.
        if str(request.get("op")) not in {"eval", "interrupt"}:
            encode_message(handle_request(request))


def _relays() -> list[bytes]:
    known = {"folder": "/x", "ranks": {"0.1.7.sock": [7, 0]}, "silent": [9]}
    told = {"told": ["process 9 does not answer"]}
    return [json.dumps(x).encode() + b"\n" for x in (known, told)]


@target(WireError, seeds=_relays)
def debugger_relay(data: bytes) -> object:
    """
    What the relay of another node answers.
    """
    shown = []
    for answer in MessageDecoder().decode(data):
        shown += parse_stack_texts(answer)
        if known := parse_relay_ranks(Peer(None), "a", answer):
            peers, silent = known
            shown += [*peers]
            shown.append(Listing(silent=tuple(silent)))
    return shown


@target()
def debugger_command(data: bytes) -> object:
    """
    What was typed at the prompt.
    """
    command = parse_command(data.decode("utf-8", "replace"))
    return str(command.ranks)

"""
Who failed, and how, as such lines tell?
"""

from __future__ import annotations

import re

from collections.abc import Iterator

import attrs

from ..._text import clean
from ..deaths.memory import memory_notes
from ..deaths.ranks import rank_of
from .blocks import Block
from .model import Failure, FailureKind
from .raised import calls_in, error_in, found_in, raised_failure


__all__ = ["failures_of"]

_LONGEST = 1 << 16
_FIELD = re.compile(
    r"^\s{1,8}(?P<key>class_name|actor_id|pid|name|ip): (?P<value>[^\n]{0,200})$",
    re.MULTILINE,
)
_EXIT = re.compile(r"[Ww]orker exit type: (?P<type>\w{1,40})")
_DETAIL = re.compile(r"[Ww]orker exit detail: (?P<detail>[^\n]{0,2000})")
_WORKER = {
    "worker_id": re.compile(r"Worker ID: ([0-9a-f]{56})"),
    "node_id": re.compile(
        r"(?:[Nn]ode (?:ID|id)|\(IP: [^,\s]{1,60}, ID): ([0-9a-f]{56})"
    ),
    "ip": re.compile(
        r"(?:Worker IP address: |and address: |\(IP: )([^,\s]{1,60})"
    ),
    "pid": re.compile(r"Worker PID: (\d{1,10})"),
}
_UNAVAILABLE = re.compile(r"The actor (?P<id>[0-9a-f]{32}) is unavailable")
_RAN = re.compile(
    r"(?:task name|, name)=(?P<name>[\w.<>]{1,200})[^\n]{0,200}?"
    r"\bpid=(?P<pid>\d{1,10})"
)
# What killed the worker, by what is told; the first that fits.
_KINDS: tuple[tuple[str, FailureKind], ...] = (
    ("not registered within the timeout", "start_timeout"),
    ("running low on memory", "out_of_memory"),
    ("RuntimeEnvSetupError: ", "not_started"),
    ("UnschedulableError: ", "not_started"),
    ("error raised in its creation task", "init_error"),
    ("owner has died", "owner_died"),
    ("OwnerDiedError", "owner_died"),
    ("marked dead", "node_died"),
    ("NodeDiedError", "node_died"),
    ("its node has died", "node_died"),
    ("class_name:", "actor_died"),
    ("ActorUnavailableError", "actor_unavailable"),
    ("worker died or was killed", "worker_crashed"),
    ("WorkerCrashedError", "worker_crashed"),
)


def failures_of(block: Block) -> Iterator[Failure]:
    """
    Read what failed out of the lines that tell it.

    Args:
        block: The lines.

    Yields:
        The failures: one, or one for each worker that Ray killed for memory.
    """
    text = "\n".join(block.lines)[:_LONGEST]
    kind = _kind(text, block)
    base = Failure(
        kind=kind, line=block.number, quote=clean(block.lines[0], limit=400)
    )
    if kind == "out_of_memory":
        yield from _killed(base, text)
    elif kind in {"task_error", "init_error"}:
        yield raised_failure(base, block)
    else:
        yield _died(base, text)


def _kind(text: str, block: Block) -> FailureKind:
    calls = calls_in(block.lines)
    for word, kind in _KINDS:
        if word in text and (kind != "init_error" or calls):
            return kind
    return "task_error" if calls else "actor_died"


def _died(base: Failure, text: str) -> Failure:
    error, message = error_in(text.partition("\n")[0])
    fields = {m["key"]: clean(m["value"]) for m in _FIELD.finditer(text)}
    found = found_in(_WORKER, text)
    kind, detail = _EXIT.search(text), _DETAIL.search(text)
    unavailable = _UNAVAILABLE.search(text)
    pid = fields.get("pid") or found.get("pid") or ""
    return attrs.evolve(
        base,
        actor_class=fields.get("class_name") or None,
        actor_id=fields.get("actor_id")
        or (unavailable["id"] if unavailable else None),
        actor_name=fields.get("name") or None,
        pid=int(pid) if pid.isdecimal() else None,
        ip=fields.get("ip") or found.get("ip"),
        node_id=found.get("node_id"),
        worker_id=found.get("worker_id"),
        exit_type=kind["type"] if kind else None,
        detail=clean(detail["detail"], limit=1000)
        if detail
        else _reason(text),
        rank=rank_of((fields.get("name"),), ""),
        error=error,
        message=message,
    )


def _reason(text: str) -> str:
    found = re.search(
        r"^The actor is dead because [^\n]{1,1000}", text, re.MULTILINE
    )
    return clean(found[0], limit=1000) if found else ""


def _killed(base: Failure, text: str) -> Iterator[Failure]:
    found = found_in(_WORKER, text)
    known = memory_notes(text)
    notes = {note.pid: note for note in known if note.worker_id}
    base = attrs.evolve(
        base,
        error="OutOfMemoryError",
        ip=found.get("ip"),
        node_id=found.get("node_id"),
        exit_type="NODE_OUT_OF_MEMORY",
        detail=clean(text, limit=1000),
    )
    if not notes:
        yield base
    functions = {x["pid"]: x["name"] for x in _RAN.finditer(text)}
    for note in notes.values():
        function = functions.get(str(note.pid), "")
        yield attrs.evolve(
            base,
            pid=note.pid,
            node_id=note.node_id,
            worker_id=note.worker_id,
            memory=note.size,
            function=function,
            actor_class=function.split(".")[0] if "." in function else None,
        )

"""
What is known of the end of one worker, and of all of them?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from ..._showing import Block, Shown, Table
from ...findings import Evidence, Location, Missing, as_plain


__all__ = ["Death", "DeathKind", "Deaths"]

DeathKind = Literal[
    "native_crash",
    "collective_timeout",
    "killed_or_exited",
    "exit_code",
    "terminated",
    "init_error",
    "ray_oom",
    "host_oom",
    "node_died",
    "owner_died",
    "job_ended",
    "intended",
]

_MOST_ROWS = 100
# How each of them is called in a table.
_WORDS: Mapping[DeathKind, str] = {
    "native_crash": "native crash",
    "collective_timeout": "aborted by watchdog",
    "killed_or_exited": "SIGKILL or os._exit",
    "exit_code": "exit code",
    "terminated": "SIGTERM",
    "init_error": "error in __init__",
    "ray_oom": "killed by Ray for memory",
    "host_oom": "killed by the kernel for memory",
    "node_died": "node died",
    "owner_died": "owner died",
    "job_ended": "job ended",
    "intended": "intended",
}


@attrs.frozen(kw_only=True)
class Death:
    """
    How did one worker of a cluster end?

    Attributes:
        kind: ``"native_crash"`` by a signal such as SIGSEGV;
            ``"collective_timeout"``, torch's watchdog aborted it;
            ``"killed_or_exited"``, by SIGKILL or ``os._exit``, which leave
            the same (that is: no) trace; ``"exit_code"``, by ``sys.exit``;
            ``"terminated"`` by SIGTERM; ``"init_error"``, the ``__init__`` of
            an actor raised; ``"ray_oom"`` and ``"host_oom"``, by Ray or the
            kernel, who lacked memory; ``"node_died"``, the node or what Ray
            runs on it; ``"owner_died"``, who had created it; ``"job_ended"``,
            with its driver; ``"intended"``, as the program wanted.

        time: When, in seconds since the epoch, as the clock of the head has
            it wherever it tells.

        worker_id: What Ray calls the process, 56 hexadecimal digits; ``""``
            for a whole node.

        pid: The number of the process on its node.

        node_id: What Ray calls the node.

        ip: The address of the node.

        host: How to call the node.

        job_id: The job it belonged to, 8 hexadecimal digits.

        actor_id: Which actor it was, 32 hexadecimal digits.

        actor: What a person calls it: the ``repr``, class, or name of the
            actor, or the task it ran.

        actor_class: The class of the actor.

        actor_name: The name that it was given.

        rank: The global rank, if its name or its log tells.

        exit_type: Ray's word for it, such as ``"SYSTEM_ERROR"``.

        detail: What Ray says about it.

        exit_code: What it exited with, if that is told.

        signal: Such as ``"SIGSEGV"``, if one is told.

        memory: How many bytes it had when memory ran out.

        owner: The worker that had created it and died before.

        error: The last line of the traceback of ``"init_error"``, or what
            stood before a crash.

        python_frames: Where it was, innermost first.

        native_frames: The same in native code, as it stands in the log.

        last_lines: The last lines of its error log.

        log: Its error log, or else the file that tells of its end.

        is_first: Whether it is taken for the cause of all others.

        is_collateral: Whether it merely follows from another.

        evidence: The lines that tell.
    """

    kind: DeathKind
    time: float | None = None
    worker_id: str = ""
    pid: int | None = None
    node_id: str | None = None
    ip: str | None = None
    host: str = ""
    job_id: str | None = None
    actor_id: str | None = None
    actor: str = ""
    actor_class: str | None = None
    actor_name: str | None = None
    rank: int | None = None
    exit_type: str | None = None
    detail: str = ""
    exit_code: int | None = None
    signal: str | None = None
    memory: int | None = None
    owner: str | None = None
    error: str | None = None
    python_frames: tuple[Location, ...] = ()
    native_frames: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    log: Path | None = None
    is_first: bool = False
    is_collateral: bool = False
    evidence: tuple[Evidence, ...] = ()

    @property
    def is_intended(self) -> bool:
        """
        Whether the program, or Ray at its end, wanted it.
        """
        return self.kind in {"intended", "job_ended"}

    @property
    def label(self) -> str:
        """
        Who it was, such as ``"Trainer (rank 3, pid 4711, node-7)"``.
        """
        if not self.worker_id:
            return f"node {self.host or self.ip or (self.node_id or '')[:8]}"

        name = self.actor or f"worker {self.worker_id[:8]}"
        is_told = self.rank is None or f"rank={self.rank}" in name
        rank = None if is_told else f"rank {self.rank}"
        pid = None if self.pid is None else f"pid {self.pid}"
        known = [x for x in (rank, pid, self.host or self.ip) if x]
        return f"{name} ({', '.join(known)})" if known else name

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def __str__(self) -> str:
        return f"{self.label}: {_WORDS[self.kind]}"


@attrs.frozen(kw_only=True)
class Deaths(Shown):
    """
    Who died in a cluster, and what came first?

    Attributes:
        deaths: All ends that are told, in the order of time.

        missing: What could not be looked at, and why.

        not_started: Lines about workers that never registered with Ray.
    """

    deaths: tuple[Death, ...] = ()
    missing: tuple[Missing, ...] = ()
    not_started: tuple[Evidence, ...] = ()

    @property
    def first(self) -> Death | None:
        """
        What is taken for the cause of all others, if anything went wrong.
        """
        return next((x for x in self.deaths if x.is_first), None)

    @property
    def unintended(self) -> tuple[Death, ...]:
        """
        Those that nobody wanted.
        """
        return tuple(x for x in self.deaths if not x.is_intended)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per death, for a data frame.
        """
        return [death.to_dict() for death in self.deaths]

    def _blocks_(self) -> Iterable[Block]:
        if not self.deaths:
            yield "no death is told"
            return

        headers = ("", "time (UTC)", "rank", "who", "pid", "node", "how")
        rows = [_row(death) for death in self.deaths]
        yield Table(headers, rows, _MOST_ROWS, "deaths")


def _row(death: Death) -> list[object]:
    from .wording import clock

    mark = "first" if death.is_first else ""
    how = _WORDS[death.kind]
    if death.kind == "exit_code" and death.exit_code is not None:
        how = f"exit code {death.exit_code}"
    return [
        "follows" if death.is_collateral else mark,
        clock(death.time),
        "" if death.rank is None else death.rank,
        death.actor or ("node" if not death.worker_id else "worker"),
        "" if death.pid is None else death.pid,
        death.host or death.ip or (death.node_id or "")[:8],
        death.signal if death.kind == "native_crash" and death.signal else how,
    ]

"""
Answer the questions of agents about jobs, from the folders that were named.
"""

from __future__ import annotations

import os
import time

from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Literal

import attrs

from .. import (
    capture,
    flight_recorder,
    health,
    logs,
    processes,
    ray,
    stacks,
)
from .._io import is_there, is_within
from .._text import count_text, list_text, text_table
from ..diagnosis import diagnose
from ..errors import CaptureError, DistdebugError
from ..ranks import ranks_text
from ..report import report_html
from .answers import Answer, answer, judged


#: The methods of :class:`HangTools` that agents call.
TOOLS = ("diagnose", "stacks", "logs", "phase", "health", "entries")

_MOST_PAGE_CHARS = 4_000_000
_MOST_ROWS = 500


@attrs.frozen(kw_only=True)
class HangTools:
    """
    The tools.

    Attributes:
        folders: The folders that may be read, without links.

        live: Whether this node and its processes may be looked at.

        allow_stopping: Whether looks that stop a process are permitted.

        timeout_s: Limit of one call, in seconds.
    """

    folders: tuple[str, ...]
    live: bool = False
    allow_stopping: bool = False
    timeout_s: float = 50.0

    def diagnose(self, paths: list[str] | None = None) -> Answer:
        """
        Find the root cause of a job that is stuck, slow, or dead.

        Reads Flight Recorder dumps, stacks, logs, Ray sessions, and snapshots.

        Args:
            paths: Files and folders of one job; by default all that this
                server may read.
        """
        diagnosis = diagnose(*self._find(paths))
        return answer(
            diagnosis.verdict.summary,
            str(diagnosis),
            diagnosis.to_dict(),
            is_fine=diagnosis.is_healthy,
        )

    def stacks(
        self,
        pids: list[int] | None = None,
        pattern: str = "",
        seconds: float = 2.0,
        native: bool = False,  # noqa: FBT001, FBT002 named by agents
        cuda: bool = False,  # noqa: FBT001, FBT002 named by agents
    ) -> Answer:
        """
        Say what every worker on this node does right now, and waits for.

        It stops no process.

        Args:
            pids: Process IDs; by default the workers of all jobs are found.

            pattern: Regular expression for command lines of workers.

            seconds: How long to watch who moves and who does not.

            native: Native stacks too, which stops processes for up to a few
                seconds: refused unless the server permits stopping.

            cuda: GPU kernels by cuda-gdb, which stops every process for
                seconds: refused unless the server permits stopping.
        """
        self._require_live(stops=native or cuda)
        patterns = [pattern] if pattern else []
        captured = capture.capture_node(
            pids=pids or None,
            patterns=patterns,
            native="classes" if native else "none",
            cuda=cuda,
            interval_s=min(max(seconds, 0.0), 0.5 * self.timeout_s) / 2,
            timeout_s=0.8 * self.timeout_s,
        )
        capture.check_found(captured, pids or (), patterns)
        tree = stacks.merge_stacks(captured.stacks).to_dict()
        data = {**captured.to_dict(), "tree": tree}
        if captured.is_blind:
            verdict = "no stack could be read: see what is missing, and why"
            return answer(verdict, str(captured), data)
        return judged(captured.findings, captured, data)

    def logs(
        self,
        paths: list[str] | None = None,
        question: Literal["errors", "collectives", "deaths"] = "errors",
    ) -> Answer:
        """
        Read logs of any size, and answer one question about them.

        Args:
            paths: Logs, or folders of logs; for deaths, folders of Ray
                sessions.

            question: What went wrong ("errors"), which collective hangs
                according to watchdogs, NCCL, and Gloo ("collectives"), or who
                died first in a Ray cluster ("deaths").
        """
        found = self._find(paths)
        if question == "collectives":
            read = logs.read_collective_logs([*map(Path, found)])
            findings = logs.collective_findings(read)
            return judged(findings, read, read.to_dict())
        if question == "deaths":
            deaths = ray.find_deaths(ray.find_ray_sessions(*found))
            findings = ray.death_findings(deaths)
            return judged(findings, deaths, deaths.to_dict())
        scanned = logs.scan_logs(found)
        if not scanned.bytes_read:
            verdict = "no log could be read: see what is missing, and why"
            return answer(verdict, str(scanned), scanned.to_dict())
        return judged(scanned.findings, scanned, scanned.to_dict())

    def phase(
        self,
        paths: list[str] | None = None,
        has_ended: bool = False,  # noqa: FBT001, FBT002 named by agents
    ) -> Answer:
        """
        Say in which phase of its start-up a job is, and if it takes too long.

        Args:
            paths: The log of the driver, and those of workers.

            has_ended: Whether the job is over, so that silence means nothing.
        """
        found = logs.detect_phase(
            [*map(Path, self._find(paths))],
            now=None if has_ended else time.time(),
        )
        is_known = found.framework or found.current or found.findings
        is_fine = all(x.cause.is_fine for x in found.findings)
        return answer(
            found.verdict,
            str(found),
            found.to_dict(),
            is_fine=is_fine if is_known else None,
        )

    def health(self) -> Answer:
        """
        Check this node: GPUs, kernel log, memory, disks, network, variables.

        It changes nothing, and takes up to ten seconds.
        """
        self._require_live()
        workers = processes.find_workers()
        node = health.check_node(
            pids=[x.pid for x in workers], folders=self.folders
        )
        variables = health.check_environment(
            workers, nodes={node.facts.host: node}
        )
        data = {"node": node.to_dict(), "environment": variables.to_dict()}
        findings = (*node.findings, *variables.findings)
        return judged(findings, f"{node}\n\n{variables}", data)

    def entries(  # noqa: PLR0913 each can be left out
        self,
        paths: list[str] | None = None,
        *,
        rank: int | None = None,
        group: str = "",
        seq: int | None = None,
        most: int = 50,
        stack_traces: bool = False,
    ) -> Answer:
        """
        List the calls that Flight Recorder dumps hold, of a rank or of a call.

        Args:
            paths: Dumps, or folders of dumps.

            rank: Only calls of this rank, the newest first.

            group: Only calls in this process group, by name or description.

            seq: Only the call with this number, of all ranks.

            most: How many rows, at most 500.

            stack_traces: Whether to list the Python stack of each call, too.
        """
        if rank is None and seq is None:
            msg = "all calls of all ranks are too many to list"
            raise DistdebugError(msg, remedy="name a rank, or a seq and group")
        dumps = flight_recorder.read_dumps(map(Path, self._find(paths)))
        flight_recorder.check_readable(dumps)
        rows = [
            row
            for row in flight_recorder.entry_rows(
                dumps,
                ranks=None if rank is None else [rank],
                groups=[group] if group else None,
                stack_traces=stack_traces,
            )
            if seq is None or row.seq == seq
        ]
        verdict = _summarize(rows, dumps, rank)
        return _list_rows(verdict, rows[:: 1 if rank is None else -1], most)

    def page(self, path: str) -> str:
        """
        Return the HTML report of a file or folder: a page for people.
        """
        html = report_html(*self._find([path]))
        if len(html) > _MOST_PAGE_CHARS:
            msg = f"the page has {len(html):,} characters, which is too large"
            remedy = "distdebug diagnose FOLDER --html report.html"
            raise DistdebugError(msg, remedy=remedy)
        return html

    def _find(self, paths: Iterable[str] | None) -> list[str]:
        """
        Return paths without links, all of them in the folders of the server.
        """
        return [*map(self._find_one, paths or self.folders)]

    def _find_one(self, path: str) -> str:
        # An absolute path replaces the folder.
        places = [os.path.join(folder, path) for folder in self.folders]  # noqa: PTH118 see _io
        place = next(filter(is_there, places), places[0])
        real = "" if "\0" in path else os.path.realpath(place)
        is_inside = is_within(real, *self.folders)
        if is_inside and is_there(real):
            return real

        why = "is not there" if is_inside else "is in none of my folders"
        msg = f"{path!r} {why}"
        remedy = f"name a path in {list_text(self.folders)}"
        raise DistdebugError(msg, remedy=remedy)

    def _require_live(self, *, stops: bool = False) -> None:
        if not self.live:
            msg = "this server may only read files"
            remedy = "let its owner start it as: distdebug mcp --live DIR"
            raise CaptureError(msg, remedy=remedy)
        if stops and not self.allow_stopping:
            msg = "this server may not stop a process"
            remedy = (
                "ask without native and cuda, or let its owner start it as: "
                "distdebug mcp --live --allow-stopping DIR"
            )
            raise CaptureError(msg, remedy=remedy)


def _summarize(
    rows: Sequence[flight_recorder.EntryRow],
    dumps: flight_recorder.Dumps,
    rank: int | None,
) -> str:
    """
    Say in one sentence what the records of a rank, or of a call, show.
    """
    if not rows:
        return "no recorded call matches"
    if rank is not None:
        last = rows[-1]
        call = f"{last.op} #{last.seq} of group {last.desc or last.group}"
        found = count_text(len(rows), "recorded call")
        return f"rank {rank}: {found}; the newest is {call}, {last.state}"
    by_state: dict[str, set[int]] = {}
    for row in rows:
        by_state.setdefault(f"{row.op} {row.state}", set()).add(row.rank)
    names = {row.group for row in rows}
    groups = flight_recorder.find_groups(dumps).groups
    members = chain.from_iterable(x.order for x in groups if x.name in names)
    if lost := {*members} - {row.rank for row in rows}:
        by_state["no record"] = lost
    parts = (f"{what}: {ranks_text(x)}" for what, x in by_state.items())
    return f"call #{rows[0].seq}: {'; '.join(parts)}"


def _list_rows(
    verdict: str, rows: Sequence[flight_recorder.EntryRow], most: int
) -> Answer:
    shown = rows[: max(1, min(most, _MOST_ROWS))]
    columns = ("rank", "group", "op", "seq", "state", "inputs", "frames")
    table = [
        (x.rank, x.group, x.op, x.seq, x.state, x.inputs, " < ".join(x.frames))
        for x in shown
    ]
    report = f"{verdict}\n\n{text_table(columns, table)}" if rows else verdict
    data = {"entries": [x.to_dict() for x in shown]}
    listed = answer(verdict, report, data)
    if len(rows) > len(shown):
        cut = f"entries: {len(shown):,} of {len(rows):,}"
        listed["cut"].insert(0, cut)
    return listed


def skill_file() -> str:
    """
    Return the skill file, which says when to ask what.
    """
    return (files("distdebug.agents") / "SKILL.md").read_text("utf-8")


def instructions(tools: HangTools) -> str:
    """
    Return what an agent is told at first: when to ask what, and what is
    permitted.
    """
    skill = skill_file().partition("\n---\n")[2].strip()  # without its header
    live = "may" if tools.live else "may not"
    stop = "may" if tools.allow_stopping else "may not"
    return (
        f"{skill}\n\nThis server reads {list_text(tools.folders, most=20)}; "
        f"relative paths are looked for there. It {live} look at live "
        f"processes, and {stop} stop them."
    )

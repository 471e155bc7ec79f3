"""
Who listens in a folder, and what do those that are selected answer?
"""

from __future__ import annotations

import os

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from ...ranks import RankSelection
from ..folders import socket_paths
from .calls import Line, ask_all, open_line
from .choosing import choose
from .lending import sources_to_lend
from .model import Answers, Listing, Output, Process, Session
from .reading import process_of, read_output


__all__ = ["Ranks"]

# What an answer may take longer than the rank was told to wait.
_SLACK_S = 1.0


@attrs.define
class Ranks:
    """
    The connections to all ranks whose sockets are in one folder.

    Args:
        folder: The folder.

        timeout_s: How long a rank may take to answer, in seconds.
    """

    folder: Path
    timeout_s: float = 2.0
    _lines: dict[str, Line] = attrs.field(factory=dict, init=False)
    _lent: set[str] = attrs.field(factory=set, init=False)

    def close(self) -> None:
        """
        Hang up.
        """
        self._hang_up(self._lines)

    def listing(self) -> Listing:
        """
        Find out who listens, and who is stopped.
        """
        paths = self._connect()
        answers = ask_all(
            self._lines,
            {path: {"op": "list"} for path in self._lines},
            self.timeout_s,
        )
        silent = [path for path, answer in answers.items() if answer is None]
        self._hang_up(silent)
        self._lend(answers)
        found = [process_of(path, a) for path, a in answers.items() if a]
        found.sort(key=lambda p: (p.group, p.rank, p.host, p.pid))
        return Listing(
            processes=tuple(found),
            silent=tuple(sorted(paths[path] for path in silent)),
        )

    def ask_processes(
        self,
        ranks: RankSelection | str | None,
        group: str | None,
        request: dict[str, Any],
        *,
        wait_s: float = 0.0,
        among: Iterable[Process] | None = None,
    ) -> Answers:
        """
        Ask processes, whatever their threads are doing.

        Args:
            ranks: Which.

            group: Their group.

            request: What to ask.

            wait_s: How long they may take, in seconds.

            among: Ask only these, which have been selected already.

        Returns:
            What they answered.
        """
        silent: tuple[int, ...] = ()
        if among is None:
            listing = self.listing()
            silent = listing.silent
            # If nobody answers at all, that is what there is to say.
            is_mute = bool(silent) and not listing.processes
            among = () if is_mute else choose(listing, ranks, group)
        chosen = {p.path: p for p in among}
        answers = self._ask(dict.fromkeys(chosen, request), wait_s)
        return Answers(
            outputs=tuple(
                read_output(chosen[path], answer)
                for path, answer in answers.items()
                if answer is not None
            ),
            silent=(
                *silent,
                *(chosen[p].pid for p, a in answers.items() if a is None),
            ),
        )

    def ask_stopped(
        self,
        ranks: RankSelection | str | None,
        group: str | None,
        request: dict[str, Any],
    ) -> Answers:
        """
        Ask all threads that are held in some ranks.

        Args:
            ranks: Which ranks.

            group: Their group.

            request: What to ask.

        Returns:
            What they answered, and which ranks are not stopped.
        """
        listing = self.listing()
        chosen = choose(listing, ranks, group)
        held = [(p, s) for p in chosen for s in p.sessions]
        answers = self.ask_sessions(held, request)
        return attrs.evolve(
            answers,
            not_stopped=tuple(p for p in chosen if not p.sessions),
            silent=(*listing.silent, *answers.silent),
        )

    def ask_sessions(
        self,
        held: Iterable[tuple[Process, Session]],
        request: dict[str, Any],
    ) -> Answers:
        """
        Ask threads that are held, each once.

        Args:
            held: Which threads, of which processes.

            request: What to ask.

        Returns:
            What they answered.
        """
        by_path: dict[str, dict[str, tuple[Process, Session]]] = {}
        for process, session in held:
            keys = by_path.setdefault(process.path, {})
            keys[session.key] = process, session
        answers = self._ask(
            {path: {**request, "keys": [*k]} for path, k in by_path.items()},
            float(request.get("wait", 0.0)),
        )
        outputs: list[Output] = []
        silent: list[int] = []
        for path, keys in by_path.items():
            answer = answers[path]
            if answer is None:
                silent += {p.pid for p, _ in keys.values()}
                continue
            stops = answer.get("stops") or {}
            outputs += [
                read_output(p, stops.get(key, answer), session=s)
                for key, (p, s) in keys.items()
            ]
        return Answers(outputs=tuple(outputs), silent=tuple(silent))

    def _ask(
        self, requests: dict[str, dict[str, Any]], wait_s: float
    ) -> dict[str, dict[str, Any] | None]:
        self._connect()
        there = {p: r for p, r in requests.items() if p in self._lines}
        answers = ask_all(
            self._lines, there, wait_s + self.timeout_s + _SLACK_S
        )
        return {path: answers.get(path) for path in requests}

    def _lend(self, answers: dict[str, dict[str, Any] | None]) -> None:
        """
        Send sources to those that miss them, each once.
        """
        for path, answer in answers.items():
            missing = (answer or {}).get("missing")
            if not missing or f"{path} {missing}" in self._lent:
                continue
            self._lent.add(f"{path} {missing}")
            for request in sources_to_lend(self._lines[path], missing):
                ask_all(self._lines, {path: request}, self.timeout_s)

    def _connect(self) -> dict[str, int]:
        """
        Connect to whoever is new, and forget who has gone.
        """
        paths = {str(path): pid for path, pid in socket_paths(self.folder)}
        self._hang_up(
            path
            for path, line in self._lines.items()
            if path not in paths or not line.is_open()
        )
        for path, pid in paths.items():
            if path in self._lines:
                continue
            try:
                self._lines[path] = open_line(Path(path), self.timeout_s)
            except ConnectionRefusedError:
                _sweep(Path(path), pid)
            except OSError:
                continue

        return paths

    def _hang_up(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            self._lines.pop(path).close()


def _sweep(path: Path, pid: int) -> None:
    """
    Remove the socket of a process that was killed.
    """
    if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 lighter
        with suppress(OSError):
            path.unlink()

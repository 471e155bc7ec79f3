"""
What does *distdebug* do inside a job beyond setting variables?

It listens for requests, notes who this rank is, dumps when the rank dies, and
lets its threads tell where they are.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import functools
import os

from collections.abc import Callable
from pathlib import Path

from . import crash_signals
from .complaints import quietly
from .crash_signals import CaughtSignal
from .current import Recording
from .last_words import hook_ends, leave_words, note_end, note_start
from .listener import Listener, drain, open_request_pipe
from .stack_offer import offer_stacks, withdraw_stacks


__all__ = ["Extras"]

_STDERR = 2


class Extras:
    """
    Everything that goes on inside a job.

    Args:
        recording: The recording of this process.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._caught: list[CaughtSignal] = []
        self._listener: Listener | None = None
        self._pipe: Path | None = None
        self._pipe_fd: int | None = None
        self._has_offer = False
        self._unhook: Callable[[], None] = lambda: None

    def start(self) -> None:
        """
        Begin.  What does not work here is left out.
        """
        quietly(self._open_pipe)
        quietly(self._catch_signals)
        quietly(self._listen)
        if self._listener is None:
            self._release_signals(in_child=False)  # nobody would react
        quietly(self._offer_stacks)
        self._unhook = hook_ends(self._on_end)
        note_start(self._recording)

    def stop(self) -> None:
        """
        Put everything back.
        """
        self._unhook()
        self._release_signals(in_child=False)
        quietly(self._withdraw_stacks)
        quietly(self._remove_pipe)
        if self._listener is None or self._listener.stop():
            self._close_pipes()

    def forget(self) -> None:
        """
        Put back what a forked child has inherited, and leave the rest to its
        parent.
        """
        self._unhook()
        self._release_signals(in_child=True)
        if self._listener is not None:
            self._listener.close()
        self._close_pipes()

    def _offer_stacks(self) -> None:
        offer_stacks()
        self._has_offer = True

    def _withdraw_stacks(self) -> None:
        if self._has_offer:
            self._has_offer = False
            withdraw_stacks()

    def _open_pipe(self) -> None:
        rank = self._recording.identity.rank
        prefix = self._recording.settings.request_prefix
        pipe = Path(f"{prefix}{'unknown' if rank is None else rank}.pipe")
        self._pipe_fd = open_request_pipe(pipe)
        self._pipe = pipe

    def _remove_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.unlink(missing_ok=True)

    def _close_pipes(self) -> None:
        if self._pipe_fd is not None:
            os.close(self._pipe_fd)
            self._pipe_fd = None
        while self._caught:
            crash_signals.close(self._caught.pop())

    def _catch_signals(self) -> None:
        for catch in (
            crash_signals.catch_sigterm,
            crash_signals.catch_sigabrt,
        ):
            caught = catch()
            if caught is not None:
                self._caught.append(caught)

    def _release_signals(self, *, in_child: bool) -> None:
        release = functools.partial(crash_signals.release, in_child=in_child)
        for caught in self._caught:
            quietly(functools.partial(release, caught))

    def _listen(self) -> None:
        actions: dict[int, Callable[[], object]] = {
            caught.reader: functools.partial(self._on_signal, caught)
            for caught in self._caught
        }
        if self._pipe_fd is not None:
            on_request = functools.partial(self._on_request, self._pipe_fd)
            actions[self._pipe_fd] = on_request
        listener = Listener(actions, self._limit_aborts)
        try:
            listener.start()
        except RuntimeError:  # no more threads can be had
            listener.close()
            raise
        self._listener = listener

    def _limit_aborts(self) -> None:
        for caught in self._caught:
            try:
                crash_signals.limit_abort(caught)
            except OSError:  # a signal without a limit is worse than none
                crash_signals.release(caught)
                raise

    def _on_request(self, fd: int) -> None:
        drain(fd)
        leave_words(self._recording, "request")

    def _on_signal(self, caught: CaughtSignal) -> None:
        words = crash_signals.read_words(caught)
        if not words:
            return

        leave_words(self._recording, caught.number.name, traceback=words)
        if caught.is_final:
            quietly(self._remove_pipe)
            if caught.number.name == "SIGABRT":  # as faulthandler would
                os.write(_STDERR, words)
            crash_signals.die_of(caught)

    def _on_end(self) -> None:
        note_end(self._recording)
        self.stop()

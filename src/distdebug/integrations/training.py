"""
The recorder and the watch of one rank, for the hooks of training frameworks.
"""

from __future__ import annotations

import logging
import os
import sys

from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import DistdebugError
from ..flight_recorder import current_recording, enable_flight_recorder
from ..watching import Watch, count_step, watch


_logger = logging.getLogger("distdebug")


class TrainingWatch:
    """
    The recorder and the watch of one rank, as hooks of a framework use them.

    Make it before the process group, and start it once the run has a folder.

    Args:
        output_dir: The folder for snapshots of hangs; by default ``hangs`` in
            the folder of the run.

        dump_dir: Where ranks write their Flight Recorder dumps; see
            :func:`~distdebug.enable_flight_recorder`.

        options: Further arguments of :func:`~distdebug.watch`.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        dump_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self._output_dir = output_dir
        self._options = options
        self._watch: Watch | None = None
        self._hook: Any = None
        self._next_hook: Any = None
        self._phases: dict[str, ExitStack] = {}
        self.enable(dump_dir)

    @staticmethod
    def enable(dump_dir: str | os.PathLike[str] | None = None) -> None:
        """
        Enable the Flight Recorder, unless this process has done so.

        A job whose group exists already goes on without it, with a warning.
        """
        if current_recording() is not None:
            return
        try:
            enable_flight_recorder(dump_dir=dump_dir)
        except (DistdebugError, OSError) as error:
            _logger.warning(
                "this rank is watched, but its calls are not recorded: %s",
                error,
            )

    def start(self, run_dir: str | os.PathLike[str] | None) -> None:
        """
        Start to watch this rank; later calls do nothing.

        Args:
            run_dir: The folder of the run, the same on all ranks.
        """
        if self._watch is None:
            default = Path(run_dir or ".") / "hangs"
            self._watch = watch(
                output_dir=self._output_dir or default, **self._options
            )
            self._next_hook, self._hook = sys.excepthook, self._explain_last
            sys.excepthook = self._hook

    #: Count a finished step; the function itself, as it is called so often.
    step = staticmethod(count_step)

    def begin(self, phase: str) -> None:
        """
        Begin a phase without steps, such as ``"evaluation"``.
        """
        if self._watch is not None and phase not in self._phases:
            self._phases[phase] = ExitStack()
            self._phases[phase].enter_context(self._watch.phase())

    def end(self, phase: str) -> None:
        """
        End a phase; without effect if it has not begun.
        """
        if phase in self._phases:
            self._phases.pop(phase).close()

    def explain(self, error: BaseException) -> None:
        """
        Add the verdicts on hangs of the job to an exception, as notes.
        """
        known = getattr(error, "__notes__", ())
        for message in self._watch.messages() if self._watch else ():
            note = f"distdebug: {message}"
            if note not in known:
                error.add_note(note)

    def _explain_last(self, *raised: Any) -> None:
        """
        Explain an exception that ends the program: a hook of Python, as most
        frameworks have none for it.
        """
        _, error, _ = raised
        with suppress(Exception):
            self.explain(error)
        self._next_hook(*raised)

    def close(self) -> None:
        """
        End the watch.
        """
        if sys.excepthook is self._hook:  # one that was set later stays
            sys.excepthook = self._next_hook
        if self._watch is not None:
            self._watch.close()


class WatchingCallback:
    """
    What the callbacks of frameworks have in common.

    Args:
        output_dir: The folder for snapshots; by default ``hangs`` in the folder
            of the run.

        options: Further arguments of :class:`TrainingWatch`.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self._make_again = partial(type(self), output_dir, **options)
        self._training = TrainingWatch(output_dir, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        # Ranks that are spawned make a watch of their own.
        return self._make_again, ()

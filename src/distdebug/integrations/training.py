"""
Record and watch a training loop, whatever runs it.
"""

from __future__ import annotations

import logging
import os
import sys

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
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

    def _explain_last(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """
        Explain an exception that ends the program: a hook of Python, as most
        frameworks have none for it.
        """
        with suppress(Exception):
            self.explain(error)
        self._next_hook(kind, error, trace)

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


@contextmanager
def watched(
    output_dir: str | os.PathLike[str] = "hangs",
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Iterator[TrainingWatch]:
    """
    Record and watch a block of code; each step of an optimizer is progress.

    It fits any loop: plain ones, torchtitan, DeepSpeed.  What an exception says
    that leaves the block has the diagnosis of the hang before, if there was
    one.

    Example::

        with distdebug.integrations.watched("hangs"):
            main()  # makes the process group, and trains

    Args:
        output_dir: The folder for snapshots of hangs, shared by all ranks.

        dump_dir: Where ranks write their Flight Recorder dumps; see
            :func:`~distdebug.enable_flight_recorder`.

        options: Further arguments of :func:`~distdebug.watch`.

    Yields:
        The watch; ``begin("evaluation")`` and ``end("evaluation")`` allow a long
        phase without steps.
    """
    training = TrainingWatch(output_dir, dump_dir=dump_dir, **options)
    with counting_steps(training):
        training.start(None)
        try:
            yield training
        except BaseException as error:
            training.explain(error)
            raise
        finally:
            training.close()


@contextmanager
def counting_steps(training: TrainingWatch) -> Iterator[None]:
    """
    Count the steps of all optimizers of this process as steps of *training*.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(lambda *_: training.step())
    try:
        yield
    finally:
        handle.remove()

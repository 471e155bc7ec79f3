"""
What does a rank leave behind when it dies?

NCCL's watchdog dumps when a call times out.  The other backends have none,
and no backend dumps when a rank dies of something else: an exception, a
signal, or the end of the program in the middle of a call.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import atexit
import sys

from collections.abc import Callable
from types import TracebackType

from ..._files import is_there, write_whole
from ..._text import clean
from ...errors import NotRecordingError
from ..dump import write_dump, write_words
from ..sidecar import write_sidecar
from .complaints import quietly
from .current import TRACEBACK_SUFFIX, Recording, current_recording
from .describe import describe_process, traceback_frames
from .trace import is_in_flight


__all__ = ["hook_ends", "leave_words", "note_end", "note_start"]

# The stacks of all calls are worth waiting for, but not long: whoever ends a
# process may lose patience.
_STACKS_S = 4.0


def leave_words(
    recording: Recording,
    reason: str,
    *,
    error: str = "",
    trace: TracebackType | None = None,
    traceback: bytes = b"",
) -> None:
    """
    Write a dump, or at least a side-car.  Never raises.

    Args:
        recording: The recording of this process.

        reason: Why; see :class:`~distdebug.flight_recorder.sidecar.Sidecar`.

        error: The exception that ends the process, in one line.

        trace: Where that exception was raised.

        traceback: What *faulthandler* said.
    """
    recording.error = error or recording.error
    if trace is not None:
        recording.died_at = traceback_frames(trace)

    def write() -> None:
        try:
            file = write_dump(recording, reason, stacks_timeout_s=_STACKS_S)
        except NotRecordingError:
            file = recording.next_path()
            write_words(recording, reason, file)
            recording.keep(file)
        if traceback:
            text = file.with_name(file.name + TRACEBACK_SUFFIX)
            write_whole(text, traceback)

    quietly(write)


def note_start(recording: Recording) -> None:
    """
    Write the first side-car: this rank exists, and here.  Never raises.
    """
    quietly(lambda: _note(recording, "start"))


def note_end(recording: Recording) -> None:
    """
    Write what is to be said when the program is over.  Never raises.

    That is a dump if a call was in flight, unless an exception has caused one
    already, and the last side-car.
    """
    exc = _pending_exception()
    if exc is not None:
        leave_words(
            recording,
            "exit-after-error",
            error=_in_one_line(exc),
            trace=exc.__traceback__,
        )
    elif is_in_flight() and not recording.error:
        leave_words(recording, "exit-after-error")
    quietly(lambda: _note(recording, "exit"))


def _note(recording: Recording, reason: str) -> None:
    file = recording.torch_path()
    dump = file.name if is_there(file) else ""
    sidecar = describe_process(
        recording,
        reason,
        dump=dump,
        # The last side-car counts, so it has to tell where the rank died.
        stacks=bool(recording.died_at),
    )
    if sidecar is not None:
        write_sidecar(sidecar, file)


def _pending_exception() -> BaseException | None:
    """
    The exception that ends a child of :mod:`multiprocessing`.

    There no hook is called, but the child ends while it handles the exception.
    """
    exc = sys.exception()
    while isinstance(exc, SystemExit):
        if exc.code in {None, 0}:
            return None
        exc = exc.__context__ or Exception(f"exit status {exc.code}")
    return exc


def _in_one_line(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 it is somebody else's exception
        text = ""
    return clean(f"{type(exc).__name__}: {text}", limit=1000)


def hook_ends(on_end: Callable[[], None]) -> Callable[[], None]:
    """
    Be told when the program ends, and dump if it does so by an exception.

    Hooks that were there before are called as ever.

    Args:
        on_end: Called at the end.

    Returns:
        What takes the hooks away again; a hook that came later stays.
    """
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException],
        exc: BaseException,
        trace: TracebackType | None,
    ) -> None:
        recording = current_recording()
        if recording is not None:
            leave_words(
                recording, "exception", error=_in_one_line(exc), trace=trace
            )
        previous(kind, exc, trace)

    sys.excepthook = excepthook
    atexit.register(on_end)
    finalizer = _before_child_ends(on_end)

    def remove() -> None:
        if sys.excepthook is excepthook:
            sys.excepthook = previous
        atexit.unregister(on_end)
        finalizer()

    return remove


def _before_child_ends(on_end: Callable[[], None]) -> Callable[[], None]:
    """
    Children of :mod:`multiprocessing` skip what :mod:`atexit` knows.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return lambda: None

    util = sys.modules["multiprocessing.util"]
    finalizer = util.Finalize(None, on_end, exitpriority=0)

    def cancel() -> None:
        finalizer.cancel()

    return cancel

"""
How is a dump of this process written, now?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from collections.abc import Callable
from pathlib import Path

from ..._io import replace_link, write_whole
from ...errors import RecorderError
from ..sidecar import write_sidecar
from .plan import RecorderSettings, make_folder, plan_flight_recorder
from .trace import (
    THREAD_PREFIX,
    Recording,
    begin_recording,
    current_recording,
    describe_process,
    read_trace,
)


def dump_flight_recorder(
    path: str | os.PathLike[str] | None = None,
    *,
    stacks: bool = True,
    only_active: bool = False,
    reason: str = "call",
    stacks_timeout_s: float = 30.0,
) -> Path:
    """
    What has this rank done so far?  Write it to a file.

    The dump is written without stacks first, which cannot hang, and replaced
    by one with stacks.  Training goes on.

    Args:
        path: The file; by default a new one in the folder that was given to
            :func:`enable_flight_recorder`.

        stacks: Whether to note the line of every call.

        only_active: Whether to leave out calls that are finished.

        reason: Noted in the side-car.

        stacks_timeout_s: How long to wait for the stacks, in seconds.  They
            still replace the dump when they come later.

    Returns:
        The file.

    Raises:
        NotRecordingError: This process has no recorder, or it is off.

        RecorderError: The file cannot be written.
    """
    recording = current_recording()
    if recording is None:
        recording = begin_recording(Recording(_default_settings()))
    if path is None:
        make_folder(recording.settings.dump_dir)
    try:
        return write_dump(
            recording,
            reason,
            path=None if path is None else Path(path),
            stacks=stacks,
            only_active=only_active,
            stacks_timeout_s=stacks_timeout_s,
        )
    except OSError as exc:
        msg = f"cannot write a dump: {exc}"
        raise RecorderError(msg, remedy="choose another path=") from exc


def write_dump(  # noqa: PLR0913 as its public face
    recording: Recording,
    reason: str,
    *,
    path: Path | None = None,
    stacks: bool = True,
    only_active: bool = False,
    stacks_timeout_s: float = 30.0,
) -> Path:
    """
    Write a dump and its side-car.

    Args:
        recording: The recording of this process.

        reason, path, stacks, only_active, stacks_timeout_s: As for
            :func:`dump_flight_recorder`.

    Returns:
        The dump.

    Raises:
        NotRecordingError: There is no recorder, or it is off.

        OSError: A file cannot be written.
    """
    data = read_trace(stacks=False, only_active=only_active)
    file = recording.next_path() if path is None else path
    write_whole(file, data)
    write_words(recording, reason, file, dump=file.name)

    def add_stacks() -> None:
        write_whole(file, read_trace(stacks=True, only_active=only_active))

    if stacks:
        _run_within(stacks_timeout_s, add_stacks)
    if path is None:
        recording.keep(file)
        with contextlib.suppress(OSError):  # a file system without links
            replace_link(recording.latest_path(), file.name)
    return file


def write_words(
    recording: Recording,
    reason: str,
    file: Path,
    *,
    dump: str = "",
) -> None:
    """
    Write the side-car of a dump, or of one that could not be.

    Args:
        recording: The recording of this process.

        reason: Why.

        file: The dump, whether or not there is one.

        dump: Its name, if there is one.

    Raises:
        OSError: The file cannot be written.
    """
    sidecar = describe_process(recording, reason, dump=dump)
    if sidecar is not None:
        write_sidecar(sidecar, file)


def _default_settings() -> RecorderSettings:
    version = getattr(sys.modules.get("torch"), "__version__", None)
    return plan_flight_recorder(os.environ, version)


def _run_within(seconds: float, job: Callable[[], None]) -> None:
    """
    Do a job that may hang; after *seconds* it goes on by itself.

    Its errors are dropped: what it would improve is there already.
    """

    def run() -> None:
        with contextlib.suppress(Exception):
            job()

    thread = threading.Thread(
        target=run, name=f"{THREAD_PREFIX} stacks", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # the interpreter shuts down
        run()
    else:
        thread.join(seconds)

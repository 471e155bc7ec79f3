"""
How is recording switched on, whatever the torch and the launcher?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ..errors import RecorderError, TooLateError
from .recording.dump import Recording, begin_recording, end_recording
from .recording.extras import Extras
from .recording.plan import (
    Options,
    RecorderSettings,
    make_folder,
    make_plan,
    new_token,
    unguessable_root,
)


_logger = logging.getLogger("distdebug")


class _Enabled(NamedTuple):
    options: tuple[Options, bool]
    settings: RecorderSettings
    before: Mapping[str, str | None]
    extras: Extras | None


# At most one; forked children throw away their parent's.
_enabled: list[_Enabled] = []


def enable_flight_recorder(  # noqa: PLR0913 each has its use
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    buffer_size: int = 2000,
    dump_on_timeout: bool = True,
    cpp_stacks: bool = False,
    timing: bool = False,
    fast_symbolize: bool = True,
    pipe: bool = True,
    extras: bool = True,
    override: bool = False,
    keep: Collection[str] = (),
) -> RecorderSettings:
    """
    Have this rank record its collective calls, and dump them when it hangs.

    To be called before ``init_process_group``; calling it again with the same
    arguments does nothing.  What the user has set stays as it is, except that
    ``TORCH_NCCL_ASYNC_ERROR_HANDLING=1`` becomes 3 under torchrun, which sets
    it where nobody did, and which loses dumps.

    With *extras*, one sleeping thread dumps when :func:`request_dumps` asks,
    when the program ends by an exception or in the middle of a call, and on
    SIGTERM and SIGABRT; the process still ends as it would have.  A side-car
    beside each dump tells what torch does not: rank, host, groups, stacks.
    A real-time signal that has no other use lets ``python -m distdebug
    stacks`` ask each thread where it is, without the right to trace it, and
    also while native code holds the interpreter lock.

    Args:
        dump_dir: Folder of the dumps, shared by all ranks of a node or of the
            job.  By default ``DISTDEBUG_DUMP_DIR``, else where the user lets
            torch dump, else a folder per job in the temporary folder.  If it
            cannot be used, the log says so, and the rank has one of its own
            in the temporary folder.

        buffer_size: How many calls to remember.

        dump_on_timeout: Whether NCCL dumps when a call times out.

        cpp_stacks: Whether to note C++ stacks, at about 1 us a call on
            Gloo; on NCCL it was not measured.

        timing: Whether NCCL notes when a call started.

        fast_symbolize: Whether C++ stacks are named quickly.

        pipe: Whether torch makes a pipe of its own for requests.

        extras: Whether to do more than to set variables.

        override: Whether to change also what the user has set.

        keep: Names of variables that must stay as they are.

    Returns:
        What was set, what was kept, and why.

    Raises:
        TooLateError: There is a process group already.

        ValueError: An argument makes no sense.
    """
    options = Options(
        dump_dir=None if dump_dir is None else os.fspath(dump_dir),
        buffer_size=buffer_size,
        dump_on_timeout=dump_on_timeout,
        cpp_stacks=cpp_stacks,
        timing=timing,
        fast_symbolize=fast_symbolize,
        pipe=pipe,
        override=override,
        keep=frozenset(keep),
    )
    if _enabled and _enabled[0].options == (options, extras):
        return _enabled[0].settings

    _refuse_if_too_late()
    version = getattr(sys.modules.get("torch"), "__version__", None)
    environ = _undo(_enabled[0]) if _enabled else os.environ
    settings = _plan_with_folder(environ, version, options)
    disable_flight_recorder()
    _start(settings, (options, extras))
    return settings


def disable_flight_recorder() -> None:
    """
    Put back whatever :func:`enable_flight_recorder` has changed.

    Dumps stay.  A recorder that torch has already made goes on.
    """
    if not _enabled:
        return

    enabled = _enabled.pop()
    if enabled.extras is not None:
        enabled.extras.stop()
    end_recording()
    environ = _undo(enabled)
    for name in enabled.before:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            os.environ.pop(name, None)


def _plan_with_folder(
    environ: Mapping[str, str], version: str | None, options: Options
) -> RecorderSettings:
    """
    The plan, and the folder that it needs.

    No disk that is full or gone ends a job at its start, and nobody who came
    first in a temporary folder: then dumps go where nobody can be before us.
    """
    token = new_token()
    settings = make_plan(environ, version, options, token)
    try:
        make_folder(settings.dump_dir)
    except RecorderError as error:
        own = str(unguessable_root())
        options = options._replace(dump_dir=own)
        settings = make_plan(environ, version, options, token)
        with contextlib.suppress(RecorderError):
            make_folder(settings.dump_dir)
        _logger.warning(
            "%s; this rank dumps to %s: %s", error, own, error.remedy
        )
    return settings


def _refuse_if_too_late() -> None:
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        is_late = bool(c10d._world.pg_map)  # noqa: SLF001
    except AttributeError:
        return

    if is_late:
        msg = (
            "there is a process group already, and torch has made up its mind"
        )
        raise TooLateError(
            msg,
            remedy="call enable_flight_recorder() at the top of the script",
        )


def _start(settings: RecorderSettings, options: tuple[Options, bool]) -> None:
    before = {}
    for s in settings.variables:
        if s.action in {"set", "unset"}:
            before[s.name] = os.environ.get(s.name)
            if s.value is None:
                os.environ.pop(s.name, None)
            else:
                os.environ[s.name] = s.value

    for warning in settings.warnings:
        _logger.warning("%s", warning)

    recording = begin_recording(Recording(settings))
    extras = Extras(recording) if options[1] else None
    _enabled.append(_Enabled(options, settings, before, extras))
    if extras is not None:
        _forget_in_children()
        extras.start()


def _undo(enabled: _Enabled) -> dict[str, str]:
    """
    The environment without our changes; later changes of the user stay.
    """
    environ = dict(os.environ)
    ours = {s.name: s.value for s in enabled.settings.variables}
    for name, value in enabled.before.items():
        if environ.get(name) == ours[name]:
            environ.pop(name, None)
            if value is not None:
                environ[name] = value
    return environ


@functools.cache
def _forget_in_children() -> None:
    """
    Have forked children know nothing of the recording; once is enough.
    """
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    end_recording()
    while _enabled:
        extras = _enabled.pop().extras
        if extras is not None:
            extras.forget()

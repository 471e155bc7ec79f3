"""
Enable and disable the Flight Recorder, for any torch and launcher.

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
from .recording.job_hooks import Extras
from .recording.plan import (
    Options,
    RecorderSettings,
    make_folder,
    new_token,
    plan_flight_recorder,
    random_root,
)


_logger = logging.getLogger("distdebug")


class _Enabled(NamedTuple):
    options: tuple[Options, bool]
    settings: RecorderSettings
    previous: Mapping[str, str | None]
    extras: Extras | None


# At most one; forked children drop that of their parent.
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
    Record the collective calls of this rank, and dump them when it hangs.

    Call it before ``init_process_group``; a second call with the same
    arguments does nothing.  Variables that the user has set stay as they are,
    except ``TORCH_NCCL_ASYNC_ERROR_HANDLING=1``, which becomes 3 under
    torchrun: torchrun sets it by default, and it loses dumps.

    With *extras*, one sleeping thread dumps when :func:`request_dumps` asks,
    when the program ends by an exception or in the middle of a call, and on
    SIGTERM and SIGABRT; the process still ends as usual.  A sidecar beside
    each dump adds what torch does not write: rank, host, groups, stacks.
    An otherwise unused real-time signal lets ``python -m distdebug stacks``
    read the stack of each thread without the right to trace the process, and
    also while native code holds the interpreter lock.

    Args:
        dump_dir: Folder of the dumps, shared by all ranks of a node or of the
            job.  By default ``DISTDEBUG_DUMP_DIR``, else the folder that the
            user has set for torch's dumps, else a folder per job in the
            temporary folder.  If it cannot be used, a warning is logged, and
            the rank gets a folder of its own in the temporary folder.

        buffer_size: How many calls to keep.

        dump_on_timeout: Whether NCCL dumps when a call times out.

        cpp_stacks: Whether to record C++ stacks, at about 1 us a call on
            Gloo; on NCCL it was not measured.

        timing: Whether NCCL records when a call started.

        fast_symbolize: Whether to use torch's fast symbolizer for C++ stacks.

        pipe: Whether torch makes its own pipe for requests.

        extras: Whether to do more than set variables.

        override: Whether to change also variables that the user has set.

        keep: Names of variables that must stay as they are.

    Returns:
        Every variable, its action, and the reason.

    Raises:
        TooLateError: A process group already exists.

        ValueError: An argument is invalid.
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

    _check_no_process_group()
    version = getattr(sys.modules.get("torch"), "__version__", None)
    environ = _original_environ(_enabled[0]) if _enabled else os.environ
    settings = _plan_with_folder(environ, version, options)
    disable_flight_recorder()
    _start_recording(settings, (options, extras))
    return settings


def disable_flight_recorder() -> None:
    """
    Restore everything that :func:`enable_flight_recorder` has changed.

    Dumps stay.  A recorder that torch has already made keeps recording.
    """
    if not _enabled:
        return

    enabled = _enabled.pop()
    if enabled.extras is not None:
        enabled.extras.stop()
    end_recording()
    environ = _original_environ(enabled)
    for name in enabled.previous:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            os.environ.pop(name, None)


def _plan_with_folder(
    environ: Mapping[str, str], version: str | None, options: Options
) -> RecorderSettings:
    """
    Plan the settings, and make the folder that they need.

    A full or missing disk must not end a job at its start, nor a folder that
    another user made first: then dumps go to a folder with a random name.
    """
    plan = functools.partial(
        plan_flight_recorder, environ, version, token=new_token()
    )
    settings = plan(**options._asdict())
    try:
        make_folder(settings.dump_dir)
    except RecorderError as error:
        fallback = str(random_root())
        settings = plan(**{**options._asdict(), "dump_dir": fallback})
        with contextlib.suppress(RecorderError):
            make_folder(settings.dump_dir)
        _logger.warning(
            "%s; this rank dumps to %s: %s", error, fallback, error.remedy
        )
    return settings


def _check_no_process_group() -> None:
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


def _start_recording(
    settings: RecorderSettings, options: tuple[Options, bool]
) -> None:
    previous = {}
    for s in settings.variables:
        if s.action in {"set", "unset"}:
            previous[s.name] = os.environ.get(s.name)
            if s.value is None:
                os.environ.pop(s.name, None)
            else:
                os.environ[s.name] = s.value

    for warning in settings.warnings:
        _logger.warning("%s", warning)

    recording = begin_recording(Recording(settings))
    extras = Extras(recording) if options[1] else None
    _enabled.append(_Enabled(options, settings, previous, extras))
    if extras is not None:
        _hook_fork()
        extras.start()


def _original_environ(enabled: _Enabled) -> dict[str, str]:
    """
    Return the environment without our changes; later changes of the user stay.
    """
    environ = dict(os.environ)
    ours = {s.name: s.value for s in enabled.settings.variables}
    for name, value in enabled.previous.items():
        if environ.get(name) == ours[name]:
            environ.pop(name, None)
            if value is not None:
                environ[name] = value
    return environ


@functools.cache
def _hook_fork() -> None:
    """
    Have forked children drop the recording of their parent.
    """
    os.register_at_fork(after_in_child=_reset_in_child)


def _reset_in_child() -> None:
    end_recording()
    while _enabled:
        extras = _enabled.pop().extras
        if extras is not None:
            extras.reset_in_child()

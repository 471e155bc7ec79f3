"""
Write a Flight Recorder dump and a sidecar of this process.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, TypeVar

from ..._in_job import OwnThread, Stack, stacks_of_threads
from ..._io import is_there, replace_link, write_whole
from ...errors import NotRecordingError, RecorderError
from ...identity import Identity, current_identity
from ..sidecar import (
    SIDECAR_SUFFIX,
    Sidecar,
    SidecarFrame,
    SidecarGroup,
    write_sidecar,
)
from .plan import (
    VARIABLES,
    RecorderSettings,
    lookup,
    make_folder,
    parse_version,
    plan_flight_recorder,
)


class _HiddenInductor(ModuleType):
    """
    Hide ``torch._inductor`` from the thread that dumps; import it for others.
    """

    def __init__(self) -> None:
        super().__init__("torch._inductor")
        self._dumper = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self._dumper:
            raise AttributeError(name)

        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def without_inductor(torch: ModuleType) -> Iterator[None]:
    """
    Keep torch from importing its compiler within this block and thread.

    Other threads that need the compiler still get it.  A compiler that is
    loaded already stays.

    Args:
        torch: The loaded torch.
    """
    hidden = _HiddenInductor()
    vars(torch).setdefault("_inductor", hidden)
    try:
        yield
    finally:
        # Otherwise the compiler was loaded before, or by another thread.
        if vars(torch).get("_inductor") is hidden:
            vars(torch).pop("_inductor", None)


Progress = tuple[tuple[str, object, object, object], ...]

_BUFFER_SIZE = next(v for v in VARIABLES if v.key == "buffer_size")

# First torch that records by default.
_ON_BY_DEFAULT = (2, 11)

_POLL_S = 0.01

# Arguments of torch's functions: no calls, and not only active ones.
_STATUS_ONLY = (False, False)
_BEGUN, _STARTED, _DONE = (
    f"last_{step}_collective" for step in ("enqueued", "started", "completed")
)

_REMEDY = "call enable_flight_recorder() before init_process_group()"


def read_trace(*, stacks: bool, only_active: bool = False) -> bytes:
    """
    Return a dump of the recorder that has calls: NCCL's, or the generic one.

    Args:
        stacks: Whether to include the Python stack of every call.  That needs
            the interpreter; without stacks, it is quick and safe.

        only_active: Whether to leave out completed calls.

    Returns:
        A dump, as torch writes it to files.

    Raises:
        NotRecordingError: There is no recorder, or it is off.
    """
    torch = sys.modules.get("torch")
    names = ("_dump_nccl_trace", "_dump_fr_trace")
    found = [getattr(_c10d(), name, None) for name in names]
    functions = [function for function in found if function is not None]
    if torch is None or not functions:
        msg = "this process has no Flight Recorder"
        raise NotRecordingError(
            msg,
            remedy="load a torch that has one: 2.5 or later for NCCL, "
            "2.8 or later for the other backends",
        )

    with without_inductor(torch):
        for dump in functions:
            data: bytes = dump(*(True, stacks, only_active))
            if b"record_id" in data:
                return data

    if _is_recorder_off():
        msg = "the Flight Recorder of this process is off"
        raise NotRecordingError(msg, remedy=_REMEDY)
    return data


def has_call_in_flight(grace_s: float = 0.5) -> bool:
    """
    Return whether a collective call of this process is unfinished.

    Args:
        grace_s: How long a call must stay unfinished, in seconds: torch
            notices the end of a call some time after it.

    Returns:
        Whether some process group has begun a call that is not completed;
        ``False`` if torch does not report it.
    """
    deadline = time.monotonic() + grace_s
    while _has_unfinished_call():
        if time.monotonic() >= deadline:
            return True
        time.sleep(_POLL_S)
    return False


def read_progress() -> Progress | None:
    """
    Return the progress of this process in its collective calls.

    It takes some microseconds, and neither reads calls nor waits for any.

    Returns:
        For each process group its name, and the sequence numbers of the last
        call that was enqueued, started, and completed; ``None`` if nothing was
        recorded.
    """
    found = tuple(
        (name, group.get(_BEGUN), group.get(_STARTED), group.get(_DONE))
        for status in _read_statuses()
        for name, group in status.items()
    )
    return found or None


def _has_unfinished_call() -> bool:
    for status in _read_statuses():
        with suppress(KeyError, TypeError, ValueError):
            if any(int(g[_BEGUN]) > int(g[_DONE]) for g in status.values()):
                return True
    return False


def _read_statuses() -> Iterator[dict[str, Any]]:
    c10d = _c10d()
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        try:
            status = json.loads(getattr(c10d, name)(*_STATUS_ONLY))
            yield {k: dict(v) for k, v in status["pg_status"].items()}
        except Exception:  # noqa: BLE001, S112 another torch, or none
            continue


def _c10d() -> Any:
    try:
        return sys.modules["torch"]._C._distributed_c10d  # noqa: SLF001 no public API
    except (AttributeError, KeyError):
        return None


def torch_version() -> str | None:
    """
    Return the version of torch; ``None`` if it is not loaded.
    """
    version: str | None = getattr(
        sys.modules.get("torch"), "__version__", None
    )
    return version


def _is_recorder_off() -> bool:
    found = lookup(_BUFFER_SIZE, os.environ)
    if found is not None:
        return not found[1].strip().lstrip("+0")

    version = parse_version(torch_version())
    return version is not None and version < _ON_BY_DEFAULT


TRACEBACK_SUFFIX = ".traceback.txt"

# A loop of requests must not fill the disk, and the first dumps are those
# that are closest to the cause.
_KEEP_FIRST = 2
_KEEP_LAST = 8


class Recording:
    """
    The recording of this process.

    Attributes:
        settings: The planned variables and paths.

        started: When it began, in seconds since the epoch.

        pid: The process it belongs to; a forked child has none.

        error: The exception that ended the process, in one line, or ``""``.

        error_stack: The stack of that exception, innermost line first.

        dumps: The dumps that are still on disk, oldest first.
    """

    def __init__(self, settings: RecorderSettings) -> None:
        self.settings = settings
        self.started = time.time()
        self.pid = os.getpid()
        self.error = ""
        self.error_stack: tuple[SidecarFrame, ...] = ()
        self.dumps: list[Path] = []
        self._numbers = itertools.count(1)
        self._identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        """
        Return rank and job, also after the process groups are destroyed.
        """
        identity = current_identity()
        if identity.rank is not None or self._identity is None:
            self._identity = identity
        return self._identity

    @property
    def rank_label(self) -> str:
        """
        Return the rank as in names of files; ``"unknown"`` if it is not known.
        """
        rank = self.identity.rank
        return "unknown" if rank is None else str(rank)

    def torch_path(self) -> Path:
        """
        Return the path of the dump that torch itself writes.
        """
        return Path(f"{self.settings.dump_prefix}{self.rank_label}")

    def next_path(self) -> Path:
        """
        Return an unused path for the next dump.
        """
        while True:
            number = next(self._numbers)
            name = f"{self.settings.token}-{number}_rank_{self.rank_label}"
            path = self.settings.dump_dir / name
            if not is_there(path):
                return path

    def latest_path(self) -> Path:
        """
        Return the path of the link to the latest dump.
        """
        return self.settings.dump_dir / f"latest_rank_{self.rank_label}"

    def add_dump(self, path: Path) -> None:
        """
        Add a dump, and delete those between the first and the latest ones.
        """
        self.dumps.append(path)
        while len(self.dumps) > _KEEP_FIRST + _KEEP_LAST:
            old = self.dumps.pop(_KEEP_FIRST)
            for suffix in ("", SIDECAR_SUFFIX, TRACEBACK_SUFFIX):
                old.with_name(old.name + suffix).unlink(missing_ok=True)


_current: list[Recording] = []


def current_recording() -> Recording | None:
    """
    Return the recording of this process.

    Returns:
        The recording; ``None`` before :func:`begin_recording`, and in a child
        that was forked since.
    """
    if _current and _current[0].pid == os.getpid():
        return _current[0]
    return None


def begin_recording(recording: Recording) -> Recording:
    """
    Set the recording of this process, and return it.
    """
    _current[:] = [recording]
    return recording


def end_recording() -> None:
    """
    Remove the recording of this process.
    """
    _current.clear()


T = TypeVar("T")

# Name prefix of our threads, which are left out of sidecars.
THREAD_PREFIX = "distdebug"

# Our own frames are left out of stacks.
_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep

_MAX_THREADS = 100
_MAX_FRAMES = 100


def _or_default(read: Callable[[], T], default: T) -> T:
    try:
        return read()
    except Exception:  # noqa: BLE001 torch's internals may change any day
        return default


def _read_groups() -> tuple[SidecarGroup, ...]:
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    world = c10d._world  # noqa: SLF001 torch keeps memberships only there
    groups = []
    for pg in list(world.pg_map):
        members = world.pg_group_ranks[pg]
        backend = str(world.pg_map[pg][0])
        if backend == "undefined":
            backend = str(world.pg_backend_config.get(pg, ""))
        groups.append(
            SidecarGroup(
                name=str(world.pg_names[pg]),
                desc=str(getattr(pg, "group_desc", "")),
                ranks=tuple(sorted(members, key=members.__getitem__)),
                backend=_backend_name(backend),
            )
        )
    return tuple(groups)


def _backend_name(config: str) -> str:
    """
    Return ``"gloo"`` for ``"cpu:gloo,cuda:gloo"``: the backend of all devices.
    """
    names = {part.rpartition(":")[2] for part in config.split(",")}
    return names.pop() if len(names) == 1 else config


def _infer_mesh(
    groups: Collection[SidecarGroup],
) -> tuple[tuple[str, int], ...]:
    """
    Infer the dimensions of the device mesh from the names of its groups.

    A rank is in one group per dimension, and the further apart the members of
    a group are, the further out its dimension is.
    """
    found: dict[str, tuple[int, int]] = {}
    for group in groups:
        name = group.desc.removeprefix("mesh_")
        if name == group.desc or len(group.ranks) == 0:
            continue
        stride = group.ranks[1] - group.ranks[0] if group.ranks[1:] else 0
        found.setdefault(name, (stride, len(group.ranks)))
    outermost_first = sorted(found.items(), key=lambda x: -x[1][0])
    return tuple((name, size) for name, (_, size) in outermost_first)


def traceback_frames(
    trace: TracebackType | None,
) -> tuple[SidecarFrame, ...]:
    """
    Return the frames of a traceback, innermost line first.
    """
    lines = list(traceback.walk_tb(trace))[-_MAX_FRAMES:]
    return tuple(
        _sidecar_frame(frame, line) for frame, line in reversed(lines)
    )


def _sidecar_frame(frame: FrameType, line: int | None) -> SidecarFrame:
    code = frame.f_code
    # Where code has no line numbers, some versions of Python say -1.
    return SidecarFrame(code.co_name, code.co_filename, max(line or 0, 0))


def _read_threads(
    error_stack: tuple[SidecarFrame, ...],
) -> tuple[tuple[str, tuple[SidecarFrame, ...]], ...]:
    main = threading.main_thread().ident
    names = {t.ident: t.name for t in threading.enumerate()}
    names[main] = "MainThread"
    threads: dict[str, tuple[SidecarFrame, ...]] = {}
    stacks = stacks_of_threads()
    for ident in sorted(stacks, key=lambda i: i != main)[:_MAX_THREADS]:
        name = names.get(ident, f"thread {ident}")
        if name.startswith(THREAD_PREFIX):
            continue
        if name in threads:
            name = f"{name} ({ident})"
        # After an exception, the main thread is already in our hook.
        is_dead = ident == main and error_stack
        threads[name] = error_stack if is_dead else _frames_of(stacks[ident])
    return tuple(threads.items())


def _frames_of(stack: Stack) -> tuple[SidecarFrame, ...]:
    frames = itertools.dropwhile(
        lambda place: place[0].f_code.co_filename.startswith(_OWN_FOLDER),
        stack,
    )
    return tuple(
        _sidecar_frame(*place)
        for place in itertools.islice(frames, _MAX_FRAMES)
    )


_logger = logging.getLogger("distdebug")
_logged: set[str] = set()

# At most this many messages are logged: each may differ from the last.
_MAX_LOGGED = 20


def log_exceptions(action: Callable[[], object]) -> None:
    """
    Call *action*; log an exception once as a warning, and continue.
    """
    try:
        action()
    except Exception as exc:  # noqa: BLE001 the job comes first
        message = f"{type(exc).__name__}: {exc}"
        if message not in _logged and len(_logged) < _MAX_LOGGED:
            _logged.add(message)
            _logger.warning("recording goes on without: %s", message)


def dump_flight_recorder(
    path: str | os.PathLike[str] | None = None,
    *,
    stacks: bool = True,
    only_active: bool = False,
    reason: str = "call",
    stacks_timeout_s: float = 30.0,
) -> Path:
    """
    Write a Flight Recorder dump of this rank to a file.

    The dump is first written without stacks, which cannot hang, and then
    replaced by one with stacks.  Training continues.

    Args:
        path: The file; by default a new one in the folder that was given to
            :func:`enable_flight_recorder`.

        stacks: Whether to include the Python stack of every call.

        only_active: Whether to leave out completed calls.

        reason: Written to the sidecar.

        stacks_timeout_s: How long to wait for the stacks, in seconds.  They
            replace the dump even if they come later.

    Returns:
        The file.

    Raises:
        NotRecordingError: This process has no recorder, or it is off.

        RecorderError: The file cannot be written.
    """
    recording = current_recording()
    if recording is None:
        settings = plan_flight_recorder(os.environ, torch_version())
        recording = begin_recording(Recording(settings))
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


def write_dump(  # noqa: PLR0913 as dump_flight_recorder
    recording: Recording,
    reason: str,
    *,
    path: Path | None = None,
    stacks: bool = True,
    only_active: bool = False,
    stacks_timeout_s: float = 30.0,
) -> Path:
    """
    Write a dump and its sidecar.

    Args:
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
    write_process_sidecar(recording, reason, file, dump=file.name)

    def add_stacks() -> None:
        write_whole(file, read_trace(stacks=True, only_active=only_active))

    if stacks:
        _run_with_timeout(stacks_timeout_s, add_stacks)
    if path is None:
        recording.add_dump(file)
        with contextlib.suppress(OSError):  # a file system without links
            replace_link(recording.latest_path(), file.name)
    return file


def write_process_sidecar(
    recording: Recording,
    reason: str,
    file: Path,
    *,
    dump: str = "",
    stacks: bool = True,
) -> None:
    """
    Write the sidecar of a dump, also if the dump itself is missing.

    Nothing is written as long as the rank is unknown.

    Args:
        reason: Why it is written.

        file: Path of the dump; the sidecar is written beside it.

        dump: File name of the dump, or ``""`` if there is none.

        stacks: Whether to include the stacks of all threads.

    Raises:
        OSError: The file cannot be written.
    """
    identity = recording.identity
    if identity.rank is None:
        return

    groups: tuple[SidecarGroup, ...] = _or_default(_read_groups, ())
    sidecar = Sidecar(
        path="",
        rank=identity.rank,
        world_size=max(identity.world_size or 0, identity.rank + 1),
        host=socket.gethostname(),
        pid=os.getpid(),
        started=recording.started,
        written=time.time(),
        reason=reason,
        error=recording.error,
        dump=dump,
        job=identity.job,
        torch=str(torch_version() or ""),
        groups=groups,
        mesh=_infer_mesh(groups),
        threads=(
            _or_default(lambda: _read_threads(recording.error_stack), ())
            if stacks
            else ()
        ),
    )
    write_sidecar(sidecar, file)


def _run_with_timeout(seconds: float, job: Callable[[], None]) -> None:
    """
    Run a job that may hang; after *seconds* it continues in the background.

    Its errors are dropped: the file it improves exists already.
    """

    def run() -> None:
        with contextlib.suppress(Exception):
            job()

    thread = OwnThread(run, f"{THREAD_PREFIX} stacks")
    try:
        thread.start()
    except RuntimeError:  # the interpreter shuts down
        run()
    else:
        thread.join(seconds)

"""
What has this process recorded and written so far?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time

from collections.abc import Iterator
from pathlib import Path

from ..._files import is_there
from ...identity import Identity, current_identity
from ..sidecar import SIDECAR_SUFFIX, SidecarFrame
from .settings import RecorderSettings


__all__ = [
    "TRACEBACK_SUFFIX",
    "Recording",
    "begin_recording",
    "current_recording",
    "end_recording",
]

TRACEBACK_SUFFIX = ".traceback.txt"

# A loop of requests must not fill the disk, and the first dumps are those
# that are closest to the cause.
_FIRST_KEPT = 2
_LAST_KEPT = 8


@dataclasses.dataclass
class Recording:
    """
    The recording of this process.

    Attributes:
        settings: How it was set up.

        started: When, in seconds since the epoch.

        pid: The process that it belongs to; a forked child has none.

        error: The exception that was seen, in one line, or ``""``.

        died_at: The stack of that exception, innermost line first.

        dumps: The dumps that are still on disk, oldest first.
    """

    settings: RecorderSettings
    started: float = dataclasses.field(default_factory=time.time)
    pid: int = dataclasses.field(default_factory=os.getpid)
    error: str = ""
    died_at: tuple[SidecarFrame, ...] = ()
    dumps: list[Path] = dataclasses.field(default_factory=list)
    _numbers: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.count(1)
    )
    _identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        """
        Who this process is, also after its process groups are gone.
        """
        identity = current_identity()
        if identity.rank is not None or self._identity is None:
            self._identity = identity
        return self._identity

    def torch_path(self) -> Path:
        """
        Where torch itself writes its dump.
        """
        rank = self.identity.rank
        who = "unknown" if rank is None else rank
        return Path(f"{self.settings.dump_prefix}{who}")

    def next_path(self) -> Path:
        """
        Where the next dump goes: a name that was never used before.
        """
        while True:
            number = next(self._numbers)
            name = f"{self.settings.token}-{number}_{self._who()}"
            path = self.settings.dump_dir / name
            if not is_there(path):
                return path

    def latest_path(self) -> Path:
        """
        The link to the latest dump.
        """
        return self.settings.dump_dir / f"latest_{self._who()}"

    def keep(self, path: Path) -> None:
        """
        Remember a dump, and delete those that are neither early nor late.
        """
        self.dumps.append(path)
        while len(self.dumps) > _FIRST_KEPT + _LAST_KEPT:
            old = self.dumps.pop(_FIRST_KEPT)
            for suffix in ("", SIDECAR_SUFFIX, TRACEBACK_SUFFIX):
                old.with_name(old.name + suffix).unlink(missing_ok=True)

    def _who(self) -> str:
        rank = self.identity.rank
        return "rank_unknown" if rank is None else f"rank_{rank}"


_current: list[Recording] = []


def current_recording() -> Recording | None:
    """
    What does this process record, if it was asked to?

    Returns:
        The recording; ``None`` before :func:`begin_recording`, and in a child
        that was forked since.
    """
    if _current and _current[0].pid == os.getpid():
        return _current[0]
    return None


def begin_recording(recording: Recording) -> Recording:
    """
    From now on this is what the process records.
    """
    _current[:] = [recording]
    return recording


def end_recording() -> None:
    """
    Forget the recording of this process.
    """
    _current.clear()

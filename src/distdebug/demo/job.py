"""
How is a real job run so that nothing of it is ever left behind?
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil

from ..errors import DistdebugError


__all__ = ["Outcome", "TrainingJob", "start_job", "watch_job"]

Outcome = Literal["stuck", "ended", "running"]

_POLL_S = 0.1
_MOST_LOG = 1 << 20
# Becomes the launcher, which the kernel asks to end when we are killed: it ends
# its ranks then.  1 is PR_SET_PDEATHSIG; elsewhere than on Linux there is none.
_BOUND = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
prctl and prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
_STEP = re.compile(rb"^step (\d{1,9})$", re.MULTILINE)


class TrainingJob:
    """
    A job that runs under torchrun.

    Args:
        torchrun: The launcher; its children are the ranks.

        log: What the job prints.
    """

    def __init__(self, torchrun: subprocess.Popen[bytes], log: Path) -> None:
        self.torchrun = torchrun
        self.log = log

    @property
    def has_ended(self) -> bool:
        """
        Whether the launcher is gone, and all ranks with it.
        """
        return self.torchrun.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """
        The ranks, and whatever they started.
        """
        if self.has_ended:
            return []  # its number may be that of another process

        try:
            launcher = psutil.Process(self.torchrun.pid)
            found: list[psutil.Process] = launcher.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

        return found

    def printed(self) -> bytes:
        """
        The end of what the job has printed.
        """
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_LOG))
            return file.read()

    def last_step(self) -> int:
        """
        The last step that it reported; 0 before the first.
        """
        steps = _STEP.findall(self.printed())
        return int(steps[-1]) if steps else 0

    def end(self, grace_s: float = 5.0) -> None:
        """
        End every process of the job.

        Asking politely would have each rank write one more dump, of a job
        that is being torn down; so would those that see another one die.  So
        all ranks are stopped, and then killed; the launcher sees it, cleans
        up, and is killed only if it does not.
        """
        known = self.processes()
        try:
            for process in known:
                _stop(process)
            for process in known:
                _kill(process)
            with suppress(subprocess.TimeoutExpired):
                self.torchrun.wait(grace_s)
        finally:
            # Also if somebody does not want to wait, and interrupts us.
            known += self.processes()
            self.torchrun.kill()
            self.torchrun.wait()
            for process in known:
                _kill(process)


# psutil compares the time of birth, so a number that was given to another
# process meanwhile does no harm.


def _stop(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.suspend()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


@contextmanager
def start_job(program: Path, dumps: Path, ranks: int) -> Iterator[TrainingJob]:
    """
    Run a program under torchrun, and end it in any case.

    Args:
        program: The script; its output goes beside it, to ``job.log``.

        dumps: Its only argument.

        ranks: How many processes.
    """
    log = program.with_name("job.log")
    command = [
        *(sys.executable, "-c", _BOUND, str(os.getpid())),
        *("-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks)),
        *("--log-dir", str(program.with_name("torchrun"))),
        *(str(program), str(dumps)),
    ]
    with log.open("wb") as output:
        torchrun = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=program.parent,
            env=_environment(),
            # Ctrl-C is for us; we end the job in order.
            start_new_session=True,
        )
    job = TrainingJob(torchrun, log)
    try:
        yield job
    finally:
        with _uninterrupted():
            job.end()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """
    Whoever presses Ctrl-C once more does not leave processes behind.
    """
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _environment() -> dict[str, str]:
    # The job has to find the package also where it is not installed.
    here = str(Path(__file__).parents[2])
    paths = filter(None, [os.environ.get("PYTHONPATH"), here])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        # Otherwise torchrun sets it, and complains that it did.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def watch_job(
    job: TrainingJob,
    *,
    tell: Callable[[str], object],
    quiet_s: float = 3.0,
    enough_s: float = 8.0,
    start_s: float = 120.0,
) -> Outcome:
    """
    Wait until it can be said how the job is.

    Args:
        job: The job.

        tell: Is called with one line when something has changed.

        quiet_s: A job that has made steps and makes none for so long is stuck.

        enough_s: A job that makes steps for so long is well.

        start_s: How long the first step may take.

    Returns:
        What the job does.

    Raises:
        DistdebugError: The first step took too long.
    """
    begin = now = time.monotonic()
    first, changed, step = 0.0, begin, 0
    while not job.has_ended:
        latest, now = job.last_step(), time.monotonic()
        if latest != step:
            first, changed, step = first or now, now, latest
            tell(f"step {step}")
        if step and now - changed >= quiet_s:
            return "stuck"
        if step and now - first >= enough_s:
            return "running"
        if not step and now - begin >= start_s:
            msg = f"the job made no step within {start_s:g} s"
            raise DistdebugError(msg, remedy=f"look at {job.log}")
        time.sleep(_POLL_S)

    return "ended"

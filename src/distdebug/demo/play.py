"""
Run the demo: start a job under torchrun, watch it, collect, diagnose.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import attrs
import psutil

from .._io import make_private_folder, open_private
from .._proc import uninterrupted
from ..capture import capture_node
from ..causes import Cause
from ..diagnosis import diagnose
from ..errors import DistdebugError, MissingDependencyError
from ..findings import Diagnosis
from ..flight_recorder import request_dumps


Outcome = Literal["stuck", "ended", "running"]

_POLL_S = 0.1
_MOST_LOG = 1 << 20
# Becomes the launcher, which the kernel asks to end when we are killed: it ends
# its ranks then.
_BOUND = """
import os, signal, sys
from distdebug.capture import end_with_parent
if end_with_parent(int(sys.argv[1]), signal.SIGTERM):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
_STEP = re.compile(rb"^step (\d{1,9})$", re.MULTILINE)


@attrs.frozen
class TrainingJob:
    """
    A job that runs under torchrun.

    Attributes:
        torchrun: The launcher; its children are the ranks.

        log: What the job prints.
    """

    torchrun: subprocess.Popen[bytes]
    log: Path

    @property
    def has_ended(self) -> bool:
        """
        Return whether the launcher and all ranks have ended.
        """
        return self.torchrun.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """
        Return the ranks and their children.
        """
        found: list[psutil.Process] = []
        # Once it has ended, its number may be that of another process.
        if not self.has_ended:
            with suppress(psutil.NoSuchProcess):
                launcher = psutil.Process(self.torchrun.pid)
                found = launcher.children(recursive=True)
        return found

    def printed(self) -> bytes:
        """
        Return the end of the output of the job.
        """
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_LOG))
            return file.read()

    def last_step(self) -> int:
        """
        Return the last step that the job reported; 0 before the first.
        """
        steps = _STEP.findall(self.printed())
        return int(steps[-1]) if steps else 0

    def end(self, grace_s: float = 5.0) -> None:
        """
        Kill every process of the job.

        On SIGTERM each rank would write one more dump, of a job that is being torn
        down, and so would ranks that see another one die.  So all ranks are stopped
        first and then killed; the launcher notices and cleans up, and is killed only
        if it does not.
        """
        known = self.processes()
        try:
            _signal_all(known, signal.SIGSTOP)
            _signal_all(known, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.torchrun.wait(grace_s)
        finally:
            # Holds also when Ctrl-C interrupts the wait.
            known += self.processes()
            self.torchrun.kill()
            self.torchrun.wait()
            _signal_all(known, signal.SIGKILL)


def _signal_all(processes: Iterable[psutil.Process], number: int) -> None:
    # psutil compares the time of birth, so a number that was given to another
    # process meanwhile does no harm.
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextmanager
def start_job(
    program: Path, arguments: Iterable[str], ranks: int
) -> Iterator[TrainingJob]:
    """
    Run a program under torchrun, and end it in any case.

    Args:
        program: The script; its output goes beside it, to ``job.log``.

        arguments: Its arguments.

        ranks: The number of processes.
    """
    log = program.with_name("job.log")
    command = [
        *(sys.executable, "-c", _BOUND, str(os.getpid())),
        *("-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks)),
        *("--log-dir", str(program.with_name("torchrun"))),
        *(str(program), *arguments),
    ]
    with open(log, "wb", opener=open_private) as output:
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
        with uninterrupted():
            job.end()


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
    Wait until the job is stuck, has ended, or has run long enough.

    Args:
        job: The job.

        tell: Called with one line when something has changed.

        quiet_s: A job that has made steps and makes none for so long is stuck.

        enough_s: A job that makes steps for so long is healthy.

        start_s: How long the first step may take.

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


# A replay that prints nothing for so long has made all calls that it can.
_REPLAY_QUIET_S, _REPLAY_START_S = 5.0, 120.0
_REPLAYED_RANK = re.compile(rb"^rank (\d+)\b", re.MULTILINE)


def run_replay(
    program: Path, ranks: int, *, tell: Callable[[str], object]
) -> Diagnosis:
    """
    Run a program that was written from dumps until it hangs, and diagnose it.

    Args:
        program: The program, of which a copy is run.

        ranks: The number of processes.

        tell: Called with one line about each step.

    Returns:
        The diagnosis, by its dumps and stacks.  The job has ended.

    Raises:
        MissingDependencyError: torch is not installed.

        DistdebugError: It did not begin.
    """
    _require_torch()
    with tempfile.TemporaryDirectory(prefix="distdebug-replay-") as folder:
        copy, dumps = Path(folder) / program.name, Path(folder) / "dumps"
        # Before its first statement, so that its lines keep their numbers.
        record = f"distdebug.enable_flight_recorder(dump_dir={str(dumps)!r})"
        text = program.read_text("utf-8")
        copy.write_text(f"import distdebug; {record}; {text}", "utf-8")
        tell(f"starting {ranks} processes of {program.name} with torchrun")
        with start_job(copy, (), ranks) as job:
            _wait_for_replay(job, ranks)
            if job.has_ended:
                tell("it has ended by itself")
                return diagnose(folder)
            tell("it makes no further call")
            _collect(job, dumps, Path(folder) / "stacks", tell)
            return diagnose(folder)


def _wait_for_replay(job: TrainingJob, ranks: int) -> None:
    begin = changed = time.monotonic()
    printed = b""
    while not job.has_ended:
        latest, now = job.printed(), time.monotonic()
        if latest != printed:
            printed, changed = latest, now
        has_begun = len({*_REPLAYED_RANK.findall(printed)}) >= ranks
        if has_begun and now - changed >= _REPLAY_QUIET_S:
            return
        if not has_begun and now - begin >= _REPLAY_START_S:
            msg = f"the program made no call within {_REPLAY_START_S:g} s"
            raise DistdebugError(msg, remedy="run it by torchrun yourself")
        time.sleep(_POLL_S)


def _require_torch() -> None:
    if find_spec("torch") is None:
        msg = "running a job needs torch, which is not installed"
        raise MissingDependencyError(
            msg, remedy="pip install torch (one for CPUs is enough)"
        )


@attrs.frozen
class Scenario:
    """
    A fault of the program, and what a diagnosis must name.

    Attributes:
        name: Its name, and that of the function of the program.

        planted: The fault, as one sentence.

        cause: The cause that the verdict must name.

        ranks: The ranks that it must name; -1 is the last one.

        detail: Why the rank did not arrive, if the verdict must say so.
    """

    name: str
    planted: str
    cause: Cause
    ranks: tuple[int, ...] = ()
    detail: Cause | None = None

    def is_found_by(self, diagnosis: Diagnosis, world_size: int) -> bool:
        """
        Return whether a diagnosis names what was planted.
        """
        verdict = diagnosis.verdict
        return (
            verdict.cause is self.cause
            and verdict.ranks
            == tuple(sorted(x % world_size for x in self.ranks))
            and self.detail in {None, verdict.detail_cause}
        )


_LAST = (-1,)
SCENARIOS = {
    name: Scenario(name, planted, *expected)
    for name, planted, *expected in (
        (
            "dataloader",
            "the data loader of the last rank never gets its fifth shard",
            *(Cause.RANK_NOT_ARRIVED, _LAST, Cause.DATALOADER_WAIT),
        ),
        (
            "cascade",
            "rank 1 waits for a lock; most others wait for ranks that wait",
            *(Cause.RANK_NOT_ARRIVED, (1,), Cause.LOCK_DEADLOCK),
        ),
        (
            "mismatch",
            "rank 2 reduces a tensor that is larger than the others'",
            *(Cause.SIZE_MISMATCH, (2,)),
        ),
        (
            "skip",
            "rank 2 leaves out one all_reduce",
            *(Cause.SKIPPED_COLLECTIVE, (2,)),
        ),
        (
            "extra",
            "rank 0 does one all_reduce that the others do not",
            *(Cause.EXTRA_COLLECTIVE, (0,)),
        ),
        (
            "order",
            "the last rank enters its two groups in another order",
            *(Cause.GROUP_ORDER_DEADLOCK, _LAST),
        ),
        (
            "crash",
            "rank 2 is killed and leaves no dump",
            *(Cause.RANK_CRASHED, (2,)),
        ),
        (
            "straggler",
            "rank 1 is slower than the others in every step",
            *(Cause.STRAGGLER, (1,)),
        ),
        ("healthy", "nothing is wrong", Cause.HEALTHY),
    )
}


_PROGRAM = Path(__file__).with_name("program") / "train.py"


@attrs.frozen(kw_only=True)
class Demo:
    """
    A planted fault, and the diagnosis.

    Attributes:
        scenario: The planted fault.

        folder: Where the program, its log, dumps, and stacks are.

        diagnosis: The diagnosis.

        is_found: Whether it names the planted fault.
    """

    scenario: Scenario
    folder: Path
    diagnosis: Diagnosis
    is_found: bool


def play_demo(
    scenario: Scenario,
    *,
    folder: Path | None = None,
    ranks: int = 4,
    tell: Callable[[str], object] = lambda _: None,
) -> Demo:
    """
    Start a job with a planted fault, watch it, and diagnose it.

    Args:
        scenario: The planted fault.

        folder: Where everything goes, empty or not there yet; by default a
            new temporary folder.  It is kept.

        ranks: The number of processes; even.

        tell: Called with one line about each step.

    Returns:
        The diagnosis.  The job has ended.

    Raises:
        MissingDependencyError: torch is not installed.

        DistdebugError: The folder is not empty, or the job did not start.
    """
    _require_torch()
    root = _make_folder(folder)
    program, dumps = root / _PROGRAM.name, root / "dumps"
    # Copied, because users want to read what runs, and because a line in
    # an installed package does not look like one of theirs.
    shutil.copyfile(_PROGRAM, program)
    name = f"{program.name} {scenario.name}"
    tell(f"starting {ranks} processes of {name} with torchrun")
    log, printed = root / "job.log", None
    with start_job(program, (str(dumps), scenario.name), ranks) as job:
        outcome = watch_job(job, tell=tell)
        if outcome == "ended":
            tell("the job has ended by itself")
        else:
            how = "is stuck" if outcome == "stuck" else "is running"
            tell(f"the job {how}: asking every rank for its dump")
            _collect(job, dumps, root / "stacks", tell)
            if log.exists():
                printed = log.stat().st_size

    # Lines that it printed when it was killed would mislead.
    if printed is not None:
        os.truncate(log, printed)
    # A pipe without a writer; ``grep -r`` would block on it.
    for path in filter(Path.is_fifo, root.rglob("*")):
        path.unlink()
    diagnosis = diagnose(root)
    return Demo(
        scenario=scenario,
        folder=root,
        diagnosis=diagnosis,
        is_found=scenario.is_found_by(diagnosis, ranks),
    )


def _make_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="distdebug-demo-"))

    try:
        make_private_folder(folder)
        is_empty = not any(folder.iterdir())
    except OSError as exc:
        msg = f"cannot use this folder: {exc}"
        raise DistdebugError(msg, remedy="choose another folder") from exc
    if not is_empty:
        msg = f"{folder} is not empty"
        raise DistdebugError(msg, remedy="choose a folder that is not there")

    return folder.resolve()


def _collect(
    job: TrainingJob,
    dumps: Path,
    stacks: Path,
    tell: Callable[[str], object],
) -> None:
    rows = request_dumps(dumps)
    done = sum(row.status == "dumped" for row in rows)
    tell(f"{done} of {len(rows)} ranks wrote a dump")
    pids = [process.pid for process in job.processes()]
    captured = capture_node(stacks, pids=pids, interval_s=0.5)
    done = len(pids) - len(captured.missing)
    tell(f"{done} of {len(pids)} stacks captured")
    if captured.missing:
        # One reason is enough; it is mostly the same for all.
        first = captured.missing[0]
        tell(f"no stack of {first.source}: {first.reason}")

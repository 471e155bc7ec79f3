"""
Record bundles of real jobs that hang or die, for the golden gate.

Usage: record.py OUTPUT.tar.xz [NAME ...]

Each recipe starts a program of ``tests/integration/programs`` or of the demo,
waits until it is in the state that it is about, takes a snapshot, and ends it.
Paths of this machine are replaced by others of the same length, so that
pickles stay valid.  What the recordings are expected to show is not written
here: run the gate with ``--accept`` and read the difference.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

import distdebug

from distdebug.demo import SCENARIOS


INTEGRATION = Path(__file__).parents[1] / "integration" / "programs"
DEMO = Path(distdebug.__file__).parent / "demo" / "programs"

# Where the programs seem to lie.  Short, as paths of the machine are longer.
HOME = Path("/srv/train")

QUIET = [
    *("file_fifo", "file_read", "future_result", "gil_held"),
    *("gil_held_by_main", "import_lock", "lock_cycle", "lock_main"),
    *("join_thread", "loop_idle", "loop_stalled", "queue_get"),
    *("queue_processes", "sleeping", "sleeping_often", "socket_recv"),
    *("stopped", "subprocess_pipe", "subprocess_wait", "uninterruptible"),
    *("zombie", "gil_convoy", "native_spin", "native_spin_locked"),
    *("python_loop", "compute", "evaluate"),
]
JOBS = [
    *("backward", "checkpoint", "crossed", "loader", "mismatch", "outlier"),
    *("rendezvous", "spin", "healthy", "straggler"),
]
UNRECORDED = ["monitored_barrier", "recv", "irecv", "lock", "flock"]
DEATHS = [
    *("raise", "chain", "segfault", "abort", "kill", "memory", "disk"),
    *("files", "module", "loader", "loader-kill", "checkpoint", "state"),
    *("late", "nan", "nothing"),
]


class Recipe(NamedTuple):
    """
    How one bundle is made.

    Attributes:
        argv: The program and its arguments; ``{}`` is the work folder.

        environ: More environment.

        ranks: How many processes of this command are started, as ranks.

        ready: How many lines begin with ``ready`` before it hangs.

        settle_s: How long it is left alone after that, in seconds.

        ends: Whether it ends by itself, so that there is nothing to look at.
    """

    argv: list[str]
    environ: dict[str, str]
    ranks: int = 1
    ready: int = 1
    settle_s: float = 2.0
    ends: bool = False


def recipes() -> dict[str, Recipe]:
    """
    Return all recipes by the name of their bundle.
    """
    python = sys.executable
    torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
    fault = str(HOME / "fail_rank.py")
    recording = {"PYTHONPATH": str(HOME / "recording"), "DUMPS": "{}/dumps"}
    made = {
        f"alone-{name}": Recipe(
            [python, str(HOME / "hangs" / f"{name}.py"), "{}"], {}
        )
        for name in QUIET
    }
    for name in JOBS:
        argv = [python, str(HOME / "hangs" / "job.py"), name, "{}"]
        ready = 3 if name == "rendezvous" else 4
        made[f"job-{name}"] = Recipe(argv, {}, ready=ready, settle_s=6)
    for call in UNRECORDED:
        argv = [python, str(HOME / "unrecorded_rank.py"), call]
        made[f"unrecorded-{call}"] = Recipe(
            [*argv, "{}/dumps", "{}/store"],
            {"WORLD_SIZE": "4"},
            ranks=4,
            ready=4,
            settle_s=8,
        )
    for how in DEATHS:
        argv = [*torchrun, "--nproc-per-node=2", fault, how, "{}"]
        made[f"death-{how}"] = Recipe(argv, recording, ends=True)
    for name in SCENARIOS:
        argv = [*torchrun, "--nproc-per-node=4", str(HOME / f"{name}.py")]
        ends = name in {"crash", "healthy"}
        made[f"demo-{name}"] = Recipe(
            [*argv, "{}/dumps"], {}, ready=0, settle_s=14, ends=ends
        )
    return made


def record(recipe: Recipe, folder: Path) -> None:
    """
    Run a job, and leave what is known of it in *folder*.

    Args:
        recipe: What is run.

        folder: Where to; its subfolder ``dumps`` is for dumps.
    """
    work = Path(tempfile.mkdtemp(dir=HOME))
    argv = [word.replace("{}", str(work)) for word in recipe.argv]
    environ = {
        name: value.replace("{}", str(work))
        for name, value in recipe.environ.items()
    }
    try:
        with _running(argv, environ, recipe.ranks, work) as processes:
            if recipe.ends:
                for process in processes:
                    process.wait(timeout=120)
            else:
                _wait(work, recipe.ready)
                time.sleep(recipe.settle_s)
                family = [pid for p in processes for pid in _family(p.pid)]
                distdebug.snapshot(
                    folder, dump_dir=work / "dumps", pids=family
                )
        _keep(work, folder)
    finally:
        for left in (work, HOME / "data"):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _running(
    argv: list[str], environ: dict[str, str], ranks: int, work: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = []
    with contextlib.ExitStack() as stack:
        for rank in range(ranks):
            own = {"RANK": str(rank)} if ranks > 1 else {}
            name = f"rank_{rank}.log" if ranks > 1 else "job.log"
            log = stack.enter_context((work / name).open("wb"))
            processes.append(
                subprocess.Popen(
                    argv,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": "1",
                        **environ,
                        **own,
                    },
                    cwd=HOME,
                )
            )
        try:
            yield processes
        finally:
            for process in processes:
                with contextlib.suppress(OSError, psutil.Error):
                    for pid in _family(process.pid):
                        os.kill(pid, signal.SIGKILL)
                process.wait()


def _family(pid: int) -> list[int]:
    """
    Return a process and all below it, which may be in sessions of their own.
    """
    process = psutil.Process(pid)
    return [pid, *(p.pid for p in process.children(recursive=True))]


def _wait(work: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        texts = [path.read_text() for path in work.glob("*.log")]
        if sum(text.count("ready") for text in texts) >= count:
            return
        time.sleep(0.1)
    msg = f"not ready: {texts}"
    raise TimeoutError(msg)


def _keep(work: Path, folder: Path) -> None:
    """
    Add dumps and logs, and leave out pages and what is there twice.
    """
    folder.mkdir(exist_ok=True)
    has_dumps = any(folder.rglob("flight_recorder"))
    for path in sorted(work.rglob("*")):
        is_dump = path.parent.name == "dumps" and path.is_file()
        is_log = path.suffix == ".log" and path.is_file()
        if (is_dump and not has_dumps) or is_log:
            place = folder / path.relative_to(work)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    for name in ("REPORT.txt", "report.html"):
        (folder / name).unlink(missing_ok=True)
    for path in folder.rglob("pyspy_*.txt"):
        path.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(_neutral(path.read_bytes()))


def _neutral(data: bytes) -> bytes:
    """
    Replace paths of this machine by others of the same length.
    """
    own = {
        sys.base_prefix: "/usr/py",
        sys.prefix: "/opt/venv",
        str(Path(distdebug.__file__).parents[2]): "/opt/src",
    }
    for path, other in own.items():
        if path:
            head, _, tail = other.rpartition("/")
            room = len(path) - len(other)
            same = (
                f"{head}/{'_' * max(room - 1, 0)}{'/' if room else ''}{tail}"
            )
            data = data.replace(path.encode(), same.encode())
    return data


def main(output: str, *names: str) -> None:
    """
    Record all bundles, or those that are named, into one archive.
    """
    if not HOME.exists():
        shutil.copytree(INTEGRATION, HOME)
        shutil.copytree(DEMO, HOME, dirs_exist_ok=True)
    recording = HOME / "recording"
    recording.mkdir(exist_ok=True)
    (recording / "sitecustomize.py").write_text(
        "import os, distdebug\n"
        "if 'RANK' in os.environ:\n"
        "    distdebug.enable_flight_recorder(dump_dir=os.environ['DUMPS'])\n"
    )
    folder = Path(tempfile.mkdtemp())
    for name, recipe in recipes().items():
        if names and name not in names:
            continue
        try:
            record(recipe, folder / name)
        except (OSError, TimeoutError, subprocess.TimeoutExpired) as exc:
            print(f"{name}: {exc!r}")
        else:
            print(name, len(list((folder / name).rglob("*"))))
    with tarfile.open(output, "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""
What does a job that runs for long show to whoever looks at it from outside?
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from distdebug.debugger import connect
from distdebug.processes import OFFERS_ROOT, offer_folder_name


PROGRAM = Path(__file__).with_name("soak_rank.py")
LOOK_EACH_S = 0.5
END_S = 60.0
# Where others use the machine, a rank may well be slow.
FINE = {"healthy", "straggler"}
# Who is dead waits a moment to be reaped, and that is fine.
PATIENCE_LOOKS = 10
UNWELL = {
    psutil.STATUS_STOPPED,
    psutil.STATUS_TRACING_STOP,
    psutil.STATUS_ZOMBIE,
}


class Job:
    """
    A job under torchrun, of which somebody counts the processes that stay
    stopped, traced, or dead.

    Args:
        folder: Where everything goes.

        ranks: How many ranks it has.

        steps: How many steps an epoch has.
    """

    def __init__(self, folder: Path, ranks: int, steps: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.known: set[psutil.Process] = set()
        self.unwell: set[str] = set()
        self._seen: Counter[tuple[psutil.Process, str]] = Counter()
        self._is_over = threading.Event()
        (folder / "tmp").mkdir()
        command = [*(sys.executable, "-m", "torch.distributed.run")]
        command += ["--standalone", f"--nproc-per-node={ranks}"]
        with (folder / "log.txt").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, PROGRAM, folder, str(steps)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(folder),
            )
        self._looking = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._looking.join()
        for process in self.left():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def end(self) -> int:
        """
        Let it come to its end; its exit status.
        """
        (self.folder / "stop").touch()
        return self.process.wait(END_S)

    def log(self) -> str:
        """
        What was printed.
        """
        return (self.folder / "log.txt").read_text(errors="replace")

    def left(self) -> list[psutil.Process]:
        """
        Which of its processes are still there.
        """
        return [process for process in self.known if process.is_running()]

    def _look_on(self) -> None:
        launcher = psutil.Process(self.process.pid)
        while not self._is_over.wait(LOOK_EACH_S):
            with suppress(psutil.NoSuchProcess):
                self._look(launcher.children(recursive=True))

    def _look(self, family: list[psutil.Process]) -> None:
        self.known |= set(family)
        now = {(p, s) for p in family if (s := _status(p)) in UNWELL}
        self._seen = Counter({key: self._seen[key] + 1 for key in now})
        for (process, status), looks in self._seen.items():
            if looks >= PATIENCE_LOOKS:
                self.unwell.add(f"process {process.pid} stays {status}")


def _status(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.status())
    return ""


def environment(folder: Path) -> dict[str, str]:
    """
    What the job and its snapshots see; what is temporary can be counted.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder / "tmp"),
    }


def epochs(folder: Path) -> list[list[dict[str, float]]]:
    """
    What each rank told of itself after each of its epochs so far.
    """
    texts = [path.read_text() for path in sorted(folder.glob("rank-*.jsonl"))]
    return [[json.loads(x) for x in t.splitlines()] for t in texts if t]


def left_files(job: Job) -> list[str]:
    """
    Files that should be gone when a job has ended.
    """
    offers = Path(OFFERS_ROOT, offer_folder_name(os.geteuid()))
    folder = job.folder
    found = [
        *(path for path in (folder / "tmp").rglob("*") if not path.is_dir()),
        *(folder / "s").glob("*.sock"),
        *(folder / "dumps").glob("*.pipe"),
        *(p for known in job.known for p in offers.glob(f"{known.pid}-*")),
    ]
    return [str(path) for path in found]


def visit(job: Job) -> str:
    """
    Debug the job a little; ``"well"`` if all ranks take part.
    """
    with connect(job.folder / "s", timeout_s=10) as client:
        told = {
            "list": len(tuple(client.list())),
            "eval": len(client.eval(None, "1 + 1").outputs),
            "stack": len(client.stack(all_threads=True).outputs),
            "interrupt": len(client.interrupt(wait_s=2.0).outputs),
        }
        obeyed = len(client.cast(None, "p 6 * 7").outputs)
        client.resume()
        held = sum(process.is_stopped for process in client.list())
    wrong = [f"{k}: {v} ranks" for k, v in told.items() if v != job.ranks]
    wrong += [f"cast: {obeyed} ranks"] * (obeyed == 0)
    wrong += [f"{held} ranks are held"] * (held > 0)
    return ", ".join(wrong) or "well"


def take_snapshot(folder: Path, number: int) -> tuple[bool, str]:
    """
    Take a snapshot; whether it is as it should be, and its verdict.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "distdebug", "snapshot", "--json"),
            *("--dump-dir", folder / "dumps"),
            folder / "snapshots" / str(number),
        ],
        capture_output=True,
        text=True,
        env=environment(folder),
    )
    try:
        verdict = json.loads(done.stdout)["verdict"]
    except (KeyError, ValueError):
        return False, done.stderr[-500:]
    return verdict[
        "cause"
    ] in FINE, f"{verdict['cause']}: {verdict['summary']}"

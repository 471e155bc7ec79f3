"""
How long does it take to find the logs of an actor among thousands?

Run it as ``python benchmarks/bench_ray.py``.  Every number is the best of
several runs in fresh processes, in seconds; ``grep -l`` is given the same
files, and the beginning of one stream of each worker only.  The slope is how
the time grows: 1 is in proportion to the number of workers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from pathlib import Path

from measured import slope


PROGRAMS = {
    "find class": """
from distdebug.ray.actor_logs import find_actor_logs
start = time.perf_counter()
found = find_actor_logs("Trainer*", sys.argv[1])
seconds = time.perf_counter() - start
assert [log.actor_repr for log in found] == ["TrainerActor(rank=0)"], found
""",
    "find line": """
from distdebug.ray.actor_logs import find_actor_logs
start = time.perf_counter()
found = find_actor_logs("(TrainerActor pid=1001, ip=10.0.0.7)", sys.argv[1])
seconds = time.perf_counter() - start
assert len(found) == 1, found
""",
    "all": """
from distdebug.ray.sessions import find_ray_sessions
from distdebug.ray.workers import worker_logs
start = time.perf_counter()
found = worker_logs(find_ray_sessions(sys.argv[1]))
seconds = time.perf_counter() - start
assert len(found) == int(sys.argv[2])
""",
    "grep -l": """
import subprocess
command = "cd $0/*/logs && grep -l ':actor_name:Trainer' -r . | sort -u"
start = time.perf_counter()
found = subprocess.run(["sh", "-c", command, sys.argv[1]], capture_output=True)
seconds = time.perf_counter() - start
assert found.stdout.count(b"\\n") == 2, found
""",
}
HEADER = "import json, sys, time\n"
FOOTER = "\nprint(json.dumps(seconds))"

NODE = "ab" * 28
STATE = f"NodeManager:\nNode ID: {NODE}\nNode name: 10.0.0.7\n"
LINE = "[2026-02-20 02:03:57] loader.py:77 INFO read shard 17 of 94\n"
ASSIGNED = (
    "[2026-02-20 02:03:57,123 I 7 7] (gcs_server) gcs_actor_scheduler.cc:424: "
    "Submitting actor creation task to worker. actor_id={} worker_id={}\n"
)
CORE = (
    "[2026-02-20 02:03:57,123 I 7 7] core_worker.cc:3247: "
    "Creating actor actor_id={}\n"
)


def main() -> None:
    """
    Print a table.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [1000, 3000, 10_000]
    parser.add_argument("--workers", type=int, nargs="+", default=sizes)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    heads = ("workers", "files", "MB", *PROGRAMS, "slope")
    print(*(f"{head:>10}" for head in heads))
    last = None
    for workers in options.workers:
        with tempfile.TemporaryDirectory() as folder:
            files, size = write_session(Path(folder), workers)
            seconds = [
                measure(program, folder, workers, options.repeat)
                for program in PROGRAMS.values()
            ]
        now = workers, seconds[0]
        print(
            f"{workers:10}",
            f"{files:10}",
            f"{size / 1e6:10.1f}",
            *(f"{number:10.3f}" for number in seconds),
            f"{slope(last, now):10.2f}",
            flush=True,
        )
        last = now


def write_session(folder: Path, workers: int) -> tuple[int, int]:
    """
    Write the session of a node with many workers, of which one is a trainer.

    Returns:
        The number of files and their size in bytes.
    """
    logs = folder / "session_2026-02-20_02-03-57_123456_4711" / "logs"
    logs.mkdir(parents=True)
    texts = {"raylet.out": "", "debug_state.txt": STATE, "gcs_server.out": ""}
    for number in range(workers):
        worker, actor, pid = f"{number:056x}", f"{number:032x}", 1000 + number
        is_trainer = number == workers // 2
        cls = "TrainerActor" if is_trainer else f"Rollout{number % 7}"
        marks = f":job_id:01000000\n:actor_name:{cls}\n"
        if is_trainer:
            marks += ":actor_name:TrainerActor(rank=0)\n"
        stem = f"worker-{worker}-ffffffff-{pid}"
        texts[f"{stem}.out"] = marks + LINE
        texts[f"{stem}.err"] = marks + LINE * 500
        texts[f"python-core-worker-{worker}_{pid}.log"] = CORE.format(actor)
        texts["gcs_server.out"] += ASSIGNED.format(actor, worker)
    for name, text in texts.items():
        (logs / name).write_text(text)
    return len(texts), sum(map(len, texts.values()))


def measure(program: str, folder: str, workers: int, repeat: int) -> float:
    """
    The best time in seconds.
    """
    return min(
        json.loads(
            subprocess.run(
                [
                    *(sys.executable, "-c", HEADER + program + FOOTER),
                    *(folder, str(workers)),
                ],
                check=True,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            ).stdout
        )
        for _ in range(repeat)
    )


if __name__ == "__main__":
    main()

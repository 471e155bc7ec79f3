"""
How long does it take to see what every worker does, and for how long does each
worker stand still?

Run it as ``python benchmarks/bench_capture.py --workers 8 32 128``.  The workers
are plain processes of Python with a few threads (``--torch``: with torch loaded).
What matters are

* looking without stopping anybody, against py-spy started once per worker, one
  after the other, as people do by hand;
* native stacks of everybody, against what the hang debugging of SGLang's job
  recipes did: for each worker in turn py-spy, then cuda-gdb (here gdb with the
  same commands where there is no cuda-gdb), each with 60 seconds;
* the pause: how long a worker could not run, sampled from outside.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from distdebug._proc import find_tool
from distdebug.capture import capture_node
from measured import slope


WORKER = """
import sys, threading, time
if sys.argv[1] == "torch":
    import torch, torch.distributed
def wait(depth):
    if depth:
        return wait(depth - 1)
    print(flush=True)
    time.sleep(3600)
for depth in range(4):
    threading.Thread(target=wait, args=(depth,), daemon=True).start()
wait(12)
"""

_MOST_WATCHED = 8

HEADS = (
    *("workers", "what", "seconds", "slope", "pause ms", "longest ms"),
    "stacks",
)


def main() -> None:
    """
    Print a table.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--torch", action="store_true")
    parser.add_argument(
        "--native",
        type=int,
        default=8,
        metavar="WORKERS",
        help="take native stacks, which is slow, of up to so many workers",
    )
    options = parser.parse_args()
    print("{:>7}  {:38} {:>8} {:>6} {:>9} {:>10} {:>7}".format(*HEADS))
    last: dict[str, tuple[int, float]] = {}
    for number in options.workers:
        with workers(number, "torch" if options.torch else "") as pids:
            for name, (run, is_native) in RUNS.items():
                if is_native and number > options.native:
                    continue
                show(name, pids, run, last)


def show(
    name: str,
    pids: Sequence[int],
    run: Callable[[Sequence[int]], int],
    last: dict[str, tuple[int, float]],
) -> None:
    """
    Measure one way of looking, and print a row.
    """
    with pauses(pids) as paused_s:
        start = time.perf_counter()
        found = run(pids)
        seconds = time.perf_counter() - start
    now = len(pids), seconds
    growth = slope(last.get(name), now)
    last[name] = now
    mean = 1e3 * sum(paused_s.values()) / len(paused_s)
    longest = 1e3 * max(paused_s.values(), default=0)
    print(
        f"{len(pids):7}  {name:38} {seconds:8.2f} {growth:6.2f}"
        f" {mean:9.0f} {longest:10.0f} {found:7}",
        flush=True,
    )


def look(pids: Sequence[int]) -> int:
    """
    Ours, no rank is stopped.
    """
    capture = capture_node(pids=pids, samples=1)
    return sum(bool(p.threads) for p in capture.stacks)


def look_native(pids: Sequence[int]) -> int:
    """
    Ours, with native stacks of everybody.
    """
    capture = capture_node(pids=pids, samples=1, native="all")
    return sum(any(t.native for t in p.threads) for p in capture.stacks)


def look_cuda(pids: Sequence[int]) -> int:
    """
    Ours, with cuda-gdb on everybody.
    """
    capture = capture_node(pids=pids, samples=1, cuda=True, timeout_s=3600)
    return sum(any(t.native for t in p.threads) for p in capture.stacks)


def serial_pyspy(pids: Sequence[int]) -> int:
    """
    By hand: py-spy, one worker after the other.
    """
    tool = find_tool("py-spy") or "py-spy"
    outputs = [
        output_of([tool, "dump", "--pid", str(pid)], 30) for pid in pids
    ]
    return sum("Thread" in text for text in outputs)


def serial_script(pids: Sequence[int]) -> int:
    """
    The source document's script: py-spy, then cuda-gdb, worker by worker.
    """
    serial_pyspy(pids)
    debugger = shutil.which("cuda-gdb") or shutil.which("gdb") or "gdb"
    found = 0
    for pid in pids:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            commands = (
                "set logging redirect on",
                f"set logging file {log}",
                "set logging enabled on",
                "info cuda kernels",
                "thread apply all bt",
                "quit",
            )
            argv = [debugger, "-batch"]
            for command in commands:
                argv += ["-ex", command]
            printed = output_of([*argv, "-p", str(pid)], 60)
            text = log.read_text() if log.exists() else printed
            found += "#1 " in text
    return found


def output_of(argv: Sequence[str], timeout_s: float) -> str:
    """
    What a tool prints; nothing if it takes too long.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        ).stdout
    return ""


RUNS: dict[str, tuple[Callable[[Sequence[int]], int], bool]] = {
    "py-spy, one after the other": (serial_pyspy, False),
    "capture_node": (look, False),
    "capture_node, native stacks": (look_native, True),
    "py-spy, then cuda-gdb, one by one": (serial_script, True),
    "capture_node, cuda-gdb": (look_cuda, True),
}


@contextlib.contextmanager
def workers(number: int, kind: str) -> Iterator[list[int]]:
    """
    Start workers, and wait until all of them wait.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, kind],
            stdout=subprocess.PIPE,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(number)},
        )
        for rank in range(number)
    ]
    try:
        for process in started:
            for _ in range(5):
                process.stdout.readline()  # type: ignore[union-attr]
        time.sleep(0.2)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def pauses(pids: Sequence[int]) -> Iterator[dict[int, float]]:
    """
    Sample for how long each process is stopped or traced, in seconds.
    """
    # Looking at all of many would take the time that is measured.
    watched = pids[:_MOST_WATCHED]
    done, paused_s = threading.Event(), dict.fromkeys(watched, 0.0)

    def sample() -> None:
        last = time.perf_counter()
        while not done.wait(0.002):
            now = time.perf_counter()
            for pid in watched:
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/status").read_bytes()
                    if b"TracerPid:\t0\n" not in status:
                        paused_s[pid] += now - last
            last = now

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield paused_s
    finally:
        done.set()
        sampler.join()


if __name__ == "__main__":
    main()

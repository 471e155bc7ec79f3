"""
Does a process survive being asked where it is, thousands of times?

Run it as ``python benchmarks/ask_often.py --seconds 600``.  A few processes
wait in Python and in C, start threads that end soon, and compile and run new
code, as a job does that loads and traces models.  Each is asked by a signal,
again and again, by :func:`~distdebug.capture.self_report.ask_process`.

Threads that run just now are left alone, as by default; ``--also-running`` asks
them, too, which is known to end a process once in a while.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from distdebug.capture.self_report import ask_process


TARGET = """
import queue, random, sys, threading, time
import distdebug
distdebug.enable_flight_recorder(dump_dir=sys.argv[1])
def wait_for_data(box):
    while True:
        try:
            box.get(timeout=random.random() / 100)
        except queue.Empty:
            pass
def compile_and_run():
    for number in range(1 << 60):
        depth = number % 20
        code = "def f(n):\\n    return n and f(n - 1) or time.sleep(0.001)\\n"
        names = {"time": time}
        exec(compile(code, f"made_{number}.py", "exec"), names)
        names["f"](depth)
def start_others():
    while True:
        short = [threading.Thread(target=time.sleep, args=(0.01,))
                 for _ in range(4)]
        for thread in short:
            thread.start()
        for thread in short:
            thread.join()
for work in (compile_and_run, compile_and_run, start_others):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
wait_for_data(queue.Queue())
"""


def main() -> None:
    """
    Print how often processes were asked, and how many of them died.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--also-running", action="store_true")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(options.processes) as pool,
    ):
        found = pool.map(
            lambda _: ask_until(until, folder, options),
            range(options.processes),
        )
        total = sum(found, Counter())
    print(
        f"asked {total['asked']:,} times, {total['stacks']:,} stacks told; "
        f"{total['died']} of {total['processes']} processes died"
    )
    sys.exit(total["died"] > 0)


def ask_until(
    until: float, folder: str, options: argparse.Namespace
) -> Counter[str]:
    """
    Ask one process after the other, should one die, until some moment.
    """
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        target = None
        while time.monotonic() < until:
            if target is None or target.poll() is not None:
                seen["died"] += target is not None
                seen["processes"] += 1
                target = stack.enter_context(start(folder))
                stack.callback(target.kill)
            threads, _ = ask_process(
                target.pid, also_running=options.also_running
            )
            seen["asked"] += 1
            seen["stacks"] += len(threads)
        seen["died"] += target is not None and target.poll() is not None
    return seen


def start(folder: str) -> subprocess.Popen[str]:
    """
    Start a process, and wait until it can be asked.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", TARGET, folder],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


if __name__ == "__main__":
    main()

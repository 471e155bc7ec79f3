"""
How long does it take to find what went wrong in logs, and how much memory?

Run it as ``python benchmarks/bench_logs.py --mb 16 128 1024``.  Each number
is the best of several fresh processes, on the same files, which are in the
cache of the system.  What matters are

* ``scan_logs``, which also tells ranks, times, and tracebacks, against ``grep
  -i -E -c`` with the words of the same rules, which only counts lines, and
  against one that looks for nothing but seven common words;
* the slope: how much longer it takes for a larger folder;
* a flood: the same where every other line is an error;
* ``read_collective_logs`` and ``detect_phase`` on the same files;
* ``diagnose``, which reads them with all of these, and its peak of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from pathlib import Path

from distdebug.logs.rules import read_rules
from measured import slope


PROGRAM = """
import json, pathlib, re, sys, time
import numpy
from distdebug.logs.scan import scan_logs
threads = int(sys.argv[2]) or None
start = time.perf_counter()
report = scan_logs(sys.argv[1], threads=threads)
seconds = time.perf_counter() - start
assert report.findings[0].cause == sys.argv[3], report
# Of a flood, only so many lines are kept, and the report says so.
assert sys.argv[4] == "flood" or not report.missing, report
status = pathlib.Path("/proc/self/status")
text = status.read_text() if status.exists() else "VmHWM: 0"
peak = int(re.search(r"VmHWM:\\s+(\\d+)", text)[1]) / 1024
print(json.dumps([seconds, peak]))
"""

OTHERS = """
import json, resource, sys, time
import distdebug
read = getattr(distdebug, sys.argv[2])
start = time.perf_counter()
told = read(sys.argv[1])
seconds = time.perf_counter() - start
# There are no dumps.
assert {m.what for m in told.missing} <= {"dump"}, told
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, peak]))
"""

GREP = """
import json, subprocess, sys, time
start = time.perf_counter()
# It would stop at the first line if its output went to /dev/null.
subprocess.run(
    ["grep", "-r", "-i", "-c", "-E", "-f", sys.argv[2], sys.argv[1]],
    stdout=subprocess.PIPE,
)
print(json.dumps([time.perf_counter() - start, 0]))
"""

FEW = ["error", "OOM", "killed", "exception", "traceback", "nan", "timeout"]
HEADS = (
    *("MB", "scan_logs", "1 thread", "grep, rules", "grep, 7 words"),
    *("grep/scan", "MB/s", "slope", "peak MB", "flood"),
    *("collectives", "phase", "diagnose", "peak MB"),
)

HEALTHY = (
    (
        "[2026-02-20 {h:02}:{m:02}:{s:02}] iteration {n:8}/  500000 | consumed "
        "samples: {n:12} | elapsed time per iteration (ms): {x:.1f} | learning "
        "rate: {y:.6E} | global batch size:  1024 | lm loss: {y:.6E} | loss scale:"
        " 1.0 | grad norm: {x:.3f} | number of skipped iterations:   0 | number "
        "of nan iterations:   0 |"
    ),
    (
        "{{'loss': {y:.4f}, 'grad_norm': {x:.3f}, 'learning_rate': {y:.3e}, "
        "'epoch': {y:.2f}}}"
    ),
    (
        "(TrainerActor pid={n}, ip=10.0.0.{r}) 2026-02-20 {h:02}:{m:02}:{s:02},"
        "{n:03} INFO trainer.py:{r} - step {n} done in {x:.3f} s, memory {y:.2f} "
        "GiB allocated"
    ),
    (
        "INFO 02-20 {h:02}:{m:02}:{s:02} [loggers.py:116] Engine 000: Avg prompt "
        "throughput: {x:.1f} tokens/s, Avg generation throughput: {y:.1f} "
        "tokens/s, Running: {r} reqs, Waiting: 0 reqs, GPU KV cache usage: 3.2%"
    ),
    (
        "[2026-02-20 {h:02}:{m:02}:{s:02} TP0] Decode batch. #running-req: {r}, "
        "#token: {n}, token usage: 0.82, gen throughput (token/s): {x:.2f}, "
        "#queue-req: 0"
    ),
    (
        "n{r}:41{r}:57{r} [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x{n:x} "
        "recvbuff 0x{n:x} count {n} datatype 7 op 0 root 0 comm 0x5{r} [nranks=8]"
    ),
    "[rank{r}]: loading shard {r} of /data/model-{r:05}.safetensors: {x:.1f}%",
    (
        "Training:  {r}%|####      | {n}/500000 [{h:02}:{m:02}<{s:02}, "
        "{x:.2f}s/it]\rTraining:  {r}%|####      | {n}/500000 [{h:02}:{m:02}]"
    ),
    (
        '10.0.0.{r} - - [20/Feb/2026:{h:02}:{m:02}:{s:02} +0000] "POST '
        '/v1/chat/completions HTTP/1.1" 200 {n}'
    ),
    "finished epoch {r} with 0 errors; validation loss {y:.4f}",
)
HIT = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/home/me/train.py", line 17, in step\n'
    "[rank3]:     loss.backward()\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.00 GiB\n"
)
FLOOD = "n1:7:9 [0] NCCL WARN socketStartConnect: Connection refused\n"


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    print(*(f"{head:>13}" for head in HEADS))
    last = None
    for size in options.mb:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            got = measure_all(Path(folder), size, options)
        ours = got["scan"][0]
        now = size, ours
        print(
            f"{size:13}",
            f"{ours:13.3f}",
            f"{got['one'][0]:13.3f}",
            f"{got['grep'][0]:13.3f}",
            f"{got['few'][0]:13.3f}",
            f"{got['grep'][0] / ours:13.2f}",
            f"{size / ours:13.0f}",
            f"{slope(last, now):13.2f}",
            f"{got['scan'][1]:13.0f}",
            f"{got['flood'][0]:13.3f}",
            f"{got['collectives'][0]:13.3f}",
            f"{got['phase'][0]:13.3f}",
            f"{got['diagnose'][0]:13.3f}",
            f"{got['diagnose'][1]:13.0f}",
            flush=True,
        )
        last = now


def parse_options() -> argparse.Namespace:
    """
    What to measure.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", help="where to write the logs")
    return parser.parse_args()


def measure_all(
    folder: Path, size: int, options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """
    The times of all that is compared, in seconds, and peaks in MB.
    """
    words = {word for rule in read_rules() for word in rule.words}
    for name, chosen in (("rules", words), ("few", FEW)):
        lines = {x.replace("\n", "") for x in chosen}
        pattern = "|".join(
            re.sub(r"([][\\.*^$+?{}()|])", r"\\\1", x) for x in lines
        )
        (folder / name).write_text(pattern)
    logs, flood = folder / "logs", folder / "flood"
    for path, filler in ((logs, ""), (flood, FLOOD)):
        path.mkdir()
        for number in range(options.files):
            write_log(
                path / f"rank_{number}.log", size / options.files, filler
            )

    oom = "gpu_out_of_memory"
    runs = {
        "scan": (PROGRAM, logs, "0", oom, "logs"),
        "one": (PROGRAM, logs, "1", oom, "logs"),
        "grep": (GREP, logs, folder / "rules"),
        "few": (GREP, logs, folder / "few"),
        "flood": (PROGRAM, flood, "0", oom, "flood"),
        "collectives": (OTHERS, logs, "read_collective_logs"),
        "phase": (OTHERS, logs, "detect_phase"),
        "diagnose": (OTHERS, logs, "diagnose"),
    }
    return {
        name: measure(options.repeat, *map(str, run))
        for name, run in runs.items()
    }


def write_log(path: Path, size: float, filler: str) -> None:
    """
    Write a log of so many MB, with few errors, or with an error every line.
    """
    chance = random.Random(path.name)
    lines = []
    for number in range(20_000):
        line = chance.choice(HEALTHY).format(
            n=number * 7919 % 500_000,
            r=chance.randrange(100),
            h=chance.randrange(24),
            m=chance.randrange(60),
            s=chance.randrange(60),
            x=chance.uniform(0, 5000),
            y=chance.uniform(0, 3),
        )
        lines.append(f"{line}\n{filler}")
    chunk = "".join(lines).encode()
    with path.open("wb") as file:
        while file.tell() < size * 1e6:
            file.write(chunk)
        file.write(HIT.encode() + chunk)


def measure(repeat: int, program: str, *arguments: str) -> tuple[float, float]:
    """
    The best time in seconds, and its peak memory in MB.
    """
    path = os.pathsep.join(filter(None, sys.path))
    runs = []
    for _ in range(repeat):
        output = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "LC_ALL": "C.UTF-8"},
        ).stdout
        runs.append(tuple(json.loads(output)))

    return min(runs)


if __name__ == "__main__":
    main()

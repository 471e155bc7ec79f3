"""
How long does it take to read and merge the stacks of all ranks?

Run it as ``python benchmarks/bench_stacks.py --ranks 100 1000 10000``.  Every
rank has 8 threads; all of them are merged.  Each number is the best of several
fresh processes, on the same files.  What matters are

* reading files, against ``json.loads`` of the same files, which checks
  nothing;
* merging, against a dictionary of dictionaries that every thread walks through
  frame by frame, which knows no classes, and against the budget of 2.5 s for
  10,000 ranks;
* explaining, which has to name the one that reads;
* the slope: how much longer a job takes that has ten times the ranks.
"""

from __future__ import annotations

import argparse
import json
import tempfile

from pathlib import Path
from typing import Any

from measured import best_of, slope


PROGRAMS = {
    "read": """
from distdebug.stacks.parse import read_stacks
start = time.perf_counter()
stacks = read_stacks(sys.argv[1])
seconds = time.perf_counter() - start
assert len(stacks) == int(sys.argv[2])
""",
    "json.loads": """
import pathlib
start = time.perf_counter()
known = [json.loads(p.read_text()) for p in pathlib.Path(sys.argv[1]).iterdir()]
seconds = time.perf_counter() - start
""",
    "merge": """
from distdebug.stacks.merge import merge_stacks
from distdebug.stacks.parse import read_stacks
stacks = read_stacks(sys.argv[1])
start = time.perf_counter()
tree = merge_stacks(stacks, threads="all", background=True)
found = tree.classes, tree.outliers(), str(tree)
seconds = time.perf_counter() - start
assert [c.who for c in found[1]] == ["1"], found[1]
""",
    "explain": """
from distdebug.stacks.explain import explain_stacks
from distdebug.stacks.parse import read_stacks
stacks = read_stacks(sys.argv[1])
start = time.perf_counter()
first = explain_stacks(stacks)[0]
seconds = time.perf_counter() - start
assert first.ranks == (1,), first
""",
    # Forgets what a thread, a role, or a peer is.
    "dict trie": """
import pathlib
known = [json.loads(p.read_text()) for p in pathlib.Path(sys.argv[1]).iterdir()]
start = time.perf_counter()
root = {}
for process in known:
    for thread in process:
        node = root
        for frame in reversed(thread["frames"]):
            key = frame["name"], frame["filename"], frame["line"]
            below, members = node.setdefault(key, ({}, set()))
            members.add(thread["pid"])
            node = below
seconds = time.perf_counter() - start
""",
}

HEADS = (
    "ranks",
    "MB",
    *PROGRAMS,
    "read/json",
    "merge/trie",
    "slope",
    "peak MB",
)

SITE = "/usr/lib/python3.11/site-packages"
LIB = "/usr/lib/python3.11"


def main() -> None:
    """
    Print a table.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(*(f"{head:>10}" for head in HEADS))
    last = None
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            size = write_stacks(Path(folder), ranks)
            got = {
                name: best_of(options.repeat, program, folder, ranks)
                for name, program in PROGRAMS.items()
            }
        seconds = {name: got[name].seconds for name in got}
        now = ranks, seconds["merge"]
        print(
            f"{ranks:10}",
            f"{size:10.1f}",
            *(f"{seconds[name]:10.3f}" for name in PROGRAMS),
            f"{seconds['read'] / seconds['json.loads']:10.2f}",
            f"{seconds['merge'] / seconds['dict trie']:10.2f}",
            f"{slope(last, now):10.2f}",
            f"{got['merge'].peak_mb:10.0f}",
            flush=True,
        )
        last = now


def write_stacks(folder: Path, ranks: int) -> float:
    """
    Write what py-spy writes of a job in which rank 1 reads, and the others
    wait for it.

    Returns:
        The size of the files in MB.
    """
    size = 0
    for rank in range(ranks):
        pid = 4000 + rank % 8
        info = {"pid": pid, "command_line": "python train.py", "parent": None}
        threads = [main_thread(rank), *(helper(n, rank) for n in range(7))]
        data = [
            {
                "pid": pid,
                "thread_id": 139644270070656 + number,
                "thread_name": name,
                "os_thread_id": pid + number * 1000,
                "active": False,
                "owns_gil": False,
                "frames": frames[::-1],
                "process_info": {**info, "rank": rank} if not number else info,
            }
            for number, (name, frames) in enumerate(threads)
        ]
        file = folder / f"pyspy_node{rank // 8}_{pid}.json"
        size += file.write_text(json.dumps(data, indent=1))
    return size / 1e6


def main_thread(rank: int) -> tuple[str, list[dict[str, Any]]]:
    """
    Some lines of the user, layers, and the call that waits.
    """
    frames = [frame(f"step{n}", "/app/train.py", n) for n in range(4)]
    for layer in range(6):
        module = f"{SITE}/torch/nn/modules/module.py"
        frames += [
            frame("_wrapped_call_impl", module, 1775),
            frame("_call_impl", module, 1786),
            frame("forward", f"/app/layer{layer}.py", layer),
        ]
    if rank == 1:
        frames.append(frame("read_shard", "/app/data.py", 41))
    else:
        c10d = f"{SITE}/torch/distributed"
        frames.append(frame("wrapper", f"{c10d}/c10d_logger.py", 81))
        frames.append(frame("all_reduce", f"{c10d}/distributed_c10d.py", 2806))
    return "MainThread", frames


def helper(number: int, rank: int) -> tuple[str, list[dict[str, Any]]]:
    """
    A thread that is not at the same line in all ranks.
    """
    frames = [
        frame(name, f"{LIB}/threading.py", line)
        for name, line in (
            ("Thread._bootstrap", 1002),
            ("Thread._bootstrap_inner", 1045),
            ("Thread.run", 982),
        )
    ]
    frames += [frame(f"work{n}", f"/app/t{number}.py", n) for n in range(8)]
    frames.append(frame("poll", f"/app/t{number}.py", 100 + rank % 16))
    return f"Thread-{number}", frames


def frame(name: str, filename: str, line: int) -> dict[str, Any]:
    """
    A frame as py-spy writes it.
    """
    return {
        "name": name,
        "filename": filename,
        "module": None,
        "short_filename": filename.rpartition("/")[2],
        "line": line,
        "locals": None,
        "is_entry": False,
    }


if __name__ == "__main__":
    main()

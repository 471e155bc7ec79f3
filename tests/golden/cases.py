"""
All cases of the golden gate, by set: which evidence is given to ``diagnose``.

A case is a name and a function that puts its evidence into an empty folder.  Evidence is
recorded (``evidence/``, ``tests/data``, the corpora of the fuzzer) or simulated.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tarfile

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import simulated


TESTS = Path(__file__).parents[1]
EVIDENCE = Path(__file__).parent / "evidence"

# All files are of the same time: what was copied when must not matter.
MODIFIED = 1_750_000_000

# What a file of a corpus of the fuzzer is called, so that it is read as what
# it is; the corpora of other parsers hold no evidence.
CORPORA = {
    "collectives": "job.log",
    "cuda_gdb": "cudagdb_node_1.txt",
    "diagnosis_logs": "job.log",
    "dump_careful": "nccl_trace_rank_0",
    "dump_fast": "nccl_trace_rank_0",
    "dump_gz": "nccl_trace_rank_0.gz",
    "dump_json": "nccl_trace_rank_0.json",
    "faulthandler": "faulthandler_1.txt",
    "gdb": "gdb_1.txt",
    "log_scan": "job.log",
    "phase": "job.log",
    "pyspy_json": "pyspy_node_1.json",
    "pystack": "pystack_1.txt",
    "ray_driver": "driver.log",
    "stacks_in_log": "job.log",
}

# More of one kind show little, and cost time.
MOST_SAMPLES = 9

# Logs of jobs that only hang say little.
LEAST_PART = 500

# Which parts of a recorded bundle are looked at by themselves.
PARTS = {
    "dumps": ("flight_recorder/", "dumps/"),
    "stacks": ("pyspy_",),
    "logs": (".log",),
}


class Case:
    """
    One piece of evidence.

    Attributes:
        name: Its name, unique within its set.
    """

    def __init__(self, name: str, write: Callable[[Path], object]) -> None:
        self.name = name
        self._write = write

    def write(self, folder: Path) -> None:
        """
        Put the evidence into *folder*, the same in every run.
        """
        folder.mkdir()
        self._write(folder)
        for path in folder.rglob("*"):
            os.utime(path, (MODIFIED, MODIFIED))


def simulated_cases() -> Iterator[Case]:
    """
    Return jobs made by :mod:`.simulated`.
    """
    for name in simulated.names():
        yield Case(name, functools.partial(simulated.write, name))


def job_cases() -> Iterator[Case]:
    """
    Return dumps of small jobs that were written by hand for unit tests.
    """
    for name, files in _archive("jobs.tar.xz").items():
        yield _from_files(name, files)


def bundle_cases() -> Iterator[Case]:
    """
    Return recorded bundles of real jobs: whole, and each kind of evidence alone.
    """
    for name, files in _archive("bundles.tar.xz").items():
        yield _from_files(name, files)
        for part, marks in PARTS.items():
            some = {
                path: data
                for path, data in files.items()
                if any(mark in path for mark in marks)
            }
            is_worth_it = sum(map(len, some.values())) > LEAST_PART
            if is_worth_it and not name.startswith("alone-"):
                yield _from_files(f"{name}.{part}", some)


def cluster_cases() -> Iterator[Case]:
    """
    Return logs that were written for this by somebody who did not know the code.
    """
    for name, files in _archive("cluster.tar.xz").items():
        yield _from_files(name, files)


def gpu_cases() -> Iterator[Case]:
    """
    Return what jobs on a GPU left: snapshots, dumps with logs, and single tools.
    """
    for name, files in _archive("gpu.tar.xz").items():
        yield _from_files(name, files)


def log_cases() -> Iterator[Case]:
    """
    Return logs, each a few lines that somebody once had.
    """
    text = (EVIDENCE / "logs.txt").read_bytes().decode()
    for case in text.split("%%% case ")[1:]:
        name, _, rest = case.partition("\n")
        files = {}
        for file in rest.split("%%% file ")[1:]:
            path, _, body = file.partition("\n")
            files[path] = body.replace("\n%%% no newline\n", "").encode()
        yield _from_files(name, files)
    lines = (TESTS / "data" / "logscan_failures.txt").read_text("utf-8")
    for number, line in enumerate(lines.splitlines(), start=1):
        body = line.partition("|")[2].replace("\\n", "\n")
        log = f"step 1 ok\n{body}\nbye\n".encode()
        yield _from_files(f"failure-{number}", {"job.log": log})


def recorded_cases() -> Iterator[Case]:
    """
    Return stacks, dumps of every torch, and Ray sessions that were recorded.
    """
    data = TESTS / "data"
    for path in sorted((data / "stacks").iterdir()):
        yield _copy(f"stacks-{path.name}", path)
    yield _copy("stacks", data / "stacks")
    for path in sorted((data / "formats").glob("*-*")):
        yield _copy(path.name, path)
    for path in sorted((data / "recorders").glob("*-*")):
        yield _copy(f"recorders-{path.name}", path)
    sessions = data / "ray_sessions"
    for path in sorted(sessions.glob("*/*")):
        name = f"ray-{path.parent.name}-{path.name}"
        yield _copy(name, path)
        for log in sorted(path.rglob("*.err")):
            # Each of these also alone, as people paste them.
            if log.stat().st_size:
                yield _copy(f"{name}/{log.relative_to(path)}", log)


def fuzz_cases() -> Iterator[Case]:
    """
    Return what the fuzzer keeps of the parsers of evidence.
    """
    kinds = ("corpus", "seeds", "regressions")
    for kind, (target, file) in itertools.product(kinds, CORPORA.items()):
        samples = sorted((TESTS / "fuzz" / kind / target).glob("*"))
        for path in samples[:MOST_SAMPLES]:
            data = path.read_bytes()
            yield _from_files(f"{kind}/{target}/{path.name}", {file: data})


SETS: dict[str, Callable[[], Iterable[Case]]] = {
    "bundles": bundle_cases,
    "cluster": cluster_cases,
    "gpu": gpu_cases,
    "fuzz": fuzz_cases,
    "jobs": job_cases,
    "logs": log_cases,
    "recorded": recorded_cases,
    "simulated": simulated_cases,
}


def _archive(name: str) -> dict[str, dict[str, bytes]]:
    """
    Return the files of an archive by their first folder.
    """
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(EVIDENCE / name) as archive:
        for member in archive:
            if file := archive.extractfile(member):
                case, _, path = member.name.partition("/")
                found.setdefault(case, {})[path] = file.read()
    return found


def _from_files(name: str, files: dict[str, bytes]) -> Case:
    def write(folder: Path) -> None:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)

    return Case(name, write)


def _copy(name: str, source: Path) -> Case:
    def write(folder: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, folder / source.name)
        else:
            shutil.copyfile(source, folder / source.name)

    return Case(name, write)

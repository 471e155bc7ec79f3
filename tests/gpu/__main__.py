"""
Run jobs with faults on the GPUs of this node, and judge the verdicts.

``python -m tests.gpu OUTPUT_DIR [NAME …]`` needs a torch with CUDA and what *distdebug*
needs, and no network.  Where there is one GPU, ranks share it: each says that it runs
on a host of its own (``NCCL_HOSTID``), and they talk by sockets.  The comments at
the top of each program say what is expected of its verdict, as in ``tests.jobs``, and

* ``# ranks: N``: how many there are, 2 by default;
* ``# env: NAME=VALUE``: a variable of the job;
* ``# live: pipe, native, cuda, ras, report, kernel``: what else is tried while it runs;
* ``# only: nccl``: there is nothing to see without a GPU;
* ``# host: one``: ranks do not hide that they share a GPU;
* ``# after: nothing``: what it leaves does not show the fault.

With ``--backend gloo`` the same is tried on any machine, as far as that goes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from tests.jobs.__main__ import call, find_verdict, judge, parse_expected


PROGRAMS = Path(__file__).parent / "programs"
TOGETHER = max(2, min(8, (os.cpu_count() or 2) // 2))
_START_S, _SETTLE_S, _END_S = 60, 5, 45
_FIRST_PORT = 29600
# These stop the GPU, and so have it to themselves.
_ALONE = {"cuda", "kernel"}


@attrs.frozen
class Program:
    """
    A program, and what its comments say.
    """

    path: Path
    ranks: int
    environ: dict[str, str]
    live: tuple[str, ...]
    needs_gpu: bool
    is_one_host: bool
    leaves_nothing: bool

    @property
    def is_alone(self) -> bool:
        """
        Return whether nothing else may run beside it.
        """
        return bool(_ALONE.intersection(self.live))


def parse_program(path: Path) -> Program:
    """
    Parse the comments of a program.
    """
    said = re.findall(r"^# (\w+): (.+)$", path.read_text(), re.MULTILINE)
    ranks = [int(value) for name, value in said if name == "ranks"]
    return Program(
        path,
        *(ranks or [2]),
        dict(value.split("=", 1) for name, value in said if name == "env"),
        tuple(
            word
            for name, value in said
            if name == "live"
            for word in value.split(", ")
        ),
        ("only", "nccl") in said,
        ("host", "one") in said,
        ("after", "nothing") in said,
    )


@attrs.define
class Job:
    """
    A job that runs, in a folder of its own.
    """

    program: Program
    folder: Path
    backend: str
    port: int
    ranks: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    @property
    def script(self) -> Path:
        """
        Return the copy of the program that runs.
        """
        return self.folder / "train.py"

    def begin(self) -> None:
        """
        Start the ranks.
        """
        self.folder.mkdir(parents=True)
        shutil.copy(self.program.path, self.script)
        shutil.copy(PROGRAMS / "job.py", self.folder)
        for rank in range(self.program.ranks):
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                self.ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(self.script)],
                        cwd=self.folder,
                        env=os.environ | self.environ(rank),
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )

    def environ(self, rank: int) -> dict[str, str]:
        """
        Return the variables of a rank.
        """
        size = str(self.program.ranks)
        host = {} if self.program.is_one_host else {"NCCL_HOSTID": str(rank)}
        return {
            "BACKEND": self.backend,
            "DISTDEBUG_DUMP_DIR": str(self.folder / "dumps"),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "NCCL_IB_DISABLE": "1",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_RAS_ADDR": f"127.0.0.1:{self.port + 1000}",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "RANK": str(rank),
            "WORLD_SIZE": size,
            **host,
            **self.program.environ,
        }

    def wait_until_ready(self) -> None:
        """
        Wait until all ranks have joined, and then for what is to happen.
        """
        deadline = time.monotonic() + _START_S
        ready = [self.folder / f"ready.{i}" for i in range(len(self.ranks))]
        while not all(path.exists() for path in ready):
            if time.monotonic() > deadline or self.has_ended():
                return
            time.sleep(0.2)
        time.sleep(_SETTLE_S)

    def has_ended(self) -> bool:
        """
        Return whether all ranks have ended.
        """
        return all(rank.poll() is not None for rank in self.ranks)

    def wait(self, seconds: float) -> None:
        """
        Wait until all ranks have ended, but not for ever.
        """
        deadline = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.2)

    def end(self) -> None:
        """
        Kill what is left.
        """
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait(60)


@attrs.frozen
class Check:
    """
    What was expected, and what was seen.
    """

    job: str
    name: str
    is_right: bool
    seen: str

    def __str__(self) -> str:
        mark = "right" if self.is_right else "WRONG"
        return f"{self.job:24} {self.name:12} {mark}  {self.seen}"


def run_job(
    program: Program, keep: Path, port: int, backend: str
) -> list[Check]:
    """
    Run a job, look at it while it runs, and at what it leaves.
    """
    job = Job(program, keep / program.path.stem, backend, port)
    checks = []
    try:
        job.begin()
        job.wait_until_ready()
        checks += [LIVE[name](job) for name in program.live]
        if not job.has_ended():
            checks.append(check_live(job))
        job.wait(_END_S if not program.is_alone else 0)
    finally:
        job.end()
    if not program.leaves_nothing:
        checks.append(check_after(job))
    return checks


def check_live(job: Job) -> Check:
    """
    Take a snapshot while the job runs, as somebody would on the node.
    """
    pattern = ("--pattern", re.escape(str(job.script)))
    took = call(
        *(job.folder, "snapshot", "--dump-dir", "dumps", *pattern, "snapshot")
    )
    (job.folder / "snapshot.txt").write_text(took.stdout + took.stderr)
    return check_verdict(job, "live", "snapshot")


def check_after(job: Job) -> Check:
    """
    Diagnose what the job has left: dumps and logs.
    """
    logs = (f"rank{i}.log" for i in range(len(job.ranks)))
    dumps = ["dumps"] if (job.folder / "dumps").exists() else []
    return check_verdict(job, "after", *dumps, *logs)


def check_verdict(job: Job, name: str, *paths: str) -> Check:
    """
    Diagnose files, and judge the verdict.
    """
    done = call(job.folder, "diagnose", "--json", *paths)
    (job.folder / f"{name}.json").write_text(done.stdout)
    if not done.stdout.startswith("{"):
        return Check(job.folder.name, name, False, done.stderr.strip())
    verdict = find_verdict(json.loads(done.stdout))
    expected = parse_expected(job.program.path.read_text())
    if not expected.ranks and job.backend == "nccl":
        # Ranks that share a GPU take turns, so that one is always late.
        causes = expected.causes | {"straggler"}
        expected = attrs.evolve(expected, causes=causes)
    wrong = judge(expected, verdict)
    seen = f"{verdict['cause']} {verdict['ranks']} {verdict['summary']}"
    what = f"[{', '.join(wrong)}] " if wrong else ""
    return Check(job.folder.name, name, not wrong, what + seen)


def look_by_pipe(job: Job) -> Check:
    """
    Ask for dumps, ours and those of torch.
    """
    done = call(job.folder, "dump", "--json", "dumps")
    (job.folder / "dump.json").write_text(done.stdout + done.stderr)
    for pipe in (job.folder / "dumps").glob("*_nccl_*.pipe"):
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"1")
        os.close(fd)
    deadline = time.monotonic() + _SETTLE_S
    own: list[str] = []
    while len(own) < len(job.ranks) and time.monotonic() < deadline:
        time.sleep(0.5)
        names = sorted(path.name for path in (job.folder / "dumps").iterdir())
        # Torch's own have no number.
        own = [x for x in names if re.fullmatch(r"\d+-\d+_rank_\d+", x)]
    is_right = done.returncode == 0 and (
        job.backend != "nccl" or len(own) == len(job.ranks)
    )
    return Check(job.folder.name, "pipe", is_right, " ".join(names))


def look_by_cuda_gdb(job: Job) -> Check:
    """
    Ask cuda-gdb which kernels run.
    """
    begin = time.monotonic()
    pattern = ("--pattern", re.escape(str(job.script)))
    done = call(
        *(job.folder, "stacks", "--cuda", "--json", *pattern),
        *("--output-dir", "stacks", "--timeout", "90"),
    )
    (job.folder / "stacks.json").write_text(done.stdout or done.stderr)
    seconds = time.monotonic() - begin
    logs = [
        path.read_text("utf-8", "replace") for path in job.folder.glob("*.log")
    ]
    pauses = [
        x for log in logs for x in re.findall(r"stood still for (\S+) s", log)
    ]
    seen = f"{seconds:.1f} s; pauses {' '.join(pauses)}"
    has_kernel = "spin_kernel" in done.stdout or job.backend != "nccl"
    return Check(job.folder.name, "cuda", has_kernel, seen)


def look_natively(job: Job) -> Check:
    """
    Take native stacks, as of threads that wait in CUDA or NCCL.
    """
    pattern = ("--pattern", re.escape(str(job.script)))
    done = call(
        *(job.folder, "stacks", "--all-native", "--json", *pattern),
        *("--output-dir", "native"),
    )
    (job.folder / "native.json").write_text(done.stdout or done.stderr)
    summaries = re.findall(r'"summary": "([^"]*)"', done.stdout)
    return Check(
        job.folder.name, "native", done.returncode < 2, "; ".join(summaries)
    )


def look_by_ras(job: Job) -> Check:
    """
    Ask NCCL's RAS for its status, as text and as JSON.
    """
    sizes = []
    for name, words in RAS.items():
        try:
            text = ask_ras(job.port + 1000, words)
        except OSError as exc:
            text = b""
            sizes.append(f"{name}: {exc}")
        (job.folder / name).write_bytes(text)
        sizes.append(f"{name}: {len(text)} bytes")
    done = call(job.folder, "diagnose", *RAS)
    (job.folder / "ras.verdict").write_text(done.stdout + done.stderr)
    lines = (done.stdout + done.stderr).strip().split("\n")
    is_read = done.returncode in {0, 1} or job.backend != "nccl"
    return Check(
        job.folder.name, "ras", is_read, "; ".join([*sizes, lines[0]])
    )


# What is sent, by the file that the answer goes to.
RAS = {
    "ras.txt": b"verbose status\n",
    "ras.json": b"client protocol 2\nset format json\nverbose status\n",
}


def ask_ras(port: int, words: bytes) -> bytes:
    """
    Return what NCCL's RAS answers.
    """
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(words)
        connection.settimeout(8)
        answer = b""
        with contextlib.suppress(TimeoutError):
            while part := connection.recv(1 << 16):
                answer += part
    return answer


def look_at_report(job: Job) -> Check:
    """
    Wait for the report of a watch within the job.
    """
    deadline = time.monotonic() + 40
    reports: list[Path] = []
    while not reports and time.monotonic() < deadline:
        time.sleep(0.5)
        reports = list((job.folder / "watched").rglob("REPORT.txt"))
    seen = reports[0].read_text().split("\n")[0] if reports else "no report"
    return Check(job.folder.name, "report", bool(reports), seen)


def look_at_kernel(job: Job) -> Check:
    """
    Ask for the health of the node, whose kernel log may have an Xid.
    """
    job.wait(30)
    log = subprocess.run(["dmesg"], capture_output=True, text=True)
    lines = [x for x in log.stdout.split("\n") if "NVRM" in x or "Xid" in x]
    (job.folder / "dmesg.txt").write_text("\n".join(lines) + log.stderr)
    done = call(job.folder, "health", "--json")
    (job.folder / "health.json").write_text(done.stdout or done.stderr)
    causes = re.findall(r'"summary": "([^"]*)"', done.stdout)
    return Check(
        job.folder.name, "kernel", done.returncode < 2, "; ".join(causes)
    )


LIVE: dict[str, Callable[[Job], Check]] = {
    "pipe": look_by_pipe,
    "native": look_natively,
    "cuda": look_by_cuda_gdb,
    "ras": look_by_ras,
    "report": look_at_report,
    "kernel": look_at_kernel,
}


STEPS = """
import os, sys, time
import torch, torch.distributed as dist
import distdebug
if sys.argv[1] != "plain":
    distdebug.enable_flight_recorder(timing=sys.argv[1] == "timing")
backend = os.environ["BACKEND"]
rank, device = int(os.environ["RANK"]), torch.device("cpu")
if backend == "nccl":
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
dist.init_process_group(backend)
small = torch.ones(16, device=device)
wait = torch.cuda.synchronize if backend == "nccl" else (lambda: None)
with distdebug.watch() if sys.argv[1] == "watch" else open(os.devnull) as watch:
    for _ in range(50):
        dist.all_reduce(small)
    wait()
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(200):
            dist.all_reduce(small)
        issued = time.perf_counter()
        wait()
        if rank == 0:
            print(1e6 * (issued - begin) / 200, flush=True)
dist.destroy_process_group()
"""


def measure_overhead(keep: Path, port: int, backend: str) -> list[Check]:
    """
    Measure what issuing a collective costs, in microseconds.
    """
    seen = []
    for i, mode in enumerate(("plain", "recorder", "timing", "watch")):
        folder = keep / "overhead" / mode
        folder.mkdir(parents=True)
        program = folder / "steps.py"
        program.write_text(STEPS)
        job = Job(
            Program(program, 1, {}, (), False, False, False),
            folder,
            backend,
            port + i,
        )
        environ = os.environ | job.environ(0)
        done = subprocess.run(
            [sys.executable, str(program), mode],
            capture_output=True,
            env=environ,
            cwd=folder,
            timeout=120,
        )
        (folder / "output.txt").write_bytes(done.stdout + done.stderr)
        times = [
            float(x)
            for x in re.findall(rb"^\d+\.\d+$", done.stdout, re.MULTILINE)
        ]
        least = f"{min(times):.1f}" if times else "failed"
        seen.append(f"{mode} {least}")
    is_right = not any("failed" in x for x in seen)
    return [Check("overhead", "us a call", is_right, ", ".join(seen))]


def has_gpu() -> bool:
    """
    Return whether torch is here, and can use a GPU.
    """
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def describe_machine() -> Iterator[str]:
    """
    Yield one line for each fact about GPU, driver, and tools.
    """
    import torch

    yield f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    if torch.cuda.is_available():
        version = ".".join(map(str, torch.cuda.nccl.version()))
        name = torch.cuda.get_device_name()
        yield f"{torch.cuda.device_count()} x {name}, NCCL {version}"
    for tool in ("nvidia-smi", "cuda-gdb", "py-spy", "gdb", "nsys", "ncclras"):
        yield f"{tool}: {shutil.which(tool) or 'not installed'}"


def record_machine(keep: Path) -> None:
    """
    Keep what the tools say of the node before any job runs.
    """
    keep.mkdir(parents=True, exist_ok=True)
    done = call(keep, "health", "--json")
    (keep / "health.json").write_text(done.stdout or done.stderr)
    if shutil.which("nvidia-smi"):
        argv = ["nvidia-smi", "-q"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        (keep / "nvidia-smi.txt").write_text(done.stdout)


def choose(options: argparse.Namespace) -> list[Program]:
    """
    Return the programs to run; print those that are not.
    """
    chosen = []
    for path in sorted(PROGRAMS.glob("*.py")):
        if path.stem == "job" or (
            options.names and path.stem not in options.names
        ):
            continue
        program = parse_program(path)
        if program.needs_gpu and options.backend != "nccl":
            print(f"{path.stem}: not run, as it needs NCCL")
        else:
            chosen.append(program)
    return chosen


def run_all(options: argparse.Namespace, keep: Path) -> Iterator[Check]:
    """
    Run everything, and yield what was seen.
    """
    programs = choose(options)
    together = [x for x in programs if not x.is_alone]
    ports = {x.path: _FIRST_PORT + 20 * i for i, x in enumerate(programs)}

    def run(program: Program) -> list[Check]:
        try:
            return run_job(program, keep, ports[program.path], options.backend)
        except Exception as exc:  # noqa: BLE001 the others go on
            return [Check(program.path.stem, "run", False, repr(exc))]

    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        for checks in pool.map(run, together):
            yield from checks
    for program in programs:
        if program.is_alone:
            yield from run(program)
    if not options.names:
        yield from measure_overhead(keep, _FIRST_PORT - 20, options.backend)


def pack(keep: Path) -> None:
    """
    Pack the evidence, without what is large.
    """

    def keep_small(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return (
            item
            if item.isdir() or (item.isfile() and item.size < 1 << 22)
            else None
        )

    with tarfile.open(keep / "evidence.tar.xz", "w:xz") as archive:
        archive.add(keep / "jobs", "jobs", filter=keep_small)


def main() -> int:
    """
    Print one line a check; the exit status says whether all are right.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    options = parser.parse_args()
    if options.backend == "nccl" and not has_gpu():
        print("not run: torch sees no GPU here; try --backend gloo")
        return 0
    keep = options.output_dir.absolute()
    keep.mkdir(parents=True, exist_ok=True)
    with (keep / "summary.txt").open("w") as summary:

        def show(line: object) -> None:
            print(str(line)[:300], flush=True)
            print(line, file=summary, flush=True)

        for fact in describe_machine():
            show(fact)
        record_machine(keep / "jobs")
        wrong = total = 0
        for check in run_all(options, keep / "jobs"):
            show(check)
            total += 1
            wrong += not check.is_right
        show(f"{total - wrong} of {total} right")
    pack(keep)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

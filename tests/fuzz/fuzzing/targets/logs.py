"""
Logs of jobs.
"""

from __future__ import annotations

from distdebug.diagnosis.log_evidence import read_logs
from distdebug.diagnosis.order import diagnose_logs
from distdebug.logs import (
    collective_findings,
    detect_phase,
    rank_origins,
    read_collective_logs,
    scan_logs,
)
from distdebug.logs.lines import parse_line, parse_time, read_tail
from distdebug.logs.phases.progress_bars import parse_bars, parse_number
from distdebug.nsight import raylet_findings

from ..places import file_of, folder_of
from ..target import HERE, target


_SAMPLES = HERE.parent / "data"


def _failures() -> list[bytes]:
    whole = (_SAMPLES / "logscan_failures.txt").read_bytes()
    return [x[: 1 << 12] for x in whole.split(b"\n\n")[:60]]


def _drivers() -> list[bytes]:
    files = sorted(_SAMPLES.glob("ray_sessions/*/*/driver.log"))
    return [x.read_bytes()[: 1 << 12] for x in files]


def _watchdogs() -> list[bytes]:
    files = sorted((HERE / "seeds" / "collectives").iterdir())
    return [x.read_bytes() for x in files]


# The first 2,000 tracebacks of a kind are read, however small the file is.
@target(seeds=_failures, seconds=8)
def log_scan(data: bytes) -> object:
    """
    Whatever went wrong, by rules.
    """
    report = scan_logs(file_of(data, "job.log"), threads=1)
    return report, report.findings, report.groups, report.tracebacks


@target(OSError, ValueError)
def log_packed(data: bytes) -> object:
    """
    Logs that were packed, in any of three ways.
    """
    files = [file_of(data, f"job.log{x}") for x in (".gz", ".bz2", ".xz")]
    report = scan_logs(files, threads=1)
    for file in files:
        try:
            read_tail(file, 1000)
        except (OSError, ValueError):
            continue
    return report


@target()
def collectives(data: bytes) -> object:
    """
    Lines of watchdogs, of NCCL, of Gloo, and of the store.
    """
    logs = read_collective_logs(file_of(data, "rank0.log"))
    again = read_collective_logs(file_of(data, "rank1.log"), world_size=8)
    return (
        logs,
        collective_findings(logs),
        collective_findings(again),
        rank_origins(logs),
    )


@target()
def collectives_folder(data: bytes) -> object:
    """
    The same of several ranks.
    """
    logs = read_collective_logs(folder_of(data, "launch"))
    return logs, collective_findings(logs)


@target(seeds=_drivers)
def phase(data: bytes) -> object:
    """
    How far a start-up came.
    """
    report = detect_phase(file_of(data, "driver.log"), now=1.8e9)
    return report, report.findings, report.missing


@target()
def bars(data: bytes) -> object:
    """
    Bars that tell of progress, and numbers in them.
    """
    text = data.decode("utf-8", "replace")
    found = [x for line in text.split("\n") for x in parse_bars(line)]
    for word in text.split()[:200]:
        try:
            parse_number(word[:40])
        except ValueError:
            continue
    return len(found)


@target()
def line(data: bytes) -> object:
    """
    Who printed a line, and when.
    """
    lines = data.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    parse_time(lines[0], now=1.8e9)
    return [parse_line(x).text for x in lines[:50]]


@target(ValueError, seeds=_drivers)
def raylet_log(data: bytes) -> object:
    """
    Whether nsys started the wrong Python.
    """
    return raylet_findings(file_of(data, "raylet.err"))


@target(
    seeds=lambda: [*_drivers(), *_watchdogs(), *_failures()[:9]], seconds=8
)
def diagnosis_logs(data: bytes) -> object:
    """
    All that logs tell, put in one order.
    """
    found = read_logs([file_of(data, "logs/rank0.log")])
    return diagnose_logs(found), found.missing

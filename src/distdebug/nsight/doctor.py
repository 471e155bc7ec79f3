"""
Will nsys be able to profile workers on this node?
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import psutil

from .._io import is_file, matching, resolved
from .._render import Block, Shown
from .._text import clean
from ..capture import Check, check_blocks, run_tool
from ..findings import Cause, Evidence, Finding, Missing, finding_entries
from ..logs import LogLine, read_lines, walk_logs
from .patch import all_processes, ray_nsight_status


_TIMEOUT_S = 10.0
_VERSION = re.compile(r"\b(20\d\d\.\d{1,3}(?:\.\d{1,5}){0,3})")
# One line of the help names one switch: "-t, --trace=".
_SWITCH = re.compile(
    r"\s{0,16}(?:-(?P<short>\w), )?--(?P<long>[a-z][a-z0-9-]{0,60})"
    r"(?P<either>\[\w{1,20}\|\w{1,20}\])?(?:[=\[ <].{0,200})?"
)


def find_nsys(nsys: str = "nsys") -> str | None:
    """
    Where is nsys?

    Args:
        nsys: Its name, or a path.

    Returns:
        Its path; ``None`` if it is not installed here.
    """
    return shutil.which(nsys)


def nsys_version(path: str, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """
    Which version of nsys is this?

    Args:
        path: Where it is.

        timeout_s: How long it may take to answer, in seconds.

    Returns:
        Such as ``"2022.4.2.1"``; ``None`` if it does not tell.
    """
    match = _VERSION.search(_answer(path, "--version", timeout_s=timeout_s))
    return match[1] if match else None


def known_switches(
    path: str, *, timeout_s: float = _TIMEOUT_S
) -> Mapping[str, str]:
    """
    Which options does ``nsys profile`` have, and what does it say of them?

    Args:
        path: Where nsys is.

        timeout_s: How long it may take to answer, in seconds.

    Returns:
        As `read_switches`; nothing if it does not answer.
    """
    try:
        changed = Path(path).stat().st_mtime_ns
    except OSError:
        return {}

    return _known(path, changed, timeout_s)


@functools.lru_cache(8)
def _known(path: str, _changed: int, timeout_s: float) -> Mapping[str, str]:
    text = _answer(path, "profile", "--help", timeout_s=timeout_s)
    return read_switches(text)


def read_switches(text: str) -> dict[str, str]:
    """
    Read what ``nsys profile --help`` prints.

    Args:
        text: The output.

    Returns:
        For each name of an option, short and long, without dashes, what is
        said about it.
    """
    found: dict[str, str] = {}
    names: list[str] = []
    about: list[str] = []
    for line in [*text.splitlines(), "--end"]:
        match = _SWITCH.fullmatch(line.rstrip())
        if match is None:
            about.append(line.strip())
            continue
        found.update(dict.fromkeys(names, " ".join(about).strip()))
        names, about = _names(match), []
    return found


def _names(match: re.Match[str]) -> list[str]:
    short, long, either = match["short"], match["long"], match["either"]
    if either:
        return [long + end for end in either[1:-1].split("|")]
    return [name for name in (short, long) if name]


def _answer(*argv: str, timeout_s: float) -> str:
    try:
        answer = run_tool(argv, timeout_s=timeout_s)
    except OSError:
        return ""
    # Some versions print their help to the standard error.
    return answer.output or answer.complaint


_AGENT = "--start-agent"
# "--session-name=profile-python-8173": the last number is that of the command
# which started the agent, unless the user named the session.
_SESSION = re.compile(r"--session-name=.{0,400}-([0-9]{1,7})")


def find_orphans() -> tuple[int, ...]:
    """
    Which agents of nsys have nobody left whom they serve?

    Returns:
        Their numbers, as far as we may see.
    """
    agents: dict[int, list[str]] = {}
    commands = set()
    for process in all_processes():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if not words or words[0].rpartition("/")[2] != "nsys":
                continue
            if _AGENT in words:
                agents[process.pid] = words
            else:
                commands.add(process.pid)
    return tuple(
        sorted(
            p for p, words in agents.items() if not _served(words, commands)
        )
    )


def _served(words: list[str], commands: set[int]) -> bool:
    matches = filter(None, map(_SESSION.fullmatch, words))
    numbers = {int(match[1]) for match in matches}
    return bool(numbers & commands) if numbers else bool(commands)


_NOT_FOUND = re.compile(r"Program not found: python[0-9.]{0,5}\s*$")
_NO_RAY = re.compile(r"ModuleNotFoundError: No module named '?ray\b")
_LATE = re.compile(r"have not registered within the timeout")
_FILE = re.compile(r"raylet\.(?:err|out)(?:\.[0-9]{1,4})?(?:\.(?:gz|bz2|xz))?")
_NSYS = re.compile(r"\.(?:nsys-rep|qdstrm)\b|\bnsys profile\b")
_REMEDY = (
    "run 'distdebug nsight patch' on every node before 'ray start', or let "
    'the worker start by nsight_runtime_env(mode="py_executable")'
)


def nsight_log_findings(
    *sources: str | os.PathLike[str] | Iterable[str],
) -> tuple[Finding, ...]:
    """
    Do logs of raylets show that nsys started the wrong Python?

    Args:
        sources: Files, or lines, of ``raylet.err`` and ``raylet.out`` of one
            node.

    Returns:
        A finding with the cause ``nsight_wrong_python``, or nothing.  A
        worker without Ray is one only if nsys was seen to start it.

    Raises:
        OSError: A file cannot be read.

        ValueError: It is no ordinary file, or damaged.
    """
    return _find(chain.from_iterable(map(read_lines, sources)))


def raylet_findings(
    *places: str | os.PathLike[str],
) -> tuple[tuple[Finding, ...], tuple[Missing, ...]]:
    """
    On which nodes did nsys start the wrong Python?

    Args:
        places: Folders, such as a session of Ray, or the logs of several
            nodes; or files ``raylet.err`` and ``raylet.out``, best both.

    Returns:
        At most one finding for each folder of logs, and what could not be
        read, or not to its end.
    """
    logs: dict[Path, list[Path]] = defaultdict(list)
    walk = walk_logs([Path(place).absolute() for place in places])
    for path in walk:
        if _FILE.fullmatch(path.name):
            logs[path.parent].append(path)
    missing = walk.missing
    found = [
        finding
        for files in logs.values()
        for finding in _find(_readable(files, missing))
    ]
    return tuple(found), tuple(missing)


def _readable(
    files: Iterable[Path], missing: list[Missing]
) -> Iterator[LogLine]:
    """
    The lines of those that can be read; the others are added to *missing*.
    """
    for path in files:
        try:
            yield from read_lines(path)
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(path, exc))


def _find(lines: Iterable[LogLine]) -> tuple[Finding, ...]:
    rules = {"lost": _NOT_FOUND, "no ray": _NO_RAY, "late": _LATE}
    first: dict[str, LogLine] = {}
    is_nsys = False
    for line in lines:
        is_nsys = is_nsys or bool(_NSYS.search(line.text))
        for name, rule in rules.items():
            if name not in first and rule.search(line.text):
                first[name] = line
    if "lost" in first:
        what = "there is no 'python' on the PATH of the raylet"
    elif "no ray" in first and is_nsys:
        what = "the 'python' on the PATH of the raylet is one without Ray"
    else:
        return ()

    finding = Finding(
        cause=Cause.NSIGHT_WRONG_PYTHON,
        ranks=(),
        summary=f"workers do not start under nsys: {what}, and Ray's nsight "
        "plugin takes it in place of the worker's own",
        confidence="certain" if "late" in first else "likely",
        remedy=_REMEDY,
        evidence=tuple(_evidence(line) for line in first.values()),
    )
    return (finding,)


def _evidence(line: LogLine) -> Evidence:
    return Evidence(
        kind="log",
        source=line.source,
        location=f"line {line.number}",
        quote=clean(line.text),
    )


_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_IMPORTER = "QdstrmImporter"
# Where Debian puts it, which is not where nsys looks.
_DEBIAN = Path("/usr/lib/nsight-systems")
_MIB = 1 << 20


@attrs.frozen(kw_only=True)
class NsysHealth(Shown):
    """
    What was checked.

    Attributes:
        checks: Every check, with what to do where something is not as it
            should be.

        findings: What is wrong, most important first.
    """

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def is_ready(self) -> bool:
        """
        Whether nothing is in the way.
        """
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "ready": self.is_ready,
            "checks": self.to_records(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def _blocks_(self) -> Iterable[Block]:
        # What is a problem is told as a finding, with its remedy.
        yield from check_blocks(
            [
                attrs.evolve(c, remedy="") if c.ok is False else c
                for c in self.checks
            ]
        )
        yield finding_entries(self.findings, len(self.findings))


def check_nsys(
    *,
    nsys: str = "nsys",
    ray: str | os.PathLike[str] | None = None,
    raylet_logs: Iterable[str | os.PathLike[str]] = (),
) -> NsysHealth:
    """
    Can workers on this node be profiled, and does anything waste space?

    Args:
        nsys: The name of nsys, or its path.

        ray: Where Ray is; see `ray_nsight_status`.

        raylet_logs: Sessions of Ray, or other folders with the logs of
            raylets, in which to look for workers that did not start.

    Returns:
        Every check, and what is wrong; a log that cannot be read is a check
        that could not be made.
    """
    path = find_nsys(nsys)
    found, unread = raylet_findings(*raylet_logs)
    checks = (
        _check_nsys(path),
        *([_check_importer(path)] if path else []),
        _check_sampling(),
        _check_twins(),
        _check_orphans(),
        _check_plugin(ray),
        *map(_unread, unread),
    )
    wrong = (_finding(check) for check in checks if check.ok is False)
    return NsysHealth(checks=checks, findings=(*found, *wrong))


def _unread(log: Missing) -> Check:
    return Check(
        f"logs in {clean(log.source or '', limit=200)}",
        ok=None,
        detail=f"cannot be read: {log.reason}",
        remedy="read them as their owner, or copy them",
    )


def _finding(check: Check) -> Finding:
    return Finding(
        cause=Cause.NODE_MISCONFIGURED,
        ranks=(),
        summary=f"nsys cannot profile workers well on this node: {check.name} "
        f"{check.detail}",
        confidence="certain",
        remedy=check.remedy or None,
        evidence=(
            Evidence(kind="node", source=check.name, quote=check.detail),
        ),
    )


def _check_nsys(path: str | None) -> Check:
    if path is None:
        remedy = "install Nsight Systems, and put it on the PATH of the raylet"
        return Check("nsys", ok=False, detail="is not on PATH", remedy=remedy)

    version = nsys_version(path)
    detail = f"{version or 'does not tell its version'}, {path}"
    return Check("nsys", ok=True if version else None, detail=detail)


def _check_importer(path: str) -> Check:
    target = resolved(Path(path)).parent
    host = target.with_name(target.name.replace("target", "host"))
    if is_file(host / _IMPORTER) or is_file(target / _IMPORTER):
        return Check("importer", ok=True, detail=str(host / _IMPORTER))

    debian = _DEBIAN / host.name
    remedy = "install the package of Nsight Systems for hosts as well"
    if is_file(debian / _IMPORTER):
        remedy = f"ln -s {debian} {host}"
    detail = f"is not at {host}: reports stay raw (.qdstrm)"
    return Check("importer", ok=False, detail=detail, remedy=remedy)


def _check_sampling() -> Check:
    try:
        level = int(_PARANOID.read_text("ascii"))
    except (OSError, ValueError):
        detail = "the kernel does not tell"
        return Check("CPU sampling", ok=None, detail=detail)

    if level <= 2:
        detail = f"allowed (perf_event_paranoid is {level})"
        return Check("CPU sampling", ok=True, detail=detail)
    return Check(
        "CPU sampling",
        ok=None,
        detail=f"not allowed (perf_event_paranoid is {level})",
        remedy="keep sample=none, as is the default here; nsys may hang "
        "otherwise",
    )


def _check_twins() -> Check:
    count = size = 0
    folder = Path(tempfile.gettempdir())
    for pattern in ("nsys-report-*.nsys-rep", "nsys-report-*.qdstrm"):
        for file in matching(folder, pattern):
            with suppress(OSError):
                size += file.lstat().st_size
                count += 1
    if not count:
        return Check("temporary files", ok=True, detail=f"none in {folder}")

    return Check(
        "temporary files",
        ok=None,
        detail=f"{count} of {size / _MIB:.1f} MiB in {folder}",
        remedy=f"once no profile is running: rm {folder}/nsys-report-*",
    )


def _check_orphans() -> Check:
    pids = find_orphans()
    if not pids:
        return Check("orphaned agents", ok=True, detail="none")

    numbers = " ".join(map(str, pids))
    return Check(
        "orphaned agents",
        ok=False,
        detail=f"of nsys run without what they served: {numbers}",
        remedy=f"kill {numbers}",
    )


def _check_plugin(ray: str | os.PathLike[str] | None) -> Check:
    status = ray_nsight_status(ray)
    detail = str(status).splitlines()[0].partition("plugin ")[2]
    needs_nothing = status.is_fine or status.state == "absent"
    return Check(
        "Ray's nsight plugin",
        # One can do without it, by the other way of starting workers.
        ok=True if needs_nothing else None,
        detail=f"{detail} ({status.path})" if status.path else detail,
        remedy="" if needs_nothing else status.remedy or "",
    )

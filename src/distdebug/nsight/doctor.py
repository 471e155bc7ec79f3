"""
Check that nsys can profile workers on this node.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import psutil

from .._io import is_file, matching, resolved
from .._proc import run_child
from .._render import Block, Shown
from .._text import clean, reason_of
from ..capture import Check, Checklist, check_blocks
from ..causes import Cause
from ..findings import Evidence, Finding, Missing, finding_entries
from ..logs import READ_ERRORS, LogLine, LogWalk, find_lines, parse_line
from .patch import list_node_processes, ray_nsight_status


_TIMEOUT_S = 10.0
_VERSION = re.compile(r"\b(20\d\d\.\d{1,3}(?:\.\d{1,5}){0,3})")
# One line of the help names one option: "-t, --trace=".
_OPTION_LINE = re.compile(
    r"\s{0,16}(?:-(?P<short>\w), )?--(?P<long>[a-z][a-z0-9-]{0,60})"
    r"(?P<either>\[\w{1,20}\|\w{1,20}\])?(?:[=\[ <].{0,200})?"
)


def nsys_version(path: str) -> str | None:
    """
    Return the version of nsys, such as ``"2022.4.2.1"``; ``None`` if unknown.
    """
    output, _ = run_nsys([path, "--version"], timeout_s=_TIMEOUT_S)
    match = _VERSION.search(output)
    return match[1] if match else None


def supported_options(
    path: str, *, timeout_s: float = _TIMEOUT_S
) -> Mapping[str, str]:
    """
    Return the options of ``nsys profile`` with their help texts.

    Args:
        path: The path of nsys.

        timeout_s: Limit in seconds.

    Returns:
        As `parse_help_options`; empty if nsys does not answer.
    """
    # What did not answer is asked again: exceptions are not kept.
    with suppress(OSError):
        return _read_options(path, Path(path).stat().st_mtime_ns, timeout_s)
    return {}


@functools.lru_cache(8)
def _read_options(
    path: str, _mtime_ns: int, timeout_s: float
) -> Mapping[str, str]:
    text, _ = run_nsys([path, "profile", "--help"], timeout_s=timeout_s)
    if options := parse_help_options(text):
        return options
    msg = "it does not print its options"
    raise OSError(msg)


def parse_help_options(text: str) -> dict[str, str]:
    """
    Parse the output of ``nsys profile --help``.

    Returns:
        The help text for each option name, short and long, without dashes.
    """
    options: dict[str, str] = {}
    names: list[str] = []
    help_lines: list[str] = []
    for line in [*text.splitlines(), "--end"]:
        match = _OPTION_LINE.fullmatch(line.rstrip())
        if match is None:
            help_lines.append(line.strip())
            continue
        options.update(dict.fromkeys(names, " ".join(help_lines).strip()))
        names, help_lines = _option_names(match), []
    return options


def _option_names(match: re.Match[str]) -> list[str]:
    short, long, alternatives = match["short"], match["long"], match["either"]
    if alternatives:
        return [long + suffix for suffix in alternatives[1:-1].split("|")]
    return [name for name in (short, long) if name]


def run_nsys(
    argv: Sequence[str], *, timeout_s: float, folder: Path | None = None
) -> tuple[str, str]:
    """
    Run nsys; nothing of it runs on afterwards.

    Args:
        timeout_s: Limit in seconds.

        folder: The working folder, also for temporary files.

    Returns:
        What it printed, also to standard error; and why it failed, or ``""``.
    """
    places = {"TMPDIR": str(folder)} if folder else {}
    try:
        status, *printed = run_child(
            argv,
            timeout_s=timeout_s,
            environment={**os.environ, **places},
            folder=folder,
            kill_rest=True,
        )
    except OSError as exc:
        return "", reason_of(exc)
    if status is None:
        return "", "nsys was not done in time"

    output = b"\n".join(printed).decode("utf-8", "replace")
    said = [x for x in output.splitlines() if x.strip()] or ["it said nothing"]
    problem = f"nsys ended with status {status}: {clean(said[-1])}"
    return output, problem if status else ""


_AGENT_FLAG = "--start-agent"
# "--session-name=profile-python-8173": the last number is the process ID of
# the command that started the agent, unless the user named the session.
_SESSION_FLAG = re.compile(r"--session-name=.{0,400}-([0-9]{1,7})")


def find_orphaned_agents() -> tuple[int, ...]:
    """
    Return the process IDs of nsys agents whose nsys command has ended.
    """
    nsys: dict[int, list[str]] = {}
    for process in list_node_processes():
        with suppress(psutil.Error, OSError):
            argv = process.cmdline()
            if argv and argv[0].rpartition("/")[2] == "nsys":
                nsys[process.pid] = argv
    agents = {
        pid: {int(x[1]) for x in map(_SESSION_FLAG.fullmatch, argv) if x}
        for pid, argv in nsys.items()
        if _AGENT_FLAG in argv
    }
    commands = nsys.keys() - agents
    orphans = (
        pid
        for pid, started_by in agents.items()
        if not started_by & commands and (started_by or not commands)
    )
    return tuple(sorted(orphans))


_LOG_LINES = {
    "lost": re.compile(r"Program not found: python[0-9.]{0,5}\s*$"),
    "no ray": re.compile(r"ModuleNotFoundError: No module named '?ray\b"),
    "late": re.compile(r"have not registered within the timeout"),
}
_RAYLET_LOG = re.compile(
    r"raylet\.(?:err|out)(?:\.[0-9]{1,4})?(?:\.(?:gz|bz2|xz))?"
)
_NSYS_TEXT = re.compile(r"\.(?:nsys-rep|qdstrm)\b|\bnsys profile\b")
_LOG_WORDS = (
    *(b"Program not found: python", b"No module named", b"nsys profile"),
    *(b"not registered within the timeout", b".nsys-rep", b".qdstrm"),
)
_REMEDY = (
    "run 'distdebug nsight patch' on every node before 'ray start', or let "
    'the worker start by nsight_runtime_env(mode="py_executable")'
)


def raylet_findings(
    *places: str | os.PathLike[str],
) -> tuple[tuple[Finding, ...], tuple[Missing, ...]]:
    """
    Return findings about nodes on which nsys started the wrong Python.

    Args:
        places: Folders, such as a session of Ray, or the logs of several
            nodes; or files ``raylet.err`` and ``raylet.out``, best both.

    Returns:
        At most one finding per folder of logs, and the files that could not
        be read completely.
    """
    logs: dict[Path, list[Path]] = defaultdict(list)
    walk = LogWalk([Path(place).absolute() for place in places])
    for path in walk:
        if _RAYLET_LOG.fullmatch(path.name):
            logs[path.parent].append(path)
    missing = walk.missing
    findings = [
        finding
        for files in logs.values()
        for finding in _find_wrong_python(_read_files(files, missing))
    ]
    return tuple(findings), tuple(missing)


def _read_files(
    files: Iterable[Path], missing: list[Missing]
) -> Iterator[LogLine]:
    """
    Yield the lines that may matter; add unreadable files to *missing*.
    """
    for path in files:
        try:
            for number, line in find_lines(path, _LOG_WORDS):
                text = line.decode("utf-8", "replace")
                yield parse_line(text, number, str(path))
        except READ_ERRORS as exc:
            missing.append(Missing.log(path, exc))


def _find_wrong_python(lines: Iterable[LogLine]) -> tuple[Finding, ...]:
    first: dict[str, LogLine] = {}
    is_nsys = False
    for line in lines:
        is_nsys = is_nsys or bool(_NSYS_TEXT.search(line.text))
        for name, pattern in _LOG_LINES.items():
            if name not in first and pattern.search(line.text):
                first[name] = line
    if "lost" in first:
        problem = "there is no 'python' on the PATH of the raylet"
    elif "no ray" in first and is_nsys:
        problem = "the 'python' on the PATH of the raylet is one without Ray"
    else:
        return ()

    finding = Finding(
        cause=Cause.NSIGHT_WRONG_PYTHON,
        ranks=(),
        summary=f"workers do not start under nsys: {problem}, and Ray's nsight "
        "plugin takes it in place of the worker's own",
        confidence="certain" if "late" in first else "likely",
        remedy=_REMEDY,
        evidence=tuple(map(_line_evidence, first.values())),
    )
    return (finding,)


def _line_evidence(line: LogLine) -> Evidence:
    return Evidence(
        kind="log",
        source=line.source,
        location=f"line {line.number}",
        quote=clean(line.text),
    )


_PERF_EVENT_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_IMPORTER = "QdstrmImporter"
# Debian installs the importer here, where nsys does not find it.
_DEBIAN_FOLDER = Path("/usr/lib/nsight-systems")
_MIB = 1 << 20


@attrs.frozen(kw_only=True)
class NsysHealth(Checklist, Shown):
    """
    The results of `check_nsys`.

    Attributes:
        checks: All checks, with remedies.

        findings: What is wrong, most important first.
    """

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def is_ready(self) -> bool:
        """
        Return whether there are no findings.
        """
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {
            "ready": self.is_ready,
            "checks": self.to_records(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def _blocks_(self) -> Iterable[Block]:
        # Failed checks are shown as findings, with their remedy.
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
    Check that nsys can profile workers on this node.

    Temporary files and orphaned agents of nsys are checked, too.

    Args:
        nsys: The name or path of nsys.

        ray: The installation of Ray; see `ray_nsight_status`.

        raylet_logs: Sessions of Ray, or other folders with logs of raylets;
            they show workers that did not start.

    Returns:
        All checks and findings; an unreadable log is a check without a
        result.
    """
    path = shutil.which(nsys)
    log_findings, unreadable = raylet_findings(*raylet_logs)
    results: list[tuple[str, _Result]] = [("nsys", _check_nsys(path))]
    if path is not None:
        results.append(("importer", _check_importer(path)))
    results += [
        ("CPU sampling", _check_sampling()),
        ("temporary files", _check_temporary_files()),
        ("orphaned agents", _check_orphaned_agents()),
        ("Ray's nsight plugin", _check_plugin(ray)),
    ]
    for log in unreadable:
        name = f"logs in {clean(log.source or '', limit=200)}"
        remedy = "read them as their owner, or copy them"
        results.append((name, (None, f"cannot be read: {log.reason}", remedy)))
    checks = tuple(Check(name, *result) for name, result in results)
    failed = (_check_finding(check) for check in checks if check.ok is False)
    return NsysHealth(checks=checks, findings=(*log_findings, *failed))


def _check_finding(check: Check) -> Finding:
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


# ``ok``, ``detail``, and ``remedy`` of a check.
_Result = tuple[bool | None, str, str]


def _check_nsys(path: str | None) -> _Result:
    if path is None:
        remedy = "install Nsight Systems, and put it on the PATH of the raylet"
        return False, "is not on PATH", remedy

    version = nsys_version(path)
    detail = f"{version or 'does not report its version'}, {path}"
    return True if version else None, detail, ""


def _check_importer(path: str) -> _Result:
    target = resolved(Path(path)).parent
    host = target.with_name(target.name.replace("target", "host"))
    if is_file(host / _IMPORTER) or is_file(target / _IMPORTER):
        return True, str(host / _IMPORTER), ""

    debian = _DEBIAN_FOLDER / host.name
    remedy = "install the package of Nsight Systems for hosts as well"
    if is_file(debian / _IMPORTER):
        remedy = f"ln -s {debian} {host}"
    return False, f"is not at {host}: reports stay raw (.qdstrm)", remedy


def _check_sampling() -> _Result:
    try:
        level = int(_PERF_EVENT_PARANOID.read_text("ascii"))
    except (OSError, ValueError):
        return None, "the kernel does not say", ""

    detail = f"allowed (perf_event_paranoid is {level})"
    if level <= 2:
        return True, detail, ""
    remedy = (
        "keep sample=none, as is the default here; nsys may hang otherwise"
    )
    return None, f"not {detail}", remedy


def _check_temporary_files() -> _Result:
    folder, sizes = Path(tempfile.gettempdir()), []
    for suffix in ("nsys-rep", "qdstrm"):
        for file in matching(folder, f"nsys-report-*.{suffix}"):
            with suppress(OSError):
                sizes.append(file.lstat().st_size)
    if not sizes:
        return True, f"none in {folder}", ""

    detail = f"{len(sizes)} of {sum(sizes) / _MIB:.1f} MiB in {folder}"
    remedy = f"once no profile is running: rm {folder}/nsys-report-*"
    return None, detail, remedy


def _check_orphaned_agents() -> _Result:
    numbers = " ".join(map(str, find_orphaned_agents()))
    if not numbers:
        return True, "none", ""
    detail = f"of nsys run without what they served: {numbers}"
    return False, detail, f"kill {numbers}"


def _check_plugin(ray: str | os.PathLike[str] | None) -> _Result:
    status = ray_nsight_status(ray)
    detail = status.meaning + (f" ({status.path})" if status.path else "")
    # The plugin is optional: mode="py_executable" works without it.
    if status.is_fine or status.state == "absent":
        return True, detail, ""
    return None, detail, status.remedy or ""

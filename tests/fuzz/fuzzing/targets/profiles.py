"""
What nsys prints and writes.
"""

from __future__ import annotations

from distdebug.nsight import find_nsys_reports, reports
from distdebug.nsight.doctor import parse_help_options
from distdebug.nsight.patch import classify_source, patch_source
from distdebug.nsight.reports import join_workers

from ..places import file_of, folder_of
from ..target import HERE, target


@target()
def nsys_csv(data: bytes) -> object:
    """
    A table of ``nsys stats``.
    """
    rows = reports._read_rows([file_of(data, "out_nvtx_sum.csv")])
    return reports.ReportSummary(path="report", ranges=rows)


@target()
def nsys_help(data: bytes) -> object:
    """
    What nsys tells of its own options and tables.
    """
    text = data.decode("utf-8", "replace")
    parse_help_options(text)
    return len(reports._select_tables(text))


@target()
def nsys_reports(data: bytes) -> object:
    """
    Names of reports, in a folder, with logs of workers.
    """
    folder = folder_of(data, "nsys")
    for name in data.decode("utf-8", "replace").split("\n")[:50]:
        reports._parse_report_name(name[:1000])
    reports._worker_logs(folder, 4711, {})
    found = find_nsys_reports(folder)
    workers = [{"host": "h", "pid": 4711, "rank": 3, "logs": ["x"]}]
    return found, join_workers(found.reports, workers)


def _plugins() -> list[bytes]:
    folder = HERE.parent / "data" / "ray_nsight"
    return [x.read_bytes() for x in sorted(folder.glob("*.txt"))]


@target(SyntaxError, ValueError, seeds=_plugins, mebibytes=800)
def nsight_plugin(data: bytes) -> object:
    """
    The source of Ray's plugin, as some version has it.
    """
    state = classify_source(data)
    patch_source(data)
    return str(state)

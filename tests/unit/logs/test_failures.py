"""
Logs of jobs that failed, in the words of many frameworks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.logs import scan_logs


DATA = Path(__file__).parents[2] / "data"


def parse(line):
    """
    A cause, and the lines of a log that report it.
    """
    cause, _, text = line.partition("|")
    return Cause(cause), text.replace("\\n", "\n")


# A name, a cause, and a text in each line.
FAILURES = {
    name: parse(line)
    for name, _, line in (
        line.partition("|")
        for line in (DATA / "logscan_failures_by_name.txt")
        .read_text("utf-8")
        .splitlines()
    )
}
# More of them, which have no names.
MORE = (DATA / "logscan_failures.txt").read_text("utf-8").splitlines()
ALL = {**FAILURES, **{str(n): parse(x) for n, x in enumerate(MORE, start=1)}}
LAUNCHERS = {
    "alone": ("", "\n"),
    "ray": ("\x1b[36m(Trainer pid=7, ip=10.0.0.2)\x1b[0m ", "\n"),
    "torchrun": ("[default3]:[rank11]: ", "\r\n"),
}
EXCEPTIONS = [
    name
    for name, (_, text) in FAILURES.items()
    if text.partition(" ")[0].endswith("Error:") and "\n" not in text
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", ALL)
def test_failure(tmp_path, name, launcher):
    """
    A line that reports a failure is found, and taken for what it is, also
    behind the prefixes and colors of launchers.
    """
    cause, text = ALL[name]
    head, newline = LAUNCHERS[launcher]
    lines = ["step 1 ok", *(head + x for x in text.split("\n")), "bye", ""]
    (tmp_path / "job.log").write_bytes(newline.join(lines).encode())

    report = scan_logs(tmp_path)

    assert [cause] == [x.cause for x in report.findings][:1], report


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_in_traceback(tmp_path, name):
    """
    At the end of a traceback it is found once, with its place.
    """
    cause, text = FAILURES[name]
    (tmp_path / "rank_3.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 17, in main\n'
        f"    step()\n{text}\n"
    )

    (finding,) = scan_logs(tmp_path).findings

    assert (cause, (3,)) == (finding.cause, finding.ranks)
    assert "main (train.py:17)" == finding.location.brief

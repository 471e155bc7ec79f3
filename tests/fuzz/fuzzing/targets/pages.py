"""
The page that shows a diagnosis, whatever texts are in it.
"""

from __future__ import annotations

import re

from html.parser import HTMLParser
from itertools import cycle, islice
from unittest.mock import patch

from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs
from distdebug.diagnosis.log_evidence import read_logs
from distdebug.diagnosis.order import diagnose_logs
from distdebug.findings import (
    CollectiveRef,
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Location,
    Missing,
)
from distdebug.report import page as pages
from distdebug.report import report_html
from distdebug.stacks import read_stack_files

from ..places import file_of
from ..target import HERE, target


_SAMPLES = HERE.parent / "data"
_EVIL = b"</script><img src=x onerror=a>\x1b[31m&\"'"


def _seeds() -> list[bytes]:
    stacks = sorted((_SAMPLES / "stacks").glob("pyspy*.txt"))[:3]
    logs = (_SAMPLES / "logscan_failures.txt").read_bytes()[: 1 << 12]
    return [b"a\n@@@\nb", _EVIL, logs, *(x.read_bytes() for x in stacks)]


class _Tags(HTMLParser):
    """
    Which tags and attributes does a browser see?
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[str] = set()

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        """
        Remember what is dangerous if a text becomes it.
        """
        self.kinds.add(tag)
        self.kinds |= {name for name, _ in attrs if name.startswith("on")}
        self.kinds |= {
            f"{name}={value}"
            for name, value in attrs
            if name in {"href", "src", "action", "style", "srcdoc"}
            and not (value or "").startswith(("#", "min-width: "))
        }


def _diagnosis(texts: list[str], seen: DiagnosisInputs) -> Diagnosis:
    """
    One in which every text is somebody else's.
    """
    a, b, c, d = islice(cycle(texts), 4)
    quote = Evidence(kind=a, source=b, location=c, quote=d)
    finding = Finding(
        cause=Cause.IO_WAIT,
        ranks=(1, 2),
        summary=a,
        remedy=b,
        group=GroupRef(name=c, desc=d, ranks=(0, 1)),
        collective=CollectiveRef(op=a, seq=1),
        location=Location(function=b, file=c, line=1),
        evidence=(quote,),
    )
    group = GroupProgress(
        name=a,
        desc=b,
        ranks=(0, 1),
        last_completed=1,
        furthest=2,
        waiting=(0,),
        absent=(1,),
    )
    return Diagnosis(
        verdict=finding,
        findings=(finding, *diagnose_logs(seen.logs).findings),
        missing=(Missing(what=c, reason=d, source=a),),
        groups=(group,),
        seen=seen,
    )


_TEMPLATES = pages._load_templates()
_PLAIN = _Tags()
_PLAIN.feed(report_html(_diagnosis(["a"], DiagnosisInputs())))
# What else the parts about stacks and logs are made of.
_KINDS = _PLAIN.kinds | {
    *("a", "blockquote", "button", "dl", "dd", "dt", "form", "input"),
    *("label", "ol", "output", "pre", "strong"),
}


@target(seeds=_seeds, mebibytes=400, seconds=8, most=1 << 16)
def page(data: bytes) -> object:
    """
    A report about texts, and about a log and stacks that are the same texts.
    """
    texts = data.decode("utf-8", "replace").split("\n@@@\n")
    file = file_of(data, "page/rank0.log")
    seen = DiagnosisInputs(
        paths=(texts[0][:200],),
        stacks=read_stack_files(file).stacks,
        logs=read_logs([file]),
    )
    # To compile templates takes longer than all else.
    with patch.object(pages, "_load_templates", lambda: _TEMPLATES):
        html = report_html(_diagnosis(texts, seen))
    found = _Tags()
    found.feed(html)
    assert found.kinds <= _KINDS, found.kinds - _KINDS
    assert "could not be shown" not in html
    # Those that the page allows itself, and the data of some.
    known = html.count("sha256-"), html.count('json" id="data-')
    assert sum(known) == html.count("<script")
    return re.sub(r"<[^>]*>", "", html)

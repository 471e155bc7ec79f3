"""
Render a diagnosis as one HTML page that needs no other file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from .._io import output_to, write_whole
from .._text import clean, count_text, list_text
from ..diagnosis import DiagnosisInputs, inputs_of
from ..errors import DistdebugError
from ..findings import Cause, Diagnosis, Finding, blames_ranks
from ..ranks import fold_ranks
from ..snapshots import distdebug_version
from .findings import files_section, findings_section, missing_section
from .format import (
    RankLinks,
    Section,
    as_sentence,
    cause_title,
    cause_tone,
    input_name,
    rank_links,
    span_text,
    split_commands,
    split_unbreakable,
)
from .graph import graph_section
from .logs import logs_section
from .matrix import matrix_section
from .nodes import nodes_section
from .progress import phase_section, progress_section
from .stacks import stacks_section


# Each returns its section, or None if it has nothing to show.
SECTIONS: Sequence[Callable[[Diagnosis], Section | None]] = (
    graph_section,
    findings_section,
    progress_section,
    matrix_section,
    stacks_section,
    phase_section,
    logs_section,
    nodes_section,
    missing_section,
    files_section,
)


_MAX_RANKS = 64
# A damaged file may hold a huge world size.
_MAX_MISSING_RANKS = 1 << 17


@attrs.frozen(kw_only=True)
class InputSummary:
    """
    Summary of the inputs of a diagnosis.

    Attributes:
        world_size: World size; None if it is not known.

        ranks: Ranks with evidence.

        unseen: Ranks without evidence.

        facts: Further facts, as labels and texts.

        commands: Shell commands that show more.
    """

    world_size: int | None = None
    ranks: RankLinks = attrs.field(factory=RankLinks)
    unseen: RankLinks = attrs.field(factory=RankLinks)
    facts: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()


def summarize_inputs(diagnosis: Diagnosis) -> InputSummary:
    """
    Summarize the inputs of a diagnosis in a few lines.
    """
    inputs = inputs_of(diagnosis)
    world_size = _world_size(inputs)
    ranks = _seen_ranks(inputs)
    # Without any known rank, the world size may be damage.
    unseen = set(range(min(world_size or 0, _MAX_MISSING_RANKS))) - ranks
    return InputSummary(
        world_size=world_size,
        ranks=rank_links(ranks, max_listed=0),
        unseen=rank_links(unseen if ranks else ()),
        facts=tuple(
            (label, text) for label, text in _input_facts(inputs) if text
        ),
        commands=tuple(_commands(inputs, diagnosis)),
    )


def _world_size(inputs: DiagnosisInputs) -> int | None:
    flight = inputs.flight and inputs.flight.dumps.world_size
    stacks = max((p.world_size or 0 for p in inputs.stacks), default=0)
    return flight or stacks or inputs.logs.collectives.world_size


def _seen_ranks(inputs: DiagnosisInputs) -> set[int]:
    dumps = set(inputs.flight.dumps.ranks) if inputs.flight else set()
    return dumps | {p.rank for p in inputs.stacks if p.rank is not None}


def _input_facts(inputs: DiagnosisInputs) -> Iterator[tuple[str, str]]:
    yield "Job", clean(next(_job_names(inputs), ""), limit=80)
    hosts = sorted(set(_host_names(inputs)), key=_natural_sort_key)
    number = count_text(len(hosts), "host")
    yield "Nodes", f"{number}: {list_text(hosts)}" if hosts else ""
    times = sorted(_evidence_times(inputs))
    yield "Taken", span_text(times[0], times[-1]) if times else ""
    yield "Versions", ", ".join(_versions(inputs))
    yield "Evidence", ", ".join(_evidence_counts(inputs))
    yield "From", list_text(map(input_name, inputs.paths))


def _job_names(inputs: DiagnosisInputs) -> Iterator[str]:
    if inputs.flight:
        yield from (
            s.job for s in inputs.flight.dumps.sidecars.values() if s.job
        )
    yield from (p.job for p in inputs.stacks if p.job)


def _host_names(inputs: DiagnosisInputs) -> Iterator[str]:
    if inputs.flight:
        dumps = inputs.flight.dumps
        yield from (clean(d.host, limit=64) for d in dumps if d.host)
        yield from (clean(s.host, limit=64) for s in dumps.sidecars.values())
    yield from (clean(p.host, limit=64) for p in inputs.stacks if p.host)
    yield from (clean(node.host, limit=64) for node in inputs.logs.facts)


def _natural_sort_key(name: str) -> list[tuple[bool, int, str]]:
    """
    Return a sort key that puts node2 before node10.
    """
    # More digits are no counter.
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [
        (True, int(p), "") if p.isdecimal() else (False, 0, p) for p in parts
    ]


def _evidence_times(inputs: DiagnosisInputs) -> Iterator[float]:
    if inputs.flight:
        dumps = inputs.flight.dumps
        yield from (d.written_ns / 1e9 for d in dumps if d.written_ns)
    yield from (p.taken for p in inputs.stacks if p.taken)
    yield from (node.taken for node in inputs.logs.facts if node.taken)


def _versions(inputs: DiagnosisInputs) -> Iterator[str]:
    if inputs.flight is None:
        return

    dumps = inputs.flight.dumps
    torch = sorted({s.torch for s in dumps.sidecars.values() if s.torch})
    if torch:
        yield f"torch {clean(list_text(torch), limit=80)}"
    library = sorted({d.comm_lib_version for d in dumps} - {""})
    if library:
        yield f"NCCL {clean(list_text(library), limit=80)}"


def _evidence_counts(inputs: DiagnosisInputs) -> Iterator[str]:
    counts = {
        "dump": len(inputs.flight.dumps) if inputs.flight else 0,
        "process with stacks": len(inputs.stacks),
        "log": len(inputs.logs.files) - len(inputs.logs.facts),
        "node": len(inputs.logs.facts),
    }
    yield from (count_text(n, noun) for noun, n in counts.items() if n > 0)


def _commands(inputs: DiagnosisInputs, diagnosis: Diagnosis) -> Iterator[str]:
    paths = [input_name(path) for path in inputs.paths]
    if not paths or any(path.startswith("-") for path in paths):
        return

    yield _command("diagnose", paths)
    suspects = diagnosis.verdict.ranks[:_MAX_RANKS]
    if inputs.flight and len(inputs.flight.dumps) and suspects:
        ranks = ["--ranks", fold_ranks(suspects), "--entries"]
        yield _command("analyze", paths, *ranks, "--stack-traces")
    if inputs.stacks:
        yield _command("stacks", paths)


def _command(name: str, paths: Iterable[str], *options: str) -> str:
    return shlex.join(["python", "-m", "distdebug", name, *paths, *options])


_CONFIDENCE_MEANINGS = {
    "certain": "the evidence leaves no other explanation",
    "likely": "the evidence fits, and nothing speaks against it",
    "possible": "the evidence hints at it; look for more",
}


def build_top(diagnosis: Diagnosis) -> dict[str, Any]:
    """
    Return the variables of the top of the page.
    """
    verdict = diagnosis.verdict
    sentence = as_sentence(verdict.summary)
    input_summary = summarize_inputs(diagnosis)
    return {
        "title": f"{clean(verdict.summary, limit=100)} · distdebug",
        "tone": cause_tone(verdict.cause),
        "badge": cause_title(verdict.cause),
        "sentence": sentence,
        "heading": split_unbreakable(sentence),
        "cause": verdict.cause.value,
        "meaning": verdict.cause.meaning,
        "culprits": rank_links(verdict.ranks),
        "are_to_blame": blames_ranks(verdict),
        "sure": _confidence_text(verdict),
        "facts": tuple(_top_facts(verdict)),
        "remedy": split_commands(as_sentence(verdict.remedy or "")),
        "victims": rank_links(diagnosis.victims),
        "about": input_summary,
        "version": distdebug_version(),
    }


def _top_facts(verdict: Finding) -> Iterable[tuple[str, str]]:
    if verdict.collective:
        yield "Call", clean(str(verdict.collective))
    if verdict.group:
        yield "Group", clean(f"{verdict.group}")
    if verdict.location:
        yield "Line", clean(str(verdict.location))


def _confidence_text(verdict: Finding) -> str:
    # An unknown cause has no confidence.
    if verdict.cause is Cause.UNKNOWN:
        return ""

    return f"{verdict.confidence}: {_CONFIDENCE_MEANINGS[verdict.confidence]}"


TYPE_CHECKING = False
if TYPE_CHECKING:
    from jinja2 import Environment

# Content security policy: the page may only run its own inline scripts.
_CONTENT_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
    "style-src 'unsafe-inline'; script-src "
)


@attrs.frozen
class _RenderedSection:
    """
    A section, its HTML, and the data of its script.
    """

    section: Section
    html: str
    data: str


def write_report(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> Path:
    """
    Write a diagnosis as one HTML page that needs no network.

    Args:
        diagnosis: From :func:`distdebug.diagnose`.  One from another process
            has fewer sections.

        path: Output file; replaced atomically.

    Returns:
        The output file.

    Raises:
        OutputError: The file cannot be written.
    """
    path = Path(path)
    # File names may hold characters that UTF-8 cannot encode.
    page = report_html(diagnosis).encode(errors="replace")
    with output_to(path):
        write_whole(path, page)
    return path


def report_html(diagnosis: Diagnosis) -> str:
    """
    Render a diagnosis as an HTML page.

    Returns:
        The whole page, with its styles, scripts, and data.  The same diagnosis
        gives the same page.

    Raises:
        DistdebugError: The templates of this package cannot be read.
    """
    with _template_errors():
        return _render_page(_load_templates(), diagnosis)


@contextmanager
def _template_errors() -> Iterator[None]:
    """
    Turn errors on reading our own templates into a DistdebugError.
    """
    try:
        yield
    except OSError as exc:  # TemplateNotFound of jinja2 is one too
        msg = f"the templates of reports cannot be read: {exc}"
        raise DistdebugError(
            msg, remedy="see that this user may read them, or install again"
        ) from exc


def _render_page(templates: Environment, diagnosis: Diagnosis) -> str:
    made = (_render_section(templates, make, diagnosis) for make in SECTIONS)
    parts = [part for part in made if part is not None]
    names = ("page", "top", *(part.section.name for part in parts))
    scripts = [_wrap_script(script) for script in _read_static(names, "js")]
    page = templates.get_template("page.html.j2")
    return page.render(
        top=build_top(diagnosis),
        parts=parts,
        may=_CONTENT_POLICY + " ".join(map(_script_hash, scripts)),
        styles=_read_static(names, "css"),
        scripts=scripts,
    )


def _load_templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    try:
        loader = PackageLoader(__name__.rpartition(".")[0])
    except ValueError as exc:
        raise FileNotFoundError(str(exc)) from exc

    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render_section(
    templates: Environment,
    make: Callable[[Diagnosis], Section | None],
    diagnosis: Diagnosis,
) -> _RenderedSection | None:
    """
    Render one section; a failure gives a section with the reason.
    """
    try:
        section = make(diagnosis)
        return (
            None if section is None else _render_template(templates, section)
        )
    except Exception as exc:  # noqa: BLE001 other sections may still work
        name = make.__name__.removesuffix("_section")
        failure = Section(
            name=name,
            title=name.capitalize(),
            summary="could not be shown",
            values={"reason": clean(f"{type(exc).__name__}: {exc}")},
        )
        return _render_template(templates, failure, "failed")


def _render_template(
    templates: Environment, section: Section, template: str = ""
) -> _RenderedSection:
    drawn = templates.get_template(f"{template or section.name}.html.j2")
    html = drawn.render(section=section, values=section.values)
    return _RenderedSection(section, html, _script_data(section))


def _script_data(section: Section) -> str:
    """
    Return the data of a script as JSON that is safe inside HTML.
    """
    from jinja2.utils import htmlsafe_json_dumps

    if section.data is None:
        return ""

    # JSON has no NaN.
    data: str = htmlsafe_json_dumps(
        section.data, allow_nan=False, separators=(",", ":")
    )
    return data


def _read_static(names: Iterable[str], kind: str) -> list[str]:
    """
    Return the styles or scripts of sections, where they have any.
    """
    folder = files(__package__) / "static"
    found = (folder / f"{name}.{kind}" for name in names)
    return [file.read_text("utf-8") for file in found if file.is_file()]


def _wrap_script(script: str) -> str:
    """
    Wrap a script in a function, so that scripts share no names.
    """
    return f'(() => {{\n"use strict";\n{script}}})();\n'


def _script_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{b64encode(digest).decode()}'"


PAGE_NAME = "report.html"


def try_write_report(diagnosis: Diagnosis, folder: Path) -> Path | None:
    """
    Write the report of a snapshot, if possible.

    The snapshot is complete without it.

    Args:
        diagnosis: The diagnosis of the snapshot.

        folder: The folder of the snapshot.

    Returns:
        The file; ``None`` if it cannot be written.
    """
    try:
        return write_report(diagnosis, folder / PAGE_NAME)
    except Exception:  # noqa: BLE001 the snapshot is complete without it
        return None

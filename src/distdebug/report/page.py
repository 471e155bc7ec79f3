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
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import attrs

from .._anonymize import Anonymizer
from .._io import output_to, write_whole
from .._text import clean, count_text, list_text
from ..causes import Cause
from ..diagnosis import DiagnosisInputs, diagnose, inputs_of
from ..errors import DistdebugError
from ..findings import Diagnosis, Finding, blames_ranks
from ..flight_recorder import RankDump, Sidecar
from ..ranks import fold_ranks
from ..snapshots import distdebug_version
from .findings import (
    costs_section,
    describe_finding,
    files_section,
    findings_section,
    missing_section,
    progress_section,
)
from .format import (
    Section,
    input_name,
    rank_links,
    span_text,
    split_unbreakable,
)
from .graph import graph_section
from .logs import logs_section, phase_section
from .matrix import matrix_section
from .nodes import nodes_section
from .stacks import stacks_section


# Each returns its section, or None if it has nothing to show.
SECTIONS: Sequence[Callable[[Diagnosis], Section | None]] = (
    graph_section,
    findings_section,
    costs_section,
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


def summarize_inputs(diagnosis: Diagnosis) -> dict[str, Any]:
    """
    Summarize the inputs of a diagnosis in a few lines.

    Returns:
        Template variables: world size, None if it is not known; ranks with
        evidence, and without; further facts, as labels and texts; and shell
        commands that show more.
    """
    inputs = inputs_of(diagnosis)
    world_size = _world_size(inputs)
    ranks = _seen_ranks(inputs)
    # Without any known rank, the world size may be damage.
    unseen = set(range(min(world_size or 0, _MAX_MISSING_RANKS))) - ranks
    return {
        "world_size": world_size,
        "ranks": rank_links(ranks, max_listed=0),
        "unseen": rank_links(unseen if ranks else ()),
        "facts": [fact for fact in _input_facts(inputs) if fact[1]],
        "commands": [*_commands(inputs, diagnosis)],
    }


def _world_size(inputs: DiagnosisInputs) -> int | None:
    flight = inputs.flight and inputs.flight.dumps.world_size
    stacks = max((p.world_size or 0 for p in inputs.stacks), default=0)
    return flight or stacks or inputs.logs.collectives.world_size


def _seen_ranks(inputs: DiagnosisInputs) -> set[int]:
    dumps = set(inputs.flight.dumps.ranks) if inputs.flight else set()
    return dumps | {p.rank for p in inputs.stacks if p.rank is not None}


def _dumps(inputs: DiagnosisInputs) -> Sequence[RankDump]:
    return [*inputs.flight.dumps] if inputs.flight else []


def _sidecars(inputs: DiagnosisInputs) -> Sequence[Sidecar]:
    return [*inputs.flight.dumps.sidecars.values()] if inputs.flight else []


def _input_facts(inputs: DiagnosisInputs) -> Iterator[tuple[str, str]]:
    dumps, sidecars = _dumps(inputs), _sidecars(inputs)
    stacks, facts = inputs.stacks, inputs.logs.facts
    jobs = [x.job for x in sidecars] + [x.job for x in stacks]
    yield "Job", clean(next(filter(None, jobs), ""), limit=80)
    names = {clean(host, limit=64) for host in inputs.hosts}
    ordered = sorted(names, key=_natural_sort_key)
    number = count_text(len(names), "host")
    yield "Nodes", f"{number}: {list_text(ordered)}" if names else ""
    taken = [x.taken for x in stacks] + [x.taken for x in facts]
    moments = [x.written_ns / 1e9 for x in dumps] + taken
    times = [moment for moment in moments if moment]
    yield "Taken", span_text(min(times), max(times)) if times else ""
    yield "Versions", ", ".join(_versions(inputs))
    yield "Evidence", ", ".join(_evidence_counts(inputs))
    yield "From", list_text(map(input_name, inputs.paths))


def _natural_sort_key(name: str) -> list[tuple[bool, int, str]]:
    """
    Return a sort key that puts node2 before node10.
    """
    # More digits are no counter.
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [
        (True, int(p), "") if p.isdecimal() else (False, 0, p) for p in parts
    ]


def _versions(inputs: DiagnosisInputs) -> Iterator[str]:
    torch = sorted({x.torch for x in _sidecars(inputs) if x.torch})
    if torch:
        yield f"torch {clean(list_text(torch), limit=80)}"
    library = sorted({d.comm_lib_version for d in _dumps(inputs)} - {""})
    if library:
        yield f"NCCL {clean(list_text(library), limit=80)}"


def _evidence_counts(inputs: DiagnosisInputs) -> Iterator[str]:
    counts = {
        "dump": len(_dumps(inputs)),
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
    if _dumps(inputs) and suspects:
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
    values = describe_finding(verdict)
    return {
        **values,
        "title": f"{clean(verdict.summary, limit=100)} · distdebug",
        "heading": split_unbreakable(values["sentence"]),
        "are_to_blame": blames_ranks(verdict),
        "sure": _confidence_text(verdict),
        "victims": rank_links(diagnosis.victims),
        "about": summarize_inputs(diagnosis),
        "version": distdebug_version(),
    }


def _confidence_text(verdict: Finding) -> str:
    # An unknown cause has no confidence.
    if verdict.cause is Cause.UNKNOWN:
        return ""

    return f"{verdict.confidence}: {_CONFIDENCE_MEANINGS[verdict.confidence]}"


TYPE_CHECKING = False
if TYPE_CHECKING:
    from jinja2 import Environment

    from ..diagnosis import Source

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


def write_report(
    diagnosis: Diagnosis | Source | Iterable[Source],
    path: str | os.PathLike[str],
    *,
    anonymize: bool = False,
) -> Path:
    """
    Write a diagnosis as one HTML page that needs no network.

    Example::

        distdebug.write_report("dumps", "report.html")

    Args:
        diagnosis: From :func:`distdebug.diagnose`, or what that takes.  One
            from another process has fewer sections.

        path: Output file; replaced atomically.

        anonymize: Whether to mask hosts, users, addresses, and paths outside of
            the code.

    Returns:
        The output file.

    Raises:
        OutputError: The file cannot be written.
    """
    path = Path(path)
    # File names may hold characters that UTF-8 cannot encode.
    html = report_html(diagnosis, anonymize=anonymize)
    page = html.encode(errors="replace")
    with output_to(path):
        write_whole(path, page)
    return path


def report_html(
    diagnosis: Diagnosis | Source | Iterable[Source],
    *,
    anonymize: bool = False,
) -> str:
    """
    Render a diagnosis as an HTML page.

    Args:
        diagnosis: From :func:`distdebug.diagnose`, or what that takes.

        anonymize: Whether to mask hosts, users, addresses, and paths outside of
            the code.

    Returns:
        The whole page, with its styles, scripts, and data.  The same diagnosis
        gives the same page.

    Raises:
        DistdebugError: The templates of this package cannot be read.
    """
    if not isinstance(diagnosis, Diagnosis):
        diagnosis = diagnose(diagnosis)
    try:
        page = _render_page(_load_templates(), diagnosis)
    except OSError as exc:  # TemplateNotFound of jinja2 is one too
        msg = f"the templates of reports cannot be read: {exc}"
        raise DistdebugError(
            msg, remedy="see that this user may read them, or install again"
        ) from exc
    if not anonymize:
        return page
    inputs = inputs_of(diagnosis)
    return Anonymizer(inputs.hosts, inputs.blocked_on).page(page)


def _render_page(templates: Environment, diagnosis: Diagnosis) -> str:
    made = (_render_section(templates, make, diagnosis) for make in SECTIONS)
    parts = [part for part in made if part is not None]
    names = ("colors", "page", "top", *(part.section.name for part in parts))
    scripts = [_wrap_script(script) for script in _read_static(names, "js")]
    page = templates.get_template("page.html.j2")
    return page.render(
        top=build_top(diagnosis),
        parts=parts,
        may=_CONTENT_POLICY + " ".join(map(_script_hash, scripts)),
        styles=_read_static(names, "css"),
        scripts=scripts,
    )


# Outputs of one notebook share a page, so that each needs names of its own.
_NOTEBOOK_PICTURES = count(1)


def notebook_graph(diagnosis: Diagnosis) -> str:
    """
    Return the graph of who waits for whom for a notebook; "" without waits.

    It has styles, but no script.
    """
    section = graph_section(diagnosis)
    if section is None:
        return ""

    wide, _ = section.values["pictures"]
    picture = wide | {"id": f"notebook-{next(_NOTEBOOK_PICTURES)}"}
    values = {**section.values, "pictures": [picture]}
    shown = _render_template(
        _load_templates(), attrs.evolve(section, values=values)
    )
    colors, *styles = _read_static(("colors", "graph", "notebook"), "css")
    # The rest of the notebook keeps its colors.
    style = colors.replace(":root", ".distdebug-graph") + "".join(styles)
    return (
        f'<div class="distdebug-graph"><style>{style}</style>'
        f"{shown.html}</div>"
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

"""
How do the parts become one page that needs no other file?
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import attrs

from .._io import output_to, write_whole
from .._text import clean, list_text
from ..diagnosis import Seen, seen_by
from ..errors import DistdebugError, MissingDependencyError
from ..findings import Cause, Diagnosis, Finding, meaning_of
from ..ranks import fold_ranks
from .findings import files_section, findings_section, missing_section
from .format import (
    Piece,
    RankLinks,
    Section,
    as_sentence,
    cause_words,
    given_name,
    pieces_of,
    rank_links,
    span_text,
    tone_of,
    unbroken,
)
from .graph import graph_section
from .logs import logs_section
from .matrix import matrix_section
from .nodes import nodes_section
from .progress import phase_section, progress_section
from .stacks import stacks_section


# Each looks at a diagnosis, and tells what it has to show, if anything.
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


_MOST_RANKS = 64
# A damaged file may tell of a job of millions.
_MOST_UNSEEN = 1 << 17


@attrs.frozen(kw_only=True)
class About:
    """
    What was looked at.

    Attributes:
        world_size: How many ranks the job has, if that is known.

        ranks: The ranks that were seen.

        unseen: Those that were not.

        facts: What else there is to tell: labels and texts.

        commands: What tells more of it in a shell.
    """

    world_size: int | None = None
    ranks: RankLinks = attrs.field(factory=RankLinks)
    unseen: RankLinks = attrs.field(factory=RankLinks)
    facts: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()


def about(diagnosis: Diagnosis) -> About:
    """
    What was a diagnosis made from?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        All that fits into a few lines.
    """
    seen = seen_by(diagnosis)
    world_size = _world_size(seen)
    ranks = _ranks(seen)
    # Numbers of ranks that nobody else has seen may be damage.
    unseen = set(range(min(world_size or 0, _MOST_UNSEEN))) - ranks
    return About(
        world_size=world_size,
        ranks=rank_links(ranks, most=0),
        unseen=rank_links(unseen if ranks else ()),
        facts=tuple((label, text) for label, text in _facts(seen) if text),
        commands=tuple(_commands(seen, diagnosis)),
    )


def _world_size(seen: Seen) -> int | None:
    flight = seen.flight and seen.flight.dumps.world_size
    stacks = max((p.world_size or 0 for p in seen.stacks), default=0)
    return flight or stacks or seen.logs.collectives.world_size


def _ranks(seen: Seen) -> set[int]:
    dumps = set(seen.flight.dumps.ranks) if seen.flight else set()
    return dumps | {p.rank for p in seen.stacks if p.rank is not None}


def _facts(seen: Seen) -> Iterator[tuple[str, str]]:
    yield "Job", clean(next(_jobs(seen), ""), limit=80)
    hosts = sorted(set(_hosts(seen)), key=_in_order)
    noun = "host" if len(hosts) == 1 else "hosts"
    yield "Nodes", f"{len(hosts)} {noun}: {list_text(hosts)}" if hosts else ""
    times = sorted(_times(seen))
    yield "Taken", span_text(times[0], times[-1]) if times else ""
    yield "Versions", ", ".join(_versions(seen))
    yield "Evidence", ", ".join(_kinds(seen))
    yield "From", list_text(map(given_name, seen.paths))


def _jobs(seen: Seen) -> Iterator[str]:
    if seen.flight:
        yield from (
            s.job for s in seen.flight.dumps.sidecars.values() if s.job
        )
    yield from (p.job for p in seen.stacks if p.job)


def _hosts(seen: Seen) -> Iterator[str]:
    if seen.flight:
        dumps = seen.flight.dumps
        yield from (clean(d.host, limit=64) for d in dumps if d.host)
        yield from (clean(s.host, limit=64) for s in dumps.sidecars.values())
    yield from (clean(p.host, limit=64) for p in seen.stacks if p.host)
    yield from (clean(node.host, limit=64) for node in seen.logs.facts)


def _in_order(name: str) -> list[tuple[bool, int, str]]:
    """
    Where a name stands among others, so that node2 comes before node10.
    """
    # What is long is no number that anybody counts to.
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [
        (True, int(p), "") if p.isdecimal() else (False, 0, p) for p in parts
    ]


def _times(seen: Seen) -> Iterator[float]:
    if seen.flight:
        dumps = seen.flight.dumps
        yield from (d.written_ns / 1e9 for d in dumps if d.written_ns)
    yield from (p.taken for p in seen.stacks if p.taken)
    yield from (node.taken for node in seen.logs.facts if node.taken)


def _versions(seen: Seen) -> Iterator[str]:
    if seen.flight is None:
        return

    dumps = seen.flight.dumps
    torch = sorted({s.torch for s in dumps.sidecars.values() if s.torch})
    if torch:
        yield f"torch {clean(list_text(torch), limit=80)}"
    library = sorted({d.comm_lib_version for d in dumps} - {""})
    if library:
        yield f"NCCL {clean(list_text(library), limit=80)}"


def _kinds(seen: Seen) -> Iterator[str]:
    counts = {
        "dump": len(seen.flight.dumps) if seen.flight else 0,
        "process with stacks": len(seen.stacks),
        "log": len(seen.logs.files) - len(seen.logs.facts),
        "node": len(seen.logs.facts),
    }
    for noun, count in counts.items():
        many = noun.replace("process", "processes", 1)
        many = many if many != noun else f"{noun}s"
        if count > 0:
            yield f"{count:,} {noun if count == 1 else many}"


def _commands(seen: Seen, diagnosis: Diagnosis) -> Iterator[str]:
    paths = [given_name(path) for path in seen.paths]
    if not paths or any(path.startswith("-") for path in paths):
        return

    yield _command("diagnose", paths)
    suspects = diagnosis.verdict.ranks[:_MOST_RANKS]
    if seen.flight and len(seen.flight.dumps) and suspects:
        ranks = ["--ranks", fold_ranks(suspects), "--entries"]
        yield _command("analyze", paths, *ranks, "--stack-traces")
    if seen.stacks:
        yield _command("stacks", paths)


def _command(name: str, paths: Iterable[str], *options: str) -> str:
    return shlex.join(["python", "-m", "distdebug", name, *paths, *options])


# Of these, ranks tell, or suffer from them.
_NOBODYS = {Cause.COLLECTIVE_TIMEOUT, Cause.UNKNOWN}
_SURE = {
    "certain": "the evidence leaves no other explanation",
    "likely": "the evidence fits, and nothing speaks against it",
    "possible": "the evidence hints at it; look for more",
}


@attrs.frozen(kw_only=True)
class Top:
    """
    What stands at the top of the page.

    Attributes:
        title: The title of the window.

        tone: ``"culprit"``, ``"fine"``, or ``"unknown"``.

        badge: The cause in words.

        sentence: The verdict.

        heading: The same in parts; no line ends in each second one.

        cause: Its cause as scripts write it.

        meaning: What that means.

        culprits: Who is at fault, or tells of it.

        are_to_blame: Whether they are at fault.

        sure: How sure that is, and what this means.

        facts: Where it shows: labels and texts.

        remedy: What to do.

        victims: Who merely waits.

        about: What was looked at.

        version: Which *distdebug* wrote the page.
    """

    title: str
    tone: str
    badge: str
    sentence: str
    heading: tuple[str, ...]
    cause: str
    meaning: str
    culprits: RankLinks
    are_to_blame: bool
    sure: str
    facts: tuple[tuple[str, str], ...]
    remedy: tuple[Piece, ...]
    victims: RankLinks
    about: About
    version: str


def top_of(diagnosis: Diagnosis) -> Top:
    """
    What does a person have to read first?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        What the template shows.
    """
    verdict = diagnosis.verdict
    sentence = as_sentence(verdict.summary)
    looked_at = about(diagnosis)
    return Top(
        title=f"{clean(verdict.summary, limit=100)} · distdebug",
        tone=tone_of(verdict.cause),
        badge=cause_words(verdict.cause),
        sentence=sentence,
        heading=unbroken(sentence),
        cause=verdict.cause.value,
        meaning=meaning_of(verdict.cause),
        culprits=rank_links(verdict.ranks),
        are_to_blame=verdict.cause not in _NOBODYS,
        sure=_sure(verdict),
        facts=tuple(_top_facts(verdict)),
        remedy=pieces_of(as_sentence(verdict.remedy or "")),
        victims=rank_links(diagnosis.victims),
        about=looked_at,
        version=_version(),
    )


def _top_facts(verdict: Finding) -> Iterable[tuple[str, str]]:
    if verdict.collective:
        yield "Call", clean(str(verdict.collective))
    if verdict.group:
        yield "Group", clean(f"{verdict.group}")
    if verdict.location:
        yield "Line", clean(str(verdict.location))


def _sure(verdict: Finding) -> str:
    # Nobody asks how sure it is that nothing is known.
    if verdict.cause is Cause.UNKNOWN:
        return ""

    return f"{verdict.confidence}: {_SURE[verdict.confidence]}"


def _version() -> str:
    # An import of the package would look like one of all rooms.
    package = import_module(__name__.partition(".")[0])
    return str(package.__version__)


TYPE_CHECKING = False
if TYPE_CHECKING:
    from jinja2 import Environment

# What the page may do, for browsers that keep it to that: nothing but run the
# scripts that are in it.
_MAY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
    "style-src 'unsafe-inline'; script-src "
)


@attrs.frozen
class _Part:
    """
    A section, what its template makes of it, and the data of its script.
    """

    section: Section
    html: str
    data: str


def write_report(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> Path:
    """
    Write a diagnosis as one page that any browser shows, without a network.

    Args:
        diagnosis: What :func:`distdebug.diagnose` returned.  One that comes
            from another process has fewer parts.

        path: Where to write it; what is there is replaced as a whole.

    Returns:
        Where it lies.

    Raises:
        MissingDependencyError: *jinja2* is not installed.

        OutputError: The file cannot be written.
    """
    path = Path(path)
    # Names of files may hold what no encoding knows.
    page = report_html(diagnosis).encode(errors="replace")
    with output_to(path):
        write_whole(path, page)
    return path


def report_html(diagnosis: Diagnosis) -> str:
    """
    How does a diagnosis look as a page?

    Args:
        diagnosis: What :func:`distdebug.diagnose` returned.

    Returns:
        The whole page; styles, scripts, and data are within it.  The same
        diagnosis gives the same page.

    Raises:
        MissingDependencyError: *jinja2* is not installed.

        DistdebugError: What belongs to this package cannot be read.
    """
    with _own_files_told():
        return _page(_templates(), diagnosis)


@contextmanager
def _own_files_told() -> Iterator[None]:
    """
    Tell by one error of ours that our own templates cannot be read.
    """
    try:
        yield
    except OSError as exc:  # also of jinja2, which then has no such template
        msg = f"the templates of reports cannot be read: {exc}"
        raise DistdebugError(
            msg, remedy="see that this user may read them, or install again"
        ) from exc


def _page(templates: Environment, diagnosis: Diagnosis) -> str:
    made = (_part(templates, make, diagnosis) for make in SECTIONS)
    parts = [part for part in made if part is not None]
    names = ("page", "top", *(part.section.name for part in parts))
    scripts = [_enclosed(script) for script in _static(names, "js")]
    page = templates.get_template("page.html.j2")
    return page.render(
        top=top_of(diagnosis),
        parts=parts,
        may=_MAY + " ".join(map(_hash, scripts)),
        styles=_static(names, "css"),
        scripts=scripts,
    )


def _templates() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as exc:
        msg = "a report needs jinja2, which is not installed"
        remedy = 'pip install "distdebug[report]"'
        raise MissingDependencyError(msg, remedy=remedy) from exc

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


def _part(
    templates: Environment,
    make: Callable[[Diagnosis], Section | None],
    diagnosis: Diagnosis,
) -> _Part | None:
    """
    One part of the page; why there is none if it fails.
    """
    try:
        section = make(diagnosis)
        return None if section is None else _drawn(templates, section)
    except Exception as exc:  # noqa: BLE001 the others are worth it
        name = make.__name__.removesuffix("_section")
        failed = Section(
            name=name,
            title=name.capitalize(),
            summary="could not be shown",
            values={"reason": clean(f"{type(exc).__name__}: {exc}")},
        )
        return _drawn(templates, failed, "failed")


def _drawn(
    templates: Environment, section: Section, template: str = ""
) -> _Part:
    drawn = templates.get_template(f"{template or section.name}.html.j2")
    html = drawn.render(section=section, values=section.values)
    return _Part(section, html, _data(section))


def _data(section: Section) -> str:
    """
    The data of a script, so that HTML takes nothing in it for its own.
    """
    from jinja2.utils import htmlsafe_json_dumps

    if section.data is None:
        return ""

    # No browser knows NaN.
    data: str = htmlsafe_json_dumps(
        section.data, allow_nan=False, separators=(",", ":")
    )
    return data


def _static(names: Iterable[str], kind: str) -> list[str]:
    """
    The styles or scripts of these parts, as far as they have any.
    """
    folder = files(__package__) / "static"
    found = (folder / f"{name}.{kind}" for name in names)
    return [file.read_text("utf-8") for file in found if file.is_file()]


def _enclosed(script: str) -> str:
    """
    The same with names of its own, so that no two parts share one.
    """
    return f'(() => {{\n"use strict";\n{script}}})();\n'


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{b64encode(digest).decode()}'"


PAGE = "report.html"


def leave_report(diagnosis: Diagnosis, folder: Path) -> Path | None:
    """
    Leave a page in a snapshot, if that can be done.

    The snapshot is finished without it, and nothing depends on it.

    Args:
        diagnosis: What the snapshot tells.

        folder: The folder of the snapshot.

    Returns:
        Where it lies; ``None`` if *jinja2* is not installed, or if anything
        else is in the way.
    """
    try:
        return write_report(diagnosis, folder / PAGE)
    except Exception:  # noqa: BLE001 whatever it is, the snapshot is there
        return None

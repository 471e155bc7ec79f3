"""
How do the parts become one page that needs no other file?
"""

from __future__ import annotations

import hashlib
import os

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import attrs

from .._files import output_to, write_whole
from .._text import clean
from ..errors import DistdebugError, MissingDependencyError
from ..findings import Diagnosis
from .section import Section
from .sections import SECTIONS
from .top import top_of


TYPE_CHECKING = False
if TYPE_CHECKING:
    from jinja2 import Environment


__all__ = ["report_html", "write_report"]

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

"""
Links between the pages lead somewhere, on the repository's own page, too.

Sphinx looks at those of the documentation, and not at what a link means to
readers of the files where they lie.
"""

from __future__ import annotations

import re

from pathlib import Path
from urllib.parse import unquote

import pytest


REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "changelog.d").glob("*.md"),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
if not (REPOSITORY / "docs").is_dir():
    pytest.skip("the documentation is not here", allow_module_level=True)

_FENCED = re.compile(r"^([ >]*)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)<>\s]+)>?\s*\)")
_IMAGE = re.compile(r'\b(?:src|srcset|href)="([^"]+)"')
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
_TITLE = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def _links(page: Path) -> set[str]:
    text = _INLINE.sub("", _FENCED.sub("", page.read_text("utf-8")))
    found = {*_LINK.findall(text), *_IMAGE.findall(text)}
    return {unquote(x) for x in found if not _ELSEWHERE.match(x)}


def _anchors(page: Path) -> set[str]:
    """
    The headings of a page, as GitHub and MyST call them in addresses.
    """
    titles = _TITLE.findall(_FENCED.sub("", page.read_text("utf-8")))
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in kept}


def _wrong(page: Path, link: str) -> str | None:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return f"{link}: there is no {name}"
    if not target.is_relative_to(REPOSITORY):
        return f"{link}: leads out of the repository"
    if anchor and target.suffix == ".md" and anchor not in _anchors(target):
        return f"{link}: {target.name} has no heading of that name"
    return None


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda x: x.relative_to(REPOSITORY).as_posix()
)
def test_links(page):
    """
    Files and headings that a page links to exist.
    """
    wrong = [said for x in sorted(_links(page)) if (said := _wrong(page, x))]

    assert [] == wrong


def test_links_are_found():
    """
    The other test looks at something.
    """
    assert len({link for page in PAGES for link in _links(page)}) > 50


@pytest.mark.parametrize(
    ("link", "is_wrong"),
    [
        ("docs/how-to/slurm.md", False),
        ("docs/how-to/slurm.md#it-hangs-now", False),
        ("docs/how-to/slurm.md#it-hung", True),
        ("docs/how-to/pbs.md", True),
        ("../../etc/passwd", True),
    ],
)
def test_wrong_links(link, is_wrong):
    """
    A link to nowhere is found.
    """
    assert is_wrong is (_wrong(REPOSITORY / "README.md", link) is not None)

"""
What the tests of the page share: they read it as a browser does.
"""

from __future__ import annotations

import json
import re

from html.parser import HTMLParser

import attrs
import pytest

from distdebug.diagnosis import DiagnosisInputs
from distdebug.flight_recorder import analyze_dumps
from distdebug.report import report_html
from distdebug.testing import make_dumps


ENDLESS = {"input", "meta", "wbr"}  # elements that have no end
INLINE = {"a", "b", "code", "span", "wbr"}  # the others begin a new line


class Node:
    """
    An element of a page, and what is in it.
    """

    def __init__(self, tag="", given=()):
        self.tag, self.given, self.parts = tag, dict(given), []

    @property
    def classes(self):
        """
        Its classes.
        """
        return set((self.given.get("class") or "").split())

    @property
    def text(self):
        """
        What is read in it, on one line.
        """
        return re.sub(r"\s+", " ", "".join(self._texts())).strip()

    def _texts(self):
        for part in self.parts:
            if isinstance(part, str):
                yield part
            elif part.tag not in {"script", "style"}:
                between = "" if part.tag in INLINE else " "
                yield from (between, *part._texts(), between)

    def inside(self):
        """
        All elements in it, in order.
        """
        for part in self.parts:
            if isinstance(part, Node):
                yield part
                yield from part.inside()

    def all(self, path):
        """
        The elements in it that a path such as ``"table.late td"`` names.
        """
        first, _, rest = path.partition(" ")
        tag, *classes = first.split(".")
        found = [
            node
            for node in self.inside()
            if tag in {"", node.tag} and set(classes) <= node.classes
        ]
        if not rest:
            return found

        nested = [deep for node in found for deep in node.all(rest)]
        return list({id(node): node for node in nested}.values())

    def one(self, path):
        """
        The only element that a path names.
        """
        (found,) = self.all(path)
        return found

    def texts(self, path):
        """
        What is read in each element that a path names.
        """
        return [node.text for node in self.all(path)]

    def rows(self, path=""):
        """
        The cells of a table, row by row.
        """
        return [
            [cell.text for cell in row.parts if isinstance(cell, Node)]
            for row in self.all(f"{path} tbody tr".strip())
        ]

    def pairs(self, path):
        """
        The terms of a list, and what is said of them.
        """
        return dict(
            zip(
                self.texts(f"{path} dt"), self.texts(f"{path} dd"), strict=True
            )
        )


class Page(HTMLParser):
    """
    A page of a diagnosis, parsed.
    """

    def __init__(self, html):
        super().__init__()
        self.html, self.root = html, Node()
        self._open = [self.root]
        self.feed(html)
        self.close()
        assert [self.root] == self._open

    def handle_starttag(self, tag, attrs):
        """
        Whatever follows is in it.
        """
        node = Node(tag, attrs)
        self._open[-1].parts.append(node)
        if tag not in ENDLESS:
            self._open.append(node)

    def handle_startendtag(self, tag, attrs):
        """
        Nothing is in it.
        """
        self._open[-1].parts.append(Node(tag, attrs))

    def handle_endtag(self, tag):
        """
        An element ends that was begun last.
        """
        assert tag == self._open.pop().tag

    def handle_data(self, data):
        """
        Remember what is read.
        """
        self._open[-1].parts.append(data)

    def part(self, name):
        """
        A part of the page; None if it has no such part.
        """
        for node in self.root.all("section"):
            if node.given["id"] == name:
                return Part(self, node)
        return None


class Part(Node):
    """
    A part of the page: its heading, what it shows, and the data of its script.
    """

    def __init__(self, page, node):
        super().__init__(node.tag, node.given)
        self.parts, self.html = node.parts, page.html
        self.summary = self.one("span.brief").text
        self.is_open = "open" in self.all("details")[0].given
        data = [
            "".join(script.parts)
            for script in page.root.all("script")
            if script.given.get("id") == f"data-{node.given['id']}"
        ]
        self.data = json.loads(data[0]) if data else None
        assert not self.all("p.failed")


@pytest.fixture
def page():
    """
    Makes the page of a diagnosis.
    """
    return lambda diagnosis: Page(report_html(diagnosis))


@pytest.fixture
def part(page):
    """
    Makes the page of a diagnosis, and returns one part of it.
    """
    return lambda name, diagnosis: page(diagnosis).part(name)


@pytest.fixture
def seen_in(tmp_path):
    """
    Makes the diagnosis of the dumps that a job leaves.
    """

    def make(job, folder=tmp_path, **options):
        make_dumps(folder, job, **options)
        flight = analyze_dumps(folder)
        return attrs.evolve(
            flight.to_diagnosis(), seen=DiagnosisInputs(flight=flight)
        )

    return make

"""
The example notebooks run, and show what they say they show.
"""

from __future__ import annotations

import re
import shutil

from pathlib import Path

import nbformat
import pytest

from nbclient import NotebookClient


FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"

pytest.importorskip("ipykernel")
pytest.importorskip("pandas")


@pytest.fixture(
    scope="module", params=sorted(x.stem for x in FOLDER.glob("*.ipynb"))
)
def ran(request, tmp_path_factory):
    """
    The name of a notebook, and the notebook after it ran.
    """
    # As a user would: only the files of the repository, and an own home.
    work = tmp_path_factory.mktemp(request.param) / "docs" / "notebooks"
    shutil.copytree(FOLDER, work)
    data = FOLDER.parents[1] / "tests" / "data"
    shutil.copytree(data, work.parents[1] / "tests" / "data")
    notebook = nbformat.read(work / f"{request.param}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(work)}}
    )
    return request.param, client.execute()


def _outputs(notebook):
    return [o for cell in notebook.cells for o in cell.get("outputs", ())]


def _text(notebook):
    """
    What all cells print and show, as text.
    """
    parts = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in _outputs(notebook)
    ]
    return "\n".join(parts)


# What each notebook is there to show.
SHOWN = {
    "post-mortem": [
        r"rank 3 never entered all_reduce #\d+ of group 'mesh_tp'",
        r"dataloader_wait",
        r"in read_shard \(.{0,200}train\.py:\d+\)",
        r"report\.html: \d+ KiB",
    ],
    "stacks": [
        r"is waiting for a lock in load_batch \(play\.py:\d+\)",
        r"^2 is at ",
        r"next_batch \(train\.py:31\)",
    ],
    "ray-session": [
        r"first .{0,40}rank|Hog\(rank=1\)",
        r"killed by Ray for memory",
        r"native_crash|SIGSEGV",
    ],
    "straggler": [
        r"rank 5 is slow on its host",
        r"straggler \(likely\)",
        r"^rank 5 is late by \d+ ms on average$",
        r"timeline\.json\.gz",
    ],
}


def test_all_are_known():
    """
    Every notebook has something that it is checked for.
    """
    assert SHOWN.keys() == {x.stem for x in FOLDER.glob("*.ipynb")}


def test_shown(ran):
    """
    Each notebook shows what it is about.
    """
    name, notebook = ran

    text = _text(notebook)

    missed = [x for x in SHOWN[name] if not re.search(x, text, re.MULTILINE)]
    assert [] == missed


def test_html(ran):
    """
    Results show as HTML, and have text where that is not understood.
    """
    _, notebook = ran

    shown = [o["data"] for o in _outputs(notebook) if "data" in o]
    own = [x for x in shown if 'class="distdebug"' in x.get("text/html", "")]

    assert own
    assert all(x["text/plain"] for x in own)


def test_picture(ran):
    """
    A diagnosis of a hang draws who waits for whom.
    """
    name, notebook = ran

    pages = [
        o["data"].get("text/html", "")
        for o in _outputs(notebook)
        if "data" in o
    ]

    assert any("<svg" in x for x in pages) == (
        name in {"post-mortem", "straggler"}
    )


def test_quiet(ran):
    """
    Nothing complains.
    """
    _, notebook = ran

    complaints = [o for o in _outputs(notebook) if o.get("name") == "stderr"]

    assert [] == complaints


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_stripped(name):
    """
    Notebooks are kept without their outputs.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)

    assert [] == _outputs(notebook)

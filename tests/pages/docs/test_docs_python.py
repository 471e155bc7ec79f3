"""
Python that the documentation shows works.

Names of ours have to exist, and calls have to fit them.  What only reads files is
run, page by page; why other blocks are not stands in a table, so that a new one
cannot escape.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib

from pathlib import Path
from typing import Any

import pytest

import distdebug

from distdebug.cli.parser import build_parser


REPOSITORY = Path(__file__).parents[3]

# What a block may hold; the last ones belong to Sphinx.
LANGUAGES = frozenset({"python", "console", "sh", "bash", "text", "toml"})
LANGUAGES |= {
    "json",
    "yaml",
    "{doctest}",
    "{eval-rst}",
    "{toctree}",
    "{include}",
}
# What docs/conf.py fills in from the commands themselves.
LANGUAGES |= {"{command-help}"}
LANGUAGES |= {"{note}", "{image}", "{glossary}", "{literalinclude}"}

# Why some Python is not run: the page, and what stands in the block.
NOT_RUN = {
    ("README.md", "enable_flight_recorder"): "goes into a training script",
    ("README.md", ".watch("): "goes into a training script",
    ("catch-the-next-hang.md", ".watch("): "goes into a training script",
    ("debug-four-ranks.md", ""): "goes into a job; test_tutorial_debugger",
    ("debug-ray-and-monarch.md", ""): "needs Ray, or Monarch",
    ("debug-many-ranks.md", ""): "goes into a job; test_debugger has such",
    ("in-ci.md", ".watch("): "goes into a training script",
    ("kubernetes.md", ".watch("): "goes into a training script",
    ("look-at-stacks.md", "capture_node"): "looks at all workers of this node",
    ("nodes.md", "Slurm("): "needs a cluster",
    ("profile-some-workers.md", ""): "needs workers of Ray, and nsys",
    ("ray-debugger.md", ""): "needs a cluster",
    ("ray.md", ""): "needs a cluster; test_nodes_ray has one",
    ("read-ray-logs.md", "follow_lines"): "waits for a minute",
    ("record-a-job.md", "enable_flight_"): "goes into a training script",
    ("take-a-snapshot.md", ".snapshot("): "looks at all workers of this node",
    ("torchrun.md", ".watch("): "goes into a training script",
    ("trainers.md", ""): "goes into a training script; was tried by hand",
    ("tutorial/index.md", "statistics"): "test_tutorial runs it",
}

_HINT = "let `world` have what it reads; or say in NOT_RUN why it cannot run"
_ABSOLUTE = re.compile(r'"(/(?:shared|tmp|logs|scratch|local)\b)')


def _python(blocks):
    return [block for block in blocks if block.language == "python"]


def _reason(block) -> str | None:
    return next(
        (
            reason
            for (page, part), reason in NOT_RUN.items()
            if block.page.endswith(page) and part in block.text
        ),
        None,
    )


def test_languages(all_blocks):
    """
    Every block says what it holds, and it is something that is looked at.
    """
    fenced = [b for b in all_blocks if b.language or "\n" in b.text]

    unknown = {b.place: b.language for b in fenced}

    assert {} == {p: x for p, x in unknown.items() if x not in LANGUAGES}


def test_json(all_blocks):
    """
    JSON is whole, to be copied.
    """
    found = [b for b in all_blocks if b.language == "json"]

    assert all(isinstance(json.loads(b.text), dict) for b in found)
    assert found


def test_run(page, blocks, request):
    """
    Python that only reads runs, block by block, as in a session.
    """
    mine = [block for block in _python(blocks) if _reason(block) is None]
    if not mine:
        return
    if any(x in b.text for b in mine for x in ("import pandas", ".calls(")):
        pytest.importorskip("pandas")
    world = request.getfixturevalue("world")
    code = "\n".join(f"# {block.place}\n{block.text}" for block in mine)
    (world / "page.py").write_text(
        _ABSOLUTE.sub(rf'"{world}\1', code), encoding="utf-8"
    )

    ran = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert not ran.returncode, f"{page}\n{ran.stderr[-3000:]}\n{_HINT}"


def test_table(all_blocks):
    """
    What is said not to be run is there, and most of the rest is run.
    """
    blocks = _python(all_blocks)

    stale = [
        (page, part)
        for page, part in NOT_RUN
        if not any(b.page.endswith(page) and part in b.text for b in blocks)
    ]

    assert [] == stale
    assert len([b for b in blocks if _reason(b) is None]) > 15


def _imported(tree: ast.AST) -> dict[str, Any]:
    """
    What the names mean that a block imports from us.
    """
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [
                x.name for x in node.names if x.name.startswith("distdebug")
            ]
            for name in ours:
                importlib.import_module(name)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if name.partition(".")[0] == "distdebug":
                known |= {
                    x.asname or x.name: _member(name, x.name)
                    for x in node.names
                }
    return known


def _member(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


def _meant(node: ast.expr, known: dict[str, Any]) -> Any:
    """
    What of ours an expression is; ``None`` if only a run could tell.
    """
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        home = _meant(node.value, known)
        if inspect.ismodule(home) or inspect.isclass(home):
            return getattr(home, node.attr)
    return None


def _misfit(call: ast.Call, known: dict[str, Any]) -> str | None:
    called = _meant(call.func, known)
    if not callable(called) or any(
        isinstance(x, ast.Starred) for x in call.args
    ):
        return None
    is_open = any(x.arg is None for x in call.keywords)
    named = {x.arg: x.value for x in call.keywords if x.arg is not None}
    signature = inspect.signature(called)
    bind = signature.bind_partial if is_open else signature.bind
    try:
        bind(*call.args, **named)
    except TypeError as exc:
        return f"{ast.unparse(call.func)}(): {exc}"
    return None


def test_fits(page, blocks):
    """
    Names of ours exist, and calls fit them, also where nothing is run.
    """
    known: dict[str, Any] = {"distdebug": distdebug}
    wrong = []
    for block in _python(blocks):
        tree = ast.parse(block.text, block.place)
        known |= _imported(tree)
        calls = [x for x in ast.walk(tree) if isinstance(x, ast.Call)]
        wrong += [
            f"{page}:{block.line + call.lineno}: {misfit}"
            for call in calls
            if (misfit := _misfit(call, known)) is not None
        ]

    assert not wrong, "\n".join(wrong)


def test_files(page, blocks):
    """
    Files that are to be written can be read.
    """
    for block in blocks:
        if block.language == "toml":
            assert tomllib.loads(block.text), block.place
        if block.language == "yaml":
            yaml = pytest.importorskip("yaml")
            assert yaml.safe_load(block.text), block.place


def test_readme_table():
    """
    The functions and commands in the table of the README exist.
    """
    text = (REPOSITORY / "README.md").read_text("utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE
    )

    functions = {x for row in rows for x in re.findall(r"`(\w+)`", row[0])}
    commands = {x for row in rows for x in re.findall(r"^`([a-z-]+)", row[1])}

    assert len(rows) > 15
    assert set() == functions - set(distdebug.__all__)
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            build_parser("distdebug").parse_args([command, "--help"])
        assert 0 == stop.value.code

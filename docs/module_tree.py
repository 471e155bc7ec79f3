"""
Write the tree of packages into ``docs/architecture.md``.

Each stands there with the first line of its docstring, so that the page and
the code cannot say different things.  Run it as
``python docs/module_tree.py`` after a package is added, moved, or retitled;
a test holds that this was done.
"""

from __future__ import annotations

import ast

from collections.abc import Iterator
from pathlib import Path


ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "distdebug"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree -->\n", "<!-- end of tree -->\n"
_WIDTH = 30


def title_of(path: Path) -> str:
    """
    Return the first line of a module's docstring, without its full stop.
    """
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ").rstrip(".")


def tree_lines(folder: Path = SOURCE, depth: int = 0) -> Iterator[str]:
    """
    Yield one line per package below *folder*, and per module beside them.
    """
    modules = [p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"]
    packages = [p for p in sorted(folder.iterdir()) if any(p.glob("*.py"))]
    for path in (*(modules if depth == 0 else ()), *packages):
        door = path / "__init__.py"
        name = "  " * depth + path.name + "/" * path.is_dir()
        is_titled = not path.is_dir() or door.exists()
        title = title_of(door if path.is_dir() else path) if is_titled else ""
        yield f"{name:<{_WIDTH}} {title}".rstrip()
        if path.is_dir():
            yield from tree_lines(path, depth + 1)


def page_text() -> str:
    """
    Return the page with the tree as the code has it now.
    """
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    body = "\n".join(tree_lines())
    return f"{head}{BEGIN}\n```text\n{body}\n```\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page_text(), "utf-8")

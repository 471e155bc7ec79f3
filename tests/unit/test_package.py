"""
The package itself: its public names, and what importing it costs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib

from pathlib import Path

import pytest

import distdebug


ROOT = Path(distdebug.__file__).parents[1]
REPOSITORY = Path(__file__).parents[2]


def read_homes():
    """
    The module of each name in the block that only type checkers read.
    """
    tree = ast.parse(Path(distdebug.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))

    return {
        alias.asname: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }


HOMES = read_homes()


@pytest.mark.process
def test_import_is_light():
    """
    Importing the package loads nothing but the package itself.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "before = set(sys.modules); import distdebug; "
        "print(*sorted(set(sys.modules) - before))"
    )

    got = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()

    assert {"distdebug", "distdebug._lazy"} == set(got) - {"__future__"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("enable_flight_recorder", set()),
        ("arm", set()),
        ("set_trace", set()),
        ("watch", {"attr", "attrs"}),
    ],
)
def test_inside_is_light(name, others):
    """
    What a training script calls loads nothing that reads or explains, and
    hardly a package of others: each rank of a job pays for that.
    """
    code = (
        "import sys, distdebug; before = set(sys.modules); "
        f"distdebug.{name}; print(*sorted(set(sys.modules) - before))"
    )
    explaining = ("diagnosis", "health", "logs", "ray", "report")

    got = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=60
    ).split()

    # Python's own modules that are named after a platform begin with "_".
    packages = {m.partition(".")[0] for m in got if not m.startswith("_")}
    assert others == packages - sys.stdlib_module_names - {"distdebug"}
    rooms = {m.split(".")[1] for m in got if m.startswith("distdebug.")}
    assert not rooms.intersection(explaining)


def names_of(room):
    """
    The names that the door of a room offers.
    """
    door = importlib.import_module(f"distdebug.{room}")
    return getattr(door, "__all__", ())


class TestNames:
    def test_agree(self):
        """
        ``__all__`` has the names that type checkers know.
        """
        assert distdebug.__all__ == sorted(HOMES)

    @pytest.mark.parametrize("name", distdebug.__all__)
    def test_resolve(self, name):
        """
        Every public name is what its home says it is.
        """
        home = importlib.import_module(f"distdebug.{HOMES[name]}")

        assert getattr(home, name) is getattr(distdebug, name)
        assert name in getattr(home, "__all__", dir(home))

    def test_no_module_hides_a_name(self):
        """
        No module bears a public name: importing it would hide the name.
        """
        modules = {m.name for m in pkgutil.iter_modules(distdebug.__path__)}

        assert not modules & set(distdebug.__all__)

    @pytest.mark.process
    @pytest.mark.parametrize(
        "module", ["errors", "debugger", "nsight", "ray", "testing"]
    )
    def test_modules(self, module):
        """
        What is not on top is in public modules, without an import of its own.
        """
        code = f"import distdebug; print(distdebug.{module}.__name__)"

        got = subprocess.check_output(
            [sys.executable, "-c", code], text=True, timeout=60
        )

        assert f"distdebug.{module}" == got.strip()

    @pytest.mark.parametrize(
        ("name", "module"),
        [
            ("NoDumpsError", "errors"),
            ("find_deaths", "ray"),
            ("match_worker", "nsight"),
            ("scope", "debugger"),
            ("Worker", "processes"),
        ],
    )
    def test_former(self, name, module):
        """
        A name that was on top is still found, and it is said where it is now.
        """
        home = importlib.import_module(f"distdebug.{module}")

        with pytest.warns(DeprecationWarning, match=f"{module}.{name} now"):
            assert getattr(distdebug, name) is getattr(home, name)

    def test_dir(self):
        """
        Completion offers the public names.
        """
        assert set(distdebug.__all__) <= set(dir(distdebug))

    def test_unknown(self):
        """
        A name that does not exist is an ordinary attribute error.
        """
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            distdebug.nonsense  # noqa: B018

    def test_doors(self):
        """
        No door offers a name that a module of its room bears, too: importing
        the module would hide what the name stands for.
        """
        rooms = sorted((ROOT / "distdebug").glob("*/__init__.py"))

        hidden = [
            f"{room.parent.name}.{name}"
            for room in rooms
            for name in names_of(room.parent.name)
            if (room.parent / name).is_dir()
            or (room.parent / f"{name}.py").exists()
        ]

        assert len(rooms) > 15
        assert [] == hidden


class TestVersion:
    @pytest.fixture(autouse=True)
    def forget(self):
        """
        The version is looked up once more.
        """
        vars(distdebug).pop("__version__", None)
        yield
        vars(distdebug).pop("__version__", None)

    def test_installed(self, monkeypatch):
        """
        The version is that of the installed distribution.
        """
        monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.2.3")

        assert "1.2.3" == distdebug.__version__

    def test_not_installed(self, monkeypatch):
        """
        Run from a checkout, the version is unknown, and that is no error.
        """

        def version(name):
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", version)

        assert "unknown" == distdebug.__version__


def test_names_are_found_without_the_source_of_a_loader(monkeypatch):
    """
    The loader by which pytest rewrites the modules of plugins has none.
    """
    from distdebug import _lazy, stacks

    monkeypatch.setattr(stacks, "__loader__", object())

    assert ".parse" == _lazy._homes("distdebug.stacks")["read_stacks"]


class TestDocumentation:
    @pytest.fixture(autouse=True)
    def checkout(self):
        """
        These tests read files that only a checkout has.
        """
        if not (REPOSITORY / "docs").is_dir():
            pytest.skip("the documentation is not here")

    @pytest.mark.parametrize("home", sorted(set(HOMES.values())))
    def test_reference(self, home):
        """
        Every module with a public name has its place in the reference.
        """
        pages = (REPOSITORY / "docs" / "reference").glob("*.md")

        assert any(
            f".. automodule:: distdebug.{home}\n" in page.read_text("utf-8")
            for page in pages
        )

    def test_layers(self):
        """
        The architecture names every layer that the linter holds.
        """
        config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        contract = config["tool"]["importlinter"]["contracts"][0]
        page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
        rooms = re.findall(r"\w+", " ".join(contract["layers"]))

        assert [] == [room for room in rooms if f"`{room}`" not in page]

    def test_tree(self):
        """
        The architecture shows each package with its title, as the code has it.
        """
        tool = REPOSITORY / "docs" / "module_tree.py"
        spec = importlib.util.spec_from_file_location("module_tree", tool)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

        text = module.PAGE.read_text("utf-8")
        assert text == module.page_text(), "run python docs/module_tree.py"
        assert text.count("/ ") > 20

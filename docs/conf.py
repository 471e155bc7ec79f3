"""
Configuration of the documentation's build.
"""

from __future__ import annotations

import argparse
import builtins
import os

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from inspect import isroutine

from docutils import nodes
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

import distdebug

from distdebug.cli import build_parser


project = "distdebug"
author = "The distdebug authors"
project_copyright = "2026, The distdebug authors"
release = distdebug.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
add_module_names = False
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "distdebug"
html_static_path = ["_static"]
html_css_files = ["terminal.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# References into distdebug must resolve.  Those to Python and to other packages
# cannot: that takes their inventories, and the build uses no network.
nitpick_ignore = [
    *(("py:class", name) for name in dir(builtins)),
    # Variables of types, and names of types that autodoc does not follow.
    ("py:class", "distdebug.snapshots.debug_server.Content"),
    ("py:class", "Hook"),
    ("py:class", "RankChoice"),
    ("py:class", "RaySessions"),
    ("py:class", "Source"),
    ("py:class", "StackSources"),
    ("py:class", "pd.DataFrame"),
]
nitpick_ignore_regex = [
    ("py:.*", rf"({package})(\..*)?")
    for package in (
        r"distdebug\._render",  # how results show themselves is our own affair
        "argparse",
        "attrs",
        "collections",
        "concurrent",
        "contextlib",
        "datetime",
        "enum",
        "faulthandler",
        "ipaddress",
        "json",
        "numpy",
        "os",
        "pathlib",
        "posix",  # os.DirEntry
        "psutil",
        "re",
        "selectors",
        "socket",
        "subprocess",
        "threading",
        "time",
        "torch",
        "types",
        "typing",
    )
]


def offered(name: str) -> object | None:
    """
    Return what a module, the door of a room, or *distdebug* has under a name.
    """
    place, _, last = f"distdebug.{name.removeprefix('distdebug.')}".rpartition(
        "."
    )
    with suppress(ImportError):
        if (found := getattr(import_module(place), last, None)) is not None:
            return found
    with suppress(ImportError):
        return import_module(f"{place}.{last}")

    return None


def public_name(
    app: Sphinx,
    env: BuildEnvironment,
    node: pending_xref,
    contnode: Element,
) -> Element | None:
    """
    Resolve a name to the module that defines it.

    What the reference leaves out stands as plain text; a name that does not
    exist is an error.
    """
    target = node.get("reftarget", "")
    found = offered(target) or offered(f"{node.get('py:module')}.{target}")
    if found is None:
        return None

    home = getattr(found, "__module__", "")
    return (
        env.domains.python_domain.resolve_xref(
            env,
            node.get("refdoc", ""),
            app.builder,
            node["reftype"],
            f"{home}.{getattr(found, '__qualname__', '')}",
            node,
            contnode,
        )
        or contnode
    )


def is_inner(  # noqa: PLR0913, PLR0917 Sphinx calls it so
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    skip: bool,  # noqa: FBT001
    options: object,
) -> bool | None:
    """
    Leave out functions that a module defines for its own room only.

    Classes stay: they are what attributes of results refer to.
    """
    del app, skip, options
    rest = str(getattr(obj, "__module__", "")).removeprefix("distdebug.")
    room, _, module = rest.partition(".")
    if what != "module" or not module or not isroutine(obj):
        return None

    return None if offered(f"{room}.{name}") is obj else True


def command_parsers(
    parser: argparse.ArgumentParser,
) -> Iterator[argparse.ArgumentParser]:
    """
    Yield the parser of each command, those below it after it.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from command_parsers(command)


class CommandHelp(SphinxDirective):
    """
    Show the help of every command, each below a title of its own.
    """

    def run(self) -> list[nodes.Node]:
        """
        Return one section per command.
        """
        os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}
        sections: list[nodes.Node] = []
        for parser in command_parsers(build_parser("distdebug")):
            name = parser.prog.partition(" ")[2]
            section = nodes.section(ids=[nodes.make_id(name)], names=[name])
            section += nodes.title("", "", nodes.literal("", name))
            text = parser.format_help()
            section += nodes.literal_block(text, text, language="text")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> None:
    """
    Connect the hooks.
    """
    app.add_directive("command-help", CommandHelp)
    app.connect("missing-reference", public_name)
    app.connect("autodoc-skip-member", is_inner)

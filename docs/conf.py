"""
How is the documentation built?
"""

from __future__ import annotations

import builtins

from docutils.nodes import Element, reference
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import distdebug


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
    ("py:class", "pd.DataFrame"),
]
nitpick_ignore_regex = [
    ("py:.*", rf"({package})(\..*)?")
    for package in (
        r"distdebug\._showing",  # how results show themselves is our own affair
        "argparse",
        "attrs",
        "collections",
        "concurrent",
        "contextlib",
        "datetime",
        "enum",
        "faulthandler",
        "json",
        "numpy",
        "os",
        "pathlib",
        "psutil",
        "re",
        "selectors",
        "socket",
        "threading",
        "torch",
        "typing",
    )
]


def public_name(
    app: Sphinx,
    env: BuildEnvironment,
    node: pending_xref,
    contnode: Element,
) -> reference | None:
    """
    What does a public name refer to?  To that name in its module.
    """
    package, _, name = node.get("reftarget", "").rpartition(".")
    if package not in {"", "distdebug"} or name not in distdebug.__all__:
        return None

    return env.domains.python_domain.resolve_xref(
        env,
        node.get("refdoc", ""),
        app.builder,
        node["reftype"],
        f"distdebug.{distdebug._HOME[name]}.{name}",
        node,
        contnode,
    )


def setup(app: Sphinx) -> None:
    """
    Teach Sphinx about our public names.
    """
    app.connect("missing-reference", public_name)

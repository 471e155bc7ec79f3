"""
The command line: one function adds each command, another runs it.

A command parses its arguments, calls one function, and prints the result.  What
it needs is loaded when it runs, so that ``--help`` is quick: rooms load their
modules on first use, and what is no lazy package is imported in the function.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .output import set_verbosity as set_verbosity
    from .parser import build_parser as build_parser
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

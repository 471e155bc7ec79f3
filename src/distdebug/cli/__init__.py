"""
The command line: one function adds each command, another runs it.

A command parses its arguments, calls one function, and prints the result.  What
it needs is imported when it runs, so that ``--help`` is quick.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .parser import build_parser as build_parser
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

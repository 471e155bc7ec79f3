"""
Which rank made which call, and what became of it?

From records to what each rank did (`recorded`), from there to one picture per
kind of process group (`views`, `usual`, `lateness`), and from pictures to what
the page holds: a folded table (`folded`), transfers (`pairs`), and numbers that
a script draws (`packed`).
"""

from __future__ import annotations

from .section import matrix_section


__all__ = ["matrix_section"]

"""
Where is every process, on one page?

The merged stacks are cut into branches and lines that a page can hold, however
many processes there are and however deep they are.
"""

from __future__ import annotations

from .section import stacks_section


__all__ = ["stacks_section"]

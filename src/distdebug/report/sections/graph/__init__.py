"""
Who waits for whom, as a picture?

From waits to few boxes (`boxes`, `folding`), from boxes to places on paper
(`layout`), and from these to what the page shows (`section`).
"""

from __future__ import annotations

from .section import graph_section


__all__ = ["graph_section"]

"""
So what is the root cause?

The one room in which different kinds of evidence are joined.
"""

from __future__ import annotations

from .diagnose import diagnose


__all__ = ["diagnose"]

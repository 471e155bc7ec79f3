"""
What do the logs say went wrong?
"""

from __future__ import annotations

from .section import logs_section


__all__ = ["logs_section"]

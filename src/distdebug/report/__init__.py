"""
How is a diagnosis shown on one page that a person wants to look at?
"""

from __future__ import annotations

from .page import report_html, write_report


__all__ = ["report_html", "write_report"]

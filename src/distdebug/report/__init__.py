"""
Write a diagnosis as one self-contained HTML page.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .page import notebook_graph as notebook_graph
    from .page import report_html as report_html
    from .page import try_write_report as try_write_report
    from .page import write_report as write_report
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

"""
How is a diagnosis shown on one page that a person wants to look at?
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .page import leave_report as leave_report
    from .page import report_html as report_html
    from .page import write_report as write_report
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

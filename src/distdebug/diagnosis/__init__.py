"""
So what is the root cause?

The one room in which different kinds of evidence are joined.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .hosts import Seen as Seen
    from .hosts import all_stacks as all_stacks
    from .hosts import seen_by as seen_by
    from .log_evidence import LogEvidence as LogEvidence
    from .root_cause import diagnose as diagnose
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

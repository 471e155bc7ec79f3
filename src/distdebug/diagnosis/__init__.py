"""
Find the root cause of a hang, crash, or slowdown from all evidence.

Only this room joins different kinds of evidence.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .log_evidence import LogEvidence as LogEvidence
    from .rank_state import DiagnosisInputs as DiagnosisInputs
    from .rank_state import combine_stacks as combine_stacks
    from .rank_state import inputs_of as inputs_of
    from .root_cause import Source as Source
    from .root_cause import diagnose as diagnose
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

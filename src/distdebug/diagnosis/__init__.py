"""
So what is the root cause?

The one room in which different kinds of evidence are joined.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .collect import UNKNOWN as UNKNOWN
    from .collect import Collected as Collected
    from .collect import Snapshot as Snapshot
    from .collect import collect_node as collect_node
    from .collect import explain_bundle as explain_bundle
    from .collect import preflight as preflight
    from .collect import reason_of as reason_of
    from .collect import snapshot as snapshot
    from .collect import snapshot_everywhere as snapshot_everywhere
    from .collect import version as version
    from .hosts import Seen as Seen
    from .hosts import all_stacks as all_stacks
    from .hosts import seen_by as seen_by
    from .log_evidence import LogEvidence as LogEvidence
    from .root_cause import diagnose as diagnose
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

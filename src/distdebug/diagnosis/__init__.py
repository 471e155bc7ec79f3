"""
So what is the root cause?

The one room in which different kinds of evidence are joined.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .collect import Collected as Collected
    from .collect import collect_node as collect_node
    from .collect import reason_of as reason_of
    from .collect import version as version
    from .everywhere import snapshot_everywhere as snapshot_everywhere
    from .hosts import all_stacks as all_stacks
    from .logs.model import LogEvidence as LogEvidence
    from .root_cause import diagnose as diagnose
    from .seen import Seen as Seen
    from .seen import seen_by as seen_by
    from .snapshot import UNKNOWN as UNKNOWN
    from .snapshot import Snapshot as Snapshot
    from .snapshot import explain_bundle as explain_bundle
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

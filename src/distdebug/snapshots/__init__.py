"""
Take a snapshot of a hanging job and store it as a bundle on disk.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .bundle import Manifest as Manifest
    from .bundle import NodeEntry as NodeEntry
    from .bundle import NodeStatus as NodeStatus
    from .bundle import Part as Part
    from .bundle import SharedBundle as SharedBundle
    from .bundle import bundle_age_s as bundle_age_s
    from .bundle import count_parts as count_parts
    from .bundle import distdebug_version as distdebug_version
    from .bundle import is_done as is_done
    from .bundle import merge_manifests as merge_manifests
    from .bundle import new_bundle as new_bundle
    from .bundle import node_name as node_name
    from .bundle import parse_manifest as parse_manifest
    from .bundle import read_manifest as read_manifest
    from .bundle import read_parts as read_parts
    from .bundle import take_over as take_over
    from .bundle import write_manifest as write_manifest
    from .collect import UNKNOWN_VERDICT as UNKNOWN_VERDICT
    from .collect import CollectedNode as CollectedNode
    from .collect import Snapshot as Snapshot
    from .collect import collect_node as collect_node
    from .collect import diagnose_bundle as diagnose_bundle
    from .collect import failure_reason as failure_reason
    from .collect import preflight as preflight
    from .collect import snapshot as snapshot
    from .collect import snapshot_everywhere as snapshot_everywhere
    from .options import SnapshotOptions as SnapshotOptions
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

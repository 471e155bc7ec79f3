"""
Take a snapshot of a job that hangs, and keep it as a bundle on disk.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .bundle import Manifest as Manifest
    from .bundle import NodeEntry as NodeEntry
    from .bundle import NodeStatus as NodeStatus
    from .bundle import Part as Part
    from .bundle import age_s as age_s
    from .bundle import count_parts as count_parts
    from .bundle import is_done as is_done
    from .bundle import is_taken as is_taken
    from .bundle import join_bundle as join_bundle
    from .bundle import lost_part as lost_part
    from .bundle import merge_manifests as merge_manifests
    from .bundle import new_bundle as new_bundle
    from .bundle import node_name as node_name
    from .bundle import parse_manifest as parse_manifest
    from .bundle import read_manifest as read_manifest
    from .bundle import read_parts as read_parts
    from .bundle import take_over as take_over
    from .bundle import write_manifest as write_manifest
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
    from .debug_server import keep_debug_server as keep_debug_server
    from .node import MOST_BYTES as MOST_BYTES
    from .node import ask_ranks as ask_ranks
    from .node import find_dump_dirs as find_dump_dirs
    from .node import keep_dumps as keep_dumps
    from .node import keep_facts as keep_facts
    from .node import keep_tails as keep_tails
    from .node import own_logs as own_logs
    from .options import Wanted as Wanted
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

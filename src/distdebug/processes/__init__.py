"""
Find the workers of a job on this node, and read their state from ``/proc``.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .find import absent_peers as absent_peers
    from .find import find_workers as find_workers
    from .find import find_workers_by_pid as find_workers_by_pid
    from .model import ProcessState as ProcessState
    from .model import Worker as Worker
    from .process_memory import read_environ as read_environ
    from .procfs import ENDED_STATES as ENDED_STATES
    from .procfs import STATE_NAMES as STATE_NAMES
    from .procfs import Mount as Mount
    from .procfs import has_node_pids as has_node_pids
    from .procfs import list_numbers as list_numbers
    from .procfs import parse_stat as parse_stat
    from .procfs import parse_status as parse_status
    from .procfs import read_link as read_link
    from .procfs import read_mounts as read_mounts
    from .procfs import read_proc as read_proc
    from .procfs import whole_number as whole_number
    from .scan import as_patterns as as_patterns
    from .stack_signal import OFFERS_ROOT as OFFERS_ROOT
    from .stack_signal import is_offer_locked as is_offer_locked
    from .stack_signal import is_private as is_private
    from .stack_signal import offer_folder_name as offer_folder_name
    from .stack_signal import own_offer as own_offer
    from .stack_signal import parse_offer_name as parse_offer_name
    from .system_calls import BlockedCall as BlockedCall
    from .system_calls import read_system_call as read_system_call
    from .threads import ThreadFacts as ThreadFacts
    from .threads import first_start as first_start
    from .threads import idle_seconds as idle_seconds
    from .threads import read_state as read_state
    from .threads import read_threads as read_threads
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

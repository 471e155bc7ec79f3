"""
Which processes of this node are the workers of a job?
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environ import read_environ as read_environ
    from .expected import missing_ranks as missing_ranks
    from .find import find_workers as find_workers
    from .idle import idle_seconds as idle_seconds
    from .model import ProcessState as ProcessState
    from .model import Worker as Worker
    from .offers import ROOT as ROOT
    from .offers import folder_name as folder_name
    from .offers import is_kept as is_kept
    from .offers import is_private as is_private
    from .offers import own_offer as own_offer
    from .offers import parse_name as parse_name
    from .proc.procfs import ENDED as ENDED
    from .proc.procfs import list_numbers as list_numbers
    from .proc.procfs import parse_stat as parse_stat
    from .proc.procfs import parse_status as parse_status
    from .proc.procfs import read_link as read_link
    from .proc.procfs import read_proc as read_proc
    from .proc.procfs import whole_number as whole_number
    from .roles.patterns import compile_patterns as compile_patterns
    from .state import read_state as read_state
    from .threads import ThreadFacts as ThreadFacts
    from .threads import read_system_call as read_system_call
    from .threads import read_threads as read_threads
    from .worker import workers_of as workers_of
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

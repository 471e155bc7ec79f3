"""
Simulate jobs with their dumps, and run functions on local ranks.

Simulate a job with :class:`SimulatedJob`, and write what its ranks would have
recorded with :func:`make_dumps`; run a function of yours with :func:`run_ranks`.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dumps import make_dumps as make_dumps
    from .dumps import plain_dump as plain_dump
    from .jobs import SimulatedGroup as SimulatedGroup
    from .jobs import SimulatedJob as SimulatedJob
    from .jobs import Stack as Stack
    from .local_ranks import RankEnd as RankEnd
    from .rank_outcome import RanksOutcome as RanksOutcome
    from .rank_outcome import run_ranks as run_ranks
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

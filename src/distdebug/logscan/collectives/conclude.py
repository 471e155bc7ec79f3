"""
So who was missing, and what is wrong?
"""

from __future__ import annotations

from ...findings import Cause, Finding
from .beats import explain_heartbeats
from .cascade import explain_cascade
from .checked import explain_checks
from .communicators import explain_communicators
from .logs import CollectiveLogs
from .lonely import explain_gloo
from .lost import explain_lost
from .meeting import explain_stores
from .network import explain_network


__all__ = ["collective_findings"]

# What closes a connection after something else went wrong is no news.
_GENERAL = frozenset({Cause.COLLECTIVE_TIMEOUT})


def collective_findings(logs: CollectiveLogs) -> tuple[Finding, ...]:
    """
    Who was missing in a collective, as the lines of watchdogs and NCCL tell?

    Args:
        logs: What
            :func:`~distdebug.logscan.collectives.gather.read_collective_logs`
            found.

    Returns:
        The findings, those that name somebody first; none if nothing is
        wrong.
    """
    checks = explain_checks(logs)
    watchdogs = explain_cascade(logs)
    beats = explain_heartbeats(logs)
    stores = explain_stores(logs)
    # A barrier that fails, fails over Gloo; its own words tell more.
    gloo = [] if checks else explain_gloo(logs)
    has_failed = bool(checks or watchdogs or beats or stores or gloo)
    network = explain_network(logs, has_failed=has_failed)
    nccl = [
        *network,
        *explain_communicators(logs, has_failed=has_failed),
        # What was wrong before, is why it was lost.
        *([] if has_failed or network else explain_lost(logs)),
    ]
    if any(x.kind != "keys" for x in logs.stores) or not watchdogs:
        watchdogs = [*watchdogs, *stores]
    found = [*checks, *watchdogs, *beats, *gloo, *nccl]
    naming = [x for x in found if x.cause not in _GENERAL]
    return (*naming, *(x for x in found if x.cause in _GENERAL))

"""
In which way a worker ended, where several lines tell different things.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Evidence
from distdebug.raylogs.deaths.kinds import kind_of
from distdebug.raylogs.deaths.last_words import hear
from distdebug.raylogs.deaths.notes import Exit, Orphan


SEEN = Evidence(kind="log", source="gcs_server.out")
OWNER = "b" * 56
SIGTERM = "Worker exits unexpectedly. The worker receives a SIGTERM."
END = Exit(
    worker_id="a" * 56, exit_type="SYSTEM_ERROR", detail=SIGTERM, seen=SEEN
)


@pytest.mark.parametrize(
    ("owner", "kind"),
    [(OWNER, "owner_died"), ("01000000" + "f" * 48, "job_ended")],
    ids=["actor", "driver"],
)
def test_orphan_told_of_signal(owner, kind):
    """
    Who was ended since its owner was dead may tell of the signal only.
    """
    orphan = Orphan(worker_id="a" * 56, owner=owner, time=None, seen=SEEN)

    assert (kind, owner) == kind_of([END], orphan, hear(""))


def test_signal_alone():
    """
    Without such a line, somebody else sent the signal.
    """
    assert ("terminated", None) == kind_of([END], None, hear(""))

"""
What did those write before a line that carried it?

Container runtimes, ``kubectl logs --prefix``, ``docker compose``, ``srun
--label``, ``mpirun --tag-output``, and journald each put a mark before every
line, in front of what a launcher puts there.
"""

from __future__ import annotations

import re


__all__ = ["without_carrier"]

_CARRIER = re.compile(
    # 2025-11-22T03:52:01.123456789Z stderr F text
    r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) "
    r"(?:std(?:out|err) [FP] )?"
    # [pod/trainer-0/main] text
    r"|\[pod/[^\]\s]{1,200}\] "
    # trainer-1  | text
    r"|[\w.-]{0,60}[-_.]\d{1,4} {1,20}\| "
    # 12: text
    r"|\d{1,5}: "
    # [1,0]<stdout>:text
    r"|\[\d{1,6},\d{1,6}\]<std(?:out|err|diag)>: ?"
    # Nov 22 03:52:01 host python[123]: text
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w./-]{1,60}"
    r"(?:\[\d{1,9}\])?: ){1,2}"
)


def without_carrier(line: str) -> str:
    """
    Take off what the carriers of a line wrote before it.

    Args:
        line: The line as it stands in a file.

    Returns:
        The line as a job printed it.
    """
    found = _CARRIER.match(line)
    return line[found.end() :] if found else line

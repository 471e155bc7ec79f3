"""
Look up what messages of Ray, and errors of its workers, mean.

The logs of Ray and the output of a driver report the same ends in the same
words, so there is one table of these, ``meanings.toml`` beside this file.
"""

from __future__ import annotations

import re

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import attrs

from .._rules import read_toml
from ..findings import Cause, Confidence


DeathKind = Literal[
    "native_crash",
    "collective_timeout",
    "killed_or_exited",
    "exit_code",
    "terminated",
    "init_error",
    "ray_oom",
    "host_oom",
    "node_died",
    "owner_died",
    "job_ended",
    "intended",
]
FailureKind = Literal[
    "task_error",
    "init_error",
    "actor_died",
    "actor_unavailable",
    "owner_died",
    "worker_crashed",
    "out_of_memory",
    "node_died",
    "start_timeout",
    "not_started",
]


@attrs.frozen(kw_only=True)
class Meaning:
    """
    What one kind of death or failure means.

    Attributes:
        label: The name in tables.

        says: What happened.  In a driver's output a sentence with the fields
            of the failure in braces, else the words behind the name of who
            died.

        follows: The same if it follows from another death.

        cause: The cause of a finding, unless an error names a more exact one.

        confidence: How certain the kind is.

        remedy: What to do about it.
    """

    label: str = ""
    says: str = ""
    follows: str = "after another one, or complaining of it"
    cause: Cause = attrs.field(converter=Cause, default=Cause.ACTOR_DIED)
    confidence: Confidence = "likely"
    remedy: str = ""


_TABLE = read_toml(Path(__file__).with_name("meanings.toml"))
DEATHS: Mapping[DeathKind, Meaning] = {
    kind: Meaning(**row) for kind, row in _TABLE["death"].items()
}
_OTHERWISE = _TABLE["failure"]["actor_died"]
FAILURES: Mapping[FailureKind, Meaning] = {
    kind: Meaning(**_OTHERWISE | _TABLE["failure"].get(kind, {}))
    for kind in get_args(FailureKind)
}
#: Of an exception that only reports that another rank did not answer.
WAITED_IN_VAIN = Meaning(**_TABLE["waited_in_vain"])
#: Texts of failures in a driver's output; the first match counts.
FAILURE_TEXTS: Mapping[str, FailureKind] = dict(_TABLE["driver"]["texts"])
#: Failures that a component of Ray reports in a single line.
ONE_LINE_FAILURES = tuple(_TABLE["driver"]["one_line"])
#: Other texts, by what they mean.
PATTERNS = {
    name: re.compile(pattern) for name, pattern in _TABLE["pattern"].items()
}
_ERROR_CAUSES = [
    (re.compile(row["pattern"]), Cause(row["cause"]))
    for row in _TABLE["error"]
]


def find_error_cause(error: str, otherwise: Cause) -> Cause:
    """
    Return the cause that the message of an exception names.

    Args:
        error: The class of the exception and its message.

        otherwise: The cause if the message names none.
    """
    return next(
        (cause for x, cause in _ERROR_CAUSES if x.search(error)), otherwise
    )

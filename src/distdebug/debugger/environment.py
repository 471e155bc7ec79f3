"""
What must the environment of a job be, so that its ranks can be debugged?
"""

from __future__ import annotations

import os

from collections.abc import Mapping
from pathlib import Path


__all__ = ["job_environment"]

_ON_PATH = Path(__file__).parent / "on_path"


def job_environment(
    environ: Mapping[str, str] | None = None, *, post_mortem: bool = False
) -> dict[str, str]:
    """
    Which variables let every rank be asked, with no code of ours in the job?

    Each rank listens from its start on, and ``breakpoint()`` stops it.  For Ray,
    they are the ``env_vars`` of a runtime environment.

    Args:
        environ: The environment of the job so far; by default this one.

        post_mortem: Whether a rank that fails waits to be looked at, too.

    Returns:
        The variables to set.  What else is in ``PYTHONPATH`` stays there, and
        another ``sitecustomize`` runs as before.
    """
    known = os.environ if environ is None else environ
    path = known.get("PYTHONPATH", "")
    rest = [p for p in path.split(os.pathsep) if p and p != str(_ON_PATH)]
    return {
        "DISTDEBUG": "1",
        **({"DISTDEBUG_POST_MORTEM": "1"} if post_mortem else {}),
        "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
        "PYTHONPATH": os.pathsep.join([str(_ON_PATH), *rest]),
    }

"""
Where did an exception raise that a launcher catches?

Launchers catch what a task or an endpoint raises, and send it to who called it.
So it never reaches the hook that Python calls for what ends a program.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import sys

from ..inside.crashes import are_crashes_examined, post_mortem


__all__ = ["examine_caught"]


def examine_caught(*, always: bool) -> None:
    """
    Stop where the exception was raised that is handled right now.

    Args:
        always: Whether to do so in a process that never came to a breakpoint.
    """
    if always or are_crashes_examined():
        post_mortem().__exit__(*sys.exc_info())

"""
Is this process a rank, and can it be asked from its first line on?

What is in ``on_path`` calls this when Python starts, so that nothing has to be
changed in the program.
"""

from __future__ import annotations

import os
import re
import sys

from collections.abc import Iterator, Sequence

from ...identity import current_identity
from .arming import arm
from .settings import label_by


# Who was armed, for the processes that it starts.
_MARK = "DISTDEBUG_ARMED"

# With one of them per node under Slurm, it has the number of a rank, too.
_NO_RANK = re.compile(
    r"(?:^|/)(?:torchrun|accelerate(?:-launch)?|deepspeed|composer"
    r"|ft_launcher|dlrover-run|horovodrun|colossalai)$"
    r"|^torch\.distributed\.(?:run|launch)$"
    r"|^accelerate\.commands\.launch$|^deepspeed\.launcher\.\w+$"
    r"|(?:^|/)distdebug$"  # our own commands
)
_RAY_WORKER = "ray/_private/workers/default_worker.py"
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def begin() -> bool:
    """
    Let this process be debugged from now on, if it is a rank.

    Launchers are none, and neither are the processes that a rank starts: they
    have its number, but are not who is meant by it.  Those can still be stopped
    by a breakpoint of their own.

    Returns:
        Whether it is.
    """
    identity = current_identity()
    program = _program(sys.orig_argv)
    if identity.source != "torchrun" and _NO_RANK.search(program):
        return False

    mark = f"{identity.source} {identity.rank} {identity.job}"
    pid, _, known = os.environ.get(_MARK, "").partition(" ")
    # After an exec it is still the same process.
    if known == mark and pid != str(os.getpid()):
        return False

    if program.endswith(_RAY_WORKER):
        from .launchers import ray_labels

        label_by(ray_labels)
    os.environ[_MARK] = f"{os.getpid()} {mark}"
    # Ray overwrites the variable later, but not who has followed it already.
    # Without it, pdb would read the end of its input, and end the rank.
    hook = os.environ.get("PYTHONBREAKPOINT") or "distdebug."
    return arm(breakpoints=hook.startswith("distdebug.")) is not None


def _program(arguments: Sequence[str]) -> str:
    """
    Which script or module does a command line of Python run?
    """
    rest: Iterator[str] = iter(arguments[1:])
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, "")
        elif word == "-m":
            return next(rest, "")
        elif word == "-c":
            return ""
        elif not word.startswith("-"):
            return word
    return ""

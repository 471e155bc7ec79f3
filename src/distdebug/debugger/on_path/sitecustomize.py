"""
Arm ranks when Python starts: a sitecustomize module for ``PYTHONPATH``.

Python imports the first module of this name on its path at start.  With this
folder in ``PYTHONPATH``, every Python 3 and every small tool of the job
imports it.  It must not slow down or break them: it uses only syntax of all
versions, and does nothing except in a rank to debug.
"""

import os
import sys


_FOLDER = os.path.dirname(os.path.abspath(__file__))

# The variables that launchers set for each rank, as in distdebug.identity.
_RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "FLUX_TASK_RANK",
    "JSM_NAMESPACE_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)


def _run_next_sitecustomize() -> None:
    """
    Import the sitecustomize that this one hides, if any.
    """
    own = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401 another
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


def _is_rank_to_debug() -> bool:
    """
    Return whether this is a rank to debug; must be fast.
    """
    if os.environ.get("DISTDEBUG", "0") in {"", "0"}:
        return False

    if sys.version_info < (3, 11):
        return False

    # A worker of Ray may get its rank later.
    return any(os.environ.get(name) for name in _RANK_VARIABLES) or any(
        arg.endswith("default_worker.py") for arg in sys.orig_argv[:8]
    )


def _arm() -> None:
    try:
        try:
            from distdebug.debugger.inside.launchers import arm_if_rank
        except ImportError:  # not installed for this Python
            root = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))
            sys.path.append(root)
            try:
                from distdebug.debugger.inside.launchers import arm_if_rank
            finally:
                sys.path.remove(root)
        arm_if_rank()
    # A job must always start, even with another package called distdebug.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        sys.stderr.write(f"distdebug: cannot be debugged: {error!r}\n")
        _ignore_breakpoints()


def _ignore_breakpoints() -> None:
    """
    Ignore breakpoints: they would retry what has failed, and end the job.
    """
    if os.environ.get("PYTHONBREAKPOINT", "").startswith("distdebug."):
        sys.breakpointhook = lambda *_, **__: None


try:
    _run_next_sitecustomize()
finally:
    if _is_rank_to_debug():
        _arm()

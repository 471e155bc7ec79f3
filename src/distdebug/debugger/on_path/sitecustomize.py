"""
May this process be asked, although its program knows nothing of us?

Python imports a module of this name when it starts, from the first folder of
``PYTHONPATH`` that has one.  So whatever is started in such an environment comes
here: every version of Python 3, and every small tool.  It must not cost them
anything, or break them: this is written in what all of them understand, and
does nothing but for a rank of a job that shall be debugged.
"""

import os
import sys


_HERE = os.path.dirname(os.path.abspath(__file__))

# What launchers set for each rank: see distdebug.identity.
_RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)


def _make_way() -> None:
    """
    Let the module of this name run that would have run without us.
    """
    own = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401 another
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


def _is_wanted() -> bool:
    """
    Tell whether this is a rank that shall be debugged; it must be quick.
    """
    if os.environ.get("DISTDEBUG", "0") in {"", "0"}:
        return False

    if sys.version_info < (3, 11):
        return False

    # A worker of Ray may be told its rank later.
    return any(os.environ.get(name) for name in _RANKS) or any(
        arg.endswith("default_worker.py") for arg in sys.orig_argv[:8]
    )


def _begin() -> None:
    try:
        try:
            from ..inside.launchers import begin
        except ImportError:  # it is not installed for this Python
            root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
            sys.path.append(root)
            try:
                from ..inside.launchers import begin
            finally:
                sys.path.remove(root)
        begin()
    # Nothing may keep a job from starting, not even another package of our name.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        sys.stderr.write(f"distdebug: cannot be debugged: {error!r}\n")
        _pass_breakpoints()


def _pass_breakpoints() -> None:
    """
    Let no breakpoint try again what has failed, and end the job by that.
    """
    if os.environ.get("PYTHONBREAKPOINT", "").startswith("distdebug."):
        sys.breakpointhook = lambda *_, **__: None


try:
    _make_way()
finally:
    if _is_wanted():
        _begin()

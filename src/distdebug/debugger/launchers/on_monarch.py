"""
How are the actors of Monarch debugged like any other rank?

Monarch runs endpoints in loops of its own, and catches what they raise.  One
process holds several actors, and is a rank of each mesh, slice, or view that a
message was sent to.

What is replaced here are three methods of Monarch's own, as there are in
torchmonarch 0.7; if one is missing, the rest works without it.

This module is imported inside training jobs: it needs nothing but the standard
library and Monarch.
"""

from __future__ import annotations

import os

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ..folders import base_folder
from ..inside.arming import arm
from ..inside.labels import label_by
from ..inside.prompt import release_thread
from ..inside.settings import is_off, say
from .caught import examine_caught


__all__ = ["monarch_setup"]

# Whether the message that is handled was stopped.
_has_stopped: ContextVar[bool] = ContextVar("_has_stopped", default=False)
# Which message this thread handles; all that are handled; and the latest of all.
_handles: ContextVar[Any] = ContextVar("_handles", default=None)
_handled: dict[int, Any] = {}
_latest: list[Any] = []
_replaced: set[str] = set()
_wanted: set[str] = set()


def monarch_setup(*, post_mortem: bool = False) -> None:
    """
    Let the actors of this process be debugged from outside.

    To be called in each process of a mesh, which Monarch does by itself::

        host.spawn_procs(
            per_host={"gpus": 8}, bootstrap=distdebug.monarch_setup
        )

    or in the ``__init__`` of an actor.  From then on ``breakpoint()`` stops
    there, and ``distdebug dbg`` lists every process: its group is the name of
    the actor; its rank and coordinates are those of the mesh or view that the
    message was sent to.  Those of a slice are told as in the mesh of the actor,
    so that two slices do not look the same.

    Debugging ends with the endpoint, so that it never comes into Monarch's own
    loops.  In a process that has come to a breakpoint, an endpoint that fails
    stops where it raised.

    Args:
        post_mortem: Whether an endpoint that fails stops there also in a
            process that has come to no breakpoint.
    """
    if is_off():
        return

    if post_mortem:
        _wanted.add("post mortem")
    label_by(_labels)
    job = os.environ.get("HYPERACTOR_EXECUTION_ID", "")
    arm(dir=os.environ.get("DISTDEBUG_DIR") or _folder(job), breakpoints=True)
    _replace("_prepare", _remembering)
    _replace("_maybe_exit_debugger", _ending)
    _replace("_post_mortem_debug", _examining)


def _folder(job: str) -> str:
    name = "".join(c if c.isalnum() else "-" for c in job)[-32:]
    return str(base_folder() / f"monarch-{name}")


def _replace(
    name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """
    Replace a method of those who handle messages, once.
    """
    if name in _replaced:
        return

    try:
        from monarch._src.actor.actor_mesh import _Actor

        setattr(_Actor, name, make(getattr(_Actor, name)))
    except (ImportError, AttributeError) as exc:
        say("this Monarch is not known, and debugged in part only: %s", exc)
    else:
        _replaced.add(name)


def _remembering(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """
    A message comes: keep under which rank.
    """

    def _prepare(self: Any, ctx: Any, *args: Any) -> Any:
        _has_stopped.set(False)
        _handles.set(ctx)
        _handled[id(ctx)] = ctx
        _latest[:] = [ctx]
        return prepare(self, ctx, *args)

    return _prepare


def _ending(leave: Callable[..., Any]) -> Callable[..., Any]:
    """
    An endpoint has ended: so does its debugging.
    """

    def _maybe_exit_debugger(self: Any, *args: Any, **kwargs: Any) -> None:
        _leave_message()
        leave(self, *args, **kwargs)

    return _maybe_exit_debugger


def _examining(examine: Callable[..., Any]) -> Callable[..., Any]:
    """
    An endpoint has failed: stop there, instead of in Monarch's debugger.
    """
    del examine

    def _post_mortem_debug(self: Any, trace: Any) -> None:
        del self, trace
        examine_caught(always="post mortem" in _wanted)
        _leave_message()

    return _post_mortem_debug


def _leave_message() -> None:
    """
    This thread has handled its message.
    """
    # It handles others, too, between its awaits.
    if _has_stopped.get():
        release_thread()
    _handled.pop(id(_handles.get()), None)


def _labels() -> dict[str, Any]:
    """
    Who is addressed by the message that this thread handles?

    A thread that handles none, such as one that an endpoint has started, belongs
    to the message that came last of those that are handled still; or of all, if
    none is.  A thread asks when it is about to stop.
    """
    from monarch._src.actor import actor_mesh

    # Its context() would begin to be a client, in a thread that has none.
    context: Any = actor_mesh._context.get()  # noqa: SLF001
    if context is None:
        context = [*_latest, *list(_handled.values())][-1]
    _has_stopped.set(True)
    instance = context.actor_instance
    there, own = context.message_rank, instance.rank
    # A slice begins at 0 again, and does not tell in which plane it lies.
    place = own if set(there) < set(own) else there
    return {
        "group": instance.name,
        "rank": place.rank,
        "coords": {str(name): int(place[name]) for name in place},
    }

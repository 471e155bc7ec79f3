"""
How is a process debugged that a launcher runs in its own way?

Ray and Monarch take ``breakpoint()`` for themselves, run many actors in their own
loops, and catch what these raise.
"""

from __future__ import annotations

import os
import re
import sys

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from ...identity import current_identity
from ..protocol import base_folder
from .arming import are_crashes_examined, arm, post_mortem
from .prompt import release_thread
from .settings import is_off, label_by, say


def examine_caught(*, always: bool) -> None:
    """
    Stop where the exception was raised that is handled right now.

    Args:
        always: Whether to do so in a process that never came to a breakpoint.
    """
    if always or are_crashes_examined():
        post_mortem().__exit__(*sys.exc_info())


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


_HOOK = "worker_process_setup_hook"
_SETUP = "distdebug.ray_debugger_setup"
_NUMBER = re.compile(r"[-_:.#]{0,4}([0-9]{1,9})\Z")


def ray_debugger_setup() -> None:
    """
    Let this worker of Ray be debugged from outside.

    To be given to Ray, which calls it in each worker::

        ray.init(
            runtime_env={
                "worker_process_setup_hook": distdebug.ray_debugger_setup
            }
        )

    From then on ``breakpoint()`` stops there, and ``distdebug dbg`` lists every
    worker: its group is the name of its actor without the number at its end,
    or the class if it has none, or the task; its rank is what the environment
    or torch says, or else the attribute *rank* of the actor, or the number at
    the end of its name.

    With ``RAY_DEBUG_POST_MORTEM=1``, and in a worker that has come to a
    breakpoint, a task that fails stops where it raised.
    """
    if is_off():
        return

    label_by(ray_labels)
    folder = os.environ.get("DISTDEBUG_DIR") or _on_ray_folder()
    arm(dir=folder, breakpoints=True)
    _take_crashes()


def ray_debugger_env(
    runtime_env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Add :func:`ray_debugger_setup` to the runtime environment of a job.

    Variables of this process whose names begin with ``DISTDEBUG`` are passed
    on to the workers.  Nothing has to be changed in a program that is started
    with ``RAY_RUNTIME_ENV_HOOK=distdebug.ray_debugger_env``.

    Args:
        runtime_env: What the job has by itself.  A set-up function of its own
            is kept, and called by nobody else: it has to call ours.

    Returns:
        The runtime environment with which to initialize Ray.
    """
    found = dict(runtime_env or {})
    passed = {k: v for k, v in os.environ.items() if k.startswith("DISTDEBUG")}
    found["env_vars"] = {**passed, **(found.get("env_vars") or {})}
    found.setdefault(_HOOK, _SETUP)
    return found


def _on_ray_folder() -> str:
    """
    One for each job of each cluster on this node.
    """
    job, session = "job", ""
    with suppress(Exception):
        context = _context()
        job = context.get_job_id()
        session = context.get_session_name().rpartition("_")[2]
    return str(base_folder() / f"ray-{job}-{session}")


def _take_crashes() -> None:
    """
    Stop where a task raised, instead of letting Ray's debugger do so.
    """
    with suppress(Exception):
        from ray.util import rpdb

        # Ray's worker asks for them by name, whenever a task has failed.
        vars(rpdb).update(
            _is_ray_debugger_post_mortem_enabled=lambda: True,
            _post_mortem=_examine,
        )


def _examine() -> None:
    examine_caught(always=os.environ.get("RAY_DEBUG_POST_MORTEM") == "1")


def ray_labels() -> dict[str, Any]:
    """
    How is this worker addressed, as Ray says to any of its threads?

    Returns:
        Its *group*, and its *rank* if the environment does not tell it.
    """
    ray: Any = sys.modules["ray"]
    worker = ray._private.worker.global_worker  # noqa: SLF001 of this process
    if not _has_job(worker):
        return {"group": "idle"}

    actor = worker.actors.get(worker.actor_id)
    if actor is None:
        task = _context().get_task_function_name() or "idle"
        return {"group": task.rpartition(".")[2]}

    name = _context().get_actor_name() or ""
    group = _NUMBER.sub("", name) or type(actor).__name__
    return {"group": group, **_rank(actor, name)}


def _has_job(worker: Any) -> bool:
    """
    Whether Ray may be asked what this worker does: before, it would abort.
    """
    core = getattr(worker, "core_worker", None)
    return core is not None and not core.get_current_job_id().is_nil()


def _context() -> Any:
    # That of the module *ray* would start a cluster of its own where this
    # process is not connected to any.
    return sys.modules["ray.runtime_context"].get_runtime_context()


def _rank(actor: object, name: str) -> dict[str, int]:
    if current_identity().rank is not None:
        return {}

    own = getattr(actor, "__dict__", {}).get("rank")
    if isinstance(own, int):
        return {"rank": own}
    number = _NUMBER.search(name)
    return {"rank": int(number[1])} if number else {}


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

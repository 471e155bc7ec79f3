"""
Debugger set-up for launchers with their own loops: Ray, Monarch, and others.

Ray and Monarch take over ``breakpoint()``, run actors in their own loops, and
catch the exceptions of user code.
"""

from __future__ import annotations

import functools
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
from .settings import is_disabled, log_warning, set_label_source


def examine_current_exception(*, always: bool) -> None:
    """
    Stop where the exception was raised that is being handled.

    Args:
        always: Whether to stop even if this process has reached no breakpoint.
    """
    if always or are_crashes_examined():
        post_mortem().__exit__(*sys.exc_info())


# Whether the current message was stopped.
_message_stopped: ContextVar[bool] = ContextVar("_has_stopped", default=False)
# The message of this thread; all messages being handled; the latest of all.
_current_message: ContextVar[Any] = ContextVar("_handles", default=None)
_open_messages: dict[int, Any] = {}
_latest_message: list[Any] = []
_replaced: set[str] = set()
_options: set[str] = set()


def monarch_setup(*, post_mortem: bool = False) -> None:
    """
    Let the actors of this process be debugged from outside.

    Call it in each process of a mesh; Monarch does so with::

        host.spawn_procs(
            per_host={"gpus": 8}, bootstrap=distdebug.debugger.monarch_setup
        )

    or in the ``__init__`` of an actor.  From then on ``breakpoint()`` stops
    there, and ``distdebug dbg`` lists every process: its group is the name of
    the actor; its rank and coordinates are those of the mesh or view that
    received the message.  For a slice they are those in the mesh of the actor,
    so that two slices differ.

    Debugging ends with the endpoint, so it never enters the loops of Monarch.
    In a process that has reached a breakpoint, an endpoint that fails stops
    where it raised.

    Args:
        post_mortem: Whether an endpoint that fails also stops in a process
            that has reached no breakpoint.
    """
    if is_disabled():
        return

    if post_mortem:
        _options.add("post mortem")
    set_label_source(_monarch_labels)
    job = os.environ.get("HYPERACTOR_EXECUTION_ID", "")
    arm(
        dir=os.environ.get("DISTDEBUG_DIR") or _monarch_folder(job),
        breakpoints=True,
    )
    _replace("_prepare", _begin_message)
    _replace("_maybe_exit_debugger", _finish_message)
    # Instead of the debugger of Monarch.
    _replace("_post_mortem_debug", _examine_failure, calls_original=False)


def _monarch_folder(job: str) -> str:
    name = "".join(c if c.isalnum() else "-" for c in job)[-32:]
    return str(base_folder() / f"monarch-{name}")


def _replace(
    name: str, hook: Callable[..., None], *, calls_original: bool = True
) -> None:
    """
    Let a method of Monarch's message handler call a hook first, once.
    """
    if name in _replaced:
        return

    try:
        from monarch._src.actor.actor_mesh import _Actor

        original = getattr(_Actor, name)
    except (ImportError, AttributeError) as exc:
        log_warning(
            "this Monarch is not known, and debugged in part only: %s", exc
        )
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook(*args, **kwargs)
        return original(self, *args, **kwargs) if calls_original else None

    setattr(_Actor, name, method)
    _replaced.add(name)


def _begin_message(ctx: Any, *_: Any, **__: Any) -> None:
    """
    Remember the message that this thread starts to handle.
    """
    _message_stopped.set(False)
    _current_message.set(ctx)
    _open_messages[id(ctx)] = ctx
    _latest_message[:] = [ctx]


def _examine_failure(*_: Any, **__: Any) -> None:
    """
    Stop where an endpoint failed.
    """
    examine_current_exception(always="post mortem" in _options)
    _finish_message()


def _finish_message(*_: Any, **__: Any) -> None:
    """
    Forget the message that this thread has handled.
    """
    # The thread handles other messages between the awaits of this one.
    if _message_stopped.get():
        release_thread()
    _open_messages.pop(id(_current_message.get()), None)


def _monarch_labels() -> dict[str, Any]:
    """
    Return the labels that the current message addresses.

    A thread without a message, such as one that an endpoint has started,
    belongs to the latest message still handled; without one, to the latest of
    all.  A thread calls this when it is about to stop.
    """
    from monarch._src.actor import actor_mesh

    # context() would create a client in a thread without one.
    context: Any = actor_mesh._context.get()  # noqa: SLF001
    if context is None:
        context = [*_latest_message, *list(_open_messages.values())][-1]
    _message_stopped.set(True)
    instance = context.actor_instance
    message_rank, actor_rank = context.message_rank, instance.rank
    # The ranks of a slice start at 0 and omit the dropped dimensions.
    rank_place = (
        actor_rank if set(message_rank) < set(actor_rank) else message_rank
    )
    return {
        "group": instance.name,
        "rank": rank_place.rank,
        "coords": {str(name): int(rank_place[name]) for name in rank_place},
    }


_SETUP_HOOK_KEY = "worker_process_setup_hook"
_SETUP = "distdebug.debugger.ray_debugger_setup"
_TRAILING_NUMBER = re.compile(r"[-_:.#]{0,4}([0-9]{1,9})\Z")


def ray_debugger_setup() -> None:
    """
    Let this worker of Ray be debugged from outside.

    Pass it to Ray, which calls it in each worker::

        ray.init(
            runtime_env={
                "worker_process_setup_hook": distdebug.debugger.ray_debugger_setup
            }
        )

    From then on ``breakpoint()`` stops there, and ``distdebug dbg`` lists
    every worker.  Its group is the name of its actor without the number at the
    end, the class of an actor without a name, or the task.  Its rank comes
    from the environment or torch, the attribute *rank* of the actor, or the
    number at the end of its name.

    With ``RAY_DEBUG_POST_MORTEM=1``, and in a worker that has reached a
    breakpoint, a task that fails stops where it raised.
    """
    if is_disabled():
        return

    set_label_source(ray_labels)
    folder = os.environ.get("DISTDEBUG_DIR") or _ray_folder()
    arm(dir=folder, breakpoints=True)
    _replace_ray_post_mortem()


def ray_debugger_env(
    runtime_env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Add :func:`ray_debugger_setup` to the runtime environment of a job.

    Variables of this process whose names begin with ``DISTDEBUG`` are passed
    on to the workers.  A program needs no change if it is started with
    ``RAY_RUNTIME_ENV_HOOK=distdebug.debugger.ray_debugger_env``.

    Args:
        runtime_env: The runtime environment of the job.  If it has a set-up
            hook, that is kept, and must call :func:`ray_debugger_setup`
            itself.

    Returns:
        The runtime environment to initialize Ray with.
    """
    found = dict(runtime_env or {})
    passed = {k: v for k, v in os.environ.items() if k.startswith("DISTDEBUG")}
    found["env_vars"] = {**passed, **(found.get("env_vars") or {})}
    found.setdefault(_SETUP_HOOK_KEY, _SETUP)
    return found


def _ray_folder() -> str:
    """
    Return a folder for each job of each cluster on this node.
    """
    job, session = "job", ""
    with suppress(Exception):
        context = _ray_context()
        job = context.get_job_id()
        session = context.get_session_name().rpartition("_")[2]
    return str(base_folder() / f"ray-{job}-{session}")


def _replace_ray_post_mortem() -> None:
    """
    Stop where a task raised, instead of in Ray's debugger.
    """
    with suppress(Exception):
        from ray.util import rpdb

        # Ray's worker looks them up by name when a task has failed.
        vars(rpdb).update(
            _is_ray_debugger_post_mortem_enabled=lambda: True,
            _post_mortem=_ray_post_mortem,
        )


def _ray_post_mortem() -> None:
    examine_current_exception(
        always=os.environ.get("RAY_DEBUG_POST_MORTEM") == "1"
    )


def ray_labels() -> dict[str, Any]:
    """
    Return the labels of this worker, as known to Ray.

    Returns:
        Its *group*, and its *rank* unless the environment sets it.
    """
    ray: Any = sys.modules["ray"]
    worker = ray._private.worker.global_worker  # noqa: SLF001 of this process
    if not _has_job(worker):
        return {"group": "idle"}

    actor = worker.actors.get(worker.actor_id)
    if actor is None:
        task = _ray_context().get_task_function_name() or "idle"
        return {"group": task.rpartition(".")[2]}

    name = _ray_context().get_actor_name() or ""
    group = _TRAILING_NUMBER.sub("", name) or type(actor).__name__
    return {"group": group, **_ray_rank(actor, name)}


def _has_job(worker: Any) -> bool:
    """
    Return whether the worker has a job; without one, Ray calls abort.
    """
    core = getattr(worker, "core_worker", None)
    return core is not None and not core.get_current_job_id().is_nil()


def _ray_context() -> Any:
    # The function in the module *ray* would start a cluster if this process is
    # not connected to one.
    return sys.modules["ray.runtime_context"].get_runtime_context()


def _ray_rank(actor: object, name: str) -> dict[str, int]:
    if current_identity().rank is not None:
        return {}

    attribute = getattr(actor, "__dict__", {}).get("rank")
    if isinstance(attribute, int):
        return {"rank": attribute}
    number = _TRAILING_NUMBER.search(name)
    return {"rank": int(number[1])} if number else {}


# The armed rank, for the processes that it starts.
_ARMED_VARIABLE = "DISTDEBUG_ARMED"

# One launcher per node under Slurm has the variables of a rank, too.
_LAUNCHER_PROGRAMS = re.compile(
    r"(?:^|/)(?:torchrun|accelerate(?:-launch)?|deepspeed|composer"
    r"|ft_launcher|dlrover-run|horovodrun|colossalai)$"
    r"|^torch\.distributed\.(?:run|launch)$"
    r"|^accelerate\.commands\.launch$|^deepspeed\.launcher\.\w+$"
    r"|(?:^|/)distdebug$"  # our own commands
)
_RAY_WORKER = "ray/_private/workers/default_worker.py"
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def arm_if_rank() -> bool:
    """
    Arm this process if it is a rank; return whether it is.

    Launchers are no ranks, and neither are the processes that a rank starts,
    although they inherit its variables.  Their own breakpoints can still stop
    them.
    """
    identity = current_identity()
    program = _program_name(sys.orig_argv)
    if identity.source != "torchrun" and _LAUNCHER_PROGRAMS.search(program):
        return False

    mark = f"{identity.source} {identity.rank} {identity.job}"
    pid, _, previous_mark = os.environ.get(_ARMED_VARIABLE, "").partition(" ")
    # After an exec the PID is the same.
    if previous_mark == mark and pid != str(os.getpid()):
        return False

    if program.endswith(_RAY_WORKER):
        set_label_source(ray_labels)
    os.environ[_ARMED_VARIABLE] = f"{os.getpid()} {mark}"
    # Ray overwrites the variable later, but not a hook that is already set.
    # Without the hook, pdb would read the end of its input and end the rank.
    hook = os.environ.get("PYTHONBREAKPOINT") or "distdebug."
    return arm(breakpoints=hook.startswith("distdebug.")) is not None


def _program_name(arguments: Sequence[str]) -> str:
    """
    Return the script or module that a Python command line runs.
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

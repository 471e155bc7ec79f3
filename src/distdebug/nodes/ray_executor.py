"""
How do calls run on a Ray cluster, as those of any executor?
"""

from __future__ import annotations

import signal
import threading

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any

from ..errors import NodesError
from .ray import Ray, runtime_env_of


__all__ = ["RayExecutor"]


class RayExecutor(Executor):
    """
    Runs calls as tasks of a Ray cluster.

    ::

        with RayExecutor() as executor:
            dumps = distdebug.read_dumps("/shared/dumps", executor=executor)

    A process that is connected to Ray stays so, and its connection is used;
    otherwise it connects, and disconnects when the executor is shut down.

    What a call returns or raises is unpickled here, by Ray: whoever can run
    code on the cluster can run code in this process, as in every program
    that uses Ray.

    Args:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        node: The only node where calls run: its host name, address, or ID.
            So files can be read where they lie.

        num_cpus: How many CPUs each call takes; with 0 they run beside a job
            that uses all of them.

        runtime_env: The runtime environment of the calls.

        job: The job whose runtime environment to use, as its number or its
            submission ID.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: There is no such cluster, node, or job.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        node: str | None = None,
        num_cpus: float = 1,
        runtime_env: Mapping[str, Any] | None = None,
        job: str | None = None,
    ) -> None:
        # Asked elsewhere first: to connect may take for ever.
        where = Ray(address).locate()
        import ray

        self._is_ours = not ray.is_initialized()
        self._is_down = False
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        if self._is_ours:
            _connect(where)
        try:
            self._options = _options(node, runtime_env, job)
        except BaseException:
            self._disconnect()
            raise
        self._remote = ray.remote(num_cpus=num_cpus, max_retries=0)(_call)

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """
        Run a call somewhere.

        Args:
            fn: What to call; it and what it takes and returns are pickled.

            args: What it takes.

            kwargs: What it takes by name.

        Returns:
            What becomes of it; to cancel it ends it even if it runs.

        Raises:
            RuntimeError: The executor is shut down.
        """
        with self._lock:
            if self._is_down:
                msg = "cannot schedule new futures after shutdown"
                raise RuntimeError(msg)
            task = self._remote.options(**self._options)
            future = _RayFuture(task.remote(fn, args, kwargs))
            self._open.add(future)
        future.add_done_callback(self._done)
        future.follow()
        return future

    def shutdown(
        self,
        wait: bool = True,  # noqa: FBT001, FBT002 -- as of every executor
        *,
        cancel_futures: bool = False,
    ) -> None:
        """
        Take no more calls.

        Args:
            wait: Whether to wait for those that run, and to disconnect then;
                otherwise the end of the process disconnects.

            cancel_futures: Whether to end what runs.
        """
        with self._lock:
            self._is_down = True
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            wait_for(left)
            self._disconnect()

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    def _disconnect(self) -> None:
        import ray

        if self._is_ours:
            self._is_ours = False
            ray.shutdown()


class _RayFuture(Future[Any]):
    """
    A future that ends its task when it is cancelled.
    """

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self._ref = ref
        self._deciding = threading.RLock()

    def follow(self) -> None:
        """
        Be done when the task is.
        """
        self._ref.future().add_done_callback(self._take)

    def cancel(self) -> bool:
        """
        End the task, unless it is done.

        Returns:
            Whether it is cancelled.
        """
        import ray

        with self._deciding:
            if self.done():
                return self.cancelled()
            super().cancel()
            # Nobody else tells those who wait for it.
            self.set_running_or_notify_cancel()
        with suppress(Exception):
            ray.cancel(self._ref, force=False)
        return True

    def _take(self, done: Future[Any]) -> None:
        with self._deciding:
            if self.cancelled():
                return
            self.set_running_or_notify_cancel()
            if error := done.exception():
                self.set_exception(error)
            else:
                self.set_result(done.result())


def _call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """
    Runs in a Ray worker.
    """
    return function(*args, **kwargs)


def _connect(address: str) -> None:
    import ray

    # Ray takes this signal over; it is none of its business here.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address,
            namespace="_distdebug",
            log_to_driver=False,
            configure_logging=False,
        )
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _options(
    node: str | None, runtime_env: Mapping[str, Any] | None, job: str | None
) -> dict[str, Any]:
    options: dict[str, Any] = {"name": "distdebug"}
    if runtime_env is not None or job is not None:
        options["runtime_env"] = runtime_env_of(runtime_env, job)
    if node is not None:
        options["scheduling_strategy"] = _place(node)
    return options


def _place(node: str) -> Any:
    import ray

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    names = ("NodeManagerHostname", "NodeManagerAddress", "NodeName", "NodeID")
    alive = [x for x in ray.nodes() if x["Alive"]]
    for found in alive:
        if node in {found.get(name) for name in names}:
            return NodeAffinitySchedulingStrategy(found["NodeID"], soft=False)
    hosts = ", ".join(sorted({x["NodeManagerHostname"] for x in alive}))
    msg = f"the Ray cluster has no live node {node!r}; it has {hosts}"
    raise NodesError(msg, remedy="name one of them")

"""
Run commands, streams, and executor calls on the nodes of a Ray cluster.

:class:`Ray` reaches the cluster through a child process,
:mod:`distdebug.nodes.ray_driver`; :class:`RayExecutor` connects this process.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import sys
import threading
import time

from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import attrs

from .._io import read_ordinary
from .._text import clean
from ..errors import MissingDependencyError, NodesError
from .process import Channel, ChildSession, Connector, child_session
from .results import (
    CompletedCommand,
    NodeFailure,
    NodeReply,
    NodeStatus,
    completed_from_line,
)


_REASON_WAIT_S = 0.5


def _open_channel(
    session: ChildSession,
    host: str,
    argv: Sequence[str],
    control: socket.socket,
    failures: dict[str, NodeFailure],
) -> Channel:
    ours, theirs = socket.socketpair()
    request = json.dumps({"host": host, "argv": list(argv)}).encode()
    with theirs:
        try:
            socket.send_fds(control, [request], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise

    return Channel(
        socket=ours,
        failure=partial(_read_failure, session, host, failures),
        wait=lambda _: None,
    )


def _read_failure(
    session: ChildSession, host: str, failures: dict[str, NodeFailure]
) -> NodeFailure:
    deadline = time.monotonic() + _REASON_WAIT_S
    line: bytes | None = b""
    with suppress(TimeoutError, ValueError):
        while host not in failures and line is not None:
            line = session.read_line(deadline)
            message = json.loads(line or b"{}")
            if "trouble" in message:
                status, reason, remedy = message["trouble"]
                failures[message["host"]] = NodeFailure(
                    NodeStatus(status), reason, remedy
                )
    broken = NodeFailure(NodeStatus.FAILED, "the connection to Ray broke")
    return failures.pop(host, broken)


# A connection takes a second; without an answer, Ray waits for ever.
_CONNECT_S = 30.0
_MODULE = f"{__package__}.ray_driver"


@attrs.frozen
class Ray:
    """
    The nodes of a Ray cluster.

    Each live node runs one task without CPUs in the runtime environment of the
    job, and the task runs the command.  Nodes that have died are results, too.

    A child process connects to the cluster, so that Ray changes nothing in
    this one.

    Attributes:
        address: The cluster, as ``HOST:PORT``; by default the one of this
            process or node.

        runtime_env: The runtime environment to use in place of the job's.

        job: The job whose runtime environment to use, as its number or
            submission ID; by default the job of this process, or the only
            running one.

        python: The Python that runs functions; by default that of the job.

        at_once: How many nodes run the command at the same time.

        grace_s: How long a node may take, in seconds, to start the command,
            and to end it after its timeout.
    """

    address: str = "auto"
    runtime_env: Mapping[str, Any] | None = attrs.field(
        default=None, kw_only=True
    )
    job: str | None = attrs.field(default=None, kw_only=True)
    python: str = attrs.field(default="", kw_only=True)
    at_once: int = attrs.field(default=256, kw_only=True)
    grace_s: float = attrs.field(default=10.0, kw_only=True)

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[NodeReply]:
        """
        Run a command on each node and yield the replies as they arrive.

        Args:
            data: Its standard input; ``None`` for an empty one.

            timeout_s: How long it may take on each node, in seconds.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, its Ray or Python differs
                from the local one, or the job is unknown or ambiguous.
        """
        sent = None if data is None else base64.b64encode(data).decode()
        task = {"argv": list(argv), "data": sent, "timeout_s": timeout_s}
        with self._start_driver(task) as session:
            hosts = _read_hosts(session, self.address)["hosts"]
            turns = -(-len(hosts) // self.at_once)
            limit_s = turns * (timeout_s + self.grace_s) + _CONNECT_S
            deadline = time.monotonic() + limit_s
            yield from _replies(session, hosts, deadline)

    @contextmanager
    def connectors(
        self, argv: Sequence[str]
    ) -> Iterator[Mapping[str, Connector]]:
        """
        Yield a connector for each node, by host name.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, its Ray or Python differs
                from the local one, or the job is unknown or ambiguous.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        failures: dict[str, NodeFailure] = {}
        with ours, theirs:
            fd = theirs.fileno()
            task = {"argv": [], "doors": fd}
            with self._start_driver(task, pass_fds=[fd]) as session:
                theirs.close()
                hosts = _read_hosts(session, self.address)["hosts"]
                try:
                    yield {
                        host: partial(
                            _open_channel, session, host, argv, ours, failures
                        )
                        for host in hosts
                    }
                finally:
                    ours.close()

    def locate(self) -> str:
        """
        Connect to the cluster and return its address, as ``HOST:PORT``.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, or its version differs.
        """
        with self._start_driver({"argv": [], "runtime_env": {}}) as session:
            return str(_read_hosts(session, self.address)["address"])

    def _start_driver(
        self, task: Mapping[str, Any], pass_fds: Collection[int] = ()
    ) -> Any:
        argv, environment = ray_child(_MODULE)
        address, job = resolve_cluster(self.address)
        request = {
            "address": address,
            "runtime_env": self.runtime_env,
            "job": self.job or job,
            "at_once": self.at_once,
            "grace_s": self.grace_s,
            **task,
        }
        return child_session(
            argv,
            request=json.dumps(request).encode(),
            environment=environment,
            pass_fds=pass_fds,
        )


def resolve_cluster(address: str | None) -> tuple[str, str | None]:
    """
    Return the address of a Ray cluster, and the job of this process in it.

    Args:
        address: The cluster, as ``HOST:PORT``; ``"auto"`` or ``None`` for the
            one that this process, or this node, belongs to.

    Returns:
        The address, ``"auto"`` if only Ray can find it; and the job, ``None``
        if this process is not known to be part of the cluster.

    Raises:
        NodesError: *address* is none of a running cluster.
    """
    if address in {"", "local"} or "://" in (address or ""):
        msg = f"{address!r} is no address of a running Ray cluster"
        raise NodesError(
            msg, remedy="say 'auto' or 'HOST:6379', on a node of the cluster"
        )

    ray = sys.modules.get("ray")
    if address in {None, "auto"} and ray and ray.is_initialized():
        context = ray.get_runtime_context()
        return str(context.gcs_address), context.get_job_id()
    return address or "auto", None


def ray_child(module: str) -> tuple[list[str], dict[str, str]]:
    """
    Return command and environment of a child that connects to a cluster.

    Args:
        module: What the child runs.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    if find_spec("ray") is None:
        msg = "Ray is not installed here"
        remedy = (
            "install the version of the cluster: ray==...; reading files "
            "needs none"
        )
        raise MissingDependencyError(msg, remedy=remedy)
    # Keep Ray from applying this process's `uv run` to the workers.
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    return [sys.executable, "-P", "-m", module], environment


@contextmanager
def answer_stream() -> Iterator[IO[str]]:
    """
    Yield the standard output of a child process, for its answers alone.

    What Ray prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        yield answers


def _read_hosts(session: ChildSession, address: str) -> dict[str, Any]:
    try:
        line = session.read_line(time.monotonic() + _CONNECT_S)
    except TimeoutError as exc:
        msg = f"no Ray cluster answers at {address} within {_CONNECT_S:g} s"
        raise NodesError(
            msg,
            remedy="run it on a node of the cluster, where `ray status` "
            "answers, with the Ray and the Python of the cluster",
        ) from exc
    if line is None:
        remedy = "run it on another node of the cluster"
        raise NodesError(_connection_error(session), remedy=remedy)
    answer: dict[str, Any] = json.loads(line)
    if "hosts" not in answer:
        raise NodesError(answer["reason"], remedy=answer["remedy"])
    return answer


def _replies(
    session: ChildSession, hosts: Sequence[str], deadline: float
) -> Iterator[NodeReply]:
    begin = time.monotonic()
    missing = dict.fromkeys(hosts)
    failure = None
    while missing:
        try:
            line = session.read_line(deadline)
        except (TimeoutError, ValueError):
            break
        if line is None:
            reason = _connection_error(session)
            failure = NodeFailure(NodeStatus.FAILED, reason)
            break
        answer = json.loads(line)
        missing.pop(answer["host"], None)
        yield NodeReply(
            answer["host"],
            completed_from_line(answer["ended"]),
            len(hosts),
            answer["seconds"],
        )

    seconds = time.monotonic() - begin
    unfinished = CompletedCommand(failure=failure)
    for host in missing:
        yield NodeReply(host, unfinished, len(hosts), seconds)


def _connection_error(session: ChildSession) -> str:
    lines = map(clean, session.stderr.decode("utf-8", "replace").splitlines())
    last = [line for line in lines if line][-1:]
    return ": ".join(["the connection to Ray broke", *last])


# The other keys are for the job's own workers only, such as a profiler.
_SHARED = (
    *("working_dir", "py_modules", "py_executable", "pip", "uv", "conda"),
    *("env_vars", "container", "image_uri", "config"),
)
_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


class _Job(NamedTuple):
    number: str
    submission: str
    entrypoint: str
    env: dict[str, Any]


def runtime_env_of(
    override: Mapping[str, Any] | None, job: str | None
) -> Mapping[str, Any] | None:
    """
    Return the runtime environment of a job, for tasks beside it.

    Args:
        override: Returned unchanged unless it is ``None``.

        job: The number of the job, such as ``"02000000"``, or its submission
            ID; by default the only running one.

    Returns:
        The runtime environment, with the URIs of what is already uploaded.

    Raises:
        NodesError: There is no such job, or several jobs differ.
    """
    if override is not None:
        return override
    running = _running_jobs()
    if job is not None:
        running = [x for x in running if job in {x.number, x.submission}]
        if not running:
            msg = f"Ray runs no job {clean(job)!r}"
            raise NodesError(msg, remedy="`ray job list` lists their names")
    if any(x.env != running[0].env for x in running[1:]):
        names = ", ".join(
            f"{x.submission or x.number} ({clean(x.entrypoint)[:60]})"
            for x in running
        )
        msg = f"jobs with different runtime environments run: {names}"
        raise NodesError(msg, remedy="say which one by job=...")
    return running[0].env if running else None


def shared_env(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the part of a job's runtime environment that other workers can use.

    Args:
        runtime_env: The runtime environment, as Ray stores it.
    """
    env = {key: runtime_env[key] for key in _SHARED if key in runtime_env}
    variables = env.get("env_vars")
    if isinstance(variables, dict):
        env["env_vars"] = {k: v for k, v in variables.items() if k != _HOOK}
    return env


def _running_jobs() -> list[_Job]:
    """
    Return the running jobs, without those of Ray and distdebug.
    """
    import ray

    # The public API to this table needs a dashboard, which many clusters lack.
    client = ray._private.worker.global_worker.gcs_client  # noqa: SLF001
    ours = ray.get_runtime_context().get_job_id()
    try:
        table = client.get_all_job_info(
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
        )
        return [
            _job(row)
            for row in table.values()
            if not row.is_dead
            and row.job_id.hex() != ours
            and not row.config.ray_namespace.startswith(("_ray_", "_distdeb"))
        ]
    except (AttributeError, TypeError, ValueError) as exc:
        msg = f"this Ray does not list its jobs: {type(exc).__name__}: {exc}"
        raise NodesError(msg, remedy="give runtime_env=...") from exc


def _job(row: Any) -> _Job:
    text = row.config.runtime_env_info.serialized_runtime_env
    env = shared_env(json.loads(text or "{}"))
    return _Job(
        row.job_id.hex(),
        str(row.config.metadata.get("job_submission_id", "")),
        str(row.entrypoint),
        env,
    )


def node_affinity(node_id: str) -> Any:
    """
    Return the strategy that runs a task or actor on one node.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


class RayExecutor(Executor):
    """
    Runs calls as tasks of a Ray cluster.

    ::

        with RayExecutor() as executor:
            dumps = distdebug.read_dumps("/shared/dumps", executor=executor)

    If this process is connected to Ray, it stays connected.  Otherwise it
    connects, and disconnects at the shutdown of the executor.

    Ray unpickles here what a call returns or raises: code on the cluster can
    run code in this process, as in every program that uses Ray.

    Args:
        address: The cluster, as ``HOST:PORT``; by default the one of this
            process or node.

        node: The only node that runs calls: its host name, address, or ID.
            Use it to read files where they are.

        num_cpus: The CPUs of each call; with 0 they run beside a job that uses
            all of them.

        runtime_env: The runtime environment of the calls.

        job: The job whose runtime environment to use, as its number or
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
        # Try in a child process first: ray.init() may block for ever.
        found_address = Ray(address).locate()
        import ray

        self._owns_connection = not ray.is_initialized()
        self._is_shut_down = False
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        if self._owns_connection:
            _connect(found_address)
        try:
            self._options = _options(node, runtime_env, job)
        except BaseException:
            self._disconnect()
            raise
        self._remote = ray.remote(num_cpus=num_cpus, max_retries=0)(
            _call_function
        )

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """
        Run a call as a Ray task.

        Args:
            fn: The function; Ray pickles it, its arguments, and its result.

        Returns:
            The future; cancelling it also ends a running call.

        Raises:
            RuntimeError: The executor is shut down.
        """
        with self._lock:
            if self._is_shut_down:
                msg = "cannot schedule new futures after shutdown"
                raise RuntimeError(msg)
            task = self._remote.options(**self._options)
            future = _RayFuture(task.remote(fn, args, kwargs))
            self._open.add(future)
        future.add_done_callback(self._forget)
        return future

    def shutdown(
        self,
        wait: bool = True,  # noqa: FBT001, FBT002 -- as of every executor
        *,
        cancel_futures: bool = False,
    ) -> None:
        """
        Accept no more calls.

        Args:
            wait: Wait for the running calls, then disconnect; otherwise the
                end of the process disconnects.

            cancel_futures: End the running calls.
        """
        with self._lock:
            self._is_shut_down = True
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            wait_for(left)
            self._disconnect()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    def _disconnect(self) -> None:
        import ray

        if self._owns_connection:
            self._owns_connection = False
            ray.shutdown()


class _RayFuture(Future[Any]):
    """
    A future that ends its Ray task when it is cancelled.
    """

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self._ref = ref
        self._state_lock = threading.RLock()
        ref.future().add_done_callback(self._copy_result)

    def cancel(self) -> bool:
        """
        End the task unless it is done; return whether it is cancelled.
        """
        import ray

        with self._state_lock:
            if self.done():
                return self.cancelled()
            super().cancel()
            # This wakes up the threads that wait for the future.
            self.set_running_or_notify_cancel()
        with suppress(Exception):
            ray.cancel(self._ref, force=False)
        return True

    def _copy_result(self, done: Future[Any]) -> None:
        with self._state_lock:
            if self.cancelled():
                return
            self.set_running_or_notify_cancel()
            if error := done.exception():
                self.set_exception(error)
            else:
                self.set_result(done.result())


def _call_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """
    Call a function inside a Ray worker.
    """
    return function(*args, **kwargs)


def _connect(address: str) -> None:
    import ray

    # Ray replaces the handler of SIGTERM; restore it.
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
        options["scheduling_strategy"] = node_affinity(_find_node(node))
    return options


def _find_node(node: str) -> str:
    import ray

    names = ("NodeManagerHostname", "NodeManagerAddress", "NodeName", "NodeID")
    alive = [x for x in ray.nodes() if x["Alive"]]
    for found in alive:
        if node in {found.get(name) for name in names}:
            return str(found["NodeID"])
    hosts = ", ".join(sorted({x["NodeManagerHostname"] for x in alive}))
    msg = f"the Ray cluster has no live node {node!r}; it has {hosts}"
    raise NodesError(msg, remedy="name one of them")


_ADDRESS = re.compile(r"(\[?[0-9A-Za-z.:_-]{1,255}?\]?):(\d{1,5})")


def last_address(session: Path) -> str:
    """
    Return the address of the last cluster that used a temporary folder.

    ``ray start`` writes it there at its end.

    Args:
        session: A session in that folder.

    Returns:
        The address; ``""`` if there is none.
    """
    return as_address(read_ray_file(session.parent / "ray_current_cluster"))


def read_ray_file(path: Path) -> str:
    """
    Return the text of a small file of Ray, such as an address or a port.

    It is ``""`` if the file cannot be read.
    """
    try:
        data = read_ordinary(path, 1024)
    except (OSError, ValueError):
        return ""
    return data.decode(errors="replace").strip()


def as_address(text: str) -> str:
    """
    Return *text* if it is an address, otherwise ``""``.

    Addresses are like ``"10.0.0.1:6379"`` or ``"[fd00::1]:6379"``.
    """
    found = _ADDRESS.fullmatch(text)
    return text if found and int(found[2]) < 1 << 16 else ""


def probe_port(
    address: str, timeout_s: float
) -> Literal["answers", "refused", "silent"]:
    """
    Return whether a server listens at an address.

    Args:
        timeout_s: How long to wait, in seconds.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=timeout_s
        ):
            return "answers"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError, OverflowError):
        return "silent"

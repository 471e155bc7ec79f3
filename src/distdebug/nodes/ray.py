"""
How does a command run on every node of a Ray cluster?
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
    Iterable,
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
from threading import Event
from typing import Any, Literal, NamedTuple

import attrs

from .._io import read_ordinary
from .._text import clean
from ..errors import MissingDependencyError, NodesError
from .process import Channel, Conversation, Door, converse
from .results import (
    Arrival,
    Ended,
    NodeStatus,
    Trouble,
    ended_from_line,
    ended_to_line,
)


_REAP_S = 0.5


@contextmanager
def handing() -> Iterator[tuple[socket.socket, socket.socket]]:
    """
    What are sockets handed over with?

    Yields:
        Our end, and that of the child process; who started it closes it here.
    """
    kind = socket.SOCK_SEQPACKET
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        yield ours, theirs


def hand_out(
    talk: Conversation,
    hosts: Iterable[str],
    argv: Sequence[str],
    doors: socket.socket,
) -> Mapping[str, Door]:
    """
    What starts a program on each node?

    Args:
        talk: What the child process says.

        hosts: The names of the nodes.

        argv: The command.

        doors: Where sockets are handed over.

    Returns:
        It, by the name of the node.
    """
    troubles: dict[str, Trouble] = {}
    return {
        host: partial(_open, talk, host, argv, doors, troubles)
        for host in hosts
    }


def _open(
    talk: Conversation,
    host: str,
    argv: Sequence[str],
    doors: socket.socket,
    troubles: dict[str, Trouble],
) -> Channel:
    ours, theirs = socket.socketpair()
    question = json.dumps({"host": host, "argv": list(argv)}).encode()
    with theirs:
        try:
            socket.send_fds(doors, [question], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise

    return Channel(
        socket=ours,
        why=lambda: _why(talk, host, troubles),
        wait=lambda _: None,
    )


def _why(
    talk: Conversation, host: str, troubles: dict[str, Trouble]
) -> Trouble:
    until = time.monotonic() + _REAP_S
    line: bytes | None = b""
    with suppress(TimeoutError, ValueError):
        while host not in troubles and line is not None:
            line = talk.hear(until)
            told = json.loads(line or b"{}")
            if "trouble" in told:
                status, reason, remedy = told["trouble"]
                troubles[told["host"]] = Trouble(
                    NodeStatus(status), reason, remedy
                )
    broken = Trouble(NodeStatus.FAILED, "the connection to Ray broke")
    return troubles.pop(host, broken)


# A connection takes a second; a head that does not answer, without end.
_CONNECT_S = 30.0
_MODULE = f"{__package__}.ray_driver"


@attrs.frozen
class Ray:
    """
    The nodes of a Ray cluster.

    Each live node runs one task that needs no CPU, in the runtime environment
    of the job, and in that the command.  Of a cluster, nodes that died are
    listed, too.

    The connection is made by a child process, so that nothing of Ray comes
    into this one.

    Attributes:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        runtime_env: The runtime environment to use in place of the job's.

        job: The job whose runtime environment to use, as its number or its
            submission ID; by default the one that this process is, or the
            only one that runs.

        python: The Python that runs functions; by default that of the job.

        at_once: How many nodes are asked at the same time.

        grace_s: How long it may take, in seconds, to start something on a
            node, and to end what takes too long.
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
    ) -> Iterator[Arrival]:
        """
        What does a command leave on each node of the cluster, as they come?

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take on each node, in seconds.

        Yields:
            One answer per node.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, it differs from the Ray or
                the Python here, or nobody knows which job is meant.
        """
        sent = None if data is None else base64.b64encode(data).decode()
        errand = {"argv": list(argv), "data": sent, "timeout_s": timeout_s}
        with self._ask(errand) as talk:
            hosts = _hosts(talk, self.address)["hosts"]
            turns = -(-len(hosts) // self.at_once)
            until = (
                time.monotonic()
                + turns * (timeout_s + self.grace_s)
                + _CONNECT_S
            )
            yield from _arrivals(talk, hosts, until)

    @contextmanager
    def doors(self, argv: Sequence[str]) -> Iterator[Mapping[str, Door]]:
        """
        On which nodes of the cluster can a program be started?

        Args:
            argv: The command.

        Yields:
            What starts it, by node.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, it differs from the Ray or
                the Python here, or nobody knows which job is meant.
        """
        with handing() as (ours, theirs):
            errand = {"argv": [], "doors": theirs.fileno()}
            with self._ask(errand, pass_fds=[theirs.fileno()]) as talk:
                theirs.close()
                hosts = _hosts(talk, self.address)["hosts"]
                try:
                    yield hand_out(talk, hosts, argv, ours)
                finally:
                    ours.close()

    def locate(self) -> str:
        """
        Where is the cluster, if it answers?

        Returns:
            Its address, as ``HOST:PORT``.

        Raises:
            MissingDependencyError: Ray is not installed.

            NodesError: There is no such cluster, or it differs.
        """
        with self._ask({"argv": [], "runtime_env": {}}) as talk:
            return str(_hosts(talk, self.address)["address"])

    def _ask(
        self, errand: Mapping[str, Any], pass_fds: Collection[int] = ()
    ) -> Any:
        if find_spec("ray") is None:
            msg = "Ray is not installed here"
            raise MissingDependencyError(
                msg, remedy="install the version of the cluster: ray==..."
            )
        if self.address in {"", "local"} or "://" in self.address:
            msg = f"{self.address!r} is no address of a running Ray cluster"
            raise NodesError(
                msg,
                remedy="say 'auto' or 'HOST:6379', on a node of the cluster",
            )

        address, job = self._where()
        question = {
            "address": address,
            "runtime_env": self.runtime_env,
            "job": job,
            "at_once": self.at_once,
            "grace_s": self.grace_s,
            **errand,
        }
        return converse(
            [sys.executable, "-P", "-m", _MODULE],
            question=json.dumps(question).encode(),
            # What *we* were started by is no matter of the nodes.
            environment={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
            pass_fds=pass_fds,
        )

    def _where(self) -> tuple[str, str | None]:
        ray = sys.modules.get("ray")
        if self.address != "auto" or not ray or not ray.is_initialized():
            return self.address, self.job
        context = ray.get_runtime_context()
        return context.gcs_address, self.job or context.get_job_id()


def _hosts(talk: Conversation, address: str) -> dict[str, Any]:
    try:
        line = talk.hear(time.monotonic() + _CONNECT_S)
    except TimeoutError as exc:
        msg = f"no Ray cluster answers at {address} within {_CONNECT_S:g} s"
        raise NodesError(
            msg,
            remedy="run it on a node of the cluster, where `ray status` "
            "answers, with the Ray and the Python of the cluster",
        ) from exc
    if line is None:
        remedy = "run it on another node of the cluster"
        raise NodesError(_broken(talk), remedy=remedy)
    answer: dict[str, Any] = json.loads(line)
    if "hosts" not in answer:
        raise NodesError(answer["reason"], remedy=answer["remedy"])
    return answer


def _arrivals(
    talk: Conversation, hosts: Sequence[str], until: float
) -> Iterator[Arrival]:
    begin = time.monotonic()
    missing = dict.fromkeys(hosts)
    trouble = None
    while missing and trouble is None:
        try:
            line = talk.hear(until)
        except (TimeoutError, ValueError):
            break
        if line is None:
            trouble = Trouble(NodeStatus.FAILED, _broken(talk))
            continue
        answer = json.loads(line)
        missing.pop(answer["host"], None)
        yield Arrival(
            answer["host"],
            ended_from_line(answer["ended"]),
            len(hosts),
            answer["seconds"],
        )

    seconds = time.monotonic() - begin
    for host in missing:
        yield Arrival(host, Ended(trouble=trouble), len(hosts), seconds)


def _broken(talk: Conversation) -> str:
    lines = map(clean, talk.complaint.decode("utf-8", "replace").splitlines())
    last = [line for line in lines if line][-1:]
    return ": ".join(["the connection to Ray broke", *last])


# What is there for the workers of the job itself, such as a profiler, stays
# away from ours.
_SHARED = (
    "working_dir",
    "py_modules",
    "py_executable",
    "pip",
    "uv",
    "conda",
    "env_vars",
    "container",
    "image_uri",
    "config",
)
_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


class _Job(NamedTuple):
    number: str
    submission: str
    entrypoint: str
    env: dict[str, Any]


def runtime_env_of(
    given: Mapping[str, Any] | None, job: str | None
) -> Mapping[str, Any] | None:
    """
    Which runtime environment is like that of a job?

    Args:
        given: The one to take in any case.

        job: The number of a job, such as ``"02000000"``, or what ``ray job
            submit`` called it; by default the only one that runs.

    Returns:
        The runtime environment, with what of it was uploaded already.

    Raises:
        NodesError: There is no such job, or there are several that differ.
    """
    if given is not None:
        return given
    running = _running_jobs()
    if job is not None:
        running = [x for x in running if job in {x.number, x.submission}]
        if not running:
            msg = f"Ray runs no job {clean(job)!r}"
            raise NodesError(msg, remedy="`ray job list` tells their names")
    if any(x.env != running[0].env for x in running[1:]):
        names = ", ".join(_name(x) for x in running)
        msg = f"jobs with different runtime environments run: {names}"
        raise NodesError(msg, remedy="say which one by job=...")
    return running[0].env if running else None


def shared_env(whole: Mapping[str, Any]) -> dict[str, Any]:
    """
    What of the runtime environment of a job is for other workers, too?

    Args:
        whole: The runtime environment, as Ray keeps it.

    Returns:
        A part of it, which another worker can be given.
    """
    env = {key: whole[key] for key in _SHARED if key in whole}
    variables = env.get("env_vars")
    if isinstance(variables, dict):
        env["env_vars"] = {k: v for k, v in variables.items() if k != _HOOK}
    return env


def _name(job: _Job) -> str:
    return f"{job.submission or job.number} ({clean(job.entrypoint)[:60]})"


def _running_jobs() -> list[_Job]:
    """
    The jobs that run, without those of ours and of Ray itself.
    """
    import ray

    # The public way to this table needs a dashboard, which many have not.
    client = ray._private.worker.global_worker.gcs_client  # noqa: SLF001
    ours = ray.get_runtime_context().get_job_id()
    try:
        table = client.get_all_job_info(
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
        )
        rows = [row for row in table.values() if not row.is_dead]
        return [
            _job(row)
            for row in rows
            if row.job_id.hex() != ours
            and not row.config.ray_namespace.startswith(("_ray_", "_distdeb"))
        ]
    except (AttributeError, TypeError, ValueError) as exc:
        msg = f"this Ray does not tell its jobs: {type(exc).__name__}: {exc}"
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


_BEAT_S = 0.2
# So long may the nodes end what is not wanted any more.
_CANCEL_S = 2.0

Say = Callable[[Mapping[str, object]], None]


class _Sent(NamedTuple):
    node: Mapping[str, Any]
    host: str
    begin: float


class Errands:
    """
    One task on each node, some of them at the same time.

    Args:
        on_node: What each runs: takes the errand, seconds, and the name of
            the node, and returns a line.

        task: What was asked for.

        env: The runtime environment, if any.

        say: Called with what is told of each node.
    """

    def __init__(
        self,
        on_node: Callable[[bytes, float, str], bytes],
        task: Mapping[str, Any],
        env: Mapping[str, Any] | None,
        say: Say,
    ) -> None:
        import ray

        self._task, self._say = task, say
        self._options = {"runtime_env": dict(env)} if env else {}
        # It has to run beside a job that uses every CPU.
        self._remote = ray.remote(num_cpus=0, max_retries=0)(on_node)
        self._sent: dict[Any, _Sent] = {}
        self._errand = ray.put(
            json.dumps([task["argv"], task["data"]]).encode()
        )

    def run(self, nodes: Mapping[str, Mapping[str, Any]], stop: Event) -> None:
        """
        Go to all nodes, and tell what becomes of each.

        Args:
            nodes: What Ray says of each, by name.

            stop: Set when nobody wants more.
        """
        import ray

        todo = list(nodes.items())
        try:
            while (todo or self._sent) and not stop.is_set():
                while todo and len(self._sent) < self._task["at_once"]:
                    self._send(*todo.pop(0))
                ready, _ = ray.wait(list(self._sent), timeout=_BEAT_S)
                for ref in ready:
                    self._came(ref)
                self._give_up()
        finally:
            self._cancel(list(self._sent))

    def _send(self, host: str, node: Mapping[str, Any]) -> None:
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
        )

        sent = _Sent(node, host, time.monotonic())
        if not node["Alive"]:
            self._tell(sent, ended_to_line(Ended(trouble=dead_node(node))))
            return
        # It needs nothing, so that it never waits for something to be free.
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = self._remote.options(
            name="distdebug", scheduling_strategy=place, **self._options
        )
        ref = task.remote(self._errand, self._task["timeout_s"], host)
        self._sent[ref] = sent

    def _came(self, ref: Any) -> None:
        import ray

        sent = self._sent.pop(ref)
        try:
            line = ray.get(ref)
        except Exception as exc:  # noqa: BLE001 -- whatever Ray makes of it
            line = ended_to_line(Ended(trouble=trouble_of_ray(exc, sent.node)))
        self._tell(sent, line)

    def _tell(self, sent: _Sent, line: object) -> None:
        text = line.decode("ascii", "replace") if type(line) is bytes else line
        self._say(
            {
                "host": sent.host,
                "seconds": time.monotonic() - sent.begin,
                "ended": text if type(text) is str else None,
            }
        )

    def _give_up(self) -> None:
        end = time.monotonic() - self._task["timeout_s"]
        late = [
            ref
            for ref, sent in self._sent.items()
            if sent.begin + self._task["grace_s"] < end
        ]
        for ref in late:
            sent = self._sent.pop(ref)
            node = _now(sent.node)
            trouble = None if node["Alive"] else dead_node(node)
            self._tell(sent, ended_to_line(Ended(trouble=trouble)))
        self._cancel(late)

    @staticmethod
    def _cancel(refs: list[Any]) -> None:
        import ray

        if not refs:
            return
        # A command that is left to itself would run on: let its node end it.
        for ref in refs:
            with suppress(Exception):
                ray.cancel(ref, force=False)
        ray.wait(refs, num_returns=len(refs), timeout=_CANCEL_S)


def _now(node: Mapping[str, Any]) -> Mapping[str, Any]:
    import ray

    with suppress(Exception):
        return next(n for n in ray.nodes() if n["NodeID"] == node["NodeID"])
    return node


def dead_node(node: Mapping[str, Any]) -> Trouble:
    """
    What is there to say of a node that Ray does not reach?

    Args:
        node: What Ray says of it.
    """
    why = node.get("DeathReasonMessage")
    return Trouble(
        NodeStatus.DEAD,
        "Ray does not reach the node" + (f": {why}" if why else ""),
        "see raylet.out and raylet.err in /tmp/ray/session_latest/logs there",
    )


def trouble_of_ray(exc: Exception, node: Mapping[str, Any]) -> Trouble:
    """
    What does an exception of Ray mean for a node?

    Args:
        exc: The exception.

        node: What Ray said of the node.
    """
    from ray import exceptions

    node = _now(node)
    gone = (
        exceptions.NodeDiedError,
        exceptions.TaskUnschedulableError,
        exceptions.ActorUnschedulableError,
    )
    if not node["Alive"] or isinstance(exc, gone):
        return dead_node(node)
    said = f"{type(exc).__name__}: {clean(str(exc))}"[:1000]
    if isinstance(exc, exceptions.RuntimeEnvSetupError):
        return Trouble(
            NodeStatus.FAILED,
            f"the runtime environment cannot be set up there: {said}",
            "give another one, such as runtime_env={}",
        )
    return Trouble(NodeStatus.FAILED, f"its Ray worker failed: {said}")


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


_ADDRESS = re.compile(r"(\[?[0-9A-Za-z.:_-]{1,255}?\]?):(\d{1,5})")


def last_address(session: Path) -> str:
    """
    Tell the address of the cluster that was the last to use a temporary
    folder: ``ray start`` writes it there when it is done.

    Args:
        session: A session in that folder.

    Returns:
        The address; ``""`` if there is none.
    """
    return as_address(read_short(session.parent / "ray_current_cluster"))


def read_short(path: Path) -> str:
    """
    Read what Ray keeps in a file of its own: an address, or a port.

    Args:
        path: The file.

    Returns:
        Its text; ``""`` if it cannot be read.
    """
    try:
        data = read_ordinary(path, 1024)
    except (OSError, ValueError):
        return ""
    return data.decode(errors="replace").strip()


def as_address(text: str) -> str:
    """
    Tell whether a text is an address.

    Args:
        text: Such as ``"10.0.0.1:6379"`` or ``"[fd00::1]:6379"``.

    Returns:
        The text; ``""`` if it is none.
    """
    found = _ADDRESS.fullmatch(text)
    return text if found and int(found[2]) < 1 << 16 else ""


def knock(
    address: str, timeout_s: float
) -> Literal["answers", "refused", "silent"]:
    """
    Tell whether somebody listens at an address.

    Args:
        address: The address.

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

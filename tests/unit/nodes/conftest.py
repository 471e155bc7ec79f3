"""
What the tests of nodes share: stand-ins for what brings commands there.
"""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
import threading
import time
import types

from concurrent.futures import Future, ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest


SSH = """
for word; do test "$word" = -- && break; shift; done
host=$2; shift 2
case $host in
  gone) echo 'ssh: connect to host gone port 22: No route to host' >&2
    exit 255;;
esac
export HOST=$host
eval "exec $*"
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """
    Writes a command that is found first.
    """
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def write(name, code):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def ssh(stand_in):
    """
    A stand-in for ssh: every host is this one, but for ``gone``.
    """
    return stand_in("ssh", SSH)


@pytest.fixture
def connection(tmp_path, monkeypatch):
    """
    Gives the code that is the connection to Ray, in place of the real one.
    """
    folder = tmp_path / "connection"
    folder.mkdir()
    (folder / "ray.py").touch()
    program, python = folder / "python", shlex.quote(sys.executable)
    program.write_text(f"#!/bin/sh\nexec {python} -S -E {folder}/driver.py\n")
    program.chmod(0o755)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(sys, "executable", str(program))
    return (folder / "driver.py").write_text


@pytest.fixture
def impatient(monkeypatch):
    """
    A connection to Ray is given up soon, and ended at once.

    Both times are for clusters of thousands of nodes, and no user can set
    them.
    """
    monkeypatch.setattr("distdebug.nodes.ray._CONNECT_S", 1.0)
    monkeypatch.setattr("distdebug.nodes.process._CLOSE_GRACE_S", 0.2)


class NodeDiedError(Exception):
    """
    As that of Ray.
    """


class RuntimeEnvSetupError(Exception):
    """
    As that of Ray.
    """


class Task:
    """
    A function that Ray runs.
    """

    def __init__(self, ray, function, options=None):
        self.ray, self.function, self.opt = ray, function, options or {}

    def options(self, **options):
        """
        It, to be run in another way.
        """
        self.ray.options.append(options)
        return SimpleNamespace(
            remote=Task(self.ray, self.function, options).remote
        )

    def remote(self, *args):
        """
        Run it, as far as the fake has no other answer.
        """
        where = self.opt.get("scheduling_strategy")
        name = where.node_id[0] if where else ""
        future = Future()
        answer = self.ray.answers.get(name, lambda: self.function(*args))
        if answer is not None:
            try:
                future.set_result(answer())
            except Exception as exc:  # noqa: BLE001
                future.set_exception(exc)
        ref = SimpleNamespace(future=lambda: future)
        return types.new_class("Ref", (), {}, lambda ns: ns.update(vars(ref)))


class Actor:
    """
    An actor whose methods run in threads, in the order of their calls.
    """

    def __init__(self, made):
        self.made = made
        self.calls = []
        self.pools = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
        self.write = SimpleNamespace(remote=self._tell)
        self.read = SimpleNamespace(options=self._options)

    def _tell(self, data):
        self.calls.append(self.pools[0].submit(self.made.write, data))

    def _options(self, *, concurrency_group):
        assert "hear" == concurrency_group
        return SimpleNamespace(remote=self._hear)

    def _hear(self):
        future = self.pools[1].submit(self.made.read)
        return SimpleNamespace(future=lambda: future)

    def end(self):
        """
        End it, and what it started.
        """
        process = getattr(self.made, "_process", None)
        if process:
            process.kill()
            process.wait(30)
            for pool in self.pools:
                pool.shutdown()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


class FakeRay(types.ModuleType):
    """
    As much of Ray as is used.
    """

    def __init__(self):
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.table = [self.node("a"), self.node("b")]
        self.jobs, self.answers = [], {}
        self.options, self.cancelled, self.inits = [], [], []
        self.killed = []
        self.is_connected, self.refusal, self.program = False, None, None
        self.exceptions = SimpleNamespace(
            NodeDiedError=NodeDiedError,
            TaskUnschedulableError=NodeDiedError,
            ActorUnschedulableError=NodeDiedError,
            RuntimeEnvSetupError=RuntimeEnvSetupError,
        )
        client = SimpleNamespace(get_all_job_info=self._get_all_job_info)
        worker = SimpleNamespace(gcs_client=client)
        self._private = SimpleNamespace(
            worker=SimpleNamespace(global_worker=worker)
        )

    @staticmethod
    def node(name, **changes):
        """
        A node, as Ray describes it.
        """
        return {
            "NodeID": name * 56,
            "NodeManagerHostname": f"host-{name}",
            "NodeManagerAddress": f"10.0.0.{ord(name)}",
            "NodeName": f"10.0.0.{ord(name)}",
            "Alive": True,
            "DeathReason": 0,
            "DeathReasonMessage": "",
            **changes,
        }

    def _get_all_job_info(self, **_options):
        return dict(enumerate(self.jobs))

    def init(self, address, **options):
        """
        Connect.
        """
        if self.refusal:
            raise self.refusal
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.inits.append((address, options))
        self.is_connected = True

    def shutdown(self):
        """
        Disconnect.
        """
        self.is_connected = False

    def is_initialized(self):
        """
        Whether it is connected.
        """
        return self.is_connected

    def nodes(self):
        """
        The nodes.
        """
        return [dict(x) for x in self.table]

    @staticmethod
    def get_runtime_context():
        """
        What we are.
        """
        return SimpleNamespace(
            gcs_address="10.0.0.1:6379", get_job_id=lambda: "09000000"
        )

    @staticmethod
    def put(value):
        """
        Keep a value.
        """
        return value

    def remote(self, **options):
        """
        What makes a task of a function, or an actor of a class.
        """
        self.options.append(options)
        return lambda work: (
            SimpleNamespace(options=functools.partial(self._actor, work))
            if isinstance(work, type)
            else Task(self, work)
        )

    def _actor(self, program, **options):
        self.options.append(options)
        return SimpleNamespace(
            remote=lambda argv: Actor((self.program or program)(argv))
        )

    def kill(self, actor):
        """
        End an actor, and what it started.
        """
        self.killed.append(actor)
        actor.end()

    @staticmethod
    def wait(refs, *, num_returns=1, timeout):
        """
        Which are done?
        """
        time.sleep(0.01)
        return [ref for ref in refs if ref.future().done()][:num_returns], []

    @staticmethod
    def get(ref):
        """
        What is its value?
        """
        return ref.future().result()

    def cancel(self, ref, *, force):
        """
        End a task.
        """
        assert not force
        self.cancelled.append(ref)


@pytest.fixture
def ray(monkeypatch):
    """
    A Ray that is none.
    """
    fake = FakeRay()
    strategies = types.ModuleType("strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node_id, *, soft: (
        SimpleNamespace(node_id=node_id, soft=soft)
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(
        sys.modules, "ray.util.scheduling_strategies", strategies
    )
    before = signal.getsignal(signal.SIGTERM)
    yield fake
    signal.signal(signal.SIGTERM, before)

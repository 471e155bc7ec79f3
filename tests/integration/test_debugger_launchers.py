"""
Actors of Ray and of Monarch, and processes that nobody prepared, are debugged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time

from importlib.util import find_spec
from pathlib import Path

import pytest

import distdebug

from distdebug.debugger import arm_process, connect, job_environment
from distdebug.errors import DebuggerError

from .living import end_all


SOURCE = Path(distdebug.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 90

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed"
)
needs_monarch = pytest.mark.skipif(
    find_spec("monarch") is None, reason="Monarch is not installed"
)


class Job:
    """
    A program that runs, and the client that talks to it.
    """

    def __init__(self, folder, command, environment):
        self.sockets = folder / "s"
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(SOURCE),
                    "OMP_NUM_THREADS": "1",
                    "HOME": str(folder),
                    **environment,
                    "DISTDEBUG_DIR": str(self.sockets),
                },
                start_new_session=True,
            )

    def wait_until(self, condition):
        """
        Wait until the list of ranks is as it should be, and return it.
        """
        end = time.monotonic() + PATIENCE_S
        listing = None
        while time.monotonic() < end:
            with (
                contextlib.suppress(OSError, DebuggerError),
                connect(self.sockets, timeout_s=20) as client,
            ):
                listing = client.list()
                if condition(listing):
                    return listing
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        pytest.fail(f"{listing}\n{self.log.read_text()}")

    def wait_for_stops(self, count):
        """
        Wait until so many threads are stopped.
        """
        return self.wait_until(
            lambda listing: (
                count == sum(s.state == "stopped" for _, s in listing.sessions)
            )
        )

    def results(self):
        """
        Wait for the end, and return what the program got.
        """
        assert 0 == self.process.wait(PATIENCE_S), self.log.read_text()
        return [
            line.partition(" ")[2]
            for line in self.log.read_text().splitlines()
            if line.startswith("RESULT ")
        ]

    def end(self):
        """
        End the program and all that it started.
        """
        self.process.kill()
        end_all(str(self.sockets))
        self.process.wait(PATIENCE_S)


@pytest.fixture
def start():
    """
    Starts a program, and ends it with all its processes.
    """
    jobs = []
    # Ray's own sockets need a short path.
    folder = Path(tempfile.mkdtemp(prefix="dd", dir="/tmp"))

    def begin(command, **environment):
        environment.setdefault("RAY_TMPDIR", str(folder))
        jobs.append(Job(folder, command, environment))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()
    shutil.rmtree(folder, ignore_errors=True)


def addressed(listing):
    """
    How each thread that is stopped is addressed.
    """
    return [(p.group, p.rank, dict(p.coords)) for p, _ in listing.sessions]


def texts(answers):
    """
    What each rank said.
    """
    return {(o.group, o.rank): o.text.strip() for o in answers.outputs}


def go_on(client, listing):
    """
    Let all that are stopped go on.
    """
    for group in {p.group for p, _ in listing.sessions}:
        client.cast("ranks(:)", "c", group=group)


def ray_job(start, scenario, **environment):
    """
    Start the program that uses Ray.
    """
    return start(
        [sys.executable, PROGRAMS / "ray_actors.py", scenario],
        RAY_AUTH_MODE="disabled",
        **environment,
    )


SETUP = {"RAY_RUNTIME_ENV_HOOK": "distdebug.debugger.ray_debugger_env"}


@needs_ray
@pytest.mark.parametrize("way", ["set-up function", "environment"])
def test_ray(start, way):
    """
    Two classes of actors have equal ranks; the program itself knows nothing.
    """
    environment = job_environment({"PYTHONPATH": str(SOURCE)})
    job = ray_job(
        start, "step", **(SETUP if way == "set-up function" else environment)
    )

    listing = job.wait_for_stops(5)
    with connect(job.sockets, timeout_s=20) as client:
        policies = client.cast("ranks(:)", "p found", group="Policy")
        critics = client.cast("ranks(1)", "p found", group="judge")
        task = client.cast("ranks(:)", "p more", group="prepare")
        go_on(client, listing)

    assert [
        ("Policy", 0, {}),
        ("Policy", 1, {}),
        ("judge", 0, {}),
        ("judge", 1, {}),
        ("prepare", None, {}),
    ] == addressed(listing)
    assert {("Policy", 0): "70", ("Policy", 1): "71"} == texts(policies)
    assert {("judge", 1): "-7"} == texts(critics)
    assert {("prepare", None): "5"} == texts(task)
    assert ["70", "71", "-7", "-7", "5"] == job.results()
    # That of the driver; no worker was made to start a cluster by our asking.
    assert 1 == job.log.read_text().count("Started a local Ray instance")


@needs_ray
def test_ray_thread(start):
    """
    A thread that an actor has started is that actor.
    """
    job = ray_job(start, "load", **SETUP)

    listing = job.wait_for_stops(1)
    with connect(job.sockets, timeout_s=20) as client:
        attached = client.attach(3, group="Policy")
        item = attached.send("p item").text
        attached.send("c")

    assert [("Policy", 3, {})] == addressed(listing)
    assert ["loader"] == [s.thread for _, s in listing.sessions]
    assert "5" == item
    assert ["[5]"] == job.results()


@needs_ray
def test_ray_failure(start):
    """
    A method that fails stops where it raised, and fails as it would have.
    """
    job = ray_job(start, "fail", RAY_DEBUG_POST_MORTEM="1", **SETUP)

    listing = job.wait_for_stops(1)
    with connect(job.sockets, timeout_s=20) as client:
        secret = client.cast("ranks(1)", "p secret", group="Policy")
        go_on(client, listing)

    assert ["post mortem"] == [s.reason for _, s in listing.sessions]
    assert {("Policy", 1): "42"} == texts(secret)
    assert ["RayTaskError(ValueError)"] == job.results()


def monarch_job(start, scenario, *more):
    """
    Start the program that uses Monarch.
    """
    return start(
        [sys.executable, PROGRAMS / "monarch_actors.py", scenario, *more]
    )


MESH = [
    ("trainer", rank, {"dp": rank // 2, "tp": rank % 2}) for rank in range(4)
]


@needs_monarch
def test_monarch_slices(start):
    """
    Two slices that stop at the same ranks are four ranks, each itself.
    """
    job = monarch_job(start, "slices")

    listing = job.wait_for_stops(4)
    with connect(job.sockets, timeout_s=20) as client:
        values = client.cast("ranks(:)", "p value")
        stepped = client.cast("ranks(dp=1)", "n")
        place = client.attach(3).send("p twice").text
        # Stepping on never comes into the loop that has called the endpoint.
        ended = client.cast("ranks(dp=1)", "n")
        left = client.list()
        client.cast("ranks(dp=0)", "c")

    assert MESH == addressed(listing)
    assert 4 == len({s.key for _, s in listing.sessions})
    assert ["1", "1", "10", "10"] == list(texts(values).values())
    assert [("trainer", 2), ("trainer", 3)] == list(texts(stepped))
    assert "20" == place
    assert ["ended", "ended"] == [o.state for o in ended.outputs]
    assert {0, 1} == {p.rank for p, _ in left.sessions}
    assert ["[3, 3]", "[21, 21]"] == job.results()


@needs_monarch
@pytest.mark.parametrize(
    ("scenario", "coords"),
    [
        ("renamed", [{"data": r // 2, "tp": r % 2} for r in range(4)]),
        ("flat", [{"all": r} for r in range(4)]),
    ],
    ids=["renamed", "flat"],
)
def test_monarch_views(start, scenario, coords):
    """
    Dimensions that were renamed or flattened show as they are.
    """
    job = monarch_job(start, scenario)

    listing = job.wait_for_stops(4)
    with connect(job.sockets, timeout_s=20) as client:
        name = next(iter(coords[0]))
        some = client.cast(f"ranks({name}=1)", "p twice")
        go_on(client, listing)

    assert coords == [found for _, _, found in addressed(listing)]
    assert {"2"} == set(texts(some).values())
    assert ["[3, 3, 3, 3]"] == job.results()


@needs_monarch
def test_monarch_actors(start):
    """
    Two actors of the same processes stop at the same time.
    """
    job = monarch_job(start, "both")

    listing = job.wait_for_stops(8)
    with connect(job.sockets, timeout_s=20) as client:
        scores = client.cast("ranks(tp=0)", "p score", group="critic")
        wrong = client.cast("ranks(3)", "p twice", group="trainer")
        go_on(client, listing)

    assert [("critic", *rest) for _, *rest in MESH] + MESH == (
        addressed(listing)
    )
    assert {("critic", 0): "9", ("critic", 2): "9"} == texts(scores)
    assert {("trainer", 3): "2"} == texts(wrong)
    assert ["[3, 3, 3, 3]", "[9, 9, 9, 9]"] == job.results()


@needs_monarch
def test_monarch_blocked(start, tmp_path):
    """
    An endpoint that holds its loop is asked where it is, and what it knows.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = monarch_job(start, "blocked", gate)

    job.wait_until(
        lambda listing: 2 == sum("Trainer.wait" in p.function for p in listing)
    )
    with connect(job.sockets, timeout_s=20) as client:
        known = client.eval("ranks(dp=0)", "batch", group="trainer")
        stacks = client.stack("ranks(dp=0, tp=1)", group="trainer")
    gate.open("w").close()  # all who wait for a writer go on

    assert ["117", "117"] == list(texts(known).values())
    assert "in Trainer.wait" in str(stacks)
    assert ["[117, 117]"] == job.results()


@needs_monarch
def test_monarch_thread(start):
    """
    A thread that an endpoint has started is its actor, not another client.
    """
    job = monarch_job(start, "load")

    listing = job.wait_for_stops(1)
    with connect(job.sockets, timeout_s=20) as client:
        item = client.attach(0, group="trainer").send("p item").text
        go_on(client, listing)

    assert MESH[:1] == addressed(listing)
    assert "5" == item
    assert ["[[5]]"] == job.results()


@needs_monarch
def test_monarch_failure(start):
    """
    An endpoint that fails stops there, although there was no breakpoint.
    """
    job = monarch_job(start, "fail")

    listing = job.wait_for_stops(1)
    with connect(job.sockets, timeout_s=20) as client:
        secret = client.cast("ranks(tp=1)", "p secret", group="trainer")
        go_on(client, listing)

    assert MESH[1:2] == addressed(listing)
    assert ["post mortem"] == [s.reason for _, s in listing.sessions]
    assert ["42"] == list(texts(secret).values())
    assert ["ActorError"] == job.results()


UNPREPARED = """
import ctypes, sys, time

print("ready", flush=True)
if sys.argv[1] == "native":
    ctypes.CDLL(None).sleep(4)
count = 0
while True:
    count += 1
    if sys.argv[1] == "breakpoint" and "distdebug" in sys.modules:
        breakpoint()
    time.sleep(0.001)
"""


@pytest.fixture
def unprepared(start):
    """
    Starts a program under a Python that lets others in.
    """
    python = shutil.which("python3.14")
    if python is None:
        pytest.skip("there is no python3.14")

    def begin(mode, **environment):
        job = start([python, "-c", UNPREPARED, mode], **environment)
        end = time.monotonic() + PATIENCE_S
        while "ready" not in job.log.read_text():
            assert time.monotonic() < end
            time.sleep(0.01)
        return job

    return begin


def test_unprepared(unprepared):
    """
    A program that runs is armed, asked, and stopped at its breakpoints.
    """
    job = unprepared("breakpoint")

    armed = arm_process(job.process.pid, timeout_s=PATIENCE_S)
    job.wait_for_stops(1)
    with connect(job.sockets, timeout_s=20) as client:
        count = client.cast(None, "p count > 0")

    assert armed.path.startswith(str(job.sockets))
    assert "True" in str(count)


def test_unprepared_native(unprepared):
    """
    A program that is in native code is armed as soon as that returns.
    """
    job = unprepared("native")

    with pytest.raises(DebuggerError, match="no line of Python for 0") as told:
        arm_process(job.process.pid, timeout_s=0.2)
    listing = job.wait_until(lambda listing: 1 == len(listing.processes))

    assert "as soon as the native code returns" in told.value.remedy
    assert [job.process.pid] == [p.pid for p in listing]


def test_unprepared_forbidden(unprepared):
    """
    A program that does not allow attaching is left alone.
    """
    job = unprepared("loop", PYTHON_DISABLE_REMOTE_DEBUG="1")

    with pytest.raises(DebuggerError, match="does not allow attaching"):
        arm_process(job.process.pid)

    assert job.process.poll() is None


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="this Python lets others in"
)
def test_unprepared_older(start):
    """
    Before Python 3.14 nobody gets in, and it is said what helps.
    """
    job = start([sys.executable, "-c", "input()"])

    with pytest.raises(
        DebuggerError, match="does not allow attaching"
    ) as told:
        arm_process(os.getpid())
    job.process.wait(PATIENCE_S)

    assert "distdebug stacks --pid" in told.value.remedy

"""
How Ray and Monarch are prepared, without either; and processes that were not
prepared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from distdebug.debugger import (
    arm,
    arm_process,
    arming_hints,
    monarch_setup,
    ray_debugger_env,
    ray_debugger_setup,
    set_trace,
    unarmed_workers,
)
from distdebug.debugger.client import local
from distdebug.debugger.inside import arming, launchers
from distdebug.errors import DebuggerError
from distdebug.processes import Worker


@pytest.fixture(autouse=True)
def folder(folder, monkeypatch):
    """
    The folder of all jobs, and of the one that this process is part of.
    """
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    # It is at a fixed place, where jobs of the user may listen.
    for module in (launchers, local):
        monkeypatch.setattr(module, "base_folder", lambda: folder)
    return folder


@pytest.fixture
def described(folder, raw):
    """
    What this process says of itself where it listens.
    """

    def ask():
        (path,) = folder.glob("*.sock")
        return raw.asked(path, op="list")["process"]

    return ask


def module(name, **content):
    """
    A module that holds just this.
    """
    found = ModuleType(name)
    vars(found).update(content)
    return found


def failing(examine):
    """
    What calls this for an exception that was caught.
    """

    def run():
        try:
            int("x")
        except ValueError:
            examine()

    return run


class Trainer:
    """
    An actor.
    """

    def __init__(self, **content):
        vars(self).update(content)


@pytest.fixture
def ray(monkeypatch):
    """
    A Ray of which this process is a worker; what it holds can be changed.
    """
    core = SimpleNamespace(
        has_job=True,
        get_current_job_id=lambda: SimpleNamespace(
            is_nil=lambda: not core.has_job
        ),
    )
    worker = SimpleNamespace(actors={}, actor_id="a1", core_worker=core)
    context = SimpleNamespace(
        name=None,
        task=None,
        get_actor_name=lambda: context.name,
        get_task_function_name=lambda: context.task,
        get_job_id=lambda: "01000000",
        get_session_name=lambda: "session_2026-11-22_06-00-00_123_4567",
    )
    rpdb = module("ray.util.rpdb")
    util = module("ray.util", rpdb=rpdb)
    found = module(
        "ray",
        util=util,
        get_runtime_context=lambda: pytest.fail("it would start a cluster"),
        _private=SimpleNamespace(worker=SimpleNamespace(global_worker=worker)),
        fake=SimpleNamespace(worker=worker, context=context, rpdb=rpdb),
    )
    runtime = module(
        "ray.runtime_context", get_runtime_context=lambda: context
    )
    for name, content in (
        ("ray", found),
        ("ray.runtime_context", runtime),
        ("ray.util", util),
        ("ray.util.rpdb", rpdb),
    ):
        monkeypatch.setitem(sys.modules, name, content)
    return found.fake


class TestRay:
    """
    A worker of Ray.
    """

    @pytest.mark.parametrize(
        ("actor", "context", "expected"),
        [
            (Trainer(), {}, ("Trainer", None)),
            (Trainer(rank=5), {}, ("Trainer", 5)),
            (Trainer(rank="odd"), {"name": "policy_3"}, ("policy", 3)),
            (Trainer(rank=5), {"name": "policy-0:3"}, ("policy-0", 5)),
            (Trainer(), {"name": "17"}, ("Trainer", 17)),
            (Trainer(), {"name": "judge"}, ("judge", None)),
            (Trainer(), {"name": "my actor!"}, ("my-actor-", None)),
            (None, {"task": "train.prepare"}, ("prepare", None)),
            (None, {}, ("idle", None)),
            (None, {"get_task_function_name": None}, ("job", None)),
        ],
    )
    def test_labels(self, ray, described, actor, context, expected):
        """
        An actor is addressed by its name or class, and its rank, written so
        that it can be typed; a worker without one by its task. A Ray that
        fails is not asked.
        """
        if actor:
            ray.worker.actors["a1"] = actor
        vars(ray.context).update(context)

        ray_debugger_setup()

        assert expected == (described()["group"], described()["rank"])

    @pytest.mark.parametrize("by", ["environment", "program"])
    def test_rank_of_the_job(self, ray, described, monkeypatch, by):
        """
        The rank of the environment or of the program is not replaced.
        """
        ray.worker.actors["a1"] = Trainer(rank=5)
        if by == "environment":
            monkeypatch.setenv("RANK", "2")
        else:
            arm(labels={"rank": 2})

        ray_debugger_setup()

        assert ("Trainer", 2) == (described()["group"], described()["rank"])

    @pytest.mark.parametrize("is_connected", [False, True])
    def test_too_early(self, ray, described, is_connected):
        """
        Before a worker has a job, Ray is not asked: it would abort.
        """
        ray.context.get_task_function_name = pytest.fail
        ray.worker.core_worker.has_job = False
        if not is_connected:
            del ray.worker.core_worker

        ray_debugger_setup()

        assert "idle" == described()["group"]

    def test_set_up(self, ray, folder, monkeypatch):
        """
        A worker is armed in a folder of its job, and its breakpoints are ours.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")

        ray_debugger_setup()

        (path,) = folder.glob("*/*.sock")
        assert "ray-01000000-4567" == path.parent.name
        assert set_trace is sys.breakpointhook

    @pytest.mark.parametrize(
        ("wanted", "is_debugged"),
        [("0", False), ("1", False), ("0", True)],
        ids=["not wanted", "wanted", "after a breakpoint"],
    )
    def test_crash(self, ray, hold, monkeypatch, wanted, is_debugged):
        """
        What Ray catches is examined by us, if that was wanted, or the process
        is debugged.
        """
        monkeypatch.setenv("RAY_DEBUG_POST_MORTEM", wanted)
        hooks = [sys.excepthook] * is_debugged
        monkeypatch.setattr(arming, "_hooks", hooks)

        ray_debugger_setup()
        held = hold(failing(ray.rpdb._post_mortem))
        if is_debugged or wanted == "1":
            assert "post mortem" == held.session().session.reason
            held.says("c")

        held.end()
        assert ray.rpdb._is_ray_debugger_post_mortem_enabled()

    def test_off(self, folder, monkeypatch):
        """
        A worker that shall not be debugged is left alone.
        """
        monkeypatch.setenv("DISTDEBUG", "0")
        before = sys.breakpointhook

        ray_debugger_setup()
        monarch_setup()

        assert [] == list(folder.iterdir())
        assert before is sys.breakpointhook

    def test_environment(self, monkeypatch):
        """
        A runtime environment keeps what is in it, and gets what we need.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        monkeypatch.setenv("DISTDEBUG_LIMIT", "60")
        own = {"pip": ["x"], "env_vars": {"A": "1"}}

        found = ray_debugger_env(own)

        assert {
            "pip": ["x"],
            "env_vars": {"A": "1", "DISTDEBUG_LIMIT": "60"},
            "worker_process_setup_hook": "distdebug.debugger.ray_debugger_setup",
        } == found
        assert {"A": "1"} == own["env_vars"]
        assert "mine" == ray_debugger_env(
            {"worker_process_setup_hook": "mine"}
        ).get("worker_process_setup_hook")


class Place(dict):
    """
    A place in a mesh, as Monarch gives it.
    """

    def __init__(self, rank, **coords):
        super().__init__(coords)
        self.rank = rank


def message(place, own=None):
    """
    What an endpoint knows of the message that it handles.
    """
    instance = SimpleNamespace(name="trainer", rank=own or place)
    return SimpleNamespace(actor_instance=instance, message_rank=place)


@pytest.fixture
def monarch(monkeypatch):
    """
    A Monarch of which this process is part; it notes what it is asked to do.
    """
    notes = []

    class Actor:
        """
        What runs an endpoint.
        """

        def _prepare(self, ctx, *args):
            notes.append(("prepare", *args))
            return args

        def _maybe_exit_debugger(self, do_continue=True):
            notes.append(("leave", do_continue))

        def _post_mortem_debug(self, trace):
            notes.append(("its own debugger", trace))

    current = SimpleNamespace(get=lambda: None)
    mesh = module(
        "monarch._src.actor.actor_mesh", _Actor=Actor, _context=current
    )
    for name in ("monarch", "monarch._src", "monarch._src.actor"):
        monkeypatch.setitem(sys.modules, name, module(name))
    monkeypatch.setitem(sys.modules, mesh.__name__, mesh)
    sys.modules["monarch._src.actor"].actor_mesh = mesh
    # What it knows of Monarch is for the life of a program.
    for name in ("_open_messages", "_latest_message", "_replaced", "_options"):
        kind = type(getattr(launchers, name))
        monkeypatch.setattr(launchers, name, kind())
    return SimpleNamespace(Actor=Actor, current=current, notes=notes)


class TestMonarch:
    """
    A process of Monarch.
    """

    @pytest.mark.parametrize(
        ("there", "own", "expected"),
        [
            (Place(1, dp=0, tp=1), None, (1, {"dp": 0, "tp": 1})),
            (Place(1, tp=1), Place(3, dp=1, tp=1), (3, {"dp": 1, "tp": 1})),
            (Place(2, all=2), Place(2, dp=1, tp=0), (2, {"all": 2})),
            (Place(0, data=0), Place(2, dp=1, tp=0), (0, {"data": 0})),
        ],
        ids=["mesh", "slice", "flat", "renamed"],
    )
    def test_labels(self, monarch, described, there, own, expected):
        """
        A view has its own labels, and a slice those of its mesh.
        """
        monarch.current.get = lambda: message(there, own)

        monarch_setup()

        found = described()
        assert ("trainer", *expected) == (
            found["group"],
            found["rank"],
            found["coords"],
        )

    def test_endpoint(self, monarch, hold, folder, monkeypatch):
        """
        A stop ends with its endpoint, and Monarch's own method is called.
        """
        monkeypatch.setenv("HYPERACTOR_EXECUTION_ID", "me_Nov-22_06:14_1")
        monkeypatch.delenv("DISTDEBUG_DIR")
        monarch_setup()
        monarch_setup()
        actor = monarch.Actor()

        def endpoint():
            actor._prepare(message(Place(0, dp=0)), "method")
            set_trace()
            actor._maybe_exit_debugger(do_continue=False)
            return repr(sys.gettrace())

        (path,) = folder.glob("*/*.sock")
        monkeypatch.setenv("DISTDEBUG_DIR", str(path.parent))
        held = hold(endpoint, path.parent)
        session = held.session()
        while "ended" != session.send("n").state:
            pass

        assert "Prompt" not in held.end()
        assert [("prepare", "method"), ("leave", False)] == monarch.notes
        assert "monarch-me-Nov-22-06-14-1" == path.parent.name

    @pytest.mark.parametrize("ends", ["succeeds", "fails", "goes on"])
    def test_threads(self, monarch, described, ends):
        """
        A thread of its own belongs to the message that came last, unless that
        is done already.
        """
        monarch_setup()
        first, second = monarch.Actor(), monarch.Actor()
        first._prepare(message(Place(3, dp=1, tp=1)))
        before = described()
        second._prepare(message(Place(1, dp=0, tp=1)))
        if ends == "succeeds":
            second._maybe_exit_debugger()
        elif ends == "fails":
            second._post_mortem_debug(None)

        assert ("trainer", 3) == (before["group"], before["rank"])
        assert (1 if ends == "goes on" else 3) == described()["rank"]

    @pytest.mark.parametrize("wanted", [True, False])
    def test_failure(self, monarch, hold, monkeypatch, wanted):
        """
        An endpoint that fails is looked at by us, not by Monarch.
        """
        monkeypatch.setattr(arming, "_hooks", [])
        monarch_setup(post_mortem=wanted)
        actor = monarch.Actor()
        actor._prepare(message(Place(0, dp=0)))

        held = hold(failing(lambda: actor._post_mortem_debug(None)))
        if wanted:
            assert "ValueError" in held.session().last().text
            held.says("c")

        held.end()
        assert [("prepare",)] == monarch.notes

    def test_unknown_version(self, monarch, described, caplog):
        """
        A Monarch of another kind is debugged as far as it goes.
        """
        del monarch.Actor._maybe_exit_debugger

        monarch_setup()

        assert "_maybe_exit_debugger" in caplog.text
        assert os.getpid() == described()["pid"]


@pytest.fixture
def python(tmp_path):
    """
    Starts what looks like a Python of this version; gives its process.
    """
    with contextlib.ExitStack() as stack:

        def start(version):
            path = tmp_path / f"python{version}"
            shutil.copy("/bin/sleep", path)
            process = subprocess.Popen(["sleep", "60"], executable=path)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def ask(monkeypatch):
    """
    Decide what happens when a process is given a script.
    """
    monkeypatch.delenv("PYTHON_DISABLE_REMOTE_DEBUG", raising=False)

    def decide(told=None, status=0, does=lambda _: None):
        def run(argv, *, timeout_s):
            script = Path(argv[-1])
            if told is not None:
                script.with_suffix(".reply").write_text(told)
            does(script)
            return SimpleNamespace(
                status=status, complaint="Trace\nNo: \x1b[1m"
            )

        monkeypatch.setattr(local, "run_tool", run)

    return decide


def worker(pid, **others):
    """
    A rank of this node.
    """
    plain = {"start_ticks": 1, "parent_pid": 1, "uid": 0, "title": ""}
    return Worker(pid=pid, **{**plain, "framework": "torchrun", **others})


class TestUnprepared:
    """
    A process that was started without us.
    """

    def test_found(self, workers):
        """
        Only ranks of ours of the same job are offered that do not listen yet.
        """
        workers(
            {"pid": 1, "rank": 0, "job": "a"},
            {"pid": 2, "rank": 1, "job": "a"},
            {"pid": 3, "role": "launcher", "job": "a"},
            {"pid": 4, "uid": os.geteuid() + 1, "job": "a"},
            {"pid": 5, "rank": 1, "job": "b"},
            {"pid": 6},
        )

        assert [2] == [w.pid for w in unarmed_workers([1])]
        assert [] == [w.pid for w in unarmed_workers([6, 7])]

    def test_found_first(self, workers):
        """
        If no rank listens, ranks of all jobs are offered, and no other
        program.
        """
        workers(
            {"pid": 1, "rank": 0, "job": "a"},
            {"pid": 2, "framework": "other"},
            {"pid": 3, "framework": "ray", "title": "ray::Trainer.fit"},
            {"pid": 4, "framework": "ray", "title": "ray::RuntimeEnvAgent"},
            {"pid": 5, "framework": "ray", "title": "ray::IDLE"},
        )

        assert [1, 3] == [w.pid for w in unarmed_workers([])]

    @pytest.mark.process
    def test_offered(self, python):
        """
        Each job has a line of its own with what can be done for its ranks: to
        arm them, or to see their stacks.
        """
        new, old = python("3.14").pid, python("3.11").pid
        found = [worker(new, rank=rank, job="a:1") for rank in (1, 2)]
        found += [worker(old, rank=4, job="a:1"), worker(1 << 23, job="a:1")]
        found += [worker(new, rank=0, job="b")]
        many = [worker(old) for _ in range(10)]

        can, cannot, other = arming_hints(found)
        (several,) = arming_hints(many)

        assert can.endswith(
            "ranks 1-2 of job a:1; to arm it as it runs: "
            f"python -m distdebug dbg --arm {new} --arm {new}"
        )
        assert (
            "rank 4 of job a:1, and Python does not allow attaching" in cannot
        )
        assert cannot.endswith(f"python -m distdebug stacks --pid {old}")
        assert "rank 0 of job b;" in other
        assert "workers, and" in several
        assert several.endswith(f"stacks{f' --pid {old}' * 8} …")
        assert () == arming_hints([])

    def test_this_python(self):
        """
        This Python is known by its files.
        """
        (line,) = arming_hints([worker(os.getpid())])

        is_new = sys.version_info >= (3, 14)
        assert is_new == ("to arm it as it runs" in line)

    @pytest.mark.process
    def test_armed(self, python, ask, folder):
        """
        The script arms the process that runs it, and nothing is left behind.
        """
        process = python("3.14")
        program = (
            "import os, sys\n"
            "exec(open(sys.argv[1]).read())\n"
            "print(os.path.exists(sys.argv[1]), 'arm_this_process' in dir())"
        )

        def run(script):
            got = subprocess.run(
                [sys.executable, "-c", program, script],
                check=True,
                capture_output=True,
                text=True,
            )
            printed.append(got.stdout)

        printed = []
        ask(does=run)
        (folder / "arming").mkdir(mode=0o700)
        (folder / "arming" / "0.old.py").write_text("")

        armed = arm_process(process.pid)

        assert process.pid == armed.pid
        assert str(armed).startswith(
            f"process {process.pid} listens at {folder / 'x.'}"
        )
        assert ["False False\n"] == printed
        assert [] == list((folder / "arming").iterdir())

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("told", "status", "message"),
        [
            ("no: it is off", 0, "was not armed: it is off"),
            ("no: it is off", 1, "does not allow attaching: No:"),
            (None, 0, "reached no line of Python for 0 s"),
            (None, None, "has ended"),
        ],
        ids=["off", "refused", "native", "gone"],
    )
    def test_refused(self, python, ask, told, status, message):
        """
        The reason why a process was not armed is given.
        """
        process = python("3.14")
        ends = status is None
        ask(
            told,
            status or 0,
            does=lambda _: ends and (process.kill() or process.wait()),
        )

        with pytest.raises(DebuggerError, match=message) as caught:
            arm_process(process.pid, timeout_s=5.0 if ends else 0.0)

        assert "\x1b" not in str(caught.value)

    @pytest.mark.process
    def test_not_here(self, python, tmp_path):
        """
        A process whose Python cannot be run here is left alone.
        """
        process = python("3.14")
        (tmp_path / "python3.14").unlink()

        with pytest.raises(DebuggerError, match="a Python that is not here"):
            arm_process(process.pid)

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("version", "message"),
        [
            ("-less", "does not seem to run Python"),
            ("3.13", "runs Python 3.13"),
            ("3.14", "PYTHON_DISABLE_REMOTE_DEBUG is set here"),
        ],
        ids=["no Python", "an old one", "forbidden"],
    )
    def test_cannot(self, python, monkeypatch, version, message):
        """
        A process that cannot be entered is refused with the reason; Python's
        own switch is respected.
        """
        monkeypatch.setenv("PYTHON_DISABLE_REMOTE_DEBUG", "1")

        with pytest.raises(DebuggerError, match=message):
            arm_process(python(version).pid)

    @pytest.mark.parametrize(
        ("change", "pid", "message"),
        [
            ("geteuid", os.getpid(), "belongs to another user"),
            ("readlink", os.getpid(), "belongs to another user"),
            (None, 2**22 + 1, "there is no process"),
        ],
        ids=["another's", "hidden", "gone"],
    )
    def test_not_ours(self, monkeypatch, change, pid, message):
        """
        The program of another user is never run as us; a process that is not
        there is refused.
        """

        def hidden(path):
            raise PermissionError(path)

        if change == "readlink":
            monkeypatch.setattr(os, "readlink", hidden)
        elif change:
            monkeypatch.setattr(os, "geteuid", lambda: 2**30)

        with pytest.raises(DebuggerError, match=message):
            arm_process(pid)

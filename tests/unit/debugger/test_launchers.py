"""
How Ray and Monarch are told of us, without either; and who was not prepared.
"""

from __future__ import annotations

import os
import sys
import threading

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from distdebug.debugger import arm_process, how_to_arm, unarmed_workers
from distdebug.debugger.client import unprepared
from distdebug.debugger.inside import crashes, labels
from distdebug.debugger.inside.labels import describe_process, label_by
from distdebug.debugger.launchers import caught, on_monarch, on_ray
from distdebug.errors import DebuggerError
from distdebug.processes import Worker


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch):
    """
    Nothing of this process is known, and nothing stays as it was set.
    """
    for name in ("DISTDEBUG", "DISTDEBUG_DIR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(labels, "_own", {})
    monkeypatch.setattr(labels, "_launcher", [])
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)


def module(name, **content):
    """
    A module that holds just this.
    """
    found = ModuleType(name)
    vars(found).update(content)
    return found


class TestLabels:
    """
    A launcher says how a process is addressed.
    """

    def test_told(self):
        """
        What it says is used, and written so that it can be typed.
        """
        label_by(lambda: {"group": "my actor!", "rank": 3, "coords": {"x": 1}})

        found = describe_process()

        assert ("my-actor-", 3, {"x": 1}) == (
            found["group"],
            found["rank"],
            found["coords"],
        )

    def test_own_first(self, monkeypatch):
        """
        What the program itself says comes first.
        """
        monkeypatch.setattr(labels, "_own", {"rank": 7})
        label_by(lambda: {"group": "", "rank": 3})

        found = describe_process()

        assert ("job", 7) == (found["group"], found["rank"])

    def test_broken(self):
        """
        A launcher that fails is not asked; the process is known all the same.
        """
        label_by(lambda: {}["none"])

        assert "job" == describe_process()["group"]


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


@pytest.fixture
def armed(monkeypatch):
    """
    How this process was armed, if it was.
    """
    calls = []
    for launcher in (on_ray, on_monarch):
        monkeypatch.setattr(launcher, "arm", lambda **kw: calls.append(kw))
    return calls


class TestRay:
    """
    A worker of Ray.
    """

    @pytest.mark.parametrize(
        ("content", "name", "expected"),
        [
            ({}, None, {"group": "Trainer"}),
            ({"rank": 5}, None, {"group": "Trainer", "rank": 5}),
            ({"rank": "odd"}, "policy_3", {"group": "policy", "rank": 3}),
            ({"rank": 5}, "policy-0:3", {"group": "policy-0", "rank": 5}),
            ({}, "17", {"group": "Trainer", "rank": 17}),
            ({}, "judge", {"group": "judge"}),
        ],
        ids=["class", "attribute", "name", "both", "number", "no number"],
    )
    def test_actor(self, ray, content, name, expected):
        """
        An actor is addressed by its name or class, and its rank.
        """
        ray.worker.actors["a1"] = Trainer(**content)
        ray.context.name = name

        assert expected == on_ray.ray_labels()

    def test_rank_of_the_job(self, ray, monkeypatch):
        """
        The rank that the environment tells is not replaced.
        """
        monkeypatch.setenv("RANK", "2")
        ray.worker.actors["a1"] = Trainer(rank=5)

        assert {"group": "Trainer"} == on_ray.ray_labels()

    @pytest.mark.parametrize(
        ("task", "group"),
        [("train.prepare", "prepare"), (None, "idle")],
        ids=["task", "idle"],
    )
    def test_task(self, ray, task, group):
        """
        A worker without an actor is its task.
        """
        ray.context.task = task

        assert {"group": group} == on_ray.ray_labels()

    @pytest.mark.parametrize("is_connected", [False, True])
    def test_too_early(self, ray, is_connected):
        """
        Before a worker has a job, Ray is not asked: it would abort.
        """
        ray.context.get_task_function_name = pytest.fail
        ray.worker.core_worker.has_job = False
        if not is_connected:
            del ray.worker.core_worker

        assert {"group": "idle"} == on_ray.ray_labels()

    def test_set_up(self, ray, armed, monkeypatch):
        """
        A worker is armed in a folder of its job, and its crashes are ours.
        """
        monkeypatch.setenv("RAY_DEBUG_POST_MORTEM", "1")
        asked = []
        monkeypatch.setattr(
            on_ray, "examine_caught", lambda *, always: asked.append(always)
        )

        on_ray.ray_debugger_setup()
        ray.rpdb._post_mortem()

        assert [{"breakpoints": True}] == [
            {k: v for k, v in call.items() if k != "dir"} for call in armed
        ]
        assert "ray-01000000-4567" == Path(armed[0]["dir"]).name
        assert ray.rpdb._is_ray_debugger_post_mortem_enabled()
        assert [True] == asked

    def test_chosen_folder(self, ray, armed, monkeypatch):
        """
        The folder that the user chose is taken.
        """
        monkeypatch.setenv("DISTDEBUG_DIR", "/chosen")

        on_ray.ray_debugger_setup()

        assert ["/chosen"] == [call["dir"] for call in armed]

    def test_off(self, armed, monkeypatch):
        """
        A worker that shall not be debugged is left alone.
        """
        monkeypatch.setenv("DISTDEBUG", "0")

        on_ray.ray_debugger_setup()
        on_monarch.monarch_setup()

        assert [] == armed

    def test_environment(self, monkeypatch):
        """
        A runtime environment keeps what is in it, and gets what we need.
        """
        monkeypatch.setenv("DISTDEBUG_LIMIT", "60")
        own = {"pip": ["x"], "env_vars": {"A": "1"}}

        found = on_ray.ray_debugger_env(own)

        assert {
            "pip": ["x"],
            "env_vars": {"A": "1", "DISTDEBUG_LIMIT": "60"},
            "worker_process_setup_hook": "distdebug.ray_debugger_setup",
        } == found
        assert {"A": "1"} == own["env_vars"]
        assert "mine" == on_ray.ray_debugger_env(
            {"worker_process_setup_hook": "mine"}
        ).get("worker_process_setup_hook")


class Place(dict):
    """
    A place in a mesh, as Monarch tells it.
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
    names = "monarch", "monarch._src", "monarch._src.actor"
    for name in names:
        monkeypatch.setitem(sys.modules, name, module(name))
    monkeypatch.setitem(sys.modules, mesh.__name__, mesh)
    sys.modules["monarch._src.actor"].actor_mesh = mesh
    for name in ("_handled", "_latest", "_replaced", "_wanted"):
        kind = type(getattr(on_monarch, name))
        monkeypatch.setattr(on_monarch, name, kind())
    monkeypatch.setattr(
        on_monarch, "release_thread", lambda: notes.append("released")
    )
    monkeypatch.setattr(
        on_monarch,
        "examine_caught",
        lambda *, always: notes.append(("examined", always)),
    )
    on_monarch._has_stopped.set(False)
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
    def test_labels(self, monarch, there, own, expected):
        """
        A view is told as it is, and a slice as in its mesh.
        """
        monarch.current.get = lambda: message(there, own)

        found = on_monarch._labels()

        assert ("trainer", *expected) == (
            found["group"],
            found["rank"],
            found["coords"],
        )

    def test_endpoint(self, monarch, armed, monkeypatch):
        """
        What was stopped ends with its endpoint, and nothing else does.
        """
        monkeypatch.setenv("HYPERACTOR_EXECUTION_ID", "me_Nov-22_06:14_1")
        on_monarch.monarch_setup()
        on_monarch.monarch_setup()
        actor = monarch.Actor()

        actor._prepare(message(Place(0, dp=0)), "method")
        actor._maybe_exit_debugger()
        describe_process()
        actor._maybe_exit_debugger(do_continue=False)
        actor._prepare(message(Place(0, dp=0)), "next")
        actor._maybe_exit_debugger()

        assert [
            ("prepare", "method"),
            ("leave", True),
            "released",
            ("leave", False),
            ("prepare", "next"),
            ("leave", True),
        ] == monarch.notes
        assert "monarch-me-Nov-22-06-14-1" == Path(armed[0]["dir"]).name

    def test_threads(self, monarch, armed):
        """
        A thread of its own belongs to the message that came last.
        """
        on_monarch.monarch_setup()
        monarch.Actor()._prepare(message(Place(3, dp=1, tp=1)))
        found = []

        thread = threading.Thread(
            target=lambda: found.append(describe_process())
        )
        thread.start()
        thread.join()

        assert [("trainer", 3)] == [(d["group"], d["rank"]) for d in found]

    @pytest.mark.parametrize("ends", ["succeeds", "fails", "goes on"])
    def test_threads_of_several(self, monarch, armed, ends):
        """
        A thread does not belong to a later message that is done already.
        """
        on_monarch.monarch_setup()
        first, second = monarch.Actor(), monarch.Actor()
        first._prepare(message(Place(3, dp=1, tp=1)))
        second._prepare(message(Place(1, dp=0, tp=1)))
        if ends == "succeeds":
            second._maybe_exit_debugger()
        elif ends == "fails":
            second._post_mortem_debug(None)

        found = on_monarch._labels()["rank"]

        assert (1 if ends == "goes on" else 3) == found

    @pytest.mark.parametrize("wanted", [True, False])
    def test_failure(self, monarch, armed, wanted):
        """
        An endpoint that fails is looked at by us, not by Monarch.
        """
        on_monarch.monarch_setup(post_mortem=wanted)
        actor = monarch.Actor()

        actor._post_mortem_debug(None)
        on_monarch._has_stopped.set(True)
        actor._post_mortem_debug(None)

        assert [
            ("examined", wanted),
            ("examined", wanted),
            "released",
        ] == monarch.notes

    def test_unknown_version(self, monarch, armed, caplog):
        """
        A Monarch of another kind is debugged as far as it goes.
        """
        del monarch.Actor._maybe_exit_debugger

        on_monarch.monarch_setup()

        assert "_maybe_exit_debugger" in caplog.text
        assert 1 == len(armed)


class TestCaught:
    """
    What a launcher catches.
    """

    @pytest.mark.parametrize(
        ("always", "hooks", "expected"),
        [(False, [], 0), (True, [], 1), (False, [1], 1)],
        ids=["not wanted", "wanted", "after a breakpoint"],
    )
    def test_examined(self, monkeypatch, always, hooks, expected):
        """
        It is examined if it was wanted, or the process is debugged.
        """
        seen = []
        monkeypatch.setattr(crashes, "_hooks", hooks)
        monkeypatch.setattr(
            crashes, "_examine", lambda error, limit: seen.append(error)
        )

        try:
            int("x")
        except ValueError:
            caught.examine_caught(always=always)

        assert expected == len(seen)


def worker(pid, **others):
    """
    A rank of this node.
    """
    plain = {
        "start_ticks": 1,
        "parent_pid": 1,
        "uid": os.geteuid(),
        "title": "python train.py",
        "framework": "torchrun",
    }
    return Worker(pid=pid, **{**plain, **others})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """
    Where scripts are left for processes; this one runs the newest Python.
    """
    monkeypatch.delenv("PYTHON_DISABLE_REMOTE_DEBUG", raising=False)
    monkeypatch.setattr(unprepared, "base_folder", lambda: tmp_path)
    monkeypatch.setattr(unprepared, "_version", lambda pid: (3, 14))
    return tmp_path / "arming"


class TestUnprepared:
    """
    A process that was started without us.
    """

    def test_found(self, monkeypatch):
        """
        Only ranks of ours of the same job are offered that do not listen yet.
        """
        found = [
            worker(1, rank=0, job="a"),
            worker(2, rank=1, job="a"),
            worker(3, role="launcher", job="a"),
            worker(4, uid=os.geteuid() + 1, job="a"),
            worker(5, rank=1, job="b"),
            worker(6),
        ]
        monkeypatch.setattr(unprepared, "find_workers", lambda **_: found)

        assert [2] == [w.pid for w in unarmed_workers([1])]
        assert [] == [w.pid for w in unarmed_workers([6, 7])]

    def test_found_first(self, monkeypatch):
        """
        If nobody listens, ranks of all jobs are offered, and no other program.
        """
        found = [
            worker(1, rank=0, job="a"),
            worker(2, framework="other"),
            worker(3, framework="ray", title="ray::Trainer.fit"),
            worker(4, framework="ray", title="ray::RuntimeEnvAgent"),
            worker(5, framework="ray", title="ray::IDLE"),
        ]
        monkeypatch.setattr(unprepared, "find_workers", lambda **_: found)

        assert [1, 3] == [w.pid for w in unarmed_workers([])]

    def test_several_jobs(self, monkeypatch):
        """
        Each job has a line of its own.
        """
        monkeypatch.setattr(unprepared, "_version", lambda _: (3, 14))

        lines = how_to_arm([worker(1, rank=0, job=job) for job in "ab"])

        assert "rank 0 of job a;" in lines[0]
        assert "rank 0 of job b;" in lines[1]

    def test_offered(self, monkeypatch):
        """
        It is told who can be armed, and what else there is for the others.
        """

        def version(pid):
            if pid == 3:
                raise FileNotFoundError
            return (3, 14) if pid < 3 else (3, 11)

        monkeypatch.setattr(unprepared, "_version", version)
        found = [worker(pid, rank=pid, job="a:1") for pid in range(1, 5)]
        many = [worker(pid) for pid in range(10, 20)]

        can, cannot = how_to_arm(found)
        (several,) = how_to_arm(many)
        some = how_to_arm(found[:1])

        assert can.endswith(
            "ranks 1-2 of job a:1; to arm it as it runs: "
            "python -m distdebug dbg --arm 1 --arm 2"
        )
        assert 1 == len(some)
        assert "rank 4 of job a:1, and Python lets nobody in" in cannot
        assert cannot.endswith("python -m distdebug stacks --pid 4")
        assert "workers, and" in several
        assert several.endswith("--pid 17 …")
        assert () == how_to_arm([])

    def said(self, monkeypatch, folder, told, status=0):
        """
        Let the process answer to the script that it is given.
        """

        def run(argv, *, timeout_s):
            script = Path(argv[-1])
            assert script.parent == folder
            if told is not None:
                script.with_suffix(".reply").write_text(told)
            return SimpleNamespace(
                status=status, complaint="Trace\nNo: \x1b[1m"
            )

        monkeypatch.setattr(unprepared, "run_tool", run)

    def test_armed(self, folder, monkeypatch):
        """
        It is told where the process listens, and nothing is left behind.
        """
        self.said(monkeypatch, folder, "at /s/x.sock")
        folder.mkdir(mode=0o700)
        (folder / "0.old.py").write_text("")

        armed = arm_process(os.getpid())

        assert f"process {os.getpid()} listens at /s/x.sock" == str(armed)
        assert [".py"] == [path.suffix for path in folder.iterdir()]

    def test_script(self, folder, monkeypatch):
        """
        The script arms who runs it, and removes itself.
        """
        script = folder.parent / "7.py"
        script.write_text(unprepared._script(script))
        names = {}
        monkeypatch.setattr("distdebug.debugger.arm", lambda **_: "/s")

        exec(script.read_text(), names)

        assert "at /s" == script.with_suffix(".reply").read_text()
        assert not script.exists()
        assert "arm_this_process" not in names

    @pytest.mark.parametrize(
        ("told", "status", "message"),
        [
            ("no: it is off", 0, "was not armed: it is off"),
            ("no: it is off", 1, "lets nobody in: No:"),
            (None, 0, "came to no line of Python for 0 s"),
        ],
        ids=["off", "refused", "native"],
    )
    def test_refused(self, folder, monkeypatch, told, status, message):
        """
        It is told why a process was not armed.
        """
        self.said(monkeypatch, folder, told, status)

        with pytest.raises(DebuggerError, match=message):
            arm_process(os.getpid(), timeout_s=0.0)

    def test_gone(self, folder, monkeypatch):
        """
        A process that ends meanwhile is not waited for.
        """
        self.said(monkeypatch, folder, None)
        monkeypatch.setattr(unprepared, "_check", lambda pid: None)
        monkeypatch.setattr(os, "readlink", lambda path: "/bin/python")

        with pytest.raises(DebuggerError, match="has ended"):
            arm_process(2**22 + 1)

    def test_not_here(self, folder, monkeypatch):
        """
        A process whose Python cannot be run here is left alone.
        """

        def run(argv, *, timeout_s):
            raise FileNotFoundError(argv[0])

        monkeypatch.setattr(unprepared, "run_tool", run)

        with pytest.raises(DebuggerError, match="a Python that is not here"):
            arm_process(os.getpid())

    @pytest.mark.parametrize(
        ("version", "message"),
        [
            (None, "does not seem to run Python"),
            ((3, 13), "runs Python 3.13"),
        ],
        ids=["no Python", "an old one"],
    )
    def test_old(self, folder, monkeypatch, version, message):
        """
        A process that cannot be entered is told, and what helps.
        """
        monkeypatch.setattr(unprepared, "_version", lambda pid: version)

        with pytest.raises(DebuggerError, match=message):
            arm_process(os.getpid())

    def test_forbidden(self, folder, monkeypatch):
        """
        Python's own switch is respected.
        """
        monkeypatch.setenv("PYTHON_DISABLE_REMOTE_DEBUG", "1")

        with pytest.raises(DebuggerError, match="PYTHON_DISABLE_REMOTE"):
            arm_process(os.getpid())

    def test_not_ours(self, monkeypatch):
        """
        The program of somebody else is never run as us.
        """
        monkeypatch.setattr(os, "geteuid", lambda: 2**30)

        with pytest.raises(DebuggerError, match="belongs to another user"):
            arm_process(os.getpid())

    def test_no_process(self):
        """
        A process that is not there is told.
        """
        with pytest.raises(DebuggerError, match="there is no process"):
            arm_process(2**22 + 1)

    def test_hidden(self, monkeypatch):
        """
        A process that may not be looked at is not ours to arm.
        """

        def version(pid):
            raise PermissionError

        monkeypatch.setattr(unprepared, "_version", version)

        with pytest.raises(DebuggerError, match="belongs to another user"):
            arm_process(os.getpid())

    def test_version(self):
        """
        This Python is known by its files.
        """
        assert sys.version_info[:2] == unprepared._version(os.getpid())

    def test_no_version(self):
        """
        What is no Python has none.
        """
        import subprocess

        with subprocess.Popen(["/bin/sleep", "60"]) as process:
            found = unprepared._version(process.pid)
            process.kill()

        assert found is None

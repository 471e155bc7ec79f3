"""
Telling which worker was which actor, from files alone.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import os
import threading
import time

from pathlib import Path

import attrs
import pytest

from distdebug.errors import LogError, NoLogsError
from distdebug.ray import (
    find_actor_logs,
    find_ray_sessions,
    open_ray_session,
    worker_logs,
)


DATA = Path(__file__).parents[2] / "data" / "ray_sessions"
NAME = "session_2026-02-20_02-03-57_123456_4711"
NODE = "ab" * 28
WORKER = "0123456789abcdef" * 3 + "01234567"
ACTOR = "f00d" * 8
MARKS = ":job_id:02000000\n:actor_name:{}\n"


@pytest.fixture
def session(tmp_path):
    """
    A session without any worker.
    """
    return make_session(tmp_path)


def make_session(temp_dir, node=NODE, ip="10.0.0.7"):
    """
    Make a session.
    """
    logs = temp_dir / NAME / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").touch()
    state = f"Node ID: {node}\nNode name: {ip}\n"
    (logs / "debug_state.txt").write_text(state)
    return open_ray_session(temp_dir / NAME)


def add(session, end="out", text="", *, worker=WORKER, pid=77, folder=""):
    """
    Add a file of a worker.
    """
    path = session.logs / folder / f"worker-{worker}-ffffffff-{pid}.{end}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def add_core(session, text, *, worker=WORKER, pid=77, end=".log"):
    """
    Add the log of the C++ half of a worker.
    """
    name = f"python-core-worker-{worker}_{pid}{end}"
    (session.logs / name).write_text(text)


def only(session):
    """
    The only worker of a session.
    """
    (log,) = worker_logs(session)
    return log


def test_actor(session):
    """
    Job, class, and representation are what the worker marked, rather than
    what the file is called.
    """
    marks = MARKS.format("SglEngine") + ":actor_name:SglEngine(rank=3)\n"
    add(session, "out", marks)
    add(session, "err", marks)

    log = only(session)

    assert (WORKER, 77, "worker") == (log.worker_id, log.pid, log.kind)
    assert ("ffffffff", "02000000") == (log.name_job_id, log.job_id)
    assert ("SglEngine", "SglEngine(rank=3)", None) == (
        log.actor_class,
        log.actor_repr,
        log.actor_name,
    )
    assert "SglEngine(rank=3) (pid=77 on 10.0.0.7)" == str(log)
    assert log.mtime == max(log.out[0].mtime, log.err[0].mtime) > 0


def test_tasks(session):
    """
    Tasks are told, each once, in their order.
    """
    names = ["load", "split", "load"]
    tasks = "".join(f":task_name:{name}\nx\n" for name in names)
    add(session, "out", f":job_id:01000000\n{tasks}")

    log = only(session)

    assert ("load", "split") == log.task_names
    assert (None, "split") == (log.actor_class, log.label)


def test_plain_data(session):
    """
    What is known of a worker can be written as JSON.
    """
    add(session, "out", MARKS.format("A"))

    data = json.loads(json.dumps(only(session).to_dict()))

    assert "A" == data["actor_class"]
    assert [0] == [part["index"] for part in data["out"]]
    assert NAME == data["session"]["name"]


def test_parts(session):
    """
    Parts come oldest first, by number rather than by name, wherever they lie
    and whatever they are called.
    """
    for number in (1, 2, 10):
        add(session, f"out.{number}", "x\n")
    add(session, "out", "x\n")
    add(session, "3.err", "x\n")
    add(session, "err", "x\n")
    add(session, "out.11", "x\n", folder="old")

    log = only(session)

    assert [11, 10, 2, 1, 0] == [part.index for part in log.out]
    assert "old" == log.out[0].path.parent.name
    assert [3, 0] == [part.index for part in log.err]
    assert [2] * 5 == [part.size for part in log.out]


A = MARKS.format("A")
A_1 = A + ":actor_name:A(1)\n"
LATE = "y" * ((1 << 13) - 20) + "\n:actor_name:Wrong_and_cut"
JSON = '{{"asctime": "2026-11-22 02:58:08,696", {}}}\n'
NAMED = JSON.format(rf'"actor_id": "{ACTOR}", "actor_name": "the \"one\""')
OF_A = {"job_id": "02000000", "actor_class": "A"}
OF_A_1 = OF_A | {"actor_repr": "A(1)"}
NOTHING = {"actor_class": None}
MARKED = {
    # A worker that was started ahead and never used is one nevertheless.
    "idle": (
        {"out": "", "err": ""},
        {"job_id": None, "actor_id": None, "label": "worker"},
    ),
    # Of a dead worker what was printed lies in old/, and its errors where
    # they were.
    "moved": ({"old/out": A, "err": "x\n"}, OF_A),
    # The marks are in whichever part of either stream they are left.
    "out": ({"out.2": A_1, "out": "", "err.1": "x\n", "err": "x\n"}, OF_A_1),
    "err": ({"out": "x\n", "err.1": A_1, "err": "x\n"}, OF_A_1),
    "middle": (
        {"out": "x\n", "err.3": "x\n", "err.2": A_1, "err": "x\n"},
        OF_A_1,
    ),
    # A class is told from a representation although that comes first.
    "representation": (
        {
            "err": ":job_id:02000000\n:actor_name:A(1)\n",
            "out.1": A,
            "out": "x\n" * 10_000,
        },
        OF_A_1,
    ),
    # What only looks like a mark is none.
    "in a line": ({"out": "x:actor_name:Wrong\n"}, NOTHING),
    "empty": ({"out": ":actor_name:\n"}, NOTHING),
    "other": ({"out": ":actor:Wrong\n"}, NOTHING),
    "cut": ({"out": LATE}, NOTHING),
    # Records in JSON tell the name that an actor was given.
    "json": (
        {"err": A + JSON.format('"message": "no name"') + NAMED},
        OF_A | {"actor_id": ACTOR, "actor_name": 'the "one"'},
    ),
    "torn json": (
        {"err": A + r'{"asctime": "x", "actor_name": "\x"}' + "\n"},
        OF_A | {"actor_name": None},
    ),
}


@pytest.mark.parametrize(("files", "expected"), MARKED.values(), ids=MARKED)
def test_marks(session, files, expected):
    """
    What a worker wrote of itself is found in all its files.
    """
    for name, text in files.items():
        folder, _, end = name.rpartition("/")
        add(session, end, text, folder=folder)

    log = only(session)

    assert len(files) == len(log.out) + len(log.err)
    assert expected == {key: getattr(log, key) for key in expected}


@pytest.mark.parametrize(
    "line",
    ["Creating actor: {}", "Creating actor actor_id={}"],
    ids=["2.9", "2.40"],
)
def test_core(session, line):
    """
    The C++ half of a worker tells the actor in any version, and what it calls
    itself, however much was printed before it did so.
    """
    add(session, "out", MARKS.format("A") + "x\n" * 10_000)
    add_core(
        session,
        f"[x] core_worker.cc:3247: {line.format(ACTOR)}\n{'x' * 400_000}\n"
        f"[x] Actor creation task finished, task_id: ff, actor_id: {ACTOR}, "
        "actor_repr_name: A(rank=5)\n",
    )

    log = only(session)

    assert (ACTOR, "A(rank=5)") == (log.actor_id, log.actor_repr)


def test_core_without(session):
    """
    An actor may call itself nothing; a half may end early, or be rotated.
    """
    add(session, "out", MARKS.format("A") + "x\n" * 10_000)
    creating = f"[x] Creating actor actor_id={ACTOR}\n"
    finished = "[x] Actor creation task finished, actor_repr_name: \nx\n"
    add_core(session, creating, end=".1.log")
    add_core(session, finished)
    add(session, "out", MARKS.format("B"), pid=78)
    add_core(session, "", pid=78)

    first, second = worker_logs(session)

    assert (ACTOR, None) == (first.actor_id, first.actor_repr)
    assert (None, "B") == (second.actor_id, second.actor_class)


@pytest.mark.parametrize(
    "line",
    [
        "Finished actor creation task for actor {a} on worker {w} at node {n}",
        "Submitting actor creation task to worker. actor_id={a} worker_id={w}",
    ],
    ids=["2.9", "2.60"],
)
def test_gcs(session, line):
    """
    The GCS of the head tells which actor a worker of another node was.
    """
    head = make_session(session.root.parent / "head", "cd" * 28, "10.0.0.1")
    text = line.format(a=ACTOR, w=WORKER, n=NODE)
    (head.logs / "gcs_server.1.out").write_text(f"[x] (gcs_server) {text}")
    (head.logs / "gcs_server.out").write_text("actor creation task of none\n")
    add(session, "out", MARKS.format("A"))

    (log,) = worker_logs([head, session])

    assert (ACTOR, session) == (log.actor_id, log.session)


def exported(**fields):
    """
    A record of an actor, as Ray exports it.
    """
    data = {"actor_id": ACTOR, "node_id": NODE, "class_name": "A", **fields}
    for key in ("actor_id", "node_id"):
        data[key] = base64.b64encode(bytes.fromhex(data[key])).decode()
    return json.dumps({"event_data": data}) + "\n"


def test_exported(session):
    """
    Exported events tell the name that an actor was given, over all records,
    also where nothing else tells the actor; broken ones harm no others.
    """
    folder = session.logs / "export_events"
    folder.mkdir()
    bad = [
        '{"actor_id"\n',
        '{"event_data": {"actor_id": "?"}}\n',
        '{"event_data": {"actor_id": 7}}\n',
        exported(pid=math.inf, name="no number"),
        exported(pid=math.nan, name="no number"),
        '"actor_id"\n',
        f'{"[" * 100_000}"actor_id"\n',
    ]
    good = [
        exported(state="DEPENDENCIES_UNREADY", name="trainer_0", node_id=""),
        exported(state="ALIVE", pid=77, repr_name="A(1)", class_name=None),
        exported(state="DEAD", pid=77),
    ]
    file = folder / "event_EXPORT_ACTOR.log"
    file.write_text("".join([*bad, *good]))
    add(session, "out", "x\n" * 10_000)
    add(session, "out", MARKS.format("B"), pid=78)

    log, other = worker_logs(session)

    assert ("A", "A(1)", "trainer_0", ACTOR) == (
        log.actor_class,
        log.actor_repr,
        log.actor_name,
        log.actor_id,
    )
    assert (None, "B") == (other.actor_id, other.actor_class)


def test_strange_files(session, tmp_path):
    """
    Links that lead out, pipes, folders, and files of others are no logs; what
    cannot be read is told.
    """
    outside = tmp_path / "secret"
    outside.write_text(MARKS.format("Secret"))
    add(session, "out", MARKS.format("A"))
    name = f"worker-{WORKER}-ffffffff-"
    (session.logs / f"{name}78.out").symlink_to(outside)
    (session.logs / f"{name}79.out").symlink_to("nowhere")
    inside = session.logs / f"{name}77.out"
    (session.logs / f"{name}80.out").symlink_to(inside)
    os.mkfifo(session.logs / f"{name}81.out")
    (session.logs / f"{name}82.out").mkdir()
    (session.logs / f"{name}83.core").touch()
    (session.logs / "worker-mine-84.out").touch()
    packed = session.logs / f"{name}85.err.1.gz"
    packed.write_bytes(b"no archive")

    first, linked, broken = worker_logs(session)

    assert [77, 80, 85] == [first.pid, linked.pid, broken.pid]
    assert ["A", "A"] == [first.actor_class, linked.actor_class]
    (missing,) = broken.missing
    assert str(packed) == missing.source
    assert "gzip" in missing.reason


def test_packed(session):
    """
    What was packed after it was rotated is read nevertheless.
    """
    path = session.logs / f"worker-{WORKER}-ffffffff-77.err.1.gz"
    path.write_bytes(gzip.compress(MARKS.format("A").encode()))

    log = only(session)

    assert ("A", 1) == (log.actor_class, log.err[0].index)


def test_vanished(session, monkeypatch):
    """
    A file that is gone between listing and reading is no harm.
    """
    add(session, "out", MARKS.format("A"))
    real_open = os.open

    def gone(path, *args, **kwargs):
        if str(path).endswith("-77.out"):
            raise FileNotFoundError(path)
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", gone)

    log = only(session)

    assert (None, ()) == (log.actor_class, log.missing)


def test_closed_folder(session, monkeypatch):
    """
    A folder that nobody may list is told with each of its workers.
    """
    add(session, "out", MARKS.format("A"))
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("old"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    (missing,) = only(session).missing

    assert ("Permission denied", str(session.logs / "old")) == (
        missing.reason,
        missing.source,
    )


def test_slow_files(session, monkeypatch):
    """
    Where each file takes long, several are read at once, and the order stays.
    """
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    threads = set()
    real_open = os.open

    def watched(*args, **kwargs):
        threads.add(threading.get_ident())
        return real_open(*args, **kwargs)

    monkeypatch.setattr(os, "open", watched)
    for pid in range(300):
        add(session, "out", MARKS.format(f"A{pid}"), pid=pid)

    found = worker_logs(session)

    assert [f"A{pid}" for pid in range(300)] == [x.actor_class for x in found]
    assert 1 < len(threads)


def test_io_worker(session):
    """
    Those that spill objects are workers of another kind.
    """
    (session.logs / f"io_worker-{WORKER}-78.out").write_text("x\n")

    log = only(session)

    assert ("io_worker", None, 78) == (log.kind, log.name_job_id, log.pid)


@pytest.mark.parametrize("version", ["2.9.3", "2.40.0"])
def test_older_versions(version):
    """
    Sessions of older versions tell what their driver knew.
    """
    known = json.loads((DATA / version / "actors" / "known.json").read_text())
    (session,) = find_ray_sessions(DATA / version / "actors")

    by_pid = {log.pid: log for log in worker_logs(session)}

    assert version == session.ray_version
    assert known == {
        name: {
            "pid": told["pid"],
            "actor_id": by_pid[told["pid"]].actor_id,
            "worker_id": by_pid[told["pid"]].worker_id,
            "node_id": session.node_id,
            "job_id": by_pid[told["pid"]].job_id,
        }
        for name, told in known.items()
    }
    trainer = by_pid[known["trainer_0"]["pid"]]
    assert "TrainerActor(rank=0)" == trainer.actor_repr
    assert ("preprocess",) == by_pid[known["task"]["pid"]].task_names


@pytest.fixture
def nodes(tmp_path):
    """
    Two nodes whose processes have the same number.
    """
    first = make_session(tmp_path / "a", "cd" * 28, "10.0.0.1")
    second = make_session(tmp_path / "b")
    add(first, "out", MARKS.format("mod.Trainer[0]"))
    add(second, "out", MARKS.format("SglEngine"), worker="9" * 56)
    third = f":job_id:02000000\n:task_name:load\n{MARKS.format('x.Late')}"
    add(second, "out", third, worker="8" * 56, pid=123456)
    add_core(second, f"Creating actor: {ACTOR}\n", worker="9" * 56)
    return first, second


def places(found):
    """
    Address and number of each.
    """
    return [(log.session.ip, log.pid) for log in found]


FIRST, SECOND, THIRD = (
    ("10.0.0.1", 77),
    ("10.0.0.7", 77),
    ("10.0.0.7", 123456),
)


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        ("SglEngine", [SECOND]),
        ("Sgl*", [SECOND]),
        ("sgl*", []),
        ("mod.Trainer[0]", [FIRST]),
        ("Late", [THIRD]),
        ("*", [SECOND, THIRD, FIRST]),
        (77, [SECOND, FIRST]),
        ("123456", [THIRD]),
        ("999999", [SECOND]),
        (ACTOR[:8], [SECOND]),
        ("fade00", []),
        ("(pid=77)", [SECOND, FIRST]),
        ("(SglEngine pid=77)", [SECOND]),
        ("(SglEngine pid=77, ip=10.0.0.1)", [FIRST]),
        ("(SglEngine pid=77, ip=10.0.0.9)", []),
        ("(load pid=123456, ip=10.0.0.7) some text", [THIRD]),
        ("[rank0]: text", []),
    ],
    ids=str,
)
def test_find(nodes, tmp_path, actor, expected):
    """
    An actor is found by class, pattern, number, id, or a line of a driver.
    """
    found = find_actor_logs(actor, [tmp_path / "a", nodes[1]])

    assert expected == places(found)


def test_find_in_places(nodes, tmp_path, monkeypatch):
    """
    Where to look is a place, a session, several, or what is usual.
    """
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "b"))

    assert [SECOND] == places(find_actor_logs("Sgl*"))
    assert [SECOND] == places(find_actor_logs("Sgl*", str(tmp_path)))
    assert [SECOND] == places(find_actor_logs("Sgl*", nodes[1]))
    with pytest.raises(NoLogsError):
        find_actor_logs("Sgl*", tmp_path / "nowhere")


def test_find_on_head(nodes):
    """
    A line without an address comes from the node of the driver, most likely
    the head.
    """
    first, second = nodes
    (second.logs / "gcs_server.out").touch()

    found = find_actor_logs("(pid=77)", [first.root, second.root])

    assert [SECOND] == places(found)


def test_clusters(tmp_path):
    """
    What one cluster tells is not taken for another's.
    """
    first = make_session(tmp_path)
    other = attrs.evolve(make_session(tmp_path / "b"), name="session_other")
    text = "actor creation task to worker. actor_id={} worker_id={}\n"
    for number, session in enumerate((first, other)):
        add(session, "out", MARKS.format("A"))
        line = text.format(f"{number:032x}", WORKER)
        (session.logs / "gcs_server.out").write_text(line)

    found = worker_logs([first, other])

    assert ["0" * 32, "0" * 31 + "1"] == [log.actor_id for log in found]


@pytest.mark.parametrize("size", [0, 1 << 18, 1 << 20])
def test_large_gcs(session, size):
    """
    Where the line stands in a large file, and how long lines are, makes no
    difference.
    """
    line = (
        f"actor creation task to worker. actor_id={ACTOR} worker_id={WORKER}"
    )
    short = "x\n" * max(0, size // 2 - 40)
    text = f"{'y' * size}\n{short}{line}\n{'z' * size}"
    (session.logs / "gcs_server.out").write_text(text)
    add(session, "out", MARKS.format("A"))

    assert ACTOR == only(session).actor_id


def test_find_unknown_address(tmp_path):
    """
    A node whose address nothing tells may be the one in a line.
    """
    session = make_session(tmp_path, ip="a-name")
    add(session, "out", MARKS.format("A"))

    assert 1 == len(find_actor_logs("(A pid=77, ip=10.0.0.9)", session))


def test_find_nothing(session):
    """
    An empty pattern is refused.
    """
    with pytest.raises(LogError, match="empty"):
        find_actor_logs(" ", session)


def test_find_by_nothing_that_names(session):
    """
    Who gives sessions only is asked for the actor.
    """
    with pytest.raises(LogError, match="which actor"):
        find_actor_logs([session])

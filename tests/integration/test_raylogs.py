"""
Sessions of a real Ray cluster whose actors died, read when it is over; and
who of them died first.
"""

from __future__ import annotations

import shutil

import pytest

from distdebug.causes import Cause
from distdebug.ray import (
    death_findings,
    find_actor_logs,
    find_deaths,
    find_ray_sessions,
    find_worker_death,
    last_activity,
    map_origins,
    read_driver_log,
    read_parts,
    read_tail,
    system_logs,
    worker_logs,
)


# Now and then, the cluster has to be started and to die three times.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def sessions(dead_cluster):
    """
    The sessions of the three nodes.
    """
    return find_ray_sessions(*dead_cluster.nodes.values())


@pytest.fixture(scope="module")
def by_pid(sessions):
    """
    All workers, by their numbers.
    """
    return {log.pid: log for log in worker_logs(sessions)}


def of(found):
    """
    The numbers of the workers.
    """
    return [log.pid for log in found]


def test_sessions(dead_cluster, sessions):
    """
    Each node has a folder, all of the same name; the head comes first.
    """
    nodes = {x["node_id"] for x in dead_cluster.known.values() if "pid" in x}

    assert ["head", "other", "small"] == [x.host for x in sessions]
    assert [True, False, False] == [x.is_head for x in sessions]
    assert 1 == len({x.name for x in sessions})
    assert nodes == {x.node_id for x in sessions}
    assert ["127.0.0.2", "127.0.0.3"] == [x.ip for x in sessions[1:]]
    assert {"2."} == {(x.ray_version or "")[:2] for x in sessions}


def test_workers(dead_cluster, by_pid):
    """
    Of everybody the files tell what the driver knew: process, worker, actor,
    node, and job.
    """
    known = {k: v for k, v in dead_cluster.known.items() if k != "trainers"}

    found = {
        name: {
            "pid": log.pid,
            "actor_id": log.actor_id,
            "worker_id": log.worker_id,
            "node_id": log.session.node_id,
            "job_id": log.job_id,
        }
        for name, told in known.items()
        for log in [by_pid[told["pid"]]]
    }

    assert known == found


def test_names(dead_cluster, by_pid):
    """
    Classes, representations, given names, and tasks are told.
    """
    known = dead_cluster.known
    names = ("trainer_1", "Hog", "Reporter", "task")
    logs = [by_pid[known[name]["pid"]] for name in names]

    assert ["TrainerActor", "Hog", "Reporter", None] == [
        log.actor_class for log in logs
    ]
    assert ["TrainerActor(rank=1)", None, None, None] == [
        log.actor_repr for log in logs
    ]
    assert ["trainer_1", None, "the_reporter", None] == [
        log.actor_name for log in logs
    ]
    assert ("preprocess",) == logs[-1].task_names


def test_without_head(dead_cluster, by_pid):
    """
    The folder of one node alone tells the actors of that node.
    """
    alone = {
        log.pid: (log.actor_id, log.actor_class)
        for log in worker_logs(find_ray_sessions(dead_cluster.nodes["other"]))
    }

    assert alone
    assert alone == {
        pid: (by_pid[pid].actor_id, by_pid[pid].actor_class) for pid in alone
    }


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("TrainerActor*", ["trainer_0", "trainer_1"]),
        ("TrainerActor(rank=1)", ["trainer_1"]),
        ("trainer_0", ["trainer_0"]),
        ("the_reporter", ["Reporter"]),
        (
            "(TrainerActor(rank=1) pid={trainer_1}, ip=127.0.0.2)",
            ["trainer_1"],
        ),
        (
            "\x1b[36m(SglEngine pid={SglEngine}, ip=127.0.0.2)\x1b[0m x",
            ["SglEngine"],
        ),
        ("(Leaver pid={Leaver})", ["Leaver"]),
        ("{Killed}", ["Killed"]),
        ("Nobody", []),
    ],
    ids=[
        "class",
        "repr",
        "name",
        "json",
        "line",
        "color",
        "head",
        "pid",
        "none",
    ],
)
def test_find(dead_cluster, sessions, asked, names):
    """
    An actor is found by whatever is known of it.
    """
    known = dead_cluster.known
    pids = {k: v["pid"] for k, v in known.items() if k != "trainers"}

    found = find_actor_logs(asked.format(**pids), sessions)

    assert sorted(pids[name] for name in names) == sorted(of(found))


def test_find_by_ids(dead_cluster, sessions):
    """
    The beginning of the id of an actor or a worker is enough.
    """
    orphan = dead_cluster.known["Orphan"]

    by_actor = find_actor_logs(orphan["actor_id"][:12], sessions)
    by_worker = find_actor_logs(orphan["worker_id"][:12], sessions)

    assert [orphan["pid"]] == of(by_actor) == of(by_worker)


@pytest.mark.parametrize("stream", ["out", "err"])
def test_rotated(by_pid, dead_cluster, stream):
    """
    All lines are there, in order, over all parts of a rotated log.
    """
    log = by_pid[dead_cluster.known["trainer_1"]["pid"]]
    start = "line " if stream == "out" else "error line "

    numbers = [
        int(line.text.removeprefix(start).split()[0])
        for line in read_parts(log, stream=stream)
        if line.text.startswith(start)
    ]

    assert len(getattr(log, stream)) > 1
    assert list(range(3000)) == numbers


def test_tail(by_pid, dead_cluster):
    """
    The last words of those that crash are told.
    """
    log = by_pid[dead_cluster.known["SglEngine"]["pid"]]

    said = read_tail(log, lines=2, stream="out")
    cried = read_tail(log, lines=20)

    assert ["SglEngine says hello", "about to segfault"] == [
        x.text for x in said
    ]
    assert any("SIGSEGV" in line.text for line in cried)


def test_copied(dead_cluster, sessions, tmp_path):
    """
    A copy tells the same, although its session_latest points elsewhere.
    """
    for name, folder in dead_cluster.nodes.items():
        shutil.copytree(
            folder,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("sockets"),
        )

    copies = find_ray_sessions(tmp_path)

    assert {tmp_path / name for name in dead_cluster.nodes} == {
        x.root.parent for x in copies
    }
    assert [(x.name, x.host, x.node_id) for x in sessions] == [
        (x.name, x.host, x.node_id) for x in copies
    ]


def test_system(sessions):
    """
    Ray's own logs are found; long after its end, everything is alarming.
    """
    logs = {(x.session.host, x.component) for x in system_logs(sessions)}
    latest = max(x.time for x in last_activity(sessions))

    now = last_activity(sessions, now=latest)
    later = last_activity(sessions, now=latest + 3600)

    assert {
        *(("head", "gcs_server"), ("head", "monitor"), ("head", "raylet")),
        *(("other", "raylet"), ("other", "debug_state")),
    } <= logs
    assert not any(x.is_alarming for x in now)
    assert {"gcs_server", "monitor", "raylet", "debug_state"} == {
        x.component for x in later if x.is_alarming
    }


@pytest.fixture(scope="module")
def deaths(dead_cluster):
    """
    All deaths on all nodes.
    """
    return find_deaths(find_ray_sessions(*dead_cluster.nodes.values()))


WAYS = {
    "SglEngine": "native_crash",
    "Aborter": "native_crash",
    "Killed": "killed_or_exited",
    "Leaver": "killed_or_exited",
    "Retired": "intended",
    "Parent": "killed_or_exited",
    "Orphan": "owner_died",
    "Sacked": "intended",
    "Hog": "ray_oom",
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_die_is_found(name, deaths, dead_cluster):
    """
    Each actor is found by what the driver knew of it, with its way to die.
    """
    about = dead_cluster.known[name]

    death = find_worker_death(deaths, ray_id=about["worker_id"])

    assert death is not None
    assert (WAYS[name], name) == (death.kind, death.actor)
    assert (about["pid"], about["actor_id"]) == (death.pid, death.actor_id)
    assert (about["node_id"], about["job_id"]) == (
        death.node_id,
        death.job_id,
    )


def test_the_first_is_the_first_crash(deaths, dead_cluster):
    """
    The first death on another node is the cause, and the first finding.
    """
    first = deaths.first

    assert first is not None
    assert dead_cluster.known["SglEngine"]["pid"] == first.pid
    assert ("SIGSEGV", "other") == (first.signal, first.host)
    finding = death_findings(deaths)[0]
    assert (Cause.NATIVE_CRASH, "certain") == (
        finding.cause,
        finding.confidence,
    )
    assert "SglEngine" in finding.summary


def test_an_exception_in_init_is_told(deaths):
    """
    An actor that was never made is known by what it raised.
    """
    (death,) = (x for x in deaths.deaths if x.kind == "init_error")

    assert "Stillborn" == death.actor
    assert "FileNotFoundError: no such checkpoint" == death.error


def test_those_that_follow_are_marked(deaths, dead_cluster):
    """
    The orphan follows from its parent, and bystanders from the hungry one.
    """
    known = dead_cluster.known
    orphan = find_worker_death(deaths, ray_id=known["Orphan"]["worker_id"])
    hog = find_worker_death(deaths, ray_id=known["Hog"]["worker_id"])
    bystander = find_worker_death(
        deaths, ray_id=known["Bystander"]["worker_id"]
    )

    assert orphan is not None
    assert known["Parent"]["worker_id"] == orphan.owner
    assert orphan.is_collateral
    assert hog is not None
    assert not hog.is_collateral
    assert bystander is None or bystander.is_collateral


def test_one_node_alone_tells_of_its_own(dead_cluster):
    """
    The folder of another node tells of its deaths, and that it is not all.
    """
    sessions = find_ray_sessions(dead_cluster.nodes["other"])

    deaths = find_deaths(sessions)

    first = deaths.first
    assert first is not None
    assert dead_cluster.known["SglEngine"]["pid"] == first.pid
    assert any("gcs_server.out" in x.reason for x in deaths.missing)
    assert "likely" == death_findings(deaths)[0].confidence


def test_the_driver_leads_to_all_logs(dead_cluster):
    """
    Who printed into the driver's log is found on the right node.
    """
    log = read_driver_log(dead_cluster.driver_logs["deaths"])
    sessions = find_ray_sessions(*dead_cluster.nodes.values())

    matches = map_origins(log, sessions)

    found = {
        x.worker.worker_id: x.session.host
        for x in matches
        if x.worker and x.session
    }
    names = ("SglEngine", "Aborter", "Orphan")
    hosts = [found[dead_cluster.known[x]["worker_id"]] for x in names]
    assert ["other", "head", "other"] == hosts

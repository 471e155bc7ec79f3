"""
Who died in sessions that five versions of Ray left behind?
"""

from __future__ import annotations

import json
import shutil

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.ray import (
    death_findings,
    find_deaths,
    find_ray_sessions,
    find_worker_death,
)


DATA = Path(__file__).parents[2] / "data" / "ray_sessions"
VERSIONS = ("2.9.3", "2.24.0", "2.40.0", "2.50.1", "2.60.0")
MEMORY = ("2.9.3", "2.40.0", "2.60.0")


def deaths_in(folder):
    """
    All that died below a folder.
    """
    return find_deaths(find_ray_sessions(folder))


def test_folder():
    """
    A folder will do in the place of its sessions.
    """
    folder = DATA / VERSIONS[-1] / "deaths"

    assert deaths_in(folder) == find_deaths(folder) == find_deaths([folder])


@pytest.fixture(params=VERSIONS)
def recorded(request):
    """
    The deaths of one version: ranks 0 to 7 die each in its own way.
    """
    return deaths_in(DATA / request.param / "deaths")


def test_each_way_to_die_is_told_apart(recorded):
    """
    Every version shows by which way each rank ended.
    """
    kinds = {x.rank: x.kind for x in recorded.deaths if x.rank is not None}

    assert {
        0: "native_crash",
        1: "native_crash",
        2: "killed_or_exited",
        3: "killed_or_exited",
        4: "exit_code",
        5: "terminated",
        6: "intended",
        7: "intended",
        99: "job_ended",
    } == kinds


def test_the_other_actors_end_as_they_did(recorded):
    """
    Errors in __init__, lost owners, and intended ends are known as such.
    """
    kinds = [
        (x.actor, x.kind)
        for x in recorded.deaths
        if x.rank is None and x.actor in {"BadInit", "Owner", "Child"}
    ]

    assert [
        ("BadInit", "init_error"),
        ("Owner", "killed_or_exited"),
        ("Child", "owner_died"),
        ("Child", "intended"),
        ("Child", "intended"),
    ] == kinds


def test_the_first_is_the_first_that_nobody_wanted(recorded):
    """
    The crash of rank 0 comes first, with the line where it happened.
    """
    first = recorded.first

    assert (0, "SIGSEGV") == (first.rank, first.signal)
    assert "string_at" == first.python_frames[0].function
    assert first.native_frames
    assert first.log.name.endswith(".err")
    assert [first] == [x for x in recorded.deaths if x.is_first]


def test_orphans_follow_from_their_owner(recorded):
    """
    Who dies with its owner follows from it, and names it.
    """
    owner = next(x for x in recorded.deaths if x.actor == "Owner")

    (orphan,) = (x for x in recorded.deaths if x.kind == "owner_died")

    assert orphan.is_collateral
    assert owner.worker_id == orphan.owner
    assert not owner.is_collateral


def test_codes_and_errors_are_told(recorded):
    """
    What a process exited with, and what its __init__ raised, is known.
    """
    by_kind = {x.kind: x for x in recorded.deaths}

    assert 4 == by_kind["exit_code"].exit_code
    assert "RuntimeError: no such checkpoint: /ckpt/last" == (
        by_kind["init_error"].error
    )
    assert "__init__" == by_kind["init_error"].python_frames[0].function


def test_times_ascend(recorded):
    """
    The deaths stand in the order of time, each with the place where it is.
    """
    times = [x.time for x in recorded.deaths]

    assert None not in times
    assert sorted(times, key=float) == times
    assert {"10.0.0.2"} == {x.ip for x in recorded.deaths}
    assert all(x.pid for x in recorded.deaths)


def test_the_findings_begin_with_the_cause(recorded):
    """
    The first finding blames the first death, the last one those who follow.
    """
    findings = death_findings(recorded)

    assert Cause.NATIVE_CRASH == findings[0].cause
    assert (0,) == findings[0].ranks
    assert "certain" == findings[0].confidence
    assert "SIGSEGV in string_at" in findings[0].summary
    assert any(
        "Reporting worker exit" in x.quote for x in findings[0].evidence
    )
    assert (Cause.ACTOR_DIED, ()) == (findings[-1].cause, findings[-1].ranks)
    assert "loss of the owner" in findings[-1].summary


def test_alike_ones_are_one_finding(recorded):
    """
    Two ranks of one class that vanish are told together.
    """
    killed = [x for x in death_findings(recorded) if (2, 3) == x.ranks]

    (finding,) = killed

    assert Cause.KILLED == finding.cause
    assert "1 more alike" in finding.summary
    assert "possible" == finding.confidence


def test_results_are_plain_data(recorded):
    """
    Everything becomes JSON, and a table for people.
    """
    text = json.dumps([recorded.to_dict(), recorded.to_records()])

    assert "TrainerActor(rank=0)" in text
    assert "SIGSEGV" in str(recorded)
    assert "exit code 4" in str(recorded)
    assert "TrainerActor(rank=0) (pid" in str(recorded.deaths[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_alone_tells_the_same_but_says_so(version, tmp_path):
    """
    Without the log of the head, the ways to die are still told apart.
    """
    shutil.copytree(DATA / version / "deaths", tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("gcs_server.out"):
        path.unlink()

    deaths = deaths_in(tmp_path)

    first = deaths.first
    assert (0, "native_crash") == (first.rank, first.kind)
    kinds = {x.rank: x.kind for x in deaths.deaths if x.rank is not None}
    assert ("exit_code", "terminated") == (kinds[4], kinds[5])
    assert ("intended", "job_ended") == (kinds[7], kinds[99])
    assert any("gcs_server.out" in x.reason for x in deaths.missing)
    assert "likely" == death_findings(deaths)[0].confidence


@pytest.mark.parametrize("version", MEMORY)
def test_who_had_the_memory_is_to_blame(version):
    """
    Ray kills the innocent first; the one with the most memory is the cause.
    """
    deaths = deaths_in(DATA / version / "memory")

    first = deaths.first
    assert (1, "ray_oom", "Hog(rank=1)") == (
        first.rank,
        first.kind,
        first.actor,
    )
    assert first.memory is not None
    assert first.memory > 1 << 30
    follows = [x.rank for x in deaths.deaths if x.is_collateral]
    assert [0, 2, 3] == sorted(x for x in follows if x is not None)
    (cause, rest) = death_findings(deaths)
    assert Cause.HOST_OUT_OF_MEMORY == cause.cause
    assert "regain memory" in rest.summary


def test_a_lost_node_comes_before_its_workers():
    """
    The node is the cause, its actors follow, and the rest ended as wanted.
    """
    deaths = deaths_in(DATA / "2.60.0" / "nodes")

    first = deaths.first
    assert ("node_died", "", "w") == (first.kind, first.worker_id, first.host)
    follows = {x.actor for x in deaths.deaths if x.is_collateral}
    assert {"Far(rank=0)", "Far(rank=1)", "Near"} == follows
    assert "node w was lost" in death_findings(deaths)[0].summary


def test_a_death_is_found_by_rank_and_by_place():
    """
    A rank, a process of a node, or an id leads to the death.
    """
    deaths = deaths_in(DATA / "2.60.0" / "deaths")
    crash = deaths.first

    found = [
        find_worker_death(deaths, rank=0),
        find_worker_death(deaths, pid=crash.pid, place="10.0.0.2"),
        find_worker_death(deaths.deaths, pid=crash.pid),
        find_worker_death(deaths, ray_id=crash.worker_id),
        find_worker_death(deaths, ray_id=crash.actor_id),
    ]

    assert [crash] * 5 == found


def test_no_death_is_found_where_none_is():
    """
    Nothing is guessed of others, nor without anything to go by.
    """
    deaths = deaths_in(DATA / "2.60.0" / "deaths")

    found = [
        find_worker_death(deaths),
        find_worker_death(deaths, rank=17),
        find_worker_death(deaths, rank=0, place="10.0.0.3"),
    ]

    assert [None, None, None] == found

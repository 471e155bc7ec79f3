"""
Who died first in a real Ray cluster of three nodes, after it was stopped?
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from distdebug.findings import Cause
from distdebug.raylogs.deaths import (
    Deaths,
    death_findings,
    death_of,
    find_deaths,
)
from distdebug.raylogs.driver import map_origins, read_driver_log
from distdebug.raylogs.sessions import find_ray_sessions


class Cluster(Protocol):
    """
    What a stopped cluster left behind.
    """

    nodes: dict[str, Any]
    driver_logs: dict[str, Any]
    known: dict[str, Any]


@pytest.fixture(scope="module")
def deaths(dead_cluster: Cluster) -> Deaths:
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
def test_every_way_to_die_is_found(
    name: str, deaths: Deaths, dead_cluster: Cluster
) -> None:
    """
    Each actor is found by what the driver knew of it, with its way to die.
    """
    about = dead_cluster.known[name]

    death = death_of(deaths, ray_id=about["worker_id"])

    assert death is not None
    assert (WAYS[name], name) == (death.kind, death.actor)
    assert (about["pid"], about["actor_id"]) == (death.pid, death.actor_id)
    assert (about["node_id"], about["job_id"]) == (
        death.node_id,
        death.job_id,
    )


def test_the_first_is_the_first_crash(
    deaths: Deaths, dead_cluster: Cluster
) -> None:
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


def test_an_exception_in_init_is_told(deaths: Deaths) -> None:
    """
    An actor that was never made is known by what it raised.
    """
    (death,) = (x for x in deaths.deaths if x.kind == "init_error")

    assert "Stillborn" == death.actor
    assert "FileNotFoundError: no such checkpoint" == death.error


def test_those_that_follow_are_marked(
    deaths: Deaths, dead_cluster: Cluster
) -> None:
    """
    The orphan follows from its parent, and bystanders from the hungry one.
    """
    known = dead_cluster.known
    orphan = death_of(deaths, ray_id=known["Orphan"]["worker_id"])
    hog = death_of(deaths, ray_id=known["Hog"]["worker_id"])
    bystander = death_of(deaths, ray_id=known["Bystander"]["worker_id"])

    assert orphan is not None
    assert known["Parent"]["worker_id"] == orphan.owner
    assert orphan.is_collateral
    assert hog is not None
    assert not hog.is_collateral
    assert bystander is None or bystander.is_collateral


def test_one_node_alone_tells_of_its_own(dead_cluster: Cluster) -> None:
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


def test_the_driver_leads_to_all_logs(dead_cluster: Cluster) -> None:
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

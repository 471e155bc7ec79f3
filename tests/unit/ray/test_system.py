"""
Ray's own logs, and when each component was last seen.
"""

from __future__ import annotations

import json
import os

import pytest

from distdebug.ray import last_activity, open_ray_session, system_logs


NOW = 1_800_000_000.0
WORKER = "ab" * 28


@pytest.fixture
def session(tmp_path):
    """
    The session of a head, with nothing but a raylet that just started.
    """
    logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711" / "logs"
    logs.mkdir(parents=True)
    write(logs, "raylet.out")
    return open_ray_session(logs.parent)


def write(logs, name, age=0.0):
    """
    Write a file, some seconds ago.
    """
    (logs / name).write_text("x\n")
    os.utime(logs / name, (NOW - age, NOW - age))


def test_system_logs(session):
    """
    All that is not of workers is found, each with its parts.
    """
    for name in (
        *("raylet.1.out", "raylet.err", "dashboard.log", "dashboard.log.1"),
        *("dashboard_ServeHead.log", "agent-42.out", "debug_state.txt"),
        *("runtime_env_setup-01000000.log", "events", "x.json"),
        *(f"worker-{WORKER}-ffffffff-7.out", f"python-core-driver-{WORKER}"),
        f"python-core-worker-{WORKER}_7.log",
    ):
        write(session.logs, name)

    found = {
        (x.component, x.stream): [part.index for part in x.parts]
        for x in system_logs(session)
    }

    assert {
        ("raylet", "out"): [1, 0],
        ("raylet", "err"): [0],
        ("dashboard", "log"): [1, 0],
        ("dashboard_ServeHead", "log"): [0],
        ("agent-42", "out"): [0],
        ("debug_state", "txt"): [0],
        ("runtime_env_setup-01000000", "log"): [0],
    } == found


@pytest.mark.parametrize(
    ("name", "component", "age", "is_alarming"),
    [
        ("debug_state.txt", "debug_state", 20, False),
        ("debug_state.txt", "debug_state", 40, True),
        ("raylet.out", "raylet", 70, False),
        ("raylet.out", "raylet", 200, True),
        ("monitor.log", "monitor", 30, False),
        ("monitor.log", "monitor", 90, True),
        ("gcs_server.out", "gcs_server", 70, False),
        ("gcs_server.out", "gcs_server", 200, True),
    ],
)
def test_last_activity(session, name, component, age, is_alarming):
    """
    Each component may be silent for as long as it is in an idle cluster.
    """
    write(session.logs, name, age)

    (found,) = (
        x
        for x in last_activity([session], now=NOW)
        if x.component == component
    )

    assert (float(age), is_alarming) == (found.age_s, found.is_alarming)
    assert NOW - age == found.time
    assert ("alarming" in str(found)) == is_alarming


def test_pulse(session):
    """
    A raylet that writes its state is alive, although its log is silent.
    """
    write(session.logs, "raylet.out", 200)
    write(session.logs, "debug_state.txt", 5)

    found = last_activity(session, now=NOW)

    assert not any(activity.is_alarming for activity in found)


def test_workers(session):
    """
    Of workers the last line of any counts; their silence is no alarm.
    """
    write(session.logs, f"worker-{WORKER}-ffffffff-7.out.1", 50)
    write(session.logs, f"worker-{WORKER}-ffffffff-8.err", 5000)

    last = last_activity(session, now=NOW)[-1]

    assert ("workers", 50.0, None, False) == (
        last.component,
        last.age_s,
        last.limit_s,
        last.is_alarming,
    )
    assert "workers: 50 s ago" == str(last)
    assert "workers" == json.loads(json.dumps(last.to_dict()))["component"]


def test_now(session):
    """
    Without a time, this moment counts; clocks that differ do no harm.
    """
    (session.logs / "raylet.out").write_text("x\n")

    (fresh,) = last_activity(session)
    (future,) = last_activity(session, now=NOW - 5e8)

    assert fresh.age_s < 60
    assert 0.0 == future.age_s

"""
The logs of a Ray cluster that runs: names, lines that appear, files that move.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from pathlib import Path

import pytest

from distdebug.errors import NodesError
from distdebug.ray import (
    add_live_actors,
    find_actor_logs,
    find_ray_sessions,
    follow_lines,
    last_activity,
    query_live_cluster,
    read_parts,
    read_tail,
)

from .living import wait_until


PROGRAM = Path(__file__).parent / "programs" / "chatty_actor.py"
# More than are in one part of a log, and fewer than in two.
MANY = 3000


@pytest.fixture(scope="module")
def chatty(live_node):
    """
    The driver of an actor that prints as much as it is told.
    """
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=live_node.environ,
        text=True,
    ) as driver:
        driver.pid_of_actor = json.loads(driver.stdout.readline())["pid"]
        yield driver
        driver.kill()


def say(driver, lines):
    """
    Have the actor print some lines.
    """
    driver.stdin.write(f"{lines}\n")
    driver.stdin.flush()
    driver.stdout.readline()


def numbers(lines):
    """
    What the actor printed.
    """
    return [
        int(line.text.split()[1])
        for line in lines
        if line.text.startswith("number ")
    ]


def last_number(live_node):
    """
    The last that stands in the log of the actor.
    """
    (log,) = find_actor_logs("Chatty", live_node.folder)
    return numbers(read_tail(log, lines=1, stream="out"))


@pytest.mark.smoke
def test_live_names(live_node, chatty, monkeypatch):
    """
    The cluster of a session tells the names that files leave out, whatever
    others there are.
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    sessions = find_ray_sessions(live_node.folder)
    # That is written late, and by the latest cluster of the folder.
    (live_node.folder / "ray_current_cluster").unlink(missing_ok=True)
    (log,) = find_actor_logs(chatty.pid_of_actor, sessions)

    told = query_live_cluster(sessions[0], timeout_s=60)
    (joined,) = add_live_actors([log], told)

    assert ("Chatty", "the_chatty") == (joined.actor_class, joined.actor_name)
    assert [sessions[0].node_id] == [node.node_id for node in told.nodes]
    assert () == told.dead_nodes


def test_alive(live_node, chatty):
    """
    Nothing of a cluster that runs is alarming.
    """
    found = last_activity(find_ray_sessions(live_node.folder))

    assert {"raylet", "gcs_server", "monitor", "workers"} <= {
        x.component for x in found
    }
    assert [] == [str(x) for x in found if x.is_alarming]


def test_follow(live_node, chatty):
    """
    All lines are given in their order while the log is rotated.
    """
    (log,) = find_actor_logs(chatty.pid_of_actor, live_node.folder)
    stop, lines = threading.Event(), []
    reader = threading.Thread(
        target=lambda: lines.extend(
            follow_lines(log, stop=stop, from_start=True)
        )
    )

    reader.start()
    for part in range(10):
        say(chatty, MANY // 10)
        # What was rotated before the first look is not read.
        assert part or wait_until(lambda: lines)
    # Ray writes what was printed in a thread of its own.
    assert wait_until(lambda: [MANY - 1] == last_number(live_node))
    stop.set()
    reader.join(60)

    (log,) = find_actor_logs(chatty.pid_of_actor, live_node.folder)
    assert len(log.out) > 1
    assert list(range(MANY)) == numbers(lines)


def test_dead(live_node, chatty):
    """
    What a dead actor printed is still found when its file was put away.
    """
    (before,) = find_actor_logs("Chatty", live_node.folder)
    chatty.stdin.close()
    chatty.wait(60)
    path = before.out[-1].path
    old = path.parent / "old" / path.name
    # The log monitor only looks when there are too many files.
    for _ in range(40):
        if old.exists():
            break
        start_task(live_node)

    (log,) = find_actor_logs("Chatty", live_node.folder)

    assert old == log.out[-1].path
    assert list(range(MANY)) == numbers(read_parts(log, stream="out"))
    assert [MANY - 1] == numbers(read_tail(log, lines=1, stream="out"))


def start_task(live_node):
    """
    Have another process print something, and die.
    """
    code = (
        "import os, ray\n"
        "ray.init('auto', log_to_driver=False)\n"
        "task = ray.remote(num_cpus=0, max_retries=0)(lambda: os._exit(0))\n"
        "try: ray.get([task.remote() for _ in range(4)])\n"
        "except ray.exceptions.RayError: pass\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env=live_node.environ,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )


def test_nobody(monkeypatch):
    """
    Where no cluster answers, that is said in time.
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    with pytest.raises(NodesError, match="no Ray cluster answers"):
        query_live_cluster("127.0.0.1:9", timeout_s=3)

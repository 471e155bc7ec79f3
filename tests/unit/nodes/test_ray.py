"""
Nodes of a Ray cluster, without one.
"""

from __future__ import annotations

import json
import os
import sys
import types

import pytest

from distdebug.errors import MissingDependencyError, NodesError
from distdebug.nodes import Ended, Ray, ray, run_on_nodes
from distdebug.nodes.wire import ended_to_line


HEAD = "import json, sys, time\ntask = json.loads(input())\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """
    Give the code that is the connection to Ray.
    """

    def give(code):
        (tmp_path / "fake_driver.py").write_text(HEAD + code)

    monkeypatch.setattr(ray, "_MODULE", "fake_driver")
    monkeypatch.setattr(ray, "find_spec", lambda name: name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path)]))
    monkeypatch.setitem(sys.modules, "ray", None)
    return give


def says(*answers):
    """
    The code that says this.
    """
    lines = "".join(f"{json.dumps(answer)}\n" for answer in answers)
    return f"sys.stdout.write({lines!r})\nsys.stdout.flush()\n"


def run(engine=None, **options):
    """
    The results of a command, by node.
    """
    results = run_on_nodes(["hostname"], engine=engine or Ray(), **options)
    return {result.host: result for result in results}


HOSTS = {"hosts": ["a", "b"], "address": "1.2.3.4:6379"}


def test_answers(driver):
    """
    Nodes answer as they come; what they say is looked at.
    """
    told = []
    driver(
        says(
            HOSTS,
            {"host": "b", "seconds": 1.5, "ended": "nonsense"},
            {
                "host": "a",
                "seconds": 2.5,
                "ended": ended_to_line(Ended(0, b"shown")),
            },
        )
    )

    got = run(tell=lambda *now: told.append(now))

    assert [(1, 2), (2, 2)] == told
    assert ["b", "a"] == list(got)
    assert ("ok", "shown", 2.5) == (
        got["a"].status,
        got["a"].output,
        got["a"].seconds,
    )
    assert "nobody understands" in got["b"].reason


def test_question(driver):
    """
    The connection is told what to do, and where.
    """
    driver(
        "said = sys.stdout.write\n"
        "said(json.dumps({'reason': json.dumps(task), 'remedy': ''}) + '\\n')"
    )
    engine = Ray("h:1", job="7", at_once=2, grace_s=3, runtime_env={"a": "b"})

    with pytest.raises(NodesError) as caught:
        run(engine, timeout_s=5)

    assert {
        "address": "h:1",
        "runtime_env": {"a": "b"},
        "job": "7",
        "at_once": 2,
        "grace_s": 3,
        "argv": ["hostname"],
        "data": None,
        "timeout_s": 5,
    } == json.loads(str(caught.value))


def test_locate(driver):
    """
    A cluster that answers is located, and nothing is run there.
    """
    driver("assert not task['argv']\n" + says(HOSTS))

    assert "1.2.3.4:6379" == Ray().locate()


def test_function(driver):
    """
    A function is sent with the Python of the node left to the node.
    """
    driver(
        "assert task['argv'][0] == '' and task['data']\n"
        + says(HOSTS | {"hosts": []})
    )

    assert [] == list(run_on_nodes(int, engine=Ray()))


def test_broken(driver):
    """
    When the connection breaks, what is missing is told, and what it said.
    """
    answer = {"host": "a", "seconds": 1, "ended": ended_to_line(Ended(0))}
    driver(says(HOSTS, answer) + "sys.exit('head is gone')")

    got = run()

    assert ("ok", "failed") == (got["a"].status, got["b"].status)
    assert "the connection to Ray broke: head is gone" == got["b"].reason


def test_no_answer(driver, monkeypatch):
    """
    A connection that goes silent is given up.
    """
    monkeypatch.setattr(ray, "_CONNECT_S", 2.0)
    monkeypatch.setattr("distdebug.nodes.conversation._LEAVE_S", 0.2)
    driver(says(HOSTS) + "time.sleep(600)")

    got = run(Ray(grace_s=0.1), timeout_s=0.1)

    assert {"timed_out"} == {result.status for result in got.values()}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit('no way')", "the connection to Ray broke: no way"),
        (says({"reason": "too old", "remedy": "renew"}), "too old"),
        ("time.sleep(600)", "no Ray cluster answers at auto within 2 s"),
    ],
)
def test_no_cluster(driver, monkeypatch, code, message):
    """
    Without a cluster, there is a reason and a remedy.
    """
    monkeypatch.setattr(ray, "_CONNECT_S", 2.0)
    monkeypatch.setattr("distdebug.nodes.conversation._LEAVE_S", 0.2)
    driver(code)

    with pytest.raises(NodesError, match=message) as caught:
        run()

    assert caught.value.remedy


@pytest.mark.parametrize("address", ["", "local", "ray://h:10001"])
def test_no_address(driver, address):
    """
    No cluster is started, and none is reached by a proxy.
    """
    with pytest.raises(NodesError, match="is no address of a running"):
        run(Ray(address))


def test_no_ray(monkeypatch):
    """
    Without Ray, it is said what to install.
    """
    monkeypatch.setattr(ray, "find_spec", lambda name: None)

    with pytest.raises(MissingDependencyError, match="Ray is not installed"):
        run()


@pytest.mark.parametrize(
    ("address", "is_initialized", "job", "expected"),
    [
        ("auto", True, None, ("1.1.1.1:6379", "01000000")),
        ("auto", True, "7", ("1.1.1.1:6379", "7")),
        ("auto", False, None, ("auto", None)),
        ("h:1", True, None, ("h:1", None)),
    ],
)
def test_connected(monkeypatch, address, is_initialized, job, expected):
    """
    A process that is connected means its own cluster, and its own job.
    """
    context = types.SimpleNamespace(
        gcs_address="1.1.1.1:6379", get_job_id=lambda: "01000000"
    )
    fake = types.SimpleNamespace(
        is_initialized=lambda: is_initialized,
        get_runtime_context=lambda: context,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)

    assert expected == Ray(address, job=job)._where()

"""
Nodes of a Ray cluster, without one.
"""

from __future__ import annotations

import base64
import json
import os
import sys

import pytest

from distdebug.errors import MissingDependencyError, NodesError
from distdebug.nodes import Ray, run_on_nodes


pytestmark = pytest.mark.process


HEAD = "import json, os, sys, time\ntask = json.loads(sys.stdin.readline())\n"
HOSTS = {"hosts": ["a", "b"], "address": "1.2.3.4:6379"}


@pytest.fixture
def driver(connection):
    """
    Gives the code that is the connection to Ray, once it knows the task.
    """
    return lambda code: connection(HEAD + code)


def says(*answers):
    """
    The code that says this.
    """
    lines = "".join(f"{json.dumps(answer)}\n" for answer in answers)
    return f"sys.stdout.write({lines!r})\nsys.stdout.flush()\n"


def ended(**changes):
    """
    What a command left, as it travels.
    """
    whole = {"status": 0, "output": "", "complaint": "", "trouble": None}
    return json.dumps(whole | changes)


def run(engine=None, **options):
    """
    The results of a command, by node.
    """
    results = run_on_nodes(["hostname"], engine=engine or Ray(), **options)
    return {result.host: result for result in results}


def test_answers(driver):
    """
    Nodes answer as they come; what they say may be long.
    """
    told = []
    output = base64.b64encode(b"x" * 3_000_000 + b"shown").decode()
    driver(
        says(
            HOSTS,
            {"host": "b", "seconds": 1.5, "ended": ended(status=3)},
            {"host": "a", "seconds": 2.5, "ended": ended(output=output)},
        )
    )

    got = run(tell=lambda *now: told.append(now))

    assert [(1, 2), (2, 2)] == told
    assert ["b", "a"] == list(got)
    assert ("ok", 2.5) == (got["a"].status, got["a"].seconds)
    assert got["a"].output.endswith("xshown")
    assert ("failed", "it ended with status 3") == (
        got["b"].status,
        got["b"].reason,
    )


HOSTILE = [
    None,
    "",
    "3",
    "{}",
    ["list"],
    "[" * 100_000,
    ended(status="x"),
    ended(status=[]),
    ended(output=3),
    ended(output="\u00e4"),
    ended(complaint=None),
    ended(trouble="dead"),
    ended(trouble=["dead", "x"]),
    ended(trouble=["alive", "x", "y"]),
    ended(trouble=["dead", 3, "y"]),
]


def test_hostile(driver):
    """
    An answer that cannot be parsed costs one node, and is said to be such.
    """
    answers = {str(n): line for n, line in enumerate(HOSTILE)}
    answers["good"] = ended(trouble=["dead", "gone\n", "wait"], status=None)
    driver(
        says(
            {"hosts": list(answers), "address": ""},
            *(
                {"host": host, "seconds": 1, "ended": line}
                for host, line in answers.items()
            ),
        )
    )

    got = run()

    good = got.pop("good")
    assert ("dead", "gone", "wait") == (good.status, good.reason, good.remedy)
    assert len(HOSTILE) == len(got)
    for result in got.values():
        assert "failed" == result.status
        assert "is not understood" in result.reason


def asked(engine, **options):
    """
    What the connection is asked.
    """
    with pytest.raises(NodesError) as caught:
        run(engine, **options)
    return json.loads(str(caught.value))


@pytest.fixture
def echo(driver):
    """
    A connection that gives what it is asked as the reason to refuse.
    """
    driver("print(json.dumps({'reason': json.dumps(task), 'remedy': ''}))\n")


@pytest.mark.usefixtures("echo")
def test_question():
    """
    The connection learns what to do, and where.
    """
    engine = Ray("h:1", job="7", at_once=2, grace_s=3, runtime_env={"a": "b"})

    assert {
        "address": "h:1",
        "runtime_env": {"a": "b"},
        "job": "7",
        "at_once": 2,
        "grace_s": 3,
        "argv": ["hostname"],
        "data": None,
        "timeout_s": 5,
    } == asked(engine, timeout_s=5)


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize(
    ("address", "is_connected", "job", "expected"),
    [
        ("auto", True, None, ("10.0.0.1:6379", "09000000")),
        ("auto", True, "7", ("10.0.0.1:6379", "7")),
        ("auto", False, None, ("auto", None)),
        ("h:1", True, None, ("h:1", None)),
    ],
)
def test_connected(ray, address, is_connected, job, expected):
    """
    A process that is connected means its own cluster, and its own job.
    """
    ray.is_connected = is_connected

    question = asked(Ray(address, job=job))

    assert expected == (question["address"], question["job"])


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
    When the connection breaks, what is missing is reported, and what it said
    last.
    """
    answer = {"host": "a", "seconds": 1, "ended": ended()}
    driver(says(HOSTS, answer) + "sys.exit('x' * 10**6 + '\\nhead is gone')")

    got = run()

    assert ("ok", "failed") == (got["a"].status, got["b"].status)
    assert "the connection to Ray broke: head is gone" == got["b"].reason


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "code",
    ["time.sleep(600)", "while True: sys.stdout.write('x' * 9999)"],
    ids=["silent", "without end"],
)
def test_no_answer(driver, monkeypatch, code):
    """
    A connection that goes silent, or says a line without end, is given up.
    """
    # In earnest it may take 256 MiB of this machine.
    monkeypatch.setattr("distdebug.nodes.process._MAX_LINE", 1 << 16)
    driver(says(HOSTS) + code)

    got = run(Ray(grace_s=0.1), timeout_s=0.1)

    assert {"timed_out"} == {result.status for result in got.values()}


def is_gone(pid):
    """
    Whether nothing is left of a process.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.usefixtures("impatient")
def test_deaf(driver):
    """
    A connection that does not end is killed.
    """
    driver(
        "print(json.dumps({'hosts': [], 'address': os.getpid()}), flush=True)"
        "\ntime.sleep(600)"
    )

    assert is_gone(int(Ray().locate()))


def test_interrupted(driver):
    """
    An interrupt leaves no connection behind.
    """
    pids = []
    driver(
        says(HOSTS)
        + "end = {'status': 0, 'complaint': '', 'trouble': None, 'output': ''}"
        "\nprint(json.dumps({'host': 'a', 'seconds': os.getpid(),"
        " 'ended': json.dumps(end)}), flush=True)\nsys.stdin.read()"
    )

    def interrupt():
        for result in run_on_nodes(["x"], engine=Ray()):
            pids.append(int(result.seconds))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()

    assert is_gone(pids[0])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit('no way')", "the connection to Ray broke: no way"),
        (says({"reason": "too old", "remedy": "renew"}), "too old"),
        ("time.sleep(600)", "no Ray cluster answers at auto within 1 s"),
        # Of an endless complaint the end is kept, and here says nothing.
        ("sys.exit('x' + 10**6 * '\\n')", r"the connection to Ray broke\n"),
    ],
    ids=["broke", "reason", "silent", "complaint"],
)
def test_no_cluster(driver, code, message):
    """
    Without a cluster, there is a reason and a remedy.
    """
    driver(code)

    with pytest.raises(NodesError, match=message) as caught:
        run()

    assert caught.value.remedy


def test_gone(connection):
    """
    A connection that ends before it was asked is broken.
    """
    connection("")

    with pytest.raises(NodesError, match="the connection to Ray broke"):
        list(Ray().run(["x"], data=b"x" * (1 << 24), timeout_s=60))


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
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingDependencyError, match="Ray is not installed"):
        run()

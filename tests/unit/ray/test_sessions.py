"""
Finding the sessions of Ray in places of every kind.
"""

from __future__ import annotations

import json
import os
import shutil

import pytest

from distdebug.errors import NoLogsError
from distdebug.ray import find_ray_sessions, open_ray_session


FIRST = "session_2026-02-20_02-03-57_123456_4711"
SECOND = "session_2026-02-21_00-00-00_000001_17"
NODE = "ab" * 28
GCS = "[x] (gcs_server) Ray cluster metadata ray_version=2.50.1 ray_commit=0\n"


def make_session(temp_dir, name=FIRST, *, is_head=True, latest=True):
    """
    Make the folder of a session; its logs.
    """
    logs = temp_dir / name / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("[x] (raylet) Setting node ID\n")
    if is_head:
        (logs / "gcs_server.out").write_text(GCS)
    if latest:
        link = temp_dir / "session_latest"
        link.unlink(missing_ok=True)
        link.symlink_to(temp_dir / name)
    return logs


def roots(found):
    """
    The folders of the sessions.
    """
    return [session.root for session in found]


def test_link(tmp_path):
    """
    The latest is that which the link points to, whatever its name.
    """
    make_session(tmp_path, SECOND)
    make_session(tmp_path, FIRST)

    found = find_ray_sessions(tmp_path)

    assert [tmp_path / FIRST] == roots(found)
    assert tmp_path / FIRST / "logs" == found[0].logs
    assert FIRST == found[0].name


@pytest.mark.parametrize("target", ["gone", FIRST])
def test_broken_link(tmp_path, target):
    """
    A link that was copied means what lies beside it, or else the newest name
    counts.
    """
    make_session(tmp_path, FIRST, latest=False)
    make_session(tmp_path, SECOND, latest=False)
    link = tmp_path / "session_latest"
    link.symlink_to(f"/nowhere/at/all/{target}")

    found = find_ray_sessions(tmp_path)

    expected = FIRST if target == FIRST else SECOND
    assert [tmp_path / expected] == roots(found)


def test_broken_link_itself(tmp_path):
    """
    A link that was copied can be named itself.
    """
    make_session(tmp_path, latest=False)
    link = tmp_path / "session_latest"
    link.symlink_to(f"/nowhere/at/all/{FIRST}")

    assert tmp_path / FIRST == open_ray_session(link).root
    assert [tmp_path / FIRST] == roots(find_ray_sessions(link))


def test_stray_link(tmp_path):
    """
    A link to a session elsewhere is followed if it is named itself.
    """
    make_session(tmp_path / "ray")
    (tmp_path / "mine").mkdir()
    link = tmp_path / "mine" / "session_latest"
    link.symlink_to(tmp_path / "ray" / FIRST)

    found = find_ray_sessions(link)

    assert [tmp_path / "ray" / FIRST] == roots(found)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("session_latest", f"ray/{FIRST}"),
        (SECOND, f"ray/{FIRST}"),
        (f"node/{SECOND}", f"ray/{FIRST}"),
        ("node/ray", "ray"),
        (f"{SECOND}/logs", f"ray/{FIRST}/logs"),
    ],
    ids=["latest", "dated", "below", "folder", "logs"],
)
def test_link_out(tmp_path, link, target):
    """
    No link leads out of the folder that was named: others may have made it.
    """
    make_session(tmp_path / "ray")
    path = tmp_path / "bundle" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / target)

    with pytest.raises(NoLogsError):
        find_ray_sessions(tmp_path / "bundle")


def test_copied_latest(tmp_path):
    """
    A link that copying made a folder is a session like others.
    """
    make_session(tmp_path, "session_latest", latest=False)

    assert ["session_latest"] == [x.name for x in find_ray_sessions(tmp_path)]


def test_every(tmp_path):
    """
    All sessions of a folder are found if wanted, the latest first.
    """
    make_session(tmp_path, FIRST)
    make_session(tmp_path, SECOND)

    found = find_ray_sessions(tmp_path, every=True)

    assert [SECOND, FIRST] == [x.name for x in found]


def test_never_begun(tmp_path):
    """
    A session that never began is none, also where the link points to it.
    """
    make_session(tmp_path, FIRST)
    (tmp_path / SECOND / "logs").mkdir(parents=True)
    (tmp_path / "session_latest").unlink()
    (tmp_path / "session_latest").symlink_to(SECOND)

    assert [FIRST] == [x.name for x in find_ray_sessions(tmp_path)]
    assert 1 == len(find_ray_sessions(tmp_path, every=True))


def test_nodes(tmp_path):
    """
    Copies of several nodes are several sessions of one name, called by the
    folder in which they differ; the head comes first, and its version counts
    for all.
    """
    for host in ("node-12", "node-22", "node-30"):
        temp_dir = tmp_path / "job-7" / host / "tmp" / "ray_torchspec_1000"
        make_session(temp_dir, is_head=host == "node-22")

    found = find_ray_sessions(tmp_path)

    assert ["node-22", "node-12", "node-30"] == [x.host for x in found]
    assert {FIRST} == {x.name for x in found}
    assert {"2.50.1"} == {x.ray_version for x in found}
    assert "of node-12" in str(found[1])


@pytest.mark.parametrize("place", ["logs", "session", "all of them"])
def test_named_places(tmp_path, place):
    """
    A session is found by its folder, by its logs, and but once by both.
    """
    logs = make_session(tmp_path)
    places = {
        "logs": [logs],
        "session": [logs.parent],
        "all of them": [logs, logs.parent, tmp_path],
    }

    found = find_ray_sessions(*places[place])

    assert [(tmp_path / FIRST, logs)] == [(x.root, x.logs) for x in found]


def test_logs_only(tmp_path):
    """
    Logs that were copied alone are a session of the name of their folder, or
    of that which they tell.
    """
    logs = make_session(tmp_path / "ray")
    copies = tmp_path / "copies"
    shutil.copytree(logs, copies / "node-3" / "logs")
    shutil.copytree(logs, copies / "node-4")

    before = find_ray_sessions(copies)
    for file in copies.rglob("raylet.out"):
        file.write_text(f"[x] (raylet) fallback /tmp/ray/{FIRST}, huge\n")
    after = find_ray_sessions(copies)

    assert {"node-3", "node-4"} == {x.name for x in before}
    assert {FIRST} == {x.name for x in after}
    assert ["node-3", "node-4"] == [x.host for x in after]
    assert [copies / "node-3" / "logs", copies / "node-4"] == [
        x.logs for x in after
    ]


def test_ray_tmpdir(tmp_path, monkeypatch):
    """
    Without places, what RAY_TMPDIR means is looked at, in both ways.
    """
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    make_session(tmp_path / "ray", FIRST)
    make_session(tmp_path, SECOND)

    found = find_ray_sessions()

    assert {tmp_path / "ray" / FIRST, tmp_path / SECOND} == set(roots(found))


def test_usual_places(tmp_path, monkeypatch):
    """
    Without RAY_TMPDIR, folders that are called like those of recipes are
    looked at.
    """
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    recipe = tmp_path / f"ray_torchspec_kimi25_{os.getuid()}"
    make_session(recipe)
    make_session(tmp_path / "other")

    found = find_ray_sessions()

    assert recipe / FIRST in roots(found)
    assert tmp_path / "other" / FIRST not in roots(found)


def test_nothing(tmp_path):
    """
    Where nothing is, that is said, with what helps.
    """
    (tmp_path / "session_latest").symlink_to("nowhere")

    with pytest.raises(NoLogsError, match="no Ray session in") as caught:
        find_ray_sessions(tmp_path)
    with pytest.raises(NoLogsError, match="not a folder of a Ray session"):
        open_ray_session(tmp_path / "missing")

    assert "--temp-dir" in caught.value.remedy
    assert caught.value.remedy.endswith(f"distdebug diagnose {tmp_path}")


def test_depth(tmp_path):
    """
    Folders are searched to some depth, and no link is followed on the way.
    """
    make_session(tmp_path / "a" / "b" / "c" / "d")
    deep = tmp_path.joinpath(*"zbcdefgh")
    make_session(deep, SECOND)
    (tmp_path / "round").symlink_to(tmp_path)

    found = find_ray_sessions(tmp_path)

    assert [FIRST] == [x.name for x in found]


def test_budget(tmp_path, monkeypatch):
    """
    No more than so many folders are looked into.
    """
    monkeypatch.setattr("distdebug.ray.sessions._MOST_FOLDERS", 2)
    for name in "abc":
        make_session(tmp_path / name, name="session_latest", latest=False)

    assert 2 == len(find_ray_sessions(tmp_path))


def test_facts_of_state(tmp_path):
    """
    The state of the raylet tells the id and the address of the node.
    """
    logs = make_session(tmp_path)
    state = f"NodeManager:\nNode ID: {NODE}\nNode name: 10.0.0.7\n"
    (logs / "debug_state.txt").write_text(state)

    found = open_ray_session(logs.parent)

    assert NODE == found.node_id
    assert "10.0.0.7" == found.ip == found.host
    assert found.is_head
    assert NODE == json.loads(json.dumps(found.to_dict()))["node_id"]


ID = {"node_id": NODE, "host": NODE[:8], "ip": None}
FACTS = {
    # The log of the raylet tells the id of the node in any version.
    "2.60": (
        {"raylet.out": f"main.cc:711: Setting node ID node_id={NODE}"},
        ID,
    ),
    "2.40": ({"raylet.out": f"Initializing NodeManager with ID {NODE}"}, ID),
    "2.9": (
        {"raylet.out": f"Raylet of id, {NODE} started. Node ID {NODE}"},
        ID,
    ),
    # So do the names of files of ports.
    "port": ({f"../metrics_agent_port_{NODE}": "1"}, ID),
    # The address is in a file of older versions, or in the logs of workers; a
    # name that is no address is none.
    "address": (
        {"../node_ip_address.json": '{"node_ip_address": "10.0.0.8"}'},
        {"ip": "10.0.0.8"},
    ),
    "worker": (
        {
            "debug_state.txt": f"Node ID: {NODE}\nNode name: my-node\n",
            f"python-core-worker-{NODE}_7.log": (
                "Initializing worker at address: 10.0.0.9:14538 x\n"
            ),
        },
        {"ip": "10.0.0.9"},
    ),
    # Only the oldest part of a log begins with the address.
    "rotated worker": (
        {
            f"python-core-worker-{NODE}_7.log": (
                "Initializing worker at address: 10.0.0.9:14538 x\n"
            ),
            **{
                f"python-core-worker-{NODE}_{pid}.log": "later\n"
                for pid in range(8, 20)
            },
        },
        {"ip": "10.0.0.9"},
    ),
    # The monitor tells the version where the GCS does not.
    "version": (
        {
            "gcs_server.out": "",
            "monitor.log": "x INFO -- Ray version: 2.9.3\n",
        },
        {"is_head": True, "ray_version": "2.9.3"},
    ),
    "nothing": ({}, {"is_head": False, "ray_version": None, "node_id": None}),
    # What was told at the beginning is found in the oldest part.
    "rotated": (
        {
            "raylet.out": "",
            "raylet.out.1": "",
            "raylet.out.2": f"Setting node_id={NODE}\n",
            "gcs_server.out.1": GCS,
            "gcs_server.out": "later\n",
        },
        {"node_id": NODE, "ray_version": "2.50.1"},
    ),
}


@pytest.mark.parametrize(("files", "expected"), FACTS.values(), ids=FACTS)
def test_facts(tmp_path, files, expected):
    """
    Files of every version tell node, address, and version.
    """
    logs = make_session(tmp_path, is_head=False)
    for name, text in files.items():
        (logs / name).write_text(text)

    found = open_ray_session(logs)

    assert expected == {key: getattr(found, key) for key in expected}


def test_pipe(tmp_path):
    """
    What is not a file is not waited for.
    """
    logs = make_session(tmp_path)
    os.mkfifo(logs / "debug_state.txt")

    assert open_ray_session(logs).node_id is None


def test_stray_link_to_nothing(tmp_path):
    """
    A link to a folder that is no session is not followed.
    """
    (tmp_path / "other").mkdir()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "other")

    with pytest.raises(NoLogsError):
        find_ray_sessions(tmp_path / "ray")


def test_strange_names(tmp_path):
    """
    A session in a folder whose name is not text, or steers terminals, is shown.
    """
    folder = tmp_path / os.fsdecode(b"\xdb\x1b[31mray\xe2\x80\xae")
    make_session(folder)

    (found,) = find_ray_sessions(folder)

    assert str(found).isprintable()
    assert str(found).encode()
    assert FIRST in str(found)


def test_null_byte():
    """
    What cannot be a path is no session.
    """
    with pytest.raises(NoLogsError):
        find_ray_sessions("x\0y")

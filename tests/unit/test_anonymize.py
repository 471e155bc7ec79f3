"""
What is masked before a diagnosis is sent to others, and what is not.
"""

from __future__ import annotations

import json

import pytest

from distdebug import diagnose, report_html
from distdebug.__main__ import main
from distdebug._anonymize import Anonymizer


STACK = "Thread 1 (idle): MainThread\n    step (/home/alice/train.py:40)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank 1 on gpu-7 of gpu-7.lab.org", "rank 1 on host-1 of host-2"),
        (
            "gpu-7.other.org: a_gpu-7.json, gpu-7.",
            "host-1: a_host-1.json, host-1.",
        ),
        ("gpu-70 and my-gpu-7", "gpu-70 and my-gpu-7"),
        ("10.0.3.7:29500, 10.0.3.7", "ip-1:29500, ip-1"),
        ("127.0.0.1:29500", "127.0.0.1:29500"),
        ("torch 2.13.0.1x, 1.2.3", "torch 2.13.0.1x, 1.2.3"),
        ("[fd00:12::7]:29500", "[ip-1]:29500"),
        ("at 02:03:10, std::vector", "at 02:03:10, std::vector"),
        (
            "main (/home/alice/train.py:4), /home/alice/train.py",
            "main (/home/user-1/train.py:4), /home/user-1/train.py",
        ),
        (
            "open('/mnt/secret/a.bin'), /mnt/secret/a.bin and /mnt/secret/b",
            "open('/path-1.bin'), /path-1.bin and /path-2",
        ),
        ("read('/dev/shm/x') and 4/5/6", "read('/dev/shm/x') and 4/5/6"),
    ],
)
def test_text(text, expected):
    """
    The same name has the same stand-in; what only looks like one stays.
    """
    mask = Anonymizer(["gpu-7", "gpu-7.lab.org"])

    assert expected == mask.text(text)


def test_data():
    """
    Keys of data are no names of hosts.
    """
    data = {"rank": [{"source": "rank", "number": 1}, None, True]}

    assert {
        "rank": [{"source": "host-1", "number": 1}, None, True]
    } == Anonymizer(["rank"]).data(data)


def test_page():
    """
    Programs and styles of the page stay as they are; their data do not.
    """
    html = (
        "<style>a { b: node-1 }</style><p>node-1</p><script>node-1</script>"
        '<script type="application/json">"node-1"</script>'
    )

    assert (
        "<style>a { b: node-1 }</style><p>host-1</p><script>node-1</script>"
        '<script type="application/json">"host-1"</script>'
    ) == Anonymizer(["node-1"]).page(html)


@pytest.fixture(name="evidence")
def _evidence(tmp_path):
    """
    Stacks with a host, a user, and a file that nobody else is to know.
    """
    stack = {
        "pid": 7,
        "thread_id": 1,
        "active": False,
        "frames": [
            {"name": "read", "filename": "/home/alice/t.py", "line": 4}
        ],
        "is_main": True,
        "state": "S",
        "system_call": {
            "name": "read",
            "target": "/mnt/secret_shards/shard-1",
        },
    }
    path = tmp_path / "pyspy_dgx-17_7.json"
    path.write_text(json.dumps([stack]))
    return path


@pytest.mark.parametrize("options", [[], ["--json"], ["--markdown"]])
def test_command(evidence, options, capsys):
    """
    Whatever the form of a diagnosis, it has no name that is masked.
    """
    plain = main(["diagnose", str(evidence), *options])
    before = capsys.readouterr().out
    masked = main(["diagnose", str(evidence), "--anonymize", *options])
    after = capsys.readouterr().out

    assert plain == masked
    for name in ("secret", "shards", "shard-1"):
        assert name in before
        assert name not in after
    assert "dgx-17" not in after
    assert "alice" not in after
    assert "t.py" in after


def test_html(evidence):
    """
    The page has none of them either, and still its programs.
    """
    page = report_html(diagnose(evidence), anonymize=True)

    for name in ("secret", "shards", "alice", "dgx-17", "shard-1"):
        assert name not in page
    assert "<script>" in page

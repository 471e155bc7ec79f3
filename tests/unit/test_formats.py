"""
Files that other versions wrote, of torch and of *distdebug*.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys

from pathlib import Path

import pytest

import distdebug

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.debugger import connect
from distdebug.errors import BundleError
from distdebug.flight_recorder import read_dumps, read_sidecar
from distdebug.snapshots import parse_manifest, read_manifest, read_parts
from distdebug.testing import SimulatedJob, make_dumps


TESTS = Path(__file__).parents[1]
FORMATS = TESTS / "data" / "formats"
TORCHES = sorted(
    FORMATS.glob("torch-*"), key=lambda p: int(p.name.rpartition(".")[2])
)
# Up to here Gloo has no recorder, and there are only side-cars.
SILENT = {"torch-2.5", "torch-2.6", "torch-2.7"}

SNAPSHOT = FORMATS / "snapshot-1"
SAID = [
    json.loads(line)
    for line in (FORMATS / "debugger-1" / "conversation.jsonl")
    .read_text()
    .splitlines()
]

# Every version of the format since the first; "" was a bare list.
VERSIONS = [
    *("", "1.1", "1.2", "1.5", "2.0", "2.1", "2.2", "2.3", "2.4"),
    *("2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11"),
]


class TestTorch:
    @pytest.mark.parametrize("sample", TORCHES, ids=lambda p: p.name)
    def test_real(self, sample):
        """
        What a real job left is read as a whole, and shows why it hung.
        """
        verdict = diagnose(sample).verdict

        recorded, seen = Cause.RANK_NOT_ARRIVED, Cause.QUEUE_WAIT
        assert () == read_dumps(sample).problems
        assert ((1,), "load_batch") == (
            verdict.ranks,
            verdict.location.function,
        )
        if sample.name in SILENT:
            assert seen is verdict.cause
        else:
            assert (recorded, seen) == (verdict.cause, verdict.detail_cause)
            assert "all_reduce #5" in verdict.summary

    @pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
    @pytest.mark.parametrize("version", VERSIONS, ids=lambda v: v or "list")
    def test_simulated(self, version, as_json, tmp_path):
        """
        Every version of the format, also those that only NCCL ever wrote,
        gives the same verdict.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1, 3])
        make_dumps(tmp_path, job, version=version, as_json=as_json)

        verdict = diagnose(tmp_path).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)

    def test_later(self, tmp_path):
        """
        A version that is not known yet is read by the keys that are known.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", ranks=[0])
        job.collective("broadcast", ranks=[0, 1])
        make_dumps(tmp_path, job, version="3.0")

        assert ["3.0"] * 2 == [dump.version for dump in read_dumps(tmp_path)]


class TestSnapshot:
    def test_verdict(self):
        """
        A snapshot of the first layout has the verdict that it had then.
        """
        diagnosis = diagnose(SNAPSHOT)

        # The words have changed since, and the pipe was not named then.
        told = (SNAPSHOT / "REPORT.txt").read_text().splitlines()[0]
        told = told.replace(
            " (1 rank waits for 7 s): it is blocked in input or output",
            "; 1 rank has been waiting for 7 s. Rank 1 is blocked on I/O",
        )
        assert f"{told}: read(a pipe)" == diagnosis.verdict.summary
        assert Cause.RANK_NOT_ARRIVED is diagnosis.verdict.cause
        assert () == diagnosis.missing

    def test_all_is_read(self):
        """
        Its manifest, and the facts of its node, are understood.
        """
        manifest = read_manifest(SNAPSHOT)

        seen = diagnose(SNAPSHOT).seen
        (node,) = manifest.nodes
        (facts,) = seen.logs.facts
        assert ("node-1", "ok", 10) == (node.host, node.status, node.files)
        assert ("node-1", 1795315142.0) == (facts.host, facts.booted)
        assert facts.gpus == ()
        assert [2, 2] == [len(seen.stacks), len(seen.flight.dumps)]

    def test_later_manifest(self, tmp_path):
        """
        The manifest of a later layout is refused, with a remedy; all else is
        explained as ever.
        """
        folder = later(tmp_path, "manifest.json")

        with pytest.raises(BundleError, match=r"a later distdebug wrote it"):
            read_manifest(folder)
        with pytest.raises(BundleError, match=r"layout 2; .* knows 1") as exc:
            parse_manifest(json.loads((folder / "manifest.json").read_text()))

        assert "pip install --upgrade distdebug" == exc.value.remedy
        assert (1,) == diagnose(folder).verdict.ranks
        shutil.copy(folder / "manifest.json", folder / "node-1")
        (part,) = read_parts(folder)
        assert "a later distdebug wrote it" in part.skipped[0].reason

    @pytest.mark.parametrize(
        ("what", "pattern"),
        [
            ("sidecar", "node-1/flight_recorder/*rank_1.sidecar.json"),
            ("facts of node", "node-1/node.json"),
        ],
    )
    def test_later_file(self, what, pattern, tmp_path):
        """
        A file of a later layout is left out, and named with a remedy.
        """
        folder = later(tmp_path, pattern)

        diagnosis = diagnose(folder)

        (lost,) = diagnosis.missing
        assert what == lost.what
        assert "pip install --upgrade distdebug" in lost.reason
        assert (1,) == diagnosis.verdict.ranks

    @pytest.mark.parametrize("schema", [0, "1", None, 1.0, True])
    def test_no_layout(self, schema, tmp_path):
        """
        What is no layout of ours is not a file of ours.
        """
        folder = later(tmp_path, "node-1/flight_recorder/*_1.sidecar.json")
        (path,) = folder.rglob("*rank_1.sidecar.json")
        data = json.loads(path.read_text())
        path.write_text(json.dumps({**data, "schema": schema}))

        with pytest.raises(ValueError, match="no layout of ours"):
            read_sidecar(path)


def later(folder, pattern):
    """
    The snapshot, with one file of a layout that is not there yet.
    """
    copied = shutil.copytree(SNAPSHOT, folder / "later")
    (path,) = copied.glob(pattern)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "schema": data["schema"] + 1}))
    return copied


class TestDebugger:
    def test_rank_of_before(self, socket_folder, answering_rank):
        """
        The debugger of today understands what a rank of the first layout
        answers.
        """
        answers = {kind(x["request"]): x["answer"] for x in SAID}
        rank = answering_rank(socket_folder, 0)
        rank.answer = lambda request: answers[kind(request)]

        with connect() as client:
            (process,) = client.list()
            stacks = client.stack("ranks(0)")
            value = client.eval("ranks(0)", "loss")
            step = client.cast("ranks(0)", "p step")
            going = client.resume("ranks(0)")

        assert ("node-1", 0) == (process.host, process.rank)
        assert ["train"] == [s.function for s in process.sessions]
        assert "in train" in stacks.outputs[0].text
        assert "1.75" == value.outputs[0].text
        assert "7" == step.outputs[0].text.strip()
        assert "ended" == going.outputs[0].state

    @pytest.mark.process
    def test_client_of_before(self, socket_folder):
        """
        A rank of today answers what a debugger of the first layout asks, with
        all that it knew.
        """
        with stopped_rank(socket_folder) as path:
            key = ask(path, {"op": "list"})["stops"][0]["key"]
            for said in SAID:
                request, was = said["request"], said["answer"]
                if "keys" in request:
                    request = {**request, "keys": [key]}
                answer = ask(path, request)
                assert "error" not in answer
                assert shape(was) <= shape(answer)

    @pytest.mark.process
    def test_nobody_knows(self, socket_folder):
        """
        What a later debugger asks for is refused by an answer.
        """
        with stopped_rank(socket_folder) as path:
            answer = ask(path, {"op": "teleport"})

        assert "unknown operation: 'teleport'" == answer["error"]


def kind(request):
    """
    What distinguishes one question from another.
    """
    return request["op"], request.get("line", "")


@contextlib.contextmanager
def stopped_rank(folder):
    """
    The socket of a real rank that has stopped.
    """
    program = TESTS / "integration" / "programs" / "stopped_rank.py"
    environ = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "DISTDEBUG_DIR": str(folder),
        "PYTHONPATH": str(Path(distdebug.__file__).parents[1]),
    }
    rank = subprocess.Popen(
        [sys.executable, program], env=environ, stderr=subprocess.PIPE
    )
    try:
        assert rank.stderr.readline().startswith(b"rank 0 stopped")
        (path,) = folder.glob("*.sock")
        yield path
    finally:
        rank.kill()
        rank.communicate()


def ask(path, request):
    """
    What is answered to one request.
    """
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(30)
        line.connect(str(path))
        line.sendall(json.dumps({**request, "id": 1}).encode() + b"\n")
        with line.makefile("rb") as file:
            return json.loads(file.readline())


def shape(answer, path=""):
    """
    Which keys an answer has, on every level; those of stops are not alike.
    """
    found = set()
    for name, value in answer.items():
        place = f"{path}/{'KEY' if ':' in name else name}"
        found.add(place)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                found |= shape(part, place)
    return found

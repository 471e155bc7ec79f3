"""
Published bugs that fit a diagnosis.
"""

from __future__ import annotations

import re

from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs, LogEvidence
from distdebug.diagnosis.known_bugs import (
    BugRule,
    built_in_bugs,
    is_affected,
    note_known_bugs,
)
from distdebug.errors import RulesError
from distdebug.findings import (
    CollectiveRef,
    Diagnosis,
    Evidence,
    Finding,
    Location,
)
from distdebug.health import NodeFacts
from distdebug.logs import RasStatus
from distdebug.stacks import ProcessStacks, StackFrame, ThreadStack


BUG = """
[[bug]]
name = "abort"
title = "an abort hangs"
component = "nccl"
versions = ">=2.25,<2.26.2"
fixed_in = "2.26.2"
symptoms = ["hang"]
source = "https://example.org/1"
"""
STUCK = Finding(
    cause=Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    ranks=(0, 1),
    summary="all ranks are in the call",
    remedy="check the network",
    collective=CollectiveRef(op="all_reduce", seq=9),
)


def inputs(nccl="", function="", environ=(), **facts):
    """
    What is on record of a node with one worker.
    """
    frames = (StackFrame(function, "libnccl.so.2", 0),) if function else ()
    thread = ThreadStack(name="", frames=frames)
    return DiagnosisInputs(
        stacks=(ProcessStacks(pid=1, source="", threads=(thread,)),),
        logs=LogEvidence(
            ras=(RasStatus(nccl_version=nccl),),
            facts=(NodeFacts(host="a", taken=0.0, **facts),),
            environs={"a": (dict(environ),)},
        ),
    )


@pytest.fixture(name="find")
def _find(tmp_path, monkeypatch):
    """
    Finds a bug, whose table may have more lines, and no other.
    """
    monkeypatch.setattr(
        "distdebug.diagnosis.known_bugs.built_in_bugs", lambda: ()
    )

    def find(known, more="", verdict=STUCK):
        path = tmp_path / "bugs.toml"
        path.write_text(BUG + more)
        diagnosis = Diagnosis(verdict=verdict, findings=(verdict,))
        return note_known_bugs(diagnosis, known, [path])

    return find


@pytest.mark.parametrize(
    ("version", "limits", "expected"),
    [
        ("2.21.5", ">=2.14,<2.17.1", False),
        ("2.17.0", ">=2.14,<2.17.1", True),
        ("2.17.1+cuda12.1", ">=2.14,<2.17.1", False),
        ("2.14", ">=2.14.0", True),
        ("2.7.0+cu126", "==2.7.0", True),
        ("2.7.1", "==2.7.0", False),
        ("2.10", ">2.9", True),
        ("550.54.15", "<=550.54", False),
        ("2.3.0", "!=2.3", False),
    ],
)
def test_versions(version, limits, expected):
    """
    Versions are compared number by number.
    """
    assert expected == is_affected(version, limits)


class TestFits:
    def test_version(self, find):
        """
        An affected version on record is enough where nothing else explains
        the hang; the release that mends it comes first in what to do.
        """
        got = find(inputs("2.25.1"))

        (bug,) = got.known_bugs
        assert ("abort", "2.25.1", "2.26.2") == (
            bug.name,
            bug.version,
            bug.fixed_in,
        )
        assert got.verdict == got.findings[0]
        assert (
            "a known bug of nccl 2.25.1 fits: upgrade it to 2.26.2 or later; "
            "check the network"
        ) == got.verdict.remedy
        assert (
            "known bug: an abort hangs (nccl 2.25.1); fixed in 2.26.2; "
            "https://example.org/1"
        ) in str(got)
        assert "abort" == got.to_dict()["known_bugs"][0]["name"]

    @pytest.mark.parametrize(
        "known",
        [
            inputs("2.26.2"),
            inputs("2.18.3"),
            inputs(),
            inputs("2.25.1\x1b[2J"),
        ],
        ids=["mended", "older", "unknown", "hostile"],
    )
    def test_other_version(self, find, known):
        """
        Without an affected version there is no bug.
        """
        got = find(known)

        assert () == got.known_bugs
        assert STUCK == got.verdict

    @pytest.mark.parametrize(
        "changes",
        [
            {"cause": Cause.HEALTHY},
            {"cause": Cause.STRAGGLER},
            {"cause": Cause.RANK_NOT_ARRIVED, "detail_cause": Cause.IO_WAIT},
            {"location": Location(function="f", file="train.py", line=1)},
        ],
    )
    def test_other_verdict(self, find, changes):
        """
        A version alone explains no verdict of another kind, or with a reason.
        """
        verdict = attrs.evolve(STUCK, **changes)

        assert () == find(inputs("2.25.1"), verdict=verdict).known_bugs

    def test_typical_function(self, find):
        """
        A function that is typical of it is enough if no version is known.
        """
        more = 'stack_pattern = "ncclCommAbort"'
        at = Location(function="f", file="train.py", line=1)
        located = attrs.evolve(STUCK, location=at)

        (got,) = find(
            inputs(function="ncclCommAbort"), more, located
        ).known_bugs
        mended = find(inputs("2.27.3", "ncclCommAbort"), more).known_bugs
        other = find(inputs("2.25.1", "ncclAllReduce"), more).known_bugs

        assert ("", ">=2.25,<2.26.2") == (got.version, got.affected)
        assert () == mended == other

    def test_typical_text(self, find):
        """
        So is a text in a log; the version may stand in it.
        """
        more = 'log_pattern = "proxy .{1,9} lost"'
        quote = "proxy 3 lost (NCCL version 2.25.1)"
        evidence = (Evidence(kind="log", source="a.log", quote=quote),)
        verdict = attrs.evolve(STUCK, evidence=evidence)

        (got,) = find(inputs(), more, verdict).known_bugs

        assert "2.25.1" == got.version
        assert () == find(inputs("2.25.1"), more).known_bugs

    @pytest.mark.parametrize(
        ("more", "known"),
        [
            ('operations = ["all_reduce"]', {}),
            ('platform = "aarch64"', {"platform": "aarch64"}),
            ('environment = ["A=1"]', {"environ": {"A": "1"}}),
        ],
    )
    def test_conditions(self, find, more, known):
        """
        What a bug needs has to be on record.
        """
        other = more.replace("all_reduce", "send")

        assert find(inputs("2.25.1", **known), more).known_bugs
        assert not find(inputs("2.25.1"), other).known_bugs


def test_no_help(tmp_path):
    """
    A bug that nothing mends yet has its source; a file given twice counts once.
    """
    path = tmp_path / "bugs.toml"
    path.write_text(BUG.replace('fixed_in = "2.26.2"\n', ""))
    diagnosis = Diagnosis(verdict=STUCK, findings=(STUCK,))

    got = note_known_bugs(diagnosis, inputs("2.25.1"), [path, path])
    alone = note_known_bugs(diagnosis, inputs("2.25.1"), str(path))

    names = [bug.name for bug in got.known_bugs]
    assert 1 == names.count("abort")
    assert got == alone
    assert got.verdict.remedy.startswith(
        "a known bug of nccl 2.25.1 fits: see https://example.org/1; "
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('versions = "new"', "invalid versions 'new': expected '>=2.14"),
        ('component = "ncl"', "'ncl' is never on record, as those of nccl"),
        ('environment = ["NCCL_X"]', "'NCCL_X' is not NAME=value"),
        ('symptoms = ["odd"]', "hang or crash or slow or start_up"),
        ('stack_pattern = "(a+)+b"', "bug 1"),
        ('stack_pattern = "("', "bug 1"),
        ("colour = 1", "no such key: 'colour'"),
        ('title = ""', "bug 1: title is not given"),
        (r"log_pattern = '(.*)\1Z'", "too many ways to match"),
    ],
)
def test_wrong_file(tmp_path, more, message):
    """
    A file that is wrong is refused, with the place.
    """
    key = more.partition(" ")[0]
    path = tmp_path / "bugs.toml"
    path.write_text(re.sub(rf"(?m)^{key} = .*\n", "", BUG) + more)
    healthy = Diagnosis(verdict=attrs.evolve(STUCK, cause=Cause.HEALTHY))

    with pytest.raises(RulesError, match=re.escape(message)):
        note_known_bugs(healthy, DiagnosisInputs(), [path])


# What is typical of a bug, as a log or a stack shows it.
TEXTS = {
    "nccl-2-18-invalid-argument-connect": "misc/cudawrap.cc:36 NCCL WARN Cuda "
    "failure 'invalid argument'",
    "nccl-nvls-init-failure-fatal": "transport/nvls.cc:244 NCCL WARN Cuda "
    "failure 801 'operation not supported'",
    "nccl-shm-size-0-cumem-host-mismatch": "misc/shmutils.cc:87 NCCL WARN "
    "Error while attaching to shared memory segment /dev/shm/nccl-aB3 (size 0)",
    "driver-fabric-manager-version-mismatch": "fabric manager NVIDIA GPU "
    "driver interface version 530.30.02 don't match with driver version 530.41",
    "aws-ofi-nccl-failed-request-blocks": "NET/OFI Request 0x7f1 completed "
    "with error. RC: 5",
    "torch-watchdog-event-query-breaks-graph-capture": "NCCL watchdog thread "
    "terminated with exception: CUDA error: operation not permitted when "
    "stream is capturing",
    "aws-ofi-nccl-tuner-rejects-algo-proto": "NET/OFI The tuner plugin can "
    "not be loaded when explicitly choosing an algorithm or protocol with "
    "NCCL_ALGO/NCCL_PROTO",
}
FUNCTIONS = {
    "nccl-comm-abort-hang-2-25": "ncclCommAbort",
    "nccl-multithreaded-abort-hang-2-18": "commReclaim",
    "nccl-ce-collective-two-rank-hang": "ncclMemOpSync",
    "torch-2-1-0-slow-sharded-optimizer-load": "load_sharded_optimizer_state_dict",
    "torch-2-2-0-gather-state-dict-oom": "_gather_state_dict",
    "ray-streaming-split-deadlock": "SplitCoordinator.get",
    "python-resource-tracker-waitpid-deadlock": "ResourceTracker._stop_locked",
}
CAUSES = {
    "hang": Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    "crash": Cause.RANK_CRASHED,
    "slow": Cause.STRAGGLER,
}


def named(bug, version):
    """
    Name the published bugs in a job with all that one of them needs.
    """
    text = TEXTS.get(bug.name, "")
    quotes = (Evidence(kind="log", source="a.log", quote=text),)
    verdict = attrs.evolve(
        STUCK,
        cause=CAUSES[bug.symptoms[0]],
        evidence=quotes if text else (),
        collective=CollectiveRef(op=[*bug.operations, "all_reduce"][0], seq=9),
    )
    known = inputs(
        version if bug.component == "nccl" else "",
        FUNCTIONS.get(bug.name, ""),
        dict(setting.split("=") for setting in bug.environment),
        platform=bug.platform,
        driver=version if bug.component == "driver" else "",
    )
    if bug.component == "torch":
        sidecars = {0: SimpleNamespace(torch=version)}
        flight = SimpleNamespace(dumps=NoDumps(sidecars))
        known = attrs.evolve(known, flight=flight)
    diagnosis = Diagnosis(verdict=verdict, findings=(verdict,))
    return [x.name for x in note_known_bugs(diagnosis, known).known_bugs]


class NoDumps(list):
    """
    Dumps of which there are the sidecars alone.
    """

    def __init__(self, sidecars):
        super().__init__()
        self.sidecars = sidecars


@pytest.mark.parametrize("bug", built_in_bugs(), ids=lambda bug: bug.name)
def test_built_in(bug: BugRule):
    """
    Each published bug is found by what it needs, and not in a mended release.
    """
    affected = re.search(r"(?:>=|==)([\d.]+)", bug.versions)
    is_on_record = bug.component in {"nccl", "torch", "driver"}

    assert bug.name in named(bug, affected[1] if affected else "")
    assert bug.source.startswith("https://")
    assert bug.fixed_in or bug.workaround
    if bug.fixed_in:
        assert not is_affected(bug.fixed_in, bug.versions)
        assert not is_on_record or bug.name not in named(bug, bug.fixed_in)
    if bug.log_pattern or bug.stack_pattern:
        bare = attrs.evolve(STUCK, cause=CAUSES[bug.symptoms[0]])
        diagnosis = Diagnosis(verdict=bare, findings=(bare,))
        found = note_known_bugs(diagnosis, inputs()).known_bugs
        assert bug.name not in [x.name for x in found]


def test_number():
    """
    There are at least twenty, each with a name of its own.
    """
    names = {bug.name for bug in built_in_bugs()}

    assert len(built_in_bugs()) == len(names) >= 20
    assert {*TEXTS, *FUNCTIONS} <= names


@pytest.mark.parametrize("bug", built_in_bugs(), ids=lambda bug: bug.name)
def test_page(bug: BugRule):
    """
    The reference lists each of them.
    """
    page = Path(__file__).parents[3] / "docs" / "reference" / "known_bugs.md"
    if not page.exists():
        pytest.skip("the documentation is not here")

    assert (
        f"| `{bug.name}` | {bug.title} | {bug.component} `{bug.versions}` | "
        f"{bug.fixed_in or '-'} | [source]({bug.source}) |"
    ) in page.read_text("utf-8")

"""
Is each threat of ``docs/explanation/security.md`` met, and shown to be?

Most tests stand beside the rooms that they are about; here are those that
are about several.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shlex
import stat

from contextlib import suppress
from pathlib import Path

import pytest

import distdebug

from distdebug.__main__ import main
from distdebug.capture import make_folder
from distdebug.errors import ConfigError, DistdebugError
from distdebug.findings import Missing
from distdebug.report.page import summarize_inputs
from distdebug.snapshots import Manifest, NodeEntry
from distdebug.snapshots.bundle import MANIFEST
from distdebug.testing import SimulatedJob, make_dumps, plain_dump


SOURCE = Path(distdebug.__file__).parent
TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "security.md"
SECRET = "s3cr3t-of-somebody"
SESSION = "session_2026-11-22_03-17-53_779780_27567"
WORKER = f"worker-{'ab' * 28}-01000000-28115.err"

# Where code that is not ours may run, and on whose word.
KNOWN = {
    # The owner of the process types it.
    ("debugger/inside/frames.py", "eval"),
    # The caller's own function, whose digest came by another way.
    ("nodes/child.py", "pickle.loads"),
    # What the process of pytest that started it has pickled for it.
    ("testing/rank_program.py", "pickle.loads"),
    # What we dumped a moment ago, and nobody else.
    ("flight_recorder/reading/extract.py", "marshal.loads"),
}
# What runs code that is given as data, if its data is not ours.
DANGEROUS = {
    *("eval", "exec", "os.system", "os.popen", "pickle.load"),
    *("pickle.loads", "marshal.load", "marshal.loads", "shelve.open"),
    *("yaml.load", "yaml.unsafe_load", "cloudpickle.loads"),
    *("tempfile.mktemp",),
}


class Code:
    """
    Is pickled as a call.
    """

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def named_tests():
    """
    The tests that the page names, each with its file.
    """
    return re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())


def names_in(file):
    """
    The names of all tests of a file, also those in classes.
    """
    tree = ast.parse(file.read_text())
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def calls_in(file):
    """
    What a file calls, as it is written.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not here")
def test_the_tests_of_the_page_exist():
    """
    Each row of the page names tests, and all of them are there.
    """
    _, _, after = PAGE.read_text().partition("## Threats")
    rows = [
        line
        for line in after.partition("## What is not")[0].splitlines()
        if line.startswith("|") and "---" not in line
    ]
    threats = [row for row in rows if not row.startswith("| threat |")]

    lost = [
        f"{file}::{name}"
        for file, name in named_tests()
        if name not in names_in(TESTS / file)
    ]

    assert [] == lost
    assert [] == [row for row in threats if "::" not in row]
    assert len(threats) > 30


def test_what_could_run_code_is_known():
    """
    Nothing evaluates, unpickles, or asks a shell, but where it is known.
    """
    found = {
        (str(file.relative_to(SOURCE)), name)
        for file in SOURCE.rglob("*.py")
        for call, name in calls_in(file)
        if name in DANGEROUS
        or any(
            word.arg == "shell" and ast.unparse(word.value) != "False"
            for word in call.keywords
        )
    }

    assert KNOWN == found


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["system", "eval", "import"])
def test_dumps_run_nothing(tmp_path, protocol, kind):
    """
    A dump that would run code is read, and runs nothing.
    """
    marker = tmp_path / "was_here"
    code = {
        "system": Code(os.system, f"touch {marker}"),
        "eval": Code(eval, f"open({str(marker)!r}, 'w')"),
        "import": Code(exec, f"import os; os.mkdir({str(marker)!r})"),
    }[kind]
    data = pickle.dumps({"version": "2.10", "entries": [code]}, protocol)
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        dumps = distdebug.read_dumps(tmp_path)

    assert not marker.exists()
    assert 0 not in dumps.by_rank or not len(dumps.by_rank[0])


def test_configurations_run_nothing(tmp_path):
    """
    A configuration that would run code is refused, and runs nothing.
    """
    pytest.importorskip("yaml")
    marker = tmp_path / "was_here"
    path = tmp_path / "job.yaml"
    path.write_text(
        "debug:\n  enabled: !!python/object/apply:os.system "
        f"['touch {marker}']\n"
    )

    with pytest.raises(ConfigError):
        distdebug.watch(path)

    assert not marker.exists()


def bundle(folder):
    """
    A snapshot of two ranks on one node.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])
    make_dumps(folder / "node" / "dumps", job)
    return folder


def told_about(folder):
    """
    All that a diagnosis of a folder says.
    """
    try:
        diagnosis = distdebug.diagnose(folder)
    except DistdebugError as error:
        return f"{error} {error.remedy}"
    return f"{diagnosis} {json.dumps(diagnosis.to_dict())}"


@pytest.mark.parametrize(
    "name", ["node/rank0.log", "node/stacks.txt", "node/worker.out", "more"]
)
def test_links_out_of_a_bundle_are_not_read(tmp_path, name):
    """
    What a link in a bundle leads to, outside of it, is told nowhere.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    line = f"RuntimeError: CUDA out of memory {SECRET}\n"
    (outside / "rank1.log").write_text(
        f"Traceback (most recent call last):\n{line}"
    )
    folder = bundle(tmp_path / "bundle")
    is_folder = name == "more"
    (folder / name).symlink_to(outside if is_folder else outside / "rank1.log")

    told = told_about(folder)

    assert SECRET not in told
    assert SECRET in told_about(outside)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("session_latest", ""),
        (SESSION, ""),
        (f"node/{SESSION}", ""),
        (f"{SESSION}/logs", "logs"),
        (f"{SESSION}/logs/raylet.out", "logs/raylet.out"),
        (f"{SESSION}/logs/{WORKER}", f"logs/{WORKER}"),
    ],
    ids=["latest", "dated", "below", "logs", "raylet", "worker"],
)
def test_links_out_of_a_session_are_not_read(tmp_path, name, target):
    """
    What a link in a session of Ray leads to, outside of it, is told nowhere.
    """
    outside = tmp_path / "outside" / SESSION
    (outside / "logs").mkdir(parents=True)
    (outside / "logs" / "raylet.out").write_text(f"[E] {SECRET}\n")
    (outside / "logs" / WORKER).write_text(
        ":job_id:01000000\nTraceback (most recent call last):\n"
        f'  File "a.py", line 1, in f\nRuntimeError: {SECRET}\n'
    )
    folder = bundle(tmp_path / "bundle")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(outside / target)

    told = told_about(folder)

    assert SECRET not in told
    assert SECRET in told_about(tmp_path / "outside")


FACTS = {
    "schema": 1,
    "taken": 1.7e9,
    "machine": {"booted": 1.6e9},
    "kernel": {"lines": [f"[ 5.0] NVRM: Xid (PCI:0000:01:00): 79, {SECRET}"]},
    "variables": [{"pids": [7], "variables": {"NCCL_SOCKET_IFNAME": SECRET}}],
    "interfaces": [{"name": "eth0", "is_up": True, "addresses": []}],
}
STACKS = f"""\
Process 7: python train.py
Python v3.11.7 (/usr/bin/python)

Thread 7 (active): "MainThread"
    {SECRET} (train.py:7)
"""


@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("node/node.json", json.dumps(FACTS)), ("node/pyspy_7.txt", STACKS)],
    ids=["facts", "stacks"],
)
def test_links_of_facts_and_stacks_are_not_read(tmp_path, name, text, is_link):
    """
    A link that leads out is not followed where facts and stacks are read.
    """
    outside = tmp_path / "outside"
    outside.write_text(text)
    folder = bundle(tmp_path / "bundle")
    if is_link:
        (folder / name).symlink_to(outside)
    else:
        (folder / name).write_text(text)

    told = told_about(folder)
    page = distdebug.report_html(distdebug.diagnose(folder))

    assert is_link == (SECRET not in told + page)


def test_a_manifest_opens_nothing(tmp_path):
    """
    Names in a manifest that lead elsewhere are not followed.
    """
    (tmp_path / "rank1.log").write_text(f"RuntimeError: {SECRET}\n")
    folder = bundle(tmp_path / "bundle")
    elsewhere = NodeEntry(host="../..", status="ok", files=1)
    lost = Missing(what="log", reason="none", source="../rank1.log")
    manifest = Manifest(
        version="1", created=1.7e9, nodes=(elsewhere,), skipped=(lost,)
    )
    (folder / MANIFEST).write_text(json.dumps(manifest.to_dict()))

    told = told_about(folder)

    assert SECRET not in told
    assert SECRET in told_about(tmp_path)


def test_advised_commands_are_quoted(tmp_path, monkeypatch):
    """
    A folder may be called like a command, and is no command on a page.
    """
    monkeypatch.chdir(tmp_path)
    name = "$(touch was_here); `id` 'x"
    bundle(tmp_path / name)

    commands = summarize_inputs(distdebug.diagnose(name))["commands"]

    assert commands
    for command in commands:
        words = shlex.split(command)
        assert ["python", "-m", "distdebug"] == words[:3]
        assert name in words


EVIL = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202egnp\u2066\r\x08\x00"
TRACE = (
    "Traceback (most recent call last):\n"
    f'  File "{EVIL}.py", line 1, in f{EVIL}\n'
    f"RuntimeError: CUDA out of memory {EVIL}\n"
)
WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
    f"operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE{EVIL}, NumelIn=1,"
    " NumelOut=1, Timeout(ms)=600000) ran for 600026 milliseconds before"
)


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """
    A bundle in which every text, also names of files, steers terminals.
    """
    folder = tmp_path_factory.mktemp("evil") / "bun\x1b[31mdle\u202e"
    node, logs = folder / "no\x1b[2Jde", folder / SESSION / "logs"
    (node / "dumps").mkdir(parents=True)
    logs.mkdir(parents=True)
    job = SimulatedJob(2, stack_depth=2)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])
    for rank in range(2):
        dump = plain_dump(job, rank)
        for entry in dump["entries"]:
            place = {"name": EVIL, "filename": EVIL, "line": 3}
            entry.update(frames=[place], process_group=["0", EVIL])
            entry["profiling_name"] += EVIL
        path = node / "dumps" / f"nccl_trace_rank_{rank}"
        path.write_text(json.dumps(dump))
    stacks = STACKS.replace(SECRET, EVIL).replace("MainThread", EVIL)
    (node / "pyspy_7.txt").write_text(stacks)
    (node / "rank0\x1b[31m.log").write_text(f"{TRACE}{WATCHDOG}\n")
    head = f":job_id:01000000\n:actor_name:Act{EVIL}\n"
    (logs / WORKER).write_text(head + TRACE)
    (logs / "raylet.out").write_text(f"[E] A worker died {EVIL}\n")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "diagnose -",
        "diagnose - --full",
        "diagnose - --json",
        "analyze -",
        "analyze - --entries --stack-traces",
        "stacks -",
        "logs -",
        "logs - --actor *",
        "logs - --deaths",
        "logs - --errors",
        "phase -",
        "nsight reports -",
        pytest.param("nsight doctor -", marks=pytest.mark.process),
        "health - -",
    ],
)
def test_commands_steer_no_terminal(evil, line, capsys):
    """
    Nothing that a terminal would obey comes out of a bundle to the screen.
    """
    argv = [str(evil) if word == "-" else word for word in line.split()]

    with suppress(SystemExit):  # what it was told is not understood
        main(argv)
    said = "".join(capsys.readouterr())

    assert len(said) > 50
    assert [] == re.findall(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", said
    )


@pytest.fixture
def open_umask():
    """
    Let others enter and read what is made, unless it says otherwise.
    """
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """
    Return the modes of what others may enter or read below a folder.
    """
    modes = {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in folder.rglob("*")
        if not path.is_symlink()
    }
    return {name: oct(m) for name, m in modes.items() if m & 0o077}


@pytest.mark.process
def test_what_is_written_is_private(tmp_path, open_umask):
    """
    Whatever the umask: nobody else may enter or read what a snapshot holds.
    """
    dumps, tree = tmp_path / "dumps", tmp_path / "tree"
    make_dumps(dumps, SimulatedJob(2))
    tree.mkdir()

    taken = distdebug.snapshot(
        tree / "new" / "hang",
        pids=[os.getpid()],
        dump_dir=dumps,
        timeout_s=5.0,
    )

    assert {} == open_to_others(tree)
    assert [True] == [
        p.is_dir() for p in taken.folder.glob("*/flight_recorder")
    ]


def test_folders_are_private(tmp_path, open_umask):
    """
    Whatever the umask: what a copy of reports and a capture are in is private.
    """
    report = tmp_path / "worker_process_4711.nsys-rep"
    report.write_bytes(b"report")
    (tree := tmp_path / "tree").mkdir()

    make_folder(tree / "new" / "stacks", "n1")
    reports = distdebug.nsight.find_nsys_reports(report).reports
    distdebug.nsight.collect_nsys_reports(
        reports, tree / "more" / "reports", settle_s=0
    )

    assert {} == open_to_others(tree)
    assert 1 == len([*tree.rglob("*.nsys-rep")])

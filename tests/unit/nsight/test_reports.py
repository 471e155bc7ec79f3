"""
Which report belongs to which worker, and what becomes of it?
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time

from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from distdebug.errors import NsightError
from distdebug.nsight import (
    collect_nsys_reports,
    find_nsys_reports,
    summarize_report,
)


SESSION = "session_2026-11-20_01-02-03_000004_5"


def make_report(folder, name="policy_4711.nsys-rep", data=b"report", age=60):
    """
    Make a report that was written a while ago.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def names(folder):
    """
    What is in a folder.
    """
    return sorted(path.name for path in folder.iterdir())


def make_session(root, pid=4711):
    """
    Make a session of Ray with one report, and the logs of its worker.
    """
    logs = root / SESSION / "logs"
    path = make_report(logs / "nsight", f"policy_{pid}.nsys-rep")
    for end, text in (
        ("out", ":job_id:01\n:actor_name:Policy\n"),
        ("err", ""),
    ):
        name = f"worker-{'ab' * 28}-01000000-{pid}.{end}"
        (logs / name).write_text(text)
    return path


class TestNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("policy_4711.nsys-rep", ("policy", 4711, None, None)),
            (
                "dt_policy_worker_7.nsys-rep",
                ("dt_policy_worker", 7, None, None),
            ),
            ("policy_3:6_4711.nsys-rep", ("policy", 4711, "3:6", None)),
            ("policy_3-6_4711.nsys-rep", ("policy", 4711, "3:6", None)),
            ("policy_3_4711.nsys-rep", ("policy_3", 4711, None, None)),
            ("a_6-3_4711.nsys-rep", ("a_6-3", 4711, None, None)),
            ("worker_process_47.2.nsys-rep", ("worker_process", 47, None, 2)),
            ("policy_3-6_47.12.nsys-rep", ("policy", 47, "3:6", 12)),
            ("policy_4711.qdstrm", ("policy", 4711, None, None)),
            ("report1.nsys-rep", ("", None, None, None)),
            ("_4711.nsys-rep", ("", None, None, None)),
            ("empty.nsys-rep", ("", None, None, None)),
            (".policy_4711.nsys-rep", ("", None, None, None)),
            (".nsys-rep", ("", None, None, None)),
        ],
    )
    def test_parse(self, name, expected, tmp_path):
        """
        Names of reports of NeMo RL, of verl, of Ray, and ours are understood.
        """
        make_report(tmp_path, name)

        found = find_nsys_reports(tmp_path / name)

        ((got,), (record,)) = found, found.to_records()
        assert expected == (
            got.worker,
            got.pid,
            record["step_range"],
            got.part,
        )
        assert got.worker in str(found)


class TestFind:
    def test_session(self, tmp_path):
        """
        The logs of the same process name the actor.
        """
        path = make_session(tmp_path)

        (report,) = find_nsys_reports(tmp_path)

        logs = sorted(str(x) for x in path.parents[1].glob("worker-*"))
        modified = path.stat().st_mtime
        known = {k: v for k, v in report.to_dict().items() if v}
        assert {
            *(("path", str(path)), ("worker", "policy"), ("pid", 4711)),
            *(("session", SESSION), ("size", 6), ("modified", modified)),
            *(("actor", "Policy"), ("logs", tuple(logs))),
        } == {*(known | {"logs": report.logs}).items()}

    def test_nodes(self, tmp_path):
        """
        What was copied from several nodes keeps them apart.
        """
        for node in ("node-2", "node-1"):
            make_session(tmp_path / "123-logs" / "ray" / node)

        found = find_nsys_reports(tmp_path)

        assert ["node-1", "node-2"] == [report.node for report in found]
        assert 2 == len(found)

    def test_here(self, tmp_path, monkeypatch):
        """
        By default, the sessions of this node are looked through, once each.
        """
        path = make_session(tmp_path / "ray")
        (tmp_path / "ray" / "session_latest").symlink_to(SESSION)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))

        (report,) = (x for x in find_nsys_reports() if x.path == str(path))
        (again,) = find_nsys_reports(
            tmp_path / "ray", tmp_path / "ray" / "session_latest"
        )

        assert socket.gethostname() == report.node == again.node

    def test_what_else(self, tmp_path):
        """
        Links, pipes, what Ray makes to try, and other files are no reports.
        """
        path = make_report(tmp_path / "a", "report1.nsys-rep")
        make_report(tmp_path / "a", "raw_47.qdstrm")
        make_report(tmp_path / "a", "notes.txt")
        make_report(tmp_path / "a", "policy_4711.sqlite")
        (tmp_path / "a" / "link_1.nsys-rep").symlink_to(path)
        (tmp_path / "b").symlink_to(tmp_path / "a")
        os.link(path, tmp_path / "a" / "twin_1.nsys-rep")
        os.mkfifo(tmp_path / "pipe_1.nsys-rep")

        found = find_nsys_reports(tmp_path, path)

        assert [("", False), ("raw", True)] == [
            (report.worker, report.is_raw) for report in found
        ]
        assert "1 raw" in str(found)

    def test_unreadable(self, tmp_path, monkeypatch):
        """
        A folder that cannot be listed is named, and costs nothing else.
        """
        make_report(tmp_path / "a")
        (tmp_path / "b").mkdir()
        real = os.scandir

        def scandir(path):
            if Path(path).name == "b":
                raise PermissionError(13, "Permission denied")
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        found = find_nsys_reports(tmp_path)

        (missing,) = found.to_dict()["missing"]
        assert (1, "Permission denied", str(tmp_path / "b")) == (
            *(len(found), missing["reason"]),
            missing["source"],
        )

    def test_gone(self, tmp_path, monkeypatch):
        """
        A report that is removed meanwhile is not there.
        """
        path, real = make_report(tmp_path / "in"), os.scandir

        def scandir(folder):
            if Path(folder) != path.parent:
                return real(folder)
            with real(folder) as listed:
                entries = list(listed)
            path.unlink(missing_ok=True)
            return nullcontext(entries)

        monkeypatch.setattr(os, "scandir", scandir)

        found = find_nsys_reports(tmp_path)

        assert not path.exists()
        assert (0, "no report") == (len(found), str(found))

    def test_no_place(self, tmp_path):
        """
        A place that is not there is a mistake.
        """
        with pytest.raises(NsightError, match="there is no"):
            find_nsys_reports(tmp_path / "none")

    def test_hostile_logs(self, tmp_path):
        """
        The name of an actor is cleaned, and a pipe in place of a log not read.
        """
        path = make_session(tmp_path)
        logs = path.parents[1]
        out, err = sorted(logs.glob("worker-*"), reverse=True)
        out.write_bytes(b":actor_name:\x1b[31mEvil\x07\n")
        err.unlink()
        os.mkfifo(err)

        (report,) = find_nsys_reports(tmp_path)

        assert "Evil" == report.actor

    def test_no_logs(self, tmp_path, monkeypatch):
        """
        Logs that cannot be listed cost the name of the actor only.
        """

        def fail(path):
            raise PermissionError(path)

        make_session(tmp_path)
        monkeypatch.setattr(os, "listdir", fail)

        (report,) = find_nsys_reports(tmp_path)

        assert (None, ()) == (report.actor, report.logs)


class TestJoin:
    @pytest.fixture
    def join(self, tmp_path):
        """
        Finds the report of process 47 with what else is known of workers.
        """

        def find(*workers, node=""):
            make_report(tmp_path / "in" / node, "policy_47.nsys-rep")
            (report,) = find_nsys_reports(tmp_path / "in", workers=workers)
            return report

        return find

    @pytest.mark.parametrize(
        ("node", "workers", "rank"),
        [
            ("", [{}], 3),
            ("a", [{"host": "b"}], None),
            ("a", [{"host": "a.b.c"}], 3),
            ("a.b.c", [{"node": "a"}], 3),
            ("10.0.0.1", [{"ip": "10.0.0.2"}], None),
            ("b", [{"host": "a"}, {"host": "b", "rank": 4}], 4),
            ("", [{"host": "a"}, {"host": "b", "rank": 4}], None),
            ("", [{"pid": 48}], None),
            ("", [{"pid": None}, {"pid": "47"}], None),
        ],
        ids=[
            *("any", "other host", "long host", "short host"),
            *("other address", "two hosts", "two and no node", "other pid"),
            "no pid",
        ],
    )
    @pytest.mark.parametrize("kind", [dict, SimpleNamespace])
    def test_whose(self, node, workers, rank, kind, join):
        """
        Process and node show whose it is; where they do not, it stays open.
        """
        known = [kind(**{"pid": 47, "rank": 3} | x) for x in workers]

        assert rank == join(*known, node=node).rank

    @pytest.mark.parametrize(
        ("worker", "expected"),
        [
            (
                {"pid": 47, "host": "h", "logs": [Path("/a"), "/b", "/a"]},
                ("h", None, ("/a", "/b")),
            ),
            (
                {"pid": 47, "actor": "\x1b[1mX", "log": "/c"},
                ("", "X", ("/c",)),
            ),
            (
                SimpleNamespace(
                    pid=47,
                    actor_class="Y",
                    out=(SimpleNamespace(path=Path("/d")),),
                    err=(),
                ),
                ("", "Y", ("/d",)),
            ),
        ],
        ids=["host", "actor", "Ray"],
    )
    def test_what(self, worker, expected, join):
        """
        Actor, logs, and node are added to what is known.
        """
        got = join(worker)

        assert expected == (got.node, got.actor, got.logs)

    def test_known_already(self, tmp_path):
        """
        What others know of a worker is added to its own logs.
        """
        make_session(tmp_path)
        worker = {"pid": 4711, "logs": ["/b"]}

        (alone,) = find_nsys_reports(tmp_path)
        (joined,) = find_nsys_reports(tmp_path, workers=[worker])

        assert ("Policy", (*alone.logs, "/b")) == (joined.actor, joined.logs)


class TestCollect:
    @pytest.fixture
    def collect(self, tmp_path):
        """
        Copies all reports below ``in`` to ``out``.
        """
        return lambda **known: collect_nsys_reports(
            find_nsys_reports(tmp_path / "in"), tmp_path / "out", **known
        )

    def test_copy(self, tmp_path, collect):
        """
        Reports are copied once, by node and session, and found there again.
        """
        for node in ("a", "b"):
            make_session(tmp_path / "in" / node)

        first, second = collect(), collect()

        target = tmp_path / "out" / "a" / SESSION / "policy_4711.nsys-rep"
        assert str(target) == first.copied[0]
        assert ("2 copied, 0 there already", "0 copied, 2 there already") == (
            *(str(first), str(second)),
        )
        assert (b"report", [target.name]) == (
            *(target.read_bytes(), names(target.parent)),
        )
        assert [("a", SESSION), ("b", SESSION)] == [
            (r.node, r.session) for r in find_nsys_reports(tmp_path / "out")
        ]

    def test_grown(self, tmp_path, collect):
        """
        A report that changed since is copied again.
        """
        path = make_report(tmp_path / "in")
        collect()
        make_report(tmp_path / "in", data=b"more of it")

        done = collect()

        copy = tmp_path / "out" / path.name
        assert ((str(copy),), b"more of it") == (
            *(done.copied, copy.read_bytes()),
        )

    @pytest.mark.process
    def test_being_written(self, tmp_path, program, collect):
        """
        A report that is still being written, by nsys or its importer, is left
        and named.
        """
        fresh = make_report(tmp_path / "in", "fresh_1.nsys-rep", age=0)
        future = make_report(tmp_path / "in", "later_3.nsys-rep", age=-90)
        left = {str(fresh)}
        with ExitStack() as running:
            for name in ("nsys", "QdstrmImporter", "reader"):
                path = make_report(tmp_path / "in", f"{name}_2.nsys-rep")
                text = f"exec 3<'{path}'; echo; read x"
                process = subprocess.Popen(
                    [program(text, f"bin/{name}")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                running.enter_context(process).stdout.readline()
                left |= {str(path)} if name != "reader" else set()
            done = collect(settle_s=30)

        assert left == set(done.left)
        assert [future.name, path.name] == names(tmp_path / "out")
        assert f"still being written: {fresh}" in str(done)

    def test_changes_meanwhile(self, tmp_path, monkeypatch, collect):
        """
        What changes while it is copied does not appear.
        """
        path = make_report(tmp_path / "in")
        real = shutil.copyfileobj

        def copy(source, target, length):
            real(source, target, length)
            path.write_bytes(b"quite another")

        monkeypatch.setattr(shutil, "copyfileobj", copy)

        assert (str(path),) == collect().left
        assert [] == names(tmp_path / "out")

    def test_full(self, tmp_path, monkeypatch, collect):
        """
        A failure costs its own report only, and leaves nothing behind.
        """
        for name in ("a_1.nsys-rep", "b_2.nsys-rep"):
            make_report(tmp_path / "in", name)
        real, calls = shutil.copyfileobj, []

        def copy(source, target, length):
            calls.append(length)
            if len(calls) == 1:
                raise OSError(28, "No space left on device")
            real(source, target, length)

        monkeypatch.setattr(shutil, "copyfileobj", copy)

        done = collect()

        (missing,) = done.to_dict()["missing"]
        assert "No space left on device" == missing["reason"]
        assert ["b_2.nsys-rep"] == names(tmp_path / "out")
        assert "No space left" in str(done)

    def test_same_name(self, tmp_path, collect):
        """
        Two reports that would be one file are not mixed up.
        """
        for folder in ("logs", "nsight"):
            make_report(tmp_path / "in" / folder)

        done = collect()

        assert (1, 1) == (len(done.copied), len(done.missing))
        assert "another report" in done.missing[0].reason

    def test_outside(self, tmp_path):
        """
        No name of a node leads out of the folder.
        """
        make_report(tmp_path / "in")
        (found,) = find_nsys_reports(tmp_path / "in")
        report = attrs.evolve(found, node="../../x")

        done = collect_nsys_reports([report], tmp_path / "out")

        assert Path(done.copied[0]).is_relative_to(tmp_path / "out")
        assert ".." not in Path(done.copied[0]).parts

    def test_interrupted(self, tmp_path, collect):
        """
        What an interrupted copy left is no report, and is replaced.
        """
        path = make_report(tmp_path / "in")
        make_report(tmp_path / "out", f".{path.name}.part", b"rep")
        before = find_nsys_reports(tmp_path / "out")

        collect()

        assert [] == list(before)
        assert [path.name] == names(tmp_path / "out")


STATS = """case "$*" in
*--help-reports*) echo "  @NVTX@ -- NVTX Range Summary";;
*)
while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done
[ -f "$1" ] || exit 3
cat >"${out}_@NVTX@.csv" <<'X'
Time (%),Total Time (ns),Instances,Avg (ns),Style,Range
33.3,100000000,1,1,PushPop,small
66.6,200000000,2,1,PushPop,large
66.6,none,2,1,PushPop,bad
66.6,1e999,2,1,PushPop,endless
66.6,NaN,2,1,PushPop,never
X
printf "9,9,1,1,P,%0200000d\\n" 0 >>"${out}_@NVTX@.csv"
@END@
;;
esac
"""


@pytest.mark.process
class TestSummary:
    @pytest.fixture
    def nsys(self, program):
        """
        Makes a program that answers as ``nsys stats`` does.
        """

        def make(name="nvtx_sum", end=""):
            text = STATS.replace("@NVTX@", name).replace("@END@", end)
            return program(text)

        return make

    @pytest.mark.parametrize("name", ["nvtx_sum", "nvtxsum"])
    def test_tables(self, name, tmp_path, nsys):
        """
        Old and new versions name what took longest, by their own names; a
        row without an end, or with an endless name, costs only itself.
        """
        path = make_report(tmp_path)

        got = summarize_report(path, nsys=nsys(name))

        assert [("large", 0.2, 2), ("small", 0.1, 1)] == [
            attrs.astuple(row) for row in got.ranges
        ]
        assert ("", True) == (got.problem, "large" in str(got))
        assert 2 == len(json.loads(json.dumps(got.to_dict()))["ranges"])
        assert {"bin", path.name} == set(names(tmp_path))

    @pytest.mark.parametrize(
        ("end", "said"),
        [
            ("echo it is broken; exit 4", "it is broken"),
            ("exit 4", "it said nothing"),
            (r"printf 'a\n\033[1mb\n \n'; exit 1", "status 1: b"),
            ("sleep 60", "not done in time"),
        ],
        ids=["fails", "silent", "last line", "hangs"],
    )
    def test_trouble(self, end, said, tmp_path, nsys):
        """
        What goes wrong is said by the last line that says anything.
        """
        path, limit = make_report(tmp_path), 0.3 if "sleep" in end else 60.0
        tool = nsys(end=f'rm "${{out}}"_*; {end}')

        got = summarize_report(path, timeout_s=limit, nsys=tool)

        assert said in got.problem
        assert said in str(got)

    def test_not_there(self, tmp_path, nsys, program):
        """
        Without nsys, without the report, or with an nsys that cannot be
        started, there is no summary, and no exception.
        """
        path, tool = make_report(tmp_path), nsys()
        broken = program("", "nsys", shell="/no/such/shell")

        no_nsys = summarize_report(path, nsys=str(tmp_path / "none"))
        no_file = summarize_report(tmp_path / "none", nsys=tool)
        no_shell = summarize_report(path, nsys=broken)

        assert "nsys is not installed here" == no_nsys.problem
        assert "there is no such file" == no_file.problem
        assert "No such file" in no_shell.problem

    def test_group(self, tmp_path, nsys):
        """
        What nsys leaves running ends with it.
        """
        path = make_report(tmp_path)
        number = tmp_path / "number"

        summarize_report(path, nsys=nsys(end=f"sleep 60 & echo $! >{number}"))

        stat = Path("/proc", number.read_text().strip(), "stat")
        deadline = time.monotonic() + 10
        while stat.exists() and ") Z" not in stat.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)

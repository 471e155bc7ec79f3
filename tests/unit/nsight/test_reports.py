"""
Which report belongs to which worker, and what becomes of it?
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time

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
from distdebug.nsight.options.steps import StepRange
from distdebug.nsight.reports import collect, find, places
from distdebug.nsight.reports.join import join_workers
from distdebug.nsight.reports.model import NsysReport
from distdebug.nsight.reports.names import parse_report_name
from distdebug.nsight.reports.tool import Ended, run_in_group
from distdebug.nsight.reports.writing import being_written


SESSION = "session_2026-11-20_01-02-03_000004_5"


@pytest.fixture(autouse=True)
def no_sessions(monkeypatch):
    """
    No Ray keeps anything on this node.
    """
    monkeypatch.setattr(find, "temporary_folders", tuple)


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
            ("empty.nsys-rep", None),
            (".policy_4711.nsys-rep", None),
            (".nsys-rep", None),
            ("policy_4711.sqlite", None),
        ],
    )
    def test_parse(self, name, expected):
        """
        Names of NeMo RL, of verl, of Ray, and ours tell what they hold.
        """
        got = parse_report_name(name)

        if expected is None:
            assert got is None
            return
        steps = None if got.step_range is None else str(got.step_range)
        assert expected == (got.worker, got.pid, steps, got.part)


class TestFind:
    def test_session(self, tmp_path):
        """
        The logs of the same process tell the actor.
        """
        path = make_session(tmp_path)

        (report,) = find_nsys_reports(tmp_path)

        logs = sorted(str(x) for x in path.parents[1].glob("worker-*"))
        assert (
            NsysReport(
                path=str(path),
                worker="policy",
                pid=4711,
                session=SESSION,
                size=6,
                modified=path.stat().st_mtime,
                actor="Policy",
                logs=tuple(logs),
            )
            == report
        )

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
        make_session(tmp_path / "ray")
        (tmp_path / "ray" / "session_latest").symlink_to(SESSION)
        folders = places.temporary_folders({"RAY_TMPDIR": str(tmp_path)})
        mine = tmp_path / "ray" / SESSION / "logs" / "nsight"
        monkeypatch.setattr(find, "temporary_folders", lambda: (mine,))

        (report,) = find_nsys_reports()
        (again,) = find_nsys_reports(
            tmp_path / "ray", tmp_path / "ray" / "session_latest"
        )

        assert mine in folders
        assert socket.gethostname() == report.node == again.node

    def test_what_else(self, tmp_path):
        """
        Links, pipes, what Ray makes to try, and other files are no reports.
        """
        path = make_report(tmp_path / "a", "report1.nsys-rep")
        make_report(tmp_path / "a", "raw_47.qdstrm")
        make_report(tmp_path / "a", "notes.txt")
        (tmp_path / "a" / "link_1.nsys-rep").symlink_to(path)
        (tmp_path / "b").symlink_to(tmp_path / "a")
        os.link(path, tmp_path / "a" / "twin_1.nsys-rep")
        os.mkfifo(tmp_path / "pipe_1.nsys-rep")

        found = find_nsys_reports(tmp_path, path)

        assert [("", False), ("raw", True)] == [
            (report.worker, report.is_raw) for report in found
        ]
        assert "1 raw" in str(found)

    def test_file(self, tmp_path):
        """
        One report can be named.
        """
        path = make_report(tmp_path, "policy_3-6_4711.2.nsys-rep")

        found = find_nsys_reports(path)

        (report,) = found
        assert (StepRange(start=3, stop=6), 2) == (
            report.step_range,
            report.part,
        )
        assert "3:6" == found.to_records()[0]["step_range"]
        assert "policy" in str(found)

    def test_unreadable(self, tmp_path, monkeypatch):
        """
        A folder that cannot be listed is told, and costs nothing else.
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

        assert 1 == len(found)
        (missing,) = found.to_dict()["missing"]
        assert ("Permission denied", str(tmp_path / "b")) == (
            missing["reason"],
            missing["source"],
        )

    def test_gone(self, tmp_path, monkeypatch):
        """
        A report that is removed meanwhile is not there.
        """

        class Entry:
            name = "policy_1.nsys-rep"

            def is_dir(self, *, follow_symlinks):
                return False

            def stat(self, *, follow_symlinks):
                raise FileNotFoundError(self.name)

        class Listed(list):
            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

        monkeypatch.setattr(os, "scandir", lambda path: Listed([Entry()]))

        assert 0 == len(find_nsys_reports(tmp_path))
        assert "no report" == str(find_nsys_reports(tmp_path))

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
    def report(self, **more):
        """
        A report of process 47.
        """
        return NsysReport(path="/x", worker="policy", pid=47, **more)

    @pytest.mark.parametrize(
        ("node", "workers", "rank"),
        [
            ("", [{"pid": 47, "rank": 3}], 3),
            ("", [SimpleNamespace(pid=47, rank=3, host="a")], 3),
            ("a", [{"pid": 47, "rank": 3, "host": "b"}], None),
            ("a", [{"pid": 47, "rank": 3, "host": "a.b.c"}], 3),
            ("a.b.c", [{"pid": 47, "rank": 3, "node": "a"}], 3),
            ("10.0.0.1", [{"pid": 47, "rank": 3, "ip": "10.0.0.2"}], None),
            (
                "b",
                [
                    {"pid": 47, "rank": 3, "host": "a"},
                    {"pid": 47, "rank": 4, "host": "b"},
                ],
                4,
            ),
            (
                "",
                [
                    {"pid": 47, "rank": 3, "host": "a"},
                    {"pid": 47, "rank": 4, "host": "b"},
                ],
                None,
            ),
            ("", [{"pid": 48, "rank": 3}], None),
            ("", [{"rank": 3}, {"pid": "47", "rank": 3}], None),
        ],
        ids=[
            *("mapping", "object", "other host", "long host", "short host"),
            *("other address", "two hosts", "two and no node", "other pid"),
            "no pid",
        ],
    )
    def test_whose(self, node, workers, rank):
        """
        Process and node tell whose it is; where they do not, nobody's.
        """
        (got,) = join_workers([self.report(node=node)], workers)

        assert rank == got.rank

    def test_what(self):
        """
        Actor, logs, and node are added to what is known.
        """
        report = self.report(actor="Policy", logs=("/a",))
        worker = {"pid": 47, "host": "h", "logs": [Path("/a"), "/b"]}

        (got,) = join_workers([report], [worker])
        (named,) = join_workers(
            [report], [{"pid": 47, "actor": "\x1b[1mX", "log": "/c"}]
        )

        part = SimpleNamespace(path=Path("/d"))
        (ray,) = join_workers(
            [report],
            [SimpleNamespace(pid=47, actor_class="Y", out=(part,), err=())],
        )

        assert attrs.evolve(report, node="h", logs=("/a", "/b")) == got
        assert ("Y", ("/a", "/d")) == (ray.actor, ray.logs)
        assert ("X", ("/a", "/c")) == (named.actor, named.logs)


class TestCollect:
    def test_copy(self, tmp_path):
        """
        Reports are copied once, by node and session, and found there again.
        """
        source = tmp_path / "ray"
        for node in ("a", "b"):
            make_session(source / node)
        found = find_nsys_reports(source)

        first = collect_nsys_reports(found, tmp_path / "out")
        second = collect_nsys_reports(found, tmp_path / "out")

        target = tmp_path / "out" / "a" / SESSION / "policy_4711.nsys-rep"
        assert str(target) == first.copied[0]
        assert (2, 0, 0, 2) == (
            *(len(first.copied), len(first.present)),
            *(len(second.copied), len(second.present)),
        )
        assert b"report" == target.read_bytes()
        assert [target.name] == names(target.parent)
        again = find_nsys_reports(tmp_path / "out")
        assert [(r.node, r.session) for r in found] == [
            (r.node, r.session) for r in again
        ]
        assert "0 copied, 2 there already" == str(second)

    def test_grown(self, tmp_path):
        """
        A report that changed since is copied again.
        """
        path = make_report(tmp_path / "in")
        out = tmp_path / "out"
        collect_nsys_reports(find_nsys_reports(tmp_path / "in"), out)
        make_report(tmp_path / "in", data=b"more of it")

        done = collect_nsys_reports(find_nsys_reports(tmp_path / "in"), out)

        assert (str(out / path.name),) == done.copied
        assert b"more of it" == (out / path.name).read_bytes()

    def test_being_written(self, tmp_path, monkeypatch):
        """
        A report that is still being written is told and left.
        """
        fresh = make_report(tmp_path / "in", "fresh_1.nsys-rep", age=0)
        opened = make_report(tmp_path / "in", "open_2.nsys-rep")
        future = make_report(tmp_path / "in", "later_3.nsys-rep", age=-90)
        monkeypatch.setattr(
            collect, "being_written", lambda: frozenset({str(opened)})
        )

        done = collect_nsys_reports(
            find_nsys_reports(tmp_path / "in"), tmp_path / "out", settle_s=30
        )

        assert {str(fresh), str(opened)} == set(done.left)
        assert [future.name] == names(tmp_path / "out")
        assert f"still being written: {fresh}" in str(done)

    def test_changes_meanwhile(self, tmp_path, monkeypatch):
        """
        What changes while it is copied does not appear.
        """
        path = make_report(tmp_path / "in")
        real = shutil.copyfileobj

        def copy(source, target, length):
            real(source, target, length)
            path.write_bytes(b"quite another")

        monkeypatch.setattr(shutil, "copyfileobj", copy)
        done = collect_nsys_reports(
            find_nsys_reports(tmp_path / "in"), tmp_path / "out"
        )

        assert (str(path),) == done.left
        assert [] == names(tmp_path / "out")

    def test_full(self, tmp_path, monkeypatch):
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
        done = collect_nsys_reports(
            find_nsys_reports(tmp_path / "in"), tmp_path / "out"
        )

        (missing,) = done.to_dict()["missing"]
        assert "No space left on device" == missing["reason"]
        assert ["b_2.nsys-rep"] == names(tmp_path / "out")
        assert "No space left" in str(done)

    def test_same_name(self, tmp_path):
        """
        Two reports that would be one file are not mixed up.
        """
        for folder in ("logs", "nsight"):
            make_report(tmp_path / "in" / folder)
        found = find_nsys_reports(tmp_path / "in")

        done = collect_nsys_reports(found, tmp_path / "out")

        assert (1, 1) == (len(done.copied), len(done.missing))
        assert "another report" in done.missing[0].reason

    def test_outside(self, tmp_path):
        """
        No name of a node leads out of the folder.
        """
        path = make_report(tmp_path / "in")
        report = NsysReport(path=str(path), worker="", pid=1, node="../../x")

        done = collect_nsys_reports([report], tmp_path / "out")

        assert Path(done.copied[0]).is_relative_to(tmp_path / "out")
        assert ".." not in Path(done.copied[0]).parts

    def test_interrupted(self, tmp_path):
        """
        What an interrupted copy left is no report, and is replaced.
        """
        path = make_report(tmp_path / "in")
        out = tmp_path / "out"
        make_report(out, f".{path.name}.part", b"rep")
        assert 0 == sum(bool(r.worker) for r in find_nsys_reports(out))

        collect_nsys_reports(find_nsys_reports(tmp_path / "in"), out)

        assert [path.name] == names(out)

    def test_writers(self, fake_proc):
        """
        What nsys and its importer have open is being written.
        """
        fake_proc.add(47, "/o/nsys", "profile")
        fake_proc.add(48, "/o/QdstrmImporter")
        fake_proc.add(49, "/bin/cat")
        for pid, name in ((47, "nsys"), (48, "QdstrmImporter"), (49, "cat")):
            folder = fake_proc.folder(pid)
            (folder / "comm").write_text(f"{name}\n")
            (folder / "fd" / "5").symlink_to(f"/r/{pid}.nsys-rep")

        got = being_written(fake_proc.root)

        assert {"/r/47.nsys-rep", "/r/48.nsys-rep"} == got


STATS = """#!/bin/sh
case "$*" in
*--help-reports*) echo "  @NVTX@ -- NVTX Range Summary";;
*)
while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done
[ -f "$1" ] || exit 3
cat >"${out}_@NVTX@.csv" <<'X'
Time (%),Total Time (ns),Instances,Avg (ns),Style,Range
33.3,100000000,1,1,PushPop,small
66.6,200000000,2,1,PushPop,large
66.6,none,2,1,PushPop,bad
X
@END@
;;
esac
"""


class TestSummary:
    def nsys(self, folder, name="nvtx_sum", end=""):
        """
        A program that tells as ``nsys stats`` does.
        """
        folder.mkdir(exist_ok=True)
        program = folder / "nsys"
        program.write_text(STATS.replace("@NVTX@", name).replace("@END@", end))
        program.chmod(0o755)
        return str(program)

    @pytest.mark.parametrize("name", ["nvtx_sum", "nvtxsum"])
    def test_tables(self, name, tmp_path):
        """
        Old and new versions tell what took longest, by their own names.
        """
        path = make_report(tmp_path)

        got = summarize_report(path, nsys=self.nsys(tmp_path / "bin", name))

        assert [("large", 0.2, 2), ("small", 0.1, 1)] == [
            attrs.astuple(row) for row in got.ranges
        ]
        assert "" == got.problem
        assert "large" in str(got)
        assert 2 == len(json.loads(json.dumps(got.to_dict()))["ranges"])
        assert {"bin", path.name} == set(names(tmp_path))

    def test_endless_name(self, tmp_path):
        """
        A range with a name of 200,000 characters costs only itself.
        """
        path = make_report(tmp_path)
        end = 'printf "9,9,1,1,P,%0200000d\\n" 0 >>"${out}_nvtx_sum.csv"'

        got = summarize_report(path, nsys=self.nsys(tmp_path / "bin", end=end))

        assert ["large", "small"] == [row.name for row in got.ranges]
        assert "" == got.problem

    @pytest.mark.parametrize(
        ("end", "said"),
        [
            ('rm "${out}"_*; echo it is broken; exit 4', "it is broken"),
            ('rm "${out}"_*; exit 4', "it said nothing"),
            ('rm "${out}"_*; sleep 60', "not done in time"),
        ],
        ids=["fails", "silent", "hangs"],
    )
    def test_trouble(self, end, said, tmp_path):
        """
        What goes wrong is said, and nothing is left behind.
        """
        path = make_report(tmp_path)
        nsys = self.nsys(tmp_path / "bin", end=end)

        got = summarize_report(path, timeout_s=1.0, nsys=nsys)

        assert said in got.problem
        assert said in str(got)

    def test_not_there(self, tmp_path):
        """
        Without nsys, or without the report, there is none.
        """
        path = make_report(tmp_path)

        no_nsys = summarize_report(path, nsys=str(tmp_path / "nsys"))
        nsys = self.nsys(tmp_path / "bin")
        no_file = summarize_report(tmp_path / "none", nsys=nsys)

        assert "nsys is not installed here" == no_nsys.problem
        assert "there is no such file" == no_file.problem

    def test_not_started(self, tmp_path):
        """
        An nsys that cannot be started is a problem, and no exception.
        """
        path = make_report(tmp_path)
        program = tmp_path / "nsys"
        program.write_text("#!/no/such/shell\n")
        program.chmod(0o755)

        got = summarize_report(path, nsys=str(program))

        assert "No such file" in got.problem

    def test_group(self, tmp_path):
        """
        What a command leaves running ends with it.
        """
        done = run_in_group(
            ["sh", "-c", "sleep 60 & echo $!; exit 3"], tmp_path, 30
        )

        assert 3 == done.status
        deadline = time.monotonic() + 10
        stat = Path("/proc", done.output.strip(), "stat")
        while time.monotonic() < deadline and stat.exists():
            if ") Z" in stat.read_text():
                break
            time.sleep(0.01)
        else:
            assert not stat.exists()

    def test_why(self):
        """
        The last line that says anything is the reason.
        """
        assert "status 1: b" in Ended(1, "a\n\x1b[1mb\n \n").why

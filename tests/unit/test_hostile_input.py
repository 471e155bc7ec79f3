"""
What fuzzing found: inputs that broke a parser once do so no more.
"""

from __future__ import annotations

import json
import re

import pytest

from distdebug.debugger import connect
from distdebug.errors import BundleError, MeshError, PatternError, RulesError
from distdebug.flight_recorder import DumpFile
from distdebug.flight_recorder.reading.assemble import Tables, UnusableError
from distdebug.flight_recorder.reading.decode import pack_message
from distdebug.flight_recorder.reading.files import FileName
from distdebug.logs import (
    detect_phase,
    load_framework_rules,
    load_rules,
    read_collective_logs,
    scan_logs,
)
from distdebug.logs.lines import open_log
from distdebug.nodes import NodeStatus
from distdebug.nodes.results import completed_from_line
from distdebug.nsight import match_worker
from distdebug.processes import as_patterns, read_environ, whole_number
from distdebug.ranks import Mesh, parse_ranks
from distdebug.ray import find_deaths, open_ray_session
from distdebug.snapshots import parse_manifest
from distdebug.stacks import explain_stacks


DEEP = f"{'.a' * 1500} = 1"


def load_stack_rules(path):
    """
    Load rules for stacks.
    """
    explain_stacks((), rules=[path])


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("12", 12),
            (b"13", 13),
            ("²", None),
            ("٣", None),
            ("-1", None),
            ("", None),
            (None, None),
            ("9" * 5000, None),
        ],
    )
    def test_whole_number(self, text, expected):
        """
        Only the digits of ASCII are one, and not thousands of them.
        """
        assert expected == whole_number(text)

    def test_maps(self, tmp_path):
        """
        What is mapped begins at an address.
        """
        folder = tmp_path / "7"
        folder.mkdir()
        line = "xyz r-xp 00000000 08:01 7 /lib/libc.so.6\n"
        (folder / "maps").write_text(line)
        (folder / "environ").write_text("A=b\0")

        assert ({"A": "b"}, "environ") == read_environ(7, str(tmp_path))


class TestAnswers:
    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", '"x"'])
    def test_rank(self, number, socket_folder, answering_rank):
        """
        A rank may call any number its own, and answer anything where there
        should be lists.
        """
        rank = answering_rank(socket_folder, 3)
        process = json.loads(f'{{"rank": 3, "pid": {number}}}')
        lists = {"stops": 7, "threads": [{"thread": "t", "frames": 7}]}
        rank.answer = lambda request: {"process": process, **lists}

        with connect() as client:
            (listed,) = client.list()
            (stack,) = client.stack("ranks(3)").outputs

        assert (3, 0, ()) == (listed.rank, listed.pid, listed.sessions)
        assert stack.text.startswith("t:")

    def test_status(self):
        """
        No command ends with an infinite status.
        """
        line = '{"status": 1e400, "output": "", "complaint": ""}'

        ended = completed_from_line(line)

        assert NodeStatus.FAILED == ended.failure.status

    def test_child(self):
        """
        What a child says that a file took over is shown without its controls.
        """
        message = pack_message(
            {"failure": "broken", "reason": "a\x1b[2J\x85b"}
        )
        name = FileName(0, "", "rank_", is_dump_like=True)

        with pytest.raises(UnusableError) as caught:
            Tables().add(DumpFile("x", name, None, 0.0), message)

        assert str(caught.value).isprintable()

    def test_event(self, tmp_path):
        """
        A node may die at a time that is none.
        """
        event = {
            "label": "RAY_WORKER_FAILURE",
            "message": "Worker exit type: SYSTEM_ERROR",
            "custom_fields": {"worker_id": "a" * 56},
            "timestamp": 10**400,
        }
        session = tmp_path / "session_2026-11-22_03-17-53_779780_27567"
        path = session / "logs" / "events" / "event_RAYLET.log"
        path.parent.mkdir(parents=True)
        (session / "logs" / "raylet.out").touch()
        path.write_text("\n" * 1000 + json.dumps(event) + "\n")

        (death,) = find_deaths(open_ray_session(session)).deaths

        assert death.time is None
        assert "line 1001" == death.evidence[0].location

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
    def test_manifest(self, number):
        """
        A snapshot was taken at some time.
        """
        data = {"tool": "distdebug", "schema": 1, "version": "1", "job": ""}
        data |= {"created": json.loads(number), "nodes": [], "skipped": []}

        with pytest.raises(BundleError, match="no number"):
            parse_manifest(data)


class TestPatterns:
    @pytest.mark.parametrize(
        ("pattern", "said"),
        [
            ("(a+)+$", "repeat less"),
            ("x" * 3000, "repeat less"),
            ("a*" * 20, "repeat less"),
            ("(?\x01", "unknown extension"),
            ("(?<=a+)b", "look-behind"),
        ],
        ids=["nested", "long", "many", "controls", "look-behind"],
    )
    def test_refused(self, pattern, said):
        """
        A pattern that may take for ever on a command line, or is none, is
        refused, without its controls.
        """
        with pytest.raises(PatternError) as caught:
            as_patterns([pattern])

        text = f"{caught.value} {caught.value.remedy}"
        assert said in text
        assert str(caught.value).replace("\n", "").isprintable()

    def test_wildcards(self):
        """
        A wildcard that would take long to read matches nothing.
        """
        assert match_worker("x", "[" * 20_000) is None
        assert "*" == match_worker("x", ["[" * 20_000, "*"])

    @pytest.mark.parametrize(
        ("text", "load", "said"),
        [
            ("a = ", load_rules, "Invalid value"),
            ("a = '\xff'", load_rules, "utf-8"),
            ("#" * ((1 << 20) + 1), load_rules, "larger"),
            ("a." * 100_000 + "b = 1", load_rules, "line is longer"),
            ("a = " + "[" * 3000, load_rules, "nested"),
            (f"[[rule]]\nname{DEEP}", load_rules, "rule"),
            (f"[[rule]]\nname{DEEP}", load_stack_rules, "rule"),
            (f"[cause.io_wait]\ndoing{DEEP}", load_stack_rules, "doing"),
            (f"[framework]\nname{DEEP}", load_framework_rules, "framework"),
        ],
        ids=[
            *("no value", "no text", "large", "long key", "deep"),
            *("deep log rule", "deep stack rule", "deep cause", "deep book"),
        ],
    )
    def test_rules(self, text, load, said, tmp_path):
        """
        A file of rules that is no TOML, or would take long to read or to be
        shown, is refused.
        """
        path = tmp_path / "rules.toml"
        path.write_text(text, "latin-1")

        with pytest.raises(RulesError, match=said):
            load(path)

    def test_no_rules(self, tmp_path):
        """
        A file of rules that is not there is named.
        """
        with pytest.raises(RulesError, match=r"none.toml.*No such file"):
            load_rules(tmp_path / "none.toml")


class TestShown:
    def test_mesh(self):
        """
        Names of dimensions, out of side-cars, do not reach a terminal raw.
        """
        mesh = Mesh({"d\x1b[31mp": 4})

        with pytest.raises(MeshError) as caught:
            Mesh({"t\x07p": 0})

        assert "dp=4" == str(mesh)
        assert str(caught.value).isprintable()

    def test_selection(self):
        """
        A selection of several lines is shown in one.
        """
        selection = parse_ranks("ranks(1,\r\n\t3)")

        assert "ranks(1,   3)" == str(selection)
        assert selection == parse_ranks(str(selection))


class TestLogs:
    def test_wide(self, tmp_path):
        """
        A log in UTF-16 is reported as such, rather than found to be empty.
        """
        path = tmp_path / "job.log"
        path.write_bytes(
            "CUDA error: an illegal memory access".encode("utf-16")
        )

        with pytest.raises(ValueError, match="UTF-16"), open_log(path):
            pass
        report = scan_logs(path)

        assert ["UTF-16"] == re.findall(r"in (UTF-\S+):", str(report.missing))
        assert read_collective_logs(path).missing

    def test_headers(self, tmp_path):
        """
        A flood of headers of tracebacks hides none that goes on.
        """
        head = "Traceback (most recent call last):\n"
        rest = '  File "a.py", line 3, in f\nValueError: no\n'
        path = tmp_path / "job.log"
        path.write_text(head * 40 + rest)

        report = scan_logs(path)

        (group,) = report.tracebacks
        assert "ValueError" in str(group)

    def test_many_bars(self):
        """
        What is known of bars by their names is not kept for ever.
        """
        bars = [f"bar {n}: 10%|#  | 1/10 [00:01<00:09]" for n in range(1500)]
        last = "Loading safetensors checkpoint shards:  50% Completed | 1/2 "

        report = detect_phase([*bars, f"{last}[00:01<00:01,  1.00s/it]"])

        assert report.phases

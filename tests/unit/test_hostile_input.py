"""
What fuzzing found: inputs that broke a parser once do so no more.
"""

from __future__ import annotations

import json
import re

import pytest

from distdebug._lines import open_log
from distdebug.bundle import parse_manifest
from distdebug.debugger.client.reading import process_of, read_output
from distdebug.errors import BundleError, MeshError, PatternError, RulesError
from distdebug.flight_recorder import DumpFile
from distdebug.flight_recorder.reading.assemble import Tables, UnusableError
from distdebug.flight_recorder.reading.decode import pack
from distdebug.flight_recorder.reading.files import FileName
from distdebug.health.memory.read import read_memory
from distdebug.health.network.infiniband import read_ib_ports
from distdebug.health.pressure import read_pressure
from distdebug.logscan import load_rules as load_log_rules
from distdebug.logscan import read_collective_logs, scan_logs
from distdebug.nodes.model import NodeStatus
from distdebug.nodes.wire import ended_from_line
from distdebug.nsight import match_worker
from distdebug.nsight.reports.summarize import _rows
from distdebug.processes import compile_patterns, whole_number
from distdebug.processes.proc.maps import read_maps
from distdebug.ranks import Mesh, parse_ranks
from distdebug.raylogs.deaths.events import read_events
from distdebug.stacks.rules import load_rules as load_stack_rules
from distdebug.startup import detect_phase, load_book


def write(folder, **files):
    """
    Write files, whose names have ``__`` for slashes.
    """
    for name, text in files.items():
        path = folder.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


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

    def test_memory(self, tmp_path):
        """
        A file system that plays the kernel may tell anything of memory.
        """
        text = f"MemTotal: ² kB\nMemAvailable: {'9' * 5000} kB\nSwapTotal:\n"
        write(tmp_path, meminfo=text)

        memory = read_memory((7,), proc=str(tmp_path))

        assert memory.total is None
        assert memory.available is None

    def test_pressure(self, tmp_path):
        """
        And of the load.
        """
        text = "nr_periods 5\nnr_throttled x\n"
        write(tmp_path, loadavg="x 1 2", cgroup__cpu=text)
        (tmp_path / "cgroup" / "cpu").rename(tmp_path / "cgroup" / "cpu.stat")
        places = {"proc": str(tmp_path), "cgroup": str(tmp_path / "cgroup")}

        pressure = read_pressure(**places)

        assert pressure.load is None
        assert pressure.throttled is None

    def test_ports(self, tmp_path):
        """
        A port has a number.
        """
        write(tmp_path, **{"mlx5:0__ports__²__state": "4: ACTIVE"})

        assert () == read_ib_ports(folder=str(tmp_path))

    def test_maps(self, tmp_path):
        """
        What is mapped begins at an address.
        """
        line = "xyz r-xp 00000000 08:01 7 /lib/libc.so.6\n"
        write(tmp_path, **{"7__maps": line})

        assert () == read_maps(7, str(tmp_path)).images


class TestAnswers:
    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", '"x"'])
    def test_numbers(self, number):
        """
        A rank may call any number its own.
        """
        answer = json.loads(f'{{"process": {{"rank": 3, "pid": {number}}}}}')

        process = process_of("socket", answer)

        assert 3 == process.rank
        assert 0 == process.pid

    def test_lists(self):
        """
        Where there should be lists, there may be anything.
        """
        answer = {"stops": 7, "threads": [{"thread": "t", "frames": 7}]}

        process = process_of("socket", answer)

        assert () == process.sessions
        assert read_output(process, answer).text.startswith("t:")

    def test_status(self):
        """
        No command ends with an infinite status.
        """
        line = '{"status": 1e400, "output": "", "complaint": ""}'

        ended = ended_from_line(line)

        assert NodeStatus.FAILED == ended.trouble.status

    def test_child(self):
        """
        What a child says that a file took over is shown without its controls.
        """
        message = pack({"failure": "broken", "reason": "a\x1b[2J\x85b"})
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
        path = tmp_path / "event_RAYLET.log"
        path.write_text("\n" * 1000 + json.dumps(event) + "\n")

        (note,) = read_events(path)

        assert note.time is None
        assert "line 1001" == note.seen.location

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
    def test_manifest(self, number):
        """
        A snapshot was taken at some time.
        """
        data = {"tool": "distdebug", "schema": 1, "version": "1", "job": ""}
        data |= {"created": json.loads(number), "nodes": [], "skipped": []}

        with pytest.raises(BundleError, match="no number"):
            parse_manifest(data)

    def test_table(self, tmp_path):
        """
        No range takes for ever, and JSON would not know how long that is.
        """
        head = "Total Time (ns),Instances,Range\n"
        path = tmp_path / "out_nvtx_sum.csv"
        path.write_text(f"{head}1e999,1,a\nNaN,1,b\n1e9,1,c\n")

        (row,) = _rows([path])

        assert "c" == row.name


class TestPatterns:
    @pytest.mark.parametrize("pattern", ["(a+)+$", "x" * 3000, "a*" * 20])
    def test_endless(self, pattern):
        """
        A pattern that may take for ever on a command line is refused.
        """
        with pytest.raises(PatternError) as caught:
            compile_patterns([pattern])

        assert "repeat less" in caught.value.remedy

    def test_quoted(self):
        """
        What is wrong with a pattern is told without its controls.
        """
        with pytest.raises(PatternError) as caught:
            compile_patterns(["(?\x01"])

        assert str(caught.value).isprintable()

    def test_look_behind(self):
        """
        Nor may one look behind for any distance.
        """
        with pytest.raises(PatternError, match="look-behind"):
            compile_patterns(["(?<=a+)b"])

    def test_wildcards(self):
        """
        A wildcard that would take long to read matches nothing.
        """
        assert match_worker("x", "[" * 20_000) is None
        assert "*" == match_worker("x", ["[" * 20_000, "*"])

    @pytest.mark.parametrize(
        "load",
        [load_log_rules, load_stack_rules, load_book],
        ids=["log", "stack", "book"],
    )
    def test_deep_values(self, load, tmp_path):
        """
        A value that is too deep to be shown is refused.
        """
        path = tmp_path / "rules.toml"
        table = "framework" if load is load_book else "rule"
        head = f"[{table}]" if load is load_book else f"[[{table}]]"
        path.write_text(f"{head}\nname{'.a' * 1500} = 1\n")

        with pytest.raises(RulesError):
            load(path)

    def test_deep_cause(self, tmp_path):
        """
        So is one of a cause.
        """
        path = tmp_path / "rules.toml"
        path.write_text(f"[cause.io_wait]\ndoing{'.a' * 1500} = 1\n")

        with pytest.raises(RulesError):
            load_stack_rules(path)


class TestShown:
    def test_mesh(self):
        """
        Names of dimensions, which side-cars tell, do not reach a terminal raw.
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
        A log in UTF-16 is told as such, rather than found to be empty.
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

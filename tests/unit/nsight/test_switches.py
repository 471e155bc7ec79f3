"""
Which options does nsys take?
"""

from __future__ import annotations

import pytest

from distdebug.errors import NsightError
from distdebug.nsight.installed import (
    find_nsys,
    known_switches,
    nsys_version,
    read_switches,
)
from distdebug.nsight.options.switches import check_switches, extra_switches


HELP = """
usage: nsys profile [<args>] [application] [<application args>]

\t-c, --capture-range=

\t   Possible values are none, cudaProfilerApi, nvtx, hotkey.
\t   When '-c cudaProfilerApi' is used, profiling will start only then.

\t--capture-range-end=

\t   Possible values are 'none', 'stop', 'repeat[:N]' or 'repeat-shutdown:N'.

\t--cudabacktrace=

\t   Possible values are 'all','none','kernel'.
\t   Values may be combined using ','.
\t   Each value except 'none' may be appended with a threshold after ':'.

\t--export=<format>[,<format>...]

\t   Possible formats are: none sqlite

\t--kill=

\t   Possible values are 'none', 'sigkill', or signal number.

\t--nvtx-domain-[include|exclude]=

\t   Possible values are a comma-separated list of NVTX domains.

\t-s, --sample=

\t   Possible values are 'process-tree', 'system-wide' or 'none'.
\t   Collect CPU samples.

\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx', 'cublas-verbose' or 'none'.
\t   Multiple APIs can be selected, separated by commas only (no spaces).

\t-y, --delay=

\t   Collection start delay in seconds.
"""


@pytest.fixture
def nsys(tmp_path):
    """
    A program that tells as nsys does.
    """
    (tmp_path / "help").write_text(HELP)
    program = tmp_path / "nsys"
    program.write_text(
        '#!/bin/sh\ncase "$1" in\n'
        "--version) echo NVIDIA Nsight Systems version 2022.4.2.1-df9881f;;\n"
        f"profile) cat {tmp_path}/help >&2;;\nesac\n"
    )
    program.chmod(0o755)
    return str(program)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """
    The environment says nothing.
    """
    monkeypatch.delenv("NRL_NSYS_EXTRA_OPTIONS", raising=False)
    monkeypatch.delenv("DISTDEBUG_NSYS_EXTRA_OPTIONS", raising=False)


class TestInstalled:
    def test_help(self):
        """
        Every name in the help is known, and what is said of it.
        """
        got = read_switches(HELP)

        assert {
            *("c", "capture-range", "capture-range-end", "cudabacktrace"),
            *("export", "kill", "nvtx-domain-include", "nvtx-domain-exclude"),
            *("s", "sample", "t", "trace", "y", "delay"),
        } == set(got)
        assert "Collection start delay in seconds." == got["y"]

    def test_program(self, nsys):
        """
        Its version and its options are asked for.
        """
        assert nsys == find_nsys(nsys)
        assert "2022.4.2.1" == nsys_version(nsys)
        assert read_switches(HELP) == known_switches(nsys)

    def test_none(self, tmp_path):
        """
        Where there is no nsys, nothing is known, and nothing is raised.
        """
        path = str(tmp_path / "nsys")

        assert find_nsys(path) is None
        assert nsys_version(path) is None
        assert {} == known_switches(path)

    def test_hangs(self, tmp_path):
        """
        One that does not answer in time tells nothing.
        """
        program = tmp_path / "nsys"
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        program.chmod(0o755)

        assert {} == known_switches(str(program), timeout_s=0.2)


class TestExtra:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (None, {}),
            ({}, {}),
            ("", {}),
            (
                {"--trace": "cuda,osrt", "delay": 5, "show-output": False},
                {"t": "cuda,osrt", "y": "5", "w": "false"},
            ),
            (
                '{"duration": 1.5, "stats": true}',
                {"d": "1.5", "stats": "true"},
            ),
        ],
    )
    def test_given(self, given, expected):
        """
        Options are taken as a mapping or as JSON, under one name each.
        """
        assert expected == extra_switches(given)

    def test_environment(self, monkeypatch):
        """
        By default the environment names them, ours before theirs.
        """
        monkeypatch.setenv("NRL_NSYS_EXTRA_OPTIONS", '{"delay": 1}')
        first = extra_switches()
        monkeypatch.setenv("DISTDEBUG_NSYS_EXTRA_OPTIONS", '{"delay": 2}')
        second = extra_switches()

        assert ({"y": "1"}, {"y": "2"}) == (first, second)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("{", "no JSON"),
            ("[" * 100_000, "no JSON"),
            ("[1]", "no JSON object"),
            ({"t": "cuda", "trace": "nvtx"}, "given twice"),
            ({"trace=cuda": 1}, "no name of an option"),
            ({"t -x": 1}, "no name of an option"),
            ({3: 1}, "no name of an option"),
            ({"output": "x"}, "cannot be chosen"),
            ({"o": "x"}, "cannot be chosen"),
            ({"help": "x"}, "cannot be chosen"),
            ({"trace": None}, "cannot be None"),
            ({"trace": ""}, "cannot be ''"),
            ({"trace": "a\nb"}, "cannot be"),
            ({"trace": ["cuda"]}, "cannot be"),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_errors(self, given, said):
        """
        What nsys could never take is refused, also where it is not installed.
        """
        with pytest.raises(NsightError, match=said) as caught:
            extra_switches(given)

        assert caught.value.remedy

    def test_error_in_environment(self, monkeypatch):
        """
        A mistake in the environment names the variable.
        """
        monkeypatch.setenv("NRL_NSYS_EXTRA_OPTIONS", "trace=cuda")

        with pytest.raises(NsightError, match="NRL_NSYS_EXTRA_OPTIONS is no"):
            extra_switches()


class TestCheck:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("c", "anything"),
            ("capture-range-end", "stop"),
            ("capture-range-end", "repeat"),
            ("capture-range-end", "repeat:5"),
            ("capture-range-end", "repeat-shutdown:12"),
            ("cudabacktrace", "kernel:500,all"),
            ("export", "sqlite,json"),
            ("kill", "9"),
            ("nvtx-domain-include", "mine,yours"),
            ("sample", "none"),
            ("t", "cuda,nvtx,cublas-verbose"),
            ("y", "5"),
        ],
    )
    def test_good(self, name, value, nsys):
        """
        What the help allows, or leaves open, is taken.
        """
        check_switches({name: value}, nsys)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("traces", "cuda", "no option 'traces'"),
            ("zzzzz", "1", "no option 'zzzzz'"),
            ("s", "cpu", "cannot be 'cpu'"),
            ("capture-range-end", "end", "cannot be 'end'"),
            ("capture-range-end", "stops", "cannot be 'stops'"),
            ("cudabacktrace", "kernels:500", "cannot be 'kernels'"),
            ("t", "cuda,nvlink", "cannot be 'nvlink'"),
            ("t", "cuda, nvtx", "cannot be 'nvtx'"),
        ],
    )
    def test_bad(self, name, value, said, nsys):
        """
        What the help does not know is refused, with what may be meant.
        """
        with pytest.raises(NsightError, match=said) as caught:
            check_switches({name: value}, nsys)

        assert caught.value.remedy

    def test_near(self, nsys):
        """
        A name that is nearly right is told.
        """
        with pytest.raises(NsightError) as caught:
            check_switches({"capture-rang": "none"}, nsys)

        assert "did you mean 'capture-range'?" == caught.value.remedy

    def test_absent(self, tmp_path):
        """
        Where nsys is not installed, nothing is checked.
        """
        check_switches({"nonsense": "1"}, str(tmp_path / "nsys"))

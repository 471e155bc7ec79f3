"""
Which options does nsys take?
"""

from __future__ import annotations

import time

import pytest

from distdebug.errors import NsightError
from distdebug.nsight import check_nsys, nsight_runtime_env
from distdebug.nsight.doctor import supported_options


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
def nsys(tmp_path, program):
    """
    A program that answers as nsys does.
    """
    (tmp_path / "help").write_text(HELP)
    return program(
        'case "$1" in\n'
        "--version) echo NVIDIA Nsight Systems version 2022.4.2.1-df9881f;;\n"
        f"profile) cat {tmp_path}/help >&2;;\nesac"
    )


def switches(extra=None, nsys="/nowhere/nsys"):
    """
    Options that nsys gets besides those of every worker.
    """

    def options(**known):
        env = nsight_runtime_env(
            "w", patterns="*", mode="nsight", nsys=nsys, **known
        )
        return env["nsight"].items()

    usual = options(extra_options={})
    return dict(options(extra_options=extra) - usual)


@pytest.mark.process
class TestInstalled:
    def test_version(self, nsys):
        """
        Its version is asked for.
        """
        assert f"2022.4.2.1, {nsys}" in str(check_nsys(nsys=nsys))

    def test_hangs(self, program):
        """
        One that does not answer in time is not checked against.
        """
        # Through the door this takes the ten seconds that a nsys may take.
        nsys = program("exec sleep 60")
        began = time.monotonic()

        assert {} == supported_options(nsys, timeout_s=0.2)
        assert time.monotonic() - began < 30

    def test_answers_later(self, program, tmp_path):
        """
        One that was too slow once is asked again, and what it said until then
        does not count.
        """
        slow, help_text = tmp_path / "slow", tmp_path / "help"
        slow.touch()
        help_text.write_text(HELP)
        nsys = program(
            f"[ -e {slow} ] && echo '-o, --output=' && exec sleep 60\n"
            f"cat {help_text}"
        )

        first = supported_options(nsys, timeout_s=0.5)
        slow.unlink()
        second = supported_options(nsys, timeout_s=0.5 + 20)
        again = supported_options(nsys, timeout_s=0.5)

        assert {} == first
        assert "trace" in second
        assert second == again


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
        assert expected == switches(given)

    def test_environment(self, monkeypatch):
        """
        By default the environment names them, ours before theirs; a mistake
        there names the variable.
        """
        monkeypatch.setenv("NRL_NSYS_EXTRA_OPTIONS", '{"delay": 1}')
        first = switches()
        monkeypatch.setenv("DISTDEBUG_NSYS_EXTRA_OPTIONS", '{"delay": 2}')
        second = switches()

        assert ({"y": "1"}, {"y": "2"}) == (first, second)
        monkeypatch.setenv("DISTDEBUG_NSYS_EXTRA_OPTIONS", "trace=cuda")
        with pytest.raises(NsightError, match="NSYS_EXTRA_OPTIONS is no"):
            switches()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("{", "not JSON"),
            ("[" * 100_000, "not JSON"),
            ("[1]", "not a JSON object"),
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
            switches(given)

        assert caught.value.remedy


@pytest.mark.process
class TestCheck:
    @pytest.mark.parametrize(
        "switch",
        [
            *("c=anything", "capture-range-end=stop", "export=sqlite,json"),
            *("capture-range-end=repeat", "capture-range-end=repeat:5"),
            *("capture-range-end=repeat-shutdown:12", "kill=9", "y=5"),
            *("cudabacktrace=kernel:500,all", "sample=process-tree"),
            *("nvtx-domain-include=mine,yours", "nvtx-domain-exclude=mine"),
            "t=cuda,nvtx,cublas-verbose",
        ],
    )
    def test_good(self, switch, nsys):
        """
        What the help allows, or leaves open, is taken.
        """
        name, _, value = switch.partition("=")

        assert [value] == list(switches({name: value}, nsys).values())

    @pytest.mark.parametrize(
        ("switch", "said", "remedy"),
        [
            ("traces=cuda", "no option 'traces'", "'trace'"),
            ("capture-rang=none", "no option", "'capture-range'"),
            ("zzzzz=1", "no option 'zzzzz'", "nsys profile --help"),
            ("s=cpu", "cannot be 'cpu'", "process-tree"),
            ("capture-range-end=end", "cannot be 'end'", "stop"),
            ("capture-range-end=stops", "cannot be 'stops'", "stop"),
            ("cudabacktrace=kernels:500", "cannot be 'kernels'", "kernel"),
            ("t=cuda,nvlink", "cannot be 'nvlink'", "nvtx"),
            ("t=cuda, nvtx", "cannot be 'nvtx'", "nvtx"),
        ],
    )
    def test_bad(self, switch, said, remedy, nsys):
        """
        What the help does not know is refused, with what may be meant.
        """
        name, _, value = switch.partition("=")

        with pytest.raises(NsightError, match=said) as caught:
            switches({name: value}, nsys)

        assert remedy in caught.value.remedy

    @pytest.mark.parametrize("is_there", [False, True])
    def test_absent(self, is_there, program):
        """
        Where nsys is not installed, or cannot be started, nothing is checked.
        """
        broken = program("", shell="/no/such/shell")
        nsys = broken if is_there else f"{broken}-none"

        assert {"nonsense": "1"} == switches({"nonsense": "1"}, nsys)

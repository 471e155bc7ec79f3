"""
What titles and command lines say.
"""

from __future__ import annotations

import pytest

from distdebug.processes.roles.programs import (
    is_python_name,
    option_number,
    program_of,
)
from distdebug.processes.roles.titles import parse_title, rank_of_title


class TestParseTitle:
    @pytest.mark.parametrize(
        ("title", "expected"),
        [
            ("sglang::scheduler", {}),
            ("sglang::scheduler_TP3", {"tp": 3}),
            ("sglang::scheduler_PP2_TP1", {"pp": 2, "tp": 1}),
            (
                "sglang::scheduler_TP0_PP1_DP2_EP3",
                {"tp": 0, "pp": 1, "dp": 2, "ep": 3},
            ),
            ("sglang::scheduler_DP1_TP0", {"dp": 1, "tp": 0}),
            ("sglang::semi_pd_scheduler_DECODE_TP1", {"tp": 1}),
            ("VLLM::Worker_TP12", {"tp": 12}),
            (
                "VLLM::Worker_DP0_PP0_TP1_DCP1_EP1",
                {
                    "dp": 0,
                    "pp": 0,
                    "tp": 1,
                    "dcp": 1,
                    "ep": 1,
                },
            ),
            ("VLLM::EngineCore_DP1", {"dp": 1}),
            ("sglang::scheduler TP_1 CFG0", {"tp": 1, "cfg": 0}),
            ("HTTP2_server MTP3 TP TPx TP1a", {}),
            ("TP1_TP2", {"tp": 1}),
            ("TP99999999", {}),
        ],
    )
    def test_orders(self, title, expected):
        """
        All places are found, in any order, and nothing else is taken for one.
        """
        places = parse_title(title)

        assert expected == dict(places)
        assert list(expected) == [name for name, _ in places]

    def test_long(self):
        """
        A title of any length is read in part.
        """
        assert len(parse_title("TP1_" * 10**6)) == 1

    @pytest.mark.parametrize(
        ("title", "rank"),
        [
            ("x_TP3", 3),
            ("x_TP3_EP3", 3),
            ("x_TP3_PP0", None),
            ("x_DP1_TP3", None),
            ("x", None),
        ],
    )
    def test_rank(self, title, rank):
        """
        A place is a rank only where no other dimension can be wider than it
        seems.
        """
        assert rank == rank_of_title(parse_title(title))


class TestIsPythonName:
    @pytest.mark.parametrize(
        "name",
        [
            "python",
            "/usr/bin/python3",
            "/opt/x y/python3.13t",
            "pypy3.11",
            "-python",
            "python3-dbg",
        ],
    )
    def test_is(self, name):
        """
        Interpreters are known by their names.
        """
        assert is_python_name(name)

    @pytest.mark.parametrize(
        "name",
        [
            "bash",
            "mypython",
            "/python/bin/x",
            "python train.py",
            "ipython3",
            "",
        ],
    )
    def test_is_not(self, name):
        """
        Nothing else is taken for one.
        """
        assert not is_python_name(name)


class TestProgramOf:
    @pytest.mark.parametrize(
        ("line", "program"),
        [
            ("python train.py --x", "train.py"),
            ("python3 -u -O /a/train.py", "/a/train.py"),
            ("python -m torch.distributed.run x.py", "torch.distributed.run"),
            ("python -um pkg.mod", "pkg.mod"),
            ("python -mpkg.mod", "pkg.mod"),
            ("python -c pass", "-c"),
            ("python -cpass", "-c"),
            ("python -W ignore -X dev train.py", "train.py"),
            ("python -Wignore::m -Xfaulthandler train.py", "train.py"),
            ("python --check-hash-based-pycs always a.py", "a.py"),
            ("python -", "-"),
            ("python", ""),
            ("python -i", ""),
            ("python -m", ""),
            ("bash train.py", ""),
            ("", ""),
        ],
    )
    def test_lines(self, line, program):
        """
        The program is what the interpreter runs, behind its own options.
        """
        assert program == program_of(line.split())


class TestOptionNumber:
    @pytest.mark.parametrize(
        ("line", "number"),
        [
            ("x --local-rank=3", 3),
            ("x --local_rank 4", 4),
            ("x --local-rank", None),
            ("x --local-rank=a", None),
            ("x --local-rank=99999999999", None),
            ("x --other=3", None),
            ("x -- --local-rank=5", 5),
        ],
    )
    def test_lines(self, line, number):
        """
        An option is read in all spellings.
        """
        assert number == option_number(line.split(), "rank", "local-rank")

"""
What titles and command lines say.
"""

from __future__ import annotations

import pytest

from distdebug.processes import find_workers, find_workers_by_pid


def worker(fake_proc, *arguments, **options):
    """
    What the process of this command line is.
    """
    fake_proc.add(7, *arguments, **options)
    (found,) = find_workers_by_pid([7], fake_proc.root)
    return found


class TestTitles:
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
            ("sglang::HTTP2_server MTP3 TP TPx TP1a", {}),
            ("sglang::TP1_TP2", {"tp": 1}),
            ("sglang::TP99999999", {}),
        ],
    )
    def test_orders(self, fake_proc, title, expected):
        """
        All places are found, in any order, and nothing else is taken for one.
        """
        places = worker(fake_proc, title).coordinates

        assert expected == dict(places)
        assert list(expected) == [name for name, _ in places]

    def test_long(self, fake_proc):
        """
        A title of any length is read in part.
        """
        title = "sglang::scheduler " + "TP1_" * 16_000 + "PP1"

        assert (("tp", 1),) == worker(fake_proc, title).coordinates

    @pytest.mark.parametrize(
        ("places", "rank"),
        [
            ("_TP3", 3),
            ("_TP3_EP3", 3),
            ("_TP3_PP0", None),
            ("_DP1_TP3", None),
            ("", None),
        ],
    )
    def test_rank(self, fake_proc, places, rank):
        """
        A place is a rank only where no other dimension can be wider than it
        seems.
        """
        assert rank == worker(fake_proc, f"VLLM::Worker{places}").rank


@pytest.mark.parametrize(
    ("name", "is_python"),
    [
        ("python", True),
        ("/usr/bin/python3", True),
        ("/opt/x y/python3.13t", True),
        ("pypy3.11", True),
        ("-python", True),
        ("python3-dbg", True),
        ("bash", False),
        ("mypython", False),
        ("/python/bin/x", False),
        ("python train.py", False),
        ("ipython3", False),
        ("", False),
    ],
)
def test_interpreters(fake_proc, name, is_python):
    """
    Interpreters are known by their names, and only they can be ranks.
    """
    env = {"RANK": 0, "WORLD_SIZE": 1}
    fake_proc.add(7, name, "train.py", environ=env)

    assert is_python == bool(find_workers(root=fake_proc.root))


@pytest.mark.parametrize(
    ("line", "is_launcher"),
    [
        ("python torchrun --x", True),
        ("python3 -u -O /a/torchrun", True),
        ("python -m torch.distributed.run x.py", True),
        ("python -um torch.distributed.run", True),
        ("python -mdeepspeed.launcher.launch", True),
        ("python -c pass torchrun", False),
        ("python -cpass torchrun", False),
        ("python train.py torchrun", False),
        ("python -W ignore -X dev torchrun", True),
        ("python -W torchrun train.py", False),
        ("python -Wignore::m -Xfaulthandler torchrun", True),
        ("python --check-hash-based-pycs always torchrun", True),
        ("python - torchrun", False),
        ("python", False),
        ("python -i", False),
        ("python -m", False),
        ("bash torchrun", False),
    ],
)
def test_programs(fake_proc, line, is_launcher):
    """
    A launcher is what the interpreter runs, behind its own options.
    """
    role = worker(fake_proc, *line.split()).role

    assert is_launcher == (role == "launcher")


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
def test_options(fake_proc, line, number):
    """
    The rank of a command line is read in all spellings.
    """
    assert number == worker(fake_proc, "python", *line.split()).local_rank

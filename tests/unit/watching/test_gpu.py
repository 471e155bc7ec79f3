"""
What GPUs show, with a driver that is made up.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time

from types import SimpleNamespace

import pytest

from distdebug.watching import GpuActivity, ProgressSensor


SHELL = shutil.which("sh")


def fake_nvml(*gpus, is_there=True):
    """
    As much of NVIDIA's library as is used; each GPU shows its load, that of
    its memory, and its processes.
    """
    nvml = SimpleNamespace(gpus=gpus, opened=0, NVMLError=LookupError)

    def check(is_fine, value=None):
        if not is_fine:
            raise LookupError
        return value

    def init(opened=1):
        check(is_there)
        nvml.opened += opened

    def rates(index):
        computing, memory = nvml.gpus[index][:2]
        told = SimpleNamespace(gpu=computing, memory=memory)
        return check(computing is not None, told)

    nvml.nvmlInit = init
    nvml.nvmlShutdown = lambda: init(-1)
    nvml.nvmlDeviceGetCount = lambda: check(
        nvml.gpus != ("none",), len(nvml.gpus)
    )
    nvml.nvmlDeviceGetHandleByIndex = lambda index: check(
        nvml.gpus[index] is not None, index
    )
    nvml.nvmlDeviceGetMemoryInfo = lambda index: nvml.gpus[index]
    nvml.nvmlDeviceGetUtilizationRates = rates
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda index: [
        SimpleNamespace(pid=pid, usedGpuMemory=None)
        for pid in nvml.gpus[index][2:]
    ]
    return nvml


class FakeTool:
    """
    An ``nvidia-smi`` that prints what is in files.
    """

    def __init__(self, folder):
        self.folder = folder
        self.asked = folder / "asked"
        self.shows()

    def shows(self, *rows, apps=(), code="exit 0"):
        """
        Have these GPUs, or messages, and what uses them.
        """
        lines = [
            f"{number}, {row}, Disabled" if "," in row else row
            for number, row in enumerate(rows)
        ]
        users = [f"{app}, 900" if "," in app else app for app in apps]
        loads = "\n".join(lines)
        (self.folder / "nvidia-smi").write_text(
            f"#!{SHELL}\n"
            f"echo \"$@\" >> '{self.asked}'\n"
            'case "$1" in\n'
            "*compute-apps*) printf '%s\\n' "
            f"'{chr(10).join(users)}'; exit ;;\n"
            f"*) printf '%s\\n' '{loads}' ;;\n"
            f"esac\n{code}\n"
        )
        (self.folder / "nvidia-smi").chmod(0o755)


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch, tmp_path):
    """
    Neither library nor tool of the machine the tests run on.
    """
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture(name="use_library")
def _use_library(monkeypatch):
    """
    Have a library.
    """

    def use(*gpus, **kwargs):
        fake = fake_nvml(*gpus, **kwargs)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return use


@pytest.fixture(name="tool")
def _tool(tmp_path):
    """
    Have an ``nvidia-smi``.
    """
    return FakeTool(tmp_path)


@pytest.fixture(name="counts")
def _counts(tool):
    """
    What is sensed at each look at GPUs that show these figures.
    """

    def counts(*looks):
        sense, got = GpuActivity(), []
        for look in looks:
            figures = [look] if isinstance(look, tuple) else look
            tool.shows(
                *(
                    f"GPU-{number}, {', '.join(map(str, pair))}"
                    for number, pair in enumerate(figures)
                )
            )
            got.append(sense([7]))
        return got

    return counts


class TestActivity:
    @pytest.mark.process
    @pytest.mark.parametrize(
        ("looks", "expected"),
        [
            pytest.param(
                [(99, 45), (99, 45), (99, 44)], [1, 2, 3], id="training"
            ),
            pytest.param(
                [(97, 40), (100, 0), (100, 0), (100, 1)],
                [1, 2, 2, 2],
                id="begins to wait",
            ),
            pytest.param(
                [(0, 0), (30, 2), (0, 0), (3, 0), (12, 1)],
                [0, 1, 2, 2, 3],
                id="gaps",
            ),
            pytest.param(
                [(80, 0), (84, 0), (87, 0), (91, 0), (94, 0)],
                [0, 0, 1, 1, 2],
                id="small changes add up",
            ),
            pytest.param(
                [
                    [(100, 30), (100, 0)],
                    [(100, 0), (0, 0)],
                    [(100, 0), (0, 0)],
                ],
                [1, 2, 2],
                id="one of many, and all are noted",
            ),
        ],
    )
    def test_works(self, counts, looks, expected):
        """
        Work counts at each look, by the use of memory or by a change.
        """
        assert expected == counts(*looks)

    @pytest.mark.process
    @pytest.mark.parametrize(
        "hung",
        [
            [(100, 0), (100, 0), (100, 0), (100, 0)],
            [(100, 1), (99, 0), (96, 2), (98, 1)],
            [(0, 0), (0, 0), (0, 0), (0, 0)],
            [(96, "[N/A]"), (96, "[N/A]"), (95, "[N/A]"), (96, "[N/A]")],
            [(49, 0), (50, 0), (49, 0), (50, 0)],
            [(100, 0), (100, "[N/A]"), (100, 0), ("[N/A]", 0)],
        ],
    )
    def test_waiting(self, counts, hung):
        """
        A kernel that spins, an idle GPU, and a figure that is sometimes
        missing never count.
        """
        assert [0, 0, 0, 0] == counts(*hung)

    def test_pause(self):
        """
        A driver that does not answer is asked ever more rarely, up to an hour.
        """
        now, asked_at = 0.0, []

        def ask(pids, *, timeout_s):
            asked_at.append(now / 60)
            raise TimeoutError

        sense = GpuActivity(ask=ask, clock=lambda: now)
        for minute in range(260):
            now = minute * 60.0
            assert sense([7]) is None

        assert [0, 1, 3, 7, 15, 31, 63, 123, 183, 243] == asked_at

    @pytest.mark.process
    def test_answers_again(self, tool):
        """
        After an answer, the next silence is short again.
        """
        now, got = 0.0, []
        sense = GpuActivity(clock=lambda: now)
        for now in (0.0, 60.0, 180.0, 190.0, 200.0, 260.0):
            works = now in {180.0, 260.0}
            tool.shows("GPU-a, 50, 50", code="exit" if works else "exit 9")
            got.append(sense([7]))

        assert [None, None, 1, None, None, 2] == got

    def test_with_a_sensor(self, use_library):
        """
        A job that trains is not stuck, and is once its GPUs only wait.
        """
        fake = use_library()
        sense, sensor = GpuActivity(), ProgressSensor()
        hung = []
        for look in range(30):
            fake.gpus = ((99, 41) if look < 20 else (100, 0),)
            sensor.update(look * 10.0, sense([7]))
            hung.append(sensor.is_hung(look * 10.0))

        assert [27, 28, 29] == [look for look, is_ in enumerate(hung) if is_]


class TestLibrary:
    @pytest.mark.parametrize(
        ("gpus", "expected"),
        [
            pytest.param(
                [(100, 0, 70), (35, 12), (0, 0)], 1, id="not known to be ours"
            ),
            pytest.param(
                [(100, 0, 7), (35, 12, 70), (0, 0, 71, 8)], 0, id="only ours"
            ),
            pytest.param(
                [None, (None, None, 70), (35, 12)], 1, id="lost and split up"
            ),
            pytest.param([(None, None)], None, id="split up alone"),
        ],
    )
    def test_gpus(self, use_library, gpus, expected):
        """
        Only GPUs that the processes use count, or all if none is known to be
        used by them; one without figures does not hide the others.
        """
        fake = use_library(*gpus)

        assert expected == GpuActivity()([7, 8])
        assert 0 == fake.opened

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("gpus", "is_there"), [([(1, 1)], False), (["none"], True)]
    )
    def test_no_driver(self, use_library, tool, gpus, is_there):
        """
        If the library finds no driver, the tool may.
        """
        use_library(*gpus, is_there=is_there)
        tool.shows("GPU-a, 100, 50")

        assert 1 == GpuActivity()([7])

    def test_hangs(self, use_library, tool):
        """
        A driver that hangs is left, and not asked once more by the tool.
        """
        fake, end = use_library((1, 1)), threading.Event()
        fake.nvmlInit = end.wait
        sense = GpuActivity(timeout_s=0.1)

        seen = [sense([7]), sense([7])]
        end.set()

        assert [None, None] == seen
        assert not tool.asked.exists()


class TestTool:
    def test_none(self):
        """
        Without library and tool, nothing is known.
        """
        assert GpuActivity()([7]) is None

    @pytest.mark.process
    def test_one(self, tool):
        """
        One GPU takes one call.
        """
        tool.shows("GPU-1b, 98, 37")

        assert 1 == GpuActivity()([7])
        expected = (
            "--query-gpu=index,uuid,utilization.gpu,utilization.memory,"
            "mig.mode.current --format=csv,noheader,nounits\n"
        )
        assert expected == tool.asked.read_text()

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("apps", "expected"),
        [
            (["GPU-a, 7", "GPU-b, 70", "GPU-a, 9"], 0),
            (["GPU-a, 70", "GPU-b, 77"], 1),
            (["GPU-a, [N/A]", ""], 1),
            ([], 1),
        ],
    )
    def test_ours(self, tool, apps, expected):
        """
        Only the GPUs of the processes, if any of them is known to use one.
        """
        tool.shows("GPU-a, 100, 0", "GPU-b, 50, 20", apps=apps)

        assert expected == GpuActivity()([7, 8, 9])

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ("GPU-a, [N/A], [N/A]", None),
            ("GPU-a, 96, [Not Supported]", 0),
            ("GPU-a, [Unknown Error], 30", 1),
            ("GPU-a, 1e9, -3", None),
            ("Unable to determine the device handle", None),
        ],
    )
    def test_not_told(self, tool, row, expected):
        """
        A figure that a GPU does not show is missing, and other lines do not
        count.
        """
        tool.shows(row)

        assert expected == GpuActivity()([7])

    @pytest.mark.process
    def test_no_driver(self, tool):
        """
        A tool that finds no driver yields nothing.
        """
        tool.shows("NVIDIA-SMI has failed because it cannot", code="exit 9")

        assert GpuActivity()([7]) is None

    @pytest.mark.process
    def test_no_program(self, tool):
        """
        A tool that cannot be started yields nothing.
        """
        (tool.folder / "nvidia-smi").write_bytes(b"\x7fELF\0")

        assert GpuActivity()([7]) is None

    @pytest.mark.process
    def test_hangs(self, tool):
        """
        A tool that hangs with its driver is ended in time.
        """
        sleep = shutil.which("sleep", path="/usr/bin:/bin")
        tool.shows(
            "GPU-a, 1, 50", code=f"echo $$ >> '{tool.asked}'; exec {sleep} 600"
        )

        start = time.monotonic()
        got = GpuActivity(timeout_s=0.5)([7])

        assert got is None
        assert time.monotonic() - start < 30
        pid = tool.asked.read_text().split()[-1]
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)

"""
What GPUs show, with a driver that is made up.
"""

from __future__ import annotations

import sys
import threading
import time

from types import ModuleType, SimpleNamespace

import pytest

from distdebug.health.gpu import read
from distdebug.watching import GpuActivity, ProgressSensor
from distdebug.watching.senses.gpu_load import GpuLoad, gpu_loads


class Driver:
    """
    GPUs that do as planned, and the time.
    """

    def __init__(self, *looks):
        self.looks = [[GpuLoad(*x) for x in look] for look in looks]
        self.now = 0.0
        self.asked = 0

    def ask(self, pids, *, timeout_s):
        """
        The next loads; what is planned to fail does.
        """
        self.asked += 1
        if not self.looks:
            raise TimeoutError

        return tuple(self.looks.pop(0))

    def counts(self):
        """
        What is sensed at each look.
        """
        sense = GpuActivity(ask=self.ask)
        return [sense([7]) for _ in list(self.looks)]


def looks(*pairs):
    """
    Looks at a single GPU.
    """
    return [[("0", *pair)] for pair in pairs]


class TestActivity:
    def test_training(self):
        """
        Steady work counts at each look, though the figures stay the same.
        """
        driver = Driver(*looks((99, 45), (99, 45), (99, 44)))

        assert [1, 2, 3] == driver.counts()

    @pytest.mark.parametrize(
        "hung",
        [
            [(100, 0), (100, 0), (100, 0), (100, 0)],
            [(100, 1), (99, 0), (96, 2), (98, 1)],
            [(0, 0), (0, 0), (0, 0), (0, 0)],
            [(96, None), (96, None), (95, None), (96, None)],
            [(49, 0), (50, 0), (49, 0), (50, 0)],
        ],
    )
    def test_waiting(self, hung):
        """
        A kernel that spins, and an idle GPU, count never.
        """
        assert [0, 0, 0, 0] == Driver(*looks(*hung)).counts()

    def test_begins_to_wait(self):
        """
        That work ends is a change, but only one.
        """
        driver = Driver(*looks((97, 40), (100, 0), (100, 0), (100, 1)))

        assert [1, 2, 2, 2] == driver.counts()

    def test_light_work(self):
        """
        Work with gaps shows by its changes.
        """
        driver = Driver(*looks((0, 0), (30, 2), (0, 0), (3, 0), (12, 1)))

        assert [0, 1, 2, 2, 3] == driver.counts()

    def test_slow_change(self):
        """
        Small changes add up, because each is compared with what was noted.
        """
        driver = Driver(*looks((80, 0), (84, 0), (87, 0), (91, 0), (94, 0)))

        assert [0, 0, 1, 1, 2] == driver.counts()

    def test_one_of_many(self):
        """
        One GPU that works is enough, and all are noted meanwhile.
        """
        driver = Driver(
            [("0", 100, 30), ("1", 100, 0)],
            [("0", 100, 0), ("1", 0, 0)],
            [("0", 100, 0), ("1", 0, 0)],
        )

        assert [1, 2, 2] == driver.counts()

    def test_comes_and_goes(self):
        """
        A figure that is not always told is no change for that.
        """
        driver = Driver(*looks((100, 0), (100, None), (100, 0), (None, 0)))

        assert [0, 0, 0, 0] == driver.counts()

    def test_split_up(self):
        """
        GPUs that tell nothing tell nothing of work either.
        """
        driver = Driver(*looks((None, None), (None, None)), [])

        assert [None, None, None] == driver.counts()

    def test_pause(self):
        """
        Whoever does not answer is asked ever more rarely, up to an hour.
        """
        driver = Driver()
        sense = GpuActivity(ask=driver.ask, clock=lambda: driver.now)
        asked_at = []
        for minute in range(260):
            driver.now = minute * 60.0
            before = driver.asked
            assert sense([7]) is None
            if driver.asked > before:
                asked_at.append(minute)

        assert [0, 1, 3, 7, 15, 31, 63, 123, 183, 243] == asked_at

    def test_answers_again(self):
        """
        After an answer, the next silence is short again.
        """
        driver = Driver()
        sense = GpuActivity(ask=driver.ask, clock=lambda: driver.now)
        got = []
        for driver.now in (0.0, 60.0, 180.0, 190.0, 200.0, 260.0):
            if driver.now in {180.0, 260.0}:
                driver.looks = [[GpuLoad("0", 50, 50)]]
            got.append(sense([7]))

        assert [None, None, 1, None, None, 2] == got

    def test_with_a_sensor(self):
        """
        A job that trains is not stuck, and is once its GPUs only wait.
        """
        busy, waits = [("0", 99, 41)], [("0", 100, 0)]
        driver = Driver(*[busy] * 20, *[waits] * 10)
        sense, sensor = GpuActivity(ask=driver.ask), ProgressSensor()
        hung = []
        for look in range(30):
            sensor.saw(look * 10.0, sense([7]))
            hung.append(sensor.is_hung(look * 10.0))

        assert [27, 28, 29] == [look for look, is_ in enumerate(hung) if is_]


class FakeNvml(ModuleType):
    """
    As much of NVIDIA's library as is asked for.
    """

    class NVMLError(Exception):
        """
        Any error.
        """

    def __init__(self, *gpus, is_there=True):
        super().__init__("pynvml")
        self.gpus = gpus
        self.is_there = is_there
        self.opened = 0
        self.nvmlInit = self.init
        self.nvmlShutdown = self.shutdown
        self.nvmlDeviceGetCount = self.count
        self.nvmlDeviceGetHandleByIndex = self.gpu
        self.nvmlDeviceGetComputeRunningProcesses = self.users
        self.nvmlDeviceGetUtilizationRates = self.rates
        self.nvmlDeviceGetMemoryInfo = self.gpus.__getitem__

    def check(self, *, is_fine):
        """
        Fail as the library does.
        """
        if not is_fine:
            raise self.NVMLError

    def init(self):
        """
        Load the driver.
        """
        self.check(is_fine=self.is_there)
        self.opened += 1

    def shutdown(self):
        """
        Leave the driver alone.
        """
        self.opened -= 1

    def count(self):
        """
        How many GPUs there are.
        """
        self.check(is_fine=self.gpus != ("none",))
        return len(self.gpus)

    def gpu(self, index):
        """
        One of them.
        """
        self.check(is_fine=self.gpus[index] is not None)
        return index

    def users(self, index):
        """
        Who uses it.
        """
        pids = self.gpus[index][2:]
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]

    def rates(self, index):
        """
        How busy it is; a GPU that is split up cannot tell.
        """
        computing, memory = self.gpus[index][:2]
        self.check(is_fine=computing is not None)
        return SimpleNamespace(gpu=computing, memory=memory)


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch, tmp_path):
    """
    Neither library nor tool of the machine the tests run on.
    """
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    find = read.find_tool
    monkeypatch.setattr(
        read,
        "find_tool",
        lambda name: (
            tool
            if (tool := find(name)) and tool.startswith(str(tmp_path))
            else None
        ),
    )


@pytest.fixture(name="use_library")
def _use_library(monkeypatch):
    """
    Have a library.
    """

    def use(*gpus, **kwargs):
        fake = FakeNvml(*gpus, **kwargs)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return use


@pytest.fixture(name="use_tool")
def _use_tool(tmp_path):
    """
    Have an ``nvidia-smi``.
    """

    def table(rows, form):
        # A message instead of a row stays as it is.
        lines = rows.split("\\n")
        return "\\n".join(
            form.format(i, x) if "," in x else x for i, x in enumerate(lines)
        )

    def use(loads, apps="", *, code="exit 0"):
        loads = table(loads, "{0}, {1}, Disabled")
        apps = table(apps, "{1}, 900")
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            "#!/bin/sh\n"
            f"echo \"$@\" >> '{tmp_path}/asked'\n"
            'case "$1" in\n'
            f"*compute-apps*) printf '{apps}'; exit ;;\n"
            f"*) printf '{loads}' ;;\n"
            f"esac\n{code}\n"
        )
        tool.chmod(0o755)
        return tmp_path / "asked"

    return use


class TestLibrary:
    def test_all(self, use_library):
        """
        If no process is known to use a GPU, all are told.
        """
        fake = use_library((100, 0, 70), (35, 12), (0, 0))

        got = gpu_loads([7], timeout_s=5)

        assert (("0", 100, 0), ("1", 35, 12), ("2", 0, 0)) == got
        assert 0 == fake.opened

    def test_ours(self, use_library):
        """
        Otherwise only the GPUs that the processes use.
        """
        use_library((100, 0, 7), (35, 12, 70), (0, 0, 71, 8))

        got = gpu_loads([7, 8], timeout_s=5)

        assert (("0", 100, 0), ("2", 0, 0)) == got

    def test_lost_and_split(self, use_library):
        """
        A GPU that is lost or split up does not hide the others.
        """
        use_library(None, (None, None, 70), (35, 12))

        got = gpu_loads([7], timeout_s=5)

        assert (("0", None, None), ("1", None, None), ("2", 35, 12)) == got

    @pytest.mark.parametrize(
        ("gpus", "is_there"), [([(1, 1)], False), (["none"], True)]
    )
    def test_no_driver(self, use_library, use_tool, gpus, is_there):
        """
        If the library finds no driver, the tool may.
        """
        use_library(*gpus, is_there=is_there)
        use_tool("GPU-a, 100, 0\\n")

        assert (("GPU-a", 100, 0),) == gpu_loads([7], timeout_s=5)

    def test_hangs(self, use_library, use_tool):
        """
        A driver that hangs is left, and not asked once more by the tool.
        """
        fake, end = use_library((1, 1)), threading.Event()
        fake.nvmlInit = end.wait
        asked = use_tool("")

        with pytest.raises(TimeoutError):
            gpu_loads([7], timeout_s=0.1)

        end.set()
        assert not asked.exists()


class TestTool:
    def test_none(self):
        """
        Without library and tool, nothing is known.
        """
        assert gpu_loads([7], timeout_s=5) is None

    def test_one(self, use_tool):
        """
        One GPU takes one call.
        """
        asked = use_tool("GPU-1b, 98, 37\\n")

        assert (("GPU-1b", 98, 37),) == gpu_loads([7], timeout_s=5)
        expected = (
            "--query-gpu=index,uuid,utilization.gpu,utilization.memory,"
            "mig.mode.current --format=csv,noheader,nounits\n"
        )
        assert expected == asked.read_text()

    @pytest.mark.parametrize(
        ("apps", "expected"),
        [
            ("GPU-a, 7\\nGPU-b, 70\\nGPU-a, 9\\n", ["GPU-a"]),
            ("GPU-a, 70\\nGPU-b, 77\\n", ["GPU-a", "GPU-b"]),
            ("GPU-a, [N/A]\\n\\n", ["GPU-a", "GPU-b"]),
            ("", ["GPU-a", "GPU-b"]),
        ],
    )
    def test_ours(self, use_tool, apps, expected):
        """
        Only the GPUs of the processes, if any of them is known to use one.
        """
        use_tool("GPU-a, 100, 0\\nGPU-b, 50, 20\\n", apps)

        got = gpu_loads([7, 8, 9], timeout_s=5)

        assert expected == [load.name for load in got]

    def test_not_told(self, use_tool):
        """
        What a GPU does not tell is missing, and other lines do not count.
        """
        use_tool(
            "GPU-a, [N/A], [N/A]\\nGPU-b, 96, [Not Supported]\\n"
            "GPU-c, [Unknown Error], 3\\nGPU-d, 1e9, -3\\n"
            "Unable to determine the device handle\\n"
        )

        got = gpu_loads([7], timeout_s=5)

        expected = (
            ("GPU-a", None, None),
            ("GPU-b", 96, None),
            ("GPU-c", None, 3),
            ("GPU-d", None, None),
        )
        assert expected == got

    def test_no_driver(self, use_tool):
        """
        A tool that finds no driver tells nothing.
        """
        use_tool("NVIDIA-SMI has failed because it cannot", code="exit 9")

        assert gpu_loads([7], timeout_s=5) is None

    def test_no_program(self, use_tool):
        """
        A tool that cannot be started tells nothing.
        """
        asked = use_tool("")
        asked.with_name("nvidia-smi").write_bytes(b"\x7fELF\0")

        assert gpu_loads([7], timeout_s=5) is None

    def test_hangs(self, use_tool):
        """
        A tool that hangs with its driver is ended in time.
        """
        use_tool("GPU-a, 1, 2", code="exec sleep 600")

        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
            gpu_loads([7], timeout_s=0.5)

        assert time.monotonic() - start < 30

    def test_sensed(self, use_tool):
        """
        Without any plan, the sense asks the tool.
        """
        use_tool("GPU-a, 99, 40\\n")
        sense = GpuActivity()

        assert [1, 2] == [sense([7]), sense([7])]

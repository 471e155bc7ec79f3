"""
What GPUs show, with a driver that is made up.
"""

from __future__ import annotations

import sys
import threading

from types import SimpleNamespace

import pytest

from distdebug.watching import GpuActivity, ProgressSensor, gpu_activity


class FakeError(Exception):
    """
    An error of the library: there is no driver.
    """

    value = 12


def fake_nvml(*gpus, is_there=True):
    """
    As much of NVIDIA's library as is used; each GPU shows its load, that of
    its memory, and its processes.
    """
    nvml = SimpleNamespace(
        gpus=gpus,
        opened=0,
        NVMLError=FakeError,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
    )

    def check(is_fine, value=None):
        if not is_fine:
            raise nvml.NVMLError
        return value

    def init(opened=1):
        check(is_there)
        nvml.opened += opened

    def rates(index):
        computing, memory = nvml.gpus[index][:2]
        told = SimpleNamespace(gpu=computing, memory=memory)
        return check((computing, memory) != (None, None), told)

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


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch):
    """
    Not the driver of the machine the tests run on.
    """
    monkeypatch.setitem(sys.modules, "pynvml", None)


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


@pytest.fixture(name="counts")
def _counts(use_library):
    """
    What is sensed at each look at GPUs that show these figures.
    """

    def counts(*looks):
        fake, sense, got = use_library(), GpuActivity(), []
        for look in looks:
            fake.gpus = [look] if isinstance(look, tuple) else look
            got.append(sense([7]))
        return got

    return counts


class TestActivity:
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

    @pytest.mark.parametrize(
        "hung",
        [
            [(100, 0), (100, 0), (100, 0), (100, 0)],
            [(100, 1), (99, 0), (96, 2), (98, 1)],
            [(0, 0), (0, 0), (0, 0), (0, 0)],
            [(96, None), (96, None), (95, None), (96, None)],
            [(49, 0), (50, 0), (49, 0), (50, 0)],
            [(100, 0), (100, None), (100, 0), (None, 0)],
        ],
    )
    def test_waiting(self, counts, hung):
        """
        A kernel that spins, an idle GPU, and a figure that is sometimes
        missing never count.
        """
        assert [0, 0, 0, 0] == counts(*hung)

    def test_pause(self, monkeypatch):
        """
        A driver that does not answer is asked ever more rarely, up to an hour.
        """
        now, asked_at = 0.0, []

        def ask(*, timeout_s, brief):
            asked_at.append(now / 60)
            raise TimeoutError

        monkeypatch.setattr(gpu_activity, "read_gpus", ask)
        sense = GpuActivity(clock=lambda: now)
        for minute in range(260):
            now = minute * 60.0
            assert sense([7]) is None

        assert [0, 1, 3, 7, 15, 31, 63, 123, 183, 243] == asked_at

    def test_answers_again(self, use_library):
        """
        After an answer, the next silence is short again.
        """
        now, got, fake = 0.0, [], use_library()
        sense = GpuActivity(clock=lambda: now)
        for now in (0.0, 60.0, 180.0, 190.0, 200.0, 260.0):
            fake.gpus = ((50, 50),) if now in {180.0, 260.0} else ("none",)
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

    @pytest.mark.parametrize(
        ("gpus", "is_there"), [([(1, 1)], False), (["none"], True)]
    )
    def test_no_driver(self, use_library, gpus, is_there):
        """
        Without a driver that answers, nothing is known.
        """
        use_library(*gpus, is_there=is_there)

        assert GpuActivity()([7]) is None

    def test_not_installed(self):
        """
        Without the library, nothing is known.
        """
        assert GpuActivity()([7]) is None

    def test_hangs(self, use_library):
        """
        A driver that hangs is left, and not asked once more soon.
        """
        fake, end = use_library((1, 1)), threading.Event()
        fake.nvmlInit = end.wait
        sense = GpuActivity(timeout_s=0.1)

        seen = [sense([7]), sense([7])]
        end.set()

        assert [None, None] == seen

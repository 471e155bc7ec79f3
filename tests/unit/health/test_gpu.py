"""
What the GPUs of a node report, with a driver that is made up.
"""

from __future__ import annotations

import sys
import threading
import time

from types import ModuleType, SimpleNamespace

import attrs
import pytest

from distdebug.health import Gpu, check_node_json, parse_node_json, read_gpus


GIB = 1 << 30


pytestmark = pytest.mark.usefixtures("no_gpus")


@pytest.fixture
def smi(program):
    """
    Installs a program that stands for nvidia-smi.
    """
    return lambda text: program("nvidia-smi", text)


TOOL = """
KNOWN = {
    'index': ('0', '1'),
    'uuid': ('GPU-a', 'GPU-b'),
    'utilization.gpu': ('97', '[Unknown Error]'),
    'utilization.memory': ('40', '[Unknown Error]'),
    'mig.mode.current': ('Disabled', '[N/A]'),
    'name': ('NVIDIA H100', 'NVIDIA H100'),
    'pci.bus_id': ('00000000:3B:00.0', '00000000:86:00.0'),
    'memory.used': ('1024', '[GPU is lost]'),
    'memory.total': ('81559', '[GPU is lost]'),
    'temperature.gpu': ('61', '[N/A]'),
    'pstate': ('P0', '[N/A]'),
    'clocks.sm': ('1980', '[N/A]'),
    'clocks.max.sm': ('1980', '[N/A]'),
    'power.draw': ('612.50', '[N/A]'),
    'enforced.power.limit': ('700.00', '[N/A]'),
    'clocks_throttle_reasons.active': ('0x0000000000000004', '[N/A]'),
    'ecc.errors.uncorrected.volatile.total': ('0', '[N/A]'),
    'retired_pages.pending': ('[N/A]', '[N/A]'),
}
query = sys.argv[1]
kind, _, names = query.partition('=')
names = names.split(',')
if kind == '--query-gpu':
    for name in names:
        if name not in KNOWN:
            print(f'Field "{name}" is not a valid field to query.')
            sys.exit(2)
    for gpu in (0, 1):
        print(', '.join(KNOWN[name][gpu] for name in names))
elif kind == '--query-compute-apps':
    print('GPU-a, 4711, 900\\nGPU-b, [N/A], 1\\nbroken')
elif kind == '--query-remapped-rows':
    print('GPU-a, No, No\\nGPU-b, Yes, Yes')
"""


class TestTool:
    @pytest.mark.process
    def test_all(self, smi):
        """
        Fields that an older version does not know are left out, or asked for
        by their earlier name.
        """
        smi(TOOL)

        good, lost = read_gpus(timeout_s=20)

        assert [(4711, 900 << 20)] == [*map(attrs.astuple, good.processes)]
        assert (
            Gpu(
                index=0,
                uuid="GPU-a",
                name="NVIDIA H100",
                bus_id="00000000:3B:00.0",
                utilization=97,
                memory_utilization=40,
                memory_used=1024 << 20,
                memory_total=81559 << 20,
                temperature=61,
                pstate="P0",
                clock_mhz=1980,
                most_clock_mhz=1980,
                power_w=612.5,
                power_limit_w=700.0,
                slowed_by=("power cap",),
                uncorrected_errors=0,
                needs_reset=False,
                is_worn_out=False,
                mig=False,
                processes=good.processes,
            )
            == good
        )
        assert (1, "GPU is lost") == (lost.index, lost.problem)
        assert (None, None, "") == (lost.utilization, lost.mig, lost.pstate)
        assert (True, True) == (lost.needs_reset, lost.is_worn_out)

    @pytest.mark.process
    def test_brief(self, smi):
        """
        What is asked often costs only what it needs.
        """
        smi(TOOL)

        good, _ = read_gpus(timeout_s=20, brief=True)

        (process,) = good.processes
        assert (97, "", None, 4711) == (
            *(good.utilization, good.name, good.memory_used),
            process.pid,
        )

    @pytest.mark.process
    def test_hangs(self, smi):
        """
        A driver that hangs costs no more than its time.
        """
        smi("time.sleep(600)")
        begin = time.monotonic()

        with pytest.raises(TimeoutError, match="did not end"):
            read_gpus(timeout_s=0.3)

        assert time.monotonic() - begin < 30

    @pytest.mark.process
    @pytest.mark.parametrize(
        "text",
        [
            "sys.exit('NVIDIA-SMI has failed because it could not')",
            "print('Field \"uuid2\" is not a valid field'); sys.exit(2)",
            "sys.exit(9)",
        ],
        ids=["no driver", "another field", "silent"],
    )
    def test_fails(self, smi, text):
        """
        A tool that fails says why; without a word it has an exit status.
        """
        smi(text)

        with pytest.raises(
            OSError, match=r"nvidia-smi: (NVIDIA-SMI|Field|exit status 9)"
        ):
            read_gpus(timeout_s=20)

    @pytest.mark.process
    def test_lost(self, smi, node):
        """
        It may refuse to go on for one GPU that fell off the bus.
        """
        smi(
            "print('Unable to determine the device handle for "
            "GPU0000:3B:00.0: GPU is lost.  Reboot the system'); sys.exit(15)",
        )

        health = node.check()

        (gpu,), (found,) = health.facts.gpus, health.findings
        assert (-1, "0000:3B:00.0") == (gpu.index, gpu.bus_id)
        assert "GPU at 0000:3B:00.0 does not answer: GPU is lost." in (
            found.summary
        )

    @pytest.mark.process
    def test_no_gpus(self, smi):
        """
        A driver without GPUs is no error.
        """
        smi("print('No devices were found'); sys.exit(6)")

        assert () == read_gpus(timeout_s=20)

    def test_none(self):
        """
        A node without a driver has no way to ask.
        """
        assert read_gpus() is None


class FakeError(Exception):
    """
    What NVIDIA's library raises.
    """

    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


def fake_library(monkeypatch, **answers):
    """
    NVIDIA's library, with one GPU.
    """
    module = ModuleType("pynvml")
    module.NVMLError = FakeError
    module.NVML_ERROR_GPU_IS_LOST = 15
    module.nvmlInit = lambda: None
    module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: 1
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetMemoryInfo = lambda gpu: SimpleNamespace(
        used=GIB, total=80 * GIB
    )
    for name, answer in answers.items():
        setattr(module, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def fail(value):
    """
    A question that the library does not answer.
    """

    def ask(*args):
        raise FakeError(value)

    return ask


class TestLibrary:
    def test_all(self, monkeypatch):
        """
        Everything that the library knows is read.
        """
        action = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=1))
        fake_library(
            monkeypatch,
            nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(
                gpu=90, memory=30
            ),
            nvmlDeviceGetComputeRunningProcesses=lambda gpu: [
                SimpleNamespace(pid=7, usedGpuMemory=5)
            ],
            nvmlDeviceGetUUID=lambda gpu: b"GPU-x",
            nvmlDeviceGetName=lambda gpu: "NVIDIA H100",
            nvmlDeviceGetPciInfo=lambda gpu: SimpleNamespace(
                busId=b"00000000:3B:00.0"
            ),
            nvmlDeviceGetMigMode=lambda gpu: [1, 1],
            nvmlDeviceGetPerformanceState=lambda gpu: 0,
            nvmlDeviceGetTemperature=lambda gpu, sensor: 55,
            nvmlDeviceGetClockInfo=lambda gpu, clock: 1200,
            nvmlDeviceGetMaxClockInfo=lambda gpu, clock: 1980,
            nvmlDeviceGetPowerUsage=lambda gpu: 300_500,
            nvmlDeviceGetEnforcedPowerLimit=fail(3),
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 0x48,
            nvmlDeviceGetTotalEccErrors=lambda gpu, kind, since: 2,
            nvmlDeviceGetRemappedRows=lambda gpu: (0, 1, 1, 0),
            nvmlDeviceGetFieldValues=lambda gpu, fields: [action],
            NVML_FI_DEV_GET_GPU_RECOVERY_ACTION=230,
        )

        (gpu,) = read_gpus()
        (process,) = gpu.processes

        assert (7, 5) == (process.pid, process.memory)
        assert (
            Gpu(
                index=0,
                uuid="GPU-x",
                name="NVIDIA H100",
                bus_id="00000000:3B:00.0",
                utilization=90,
                memory_utilization=30,
                memory_used=GIB,
                memory_total=80 * GIB,
                temperature=55,
                pstate="P0",
                clock_mhz=1200,
                most_clock_mhz=1980,
                power_w=300.5,
                slowed_by=(
                    "hardware slowdown",
                    "hardware thermal slowdown",
                ),
                uncorrected_errors=2,
                needs_reset=True,
                is_worn_out=False,
                recovery="Reset",
                mig=True,
                processes=gpu.processes,
            )
            == gpu
        )

    def test_fabric(self, monkeypatch):
        """
        The state of the fabric comes from a structure that the library fills.
        """
        import ctypes

        class Info(ctypes.Structure):
            _fields_ = (("state", ctypes.c_ubyte),)

        def fill(gpu, reference):
            reference._obj.state = 2

        fake_library(
            monkeypatch,
            c_nvmlGpuFabricInfo_t=Info,
            nvmlDeviceGetGpuFabricInfo=fill,
            NVML_FI_DEV_GET_GPU_RECOVERY_ACTION=230,
            nvmlDeviceGetFieldValues=lambda gpu, fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=99))
            ],
        )

        (gpu,) = read_gpus()

        assert ("In Progress", "action 99") == (gpu.fabric, gpu.recovery)

    def test_little(self, monkeypatch):
        """
        What an old driver does not know is left open, and nothing is wrong.
        """
        fake_library(monkeypatch, nvmlDeviceGetUUID=fail(3))

        (gpu,) = read_gpus(brief=True)

        assert Gpu(index=0) == gpu

    def test_lost(self, monkeypatch):
        """
        A GPU that fell off the bus has a problem, and hides none.
        """
        fake_library(
            monkeypatch,
            nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda i: i or fail(15)(),
        )

        lost, good = read_gpus(brief=True)

        assert ("error 15", "") == (lost.problem, good.problem)

    @pytest.mark.parametrize(("error", "problem"), [(4, ""), (15, "error 15")])
    def test_no_memory(self, monkeypatch, error, problem):
        """
        A GPU of another container may not be asked, which is no fault; one
        also counts as lost if only its memory cannot be asked for.
        """
        fake_library(monkeypatch, nvmlDeviceGetMemoryInfo=fail(error))

        (gpu,) = read_gpus()

        assert problem == gpu.problem

    @pytest.mark.process
    @pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetCount"])
    def test_unfit(self, monkeypatch, smi, name):
        """
        If the library does not fit the driver, the tool is asked.
        """
        fake_library(monkeypatch, **{name: fail(18)})
        smi(TOOL)

        assert 2 == len(read_gpus(timeout_s=20))

    def test_hangs(self, monkeypatch):
        """
        A driver that hangs costs no more than its time.
        """
        never = threading.Event()
        fake_library(monkeypatch, nvmlInit=never.wait)

        try:
            with pytest.raises(TimeoutError):
                read_gpus(timeout_s=0.05)
        finally:
            never.set()


WELL = {
    "index": "3",
    "name": "NVIDIA H100",
    "pci.bus_id": "00000000:3B:00.0",
    "utilization.gpu": "99",
    "memory.used": "71680",
    "memory.total": "81920",
    "clocks.sm": "1900",
    "clocks.max.sm": "1980",
    "clocks_event_reasons.active": "0x4",
    "ecc.errors.uncorrected.volatile.total": "0",
    "fabric.state": "Completed",
}
REASONS = "clocks_event_reasons.active"
ERRORS = "ecc.errors.uncorrected.volatile.total"
RETIRED = "retired_pages.pending"


class TestJudge:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"memory.used": "[GPU is lost]"}, "gpu_fault certain: is lost"),
            (
                {"gpu_recovery_action": "Reset"},
                "gpu_fault likely: asks for 'Reset'",
            ),
            ({ERRORS: "2"}, "gpu_fault possible: 2 memory errors"),
            (
                {ERRORS: "2", RETIRED: "Yes"},
                "gpu_fault likely: 2 memory errors",
            ),
            ({RETIRED: "Yes"}, "gpu_fault possible: next reset"),
            (
                {"fabric.state": "In Progress"},
                "node_misconfigured likely: NVSwitch",
            ),
            (
                {REASONS: "0x40", "clocks.sm": "345"},
                "straggler likely: to 345 of 1980 MHz",
            ),
            (
                {REASONS: "0x8", "clocks.sm": "[N/A]"},
                "straggler possible: slowed down: hardware",
            ),
            (
                {"memory.used": "81920"},
                "gpu_out_of_memory possible: only 0 B of 80.0 GiB",
            ),
            ({}, ""),
            ({REASONS: "0x9", "clocks.sm": "200"}, ""),
            (dict.fromkeys(WELL, "[N/A]"), ""),
        ],
        ids=[
            *("lost", "recovery", "errors", "errors and reset", "reset"),
            *("fabric", "hot", "slow", "full"),
            *("at work", "idle", "little known"),
        ],
    )
    def test_judge(self, change, expected):
        """
        What is wrong is said once; a GPU at work, at the limit of its power,
        is well, and one without work has low clocks.
        """
        found = check_node_json({"gpus": [WELL | change]}, host="n1")

        cause, _, says = expected.partition(": ")
        assert cause == " ".join(
            f"{x.cause.value} {x.confidence}" for x in found
        )
        assert all(x.summary.startswith("n1: GPU 3 ") for x in found)
        assert all(says in x.summary for x in found)

    @pytest.mark.process
    def test_worn_out(self, node, smi):
        """
        Bad memory that could not be replaced is a finding, with the ranks that
        use the GPU.
        """
        smi(TOOL.replace("GPU-a, No, No", "GPU-a, Yes, Yes"))

        lost, worn = node.check(ranks={4711: 12}).findings

        assert ["gpu_fault certain", "gpu_fault likely 12"] == node.found(
            ranks={4711: 12}
        )
        assert "GPU 1 does not answer" in lost.summary
        assert "has bad memory that could not be replaced" in worn.summary


class TestDriver:
    @pytest.mark.process
    @pytest.mark.parametrize(
        ("problem", "found"),
        [
            (
                "Failed to initialize NVML: Driver/library version mismatch",
                ["node_misconfigured certain"],
            ),
            ("NVIDIA-SMI has failed because it could not", []),
        ],
        ids=["mismatch", "no driver"],
    )
    def test_fails(self, node, smi, problem, found):
        """
        A driver that does not fit is found; none at all is not.
        """
        smi(f"sys.exit({problem!r})")

        assert found == node.found()
        assert ["GPUs"] == [x.what for x in node.check().missing]

    @pytest.mark.parametrize(
        ("seconds", "confidence"), [(10, "likely"), (4, "possible")]
    )
    def test_hangs(self, node, monkeypatch, seconds, confidence):
        """
        A driver that does not answer is a finding, and its GPUs are missing.
        """

        def hang():
            raise TimeoutError

        fake_library(monkeypatch, nvmlInit=hang)

        assert [f"gpu_fault {confidence}"] == node.found(timeout_s=seconds)
        assert ["GPUs"] == [x.what for x in node.check().missing]


def test_row_of_anything():
    """
    A row out of a file may hold anything; bits without a meaning are left
    out.
    """
    row = {
        "index": "x",
        "memory.used": "-1",
        "name": "\x1b[31mH100",
        "pstate": "[N/A]",
        REASONS: "0x10101",
    }

    (gpu,) = parse_node_json({"gpus": [row]}, host="n1").gpus

    slowed_by = ("idle", "clocks of a display")
    assert Gpu(index=0, name="H100", slowed_by=slowed_by) == gpu

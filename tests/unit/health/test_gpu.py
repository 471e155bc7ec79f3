"""
What the GPUs of a node tell, with a driver that is made up.
"""

from __future__ import annotations

import sys
import threading
import time

from types import ModuleType, SimpleNamespace

import pytest

from distdebug.findings import Cause
from distdebug.health import Gpu, read_gpus
from distdebug.health.gpu.driver import judge_driver
from distdebug.health.gpu.judge import judge_gpus
from distdebug.health.gpu.model import GpuProcess, bus_key
from distdebug.health.gpu.reasons import reason_names
from distdebug.health.gpu.rows import gpu_of_row


GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_driver(monkeypatch, tmp_path):
    """
    A machine without a driver of NVIDIA.
    """
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()


def write_smi(tmp_path, text):
    """
    A program that stands for nvidia-smi.
    """
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{text}\n")
    program.chmod(0o755)


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
    def test_all(self, tmp_path):
        """
        Fields that an older version does not know are left out, or asked for
        by their earlier name.
        """
        write_smi(tmp_path, TOOL)

        good, lost = read_gpus(timeout_s=20)

        assert ("GPU-a", "NVIDIA H100") == (good.uuid, good.name)
        assert (97, 40) == (good.utilization, good.memory_utilization)
        assert (1024 << 20, 81559 << 20) == (
            good.memory_used,
            good.memory_total,
        )
        assert (612.5, 700.0) == (good.power_w, good.power_limit_w)
        assert ("power cap",) == good.slowed_by
        assert (GpuProcess(pid=4711, memory=900 << 20),) == good.processes
        assert (False, False, False) == (
            good.needs_reset,
            good.is_worn_out,
            good.mig,
        )
        assert "" == good.problem
        assert (1, "GPU is lost") == (lost.index, lost.problem)
        assert (None, None, "") == (lost.utilization, lost.mig, lost.pstate)
        assert (True, True) == (lost.needs_reset, lost.is_worn_out)

    def test_brief(self, tmp_path):
        """
        What is asked often costs only what it needs.
        """
        write_smi(tmp_path, TOOL)

        good, _ = read_gpus(timeout_s=20, brief=True)

        assert (97, "", None) == (
            good.utilization,
            good.name,
            good.memory_used,
        )
        assert 4711 == good.processes[0].pid

    def test_hangs(self, tmp_path):
        """
        A driver that hangs costs no more than its time.
        """
        write_smi(tmp_path, "time.sleep(600)")
        begin = time.monotonic()

        with pytest.raises(TimeoutError, match="did not end"):
            read_gpus(timeout_s=0.3)

        assert time.monotonic() - begin < 30

    @pytest.mark.parametrize(
        "text",
        [
            "sys.exit('NVIDIA-SMI has failed because it could not')",
            "print('Field \"uuid2\" is not a valid field'); sys.exit(2)",
        ],
        ids=["no driver", "another field"],
    )
    def test_fails(self, tmp_path, text):
        """
        A tool that fails tells why.
        """
        write_smi(tmp_path, text)

        with pytest.raises(OSError, match=r"nvidia-smi: (NVIDIA-SMI|Field)"):
            read_gpus(timeout_s=20)

    def test_lost(self, tmp_path):
        """
        It may refuse to go on for one GPU that fell off the bus.
        """
        write_smi(
            tmp_path,
            "print('Unable to determine the device handle for "
            "GPU0000:3B:00.0: GPU is lost.  Reboot the system'); sys.exit(15)",
        )

        (gpu,) = read_gpus(timeout_s=20)
        (found,) = judge_gpus([gpu], host="n1")

        assert (-1, "0000:3B:00.0") == (gpu.index, gpu.bus_id)
        assert found.summary.startswith(
            "n1: GPU at 0000:3B:00.0 does not answer: GPU is lost."
        )

    def test_no_gpus(self, tmp_path):
        """
        A driver without GPUs is no error.
        """
        write_smi(tmp_path, "print('No devices were found'); sys.exit(6)")

        assert () == read_gpus(timeout_s=20)

    def test_silent_failure(self, tmp_path):
        """
        One that fails without a word has at least an exit status.
        """
        write_smi(tmp_path, "sys.exit(9)")

        with pytest.raises(OSError, match="exit status 9"):
            read_gpus(timeout_s=20)

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
        Everything that the library knows is told.
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
                processes=(GpuProcess(pid=7, memory=5),),
            )
            == gpu
        )

    def test_fabric(self, monkeypatch):
        """
        The state of the fabric is told by a structure that is filled.
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

    def test_refuses(self, monkeypatch):
        """
        A GPU of another container may not be asked, which is no fault.
        """
        fake_library(monkeypatch, nvmlDeviceGetMemoryInfo=fail(4))

        (gpu,) = read_gpus()

        assert "" == gpu.problem

    def test_lost(self, monkeypatch):
        """
        A GPU that fell off the bus is told, and hides none.
        """
        fake_library(
            monkeypatch,
            nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda i: i or fail(15)(),
        )

        lost, good = read_gpus(brief=True)

        assert ("error 15", "") == (lost.problem, good.problem)

    def test_lost_later(self, monkeypatch):
        """
        It also counts as lost if only its memory cannot be asked for.
        """
        fake_library(monkeypatch, nvmlDeviceGetMemoryInfo=fail(15))

        (gpu,) = read_gpus()

        assert "error 15" == gpu.problem

    @pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetCount"])
    def test_unfit(self, monkeypatch, tmp_path, name):
        """
        If the library does not fit the driver, the tool is asked.
        """
        fake_library(monkeypatch, **{name: fail(18)})
        write_smi(tmp_path, TOOL)

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


WELL = Gpu(
    index=3,
    name="NVIDIA H100",
    bus_id="00000000:3B:00.0",
    utilization=99,
    memory_used=70 * GIB,
    memory_total=80 * GIB,
    clock_mhz=1900,
    most_clock_mhz=1980,
    slowed_by=("power cap",),
    uncorrected_errors=0,
    fabric="Completed",
    processes=(GpuProcess(pid=7),),
)


class TestJudge:
    def test_well(self):
        """
        A GPU at work, at the limit of its power, is well.
        """
        assert () == judge_gpus([WELL, Gpu(index=0)])

    @pytest.mark.parametrize(
        ("change", "cause", "confidence", "says"),
        [
            ({"problem": "GPU is lost"}, "gpu_fault", "certain", "is lost"),
            ({"recovery": "Reset"}, "gpu_fault", "likely", "asks for 'Reset'"),
            ({"is_worn_out": True}, "gpu_fault", "likely", "replaced"),
            ({"uncorrected_errors": 2}, "gpu_fault", "possible", "2 memory"),
            (
                {"uncorrected_errors": 2, "needs_reset": True},
                "gpu_fault",
                "likely",
                "2 memory errors",
            ),
            ({"needs_reset": True}, "gpu_fault", "possible", "next reset"),
            (
                {"fabric": "In Progress"},
                "node_misconfigured",
                "likely",
                "NVSwitch",
            ),
            (
                {
                    "slowed_by": ("hardware thermal slowdown",),
                    "clock_mhz": 345,
                },
                "straggler",
                "likely",
                "to 345 of 1980 MHz",
            ),
            (
                {"slowed_by": ("hardware slowdown",), "clock_mhz": None},
                "straggler",
                "possible",
                "slowed down: hardware",
            ),
            (
                {"memory_used": 80 * GIB},
                "gpu_out_of_memory",
                "possible",
                "only 0 B of 80.0 GiB",
            ),
        ],
        ids=lambda x: x if isinstance(x, str) else "",
    )
    def test_unwell(self, change, cause, confidence, says):
        """
        What is wrong is told once, with the ranks that use the GPU.
        """
        gpu = Gpu(
            **{a: getattr(WELL, a) for a in Gpu.__slots__ if a[0] != "_"}
            | change
        )

        (found,) = judge_gpus([gpu], host="n1", ranks={7: 12})

        assert (Cause(cause), confidence) == (found.cause, found.confidence)
        assert found.summary.startswith("n1: GPU 3 ")
        assert says in found.summary
        assert (12,) == found.ranks

    def test_idle(self):
        """
        A GPU without work has low clocks.
        """
        gpu = Gpu(index=0, slowed_by=("idle", "hardware slowdown"))

        assert () == judge_gpus([gpu])


@pytest.mark.parametrize(
    ("problem", "waited", "told"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            0.0,
            [(Cause.NODE_MISCONFIGURED, "certain")],
        ),
        ("did not end", 9.0, [(Cause.GPU_FAULT, "likely")]),
        ("did not end", 2.0, [(Cause.GPU_FAULT, "possible")]),
        ("NVIDIA-SMI has failed because it could not", 0.0, []),
        ("", 0.0, []),
    ],
    ids=["mismatch", "hangs", "slow", "no driver", "well"],
)
def test_driver(problem, waited, told):
    """
    A driver that hangs, or does not fit, is found; none at all is not.
    """
    found = judge_driver(problem, waited_s=waited)

    assert told == [(x.cause, x.confidence) for x in found]


def test_bus_key():
    """
    The driver and the kernel write the same place in different ways.
    """
    assert (0, 0x3B, 0) == bus_key("00000000:3B:00.0")
    assert (0, 0x3B, 0) == bus_key("PCI:0000:3b:00")
    assert (0, 0x3B, 0) == bus_key("3b:00.0")
    assert bus_key("eth0") is None


def test_reasons():
    """
    Bits that nobody knows are left out.
    """
    assert ("idle", "clocks of a display") == reason_names(0x10101)


def test_row_of_anything():
    """
    A row out of a file may hold anything.
    """
    gpu = gpu_of_row(
        {
            "index": "x",
            "memory.used": "-1",
            "name": "\x1b[31mH100",
            "pstate": "[N/A]",
        },
        index=5,
    )

    assert Gpu(index=5, name="H100") == gpu

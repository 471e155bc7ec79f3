"""
What the GPUs of a node report, with a driver that is made up.
"""

from __future__ import annotations

import json
import sys
import threading

from types import SimpleNamespace

import attrs
import pytest

from distdebug.health import (
    Gpu,
    GpuProcess,
    check_node_json,
    parse_node_json,
    read_gpus,
)


GIB = 1 << 30


pytestmark = pytest.mark.usefixtures("no_gpus")


class TestLibrary:
    def test_all(self, library, fail):
        """
        Everything that the library knows is read.
        """
        action = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=1))
        library(
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

    def test_fabric(self, library, fail):
        """
        The state of the fabric comes from a structure that the library fills.
        """
        import ctypes

        class Info(ctypes.Structure):
            _fields_ = (("state", ctypes.c_ubyte),)

        def fill(gpu, reference):
            reference._obj.state = 2

        library(
            c_nvmlGpuFabricInfo_t=Info,
            nvmlDeviceGetGpuFabricInfo=fill,
            NVML_FI_DEV_GET_GPU_RECOVERY_ACTION=230,
            nvmlDeviceGetFieldValues=lambda gpu, fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=99))
            ],
        )

        (gpu,) = read_gpus()

        assert ("In Progress", "action 99") == (gpu.fabric, gpu.recovery)

    def test_little(self, library, fail):
        """
        What an old driver does not know is left open, and nothing is wrong.
        """
        library(nvmlDeviceGetUUID=fail(3))

        (gpu,) = read_gpus(brief=True)

        assert Gpu(index=0) == gpu

    def test_lost(self, library, fail):
        """
        A GPU that fell off the bus has a problem, and hides none.
        """
        library(
            nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda i: i or fail(15)(),
        )

        lost, good = read_gpus(brief=True)

        assert ("error 15", "") == (lost.problem, good.problem)

    @pytest.mark.parametrize(
        ("error", "problem"),
        [(4, ""), (15, "error 15"), (16, "GPU requires reset")],
    )
    def test_no_memory(self, library, fail, error, problem):
        """
        A GPU of another container may not be asked, which is no fault; one
        also counts as lost if only its memory cannot be asked for.
        """
        library(nvmlDeviceGetMemoryInfo=fail(error))

        (gpu,) = read_gpus()

        assert problem == gpu.problem

    @pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetCount"])
    def test_unfit(self, library, fail, name):
        """
        A driver that cannot be asked says why.
        """
        library(**{name: fail(18, "version\x1b[31m mismatch")})

        with pytest.raises(OSError, match="NVML: version mismatch"):
            read_gpus(timeout_s=20)

    def test_shutdown(self, library, fail):
        """
        What was read is kept if the library cannot be left.
        """
        library(nvmlShutdown=fail(1))

        assert 1 == len(read_gpus())

    def test_none(self):
        """
        A node without a driver has no library of it.
        """
        assert read_gpus() is None

    def test_not_installed(self, monkeypatch):
        """
        Without the module that asks the driver, its name is told.
        """
        monkeypatch.setitem(sys.modules, "pynvml", None)

        with pytest.raises(OSError, match="pip install nvidia-ml-py"):
            read_gpus()

    def test_hangs(self, library, fail):
        """
        A driver that hangs costs no more than its time.
        """
        never = threading.Event()
        library(nvmlInit=never.wait)

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
                "straggler possible: throttled: hardware",
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

    def test_worn_out(self, node, library):
        """
        Bad memory that could not be replaced is a finding, with the ranks that
        use the GPU.
        """
        library(
            nvmlDeviceGetRemappedRows=lambda gpu: (0, 1, 1, 1),
            nvmlDeviceGetComputeRunningProcesses=lambda gpu: [
                SimpleNamespace(pid=4711, usedGpuMemory=5)
            ],
        )

        (worn,) = node.check(ranks={4711: 12}).findings

        assert ["gpu_fault likely 12"] == node.found(ranks={4711: 12})
        assert "has bad memory that could not be replaced" in worn.summary


class TestDriver:
    @pytest.mark.parametrize(
        ("problem", "found"),
        [
            (
                "RM has detected an NVML/RM version mismatch.",
                ["node_misconfigured certain"],
            ),
            ("Driver Not Loaded", []),
        ],
        ids=["mismatch", "no driver"],
    )
    def test_fails(self, node, library, fail, problem, found):
        """
        A driver that does not fit is found; none at all is not.
        """
        library(nvmlInit=fail(18, problem))

        assert found == node.found()
        assert ["GPUs"] == [x.what for x in node.check().missing]

    @pytest.mark.parametrize(
        ("seconds", "confidence"), [(10, "likely"), (4, "possible")]
    )
    def test_hangs(self, node, library, seconds, confidence):
        """
        A driver that does not answer is a finding, and its GPUs are missing.
        """

        def hang():
            raise TimeoutError

        library(nvmlInit=hang)

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


def test_kept():
    """
    What a snapshot keeps of a GPU comes back; what is no value of it is left
    out.
    """
    gpu = Gpu(
        index=3,
        name="H100",
        utilization=97,
        power_w=612.5,
        slowed_by=("power cap",),
        needs_reset=True,
        processes=(GpuProcess(pid=7),),
    )
    kept = json.loads(json.dumps(attrs.asdict(gpu)))
    junk = {"index": "x", "uuid": 7, "power_w": 10**400, "slowed_by": {}}
    junk |= {"processes": [7, {"pid": "7"}], "utilization": [], "other": 1}

    facts = parse_node_json({"gpus": [kept, junk, "x", {}]}, host="n1")

    assert (gpu, Gpu(index=1)) == facts.gpus

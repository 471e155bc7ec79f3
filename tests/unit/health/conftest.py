"""
A made-up machine for the tests of a node's health.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from distdebug.health import NodeHealth, check_node


UPTIME_S = 200_000.0
_MOVED = ("/proc/", "/sys/", "/dev/kmsg/", "/var/log/")
_WELL = {
    "total": 1 << 40,
    "free": 1 << 38,
    "files": 10_000,
    "free_files": 9000,
}


class FakeNode:
    """
    A node whose kernel, disks, interfaces, and tools are made up.

    The library opens the usual paths; the calls of the operating system lead
    it to files below a folder.
    """

    def __init__(self, root: Path, proc: Any) -> None:
        self.root = root
        self.proc = proc
        self.booted = time.time() - UPTIME_S
        self.records: list[bytes] | None = [b"6,1,2500000,-;Linux\n"]
        self.disks: dict[str, Any] = {"/tmp": {}, "/dev/shm": {}}
        self.addresses: dict[str, list[str]] = {}
        self.states: dict[str, Any] = {}
        self.counts: dict[str, Any] = {}

    def moved(self, path: Any) -> Any:
        """
        Where a path of the kernel lies here.
        """
        text = os.fspath(path) if isinstance(path, (str, Path)) else ""
        is_moved = f"{text}/".startswith(_MOVED)
        return f"{self.root}{text}" if is_moved else path

    def write(self, folder: str, files: Mapping[str, object]) -> None:
        """
        Write files of the kernel.
        """
        place = Path(self.moved(folder))
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(f"{text}\n")

    def say(self, text: str, *, ago: float = 5.0) -> None:
        """
        Let the kernel say something.
        """
        micros = int((time.time() - ago - self.booted) * 1e6)
        self.records = [*(self.records or ())]
        self.records.append(f"6,2,{micros},-;{text}\n".encode())

    def add_process(self, pid: int, **files: str) -> Path:
        """
        Add a process with memory of its own, and with these files.
        """
        folder: Path = self.proc.add(pid, "python")
        status = folder / "status"
        status.write_text(f"{status.read_text()}VmSize:\t10 kB\n")
        for name, text in files.items():
            (folder / name).write_text(text)
        return folder

    def open_kernel_log(self) -> int:
        """
        Open the device, which gives one message for each call.
        """
        if self.records is None:
            raise PermissionError(1, "Operation not permitted")

        reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
        for record in self.records:
            os.write(writer, record)
        os.close(writer)
        return reader

    def statvfs(self, path: str) -> Any:
        """
        Answer for a file system.
        """
        known = self.disks.get(os.fspath(path))
        if known is None:
            raise FileNotFoundError(2, "No such file or directory")
        if callable(known):
            return known()

        told = _WELL | known
        return SimpleNamespace(
            f_frsize=1,
            f_blocks=told["total"],
            f_bavail=told["free"],
            f_files=told["files"],
            f_favail=told["free_files"],
            f_flag=os.ST_RDONLY if told.get("is_read_only") else 0,
        )

    def check(self, **options: Any) -> NodeHealth:
        """
        Look at this node.
        """
        return check_node(**{"timeout_s": 20.0} | options)

    def found(self, **options: Any) -> list[str]:
        """
        What is wrong with this node: cause, confidence, and ranks of each.
        """
        return [
            " ".join([x.cause.value, x.confidence, *map(str, x.ranks)])
            for x in self.check(**options).findings
        ]


class FakeNvmlError(Exception):
    """
    An error of NVIDIA's library.
    """

    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text or f"error {value}")
        self.value = value


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """
    NVIDIA's library on a node without a driver.
    """

    def init() -> None:
        raise FakeNvmlError(12)

    module = ModuleType("pynvml")
    vars(module).update(
        NVMLError=FakeNvmlError,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_ERROR_GPU_IS_LOST=15,
        NVML_ERROR_RESET_REQUIRED=16,
        nvmlInit=init,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.fixture(name="library")
def _library(nvml: ModuleType) -> Callable[..., None]:
    """
    Let NVIDIA's library give these answers about one GPU.
    """

    def library(**answers: Any) -> None:
        vars(nvml).update(
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(
                used=(1 << 30), total=80 * (1 << 30)
            ),
        )
        vars(nvml).update(answers)

    return library


@pytest.fixture(name="fail")
def _fail(nvml: ModuleType) -> Callable[..., Any]:
    """
    A question that the library does not answer.
    """

    def fail(*error: Any) -> Callable[..., None]:
        def ask(*args: Any) -> None:
            raise nvml.NVMLError(*error)

        return ask

    return fail


@pytest.fixture
def no_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nvml: ModuleType
) -> None:
    """
    A machine without a driver of NVIDIA and without any tool.
    """
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()


@pytest.fixture
def program(tmp_path: Path, no_gpus: None) -> Callable[[str, str], None]:
    """
    Installs a program in Python, which is found by its name.
    """

    def install(name: str, text: str) -> None:
        program = tmp_path / "bin" / name
        program.write_text(f"#!{sys.executable}\nimport sys, time\n{text}\n")
        program.chmod(0o755)

    return install


@pytest.fixture
def node(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fake_proc: Any,
    no_gpus: None,
) -> FakeNode:
    """
    A node on which all is well, with nothing on it.
    """
    fake = FakeNode(tmp_path, fake_proc)
    fake.write(
        "/proc", {"meminfo": "MemTotal: 100 kB\nMemAvailable: 90 kB\nx"}
    )
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    for name in ("listdir", "readlink"):
        monkeypatch.setattr(os, name, _moving(fake, getattr(os, name)))
    real = os.open

    def open_file(path: Any, *args: Any, **known: Any) -> int:
        if path == "/dev/kmsg":
            return fake.open_kernel_log()
        return real(fake.moved(path), *args, **known)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "statvfs", fake.statvfs)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.1")
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: iter(()))
    monkeypatch.setattr(time, "clock_gettime", lambda clock: UPTIME_S)
    _fake_interfaces(monkeypatch, fake)
    return fake


def _moving(fake: FakeNode, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *args: Any, **known: Any) -> Any:
        return real(fake.moved(path), *args, **known)

    return call


def _fake_interfaces(monkeypatch: pytest.MonkeyPatch, fake: FakeNode) -> None:
    def address(text: str) -> SimpleNamespace:
        ip, _, netmask = text.partition(" ")
        return SimpleNamespace(address=ip, netmask=netmask or None)

    monkeypatch.setattr(
        psutil,
        "net_if_addrs",
        lambda: {k: list(map(address, x)) for k, x in fake.addresses.items()},
    )
    monkeypatch.setattr(psutil, "net_if_stats", lambda: fake.states)
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: fake.counts)

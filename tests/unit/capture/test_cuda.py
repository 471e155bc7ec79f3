"""
Kernels on GPUs, with stand-ins for cuda-gdb and for the driver.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distdebug.capture.attaching import cuda, cuda_dump
from distdebug.capture.attaching.cuda import capture_cuda
from distdebug.capture.attaching.cuda_dump import (
    DumpPipe,
    find_dump_pipe,
    request_dump,
)
from distdebug.capture.permission import namespace


KERNELS = """\
# CUDA Kernel Information
  Kernel Parent Dev Grid Status   SMs Mask    GridDim  BlockDim Invocation
*      0      -   0   75 Active 0x00000001 (32,1,1) (128,1,1) spin(int*)
"""
STACK = """\
# Thread Backtraces

Thread 1 (Thread 0x7f00 (LWP 7) "python"):
#0  0x0001 in cuStreamSynchronize () from /lib/libcuda.so.1
#1  0x0002 in main ()
"""

# Does what the driver does when it is asked for a dump.
DRIVER = """\
import os, sys, time
pipe = os.open(sys.argv[1], os.O_RDWR)
print(flush=True)
got = 0
while got < 1 << 20:
    got += len(os.read(pipe, 1 << 16))
if len(sys.argv) > 2:
    with open(sys.argv[2], 'w') as file:
        file.write('half'); file.flush()
        time.sleep(0.8)
        file.write('whole')
time.sleep(600)
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """
    Writes stand-ins for tools; only those are there.
    """
    folder = tmp_path / "tools"
    folder.mkdir()

    def write(**codes):
        for name, code in codes.items():
            path = folder / name.replace("_", "-")
            path.write_text(
                f"#!{sys.executable} -IS\nimport sys, time\n{code}"
            )
            path.chmod(0o755)

    def find(name):
        path = folder / name
        return str(path) if path.exists() else None

    monkeypatch.setattr(namespace, "find_tool", find)
    monkeypatch.setattr(cuda, "find_tool", find)
    return write


@pytest.fixture
def process(tmp_path):
    """
    Starts a process that offers to write a dump.
    """
    started = []

    def start(*, flags="skip_abort,skip_global_memory", **environ):
        pipe = tmp_path / f"corepipe.{os.uname().nodename}.7"
        os.mkfifo(pipe)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DRIVER, pipe]
            + ([environ["made"]] if "made" in environ else []),
            env={
                "CUDA_COREDUMP_GENERATION_FLAGS": flags,
                "CUDA_COREDUMP_PIPE": str(tmp_path / "corepipe.%h.%p"),
                "CUDA_COREDUMP_FILE": str(tmp_path / "core.%t.%p"),
            },
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        started.append(child)
        child.stdout.readline()
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def says(text):
    """
    The program of a tool that prints something.
    """
    return f"print({text!r})"


class TestFindDumpPipe:
    def test_offered(self, process, tmp_path):
        """
        A process that offers dumps is found by its open pipe.
        """
        pid = process()

        pipe = find_dump_pipe(pid)

        assert pid == pipe.pid
        assert f"/proc/{pid}/root{tmp_path}/core.*.*" == pipe.files.replace(
            "//", "/"
        )

    def test_harmful(self, process):
        """
        A dump that would end the process, or write all memory of its GPUs, is
        only asked for if the user wants that.
        """
        pid = process(flags="skip_abort")

        assert find_dump_pipe(pid) is None
        assert find_dump_pipe(pid, may_abort=True) is not None

    def test_others(self, tmp_path):
        """
        Most processes do not offer it; other files are not taken for pipes.
        """
        (tmp_path / "corepipe.cuda.host.7").touch()
        with (tmp_path / "corepipe.cuda.host.7").open():
            found = find_dump_pipe(os.getpid(), may_abort=True)

        assert found is None
        assert find_dump_pipe(999999999, may_abort=True) is None
        assert not cuda_dump._is_pipe("/none")

    def test_default_file(self):
        """
        Without a name of its own, the dump is where the process works.
        """
        pattern = cuda_dump._files(7, {})

        assert "/proc/7/cwd/core_*_*_*.nvcudmp" == pattern


class TestRequestDump:
    def test_whole(self, process, tmp_path):
        """
        The dump is waited for until it is written whole.
        """
        old = tmp_path / "core.1.7"
        old.touch()
        pipe = find_dump_pipe(process(made=str(tmp_path / "core.2.7")))

        path = request_dump(pipe, timeout_s=60)

        assert "core.2.7" == path.name
        assert "halfwhole" == path.read_text()

    def test_never(self, process):
        """
        A process that writes nothing is not waited for longer.
        """
        pipe = find_dump_pipe(process())

        assert request_dump(pipe, timeout_s=0.5) is None

    def test_nobody_reads(self, tmp_path):
        """
        A pipe without a reader is an error, not a hang.
        """
        os.mkfifo(tmp_path / "pipe")

        with pytest.raises(OSError):
            request_dump(
                DumpPipe(7, str(tmp_path / "pipe"), "/none*"), timeout_s=60
            )


class TestCaptureCuda:
    def test_debugger(self, tools, process):
        """
        Kernels and threads are read from what cuda-gdb prints.
        """
        tools(cuda_gdb=says(KERNELS + STACK))

        got = capture_cuda(process(flags=""))

        assert ["spin(int*)"] == [k.name for k in got.kernels]
        assert "cuStreamSynchronize" == got.threads[0].frames[0].name
        assert ["cuda-gdb"] == [a.tool for a in got.attempts]
        assert "failed" not in got.text

    def test_no_frame(self, tools, process):
        """
        Where cuda-gdb unwinds nothing, gdb does, and the kernels are kept.
        """
        unwinder = "Unwinder should return gdb.UnwindInfo instance."
        tools(cuda_gdb=says(KERNELS + unwinder), gdb=says(STACK))

        got = capture_cuda(process(flags=""))

        assert ["spin(int*)"] == [k.name for k in got.kernels]
        assert 1 == len(got.threads)
        assert [("cuda-gdb", "tool_failed"), ("gdb", "ok")] == [
            (a.tool, a.status) for a in got.attempts
        ]
        assert "cuda-gdb failed or timed out" in got.text
        assert KERNELS in got.text
        assert "cuStreamSynchronize" in got.text

    def test_time(self, tools, process):
        """
        That the time was over is said as in the scripts that users know.
        """
        tools(cuda_gdb="time.sleep(600)")

        got = capture_cuda(process(flags=""), timeout_s=1)

        assert ["timed_out", "tool_missing"] == [
            a.status for a in got.attempts
        ]
        assert got.text.startswith("ERROR: cuda-gdb failed or timed out (")
        assert () == got.threads == got.kernels

    def test_unwinder_is_replaced(self, tools, process):
        """
        The cure for the unwinder is given before anything is loaded, and
        kernels are asked for before stacks.
        """
        tools(cuda_gdb=f"print(*sys.argv); print({STACK!r})")

        text = capture_cuda(process(flags="")).text

        cure = text.index("-iex python gdb._execute_unwinders = None")
        kernels = text.index("-ex info cuda kernels")
        assert cure < kernels < text.index("-ex thread apply all bt")

    def test_dump(self, tools, process, tmp_path):
        """
        A process that offers a dump is not stopped.
        """
        tools(cuda_gdb=f"print(*sys.argv); print({KERNELS!r})")

        got = capture_cuda(process(made=str(tmp_path / "core.2.7")))

        (attempt,) = got.attempts
        assert ("GPU core dump", "ok", 0) == (
            attempt.tool,
            attempt.status,
            attempt.paused_s,
        )
        assert attempt.detail.endswith("core.2.7")
        assert "target cudacore" in got.text
        assert ["spin(int*)"] == [k.name for k in got.kernels]

    def test_no_dump(self, tools, process):
        """
        When no dump comes, the debugger is used.
        """
        tools(cuda_gdb=says(KERNELS + STACK))

        got = capture_cuda(process(), timeout_s=4)

        assert ["GPU core dump", "cuda-gdb"] == [a.tool for a in got.attempts]
        assert "wrote no dump" in got.attempts[0].detail
        assert got.threads

    def test_dump_is_refused(self, tools, process, monkeypatch):
        """
        A pipe that cannot be written to does not end it all.
        """

        def refuse(*_, **__):
            raise PermissionError(13, "no")

        tools(cuda_gdb=says(KERNELS + STACK))
        monkeypatch.setattr(cuda, "request_dump", refuse)

        got = capture_cuda(process())

        assert ["tool_failed", "ok"] == [a.status for a in got.attempts]

    def test_another_process(self, tools, process):
        """
        A number that is used again is not that process.
        """
        tools(cuda_gdb=says(KERNELS + STACK), gdb=says(STACK))

        got = capture_cuda(process(), start_ticks=1)

        assert () == got.threads == got.kernels
        assert "failed or timed out (exited)" in got.text

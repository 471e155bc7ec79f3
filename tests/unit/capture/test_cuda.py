"""
Kernels on GPUs, with stand-ins for cuda-gdb and for the driver.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from distdebug.capture import capture_node, capture_process


pytestmark = pytest.mark.process


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


@pytest.fixture
def process(tmp_path):
    """
    Starts a process.
    """
    child = subprocess.Popen(["/bin/sleep", "600"], cwd=tmp_path)
    yield child.pid
    child.kill()
    child.wait()


def look(pid, **options):
    """
    What cuda-gdb and its like say of a process.
    """
    got = capture_process(pid, cuda=True, **options)
    tried = [
        a for a in got.attempts if a.tool not in {"py-spy", "faulthandler"}
    ]
    return got, tried


class TestDebugger:
    def test_debugger(self, tools, process):
        """
        Kernels and threads are read from what cuda-gdb prints.
        """
        tools.say("cuda-gdb", KERNELS + STACK)

        got, tried = look(process)

        assert ["spin(int*)"] == [k.name for k in got.stacks.kernels]
        native = [t.native[0].name for t in got.stacks.threads if t.native]
        assert ["cuStreamSynchronize"] == native
        assert [("cuda-gdb", "ok")] == [(a.tool, a.status) for a in tried]
        assert "failed" not in got.cuda_text

    def test_file(self, tools, process, tmp_path):
        """
        What cuda-gdb printed has a file of its own, without what only a
        terminal understands.
        """
        tools.say("cuda-gdb", f"{KERNELS}\x1b[31m{STACK}")
        pid = process

        got = capture_node(tmp_path / "new", pids=[pid], cuda=True, samples=1)

        path = tmp_path / "new" / got.host / f"cudagdb_{got.host}_{pid}.txt"
        text = path.read_text()
        assert path in got.files
        assert KERNELS in text
        assert "\x1b" not in text

    def test_no_frame(self, tools, process):
        """
        Where cuda-gdb unwinds nothing, gdb does, and the kernels are kept.
        """
        unwinder = "Unwinder should return gdb.UnwindInfo instance."
        tools.say("cuda-gdb", KERNELS + unwinder)
        tools.say("gdb", STACK)

        got, tried = look(process)

        assert ["spin(int*)"] == [k.name for k in got.stacks.kernels]
        assert [("cuda-gdb", "tool_failed"), ("gdb", "ok")] == [
            (a.tool, a.status) for a in tried
        ]
        assert "cuda-gdb failed or timed out" in got.cuda_text
        assert KERNELS in got.cuda_text
        assert "cuStreamSynchronize" in got.cuda_text

    def test_time(self, tools, process):
        """
        That the time was over is said as in the scripts that users know.
        """
        tools.write("cuda-gdb", "exec sleep 600")

        got, tried = look(process, timeout_s=2)

        assert ["timed_out", "tool_missing"] == [a.status for a in tried]
        assert got.cuda_text.startswith(
            "ERROR: cuda-gdb failed or timed out ("
        )
        assert () == got.stacks.kernels

    def test_unwinder_is_replaced(self, tools, process):
        """
        The cure for the unwinder is given before anything is loaded, and
        kernels are asked for before stacks.
        """
        tools.say("cuda-gdb", STACK, 'echo "$@"')

        text = look(process)[0].cuda_text

        cure = text.index("-iex python gdb._execute_unwinders = None")
        kernels = text.index("-ex info cuda kernels")
        assert cure < kernels < text.index("-ex thread apply all bt")

    def test_another_process(self, tools, process, kernel):
        """
        A number that is used again is not that process: it is not stopped.
        """
        tools.say("cuda-gdb", KERNELS + STACK)
        pid = process
        kernel.reuse(pid)

        (got,) = capture_node(
            pids=[pid],
            cuda=True,
            samples=1,
            tell=lambda *_: kernel.answers.clear(),
        ).processes

        assert () == got.stacks.kernels
        assert "failed or timed out (exited)" in got.cuda_text

    def test_core_dump(self, tools, tmp_path):
        """
        A process that offers a GPU core dump is not asked for one, because no
        flag keeps it alive (seen with driver 580).
        """
        tools.say("cuda-gdb", KERNELS + STACK)
        path = tmp_path / "corepipe_host_7"
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        flags = "skip_abort,skip_global_memory"
        process = subprocess.Popen(
            ["/bin/sleep", "600"],
            env={
                "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
                "CUDA_COREDUMP_GENERATION_FLAGS": flags,
                "CUDA_COREDUMP_PIPE": str(tmp_path / "corepipe_%h_%p"),
            },
            cwd=tmp_path,
            pass_fds=[pipe],
        )

        _, tried = look(process.pid)

        process.kill()
        process.wait()
        assert ["cuda-gdb"] == [a.tool for a in tried]
        with pytest.raises(BlockingIOError):
            os.read(pipe, 1)
        os.close(pipe)

    def test_large_module(self, tools, process, tmp_path):
        """
        cuda-gdb may write the modules of a GPU to files; those of NCCL have
        hundreds of megabytes.
        """
        module = tmp_path / "module"
        tools.say(
            "cuda-gdb", KERNELS + STACK, f"truncate -s 300M {module} || exit 1"
        )

        _, tried = look(process)

        assert ["ok"] == [a.status for a in tried]
        assert module.stat().st_size == 300 << 20

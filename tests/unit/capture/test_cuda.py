"""
Kernels on GPUs, with stand-ins for cuda-gdb and for the driver.
"""

from __future__ import annotations

import os
import subprocess
import sys

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
        time.sleep(0.1)
        file.write('whole')
time.sleep(600)
"""


@pytest.fixture
def process(tmp_path, tools):
    """
    Starts a process that offers to write a dump.
    """
    started = []

    def start(
        *, flags="skip_abort,skip_global_memory", made="core.2.7", **environ
    ):
        pipe = tmp_path / f"corepipe.{os.uname().nodename}.7"
        os.mkfifo(pipe)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DRIVER, pipe]
            + ([str(tmp_path / made)] if made else []),
            env={
                "CUDA_COREDUMP_GENERATION_FLAGS": flags,
                "CUDA_COREDUMP_PIPE": str(tmp_path / "corepipe.%h.%p"),
                "CUDA_COREDUMP_FILE": str(tmp_path / "core.%t.%p"),
                **environ,
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
    @pytest.mark.parametrize("flags", ["", "skip_abort", "none"])
    def test_debugger(self, tools, process, flags):
        """
        Kernels and threads are read from what cuda-gdb prints; a dump that
        would end the process, or write all memory of its GPUs, is not asked
        for.
        """
        tools.say("cuda-gdb", KERNELS + STACK)

        got, tried = look(process(flags=flags))

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
        pid = process(flags="")

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

        got, tried = look(process(flags=""))

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

        got, tried = look(process(flags=""), timeout_s=0.5)

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

        text = look(process(flags=""))[0].cuda_text

        cure = text.index("-iex python gdb._execute_unwinders = None")
        kernels = text.index("-ex info cuda kernels")
        assert cure < kernels < text.index("-ex thread apply all bt")

    def test_another_process(self, tools, process, kernel):
        """
        A number that is used again is not that process: it is neither asked
        for a dump nor stopped.
        """
        tools.say("cuda-gdb", KERNELS + STACK)
        pid = process()
        kernel.reuse(pid)

        (got,) = capture_node(
            pids=[pid],
            cuda=True,
            samples=1,
            tell=lambda *_: kernel.answers.clear(),
        ).processes

        assert () == got.stacks.kernels
        assert "failed or timed out (exited)" in got.cuda_text
        assert "GPU core dump" not in {a.tool for a in got.attempts}


class TestDump:
    @pytest.mark.parametrize("place", ["named", "default"])
    def test_dump(self, tools, process, tmp_path, place):
        """
        A process that offers a dump is not stopped, and the dump is waited for
        until it is written whole; an older one is not taken for it.
        """
        (tmp_path / "core.1.7").touch()
        tools.write(
            "cuda-gdb",
            'for word; do case $word in "target cudacore"*) '
            "cat ${word##* };; esac; done\n"
            f"cat <<'END'\n\n{KERNELS}\nEND",
        )
        options = (
            {}
            if place == "named"
            else {"made": "core_1_h_7.nvcudmp", "CUDA_COREDUMP_FILE": ""}
        )

        got, (attempt,) = look(process(**options))

        assert ("GPU core dump", "ok", 0) == (
            attempt.tool,
            attempt.status,
            attempt.paused_s,
        )
        assert attempt.detail.endswith(options.get("made", "core.2.7"))
        assert got.cuda_text.startswith("halfwhole")
        assert ["spin(int*)"] == [k.name for k in got.stacks.kernels]

    def test_no_dump(self, tools, process):
        """
        When no dump comes in time, the debugger is used.
        """
        tools.say("cuda-gdb", KERNELS + STACK)

        got, tried = look(process(made=""), timeout_s=2)

        assert ["GPU core dump", "cuda-gdb"] == [a.tool for a in tried]
        assert "wrote no dump" in tried[0].detail
        assert got.stacks.kernels

    def test_dump_is_refused(self, tools, process, monkeypatch):
        """
        A pipe that cannot be written to does not end it all.
        """

        def refuse(*_):
            raise PermissionError(13, "no")

        tools.say("cuda-gdb", KERNELS + STACK)
        monkeypatch.setattr("glob.glob", refuse)

        _, tried = look(process())

        assert ["tool_failed", "ok"] == [a.status for a in tried]

    def test_no_pipe(self, tools, tmp_path):
        """
        Other files are not taken for pipes.
        """
        tools.say("cuda-gdb", KERNELS + STACK)
        (tmp_path / "corepipe.cuda.host.7").touch()
        flags = "skip_abort,skip_global_memory"
        with (tmp_path / "corepipe.cuda.host.7").open() as file:
            process = subprocess.Popen(
                ["/bin/sleep", "600"],
                env={"CUDA_COREDUMP_GENERATION_FLAGS": flags},
                stdin=file,
            )

        _, tried = look(process.pid)

        process.kill()
        process.wait()
        assert ["cuda-gdb"] == [a.tool for a in tried]

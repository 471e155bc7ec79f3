"""
Running commands that must not get out of hand.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import psutil

from distdebug.nodes import Bound, process, run_process


def run(code, *, timeout_s=60.0, grace_s=0.0, stop=None):
    """
    Run a small program.
    """
    bound = Bound(
        timeout_s=timeout_s, grace_s=grace_s, stop=stop or threading.Event()
    )
    return run_process(
        [sys.executable, "-S", "-u", "-c", code],
        environment=os.environ,
        bound=bound,
    )


def is_alive(pid):
    """
    Whether a process runs.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestRunProcess:
    def test_output(self):
        """
        Output, complaint, and status are kept apart.
        """
        code = "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"

        got = run(code)

        assert (3, b"out\n", b"err") == got[:3]

    def test_deadline(self):
        """
        A command and its children are killed when the time is over.
        """
        code = (
            "import subprocess, sys, time; "
            "p = subprocess.Popen([sys.executable, '-S', '-c', "
            "'import time; time.sleep(600)']); "
            "print(p.pid, flush=True); time.sleep(600)"
        )
        begin = time.monotonic()

        got = run(code, timeout_s=2)

        assert got.status is None
        assert time.monotonic() - begin < 30
        deadline = time.monotonic() + 30
        while is_alive(int(got.output)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_alive(int(got.output))

    def test_grace(self):
        """
        What cleans up on SIGTERM has the time to say so.
        """
        code = (
            "import signal, sys, time; "
            "signal.signal(15, lambda *a: sys.exit('cleaned')); "
            "print('up'); time.sleep(600)"
        )

        got = run(code, timeout_s=2, grace_s=30)

        assert (None, b"up\n", b"cleaned\n") == got[:3]

    def test_deaf(self):
        """
        What does not end on SIGTERM is killed.
        """
        code = "import signal, time; signal.signal(15, 1); time.sleep(600)"

        got = run(code, timeout_s=1, grace_s=0.5)

        assert got.status is None

    def test_child_keeps_pipe(self):
        """
        A child that keeps the output open does not keep us.
        """
        code = (
            "import subprocess, sys; p = subprocess.Popen("
            "['sleep', '600'], start_new_session=True); print(p.pid)"
        )
        begin = time.monotonic()

        got = run(code)

        psutil.Process(int(got.output)).kill()
        assert 0 == got.status
        assert time.monotonic() - begin < 30

    def test_closed_output(self):
        """
        What closes its output and goes on is waited for.
        """
        code = (
            "import os, sys, time; os.close(1); os.close(2); "
            "time.sleep(0.3); os._exit(7)"
        )

        got = run(code)

        assert 7 == got.status

    def test_endless_output(self, monkeypatch):
        """
        Of endless output only the end is kept, and the time is held.
        """
        monkeypatch.setattr(process, "MOST_BYTES", 1 << 16)

        got = run("while True: print('x' * 10000)", timeout_s=1)

        assert got.status is None
        assert 0 < len(got.output) <= 3 << 16

    def test_stop(self):
        """
        Who wants no more gets none.
        """
        stop = threading.Event()
        stop.set()
        begin = time.monotonic()

        got = run("import time; time.sleep(600)", stop=stop)

        assert got.status is None
        assert time.monotonic() - begin < 30

    def test_unkillable(self, monkeypatch):
        """
        What waits inside the kernel is not waited for without end.
        """
        monkeypatch.setattr(process, "_REAP_S", 0.1)
        pids = []
        monkeypatch.setattr(
            process, "_signal", lambda p, number: pids.append(p)
        )

        got = run("import time; time.sleep(600)", timeout_s=0.2)

        assert got.status is None
        pids[0].kill()
        pids[0].wait(30)

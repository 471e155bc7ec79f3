"""
How long a thread has not run, with stand-ins for the kernel.
"""

from __future__ import annotations

import os
import threading

import pytest

from distdebug.processes import idle_seconds


TEXT = """\
python (7, #threads: 2)
-------------------------------------------------------------------
se.exec_start                                :       {}
se.vruntime                                  :          1853.820438
"""


@pytest.fixture(name="kernel")
def _kernel(tmp_path):
    """
    Writes when this thread and another one ran last, in milliseconds.
    """

    def write(now, last):
        for folder, number in (("thread-self", now), ("7/task/8", last)):
            path = tmp_path / folder / "sched"
            path.parent.mkdir(parents=True)
            path.write_text(TEXT.format(number))
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("now", "last", "seconds"),
    [
        ("11172020.289815", "11170020.289815", 2.0),
        # The clocks of two processors differ.
        ("11172020.289815", "11172021.289815", 0.0),
        # It was moved to another processor.
        ("11172020.289815", "0.000000", None),
        ("0.000000", "11172020.289815", None),
    ],
)
def test_difference(kernel, now, last, seconds):
    """
    It is the difference of two clocks, if both are set.
    """
    root = kernel(now, last)

    assert seconds == idle_seconds(7, 8, root=root)


def test_not_told(tmp_path):
    """
    Not every kernel says.
    """
    assert idle_seconds(7, 8, root=str(tmp_path)) is None


def test_another_text(kernel, tmp_path):
    """
    Nor does every kernel say it in the same words.
    """
    root = kernel("1.0", "1.0")
    (tmp_path / "7/task/8/sched").write_text("se.exec_start : soon\n")

    assert idle_seconds(7, 8, root=root) is None


@pytest.mark.skipif(
    not os.path.exists("/proc/self/sched"),  # noqa: PTH110
    reason="this kernel was built without CONFIG_SCHED_DEBUG",
)
def test_real_thread():
    """
    A thread that waits has not run for a while.
    """
    done, numbers = threading.Event(), []

    def wait():
        numbers.append(threading.get_native_id())
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    while not numbers:
        pass
    found = idle_seconds(os.getpid(), numbers[0])
    done.set()
    thread.join()

    assert found is None or 0 <= found < 60

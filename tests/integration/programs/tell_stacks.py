"""
A process that can be asked where it is, and what may be the matter with it.

Run as ``tell_stacks.py BEHAVIOR FOLDER``.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading

from distdebug.flight_recorder import enable_flight_recorder
from distdebug.flight_recorder.enable import disable_flight_recorder
from distdebug.flight_recorder.recording.signals import _handlers


# Interrupted by a signal, it waits on.
reader, writer = os.pipe()


def wait_for_data():
    """
    Wait in Python, which releases the interpreter lock.
    """
    os.read(reader, 1)


def hold_gil():
    """
    Wait in C, which holds the interpreter lock.
    """
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


def wait_in_thread():
    """
    Wait in a second thread.
    """
    threading.Event().wait()


def loop():
    """
    Run without end.
    """
    while True:
        pass


def ready(*words):
    """
    Tell the test that all is set up.
    """
    print("ready", *words, flush=True)


def fork():
    """
    Fork a child that waits, too.
    """
    child = os.fork()
    if not child:
        wait_for_data()
    return child


def spare_signals():
    """
    All that may have been chosen.
    """
    return range(signal.SIGRTMIN + 12, signal.SIGRTMIN + 20)


def take_all():
    """
    Handle every signal that might have been chosen.
    """
    for number in spare_signals():
        signal.signal(number, lambda *_: None)


def become_another():
    """
    Go on as another program, with the same number.
    """
    ready()
    os.execv(sys.executable, [sys.executable, "-c", "input()"])


BEFORE = {
    "taken": take_all,
    "own faulthandler": lambda: faulthandler.enable(file=sys.stderr),
}
AFTER = {
    "replaced": lambda: signal.signal(_handlers[0].signal, lambda *_: None),
    "disabled": disable_flight_recorder,
    "full": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    "private": lambda: ctypes.CDLL(None).prctl(4, 0),  # PR_SET_DUMPABLE
    "closed": lambda: os.close(_handlers[0].file.fd),
    "gone": lambda: os.unlink(_handlers[0].path),  # noqa: PTH108 not yet there
    "became another": become_another,
    "blocked": lambda: signal.pthread_sigmask(
        signal.SIG_BLOCK, spare_signals()
    ),
}
THEN = {"holds the gil": hold_gil, "runs": loop, "ends": input}


def main(behavior, folder):
    """
    Do as the test says.
    """
    BEFORE.get(behavior, int)()
    if behavior != "silent":
        enable_flight_recorder(dump_dir=folder)
    AFTER.get(behavior, int)()
    threading.Thread(target=wait_in_thread, name="second", daemon=True).start()
    file = _handlers[0].path if _handlers else ""
    ready(fork() if behavior == "forked" else file)
    THEN.get(behavior, wait_for_data)()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""
A process without torch that records and then ends in a chosen way.

Usage: record_alone.py BEHAVIOR DUMP_DIR

Says "ready" when it does what BEHAVIOR says.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import time

from distdebug.flight_recorder import enable_flight_recorder


def ready(*words):
    """
    Tell the test that the state it is about has come.
    """
    print("ready", *words, flush=True)


def wait():
    """
    Sleep in Python, where handlers run.
    """
    ready()
    while True:
        time.sleep(60)


def ignore_sigterm():
    """
    Live until the test ends us; SIGTERM is ignored.
    """
    ready()
    sys.stdin.read()


def handle_sigterm():
    """
    Sleep, with a handler of our own for SIGTERM.
    """
    ready()
    time.sleep(60)


def finish():
    """
    End at once, without an error.
    """
    ready()


def hold_gil():
    """
    Keep the interpreter from everybody else.
    """
    # One call in C that does both: nobody gets a turn after "ready".
    ctypes.PyDLL(None).system(b"echo ready; read line")


def fork():
    """
    Wait for a forked child, which waits for a signal.
    """
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    ready(child)
    os.waitpid(child, 0)
    ready()
    sys.stdin.read()


def fork_that_ends():
    """
    Sleep, after a forked child has come and gone.
    """
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    wait()


def own_faulthandler():
    """
    Abort, with faulthandler enabled before recording.
    """
    ready()
    ctypes.CDLL(None).abort()


if __name__ == "__main__":
    behavior, dump_dir = sys.argv[1:]
    if behavior == "handle_sigterm":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    if behavior == "ignore_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behavior == "own_faulthandler":
        faulthandler.enable()
    enable_flight_recorder(dump_dir=dump_dir)
    globals()[behavior]()

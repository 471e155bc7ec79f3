"""
Programs that know nothing of distdebug: one of them runs as it would anyway.

Usage: ``ordinary.py NAME MODES FOLDER``, with modes joined by commas.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import faulthandler
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

from contextlib import suppress
from pathlib import Path


NAME, MODES, FOLDER = sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3])
ME = os.getpid()
# What a program can wait for or handle, without those that stop or crash it.
SIGNALS = sorted(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN}
    - {signal.SIGTTOU, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}
    - {signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)
# The recorder takes SIGSTKFLT; of the real-time signals, it takes a free one.
USUAL = [x for x in SIGNALS if x < signal.SIGSTKFLT or 16 < x < 32]
before, programs = {}, {}


def program(function):
    programs[function.__name__] = function
    return function


def first(function):
    """
    Run a part of a program before distdebug is at work.
    """
    before[function.__name__.removesuffix("_first")] = function
    return function


def say(*what):
    print(*what, flush=True)


def kill(number, pid=ME):
    os.kill(pid, number)
    time.sleep(0.3)


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def masks():
    lines = Path("/proc/self/status").read_text().splitlines()
    return [x for x in lines if x.startswith(("SigBlk", "SigPnd", "ShdPnd"))]


# Ends.


@program
def end():
    say("done")


@program
def end_with_status():
    sys.exit(7)


@program
def end_with_exception():
    raise ValueError(NAME)


@program
def end_at_once():
    os._exit(5)


@program
def end_by_bad_exit_function():
    atexit.register(lambda: 1 / 0)


@program
def end_in_exit_function():
    atexit.register(os._exit, 9)


@program
def own_excepthook():
    sys.excepthook = lambda kind, error, trace: say("hook", kind.__name__)
    raise KeyError


def ends_by(number):
    def run():
        kill(number)
        say("alive")

    return run


for name in ("TERM", "HUP", "USR1", "USR2", "QUIT", "ALRM", "PROF", "INT"):
    programs[f"end_by_{name}"] = ends_by(getattr(signal, f"SIG{name}"))
    before[f"end_by_{name}"] = lambda: resource.setrlimit(
        resource.RLIMIT_CORE, (0, 0)
    )


@program
def segfault():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


@program
def abort():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


@program
def interrupt_twice():
    for _ in range(2):
        try:
            kill(signal.SIGINT)
        except KeyboardInterrupt:
            say("interrupted")
    kill(signal.SIGINT)


@program
def thread_dies():
    thread = threading.Thread(target=lambda: 1 / 0, name="of the program")
    thread.start()
    thread.join()
    say("done")


@program
def daemon_thread():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


# Signals.


@program
def handlers():
    say(*(str(signal.getsignal(x)) for x in SIGNALS))
    caught = []
    for number in USUAL:
        signal.signal(number, lambda number, _: caught.append(number))
        os.kill(ME, number)
    time.sleep(0.1)
    say([int(x) for x in caught])


@first
def handlers_before_first():
    for number in USUAL:
        signal.signal(number, lambda number, _: say("caught", int(number)))


@program
def handlers_before():
    for number in USUAL:
        os.kill(ME, number)
        time.sleep(0.01)


@first
def ignored_before_first():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@program
def ignored_before():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        kill(number)
    say("alive")


@program
def ignored():
    ignored_before_first()
    ignored_before()


@program
def handler_taken_back():
    old = signal.signal(signal.SIGTERM, lambda *_: say("caught"))
    kill(signal.SIGTERM)
    signal.signal(signal.SIGTERM, old)
    say(old)
    kill(signal.SIGTERM)


@program
def blocked():
    say(masks())
    signal.pthread_sigmask(signal.SIG_BLOCK, USUAL)
    for number in USUAL:
        os.kill(ME, number)
    time.sleep(0.3)
    say(sorted(map(int, signal.sigpending())))
    say(sorted(int(signal.sigwait(USUAL)) for _ in USUAL))


@program
def signal_thread():
    signal.pthread_sigmask(signal.SIG_BLOCK, USUAL)

    def wait():
        for _ in range(3):
            say("got", int(signal.sigwait(USUAL)))

    thread = threading.Thread(target=wait)
    thread.start()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        kill(number)
    thread.join(5)


@program
def signal_descriptor():
    libc = ctypes.CDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    mask = (1 << (signal.SIGTERM - 1)).to_bytes(8, "little")
    # The kernel's own call: glibc's takes a longer mask.
    fd = libc.syscall(289, -1, mask, 8, 0)
    kill(signal.SIGTERM)
    say(int.from_bytes(os.read(fd, 128)[:4], "little"))


@program
def loop_of_asyncio():
    async def main():
        got = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, got.set)
        os.kill(ME, signal.SIGTERM)
        await asyncio.wait_for(got.wait(), 5)
        say("got")

    asyncio.run(main())


@program
def alarms():
    signal.signal(signal.SIGALRM, lambda *_: say("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    time.sleep(0.8)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    kill(signal.SIGTERM)


@first
def alarm_before_first():
    signal.signal(signal.SIGALRM, lambda *_: say("alarm"))
    signal.alarm(1)


@program
def alarm_before():
    time.sleep(1.2)
    kill(signal.SIGTERM)


def stacks_of(name):
    text = (FOLDER / name).read_text()
    say(name, text.count("Current thread"), "Traceback" in text)


@first
def faulthandler_before_first():
    file = programs["file"] = (FOLDER / "stacks").open("w")
    faulthandler.register(signal.SIGTERM, file=file, chain=False)
    faulthandler.enable(file=file)


@program
def faulthandler_before():
    kill(signal.SIGTERM)
    stacks_of("stacks")


@program
def faulthandler_after():
    faulthandler_before_first()
    faulthandler_before()
    faulthandler.unregister(signal.SIGTERM)
    faulthandler.disable()
    kill(signal.SIGTERM)


@program
def faulthandler_chained():
    file = (FOLDER / "stacks").open("w")
    faulthandler.register(signal.SIGTERM, file=file, chain=True)
    kill(signal.SIGTERM)
    time.sleep(2)


# Children.


@program
def children():
    child = os.fork()
    if child == 0:
        say("child")
        os._exit(3)
    say(status_of(child))
    say(subprocess.run(["sh", "-c", "exit 4"], check=False).returncode)


@program
def waits_for_any_child():
    children = {os.fork() or os._exit(number) for number in range(3)}
    seen = set()
    with suppress(ChildProcessError):
        while True:
            seen.add(os.wait()[0])
    say(seen == children)


@program
def child_ends_by_signal():
    child = os.fork()
    if child == 0:
        time.sleep(60)
    time.sleep(0.2)
    kill(signal.SIGTERM, child)
    say(status_of(child))


@program
def child_inherits():
    line = "grep -E 'SigBlk|SigIgn|SigCgt' /proc/self/status; ls /proc/self/fd"
    say(subprocess.check_output(["sh", "-c", line], text=True))


@program
def daemon():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.dup2(writer, 3)
        os.closerange(4, 65536)
        os.write(3, b"in the background")
        os._exit(0)
    os.close(writer)
    os.wait()
    say(os.read(reader, 100))


# Descriptors, disks, limits.


def close_all():
    os.closerange(3, 4096)
    return [(FOLDER / f"own{x}").open("w+") for x in range(20)]


def say_sizes():
    say([x.stat().st_size for x in sorted(FOLDER.glob("own*"))])


@program
def closed_descriptors():
    files = close_all()
    time.sleep(1)
    say_sizes()
    atexit.register(lambda: (say_sizes(), files))


@program
def closed_and_terminated():
    files = close_all()
    atexit.register(lambda: files)
    kill(signal.SIGTERM)
    time.sleep(2)


@program
def closed_and_terminated_later():
    files = close_all()
    time.sleep(1.2)
    atexit.register(lambda: files)
    kill(signal.SIGTERM)


@program
def closed_and_goes_on():
    files = close_all()
    time.sleep(18)  # longer than any alarm of ours
    say_sizes()
    say(len(files))


@program
def first_descriptors():
    # Each of ours has one for a moment, now and then.
    found = []
    for _ in range(20):
        found.append([os.open("/dev/null", os.O_RDONLY) for _ in range(4)])
        for fd in found[-1]:
            os.close(fd)
        time.sleep(0.02)
    say(max(found, key=found.count))


@program
def folder_vanishes():
    shutil.rmtree(FOLDER)
    raise ValueError(NAME)


@program
def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    with suppress(OSError):
        files = [open("/dev/null") for _ in range(20)]  # noqa: SIM115, PTH123
        say(len(files))
    raise ValueError(NAME)


@first
def few_files_before_first():
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


@program
def few_files_before():
    raise ValueError(NAME)


@program
def little_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 24)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        bytearray(1 << 28)
    except MemoryError:
        say("no memory")
    raise ValueError(NAME)


def begin(mode):
    """
    Let distdebug do in this process what a script asks for.
    """
    import distdebug

    if mode == "recorder":
        distdebug.enable_flight_recorder(dump_dir=FOLDER / "dumps")
    if mode == "watch":
        programs["watch"] = distdebug.watch(
            output_dir=FOLDER / "hang", poll_s=0.05
        )
    if mode == "armed":
        distdebug.arm(dir=FOLDER / "sockets")


before.get(NAME, lambda: None)()
for mode in filter(None, MODES):
    begin(mode)
programs[NAME]()

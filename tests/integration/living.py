"""
Which processes of a test live, where do they listen, and how do they end?
"""

from __future__ import annotations

import os
import random
import socket
import time

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import psutil


T = TypeVar("T")


# Of these, neither the kernel nor Ray gives any to others.
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """
    Ports that no process listens on, nor will before they are used.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.create_server(("", port)):
            found.append(port)
        if len(found) == count:
            break
    return found


def wait_for(condition: Callable[[], T], *, seconds: float = 60) -> T:
    """
    Wait until something is so, and give it.
    """
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not (found := condition()):
        now = time.monotonic()
        assert now < deadline, "waited in vain"
        # What takes long to look at is looked at less often: the processor
        # is for what is waited for.
        time.sleep(max(0.01, 9 * (now - began)))
        began = time.monotonic()
    return found


def wait_until(
    condition: Callable[[], object], *, seconds: float = 60
) -> bool:
    """
    Look until something is so; whether it is.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def having(text: str, *, environment: bool = False) -> list[psutil.Process]:
    """
    The other processes with this text in their command line, or their
    environment as well.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if environment:
                words += process.environ().values()
            is_meant = any(text in word for word in words)
            if is_meant and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def end(processes: Iterable[psutil.Process]) -> None:
    """
    End these at once.
    """
    processes = [*processes]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, 10)


def end_all(text: str) -> None:
    """
    End all that have this text in their command line or environment, and what
    they started meanwhile.
    """
    while left := having(text, environment=True):
        end(left)

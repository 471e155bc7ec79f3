"""
Whoever is killed while a tool is attached, the process goes on.

``DISTDEBUG_KILLS`` says how often somebody is killed, and
``DISTDEBUG_KILL_SEED`` when.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from distdebug._proc import find_tool
from distdebug.processes import read_state

from .living import wait_until


PROGRAMS = Path(__file__).parent / "programs"
KILLS = int(os.environ.get("DISTDEBUG_KILLS", "240"))
SEED = int(os.environ.get("DISTDEBUG_KILL_SEED", "0"))
TARGETS = 9

# How each may be ended, by accident or on purpose.
COLLECTOR = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGXCPU),
)
GUARD = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TOOL = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV)

# Attaches in no time, and then holds the process, so that both can be hit.
GDB = (
    *("gdb", "-nx", "-batch", "-iex", "set auto-solib-add off"),
    *("-iex", "set auto-load off", "-p", "{pid}"),
    *("-ex", "shell sleep 0.2", "-ex", "info threads"),
)
TOOLS = {
    "gdb": GDB,
    "cuda-gdb": ("cuda-gdb", *GDB[1:]),
    "py-spy": ("py-spy", "dump", "--native", "--pid", "{pid}"),
    "pystack": ("pystack", "remote", "--native-all", "{pid}"),
}


class Target(NamedTuple):
    """
    A process that counts, and where it does so.
    """

    pid: int
    file: Path

    def count(self) -> int:
        """
        How far it is.
        """
        return int(struct.unpack("<Q", self.file.read_bytes())[0])


@contextmanager
def target_in(folder: Path, name: str, kind: str) -> Iterator[Target]:
    """
    Run a process that counts.
    """
    file = folder / name
    file.write_bytes(bytes(8))
    argv = [sys.executable, "-S", PROGRAMS / "kill_target.py", file, kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield Target(process.pid, file)
        finally:
            process.kill()


class Collector:
    """
    Another process, which attaches a tool when told.
    """

    def __init__(self, target: Target, tool: str, mode: str) -> None:
        command = [part.format(pid=target.pid) for part in TOOLS[tool]]
        command[0] = find_tool(command[0])
        program = PROGRAMS / "kill_collector.py"
        argv = [sys.executable, program, mode, str(target.pid), *command]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert "ready\n" == self.process.stdout.readline()

    def begin(self) -> None:
        """
        Have it attach the tool.
        """
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def below(self) -> list[psutil.Process]:
        """
        The guard, and the tool, as far as they are there yet.
        """
        with suppress(psutil.NoSuchProcess):
            guards = psutil.Process(self.process.pid).children()
            return guards[:1] + [t for g in guards[:1] for t in g.children()]
        return []

    def end(self) -> None:
        """
        Let it end, if it did not yet.
        """
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def complaint_about(target: Target) -> str:
    """
    What is wrong with a process that should be free, and getting on.
    """
    state = read_state(target.pid)
    if state is None or state.letter == "Z":
        return "dead"
    if state.tracer_pid:
        return f"traced by {state.tracer_pid}"
    if state.letter in "Tt":
        return "stopped"
    before = target.count()
    return (
        ""
        if wait_until(lambda: target.count() > before, seconds=30)
        else "stuck"
    )


def is_gone(process: psutil.Process) -> bool:
    """
    Whether a process has ended, and its number is not used again.
    """
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_one(collector: Collector, chance: random.Random) -> tuple[str, str]:
    """
    Kill somebody at some moment; who it was, and what the collector said.
    """
    victim = chance.choice(("tool", "tool", "guard", "collector"))
    depth = {"collector": 0, "guard": 1, "tool": 2}[victim]
    collector.begin()
    wait_until(lambda: len(collector.below()) >= max(depth, 1), seconds=10)
    time.sleep(chance.choice((0.02, 0.1, 0.5)) * chance.random())
    below = collector.below()
    if victim == "collector":
        number = chance.choice(COLLECTOR)
        collector.process.send_signal(number)
    else:
        number = chance.choice(TOOL if victim == "tool" else GUARD)
        for process in below[depth - 1 : depth]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    if victim == "collector":
        collector.process.wait(60)
        # The guard cleans up for who cannot any more.
        assert wait_until(lambda: all(map(is_gone, below)))
        return f"collector {number.name}", ""
    return f"{victim} {number.name}", collector.process.stdout.readline()


def torment(target: Target, rounds: int, seed: int, tools: list[str]):
    """
    Kill somebody again and again; what happened, and what went wrong.
    """
    chance, seen, wrong = random.Random(seed), Counter(), []
    collector = None
    for _ in range(rounds):
        if collector is None or collector.process.poll() is not None:
            mode = chance.choice(("default", "handler"))
            tool = chance.choice(tools)
            if collector is not None:
                collector.end()
            collector = Collector(target, tool, mode)
        name, said = kill_one(collector, chance)
        seen[name] += 1
        seen["resumed by us"] += said.startswith("1")
        complaint = complaint_about(target) or said[1:].strip()
        if complaint:
            wrong.append((name, tool, complaint))
        if complaint in {"dead", "stopped"}:
            break
    if collector is not None:
        collector.end()
    return seen, wrong


@pytest.mark.timeout(max(300, 3 * KILLS))
@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_nobody_is_harmed(tmp_path, capsys):
    """
    Tool, guard, or collector killed at any moment: no process is left
    stopped, dead, traced, or stuck.
    """
    extra = [t for t in TOOLS if t != "gdb" and find_tool(t)]
    tools = ["gdb"] * 4 + extra
    kinds = ["restless", "calm", "working"] * (TARGETS // 3)

    with ThreadPoolExecutor(TARGETS) as pool, ExitStack() as stack:
        targets = [
            stack.enter_context(target_in(tmp_path, str(n), kind))
            for n, kind in enumerate(kinds)
        ]
        results = list(
            pool.map(
                lambda n: torment(
                    targets[n], KILLS // TARGETS, n + SEED, tools
                ),
                range(TARGETS),
            )
        )
        # A stop that was on its way would be there by now.
        time.sleep(1)
        at_the_end = [complaint_about(target) for target in targets]

    seen = sum((counter for counter, _ in results), Counter())
    with capsys.disabled():
        print(f"\n{dict(sorted(seen.items()))}")
    assert [] == [wrong for _, found in results for wrong in found]
    assert [""] * TARGETS == at_the_end

"""
An agent's client asks the real server over standard input and output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

from pathlib import Path

import anyio
import psutil
import pytest

import distdebug

from distdebug.testing import SimulatedJob, make_dumps

from .living import wait_for, wait_until


mcp = pytest.importorskip("mcp")

SOURCE = Path(distdebug.__file__).parents[1]
LATE = "rank 2 never entered all_reduce #2"
SLEEPER = """
import time

def wait_for_the_end():
    print("ready", flush=True)
    time.sleep(600)

wait_for_the_end()
"""


@pytest.fixture
def folder(tmp_path):
    """
    The folder of the server, with the dumps of a job that hangs.
    """
    job = SimulatedJob(4, stack_depth=3)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3])
    make_dumps(tmp_path / "hangs" / "dumps", job)
    return tmp_path / "hangs"


@pytest.fixture
def sleeper(tmp_path):
    """
    A process that sleeps, and is no child of the server.
    """
    script = tmp_path / "sleeping_worker.py"
    script.write_text(SLEEPER)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert "ready\n" == process.stdout.readline()
            yield process
        finally:
            process.kill()


def server(*arguments):
    """
    How to start a server.
    """
    return mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "distdebug", "mcp", *map(str, arguments)],
        env={"PYTHONPATH": str(SOURCE)},
    )


def use(function, *arguments):
    """
    Call an asynchronous function with a client of a new server.
    """

    async def run():
        """
        Ask within a conversation.
        """
        async with mcp.Client(server(*arguments)) as client:
            return await function(client)

    return anyio.run(run)


@pytest.mark.smoke
def test_conversation(folder):
    """
    An agent lists the tools, has a folder diagnosed, and may not leave it.
    """

    async def talk(client):
        """
        Say all that an agent may say.
        """
        tools = (await client.list_tools()).tools
        inside = await client.call_tool("diagnose", {"paths": ["dumps"]})
        outside = await client.call_tool("diagnose", {"paths": ["/etc"]})
        live = await client.call_tool("stacks")
        page = await client.read_resource(f"distdebug://report{folder}/dumps")
        return tools, inside, outside, live, page

    tools, inside, outside, live, page = use(talk, folder)

    assert 6 == len(tools)
    assert inside.content[0].text.startswith(LATE)
    assert [2] == inside.structured_content["data"]["verdict"]["ranks"]
    assert outside.is_error
    assert "none of my folders" in outside.content[0].text
    assert live.is_error
    assert "--live" in live.content[0].text
    assert "rank 2" in page.contents[0].text


def test_cut(tmp_path):
    """
    A huge result arrives, cut.
    """
    job = SimulatedJob(512)
    for number in range(500):
        job.collective(
            "all_reduce",
            group=job.new_group([number, number + 1], f"g{number}"),
        )
    job.collective("all_reduce", ranks=range(300))
    make_dumps(tmp_path, job)

    got = use(lambda client: client.call_tool("diagnose"), tmp_path)

    assert len(got.content[0].text) < 20_000
    assert len(json.dumps(got.structured_content)) < 40_000
    assert any("groups: " in x for x in got.structured_content["cut"])


class StateWatch(threading.Thread):
    """
    Notes every state of a process, and every tracer, until it is told to end.
    """

    def __init__(self, pid):
        super().__init__()
        self.pid, self.seen, self.may_end = pid, set(), threading.Event()

    def run(self):
        """
        Read its status again and again.
        """
        while not self.may_end.wait(0.0005):
            text = Path(f"/proc/{self.pid}/status").read_text("utf-8")
            facts = dict(x.split(":\t", 1) for x in text.splitlines())
            self.seen.add((facts["State"][0], facts["TracerPid"]))


def test_live(folder, sleeper):
    """
    A live look says where a process is, and none of the tools stops it, also
    when it is asked to.
    """
    watch = StateWatch(sleeper.pid)
    pid = {"pids": [sleeper.pid]}

    async def look(client):
        """
        Look at the process.
        """
        return [
            await client.call_tool("stacks", pid),
            await client.call_tool(
                "stacks", {"pattern": "sleeping_worker", "seconds": 0.2}
            ),
            await client.call_tool("stacks", {**pid, "native": True}),
            await client.call_tool("stacks", {**pid, "cuda": True}),
            await client.call_tool("health"),
            await client.call_tool("diagnose"),
        ]

    watch.start()
    by_pid, by_pattern, native, cuda, health, _ = use(look, "--live", folder)
    watch.may_end.set()
    watch.join()

    assert "wait_for_the_end (sleeping_worker.py:6)" in by_pid.content[0].text
    assert "wait_for_the_end" in by_pattern.content[0].text
    for refused in (native, cuda):
        assert refused.is_error
        assert "may not stop a process" in refused.content[0].text
    assert not health.is_error
    assert {("S", "0")} == watch.seen
    assert sleeper.poll() is None


def test_stopping(folder, sleeper):
    """
    With permission, native stacks are taken, and the process goes on.
    """

    async def look(client):
        """
        Look at the process.
        """
        return await client.call_tool(
            "stacks", {"pids": [sleeper.pid], "native": True}
        )

    got = use(look, "--live", "--allow-stopping", folder)

    assert not got.is_error
    tools = {
        attempt["tool"]
        for worker in got.structured_content["data"]["workers"]
        for attempt in worker["attempts"]
    }
    assert tools & {"pystack", "gdb", "py-spy --native"}
    wait_for(lambda: psutil.Process(sleeper.pid).status() == "sleeping")


def test_no_process(folder):
    """
    A process that does not exist is said not to.
    """
    got = use(
        lambda client: client.call_tool("stacks", {"pids": [4_194_303]}),
        "--live",
        folder,
    )

    assert "no such process" in got.content[0].text


def start(*arguments):
    """
    Start a server whose standard streams are ours.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "distdebug", "mcp", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def send(process, number, method, **params):
    """
    Send a message; one without a number is a notification.
    """
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        message["id"] = number
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def greet(process):
    """
    Shake hands, as clients do.
    """
    send(
        *(process, 0, "initialize"),
        protocolVersion="2025-06-18",
        capabilities={},
        clientInfo={"name": "test", "version": "1"},
    )
    assert 0 == json.loads(process.stdout.readline())["id"]
    send(process, None, "notifications/initialized")


def test_streams(folder):
    """
    Standard output holds nothing but the protocol; what is logged is elsewhere.
    """
    with start("-v", folder) as process:
        greet(process)
        for number, path in enumerate(["dumps", "/etc"], 1):
            arguments = {"paths": [path]}
            send(
                *(process, number, "tools/call"),
                name="diagnose",
                arguments=arguments,
            )
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        out, err = process.communicate(timeout=60)

    assert {1, 2} == {line["id"] for line in lines}
    assert "" == out
    assert "distdebug" in err or not err
    assert 0 == process.returncode


@pytest.mark.parametrize("ending", ["close", "SIGTERM", "SIGINT"])
def test_end(folder, sleeper, ending):
    """
    It ends with its client or by a signal, in the middle of a call, at once,
    and leaves no process.
    """
    with start("--live", folder) as process:
        greet(process)
        send(
            *(process, 1, "tools/call"),
            name="stacks",
            arguments={"pids": [sleeper.pid], "seconds": 20},
        )
        # On a busy node, a child may be gone before it is seen.
        wait_until(psutil.Process(process.pid).children, seconds=5)
        children = psutil.Process(process.pid).children()
        begin = time.monotonic()
        if ending == "close":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, ending))
        process.wait(10)

    assert time.monotonic() - begin < 5
    psutil.wait_procs(children, timeout=5)
    assert not any(child.is_running() for child in children)
    commands = [
        x.info["cmdline"] or () for x in psutil.process_iter(["cmdline"])
    ]
    assert not [x for x in commands if str(sleeper.pid) in x]

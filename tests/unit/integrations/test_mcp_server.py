"""
The server for agents, asked by the client of the SDK.
"""

from __future__ import annotations

import json
import re
import sys
import threading

import anyio
import pytest

from distdebug import capture, integrations
from distdebug.__main__ import main
from distdebug.agents import HangTools, calls, skill_file
from distdebug.agents import tools as agent_tools
from distdebug.capture import Capture, CaptureStatus, ProcessCapture
from distdebug.integrations import mcp_server
from distdebug.integrations.mcp_server import make_server
from distdebug.processes import Worker
from distdebug.stacks import ProcessStacks
from distdebug.testing import SimulatedJob, make_dumps


mcp = pytest.importorskip("mcp")

LATE = "rank 2 never entered all_reduce #3"
OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1 is free.\n"
)


def make_late(folder, calls=3):
    """
    Write the dumps of a job in which rank 2 does not make the last call.
    """
    job = SimulatedJob(4, stack_depth=3)
    for _ in range(calls - 1):
        job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3])
    make_dumps(folder, job)


@pytest.fixture
def folder(tmp_path):
    """
    The folder of the server, with dumps and a log.
    """
    folder = tmp_path / "hangs"
    make_late(folder / "dumps")
    (folder / "train.log").write_text(f"step 1\n{OOM}step 2\n")
    return folder


def use(tools, function):
    """
    Call an asynchronous function with a client of a server.
    """

    async def run():
        """
        Ask within a conversation.
        """
        async with mcp.Client(make_server(tools)) as client:
            return await function(client)

    return anyio.run(run)


def ask(folder, name, /, timeout_s=50.0, *, live=False, **arguments):
    """
    Ask one question, and return the answer as text, and as data.
    """
    tools = HangTools(folders=(str(folder),), live=live, timeout_s=timeout_s)
    got = use(tools, lambda client: client.call_tool(name, arguments))
    return got.content[0].text, got.structured_content


def test_tools(folder):
    """
    All tools change nothing, and describe their parameters and answers.
    """
    tools = HangTools(folders=(str(folder),), live=True)

    listed = use(tools, lambda client: client.list_tools()).tools

    assert {"diagnose", "entries", "health", "logs", "phase", "stacks"} == {
        tool.name for tool in listed
    }
    for tool in listed:
        assert tool.annotations.read_only_hint
        assert "verdict" in tool.output_schema["properties"]
        for parameter in tool.input_schema["properties"]:
            assert f"    {parameter}: " in tool.description


def test_stopping_is_declared(folder):
    """
    If it may stop processes, the tool that can does not claim to change nothing.
    """
    tools = HangTools(folders=(str(folder),), live=True, allow_stopping=True)

    listed = use(tools, lambda client: client.list_tools()).tools

    changing = [x.name for x in listed if not x.annotations.read_only_hint]
    assert ["stacks"] == changing


class TestSkill:
    def test_names(self, folder):
        """
        The skill file names every tool, and no other, with its parameters.
        """
        tools = HangTools(folders=(str(folder),))
        listed = use(tools, lambda client: client.list_tools()).tools
        known = {x.name: {*x.input_schema["properties"]} for x in listed}

        calls = re.findall(r"`(\w+)\(([^)`]*)\)`", skill_file())

        assert {*known} == {name for name, _ in calls}
        for name, parameters in calls:
            assert {*re.findall(r"\w+", parameters)} <= known[name]

    def test_refused(self, folder):
        """
        What the skill file says must not be asked for is what stops processes.
        """
        _, _, never = skill_file().partition("## Never")
        (sentence,) = re.findall(r"Never ask for (.*?) in `stacks`", never)

        for name in re.findall(r"`(\w+)`", sentence):
            text, _ = ask(folder, "stacks", live=True, **{name: True})

            assert "this server may not stop a process" in text

    def test_is_sent(self, folder):
        """
        Clients get it, and what this server permits, as instructions.
        """
        tools = HangTools(folders=(str(folder),))

        async def instructions(client):
            return client.instructions

        text = use(tools, instructions)

        assert text.startswith("# Why does this distributed job hang?")
        assert f"reads {folder}" in text
        assert "may not look at live processes" in text

    def test_printed(self, capsys):
        """
        The command prints it, with its header.
        """
        assert 0 == main(["mcp", "--skill"])

        assert capsys.readouterr().out.startswith("---\nname: distdebug\n")


class TestDiagnose:
    def test_verdict_first(self, folder):
        """
        Text and data begin with the sentence of the verdict.
        """
        text, data = ask(folder, "diagnose", paths=["dumps"])

        assert text.startswith(LATE)
        assert ["verdict", "is_fine", "report", "data", "cut"] == [*data]
        assert data["verdict"].startswith(LATE)
        assert data["is_fine"] is False
        assert [2] == data["data"]["verdict"]["ranks"]
        assert [] == data["cut"]

    def test_all_folders(self, folder, tmp_path):
        """
        Without paths, all folders of the server are read.
        """
        make_late(tmp_path / "other" / "dumps")
        tools = HangTools(folders=(str(folder), str(tmp_path / "other")))

        got = use(tools, lambda client: client.call_tool("diagnose"))

        assert not got.is_error

    def test_cut(self, tmp_path):
        """
        A huge result is cut, says so, and how to see the rest.
        """
        job = SimulatedJob(512)
        groups = [job.new_group([i, i + 1], f"g{i}") for i in range(500)]
        for group in groups:
            job.collective("all_reduce", group=group)
        job.collective("all_reduce", ranks=range(300))
        make_dumps(tmp_path, job)

        text, data = ask(tmp_path, "diagnose")

        assert len(text) < 20_000
        assert len(json.dumps(data["data"])) <= 16_000
        assert any(x.startswith("groups: ") for x in data["cut"])
        assert "cut: ask for fewer files, ranks, or rows" in text

    def test_nothing_there(self, tmp_path):
        """
        An error has its reason and its remedy.
        """
        text, data = ask(tmp_path, "diagnose")

        assert data is None
        assert "no Flight Recorder dumps" in text
        assert "\nTry: name a folder" in text


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        ["/etc", "..", "dumps/../../outside", "link", "\0", "/", "~", "a\nb"],
    )
    def test_outside(self, folder, tmp_path, path):
        """
        A path outside of the folders is refused, also by way of a link.
        """
        make_late(tmp_path / "outside")
        (folder / "link").symlink_to(tmp_path / "outside")

        text, data = ask(folder, "diagnose", paths=[path])

        assert data is None
        assert "is in none of my folders" in text or "is not there" in text
        assert "Try: " in text
        assert LATE not in text

    def test_link_below(self, folder, tmp_path):
        """
        No reader leaves the folders by a link that it comes across.
        """
        make_late(tmp_path / "outside")
        (tmp_path / "outside" / "train.log").write_text(OOM)
        inner = folder / "empty"
        inner.mkdir()
        for path in (tmp_path / "outside").iterdir():
            (inner / path.name).symlink_to(path)

        for name in ("diagnose", "logs", "phase"):
            text, _ = ask(folder, name, paths=["empty"])
            assert LATE not in text
            assert "memory" not in text
        text, _ = ask(folder, "entries", paths=["empty"], rank=0)

        assert "all_reduce" not in text

    def test_link_inside(self, folder):
        """
        A link to another place in the folders is followed.
        """
        (folder / "latest").symlink_to("dumps")

        text, _ = ask(folder, "diagnose", paths=["latest"])

        assert text.startswith(LATE)

    def test_second_folder(self, folder, tmp_path):
        """
        A relative path is looked for in every folder.
        """
        make_late(tmp_path / "other" / "mine")
        tools = HangTools(folders=(str(folder), str(tmp_path / "other")))

        got = use(
            tools,
            lambda client: client.call_tool("diagnose", {"paths": ["mine"]}),
        )

        assert got.content[0].text.startswith(LATE)


class TestLogs:
    def test_errors(self, folder):
        """
        What went wrong, with the rank that it happened to.
        """
        text, data = ask(folder, "logs", paths=["train.log"])

        assert "rank 1" in data["verdict"]
        assert text.startswith(data["verdict"][:40])
        assert data["is_fine"] is False

    def test_unread(self, folder):
        """
        A log that says nothing is not called fine.
        """
        (folder / "empty.log").write_text("")

        text, data = ask(folder, "logs", paths=["empty.log"])

        assert text.startswith("no log could be read")
        assert data["is_fine"] is None

    def test_collectives(self, folder):
        """
        What watchdogs wrote about hung collectives.
        """
        (folder / "nccl.log").write_text(
            "[rank0]:[E1122 03:17:53.779 ProcessGroupNCCL.cpp:632] [Rank 0] "
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
            "for 600029 milliseconds before timing out.\n"
        )

        text, data = ask(
            folder, "logs", paths=["nccl.log"], question="collectives"
        )

        assert data["is_fine"] is False
        assert "#5" in text

    def test_deaths(self, folder):
        """
        Where there is no Ray session, the error says where they are.
        """
        text, _ = ask(folder, "logs", question="deaths")

        assert "no Ray session" in text
        assert "--temp-dir" in text


def test_phase(folder):
    """
    A log of no known framework is neither fine nor wrong.
    """
    (folder / "plain.log").write_text("hello\n")

    text, data = ask(folder, "phase", paths=["plain.log"])

    assert "No phase" in text
    assert data["is_fine"] is None


class TestEntries:
    def test_rank(self, folder):
        """
        The newest calls of a rank, with stacks on request.
        """
        text, data = ask(folder, "entries", rank=2, most=1, stack_traces=True)

        assert (
            "rank 2: 2 recorded calls; the newest is nccl:all_reduce #2"
            in (text)
        )
        (entry,) = data["data"]["entries"]
        assert 2 == entry["seq"]
        assert "train.py" in entry["frames"][-1]
        assert "entries: 1 of 2" in data["cut"]

    def test_call(self, folder):
        """
        A call of all ranks, with the one that has no record of it.
        """
        text, data = ask(folder, "entries", group="default_pg", seq=3)

        assert text.startswith("call #3: nccl:all_reduce scheduled: ")
        assert data["verdict"].endswith("no record: rank 2")
        assert [0, 1, 3] == [x["rank"] for x in data["data"]["entries"]]

    def test_none(self, folder):
        """
        No match is an answer.
        """
        text, _ = ask(folder, "entries", seq=99)

        assert text.startswith("no recorded call matches")

    def test_no_dumps(self, folder):
        """
        Without dumps, the error says so.
        """
        text, _ = ask(folder, "entries", paths=["train.log"], rank=0)

        assert "no Flight Recorder dumps" in text

    def test_all(self, folder):
        """
        All calls of all ranks are never listed.
        """
        text, _ = ask(folder, "entries")

        assert "name a rank" in text

    def test_bounded(self, tmp_path):
        """
        However many rows are asked for, the answer is small.
        """
        make_late(tmp_path, calls=1500)

        text, data = ask(
            tmp_path, "entries", rank=0, most=10**9, stack_traces=True
        )

        assert len(text) < 20_000
        assert len(json.dumps(data["data"])) <= 16_000
        assert "entries: 500 of 1,500" in data["cut"]


class TestPermission:
    @pytest.mark.parametrize("name", ["stacks", "health"])
    def test_only_files(self, folder, name):
        """
        Without permission, this node and its processes are not looked at.
        """
        text, data = ask(folder, name)

        assert data is None
        assert "may only read files" in text
        assert "--live" in text

    def test_health(self, folder):
        """
        With it, this node is.
        """
        text, data = ask(folder, "health", live=True)

        assert text.startswith(data["verdict"][:40])
        assert {"node", "environment"} == {*data["data"]}


def test_blind(folder, monkeypatch):
    """
    Where no stack can be read, nothing is called fine.
    """
    worker = Worker(
        pid=7, start_ticks=5, parent_pid=1, uid=0, title="", framework="ray"
    )
    process = ProcessCapture(
        worker=worker,
        status=CaptureStatus.SECCOMP,
        stacks=ProcessStacks(pid=7, source="py-spy", threads=()),
    )
    seen = Capture(host="n1", processes=(process,))
    monkeypatch.setattr(capture, "capture_node", lambda **_: seen)

    text, data = ask(folder, "stacks", live=True)

    assert text.startswith("no stack could be read")
    assert data["is_fine"] is None


class TestTime:
    def test_limit(self, folder, monkeypatch):
        """
        A call that takes too long is given up, with what to do about it.
        """
        may_end = threading.Event()
        monkeypatch.setattr(
            agent_tools, "diagnose", lambda *_: may_end.wait(60)
        )

        text, _ = ask(folder, "diagnose", timeout_s=0.2)
        may_end.set()

        assert "this took more than 0.2 s" in text
        assert "name fewer files" in text

    def test_responsive(self, folder, monkeypatch):
        """
        While one call works, others are answered.
        """
        may_end = threading.Event()
        monkeypatch.setattr(
            agent_tools, "diagnose", lambda *_: may_end.wait(60)
        )
        tools = HangTools(folders=(str(folder),), timeout_s=60)

        async def both(client):
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "diagnose")
                got = await client.call_tool("entries", {"rank": 0})
                group.cancel_scope.cancel()
            return got.content[0].text

        answered = use(tools, both)
        may_end.set()

        assert answered.startswith("rank 0: 3 recorded calls")

    def test_many(self, folder, monkeypatch):
        """
        Calls that were given up still count, so that they cannot pile up.
        """
        most = calls._MOST_CALLS
        started, may_end = [], threading.Event()

        def work(*_):
            started.append(1)
            may_end.wait(60)

        monkeypatch.setattr(agent_tools, "diagnose", work)
        tools = HangTools(folders=(str(folder),), timeout_s=0.3)

        async def storm(client):
            async with anyio.create_task_group() as group:
                for _ in range(3 * most):
                    group.start_soon(client.call_tool, "diagnose")

        use(tools, storm)
        may_end.set()

        assert most == len(started)


def refusal(folder, path):
    """
    Return why a page is not given.
    """

    async def read(client):
        """
        Ask for the page.
        """
        with pytest.raises(mcp.MCPError) as caught:
            await client.read_resource(f"distdebug://report{path}")
        return str(caught.value)

    return use(HangTools(folders=(str(folder),)), read)


class TestPage:
    def test_folder(self, folder):
        """
        Each folder has its page, which is listed; other folders in it, too.
        """
        tools = HangTools(folders=(str(folder),))

        async def pages(client):
            (listed,) = (await client.list_resources()).resources
            below = f"{listed.uri}/dumps"
            return [
                (await client.read_resource(uri)).contents[0]
                for uri in (listed.uri, below)
            ]

        for page in use(tools, pages):
            assert "text/html" == page.mime_type
            assert page.text.lower().startswith("<!doctype html>")

    def test_odd_name(self, tmp_path):
        """
        A folder may have any name.
        """
        folder = tmp_path / "a job #1 (50%)"
        make_late(folder)
        tools = HangTools(folders=(str(folder),))

        async def page(client):
            (listed,) = (await client.list_resources()).resources
            return (await client.read_resource(listed.uri)).contents[0]

        assert "rank 2" in use(tools, page).text

    @pytest.mark.parametrize("path", ["/etc/passwd", "/%2e%2e/etc", "/a%00b"])
    def test_outside(self, folder, path):
        """
        A page of what is outside is refused.
        """
        assert "none of my folders" in refusal(folder, path)

    def test_too_large(self, folder, monkeypatch):
        """
        A page that is too large says how to write it instead.
        """
        monkeypatch.setattr(agent_tools, "_MOST_PAGE_CHARS", 10)

        assert "--html report.html" in refusal(folder, folder)


class TestCommand:
    def test_no_folder(self, capsys):
        """
        Without a folder there is nothing to read.
        """
        assert 2 == main(["mcp"])

        assert "no folder is named" in capsys.readouterr().err

    def test_stopping_alone(self, capsys, tmp_path):
        """
        Processes that may not be looked at cannot be stopped.
        """
        assert 2 == main(["mcp", "--allow-stopping", str(tmp_path)])

        assert "goes with --live" in capsys.readouterr().err

    def test_no_sdk(self, capsys, monkeypatch, tmp_path):
        """
        Without the SDK, the error says what to install.
        """
        monkeypatch.delattr(integrations, "mcp_server")
        monkeypatch.delitem(sys.modules, mcp_server.__name__)
        monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)

        assert 2 == main(["mcp", str(tmp_path)])

        assert "pip install 'distdebug[mcp]'" in capsys.readouterr().err

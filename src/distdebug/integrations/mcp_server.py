"""
Serve the tools for agents over the Model Context Protocol (MCP), on stdio.

Each call works in a thread with a time limit, so that the server stays responsive.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import threading

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote

import distdebug

from .._io import confined_walks
from .._proc import start_call, stop_children
from .._text import clean, list_text
from ..errors import DistdebugError, MissingDependencyError
from .mcp_tools import Answer, HangTools


try:
    from mcp.server.mcpserver import MCPServer, ResourceSecurity
    from mcp.server.mcpserver.exceptions import ResourceError, ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError as exc:
    _MISSING = "answering agents needs the package mcp, version 2 or later"
    raise MissingDependencyError(
        _MISSING, remedy="pip install 'distdebug[mcp]'"
    ) from exc


_Answer = TypeVar("_Answer")

_TOOLS = ("diagnose", "stacks", "logs", "phase", "health", "entries")
_PAGE = "distdebug://report"
_MOST_CALLS = 4


def make_server(tools: HangTools) -> MCPServer:
    """
    Return a server with all tools, and the page of each folder.
    """
    skill = skill_file().partition("\n---\n")[2].strip()  # without its header
    server: MCPServer = MCPServer(
        "distdebug",
        instructions=f"{skill}\n\n{_describe_limits(tools)}",
        version=distdebug.__version__,
        log_level="WARNING",
    )
    for name in _TOOLS:
        stops = name == "stacks" and tools.allow_stopping
        ask = getattr(tools, name)
        server.add_tool(
            _as_tool(ask, tools.timeout_s),
            description=inspect.getdoc(ask),
            annotations=ToolAnnotations(
                read_only_hint=not stops, open_world_hint=False
            ),
        )
    _add_pages(server, tools)
    return server


def skill_file() -> str:
    """
    Return the skill file, which says when to ask what.
    """
    return (files("distdebug.integrations") / "SKILL.md").read_text("utf-8")


def _describe_limits(tools: HangTools) -> str:
    live = "may" if tools.live else "may not"
    stop = "may" if tools.allow_stopping else "may not"
    return (
        f"This server reads {list_text(tools.folders, most=20)}; relative "
        f"paths are looked for there. It {live} look at live processes, and "
        f"{stop} stop them."
    )


def _as_tool(
    ask: Callable[..., Answer], timeout_s: float
) -> Callable[..., Awaitable[CallToolResult]]:
    @functools.wraps(ask)
    async def call(**arguments: Any) -> CallToolResult:
        try:
            got = await _in_time(
                functools.partial(ask, **arguments), timeout_s
            )
        except (DistdebugError, OSError) as exc:
            raise ToolError(_error_text(exc)) from exc
        text = "\n".join([got["report"], *(f"cut: {x}" for x in got["cut"])])
        return CallToolResult(
            content=[TextContent(type="text", text=text)],
            structured_content={**got},
        )

    return call


def _add_pages(server: MCPServer, tools: HangTools) -> None:
    async def report(path: str) -> str:
        ask = functools.partial(tools.page, f"/{path.lstrip('/')}")
        try:
            return await _in_time(ask, tools.timeout_s)
        except (DistdebugError, OSError) as exc:
            raise ResourceError(_error_text(exc)) from exc

    about = "The diagnosis of a file or folder as an HTML page, for people."
    add = functools.partial(
        server.resource, description=about, mime_type="text/html"
    )
    checked_here = ResourceSecurity(exempt_params={"path"})
    add(f"{_PAGE}/{{+path}}", security=checked_here)(report)
    for folder in tools.folders:
        page = functools.partial(report, folder)
        add(f"{_PAGE}{quote(folder)}", name=f"report of {folder}")(page)


_slots = threading.BoundedSemaphore(_MOST_CALLS)


async def _in_time(ask: Callable[[], _Answer], timeout_s: float) -> _Answer:
    """
    Call a function in a thread, which is abandoned when its time is over.
    """
    try:
        future = start_call(functools.partial(_ask, ask, timeout_s))
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
    except TimeoutError:
        msg = f"this took more than {timeout_s:g} s"
        remedy = (
            "name fewer files, or let the server's owner start it with more "
            "time: distdebug mcp --timeout S"
        )
        raise DistdebugError(msg, remedy=remedy) from None


def _ask(ask: Callable[[], _Answer], timeout_s: float) -> _Answer:
    # Abandoned calls still work, so that the next ones wait.
    if not _slots.acquire(timeout=timeout_s):
        raise TimeoutError
    try:
        with confined_walks():
            return ask()
    finally:
        _slots.release()


def _error_text(exc: Exception) -> str:
    lines = (str(exc), *getattr(exc, "__notes__", ()))
    return "\n".join(clean(line, limit=1000) for line in lines)


def serve(tools: HangTools) -> None:
    """
    Answer on standard input and output until the client closes them.
    """
    # Ctrl-C could not interrupt the thread that waits for standard input.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        make_server(tools).run("stdio")
    finally:
        stop_children()

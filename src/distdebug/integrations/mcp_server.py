"""
Serve the tools for agents over the Model Context Protocol (MCP), on stdio.
"""

from __future__ import annotations

import functools
import inspect
import signal

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import distdebug

from .. import agents
from .._proc import stop_children
from ..errors import DistdebugError, MissingDependencyError


try:
    from mcp.server.mcpserver import MCPServer, ResourceSecurity
    from mcp.server.mcpserver.exceptions import ResourceError, ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError as exc:
    _MISSING = "answering agents needs the package mcp, version 2 or later"
    raise MissingDependencyError(
        _MISSING, remedy="pip install 'distdebug[mcp]'"
    ) from exc


_PAGE = "distdebug://report"


def make_server(tools: agents.HangTools) -> MCPServer:
    """
    Return a server with all tools, and the page of each folder.
    """
    server: MCPServer = MCPServer(
        "distdebug",
        instructions=agents.instructions(tools),
        version=distdebug.__version__,
        log_level="WARNING",
    )
    for name in agents.TOOLS:
        ask = getattr(tools, name)
        is_safe = name != "stacks" or not tools.allow_stopping
        server.add_tool(
            _as_tool(ask, tools.timeout_s),
            description=inspect.getdoc(ask),
            annotations=ToolAnnotations(
                read_only_hint=is_safe, open_world_hint=False
            ),
        )
    _add_pages(server, tools)
    return server


def _as_tool(
    ask: Callable[..., agents.Answer], timeout_s: float
) -> Callable[..., Awaitable[CallToolResult]]:
    @functools.wraps(ask)
    async def call(**arguments: Any) -> CallToolResult:
        try:
            got = await agents.ask_in_time(ask, timeout_s, **arguments)
        except (DistdebugError, OSError) as exc:
            raise ToolError(agents.error_text(exc)) from exc
        text = "\n".join([got["report"], *(f"cut: {x}" for x in got["cut"])])
        return CallToolResult(
            content=[TextContent(type="text", text=text)],
            structured_content={**got},
        )

    return call


def _add_pages(server: MCPServer, tools: agents.HangTools) -> None:
    async def report(path: str) -> str:
        path = f"/{path.lstrip('/')}"
        try:
            return await agents.ask_in_time(
                tools.page, tools.timeout_s, path=path
            )
        except (DistdebugError, OSError) as exc:
            raise ResourceError(agents.error_text(exc)) from exc

    about = "The diagnosis of a file or folder as an HTML page, for people."
    add = functools.partial(
        server.resource, description=about, mime_type="text/html"
    )
    checked_here = ResourceSecurity(exempt_params={"path"})
    add(f"{_PAGE}/{{+path}}", security=checked_here)(report)
    for folder in tools.folders:
        page = functools.partial(report, folder)
        add(f"{_PAGE}{quote(folder)}", name=f"report of {folder}")(page)


def serve(tools: agents.HangTools) -> None:
    """
    Answer on standard input and output until the client closes them.
    """
    # Ctrl-C could not interrupt the thread that waits for standard input.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        make_server(tools).run("stdio")
    finally:
        stop_children()

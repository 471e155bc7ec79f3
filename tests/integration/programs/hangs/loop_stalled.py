"""
A coroutine blocks its event loop.
"""

from __future__ import annotations

import asyncio
import time


async def handle() -> None:
    """
    Sleep without giving way.
    """
    print("ready", flush=True)
    time.sleep(3600)  # noqa: ASYNC251 this is what it is about


async def main() -> None:
    """
    Serve two at once.
    """
    await asyncio.gather(handle(), asyncio.sleep(0.1))


asyncio.run(main())

"""
An event loop waits for something that never happens.
"""

from __future__ import annotations

import asyncio


async def main() -> None:
    """
    Wait for ever, and let others go on.
    """
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())

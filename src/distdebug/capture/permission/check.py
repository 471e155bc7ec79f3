"""
What was checked, and what came of it?
"""

from __future__ import annotations

import attrs


__all__ = ["Check"]


@attrs.frozen
class Check:
    """
    One thing that capturing depends on.

    Attributes:
        name: What was checked.

        ok: Whether it is as it should be; ``None`` if one can do without.

        detail: What was found.

        remedy: What to do about it, or ``""``.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""

"""
Was a file written by a later version, which means something else by it?

Files of ours carry the number of their layout as ``"schema"``.  Fields may be
added to a layout at any time; its number grows only if a reader of today would
misunderstand it.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations


__all__ = ["UPGRADE", "LaterLayoutError", "check_layout"]

UPGRADE = "pip install --upgrade distdebug"


class LaterLayoutError(ValueError):
    """
    It has a layout that nobody had thought of when this was written.
    """


def check_layout(schema: object, known: int) -> None:
    """
    Refuse what would be misunderstood.

    Args:
        schema: What a file says of its layout.

        known: The latest layout that is understood.

    Raises:
        LaterLayoutError: A later version wrote it.

        ValueError: It is no layout of ours.
    """
    if type(schema) is not int or schema < 1:
        msg = f"it has no layout of ours: {schema!r:.80}"
        raise ValueError(msg)
    if schema > known:
        msg = (
            f"a later distdebug wrote it (layout {schema}; this one knows "
            f"{known}): {UPGRADE}"
        )
        raise LaterLayoutError(msg)

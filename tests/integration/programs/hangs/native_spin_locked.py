"""
Native code that keeps the interpreter lock does not return.
"""

from __future__ import annotations

import re


def check(text: str) -> bool:
    """
    Match a pattern that takes for ever.
    """
    print("ready", flush=True)
    return re.fullmatch(r"(a+)+b", text) is not None


check("a" * 64)

"""
A loop whose variables change, and one of which is nobody's business.
"""

from __future__ import annotations

import sys


def count(password: str) -> None:
    """
    Count for ever, at one line or so.
    """
    number = len(password)
    while True:
        number += 1


print("ready", flush=True)
count("".join(reversed(sys.argv[1])))

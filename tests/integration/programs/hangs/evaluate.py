"""
A healthy process is in the same native call at almost every look.
"""

from __future__ import annotations

import hashlib


def evaluate(rounds: int) -> int:
    """
    Compute in native code, again and again.
    """
    hits = 0
    for n in range(rounds):
        hits += hashlib.pbkdf2_hmac("sha256", b"word", b"%d" % n, 100_000)[0]
    return hits


print("ready", flush=True)
evaluate(10**9)

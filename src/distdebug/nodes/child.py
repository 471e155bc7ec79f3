"""
How does a function that came from elsewhere run on this node?

It is started as ``python -m distdebug.nodes.child VERSION DIGEST MARK
SECONDS``, by whoever sends the function to its standard input.
"""

from __future__ import annotations

import base64
import faulthandler
import hashlib
import hmac
import json
import pickle
import sys
import traceback

from collections.abc import Sequence
from typing import IO, Any


# Less than what is kept of the output, so that it is never cut.
_MOST = 1 << 24


def main(arguments: Sequence[str], stdin: IO[bytes], stdout: IO[str]) -> int:
    """
    What does the function return here?

    Prints the mark and one line of JSON: ``{"value": …}``, or ``{"reason": …,
    "remedy": …}``.

    Args:
        arguments: Version of Python, digest, mark, and seconds.

        stdin: Where the function comes from.

        stdout: Where the answer goes.

    Returns:
        The exit status.
    """
    version, digest, mark, seconds = arguments
    # Whoever waits for us ends us; should they be gone, we end all the same.
    faulthandler.dump_traceback_later(int(seconds) + 5, exit=True)
    try:
        answer = _answer(version, digest, stdin.read())
    finally:
        faulthandler.cancel_dump_traceback_later()

    stdout.write(f"\n{mark} {answer}\n")
    stdout.flush()
    return 0


def _answer(version: str, digest: str, data: bytes) -> str:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != here:
        return _refusal(
            f"the function was sent by Python {version}; here is {here}",
            "name a Python of that version as python=... of the engine",
        )
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), digest):
        return _refusal("the function did not arrive whole", "try it again")

    try:
        # The digest says that these bytes are those of our own user.
        value = pickle.loads(base64.b64decode(data))()  # noqa: S301
        return _value(value)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 -- it is the answer
        traceback.print_exc()
        return _refusal(f"{type(exc).__name__}: {exc}"[:1000], "")


def _value(value: object) -> str:
    try:
        text = json.dumps({"value": value})
    except (TypeError, ValueError, RecursionError) as exc:
        return _refusal(
            f"what the function returned is no JSON data: {exc}",
            "return numbers, texts, lists, and dictionaries of texts",
        )
    if len(text) > _MOST:
        return _refusal(
            f"what the function returned takes {len(text):,} bytes of JSON",
            f"return less than {_MOST:,}, or write a file",
        )
    return text


def _refusal(reason: str, remedy: str) -> str:
    refusal: dict[str, Any] = {"reason": reason, "remedy": remedy}
    return json.dumps(refusal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.buffer, sys.stdout))

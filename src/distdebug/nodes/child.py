"""
Child process that runs a pickled function on a node.

It is started as ``python -m distdebug.nodes.child VERSION DIGEST MARK
SECONDS``, with the function on its standard input.
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


# In bytes; less than `process.MAX_BYTES`, so that the answer is never cut.
_MAX_JSON = 1 << 24


def main(arguments: Sequence[str], stdin: IO[bytes], stdout: IO[str]) -> int:
    """
    Run the function from *stdin* and print the mark and one line of JSON.

    The line is ``{"value": …}`` or ``{"reason": …, "remedy": …}``.

    Args:
        arguments: Version of Python, SHA-256 digest, mark, and seconds.

    Returns:
        The exit status.
    """
    version, digest, mark, seconds = arguments
    # The parent kills this process at the timeout; end also if it is gone.
    faulthandler.dump_traceback_later(int(seconds) + 5, exit=True)
    try:
        answer = _answer(version, digest, stdin.read())
    finally:
        faulthandler.cancel_dump_traceback_later()

    stdout.write(f"\n{mark} {answer}\n")
    stdout.flush()
    return 0


def _answer(version: str, digest: str, data: bytes) -> str:
    own_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != own_version:
        return _error(
            f"the function was sent by Python {version}; here is {own_version}",
            "name a Python of that version as python=... of the engine",
        )
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), digest):
        return _error("the function did not arrive whole", "try it again")

    try:
        # The digest proves that the bytes come from the same user.
        value = pickle.loads(base64.b64decode(data))()  # noqa: S301
        return _value_to_json(value)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 -- it is the answer
        traceback.print_exc()
        return _error(f"{type(exc).__name__}: {exc}"[:1000], "")


def _value_to_json(value: object) -> str:
    try:
        text = json.dumps({"value": value})
    except (TypeError, ValueError, RecursionError) as exc:
        return _error(
            f"what the function returned is not JSON data: {exc}",
            "return numbers, texts, lists, and dictionaries of texts",
        )
    if len(text) > _MAX_JSON:
        return _error(
            f"what the function returned takes {len(text):,} bytes of JSON",
            f"return less than {_MAX_JSON:,}, or write a file",
        )
    return text


def _error(reason: str, remedy: str) -> str:
    error: dict[str, Any] = {"reason": reason, "remedy": remedy}
    return json.dumps(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.buffer, sys.stdout))

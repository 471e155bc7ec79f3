"""
What does a Ray cluster say to somebody who may not be kept waiting?

It is started as ``python -m distdebug.ray.debugger_child`` by `ask`,
which ends it when it takes too long.  One line of JSON comes in, and one goes
out: ``{"answer": …}`` or ``{"reason": …}``.
"""

from __future__ import annotations

import json
import os
import sys

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import IO, Any


def main(stdin: IO[str], stdout: IO[str]) -> int:
    """
    Answer the question on the first line.

    Args:
        stdin: Where it comes from.

        stdout: Where the answer goes.

    Returns:
        The exit status.
    """
    question = json.loads(stdin.readline())
    try:
        said: dict[str, Any] = {"answer": _answer(question)}
    except (Exception, SystemExit) as exc:  # noqa: BLE001 -- Ray exits, too
        text = str(exc).strip().partition("\n")[0]
        said = {"reason": f"{type(exc).__name__}: {text[:1000]}"}
    stdout.write(f"{json.dumps(said)}\n")
    stdout.flush()
    return 0


def _answer(question: Mapping[str, Any]) -> Any:
    from .debugger_state import ask_workers, read_tables

    if question["address"] == "auto" and "RAY_ADDRESS" not in os.environ:
        _use_token()
    address = _resolved(question["address"])
    if question["errands"] is None:
        return read_tables(address)
    return ask_workers(address, question["errands"], question["timeout_s"])


def _use_token() -> None:
    """
    Let Ray find the token of the user.

    As Ray itself, only for the cluster of this node: whoever listens at an
    address that was given should not learn it unasked.
    """
    # Its older versions know of none.
    with suppress(ImportError, AttributeError):
        setup: Any = import_module(
            "ray._private.authentication.authentication_token_setup"
        )
        setup.maybe_enable_token_auth_if_token_available(
            warn_if_disabled=False
        )


def _resolved(address: str) -> str:
    from ray._private import services

    return str(services.canonicalize_bootstrap_address_or_die(address))


def _main() -> int:
    # Only our own line goes where somebody reads it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        return main(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(_main())

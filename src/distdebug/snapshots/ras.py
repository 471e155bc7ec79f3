"""
Ask NCCL's RAS which ranks are behind, without preparation of the job.

NCCL 2.24 and later listens on each node, by default at ``localhost:28028``, and
says how many operations each rank has launched.  Asked twice, it shows who does
not move.  Source: ``src/ras/client_support.cc`` of NCCL 2.24 to 2.31; the address
is that of ``NCCL_RAS_ADDR``.
"""

from __future__ import annotations

import socket
import time

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from .._io import write_whole
from .._text import reason_of
from ..findings import Missing
from ..processes import read_environ


_DEFAULT_ADDRESS = ("localhost", 28028)
_MOST_WORKERS = 64
_MOST_BYTES = 1 << 26
_CONNECT_S = 1.0
# RAS waits for processes that do not answer.
_ANSWER_S = 12.0
# A rank that is behind for less may only be late.
_BETWEEN_S = 5.0
_GREETING = b"client protocol 2\n"
_ANSWER_START = b"SERVER PROTOCOL "
# Versions before 2.28.7 refuse the first line, and answer as text.
_QUESTION = b"set format json\nverbose status\n"

Address = tuple[str, int]


def find_ras_addresses(pids: Iterable[int]) -> list[Address]:
    """
    Return where the RAS of the jobs of these workers listens.

    Args:
        pids: The workers.
    """
    found: dict[Address, None] = {}
    for pid in islice(pids, _MOST_WORKERS):
        environ, _ = read_environ(pid)
        if not environ or environ.get("NCCL_RAS_ENABLE", "1").strip() == "0":
            continue
        host, _, port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")
        is_given = port.isdecimal() and 0 < int(port) < 1 << 16
        address = (
            (host.strip("[]") or "localhost", int(port)) if is_given else None
        )
        found[address or _DEFAULT_ADDRESS] = None
    return list(found)


def ask_ras(address: Address, timeout_s: float) -> bytes:
    """
    Return the status that RAS gives of all ranks of a job.

    Args:
        address: Where it listens.

        timeout_s: Time limit, in seconds.

    Raises:
        OSError: Nothing listens there, or something else than RAS does.
    """
    deadline = time.monotonic() + timeout_s
    with socket.create_connection(
        address, min(_CONNECT_S, timeout_s)
    ) as connection:
        connection.sendall(_GREETING)
        answer = connection.recv(1 << 12)
        if not answer.startswith(_ANSWER_START):
            msg = "what listens there is not RAS"
            raise ConnectionError(msg)

        connection.sendall(_QUESTION)
        while len(answer) < _MOST_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.01))
            part = connection.recv(1 << 16)
            if not part:
                return answer
            answer += part
    msg = f"it answers more than {_MOST_BYTES >> 20} MiB"
    raise ConnectionError(msg)


class RasWatch:
    """
    Ask all RAS of a node, now and once more.

    Args:
        pids: The workers.

        left_s: Time limit, in seconds.
    """

    def __init__(self, pids: Iterable[int], left_s: float) -> None:
        self._answers: dict[Address, list[bytes]] = {}
        self._missing: list[Missing] = []
        self._asked = time.monotonic()
        for address in find_ras_addresses(pids):
            # Most jobs have no RAS: on CPUs, or with an older NCCL.
            with suppress(ConnectionRefusedError, socket.gaierror):
                self._ask(address, min(_ANSWER_S, max(left_s / 4, 1.0)))

    def _ask(self, address: Address, timeout_s: float) -> None:
        try:
            answer = ask_ras(address, timeout_s)
        except (ConnectionRefusedError, socket.gaierror):
            raise
        except OSError as exc:
            where = f"{address[0]}:{address[1]}"
            lost = Missing(what="RAS", reason=reason_of(exc), source=where)
            self._missing.append(lost)
        else:
            self._answers.setdefault(address, []).append(answer)

    def save(
        self, folder: Path, left_s: float
    ) -> tuple[list[Path], list[Missing]]:
        """
        Ask again, and write what each has answered.

        Args:
            folder: Output folder.

            left_s: Time limit, in seconds.

        Returns:
            The files, and what is missing.
        """
        between = self._asked + _BETWEEN_S - time.monotonic()
        if self._answers and 0 < between < left_s:
            time.sleep(between)
        files = []
        for number, address in enumerate(list(self._answers), 1):
            with suppress(ConnectionRefusedError, socket.gaierror):
                self._ask(address, min(_ANSWER_S, max(left_s, 1.0)))
            path = folder / f"ras{f'.{number}' * (number > 1)}.json"
            write_whole(path, b"\n".join(self._answers[address]))
            files.append(path)
        return files, self._missing

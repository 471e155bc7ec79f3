"""
RAS is asked for the state of a job, and answers or does not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest

from distdebug.causes import Cause
from distdebug.diagnosis import diagnose
from distdebug.snapshots import ras


STATUS = """{
  "nccl_version": "2.28.9",
  "communicators": [
    {"hash": "0xa1", "size": 2, "ranks": [
      {"rank": 0, "host": "n", "pid": 7, "cuda_dev": 0,
       "collective_counts": {"AllReduce": 7}},
      {"rank": 1, "host": "n", "pid": 8, "cuda_dev": 1,
       "collective_counts": {"AllReduce": %d}}
    ], "missing_ranks": []}
  ]
}
"""


@pytest.fixture
def serve(monkeypatch):
    """
    Start a server that gives answers in turn, as RAS does, or another one.
    """
    monkeypatch.setattr(ras, "_BETWEEN_S", 0.1)
    listeners = []

    def start(*answers, greeting=b"SERVER PROTOCOL 2\n"):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        asked = []

        def answer():
            for text in answers:
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        asked.append(connection.recv(100))
                        connection.sendall(greeting)
                        asked.append(connection.recv(100))
                        connection.sendall(b"OK\n" + text.encode())

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        monkeypatch.setattr(
            ras,
            "read_environ",
            lambda _: ({"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}, ""),
        )
        return asked

    yield start
    for listener in listeners:
        listener.close()


def test_stuck(serve, tmp_path):
    """
    A rank that is behind, and stays so, is named without any preparation.
    """
    asked = serve(STATUS % 6, STATUS % 6)

    files, missing = ras.RasWatch([os.getpid()], 20.0).save(tmp_path, 5.0)
    verdict = diagnose(tmp_path).verdict

    assert [tmp_path / "ras.json"] == files
    assert [] == missing
    assert b"client protocol 2\n" == asked[0]
    assert asked[1].endswith(b"verbose status\n")
    assert (Cause.RANK_NOT_ARRIVED, (1,), "likely") == (
        verdict.cause,
        verdict.ranks,
        verdict.confidence,
    )
    assert "launched all_reduce #6 last, and others #7" in verdict.summary


def test_moving(serve, tmp_path):
    """
    A rank that goes on is not.
    """
    serve(STATUS % 5, STATUS % 6)

    ras.RasWatch([os.getpid()], 20.0).save(tmp_path, 5.0)

    assert diagnose(tmp_path).verdict.cause is Cause.HEALTHY


def test_nobody(tmp_path, monkeypatch):
    """
    Where nothing listens, or RAS is off, there is no file and no complaint.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    addresses = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
    for environ in (addresses, {"NCCL_RAS_ENABLE": "0"}):
        monkeypatch.setattr(ras, "read_environ", lambda _, e=environ: (e, ""))

        got = ras.RasWatch([os.getpid()], 20.0).save(tmp_path, 5.0)

        assert ([], []) == got


def test_another_service(serve, tmp_path):
    """
    What answers otherwise is no RAS; it is asked nothing more.
    """
    asked = serve("", greeting=b"HTTP/1.1 400 Bad Request\r\n")

    files, missing = ras.RasWatch([os.getpid()], 20.0).save(tmp_path, 5.0)

    assert [] == files
    assert ["what listens there is not RAS"] == [x.reason for x in missing]
    assert b"verbose" not in b"".join(asked)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"A": "1"}, [("localhost", 28028)]),
        ({"NCCL_RAS_ADDR": "10.0.0.1:5000"}, [("10.0.0.1", 5000)]),
        ({"NCCL_RAS_ADDR": "[::1]:5000"}, [("::1", 5000)]),
        ({"NCCL_RAS_ADDR": "nonsense"}, [("localhost", 28028)]),
        ({"NCCL_RAS_ADDR": "a:99999"}, [("localhost", 28028)]),
        ({"NCCL_RAS_ENABLE": "0"}, []),
        ({}, []),
    ],
)
def test_addresses(environ, expected, monkeypatch):
    """
    The environment of the workers says where it listens.
    """
    monkeypatch.setattr(ras, "read_environ", lambda _: (environ, ""))

    assert expected == ras.find_ras_addresses([1, 2])

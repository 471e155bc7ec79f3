"""
Whether a rank ended by itself, or because others did.
"""

from __future__ import annotations

import pytest

from distdebug.flight_recorder.analysis.endings import (
    failed_in_call,
    failed_off_record,
    lost_peer,
    was_interrupted,
)
from distdebug.flight_recorder.sidecar import Sidecar, SidecarFrame


GLOO = "RuntimeError: [gloo/x.cc:8] Connection closed by peer"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("RuntimeError: [../third_party/gloo/x.cc:81] Timed out", True),
        ("RuntimeError: Connection closed by peer [10.0.0.1]:9", True),
        ("RuntimeError: NCCL error in: foo.cpp", True),
        ("DistBackendError: anything", True),
        ("torch.distributed.DistStoreError: wait timeout", True),
        ("RuntimeError: DataLoader timed out after 30 seconds", False),
        ("RuntimeError: shape mismatch", False),
        ("TimeoutError: timed out", False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("botocore.exceptions.ReadTimeoutError: timed out", False),
        ("ValueError: no such backend: nccl", False),
        ("", False),
    ],
)
def test_failed_in_call(error, expected):
    """
    Torch's own errors, and what it raises as RuntimeError, come out of calls;
    the time-out of somebody else's socket does not.
    """
    assert expected == failed_in_call(error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("RuntimeError: [gloo/x.cc:8] Connection closed by peer [::1]", True),
        ("RuntimeError: gloo: Connection reset by peer", True),
        ("DistBackendError: remote process exited or network error", True),
        ("RuntimeError: [gloo/x.cc:81] Timed out waiting 1000ms", False),
        ("DistBackendError: NCCL watchdog timeout", False),
        ("BrokenPipeError: Broken pipe", False),
    ],
)
def test_lost_peer(error, expected):
    """
    A collective that lost its peer fails because of an end, a time-out does
    not, and other connections are none of ours.
    """
    assert expected == lost_peer(error)


@pytest.mark.parametrize(
    ("error", "function", "expected"),
    [
        (GLOO, "recv", True),
        (GLOO, "monitored_barrier", True),
        (GLOO, "all_reduce", False),
        (GLOO, "", False),
        ("ValueError: bad", "recv", False),
    ],
)
def test_failed_off_record(error, function, expected):
    """
    Whether the call that failed is on record follows from where it failed.
    """
    path = "torch/distributed/distributed_c10d.py"
    stack = (
        *([SidecarFrame(function, path, 2799)] if function else []),
        SidecarFrame("recv", "train.py", 7),
    )
    sidecar = Sidecar(
        *("", 0, 2, "n", 1, 0.0, 0.0, "exception"),
        error=error,
        threads=(("MainThread", stack),),
    )

    assert expected == failed_off_record(sidecar)


def test_was_interrupted():
    """
    Ctrl-C is how a person ends a job that hangs.
    """
    assert was_interrupted("KeyboardInterrupt: ")
    assert not was_interrupted("ValueError: KeyboardInterrupt")

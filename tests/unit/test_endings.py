"""
Whether a rank ended by itself, or because others did.
"""

from __future__ import annotations

import pytest

from distdebug.flight_recorder.analysis.endings import (
    failed_in_call,
    was_interrupted,
)


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


def test_was_interrupted():
    """
    Ctrl-C is how a person ends a job that hangs.
    """
    assert was_interrupted("KeyboardInterrupt: ")
    assert not was_interrupted("ValueError: KeyboardInterrupt")

"""
Which environment variables does torch's Flight Recorder listen to?
"""

import pytest

from distdebug.flight_recorder import VARIABLES
from distdebug.flight_recorder.recording.variables import (
    lookup,
    parse_version,
    spellings,
)


BUFFER_SIZE = next(v for v in VARIABLES if v.key == "buffer_size")
NEW, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.5.0a0+git123", (2, 5)),
        ("2", None),
        ("", None),
        (None, None),
    ],
)
def test_parse_version(text, expected):
    """
    Two numbers tell a release of torch.
    """
    assert expected == parse_version(text)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((2, 5), (OLD,)),
        ((2, 8), (NEW, OLD)),
        ((2, 13), (NEW,)),
        (None, (NEW, OLD)),
    ],
)
def test_spellings(version, expected):
    """
    Each torch has its names, and an unknown one has all of them.
    """
    assert expected == spellings(BUFFER_SIZE, version)


def test_table():
    """
    Every variable has a key and a name of its own, and a meaning.
    """
    names = [s.name for v in VARIABLES for s in v.spellings]

    assert len(names) == len(set(names))
    assert len(VARIABLES) == len({v.key for v in VARIABLES})
    assert all(v.meaning for v in VARIABLES)


def test_lookup():
    """
    torch reads the preferred name first.
    """
    assert (NEW, "1") == lookup(BUFFER_SIZE, {OLD: "2", NEW: "1"})
    assert (OLD, "2") == lookup(BUFFER_SIZE, {OLD: "2"})
    assert lookup(BUFFER_SIZE, {}) is None

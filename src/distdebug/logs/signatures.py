"""
Read the texts of logs that are known, which are data in ``signatures.toml``.
"""

from __future__ import annotations

import re

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .._rules import read_rules_file


#: The file of the texts that are shipped.
SIGNATURES_FILE = Path(__file__).with_name("signatures.toml")


@cache
def read_signatures() -> Mapping[str, Any]:
    """
    Return the tables of the texts that are shipped.
    """
    return read_rules_file(SIGNATURES_FILE)


def text_pattern(name: str) -> str:
    """
    Return a pattern of the table ``[text]``; it has no named groups.
    """
    pattern: str = read_signatures()["text"][name]
    return pattern


@cache
def lost_peer() -> re.Pattern[str]:
    """
    Return the pattern of what a process prints whose peer is gone.
    """
    return re.compile(text_pattern("lost_peer"))

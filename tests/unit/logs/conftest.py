"""
What the tests of scanning logs share.
"""

from __future__ import annotations

import pytest

from distdebug.logs import scan_logs


@pytest.fixture
def scan(tmp_path):
    """
    Scans a log of a text, or logs by their names.
    """

    def scan(text="", *, rules=(), **logs):
        folder = tmp_path / "logs"
        folder.mkdir(exist_ok=True)
        logs = {"job": text, **logs} if text else logs
        for name, data in logs.items():
            is_text = isinstance(data, str)
            path = folder / f"{name}.log"
            path.write_bytes(data.encode() if is_text else data)
        return scan_logs(folder, rules=rules)

    return scan

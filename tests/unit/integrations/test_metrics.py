"""
Metrics of a watch, as Prometheus reads them.
"""

from __future__ import annotations

import time
import urllib.request

from unittest import mock

import pytest

from distdebug.causes import Cause
from distdebug.watching import count_step


parser = pytest.importorskip("prometheus_client.parser")
metrics_of = pytest.importorskip("distdebug.integrations.metrics")


def read(text):
    """
    Return the samples by name and labels.
    """
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_textfile(tmp_path, monkeypatch):
    """
    The file of a rank has steps, the last progress, and hangs by cause; nothing
    else lies beside it.
    """
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    with metrics_of.WatchMetrics(tmp_path / "r{rank}.prom") as metrics:
        count_step()
        assert metrics.observe(7) == 7
        monkeypatch.setattr(time, "time", lambda: 2000.0)
        metrics.observe(7)
        metrics.observe(None)
        hang = mock.Mock(cause=Cause.IO_WAIT)
        metrics.on_hang(hang)
        metrics.on_hang(hang)

    found = read((tmp_path / "r3.prom").read_text())
    assert found["distdebug_steps_total", "3"] >= 1
    name = "distdebug_last_progress_timestamp_seconds"
    assert found[name, "3"] == 1000.0
    assert found["distdebug_hangs_total", "io_wait", "3"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r3.prom"]


def test_port():
    """
    A port serves the same, to this node only, until the end.
    """
    with metrics_of.WatchMetrics(port=0) as metrics:
        count_step()
        metrics.observe(1)
        address = f"http://127.0.0.1:{metrics.port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            found = read(answer.read().decode())

    assert ("distdebug_steps_total", "") in found
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_no_folder(tmp_path, caplog):
    """
    A file that cannot be written is said once, and harms nothing.
    """
    with metrics_of.WatchMetrics(tmp_path / "none" / "x.prom") as metrics:
        metrics.observe(1)
        metrics.observe(2)

    assert len(caplog.records) == 1
    assert "x.prom: No such file or directory" in caplog.text

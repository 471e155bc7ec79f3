"""
Hangs and metrics of a watch, as OpenTelemetry gets them.
"""

from __future__ import annotations

import logging
import socket

import pytest

from distdebug.watching import Hang, HangReason, count_step


export = pytest.importorskip("opentelemetry.sdk._logs.export")
readers = pytest.importorskip("opentelemetry.sdk.metrics.export")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
otel = pytest.importorskip("distdebug.integrations.otel")
pytestmark = pytest.mark.process

HANG = Hang(
    reason=HangReason(
        kind="no progress",
        elapsed_s=700.0,
        pids=(7,),
        stalled=(("rank 3", 65),),
    ),
    folder="/shared/hangs",
    data={
        "verdict": {
            "cause": "sleeping",
            "summary": "rank 3 sleeps\x1b[2J",
            "ranks": [3],
            "confidence": "certain",
        }
    },
)


def read(data):
    """
    Return the values by name and attributes.
    """
    return {
        (metric.name, *sorted(point.attributes.values())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_hang(monkeypatch):
    """
    A hang is an event with the verdict, and counts among the metrics, which
    are those for Prometheus.
    """
    monkeypatch.setenv("RANK", "3")
    sent, reader = (
        export.InMemoryLogRecordExporter(),
        readers.InMemoryMetricReader(),
    )
    state = otel.WatchTelemetry(sent, reader)

    count_step()
    state.observe(7)
    state.on_hang(HANG)
    found = read(reader.get_metrics_data())
    state.close()

    (event,) = (x.log_record for x in sent.get_finished_logs())
    host = socket.gethostname()
    assert event.event_name == "distdebug.hang"
    assert event.body == f"rank 3 sleeps\n/shared/hangs on {host}"
    assert dict(event.attributes) == {
        "distdebug.cause": "sleeping",
        "distdebug.confidence": "certain",
        "distdebug.ranks": (3,),
        "distdebug.reason": "no progress for 65 s",
        "distdebug.folder": "/shared/hangs",
    }
    assert found["distdebug_hangs", "3", "sleeping"] == 1
    assert found["distdebug_steps", "3"] >= 1
    assert ("distdebug_last_progress_timestamp_seconds", "3") in found


def test_no_collector(monkeypatch, caplog):
    """
    A collector that is not there is said once by each part of the SDK, and
    harms nothing.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "100")
    caplog.set_level(logging.WARNING)

    state = otel.WatchTelemetry()
    for _ in range(3):
        state.on_hang(HANG)
    state.close()

    names = [record.name for record in caplog.records]
    assert names
    assert len(set(names)) == len(names)
    assert all(name.startswith("opentelemetry.") for name in names)

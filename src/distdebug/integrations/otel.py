"""
Send the hangs and the state of a watch to OpenTelemetry, by OTLP.

The standard variables ``OTEL_*`` say where to, and all else.  The SDK sends in
threads of its own: from a queue of bounded size, and with timeouts.
"""

from __future__ import annotations

import logging
import os

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from .._proc import in_time, start_call
from ..errors import MissingDependencyError
from ..watching import Hang, WatchState


_PROTOCOL = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
_OTLP = f"opentelemetry.exporter.otlp.proto.{_PROTOCOL.partition('/')[0]}"
_MOST_S = 15.0

try:
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    _logs = import_module(f"{_OTLP}._log_exporter")
    _metrics = import_module(f"{_OTLP}.metric_exporter")
except ImportError as exc:
    _MISSING = f"OpenTelemetry by {_PROTOCOL} needs packages: {exc}"
    raise MissingDependencyError(
        _MISSING, remedy="pip install 'distdebug[otel]'"
    ) from exc


class WatchTelemetry(WatchState):
    """
    Log records and metrics of one watch.

    Each hang is an event ``distdebug.hang``: the verdict, and what led to it.

    Args:
        log_exporter: Sends the events; by default over OTLP.

        reader: Reads the metrics; by default sends them over OTLP.
    """

    def __init__(self, log_exporter: Any = None, reader: Any = None) -> None:
        super().__init__()
        # The threads of the SDK take no signals, as those that make them.
        start = partial(_start_providers, log_exporter, reader)
        self._providers = logs, metrics = start_call(start).result(_MOST_S)
        self._logger = logs.get_logger("distdebug")
        meter = metrics.get_meter("distdebug")
        for name, about, _, is_counter in self.metrics():
            kind = "counter" if is_counter else "gauge"
            create = getattr(meter, f"create_observable_{kind}")
            create(name, [partial(self._observations, name)], "", about)

    def _observations(self, name: str, _: object) -> Iterator[Any]:
        for metric in self.metrics():
            if metric.name == name:
                yield from (Observation(x, own) for own, x in metric.values)

    def on_hang(self, hang: Hang) -> None:
        """
        Count a hang, and send it as an event; to be passed to a watch.
        """
        super().on_hang(hang)
        verdict = hang.data["verdict"]
        attributes = {
            "distdebug.cause": hang.cause.value,
            "distdebug.confidence": verdict.get("confidence"),
            "distdebug.ranks": verdict.get("ranks"),
            "distdebug.reason": str(hang.reason),
            "distdebug.folder": str(hang.folder),
        }
        self._logger.emit(
            LogRecord(
                event_name="distdebug.hang",
                severity_number=SeverityNumber.ERROR,
                body=hang.message,
                attributes={k: x for k, x in attributes.items() if x},
            )
        )

    def close(self) -> None:
        """
        Send what is left, in bounded time.
        """
        for provider in self._providers:
            with suppress(Exception):  # the SDK has logged it
                in_time(provider.shutdown, _MOST_S)


def _start_providers(exporter: Any, reader: Any) -> tuple[Any, Any]:
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("opentelemetry."):
            _log_once(name)
    # Their own ends, at the exit of Python, could take half a minute each.
    logs = LoggerProvider(shutdown_on_exit=False)
    exporter = exporter or _logs.OTLPLogExporter()
    logs.add_log_record_processor(BatchLogRecordProcessor(exporter))
    metrics = reader or PeriodicExportingMetricReader(
        _metrics.OTLPMetricExporter()
    )
    return logs, MeterProvider([metrics], shutdown_on_exit=False)


def _log_once(name: str) -> None:
    # A collector that is down would fill the log.
    first = iter([True])
    logging.getLogger(name).addFilter(lambda _: next(first, False))

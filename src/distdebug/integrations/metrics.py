"""
Export the state of a watch as metrics, for Prometheus.
"""

from __future__ import annotations

import logging
import os
import threading

from collections.abc import Callable, Iterator
from typing import Any, Self

from .._in_job import OwnThread
from ..errors import MissingDependencyError
from ..flight_recorder import read_progress
from ..watching import WatchState, step_count


_logger = logging.getLogger("distdebug")


class WatchMetrics(WatchState):
    """
    Metrics of one watch: steps, the last progress, and hangs by cause.

    Example::

        with WatchMetrics("/var/lib/node_exporter/train_{rank}.prom") as metrics:
            with distdebug.watch(on_hang=metrics.on_hang):
                train()

    Args:
        textfile: A file for the textfile collector of node_exporter, replaced
            as a whole; ``{rank}`` stands for the rank.

        port: Where to serve the metrics, on the loopback device only; 0 for
            any free port.

        every_s: How often to look for progress in this process, in seconds.

    Raises:
        OSError: The port is in use.

        MissingDependencyError: *prometheus-client* is not installed.
    """

    def __init__(
        self,
        textfile: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        every_s: float = 15.0,
    ) -> None:
        super().__init__()
        self._prometheus = prometheus = _load_prometheus()
        self._textfile = textfile and os.fspath(textfile).replace(
            "{rank}", self.rank
        )
        self._every_s = every_s
        self._registry = prometheus.CollectorRegistry()
        self._registry.register(self)
        self._stop = threading.Event()
        self._close: list[Callable[[], object]] = [self._stop.set]
        if port is not None:
            server, _ = prometheus.start_http_server(
                port, addr="127.0.0.1", registry=self._registry
            )
            #: The port that serves the metrics, if there is one.
            self.port = server.server_port
            self._close += [server.shutdown, server.server_close]

    def collect(self) -> Iterator[Any]:
        """
        Return the metrics, for a registry of *prometheus-client*.
        """
        core = self._prometheus.metrics_core
        for metric in self.metrics():
            name, about, values, is_counter = metric
            kind = "Counter" if is_counter else "Gauge"
            family = getattr(core, f"{kind}MetricFamily")(name, about)
            suffix = "_total" if is_counter else ""
            for labels, value in values:
                family.add_sample(f"{name}{suffix}", labels, value)
            yield family

    def export(self) -> None:
        """
        Write the file, if there is one.
        """
        if not self._textfile:
            return
        try:
            self._prometheus.write_to_textfile(self._textfile, self._registry)
        except OSError as error:
            _logger.warning(
                "metrics are not written to %s: %s",
                self._textfile,
                error.strerror,
            )
            self._textfile = None

    def _look(self) -> None:
        while not self._stop.wait(self._every_s):
            self.observe((read_progress(), step_count()))

    def __enter__(self) -> Self:
        OwnThread(self._look, "distdebug metrics").start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Export for the last time, and free the port.
        """
        self.export()
        for close in self._close:
            close()


def _load_prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError as exc:
        msg = "metrics need the package prometheus-client"
        raise MissingDependencyError(
            msg, remedy="pip install 'distdebug[metrics]'"
        ) from exc
    return prometheus_client

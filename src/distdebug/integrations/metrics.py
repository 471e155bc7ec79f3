"""
Export the state of a watch as metrics, for Prometheus.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from collections.abc import Callable
from typing import Self

from .._in_job import OwnThread
from ..errors import MissingDependencyError
from ..flight_recorder import read_progress
from ..identity import current_identity
from ..watching import Hang, step_count


try:
    import prometheus_client as prometheus
except ImportError as exc:
    _MISSING = "metrics need the package prometheus-client"
    raise MissingDependencyError(
        _MISSING, remedy="pip install 'distdebug[metrics]'"
    ) from exc


_logger = logging.getLogger("distdebug")


class WatchMetrics:
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
    """

    def __init__(
        self,
        textfile: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        every_s: float = 15.0,
    ) -> None:
        rank = current_identity().rank
        name = "" if rank is None else str(rank)
        self._textfile = textfile and os.fspath(textfile).replace(
            "{rank}", name
        )
        self._every_s = every_s
        self._registry = registry = prometheus.CollectorRegistry()
        labels = ("rank",)
        self._steps = prometheus.Counter(
            "distdebug_steps", "Finished steps.", labels, registry=registry
        )
        self._progress = prometheus.Gauge(
            "distdebug_last_progress_timestamp_seconds",
            "When something last moved, in seconds since the epoch.",
            labels,
            registry=registry,
        ).labels(name)
        self._progress.set(time.time())
        self._hangs = prometheus.Counter(
            "distdebug_hangs",
            "Times that no progress was diagnosed, by cause.",
            ("rank", "cause"),
            registry=registry,
        )
        self._rank = name
        self._counted = 0
        self._value: object = None
        self._stop = threading.Event()
        self._close: list[Callable[[], object]] = [self._stop.set]
        if port is not None:
            server, _ = prometheus.start_http_server(
                port, addr="127.0.0.1", registry=registry
            )
            #: The port that serves the metrics, if there is one.
            self.port = server.server_port
            self._close += [server.shutdown, server.server_close]

    def observe(self, value: object) -> object:
        """
        Note whether something has moved, and export it.

        Args:
            value: Changes as long as there is progress; ``None`` if unknown.

        Returns:
            The same value.
        """
        if value is not None and value != self._value:
            self._value = value
            self._progress.set(time.time())
        # Beside a job, no steps are known.
        if steps := step_count():
            self._steps.labels(self._rank).inc(steps - self._counted)
            self._counted = steps
        self._write()
        return value

    def on_hang(self, hang: Hang) -> None:
        """
        Count a hang; to be passed to a watch.
        """
        self._hangs.labels(self._rank, hang.cause.value).inc()
        self._write()

    def _write(self) -> None:
        if not self._textfile:
            return
        try:
            prometheus.write_to_textfile(self._textfile, self._registry)
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
        self._write()
        for close in self._close:
            close()

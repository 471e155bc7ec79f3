"""
Export the state of a watch as metrics, for Prometheus.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from .._in_job import OwnThread
from ..errors import MissingDependencyError
from ..flight_recorder import read_progress
from ..identity import current_identity
from ..watching import Hang, step_count


_logger = logging.getLogger("distdebug")


class Metric(NamedTuple):
    """
    A metric of a watch.

    Attributes:
        name: Its name, without suffix.

        about: What it is, in a sentence.

        values: Labels and value of each series.

        is_counter: Whether it only grows.
    """

    name: str
    about: str
    values: Sequence[tuple[dict[str, str], float]]
    is_counter: bool = True


class WatchState:
    """
    What a watch has seen so far: steps, the last progress, hangs by cause.
    """

    def __init__(self) -> None:
        rank = current_identity().rank
        self.rank = "" if rank is None else str(rank)
        self._progress_s = time.time()
        self._steps = 0
        self._hangs: Counter[str] = Counter()
        self._value: object = None

    def metrics(self) -> Iterator[Metric]:
        """
        Return all metrics, as they are now.
        """
        own = {"rank": self.rank}
        # Beside a job, no steps are known.
        steps = [(own, self._steps)] if self._steps else []
        yield Metric("distdebug_steps", "Finished steps.", steps)
        yield Metric(
            "distdebug_last_progress_timestamp_seconds",
            "When something last moved, in seconds since the epoch.",
            [(own, self._progress_s)],
            is_counter=False,
        )
        yield Metric(
            "distdebug_hangs",
            "Times that no progress was diagnosed, by cause.",
            [({**own, "cause": x}, n) for x, n in [*self._hangs.items()]],
        )

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
            self._progress_s = time.time()
        self._steps = step_count() or 0
        self.export()
        return value

    def on_hang(self, hang: Hang) -> None:
        """
        Count a hang; to be passed to a watch.
        """
        self._hangs[hang.cause.value] += 1
        self.export()

    def export(self) -> None:
        """
        Write what has changed, where nobody comes to read it.
        """

    def close(self) -> None:
        """
        Export for the last time, and free what is used for it.
        """


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

"""
Record and watch jobs of Ray Train.
"""

from __future__ import annotations

import functools
import logging
import os

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.train import UserCallback
from ray.train.torch import TorchConfig

from ..diagnosis import diagnose
from ..errors import DistdebugError
from .training import TrainingWatch
from .training_loop import watched


_logger = logging.getLogger("distdebug")


@dataclass
class RecordedTorchConfig(TorchConfig):
    """
    Enable the Flight Recorder on all workers before Ray makes their group.

    Example::

        TorchTrainer(
            watched_loop(train_loop, "/shared/hangs"),
            torch_config=RecordedTorchConfig(),
            run_config=RunConfig(callbacks=[HangCallback("/shared/hangs")]),
        )

    Args:
        dump_dir: Where ranks write their dumps; see
            :func:`~distdebug.enable_flight_recorder`.
    """

    dump_dir: str | None = None

    @property
    def backend_cls(self) -> type:
        """
        Return what sets up the workers.
        """
        return _RecordedBackend


class _RecordedBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(TrainingWatch.enable, backend_config.dump_dir)
        super().on_start(worker_group, backend_config)


def watched_loop(
    train_loop: Callable[..., Any],
    output_dir: str | os.PathLike[str],
    **options: Any,
) -> Callable[..., Any]:
    """
    Return a train loop that is watched, and in which optimizer steps count.

    Args:
        train_loop: The train loop per worker.

        output_dir: The folder for snapshots of hangs, shared by all nodes.

        options: Further arguments of :func:`~distdebug.watch`.
    """

    @functools.wraps(train_loop)
    def loop(*args: Any) -> Any:
        with watched(output_dir, **options):
            return train_loop(*args)

    return loop


class HangCallback(UserCallback):
    """
    Log why workers failed, on the driver, and note it at their exceptions.

    Args:
        output_dir: The folder for snapshots of hangs.
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self._output_dir = Path(output_dir)

    def after_exception(
        self, run_context: Any, worker_exceptions: dict[int, Exception]
    ) -> None:
        """
        Diagnose the snapshot that was taken before, if there is one.
        """
        if not self._output_dir.is_dir():
            return
        try:
            verdict = diagnose(self._output_dir).verdict
        except (DistdebugError, OSError) as error:
            _logger.warning("the hang was not diagnosed: %s", error)
        else:
            text = f"{verdict.summary} (see {self._output_dir})"
            _logger.error("%s", text)
            for failure in worker_exceptions.values():
                failure.add_note(f"distdebug: {text}")

"""
Record and watch jobs of Accelerate.
"""

from __future__ import annotations

import os

from contextlib import ExitStack
from typing import Any

import accelerate

from .training import TrainingWatch
from .training_loop import counting_steps


class WatchedAccelerator(accelerate.Accelerator):
    """
    An accelerator that records the collectives of its rank, and diagnoses the
    job when it hangs.

    Each step of an optimizer is progress; ``save_state`` may take up to half an
    hour.

    Example::

        accelerator = WatchedAccelerator(project_dir="out")

    Args:
        args: Arguments of the accelerator.

        hang_dir: The folder for snapshots; by default ``hangs`` in the
            ``project_dir``.

        watch_options: Further arguments of
            :class:`~distdebug.integrations.TrainingWatch`.

        options: Keyword arguments of the accelerator.
    """

    def __init__(
        self,
        *args: Any,
        hang_dir: str | os.PathLike[str] | None = None,
        watch_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        # Before the process group, which the accelerator makes.
        self.hang_watch = TrainingWatch(hang_dir, **(watch_options or {}))
        super().__init__(*args, **options)
        self._hooks = ExitStack()
        self._hooks.enter_context(counting_steps(self.hang_watch))
        self.hang_watch.start(self.project_dir)

    def save_state(self, *args: Any, **options: Any) -> Any:
        """
        Save as the accelerator does, which may take long.
        """
        self.hang_watch.begin("checkpoint")
        try:
            return super().save_state(*args, **options)
        finally:
            self.hang_watch.end("checkpoint")

    def end_training(self) -> None:
        """
        End the training as the accelerator does, and the watch.
        """
        super().end_training()
        self._hooks.close()
        self.hang_watch.close()

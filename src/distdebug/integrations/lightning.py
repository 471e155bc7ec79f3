"""
Record and watch jobs of Lightning by a callback.
"""

from __future__ import annotations

from typing import Any

import lightning

from .training import WatchingCallback


class HangCallback(WatchingCallback, lightning.Callback):
    """
    Record the collectives of each rank, and diagnose the job when it hangs.

    Evaluation and checkpoints may take up to half an hour.  An exception that
    ends the training carries the diagnosis, if there was a hang before.

    Example::

        trainer = lightning.Trainer(callbacks=[HangCallback()])

    Args:
        output_dir: The folder for snapshots; by default ``hangs`` in the
            ``default_root_dir`` of the trainer.

        options: Further arguments of
            :class:`~distdebug.integrations.TrainingWatch`.
    """

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """
        Start the watch: the process group exists, on every rank.
        """
        self._training.start(trainer.default_root_dir)

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """
        Count a step.
        """
        self._training.step()

    on_validation_batch_end = on_test_batch_end = on_train_batch_end
    on_predict_batch_end = on_train_batch_end

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """
        Allow a long evaluation.
        """
        self._training.begin("evaluation")

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """
        Expect steps again.
        """
        self._training.end("evaluation")

    on_test_start, on_test_end = on_validation_start, on_validation_end

    def on_save_checkpoint(self, *_: Any, **__: Any) -> None:
        """
        Allow a long checkpoint; nothing tells its end but the next step.
        """
        self._training.begin("checkpoint")

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """
        Expect steps again after a checkpoint.
        """
        self._training.end("checkpoint")

    def on_exception(
        self, trainer: Any, pl_module: Any, exception: BaseException
    ) -> None:
        """
        Add the diagnosis to what ends the training.
        """
        self._training.explain(exception)

    def teardown(self, *_: Any, **__: Any) -> None:
        """
        End the watch.
        """
        self._training.close()

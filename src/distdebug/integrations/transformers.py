"""
Record and watch jobs of the Transformers trainer by a callback.
"""

from __future__ import annotations

from typing import Any

import transformers

from .training import WatchingCallback


class HangCallback(WatchingCallback, transformers.TrainerCallback):
    """
    Record the collectives of each rank, and diagnose the job when it hangs.

    Make it before ``TrainingArguments``, which makes the process group.
    Evaluation and checkpoints may take up to half an hour.

    Example::

        hang_callback = HangCallback()
        arguments = transformers.TrainingArguments("out")
        trainer = transformers.Trainer(..., callbacks=[hang_callback])

    Args:
        output_dir: The folder for snapshots; by default ``hangs`` in the
            ``output_dir`` of the arguments.

        options: Further arguments of
            :class:`~distdebug.integrations.TrainingWatch`.
    """

    def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
        """
        Start the watch.
        """
        self._training.start(args.output_dir)

    def on_step_end(
        self, args: Any, state: Any, control: Any, **__: Any
    ) -> None:
        """
        Count a step; allow a long evaluation or checkpoint if one follows.
        """
        self._training.step()
        if control.should_evaluate:
            self._training.begin("evaluation")
        if control.should_save:
            self._training.begin("checkpoint")

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """
        Count a step of an evaluation.
        """
        self._training.step()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """
        Expect steps again after an evaluation.
        """
        self._training.end("evaluation")

    def on_save(self, *_: Any, **__: Any) -> None:
        """
        Expect steps again after a checkpoint.
        """
        self._training.end("checkpoint")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """
        End the watch.
        """
        self._training.close()

"""
Record and watch any training loop, by the steps of its optimizers.
"""

from __future__ import annotations

import os

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .training import TrainingWatch


@contextmanager
def watched(
    output_dir: str | os.PathLike[str] = "hangs",
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Iterator[TrainingWatch]:
    """
    Record and watch a block of code; each step of an optimizer is progress.

    It fits any loop: plain ones, torchtitan, DeepSpeed.  What an exception says
    that leaves the block has the diagnosis of the hang before, if there was
    one.

    Example::

        with distdebug.integrations.watched("hangs"):
            main()  # makes the process group, and trains

    Args:
        output_dir: The folder for snapshots of hangs, shared by all ranks.

        dump_dir: Where ranks write their Flight Recorder dumps; see
            :func:`~distdebug.enable_flight_recorder`.

        options: Further arguments of :func:`~distdebug.watch`.

    Yields:
        The watch; ``begin("evaluation")`` and ``end("evaluation")`` allow a long
        phase without steps.
    """
    training = TrainingWatch(output_dir, dump_dir=dump_dir, **options)
    with counting_steps(training):
        training.start(None)
        try:
            yield training
        except BaseException as error:
            training.explain(error)
            raise
        finally:
            training.close()


@contextmanager
def counting_steps(training: TrainingWatch) -> Iterator[None]:
    """
    Count the steps of all optimizers of this process as steps of *training*.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(lambda *_: training.step())
    try:
        yield
    finally:
        handle.remove()

"""
Adapters for training frameworks, test runners, and other tools.

Those for frameworks are modules of their own, loaded only when they are imported:
``lightning``, ``transformers``, ``accelerate``, and ``ray_train``.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .training import TrainingWatch as TrainingWatch
    from .training_loop import watched as watched
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

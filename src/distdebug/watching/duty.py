"""
What does a watcher do each time that it is called?

It has the job looked at, tells people what was found, and remembers which
snapshots it knows.
"""

from __future__ import annotations

import logging

from collections.abc import Callable, Iterable

import attrs

from ..errors import DistdebugError
from .hang import Hang, HangReason, Hook, NotYet
from .respond import Order, Response


__all__ = ["Duty", "as_hooks"]

_logger = logging.getLogger("distdebug")

# Another watcher of this node is done by then.
_BUSY_S = 30.0


@attrs.define
class Duty:
    """
    What to do when a job makes no progress.

    Attributes:
        order: What to take, and where to.

        look: Looks at the job, and takes it.

        hooks: Whom to tell if something is wrong; one that fails is logged.

        tell: Told of everything that was found, also if nothing is wrong.

        told: How often something was wrong.

        failed: How often nothing could be found out.
    """

    order: Order
    look: Callable[[HangReason, Order], Response]
    hooks: tuple[Hook, ...] = ()
    tell: Hook = lambda _hang: None
    told: int = 0
    failed: int = 0

    def __call__(self, reason: HangReason) -> NotYet | None:
        """
        Do it.

        Args:
            reason: Why.

        Returns:
            When to ask again, if there was nothing to tell.
        """
        try:
            got = self.look(reason, self.order)
        except Exception as error:  # noqa: BLE001 it was killed, perhaps
            _logger.warning("cannot look at the job: %s", error)
            self.failed += 1
            return _later(reason)

        if got.bundle is not None:
            known = self.order.but | {got.bundle}
            self.order = attrs.evolve(self.order, but=known)
        if got.hang is not None:
            self._tell(got.hang, is_news=got.outcome == "explained")
        else:
            _logger.info("%s: %s (%s)", reason, got.summary, got.outcome)
        if got.outcome == "fine":
            return _later(reason)._replace(is_free=got.bundle is None)
        return NotYet(_BUSY_S) if got.outcome == "busy" else None

    def _tell(self, hang: Hang, *, is_news: bool) -> None:
        is_wrong = is_news and not hang.is_healthy
        self.told += is_wrong
        for hook in (self.tell, *(self.hooks if is_wrong else ())):
            _call(hook, hang)


def as_hooks(hooks: Hook | Iterable[Hook] | None) -> tuple[Hook, ...]:
    """
    Take one hook, or several, or none.

    Args:
        hooks: What a user gave.

    Returns:
        All of them.
    """
    if hooks is None:
        return ()
    return (hooks,) if callable(hooks) else tuple(hooks)


def _later(reason: HangReason) -> NotYet:
    """
    Have a stall judged anew when it has lasted twice as long.
    """
    return NotYet(max((s for _, s in reason.stalled), default=_BUSY_S))


def _call(hook: Hook, hang: Hang) -> None:
    try:
        hook(hang)
    except DistdebugError as error:
        _logger.warning("a hook failed: %s", error)
    except Exception:  # the watch is worth more
        _logger.warning("a hook failed", exc_info=True)

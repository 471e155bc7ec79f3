"""
What does a watcher do each time that it is called?

It has the job looked at, tells people what was found, and remembers which
snapshots it knows.
"""

from __future__ import annotations

import logging

from collections.abc import Callable
from functools import partial

import attrs

from .._in_time import in_time
from ..errors import DistdebugError
from .hang import Hang, HangReason, Hook, NotYet
from .log import is_the_end, say
from .order import Order, Response


__all__ = ["Duty"]

# Another watcher of this node is done by then.
_BUSY_S = 30.0
# So is another node.
_OTHERS_S = 290.0


@attrs.define
class Duty:
    """
    What to do when a job makes no progress.

    Attributes:
        order: What to take, and where to.

        look: Looks at the job, and takes it.

        hooks: Whom to tell if something is wrong; one that fails is logged.

        tell: Told after them of everything that was found, also if nothing is
            wrong.

        patience_s: How long to wait for each of them, in seconds; by default
            they are trusted to end.

        told: How often something was wrong.

        failed: How often nothing could be found out.
    """

    order: Order
    look: Callable[[HangReason, Order], Response]
    hooks: tuple[Hook, ...] = ()
    tell: Hook = lambda _hang: None
    patience_s: float | None = None
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
            say(logging.WARNING, "cannot look at the job: %s", error)
            self.failed += 1
            return _later(reason)

        if got.outcome == "taken":
            # If whoever should explain it is dead by then, we do.
            say(logging.INFO, "%s", f"{reason}: {got.summary}")
            return NotYet(_OTHERS_S)
        if got.bundle is not None:
            known = self.order.but | {got.bundle}
            self.order = attrs.evolve(self.order, but=known)
        if got.hang is not None:
            self._tell(got.hang, is_news=got.outcome == "explained")
        else:
            text = f"{reason}: {got.summary} ({got.outcome})"
            say(logging.INFO, "%s", text)
        if got.outcome == "fine":
            return _later(reason)._replace(is_free=got.bundle is None)
        return NotYet(_BUSY_S) if got.outcome == "busy" else None

    def _tell(self, hang: Hang, *, is_news: bool) -> None:
        is_wrong = is_news and not hang.is_healthy
        self.told += is_wrong
        # What writes comes last: it may wait for whoever reads.
        for hook in (*(self.hooks if is_wrong else ()), self.tell):
            self._call(hook, hang)

    def _call(self, hook: Hook, hang: Hang) -> None:
        try:
            if self.patience_s is None:
                hook(hang)
            else:
                in_time(partial(hook, hang), self.patience_s)
        except DistdebugError as error:
            say(logging.WARNING, "a hook failed: %s", error)
        except BaseException as error:
            if is_the_end(error):
                raise
            late = " or did not end in time" * isinstance(error, TimeoutError)
            say(logging.WARNING, "a hook failed%s", late, error=error)


def _later(reason: HangReason) -> NotYet:
    """
    Have a stall judged anew when it has lasted twice as long.
    """
    return NotYet(reason.stalled_s or _BUSY_S)

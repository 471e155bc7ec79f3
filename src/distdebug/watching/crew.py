"""
Which processes are watched, and which of them are still there?

Numbers of processes are used again, so each is known by when it started too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..processes.model import Worker
from ..processes.state import read_state


__all__ = ["Crew", "crew_of"]

_FIND_AGAIN_S = 60.0


class Crew:
    """
    The processes that are watched.

    Args:
        pids: Those to start with.

        find: Finds those of now.

        root: Where the kernel's files are.
    """

    def __init__(
        self,
        pids: Iterable[int],
        find: Callable[[], Iterable[int]],
        *,
        root: str = "/proc",
    ) -> None:
        self._find = find
        self._root = root
        self._found_at: float | None = None
        self._known = self._identify(pids)

    def look(self, now: float) -> tuple[int, ...]:
        """
        Tell which processes are there.

        Others are looked for once a minute, and whenever nobody is left.

        Args:
            now: The time in seconds, of a clock that does not go back.

        Returns:
            Their numbers, in order.
        """
        self._known = {
            pid: started
            for pid, started in self._known.items()
            if self._started(pid) == started
        }
        is_due = (
            self._found_at is None or now - self._found_at >= _FIND_AGAIN_S
        )
        if is_due or not self._known:
            self._found_at = now
            self._known |= self._identify(self._find())
        return tuple(sorted(self._known))

    def _identify(self, pids: Iterable[int]) -> dict[int, int]:
        started = ((pid, self._started(pid)) for pid in pids)
        return {pid: ticks for pid, ticks in started if ticks is not None}

    def _started(self, pid: int) -> int | None:
        state = read_state(pid, self._root)
        if state is None or state.letter in "ZX":
            return None
        return state.start_ticks


def crew_of(
    pids: Iterable[int],
    patterns: Iterable[str],
    *,
    find: Callable[..., Iterable[Worker]],
    root: str = "/proc",
) -> Crew:
    """
    Choose whom to watch.

    Args:
        pids: Exactly these processes, if there are any.

        patterns: Otherwise the workers whose command lines match; those of
            every framework that is known if there is no pattern.

        find: Finds workers, as
            :func:`~distdebug.processes.find.find_workers` does.

        root: Where the kernel's files are.

    Returns:
        The processes to watch.
    """
    given = tuple(pids)
    if given:
        return Crew(given, tuple, root=root)

    wanted = tuple(patterns)

    def find_now() -> list[int]:
        workers = tuple(find(wanted, include_children=False, root=root))
        ranks = [x.pid for x in workers if x.role == "rank"]
        # A launcher that is alone starts ranks, or starts them again.
        return ranks or [x.pid for x in workers]

    return Crew((), find_now, root=root)

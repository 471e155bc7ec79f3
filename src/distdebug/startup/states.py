"""
Which phases are begun or done, and which is the job busy with?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from .book import Book, Phase
from .choice import inner_books
from .merging import Merged
from .model import PhaseState, State
from .tracks import Track


__all__ = ["current_phase", "phase_states"]


def phase_states(
    merged: Merged, book: Book | None, books: Iterable[Book]
) -> tuple[PhaseState, ...]:
    """
    What is the state of each phase?

    Args:
        merged: What the logs tell.

        book: Whose they are.

        books: All books.

    Returns:
        The phases of that book, then those that were seen of others inside.
    """
    found: list[PhaseState] = []
    trains = book is not None and any(
        (track := merged.tracks.get((book.name, phase.name)))
        and track.begun is not None
        for phase in book.phases
        if phase.trains
    )
    for one in inner_books(merged, book, books):
        covered = book.covers if book and one.kind == "common" else ()
        for index, phase in enumerate(one.phases):
            track = merged.tracks.get((one.name, phase.name))
            is_begun = track is not None and track.begun is not None
            is_ours = one is book and not phase.part_of
            if not is_ours and (phase.name in covered or not is_begun):
                continue
            if one is not book and phase.trains and book is not None:
                continue
            over = trains and one is not book
            found.append(_state(merged, one, index, is_over=over))
    return tuple(found)


def _state(
    merged: Merged, book: Book, index: int, *, is_over: bool
) -> PhaseState:
    phase = book.phases[index]
    state = PhaseState(
        name=phase.name,
        title=phase.title,
        framework=book.name,
        what=phase.what,
        typical_s=phase.typical_s,
        trains=phase.trains,
        part_of=phase.part_of,
    )
    track = merged.tracks.get((book.name, phase.name))
    if track is None:
        return state

    how, ended_at = _how(merged, book, index, track)
    return attrs.evolve(
        state,
        state="done" if is_over and how == "begun" else how,
        begun_at=track.begun_at,
        ended_at=ended_at,
        last_at=track.last_at,
        progress=track.progress(),
        parts=track.done_parts,
        of=None if track.of is None else int(track.of),
        facts=dict(track.facts),
        line=track.line,
    )


def _how(
    merged: Merged, book: Book, index: int, track: Track
) -> tuple[State, float | None]:
    if track.begun is None:
        return "not begun", None
    if track.is_ended:
        return "done", track.ended_at
    later = [
        other
        for phase in book.phases[index + 1 :]
        if _ends(phase, track.phase)
        and (other := merged.tracks.get((book.name, phase.name)))
        and other.begun is not None
    ]
    # What is common comes in any order.
    if later and (book.kind != "common" or _is_up(later[-1], track)):
        times = [t.begun_at for t in later if t.begun_at is not None]
        return "done", min(times, default=None)
    if track.has_failed:
        return "failed", None
    return "begun", None


def _is_up(later: Track, track: Track) -> bool:
    """
    Has the job started, or is its server ready, so that all else is done?
    """
    ready = later.phase.serves and later.is_ended
    return later.phase.trains or (ready and later.touched > track.touched)


def _ends(later: Phase, phase: Phase) -> bool:
    if later.part_of or phase.part_of:
        return False
    return later.trains or not phase.until or later.name in phase.until


def current_phase(
    states: Sequence[PhaseState], book: Book | None
) -> tuple[PhaseState | None, PhaseState | None]:
    """
    What is the job busy with?

    Args:
        states: Its phases.

        book: Whose they are.

    Returns:
        The deepest phase of the book that is not done, and what goes on
        inside it; or else the last that is done.
    """
    own = [
        s
        for s in states
        if (book is None or s.framework == book.name) and not s.part_of
    ]
    begun = [s for s in own if s.state != "not begun"]
    unfinished = [s for s in begun if s.state != "done"]
    inside = [s for s in states if s not in own and s.state == "begun"]
    inner = _newest(s for s in inside if not s.part_of)
    if book is None and unfinished:
        trains = [s for s in unfinished if s.trains]
        return trains[-1] if trains else _newest(unfinished), None
    if unfinished:
        last = unfinished[-1]
        parts = [s for s in inside if s.part_of == last.name]
        return last, _newest(parts) if last.trains else inner
    if any(s.trains for s in begun):
        return begun[-1], None
    if inner is not None and not (begun and _is_past(inner)):
        return inner, None
    return (begun[-1] if begun else None), None


def _newest(states: Iterable[PhaseState]) -> PhaseState | None:
    return max(states, key=lambda s: s.last_at or 0.0, default=None)


def _is_past(inner: PhaseState) -> bool:
    """
    Was that of a phase which is done: a full bar that nothing ends?
    """
    full = inner.progress is not None and inner.progress.is_full
    return full and inner.framework == "common"

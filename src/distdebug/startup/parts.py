"""
Does a phase go on, and what is over by that?

Most phases come once, in their order; the parts of a step come again and again.
"""

from __future__ import annotations

from .._lines import LogLine
from .book import Book, Phase
from .story import Story
from .tracks import Track


__all__ = ["go_on", "is_inside", "track_of"]


def track_of(story: Story, book: Book, phase: Phase) -> Track:
    """
    What was seen of a phase so far?

    Args:
        story: What is known.

        book: Whose phase it is.

        phase: The phase.

    Returns:
        Its track, begun or not.
    """
    key = (book.name, phase.name)
    if key not in story.tracks:
        story.tracks[key] = Track(phase)
    return story.tracks[key]


def is_inside(story: Story, book: Book, part: Phase) -> bool:
    """
    Can this phase be now?  A part can once the whole has begun.

    Args:
        story: What is known.

        book: Whose phases they are.

        part: The phase, which may be a part of another.

    Returns:
        Whether it can.
    """
    if not part.part_of:
        return True
    whole = story.tracks.get((book.name, part.part_of))
    return whole is not None and whole.begun is not None


def go_on(
    story: Story, book: Book, track: Track, line: LogLine, time: float | None
) -> None:
    """
    A phase goes on: it was not over, if nothing later has begun.

    Args:
        story: What is known.

        book: Whose phase it is.

        track: What was seen of it.

        line: The line that tells.

        time: When it was printed.
    """
    if track.phase.part_of:
        _enter_part(story, book, track, line, time)
    elif track.is_ended:
        names = [p.name for p in book.phases if not p.part_of]
        later = names[names.index(track.phase.name) + 1 :]
        tracks = [story.tracks.get((book.name, name)) for name in later]
        if all(other is None or other.begun is None for other in tracks):
            track.reopen()


def _enter_part(
    story: Story, book: Book, track: Track, line: LogLine, time: float | None
) -> None:
    """
    A part goes on, so the others are over, and the whole goes on.
    """
    whole = track.phase.part_of
    story.tracks[book.name, whole].touch(story.order, time, line)
    for other in book.phases:
        known = story.tracks.get((book.name, other.name))
        if known is None or known is track or other.part_of != whole:
            continue
        known.end(time)
    if track.is_ended:
        track.repeat(time)

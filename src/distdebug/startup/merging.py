"""
What do all logs of a job tell together?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from .story import Story
from .tracks import Track


__all__ = ["Merged", "merge"]

_CLOCKS_DIFFER = 60.0
_DECISIVE = ("decisive ", "actor ", "shared_actor ")


@attrs.frozen(kw_only=True)
class Merged:
    """
    What all logs of a job tell.
    """

    stories: tuple[Story, ...]
    tracks: Mapping[tuple[str, str], Track]
    scores: Mapping[str, float]
    decided: frozenset[str]
    # Those of which more is known than a name that others use, too.
    told: frozenset[str]


def merge(stories: Sequence[Story]) -> Merged:
    """
    Put together what several logs of one job tell.

    Args:
        stories: What each tells; of those that were begun again, only what
            came since is kept, also in the others.

    Returns:
        All of it.
    """
    begun = [
        story.attempt_at
        for story in stories
        if story.attempt > 1 and story.attempt_at is not None
    ]
    since = max(begun, default=None)
    tracks: dict[tuple[str, str], list[Track]] = {}
    hits: dict[str, dict[str, float]] = {}
    for story in stories:
        for book, found in story.hits.items():
            hits.setdefault(book, {}).update(found)
        for key, track in story.tracks.items():
            if not _is_old(track, since):
                tracks.setdefault(key, []).append(track)
    return Merged(
        stories=tuple(stories),
        tracks={key: _joined(some) for key, some in tracks.items()},
        scores={book: sum(found.values()) for book, found in hits.items()},
        decided=frozenset(
            book
            for book, found in hits.items()
            if any(what.startswith(_DECISIVE) for what in found)
        ),
        told=frozenset(
            book
            for book, found in hits.items()
            if any(
                weight > 0 and not what.startswith("shared_actor ")
                for what, weight in found.items()
            )
        ),
    )


def _is_old(track: Track, since: float | None) -> bool:
    if since is None or track.last_at is None:
        return False

    return track.last_at < since - _CLOCKS_DIFFER


def _joined(tracks: Sequence[Track]) -> Track:
    """
    One phase, as several logs tell of it.
    """
    newest = max(tracks, key=lambda t: (t.last_at or 0.0, t.touched))
    if len(tracks) == 1:
        return newest

    stepper = next((t for t in (newest, *tracks) if t.step), newest)
    ended = [t for t in tracks if t.is_ended]
    joined = attrs.evolve(
        newest,
        begun_at=_least(t.begun_at for t in tracks),
        begun=_least(t.begun for t in tracks),
        is_ended=bool(ended),
        ended_at=ended[0].ended_at if ended else None,
        has_failed=any(t.has_failed for t in tracks),
        is_deduplicated=any(t.is_deduplicated for t in tracks),
        bars={
            ((number, who), ranks, name): bar
            for number, track in enumerate(tracks)
            for (who, ranks, name), bar in track.bars.items()
        },
        parts=set().union(*(t.parts for t in tracks)),
        more_parts=sum(t.more_parts for t in tracks),
        of=max((t.of for t in tracks if t.of is not None), default=None),
        step=stepper.step,
        first_step=stepper.first_step,
        last_step=stepper.last_step,
        facts={k: v for t in (*tracks, newest) for k, v in t.facts.items()},
    )
    _correct_end(joined, newest)
    return joined


def _least(values: Iterable[Any]) -> Any:
    return min((one for one in values if one is not None), default=None)


def _correct_end(joined: Track, newest: Track) -> None:
    """
    A phase ends with its last part, and goes on while a bar does.
    """
    if joined.of and joined.done_parts >= joined.of and joined.phase.end_part:
        joined.is_ended = True
    elif any(not bar.is_full for bar in joined.bars.values()):
        joined.is_ended = newest.is_ended

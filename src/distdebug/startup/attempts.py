"""
Was the job started again, and is it over?
"""

from __future__ import annotations

from .._lines import LogLine
from .rulebook import Rule, RuleBook
from .story import Story


__all__ = ["note_ending", "note_restart", "note_start", "note_step"]


def note_start(
    story: Story,
    rules: RuleBook,
    rule: Rule,
    line: LogLine,
    time: float | None,
) -> None:
    """
    A text was printed that begins a job.

    Each rank may print it; so it only begins again if the same process
    printed it before, or if the job had come further.

    Args:
        story: What is known.

        rules: All rules.

        rule: Whose text it is.

        line: The line.

        time: When it was printed.
    """
    kinds = {book.name: book.kind for book in rules.books}
    if rule.book.kind == "engine" and any(
        kinds[name] in {"orchestrator", "trainer"} for name in story.hits
    ):
        return  # an engine inside it is started again

    who = (line.origin, rule.pattern.pattern)
    is_same = line.origin is not None and who in story.starts
    if story.starts and (
        is_same or story.ending is not None or _came_further(story, rule)
    ):
        story.begin_again(time)
    story.starts.add(who)
    if story.attempt_at is None:
        story.attempt_at = time


def note_restart(story: Story, time: float | None) -> None:
    """
    An early phase begins: after the end of a job, it is another attempt.

    Args:
        story: What is known.

        time: When it begins.
    """
    if story.ending is not None:
        story.begin_again(time)


def note_step(story: Story, done: float) -> None:
    """
    The job trains: it was not over.

    Args:
        story: What is known.

        done: How many steps are done.
    """
    ending = story.ending
    if ending and ending[0] != "completed" and done > story.done_at_end:
        story.ending = None
    if story.ending is None:
        story.done_at_end = done


def note_ending(
    story: Story, rule: Rule, line: LogLine, time: float | None
) -> None:
    """
    A text was printed that ends a job.

    Args:
        story: What is known.

        rule: Whose text it is.

        line: The line.

        time: When it was printed.
    """
    if rule.ending is not None and story.ending is None:
        story.ending = (rule.ending.how, line)
        story.ended_at = time


def _came_further(story: Story, rule: Rule) -> bool:
    names = {phase.name for phase in rule.book.phases}
    return any(
        track.begun is not None and (track.phase.trains or track.is_ended)
        for (book, _), track in story.tracks.items()
        if book == rule.book.name or not names or rule.book.kind == "common"
    )

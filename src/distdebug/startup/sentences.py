"""
How is it told in one sentence where a job is?
"""

from __future__ import annotations

from .._lines import LogLine
from .._text import clean, time_text
from .book import Phase
from .model import PhaseReport, PhaseState


__all__ = [
    "ending_text",
    "is_between",
    "place_text",
    "ready_text",
    "state_text",
]


def is_between(state: PhaseState, phase: Phase) -> bool:
    """
    Is its bar full, so that it is busy with what follows in silence?

    Args:
        state: The phase.

        phase: Its rules.

    Returns:
        Whether it is.
    """
    full = state.progress is not None and state.progress.is_full
    return bool(phase.then) and full and state.state == "begun"


def place_text(state: PhaseState, phase: Phase) -> str:
    """
    Tell where a phase is.

    Args:
        state: The phase.

        phase: Its rules.

    Returns:
        Such as "loading the model's weights, shards 40 % (2/5)".
    """
    parts = [phase.title]
    progress = state.progress
    if progress and state.state != "done":
        name = clean(progress.name, limit=60)
        thing = "shards" if "shard" in name else name
        if phase.trains:
            thing = "step"
        parts.append(f"{thing} {progress}".strip())
    elif state.of:
        parts.append(f"{state.parts} of {state.of}")
    have, want = state.facts.get("have"), state.facts.get("want")
    if have and want:
        parts.append(f"{clean(have)} of {clean(want)} GPUs")
    if is_between(state, phase):
        parts.append(f"now {phase.then}")
    if state.state == "done":
        parts.append("done, and nothing is known of what follows")
    return ", ".join(parts)


def state_text(report: PhaseReport, text: str, limit: float) -> str:
    """
    Tell how it stands where nothing is wrong.

    Args:
        report: Everything that is known.

        text: Where the job is.

        limit: For how many seconds it may be silent there.

    Returns:
        One sentence.
    """
    state, focus = report.current, report.inner
    if state and focus and not focus.part_of:
        text = f"{state.title}; inside it {focus.framework}: {text}"
    if state and report.left_s and state.state == "begun":
        text += f", about {time_text(report.left_s)} left"
    if report.silent_s is not None:
        silent = time_text(report.silent_s)
        text += (
            f": silent for {silent} is normal, "
            f"alarming after {time_text(limit)}"
        )
    return f"{text}."


def ready_text(report: PhaseReport, state: PhaseState) -> str:
    """
    Tell that a server is ready.

    Args:
        report: Everything that is known.

        state: Its last phase.

    Returns:
        One sentence.
    """
    who = report.title if report.framework == state.framework else ""
    text = f"{who or 'The server'} is ready, serving"
    if report.silent_s is not None:
        silent = time_text(report.silent_s)
        text += f": silent for {silent} is normal, as long as nobody asks it"
    return f"{text}."


def ending_text(report: PhaseReport, reason: LogLine | None = None) -> str:
    """
    Tell how a job ended, or that nothing is known.

    Args:
        report: Everything that is known.

        reason: The line that tells why.

    Returns:
        One sentence.
    """
    state = report.current
    if report.ended is None:
        return "No phase of a start-up is known in this log."

    how = {
        "completed": "The job is completed",
        "failed": "The job failed",
        "killed": "The job was killed",
    }[report.ended]
    if report.ended == "completed":
        return f"{how}, after {state.title}." if state else f"{how}."
    why = f": {clean(reason.text).strip(' .:')}" if reason else ""
    if report.ended == "killed" and " " not in why.strip(": "):
        why = ""  # such as "Killed"
    if state is None:
        return f"{how}{why}."
    where = f"{state.title}"
    if state.progress:
        where += f", {state.progress}"
    when = "after" if state.state == "done" else "while"
    return f"{how} {when} {where}{why}."

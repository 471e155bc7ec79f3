"""
In which phase of its start-up is a job, and does that take too long?

The door is :func:`detect_phase`.  What it knows of frameworks is data, which
users can add to.
"""

from __future__ import annotations

from .book import Book, Ending, Failure, Phase
from .books import load_book, read_books
from .detect import detect_phase
from .model import Harmless, PhaseReport, PhaseState, Progress


__all__ = [
    "Book",
    "Ending",
    "Failure",
    "Harmless",
    "Phase",
    "PhaseReport",
    "PhaseState",
    "Progress",
    "detect_phase",
    "load_book",
    "read_books",
]

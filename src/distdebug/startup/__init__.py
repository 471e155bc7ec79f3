"""
In which phase of its start-up is a job, and does that take too long?

The door is :func:`detect_phase`.  What it knows of frameworks is data, which
users can add to.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .book import Book as Book
    from .book import Ending as Ending
    from .book import Failure as Failure
    from .book import Phase as Phase
    from .book import load_book as load_book
    from .book import read_books as read_books
    from .detect import detect_phase as detect_phase
    from .model import Harmless as Harmless
    from .model import PhaseReport as PhaseReport
    from .model import PhaseState as PhaseState
    from .progress_bars import Progress as Progress
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

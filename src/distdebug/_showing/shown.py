"""
How does a result get all the ways in which it can be looked at?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import MissingDependencyError
from .as_html import blocks_html
from .as_text import Paint, blocks_text
from .blocks import Block


TYPE_CHECKING = False
if TYPE_CHECKING:
    import pandas as pd


__all__ = ["Shown", "frame_of"]


def frame_of(records: list[dict[str, Any]]) -> pd.DataFrame:
    """
    Make a data frame of *pandas*, which is loaded only now.

    Args:
        records: One plain dictionary per row.

    Raises:
        MissingDependencyError: *pandas* is not installed.
    """
    try:
        import pandas as pd
    except ImportError as exc:
        message = "a data frame needs pandas"
        remedy = 'pip install "distdebug[notebook]"'
        raise MissingDependencyError(message, remedy=remedy) from exc

    return pd.DataFrame.from_records(records)


class Shown:
    """
    What shows itself in a terminal, in a notebook, and as a data frame.

    A class of results has this as its base, and says in ``_blocks_`` what there
    is to show.  It has ``to_dict``, and ``to_records`` if one row does not do.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # IPython prefers the ``__repr__`` of a class to what its bases have.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _blocks_(self) -> Iterable[Block]:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        raise NotImplementedError

    def to_text(
        self, *, full: bool = False, paint: Paint | None = None
    ) -> str:
        """
        Text for a terminal or a ticket; ``str()`` is the same.

        Args:
            full: Whether to show all of what is long, too.

            paint: Makes a terminal show a text of some kind (``"head"``,
                ``"label"``, or ``"note"``) as what it is, such as in color.
        """
        if paint is None:
            return blocks_text(self._blocks_(), full=full)

        return blocks_text(self._blocks_(), full=full, paint=paint)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per row of a data frame.
        """
        return [self.to_dict()]

    def to_frame(self) -> pd.DataFrame:
        """
        The records as a data frame of *pandas*.

        Raises:
            MissingDependencyError: *pandas* is not installed.
        """
        return frame_of(self.to_records())

    def __str__(self) -> str:
        return self.to_text()

    # IPython and Jupyter call these.
    def _repr_pretty_(self, p: Any, cycle: bool) -> None:  # noqa: FBT001
        p.text("..." if cycle else str(self))

    def _repr_html_(self) -> str:
        return blocks_html(self._blocks_())

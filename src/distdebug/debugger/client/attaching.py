"""
How is one stopped thread of one rank talked to alone?
"""

from __future__ import annotations

from typing import Any

import attrs

from ...errors import DebuggerError
from .answers import Output
from .asking import Ranks
from .model import Process, Session, ranks_told


__all__ = ["Attached"]


@attrs.frozen
class Attached:
    """
    One thread of one rank, talked to alone.

    Args:
        ranks: All that can be asked.

        process: The process.

        session: Its thread.
    """

    ranks: Ranks
    process: Process
    session: Session

    def send(self, line: str, *, wait_s: float = 5.0) -> Output:
        """
        Let it obey one command of pdb.

        Args:
            line: The command; an empty one repeats the last.

            wait_s: How long to wait until it stops again, in seconds.

        Returns:
            What it printed, and whether it is stopped, running, or goes on.

        Raises:
            DebuggerError: It does not answer.
        """
        return self._ask({"op": "command", "line": line, "wait": wait_s})

    def last(self) -> Output:
        """
        Ask what it printed last, which tells where it is.

        Raises:
            DebuggerError: It does not answer.
        """
        return self._ask({"op": "last", "wait": 0.0})

    def _ask(self, request: dict[str, Any]) -> Output:
        answers = self.ranks.ask_sessions(
            [(self.process, self.session)], request
        )
        for output in answers.outputs:
            return output

        msg = f"{ranks_told([self.process.rank])} does not answer"
        raise DebuggerError(msg, remedy="see: list")

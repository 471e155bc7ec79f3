"""
Answer the questions of agents: tools with bounded answers, and when to use which.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .answers import Answer as Answer
    from .calls import ask_in_time as ask_in_time
    from .calls import error_text as error_text
    from .tools import TOOLS as TOOLS
    from .tools import HangTools as HangTools
    from .tools import instructions as instructions
    from .tools import skill_file as skill_file
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

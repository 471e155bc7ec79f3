"""
Is the job still making progress; and if not, what is done?
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import ONLY_PROGRESS as ONLY_PROGRESS
    from .config import HangDebugConfig as HangDebugConfig
    from .config import a_number as a_number
    from .gpu_activity import GpuActivity as GpuActivity
    from .hang import Crew as Crew
    from .hang import Duty as Duty
    from .hang import Hang as Hang
    from .hang import HangReason as HangReason
    from .hang import Hook as Hook
    from .hang import NotYet as NotYet
    from .hang import Order as Order
    from .hang import Response as Response
    from .hooks import command_hook as command_hook
    from .hooks import webhook_hook as webhook_hook
    from .inside import Watch as Watch
    from .inside import watch as watch
    from .loop import FilesState as FilesState
    from .loop import ProgressSensor as ProgressSensor
    from .loop import last_known as last_known
    from .loop import poll_of as poll_of
    from .loop import watch_processes as watch_processes
    from .response import respond as respond
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

"""
Watch a job for hangs: detect missing progress, capture, and notify.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import ONLY_PROGRESS as ONLY_PROGRESS
    from .config import HangDebugConfig as HangDebugConfig
    from .config import check_number as check_number
    from .gpu_activity import GpuActivity as GpuActivity
    from .hang import CaptureRequest as CaptureRequest
    from .hang import Hang as Hang
    from .hang import HangHandler as HangHandler
    from .hang import HangReason as HangReason
    from .hang import Hook as Hook
    from .hang import Response as Response
    from .hang import RetryLater as RetryLater
    from .hang import WatchedProcesses as WatchedProcesses
    from .hang import find_output_dir as find_output_dir
    from .hooks import command_hook as command_hook
    from .hooks import webhook_hook as webhook_hook
    from .inside import Watch as Watch
    from .inside import watch as watch
    from .loop import ProgressSensor as ProgressSensor
    from .loop import combine_senses as combine_senses
    from .loop import count_step as count_step
    from .loop import default_poll_s as default_poll_s
    from .loop import step_count as step_count
    from .loop import switches_by_process as switches_by_process
    from .loop import watch_files as watch_files
    from .loop import watch_processes as watch_processes
    from .response import respond as respond
    from .state import WatchState as WatchState
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

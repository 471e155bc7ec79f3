"""
What is this process doing right now?

Looking at running processes from outside, without stopping them.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attaching.lock import node_lock as node_lock
    from .files import make_folder as make_folder
    from .files import write_capture as write_capture
    from .model import Attempt as Attempt
    from .model import Capture as Capture
    from .model import CaptureStatus as CaptureStatus
    from .model import Native as Native
    from .model import ProcessCapture as ProcessCapture
    from .node import capture_node as capture_node
    from .node import capture_process as capture_process
    from .permission.check import Check as Check
    from .permission.check import check_blocks as check_blocks
    from .permission.rights import check_capture as check_capture
    from .tool import ToolOutput as ToolOutput
    from .tool import find_tool as find_tool
    from .tool import run_tool as run_tool
    from .tool import stoppable as stoppable
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

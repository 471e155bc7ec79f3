"""
Capture stacks and thread states of running processes from outside.

Nothing is stopped unless native stacks or GPU kernels are requested.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attach import node_lock as node_lock
    from .blockers import Check as Check
    from .blockers import Checklist as Checklist
    from .blockers import check_blocks as check_blocks
    from .capture_checks import check_capture as check_capture
    from .guard_program import end_with_parent as end_with_parent
    from .model import Attempt as Attempt
    from .model import Capture as Capture
    from .model import CaptureStatus as CaptureStatus
    from .model import Native as Native
    from .model import ProcessCapture as ProcessCapture
    from .model import make_folder as make_folder
    from .model import write_capture as write_capture
    from .node import PATIENCE_S as PATIENCE_S
    from .node import capture_node as capture_node
    from .node import capture_process as capture_process
    from .node import check_found as check_found
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

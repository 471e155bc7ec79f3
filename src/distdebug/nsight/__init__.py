"""
Profile selected Ray workers with Nsight Systems (nsys).
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .doctor import NsysHealth as NsysHealth
    from .doctor import check_nsys as check_nsys
    from .doctor import raylet_findings as raylet_findings
    from .patch import PatchStatus as PatchStatus
    from .patch import apply_ray_nsight_patch as apply_ray_nsight_patch
    from .patch import patch_ray_nsight as patch_ray_nsight
    from .patch import ray_nsight_status as ray_nsight_status
    from .patch import revert_ray_nsight as revert_ray_nsight
    from .ranges import StepProfiler as StepProfiler
    from .ranges import nvtx as nvtx
    from .reports import NsysReports as NsysReports
    from .reports import collect_nsys_reports as collect_nsys_reports
    from .reports import find_nsys_reports as find_nsys_reports
    from .reports import summarize_report as summarize_report
    from .runtime_env import match_worker as match_worker
    from .runtime_env import merge_runtime_env as merge_runtime_env
    from .runtime_env import nsight_runtime_env as nsight_runtime_env
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

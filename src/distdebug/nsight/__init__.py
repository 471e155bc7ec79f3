"""
How are just these workers of a job profiled with Nsight Systems?
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .doctor import NsysHealth as NsysHealth
    from .doctor import check_nsys as check_nsys
    from .inside.ranges import nvtx as nvtx
    from .inside.steps import StepProfiler as StepProfiler
    from .options.patterns import match_worker as match_worker
    from .options.runtime_env import merge_runtime_env as merge_runtime_env
    from .options.runtime_env import nsight_runtime_env as nsight_runtime_env
    from .patch.application import (
        apply_ray_nsight_patch as apply_ray_nsight_patch,
    )
    from .patch.change import patch_ray_nsight as patch_ray_nsight
    from .patch.change import ray_nsight_status as ray_nsight_status
    from .patch.change import revert_ray_nsight as revert_ray_nsight
    from .patch.model import PatchStatus as PatchStatus
    from .raylet_log import raylet_findings as raylet_findings
    from .reports.collect import collect_nsys_reports as collect_nsys_reports
    from .reports.find import find_nsys_reports as find_nsys_reports
    from .reports.model import NsysReports as NsysReports
    from .reports.summarize import summarize_report as summarize_report
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

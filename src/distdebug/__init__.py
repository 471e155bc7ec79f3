"""
Which rank is stuck, in which collective, at which line, and why?

Importing this package costs nothing and changes nothing: it loads neither
torch nor any other package.  Every public name loads its module when it is
first used.
"""

from __future__ import annotations


# No module may bear a public name: importing it would bind the module, and
# not what the name stands for, as an attribute of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .capture import Capture as Capture
    from .capture import capture_node as capture_node
    from .capture import capture_process as capture_process
    from .debugger import DebugClient as DebugClient
    from .debugger import arm as arm
    from .debugger import connect as connect
    from .debugger import monarch_setup as monarch_setup
    from .debugger import post_mortem as post_mortem
    from .debugger import ray_debugger_env as ray_debugger_env
    from .debugger import ray_debugger_setup as ray_debugger_setup
    from .debugger import scope as scope
    from .debugger import set_trace as set_trace
    from .diagnosis import diagnose as diagnose
    from .errors import BundleError as BundleError
    from .errors import CaptureError as CaptureError
    from .errors import ConfigError as ConfigError
    from .errors import DebuggerError as DebuggerError
    from .errors import DistdebugError as DistdebugError
    from .errors import DumpError as DumpError
    from .errors import DumpFormatError as DumpFormatError
    from .errors import HookError as HookError
    from .errors import LaunchFileError as LaunchFileError
    from .errors import LogError as LogError
    from .errors import MeshError as MeshError
    from .errors import MissingDependencyError as MissingDependencyError
    from .errors import NodeBusyError as NodeBusyError
    from .errors import NodesError as NodesError
    from .errors import NoDumpsError as NoDumpsError
    from .errors import NoLogsError as NoLogsError
    from .errors import NotRecordingError as NotRecordingError
    from .errors import NsightError as NsightError
    from .errors import OutputError as OutputError
    from .errors import PatternError as PatternError
    from .errors import RankSyntaxError as RankSyntaxError
    from .errors import RecorderError as RecorderError
    from .errors import RulesError as RulesError
    from .errors import TooLateError as TooLateError
    from .findings import Cause as Cause
    from .findings import Diagnosis as Diagnosis
    from .findings import Evidence as Evidence
    from .findings import Finding as Finding
    from .flight_recorder import FlightReport as FlightReport
    from .flight_recorder import RecorderSettings as RecorderSettings
    from .flight_recorder import Timeline as Timeline
    from .flight_recorder import analyze_dumps as analyze_dumps
    from .flight_recorder import dump_flight_recorder as dump_flight_recorder
    from .flight_recorder import (
        enable_flight_recorder as enable_flight_recorder,
    )
    from .flight_recorder import read_dumps as read_dumps
    from .flight_recorder import request_dumps as request_dumps
    from .flight_recorder import write_timeline as write_timeline
    from .health import check_environment as check_environment
    from .health import check_node as check_node
    from .logs import collective_findings as collective_findings
    from .logs import detect_phase as detect_phase
    from .logs import read_collective_logs as read_collective_logs
    from .logs import scan_logs as scan_logs
    from .nodes import NodeResult as NodeResult
    from .nodes import run_on_nodes as run_on_nodes
    from .nsight import NsysHealth as NsysHealth
    from .nsight import NsysReports as NsysReports
    from .nsight import PatchStatus as PatchStatus
    from .nsight import StepProfiler as StepProfiler
    from .nsight import apply_ray_nsight_patch as apply_ray_nsight_patch
    from .nsight import check_nsys as check_nsys
    from .nsight import collect_nsys_reports as collect_nsys_reports
    from .nsight import find_nsys_reports as find_nsys_reports
    from .nsight import match_worker as match_worker
    from .nsight import merge_runtime_env as merge_runtime_env
    from .nsight import nsight_runtime_env as nsight_runtime_env
    from .nsight import nvtx as nvtx
    from .nsight import patch_ray_nsight as patch_ray_nsight
    from .nsight import ray_nsight_status as ray_nsight_status
    from .nsight import revert_ray_nsight as revert_ray_nsight
    from .processes import Worker as Worker
    from .processes import find_workers as find_workers
    from .ranks import Mesh as Mesh
    from .ranks import RankSelection as RankSelection
    from .ranks import fold_ranks as fold_ranks
    from .ranks import parse_ranks as parse_ranks
    from .ray import check_ray_debugger as check_ray_debugger
    from .ray import find_actor_logs as find_actor_logs
    from .ray import find_deaths as find_deaths
    from .ray import find_ray_sessions as find_ray_sessions
    from .ray import launch_json as launch_json
    from .ray import ray_debug_sessions as ray_debug_sessions
    from .ray import write_launch_json as write_launch_json
    from .report import report_html as report_html
    from .report import write_report as write_report
    from .snapshots import Snapshot as Snapshot
    from .snapshots import preflight as preflight
    from .snapshots import snapshot as snapshot
    from .stacks import explain_stacks as explain_stacks
    from .stacks import merge_stacks as merge_stacks
    from .stacks import read_stacks as read_stacks
    from .watching import Hang as Hang
    from .watching import HangDebugConfig as HangDebugConfig
    from .watching import Watch as Watch
    from .watching import watch as watch

    __version__: str
else:
    from . import _lazy

    def _version():
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(__name__)
        except PackageNotFoundError:  # run from a checkout
            return "unknown"

    __getattr__, __dir__ = _lazy.lazy_names(__name__, __version__=_version)

"""
Which rank is stuck, in which collective, at which line, and why?

Importing this package costs nothing and changes nothing: it loads neither
torch nor any other package.  Every public name loads its module when it is
first used.
"""

from __future__ import annotations

import sys


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .capture.model import Capture
    from .capture.node import capture_node, capture_process
    from .debugger.client.connecting import DebugClient, connect
    from .debugger.inside.arming import arm
    from .debugger.inside.breakpoints import set_trace
    from .debugger.inside.crashes import post_mortem
    from .debugger.inside.scopes import scope
    from .debugger.launchers.on_monarch import monarch_setup
    from .debugger.launchers.on_ray import ray_debugger_env, ray_debugger_setup
    from .debugger.ray_debugger.checking import check_ray_debugger
    from .debugger.ray_debugger.launch import launch_json, write_launch_json
    from .debugger.ray_debugger.sessions import ray_debug_sessions
    from .diagnosis import diagnose
    from .diagnosis.preflight import preflight
    from .diagnosis.snapshot import Snapshot, snapshot
    from .errors import (
        BundleError,
        CaptureError,
        ConfigError,
        DebuggerError,
        DistdebugError,
        DumpError,
        DumpFormatError,
        HookError,
        LaunchFileError,
        LogError,
        MeshError,
        MissingDependencyError,
        NodeBusyError,
        NodesError,
        NoDumpsError,
        NoLogsError,
        NotRecordingError,
        NsightError,
        OutputError,
        PatternError,
        RankSyntaxError,
        RecorderError,
        RulesError,
        TooLateError,
    )
    from .findings import Cause, Diagnosis, Evidence, Finding
    from .flight_recorder.analysis.analyze import analyze_dumps
    from .flight_recorder.analysis.report import FlightReport
    from .flight_recorder.dump import dump_flight_recorder
    from .flight_recorder.enable import (
        RecorderSettings,
        enable_flight_recorder,
    )
    from .flight_recorder.read import read_dumps
    from .flight_recorder.request import request_dumps
    from .flight_recorder.timeline.model import Timeline
    from .flight_recorder.timeline.write import write_timeline
    from .health.environment import check_environment
    from .health.node import check_node
    from .logscan.collectives import collective_findings, read_collective_logs
    from .logscan.scan import scan_logs
    from .nodes.model import NodeResult
    from .nodes.run import run_on_nodes
    from .nsight.doctor import NsysHealth, check_nsys
    from .nsight.inside.ranges import nvtx
    from .nsight.inside.steps import StepProfiler
    from .nsight.options.patterns import match_worker
    from .nsight.options.runtime_env import (
        merge_runtime_env,
        nsight_runtime_env,
    )
    from .nsight.patch.application import apply_ray_nsight_patch
    from .nsight.patch.change import (
        patch_ray_nsight,
        ray_nsight_status,
        revert_ray_nsight,
    )
    from .nsight.patch.model import PatchStatus
    from .nsight.reports.collect import collect_nsys_reports
    from .nsight.reports.find import find_nsys_reports
    from .nsight.reports.model import NsysReports
    from .processes.find import find_workers
    from .processes.model import Worker
    from .ranks import Mesh, RankSelection, fold_ranks, parse_ranks
    from .raylogs.deaths.find import find_deaths
    from .raylogs.find import find_actor_logs
    from .raylogs.sessions import find_ray_sessions
    from .report.page import report_html, write_report
    from .stacks.explain import explain_stacks
    from .stacks.merge import merge_stacks
    from .stacks.parse import read_stacks
    from .startup.detect import detect_phase
    from .watching.config import HangDebugConfig
    from .watching.hang import Hang
    from .watching.inside import Watch, watch


__all__ = [
    "BundleError",
    "Capture",
    "CaptureError",
    "Cause",
    "ConfigError",
    "DebugClient",
    "DebuggerError",
    "Diagnosis",
    "DistdebugError",
    "DumpError",
    "DumpFormatError",
    "Evidence",
    "Finding",
    "FlightReport",
    "Hang",
    "HangDebugConfig",
    "HookError",
    "LaunchFileError",
    "LogError",
    "Mesh",
    "MeshError",
    "MissingDependencyError",
    "NoDumpsError",
    "NoLogsError",
    "NodeBusyError",
    "NodeResult",
    "NodesError",
    "NotRecordingError",
    "NsightError",
    "NsysHealth",
    "NsysReports",
    "OutputError",
    "PatchStatus",
    "PatternError",
    "RankSelection",
    "RankSyntaxError",
    "RecorderError",
    "RecorderSettings",
    "RulesError",
    "Snapshot",
    "StepProfiler",
    "Timeline",
    "TooLateError",
    "Watch",
    "Worker",
    "analyze_dumps",
    "apply_ray_nsight_patch",
    "arm",
    "capture_node",
    "capture_process",
    "check_environment",
    "check_node",
    "check_nsys",
    "check_ray_debugger",
    "collect_nsys_reports",
    "collective_findings",
    "connect",
    "detect_phase",
    "diagnose",
    "dump_flight_recorder",
    "enable_flight_recorder",
    "explain_stacks",
    "find_actor_logs",
    "find_deaths",
    "find_nsys_reports",
    "find_ray_sessions",
    "find_workers",
    "fold_ranks",
    "launch_json",
    "match_worker",
    "merge_runtime_env",
    "merge_stacks",
    "monarch_setup",
    "nsight_runtime_env",
    "nvtx",
    "parse_ranks",
    "patch_ray_nsight",
    "post_mortem",
    "preflight",
    "ray_debug_sessions",
    "ray_debugger_env",
    "ray_debugger_setup",
    "ray_nsight_status",
    "read_collective_logs",
    "read_dumps",
    "read_stacks",
    "report_html",
    "request_dumps",
    "revert_ray_nsight",
    "run_on_nodes",
    "scan_logs",
    "scope",
    "set_trace",
    "snapshot",
    "watch",
    "write_launch_json",
    "write_report",
    "write_timeline",
]

# No module may bear a public name: importing it would bind the module, and
# not what the name stands for, as an attribute of this package.
_HOME = {
    "BundleError": "errors",
    "Capture": "capture.model",
    "CaptureError": "errors",
    "Cause": "findings",
    "ConfigError": "errors",
    "DebugClient": "debugger.client.connecting",
    "DebuggerError": "errors",
    "Diagnosis": "findings",
    "DistdebugError": "errors",
    "DumpError": "errors",
    "DumpFormatError": "errors",
    "Evidence": "findings",
    "Finding": "findings",
    "FlightReport": "flight_recorder.analysis.report",
    "Hang": "watching.hang",
    "HangDebugConfig": "watching.config",
    "HookError": "errors",
    "LaunchFileError": "errors",
    "LogError": "errors",
    "Mesh": "ranks",
    "MeshError": "errors",
    "MissingDependencyError": "errors",
    "NoDumpsError": "errors",
    "NoLogsError": "errors",
    "NodeBusyError": "errors",
    "NodeResult": "nodes.model",
    "NodesError": "errors",
    "NotRecordingError": "errors",
    "NsightError": "errors",
    "NsysHealth": "nsight.doctor",
    "NsysReports": "nsight.reports.model",
    "OutputError": "errors",
    "PatchStatus": "nsight.patch.model",
    "PatternError": "errors",
    "RankSelection": "ranks",
    "RankSyntaxError": "errors",
    "RecorderError": "errors",
    "RecorderSettings": "flight_recorder.enable",
    "RulesError": "errors",
    "Snapshot": "diagnosis.snapshot",
    "StepProfiler": "nsight.inside.steps",
    "Timeline": "flight_recorder.timeline.model",
    "TooLateError": "errors",
    "Watch": "watching.inside",
    "Worker": "processes.model",
    "analyze_dumps": "flight_recorder.analysis.analyze",
    "apply_ray_nsight_patch": "nsight.patch.application",
    "arm": "debugger.inside.arming",
    "capture_node": "capture.node",
    "capture_process": "capture.node",
    "check_environment": "health.environment",
    "check_node": "health.node",
    "check_nsys": "nsight.doctor",
    "check_ray_debugger": "debugger.ray_debugger.checking",
    "collect_nsys_reports": "nsight.reports.collect",
    "collective_findings": "logscan.collectives",
    "connect": "debugger.client.connecting",
    "detect_phase": "startup.detect",
    "diagnose": "diagnosis",
    "dump_flight_recorder": "flight_recorder.dump",
    "enable_flight_recorder": "flight_recorder.enable",
    "explain_stacks": "stacks.explain",
    "find_actor_logs": "raylogs.find",
    "find_deaths": "raylogs.deaths.find",
    "find_nsys_reports": "nsight.reports.find",
    "find_ray_sessions": "raylogs.sessions",
    "find_workers": "processes.find",
    "fold_ranks": "ranks",
    "launch_json": "debugger.ray_debugger.launch",
    "match_worker": "nsight.options.patterns",
    "merge_runtime_env": "nsight.options.runtime_env",
    "merge_stacks": "stacks.merge",
    "monarch_setup": "debugger.launchers.on_monarch",
    "nsight_runtime_env": "nsight.options.runtime_env",
    "nvtx": "nsight.inside.ranges",
    "parse_ranks": "ranks",
    "patch_ray_nsight": "nsight.patch.change",
    "post_mortem": "debugger.inside.crashes",
    "preflight": "diagnosis.preflight",
    "ray_debug_sessions": "debugger.ray_debugger.sessions",
    "ray_debugger_env": "debugger.launchers.on_ray",
    "ray_debugger_setup": "debugger.launchers.on_ray",
    "ray_nsight_status": "nsight.patch.change",
    "read_collective_logs": "logscan.collectives",
    "read_dumps": "flight_recorder.read",
    "read_stacks": "stacks.parse",
    "report_html": "report.page",
    "request_dumps": "flight_recorder.request",
    "revert_ray_nsight": "nsight.patch.change",
    "run_on_nodes": "nodes.run",
    "scan_logs": "logscan.scan",
    "scope": "debugger.inside.scopes",
    "set_trace": "debugger.inside.breakpoints",
    "snapshot": "diagnosis.snapshot",
    "watch": "watching.inside",
    "write_launch_json": "debugger.ray_debugger.launch",
    "write_report": "report.page",
    "write_timeline": "flight_recorder.timeline.write",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        module = import_module(f"{__name__}.{_HOME[name]}")
        value: object = getattr(module, name)
    elif name == "__version__":
        value = _version()
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)

    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # run from a checkout
        return "unknown"

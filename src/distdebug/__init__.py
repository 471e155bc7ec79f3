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
    from .capture import Capture, capture_node, capture_process
    from .debugger import (
        DebugClient,
        arm,
        connect,
        monarch_setup,
        post_mortem,
        ray_debugger_env,
        ray_debugger_setup,
        scope,
        set_trace,
    )
    from .diagnosis import diagnose
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
    from .flight_recorder import (
        FlightReport,
        RecorderSettings,
        Timeline,
        analyze_dumps,
        dump_flight_recorder,
        enable_flight_recorder,
        read_dumps,
        request_dumps,
        write_timeline,
    )
    from .health import check_environment, check_node
    from .logs import (
        collective_findings,
        detect_phase,
        read_collective_logs,
        scan_logs,
    )
    from .nodes import NodeResult, run_on_nodes
    from .nsight import (
        NsysHealth,
        NsysReports,
        PatchStatus,
        StepProfiler,
        apply_ray_nsight_patch,
        check_nsys,
        collect_nsys_reports,
        find_nsys_reports,
        match_worker,
        merge_runtime_env,
        nsight_runtime_env,
        nvtx,
        patch_ray_nsight,
        ray_nsight_status,
        revert_ray_nsight,
    )
    from .processes import Worker, find_workers
    from .ranks import Mesh, RankSelection, fold_ranks, parse_ranks
    from .ray import (
        check_ray_debugger,
        find_actor_logs,
        find_deaths,
        find_ray_sessions,
        launch_json,
        ray_debug_sessions,
        write_launch_json,
    )
    from .report import report_html, write_report
    from .snapshots import Snapshot, preflight, snapshot
    from .stacks import explain_stacks, merge_stacks, read_stacks
    from .watching import Hang, HangDebugConfig, Watch, watch


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
    "Capture": "capture",
    "CaptureError": "errors",
    "Cause": "findings",
    "ConfigError": "errors",
    "DebugClient": "debugger",
    "DebuggerError": "errors",
    "Diagnosis": "findings",
    "DistdebugError": "errors",
    "DumpError": "errors",
    "DumpFormatError": "errors",
    "Evidence": "findings",
    "Finding": "findings",
    "FlightReport": "flight_recorder",
    "Hang": "watching",
    "HangDebugConfig": "watching",
    "HookError": "errors",
    "LaunchFileError": "errors",
    "LogError": "errors",
    "Mesh": "ranks",
    "MeshError": "errors",
    "MissingDependencyError": "errors",
    "NoDumpsError": "errors",
    "NoLogsError": "errors",
    "NodeBusyError": "errors",
    "NodeResult": "nodes",
    "NodesError": "errors",
    "NotRecordingError": "errors",
    "NsightError": "errors",
    "NsysHealth": "nsight",
    "NsysReports": "nsight",
    "OutputError": "errors",
    "PatchStatus": "nsight",
    "PatternError": "errors",
    "RankSelection": "ranks",
    "RankSyntaxError": "errors",
    "RecorderError": "errors",
    "RecorderSettings": "flight_recorder",
    "RulesError": "errors",
    "Snapshot": "snapshots",
    "StepProfiler": "nsight",
    "Timeline": "flight_recorder",
    "TooLateError": "errors",
    "Watch": "watching",
    "Worker": "processes",
    "analyze_dumps": "flight_recorder",
    "apply_ray_nsight_patch": "nsight",
    "arm": "debugger",
    "capture_node": "capture",
    "capture_process": "capture",
    "check_environment": "health",
    "check_node": "health",
    "check_nsys": "nsight",
    "check_ray_debugger": "ray",
    "collect_nsys_reports": "nsight",
    "collective_findings": "logs",
    "connect": "debugger",
    "detect_phase": "logs",
    "diagnose": "diagnosis",
    "dump_flight_recorder": "flight_recorder",
    "enable_flight_recorder": "flight_recorder",
    "explain_stacks": "stacks",
    "find_actor_logs": "ray",
    "find_deaths": "ray",
    "find_nsys_reports": "nsight",
    "find_ray_sessions": "ray",
    "find_workers": "processes",
    "fold_ranks": "ranks",
    "launch_json": "ray",
    "match_worker": "nsight",
    "merge_runtime_env": "nsight",
    "merge_stacks": "stacks",
    "monarch_setup": "debugger",
    "nsight_runtime_env": "nsight",
    "nvtx": "nsight",
    "parse_ranks": "ranks",
    "patch_ray_nsight": "nsight",
    "post_mortem": "debugger",
    "preflight": "snapshots",
    "ray_debug_sessions": "ray",
    "ray_debugger_env": "debugger",
    "ray_debugger_setup": "debugger",
    "ray_nsight_status": "nsight",
    "read_collective_logs": "logs",
    "read_dumps": "flight_recorder",
    "read_stacks": "stacks",
    "report_html": "report",
    "request_dumps": "flight_recorder",
    "revert_ray_nsight": "nsight",
    "run_on_nodes": "nodes",
    "scan_logs": "logs",
    "scope": "debugger",
    "set_trace": "debugger",
    "snapshot": "snapshots",
    "watch": "watching",
    "write_launch_json": "ray",
    "write_report": "report",
    "write_timeline": "flight_recorder",
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

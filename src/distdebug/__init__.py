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
    from .diagnosis import diagnose
    from .diagnosis.preflight import preflight
    from .diagnosis.snapshot import Snapshot, snapshot
    from .errors import (
        BundleError,
        CaptureError,
        ConfigError,
        DistdebugError,
        DumpError,
        DumpFormatError,
        HookError,
        LogError,
        MeshError,
        MissingDependencyError,
        NodeBusyError,
        NodesError,
        NoDumpsError,
        NoLogsError,
        NotRecordingError,
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
    from .nodes.model import NodeResult
    from .nodes.run import run_on_nodes
    from .processes.find import find_workers
    from .processes.model import Worker
    from .ranks import Mesh, RankSelection, fold_ranks, parse_ranks
    from .stacks.explain import explain_stacks
    from .stacks.merge import merge_stacks
    from .stacks.parse import read_stacks
    from .watching.config import HangDebugConfig
    from .watching.hang import Hang
    from .watching.inside import Watch, watch


__all__ = [
    "BundleError",
    "Capture",
    "CaptureError",
    "Cause",
    "ConfigError",
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
    "PatternError",
    "RankSelection",
    "RankSyntaxError",
    "RecorderError",
    "RecorderSettings",
    "RulesError",
    "Snapshot",
    "TooLateError",
    "Watch",
    "Worker",
    "analyze_dumps",
    "capture_node",
    "capture_process",
    "diagnose",
    "dump_flight_recorder",
    "enable_flight_recorder",
    "explain_stacks",
    "find_workers",
    "fold_ranks",
    "merge_stacks",
    "parse_ranks",
    "preflight",
    "read_dumps",
    "read_stacks",
    "request_dumps",
    "run_on_nodes",
    "snapshot",
    "watch",
]

# No module may bear a public name: importing it would bind the module, and
# not what the name stands for, as an attribute of this package.
_HOME = {
    "BundleError": "errors",
    "Capture": "capture.model",
    "CaptureError": "errors",
    "Cause": "findings",
    "ConfigError": "errors",
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
    "PatternError": "errors",
    "RankSelection": "ranks",
    "RankSyntaxError": "errors",
    "RecorderError": "errors",
    "RecorderSettings": "flight_recorder.enable",
    "RulesError": "errors",
    "Snapshot": "diagnosis.snapshot",
    "TooLateError": "errors",
    "Watch": "watching.inside",
    "Worker": "processes.model",
    "analyze_dumps": "flight_recorder.analysis.analyze",
    "capture_node": "capture.node",
    "capture_process": "capture.node",
    "diagnose": "diagnosis",
    "dump_flight_recorder": "flight_recorder.dump",
    "enable_flight_recorder": "flight_recorder.enable",
    "explain_stacks": "stacks.explain",
    "find_workers": "processes.find",
    "fold_ranks": "ranks",
    "merge_stacks": "stacks.merge",
    "parse_ranks": "ranks",
    "preflight": "diagnosis.preflight",
    "read_dumps": "flight_recorder.read",
    "read_stacks": "stacks.parse",
    "request_dumps": "flight_recorder.request",
    "run_on_nodes": "nodes.run",
    "snapshot": "diagnosis.snapshot",
    "watch": "watching.inside",
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

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
    from .diagnosis import diagnose
    from .errors import (
        CaptureError,
        DistdebugError,
        DumpError,
        DumpFormatError,
        MeshError,
        MissingDependencyError,
        NoDumpsError,
        NotRecordingError,
        RankSyntaxError,
        RecorderError,
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
    from .ranks import Mesh, RankSelection, fold_ranks, parse_ranks


__all__ = [
    "CaptureError",
    "Cause",
    "Diagnosis",
    "DistdebugError",
    "DumpError",
    "DumpFormatError",
    "Evidence",
    "Finding",
    "FlightReport",
    "Mesh",
    "MeshError",
    "MissingDependencyError",
    "NoDumpsError",
    "NotRecordingError",
    "RankSelection",
    "RankSyntaxError",
    "RecorderError",
    "RecorderSettings",
    "TooLateError",
    "analyze_dumps",
    "diagnose",
    "dump_flight_recorder",
    "enable_flight_recorder",
    "fold_ranks",
    "parse_ranks",
    "read_dumps",
    "request_dumps",
]

# No module may bear a public name: importing it would bind the module, and
# not what the name stands for, as an attribute of this package.
_HOME = {
    "CaptureError": "errors",
    "Cause": "findings",
    "Diagnosis": "findings",
    "DistdebugError": "errors",
    "DumpError": "errors",
    "DumpFormatError": "errors",
    "Evidence": "findings",
    "Finding": "findings",
    "FlightReport": "flight_recorder.analysis.report",
    "Mesh": "ranks",
    "MeshError": "errors",
    "MissingDependencyError": "errors",
    "NoDumpsError": "errors",
    "NotRecordingError": "errors",
    "RankSelection": "ranks",
    "RankSyntaxError": "errors",
    "RecorderError": "errors",
    "RecorderSettings": "flight_recorder.enable",
    "TooLateError": "errors",
    "analyze_dumps": "flight_recorder.analysis.analyze",
    "diagnose": "diagnosis",
    "dump_flight_recorder": "flight_recorder.dump",
    "enable_flight_recorder": "flight_recorder.enable",
    "fold_ranks": "ranks",
    "parse_ranks": "ranks",
    "read_dumps": "flight_recorder.read",
    "request_dumps": "flight_recorder.request",
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

"""
Exceptions that *distdebug* raises on purpose.

::

    DistdebugError
    ├── RankSyntaxError (ValueError)
    ├── MeshError (ValueError)
    ├── PatternError (ValueError)
    ├── DumpError (ValueError)
    │   ├── NoDumpsError (FileNotFoundError)
    │   └── DumpFormatError
    ├── RecorderError (RuntimeError)
    │   ├── TooLateError
    │   └── NotRecordingError
    ├── BundleError (ValueError)
    ├── OutputError (OSError)
    ├── CaptureError
    │   └── NodeBusyError
    ├── NodesError (RuntimeError)
    ├── LogError (ValueError)
    │   └── NoLogsError (FileNotFoundError)
    ├── ScheduleError (ValueError)
    ├── RulesError (ValueError)
    ├── NsightError (ValueError)
    ├── ConfigError (ValueError)
    ├── HookError (RuntimeError)
    ├── LaunchFileError (ValueError)
    ├── DebuggerError (RuntimeError)
    └── MissingDependencyError (ImportError)
"""

from __future__ import annotations


__all__ = [
    "BundleError",
    "CaptureError",
    "ConfigError",
    "DebuggerError",
    "DistdebugError",
    "DumpError",
    "DumpFormatError",
    "HookError",
    "LaunchFileError",
    "LogError",
    "MeshError",
    "MissingDependencyError",
    "NoDumpsError",
    "NoLogsError",
    "NodeBusyError",
    "NodesError",
    "NotRecordingError",
    "NsightError",
    "OutputError",
    "PatternError",
    "RankSyntaxError",
    "RecorderError",
    "RulesError",
    "ScheduleError",
    "TooLateError",
]


class DistdebugError(Exception):
    """
    Base class of everything *distdebug* raises on purpose.

    ``str(exc)`` says what happened, with the values involved.  *remedy* says
    what to do next; it travels as a note (:pep:`678`), so that tracebacks and
    notebooks show it while the message itself stays short.

    Instances survive pickling, because they cross process boundaries.

    Args:
        message: What happened.

        remedy: What the caller can do about it.
    """

    remedy: str | None

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        if remedy is not None:
            self.add_note(f"Try: {remedy}")


class RankSyntaxError(DistdebugError, ValueError):
    """
    A selection of ranks does not follow the grammar.

    Args:
        message: What was expected, and what was found instead.

        text: The whole selection.

        position: Where in *text* parsing stopped, counted from 0.
    """

    text: str
    position: int

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(
            f"{message[:200]} at position {position} of "
            f"{_around(text, position)!r}",
            remedy="write ranks(3), ranks(1,3,5), ranks(1:10:2), "
            "or ranks(pp=2, dp=(1,3), tp=2:8)",
        )
        self.message = message
        self.text = text
        self.position = position

    # Exceptions are rebuilt from ``args``, which do not match ``__init__``.
    def __reduce__(self) -> tuple[type[RankSyntaxError], tuple[str, str, int]]:
        return type(self), (self.message, self.text, self.position)


def _around(text: str, position: int) -> str:
    """
    Cut a text of any length around *position* to fit into a message.
    """
    if len(text) <= 120:
        return text

    start = max(position - 60, 0)
    part = text[start : position + 40]
    end = "…" if position + 40 < len(text) else ""
    return f"{'…' if start else ''}{part}{end}"


class MeshError(DistdebugError, ValueError):
    """
    A mesh is malformed, does not fit the job, or has no such coordinates.
    """


class PatternError(DistdebugError, ValueError):
    """
    A pattern for command lines is not a regular expression.
    """


class DumpError(DistdebugError, ValueError):
    """
    A recorded dump cannot be used.
    """


class NoDumpsError(DumpError, FileNotFoundError):
    """
    A path holds no Flight Recorder dumps.
    """


class DumpFormatError(DumpError):
    """
    A file is not in the format of the Flight Recorder.
    """


class RecorderError(DistdebugError, RuntimeError):
    """
    The Flight Recorder of this process cannot do what was requested.
    """


class TooLateError(RecorderError):
    """
    Recording was set up after the first process group was created.
    """


class NotRecordingError(RecorderError):
    """
    There is nothing to dump: the Flight Recorder is off or not built in.
    """


class BundleError(DistdebugError, ValueError):
    """
    A folder is not a snapshot, or its snapshot was never finished.
    """


class OutputError(DistdebugError, OSError):
    """
    Results cannot be written.
    """


class CaptureError(DistdebugError):
    """
    A running process could not be inspected.
    """


class NodeBusyError(CaptureError):
    """
    Another collector is at work on this node.
    """


class NodesError(DistdebugError, RuntimeError):
    """
    The nodes of a job are unknown, or cannot be reached.
    """


class LogError(DistdebugError, ValueError):
    """
    A log, or a folder of logs, cannot be used, or not in this way.
    """


class NoLogsError(LogError, FileNotFoundError):
    """
    A path holds no log, or no Ray session.
    """


class ScheduleError(DistdebugError, ValueError):
    """
    A file is not a schedule of collectives.
    """


class RulesError(DistdebugError, ValueError):
    """
    A file of rules cannot be used.

    Args:
        message: What is wrong with it, and where.

        path: The file.
    """

    path: str

    def __init__(self, message: str, path: str) -> None:
        super().__init__(
            f"{path}: {message}",
            remedy="the reference shows the form of such a file",
        )
        self.message = message
        self.path = path

    # Exceptions are rebuilt from ``args``, which do not match ``__init__``.
    def __reduce__(self) -> tuple[type[RulesError], tuple[str, str]]:
        return type(self), (self.message, self.path)


class NsightError(DistdebugError, ValueError):
    """
    An nsys profile cannot be made or read as requested.
    """


class ConfigError(DistdebugError, ValueError):
    """
    The configuration of a watch is invalid.
    """


class HookError(DistdebugError, RuntimeError):
    """
    A hook could not report that a job hangs.
    """


class DebuggerError(DistdebugError, RuntimeError):
    """
    The ranks of a job cannot be stopped, asked, or steered as requested.
    """


class LaunchFileError(DistdebugError, ValueError):
    """
    An editor's launch configurations cannot be changed, and stay as they are.
    """


class MissingDependencyError(DistdebugError, ImportError):
    """
    An optional dependency is needed for this call and is not installed.
    """

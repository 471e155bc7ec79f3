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
    A selection of ranks cannot be understood.

    Args:
        message: What was expected, and what stands there instead.

        text: The whole selection.

        position: Where in *text* reading stopped, counted from 0.
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
    What fits into a message of a text that may be of any length.
    """
    if len(text) <= 120:
        return text

    start = max(position - 60, 0)
    part = text[start : position + 40]
    end = "…" if position + 40 < len(text) else ""
    return f"{'…' if start else ''}{part}{end}"


class MeshError(DistdebugError, ValueError):
    """
    A mesh is malformed, does not fit the job, or does not have that place.
    """


class PatternError(DistdebugError, ValueError):
    """
    A pattern for command lines is no regular expression.
    """


class DumpError(DistdebugError, ValueError):
    """
    A recorded dump cannot be used.
    """


class NoDumpsError(DumpError, FileNotFoundError):
    """
    There is no Flight Recorder dump where one was looked for.
    """


class DumpFormatError(DumpError):
    """
    A file was read, but it is not what a Flight Recorder writes.
    """


class RecorderError(DistdebugError, RuntimeError):
    """
    The Flight Recorder of this process cannot do what was asked.
    """


class TooLateError(RecorderError):
    """
    Recording was set up after the first process group was created.
    """


class NotRecordingError(RecorderError):
    """
    There is no Flight Recorder to dump: none was built in, or it is off.
    """


class BundleError(DistdebugError, ValueError):
    """
    A folder is not a snapshot, or one that was never finished.
    """


class OutputError(DistdebugError, OSError):
    """
    Results cannot be put where they were to go.
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
    The nodes of a job cannot be told, or nothing can be sent to them.
    """


class LogError(DistdebugError, ValueError):
    """
    A log, or a folder of logs, cannot be used, or not as was asked.
    """


class NoLogsError(LogError, FileNotFoundError):
    """
    There is no log, or no Ray session, where one was looked for.
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
            remedy="see the reference of this kind of rules for their form",
        )
        self.message = message
        self.path = path

    # Exceptions are rebuilt from ``args``, which do not match ``__init__``.
    def __reduce__(self) -> tuple[type[RulesError], tuple[str, str]]:
        return type(self), (self.message, self.path)


class NsightError(DistdebugError, ValueError):
    """
    What was asked of a profile of nsys makes no sense, or cannot be done.
    """


class ConfigError(DistdebugError, ValueError):
    """
    What was asked of a watch is not understood.
    """


class HookError(DistdebugError, RuntimeError):
    """
    Somebody could not be told that a job hangs.
    """


class DebuggerError(DistdebugError, RuntimeError):
    """
    The ranks of a job cannot be stopped or asked, or not as was wanted.
    """


class LaunchFileError(DistdebugError, ValueError):
    """
    The configurations of an editor are left as they are.
    """


class MissingDependencyError(DistdebugError, ImportError):
    """
    An optional dependency is needed for this call and is not installed.
    """

"""
Read log files: errors, hung collectives, and the start-up phase of a job.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .collectives.collect import (
        read_collective_logs as read_collective_logs,
    )
    from .collectives.model import CollectiveLogs as CollectiveLogs
    from .collectives.model import LogRecord as LogRecord
    from .collectives.model import rank_origins as rank_origins
    from .collectives.root_causes import (
        collective_findings as collective_findings,
    )
    from .lines import PACKED_SUFFIXES as PACKED_SUFFIXES
    from .lines import READ_ERRORS as READ_ERRORS
    from .lines import LogLine as LogLine
    from .lines import LogWalk as LogWalk
    from .lines import Origin as Origin
    from .lines import begins_message as begins_message
    from .lines import find_lines as find_lines
    from .lines import open_log as open_log
    from .lines import parse_line as parse_line
    from .lines import parse_time as parse_time
    from .lines import read_blocks as read_blocks
    from .lines import read_lines as read_lines
    from .lines import read_tail as read_tail
    from .model import Hit as Hit
    from .model import LogGroup as LogGroup
    from .model import ScanReport as ScanReport
    from .model import TraceGroup as TraceGroup
    from .phases.detect import detect_phase as detect_phase
    from .phases.framework_rules import Ending as Ending
    from .phases.framework_rules import Failure as Failure
    from .phases.framework_rules import FrameworkRules as FrameworkRules
    from .phases.framework_rules import Phase as Phase
    from .phases.framework_rules import (
        load_framework_rules as load_framework_rules,
    )
    from .phases.framework_rules import (
        read_framework_rules as read_framework_rules,
    )
    from .phases.model import Harmless as Harmless
    from .phases.model import PhaseReport as PhaseReport
    from .phases.model import PhaseState as PhaseState
    from .phases.progress_bars import Progress as Progress
    from .process_ranks import ProcessRanks as ProcessRanks
    from .process_ranks import RanksByProcess as RanksByProcess
    from .ras import RasStatus as RasStatus
    from .ras import is_ras_status as is_ras_status
    from .ras import ras_findings as ras_findings
    from .ras import read_ras_status as read_ras_status
    from .rules import LogRule as LogRule
    from .rules import explain_error as explain_error
    from .rules import load_rules as load_rules
    from .scan import scan_logs as scan_logs
    from .signatures import lost_peer as lost_peer
    from .signatures import text_pattern as text_pattern
    from .survey import LogSurvey as LogSurvey
    from .survey import survey_logs as survey_logs
    from .tracebacks import TRACEBACK_HEADER as TRACEBACK_HEADER
    from .tracebacks import PyError as PyError
    from .tracebacks import TracebackReader as TracebackReader
    from .tracebacks import parse_error_line as parse_error_line
    from .tracebacks import parse_frames as parse_frames
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

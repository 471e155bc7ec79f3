"""
PyTorch Flight Recorder: enable it, request, read, and analyze its dumps.

Recording code (`enable`, `recording`) runs inside training jobs; everything
else reads the files that the jobs write.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .analysis.analyze import analyze_dumps as analyze_dumps
    from .analysis.endings import exit_sidecars as exit_sidecars
    from .analysis.endings import exit_time_s as exit_time_s
    from .analysis.endings import exited_cleanly as exited_cleanly
    from .analysis.endings import is_collective_error as is_collective_error
    from .analysis.endings import (
        is_keyboard_interrupt as is_keyboard_interrupt,
    )
    from .analysis.endings import sigterm_time_s as sigterm_time_s
    from .analysis.job import Channel as Channel
    from .analysis.job import Job as Job
    from .analysis.job import Side as Side
    from .analysis.job import Stream as Stream
    from .analysis.membership import Group as Group
    from .analysis.membership import Signatures as Signatures
    from .analysis.membership import find_groups as find_groups
    from .analysis.membership import group_status as group_status
    from .analysis.report import FlightReport as FlightReport
    from .analysis.stragglers import clock_offsets_ns as clock_offsets_ns
    from .analysis.stuck import count_pauses as count_pauses
    from .analysis.stuck import measure_silence_s as measure_silence_s
    from .enable import disable_flight_recorder as disable_flight_recorder
    from .enable import enable_flight_recorder as enable_flight_recorder
    from .read import check_readable as check_readable
    from .read import read_dumps as read_dumps
    from .reading.columns import COMPLETED as COMPLETED
    from .reading.columns import STARTED as STARTED
    from .reading.columns import Dumps as Dumps
    from .reading.columns import EntryRow as EntryRow
    from .reading.columns import Frame as Frame
    from .reading.columns import GroupStatus as GroupStatus
    from .reading.columns import RankDump as RankDump
    from .reading.columns import entry_rows as entry_rows
    from .reading.columns import shape_texts as shape_texts
    from .reading.files import DumpFile as DumpFile
    from .reading.files import FoundFiles as FoundFiles
    from .reading.files import SearchLimits as SearchLimits
    from .reading.files import find_files as find_files
    from .reading.files import is_call_log as is_call_log
    from .reading.files import parse_dump_name as parse_dump_name
    from .recording.dump import current_recording as current_recording
    from .recording.dump import dump_flight_recorder as dump_flight_recorder
    from .recording.dump import read_progress as read_progress
    from .recording.plan import VARIABLES as VARIABLES
    from .recording.plan import RecorderSettings as RecorderSettings
    from .recording.plan import make_folder as make_folder
    from .recording.plan import plan_flight_recorder as plan_flight_recorder
    from .replay import Replay as Replay
    from .replay import make_replay as make_replay
    from .replay import write_replay as write_replay
    from .request import DumpRequest as DumpRequest
    from .request import request_dumps as request_dumps
    from .schedule import Schedule as Schedule
    from .schedule import ScheduledCall as ScheduledCall
    from .schedule import compare_schedules as compare_schedules
    from .schedule import make_schedule as make_schedule
    from .schedule import read_schedule as read_schedule
    from .sidecar import MAX_RANKS as MAX_RANKS
    from .sidecar import SIDECAR_SUFFIX as SIDECAR_SUFFIX
    from .sidecar import Sidecar as Sidecar
    from .sidecar import SidecarFrame as SidecarFrame
    from .sidecar import SidecarGroup as SidecarGroup
    from .sidecar import read_sidecar as read_sidecar
    from .sidecar import write_sidecar as write_sidecar
    from .timeline.clocks import Timeline as Timeline
    from .timeline.write import write_timeline as write_timeline
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

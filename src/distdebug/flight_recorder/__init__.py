"""
Who is behind, in which collective, since when?

Everything about PyTorch's Flight Recorder: switching it on, dumping it,
reading dumps, and analyzing them.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .analysis.analyze import REMEDIES as REMEDIES
    from .analysis.analyze import analyze_dumps as analyze_dumps
    from .analysis.job import Channel as Channel
    from .analysis.job import Side as Side
    from .analysis.job import find_channels as find_channels
    from .analysis.membership import Group as Group
    from .analysis.membership import Membership as Membership
    from .analysis.membership import Signatures as Signatures
    from .analysis.membership import find_groups as find_groups
    from .analysis.membership import group_status as group_status
    from .analysis.progress import Stream as Stream
    from .analysis.progress import collective_streams as collective_streams
    from .analysis.progress import died_s as died_s
    from .analysis.progress import ended_s as ended_s
    from .analysis.progress import failed_in_call as failed_in_call
    from .analysis.progress import last_words as last_words
    from .analysis.progress import lost_peer as lost_peer
    from .analysis.progress import was_interrupted as was_interrupted
    from .analysis.report import FlightReport as FlightReport
    from .analysis.stragglers import clock_offsets_ns as clock_offsets_ns
    from .analysis.stuck import silent_s as silent_s
    from .enable import disable_flight_recorder as disable_flight_recorder
    from .enable import enable_flight_recorder as enable_flight_recorder
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
    from .reading.files import Found as Found
    from .reading.files import Search as Search
    from .reading.files import find_files as find_files
    from .reading.files import parse_name as parse_name
    from .recording.dump import current_recording as current_recording
    from .recording.dump import dump_flight_recorder as dump_flight_recorder
    from .recording.dump import read_progress as read_progress
    from .recording.plan import VARIABLES as VARIABLES
    from .recording.plan import RecorderSettings as RecorderSettings
    from .recording.plan import make_folder as make_folder
    from .recording.plan import plan_flight_recorder as plan_flight_recorder
    from .request import DumpRequest as DumpRequest
    from .request import request_dumps as request_dumps
    from .sidecar import MOST_RANKS as MOST_RANKS
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

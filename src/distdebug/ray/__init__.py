"""
Read Ray logs, query a live cluster, and set up Ray's debugger.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .actor_logs import find_actor_logs as find_actor_logs
    from .actor_logs import follow_lines as follow_lines
    from .actor_logs import read_parts as read_parts
    from .actor_logs import read_tail as read_tail
    from .cluster import LiveCluster as LiveCluster
    from .cluster import add_live_actors as add_live_actors
    from .cluster import query_live_cluster as query_live_cluster
    from .death_logs import find_deaths as find_deaths
    from .deaths import Death as Death
    from .deaths import Deaths as Deaths
    from .deaths import death_findings as death_findings
    from .deaths import find_worker_death as find_worker_death
    from .debugger_checks import check_ray_debugger as check_ray_debugger
    from .debugger_sessions import RayDebuggerCheck as RayDebuggerCheck
    from .debugger_sessions import RayDebugSession as RayDebugSession
    from .debugger_sessions import launch_json as launch_json
    from .debugger_sessions import ray_debug_sessions as ray_debug_sessions
    from .debugger_sessions import write_launch_json as write_launch_json
    from .driver_model import DriverLog as DriverLog
    from .driver_model import DriverSource as DriverSource
    from .driver_model import Failure as Failure
    from .driver_model import OriginMatch as OriginMatch
    from .driver_model import driver_findings as driver_findings
    from .driver_model import find_driver_logs as find_driver_logs
    from .driver_model import map_origins as map_origins
    from .driver_output import driver_lines as driver_lines
    from .driver_output import read_driver_log as read_driver_log
    from .sessions import LogPart as LogPart
    from .sessions import RaySession as RaySession
    from .sessions import WorkerLog as WorkerLog
    from .sessions import find_ray_sessions as find_ray_sessions
    from .sessions import is_own_log as is_own_log
    from .sessions import open_ray_session as open_ray_session
    from .sessions import split_log_name as split_log_name
    from .workers import Activity as Activity
    from .workers import SystemLog as SystemLog
    from .workers import last_activity as last_activity
    from .workers import system_logs as system_logs
    from .workers import worker_files as worker_files
    from .workers import worker_logs as worker_logs
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

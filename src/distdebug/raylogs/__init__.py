"""
Which log belongs to that Ray actor, who died first, and why?

All of it is read from files, also days after the cluster was stopped and from
copies of the folders of several nodes.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .actor_logs import find_actor_logs as find_actor_logs
    from .actor_logs import follow_lines as follow_lines
    from .actor_logs import read_parts as read_parts
    from .actor_logs import read_tail as read_tail
    from .deaths.find import find_deaths as find_deaths
    from .deaths.model import Death as Death
    from .deaths.model import Deaths as Deaths
    from .deaths.model import death_of as death_of
    from .deaths.report import death_findings as death_findings
    from .driver.model import DriverLog as DriverLog
    from .driver.model import DriverSource as DriverSource
    from .driver.model import Failure as Failure
    from .driver.model import OriginMatch as OriginMatch
    from .driver.model import find_driver_logs as find_driver_logs
    from .driver.model import map_origins as map_origins
    from .driver.read import driver_lines as driver_lines
    from .driver.read import read_driver_log as read_driver_log
    from .driver.report import driver_findings as driver_findings
    from .live import LiveCluster as LiveCluster
    from .live import ask_live_actors as ask_live_actors
    from .live import with_live as with_live
    from .sessions import LogPart as LogPart
    from .sessions import RaySession as RaySession
    from .sessions import WorkerLog as WorkerLog
    from .sessions import find_ray_sessions as find_ray_sessions
    from .sessions import open_ray_session as open_ray_session
    from .sessions import taken_apart as taken_apart
    from .workers import Activity as Activity
    from .workers import SystemLog as SystemLog
    from .workers import last_activity as last_activity
    from .workers import system_logs as system_logs
    from .workers import worker_files as worker_files
    from .workers import worker_logs as worker_logs
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

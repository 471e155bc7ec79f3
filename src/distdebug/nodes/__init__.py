"""
How does one command run on every node of a job?

A node needs *distdebug* and the same Python, and no copy of the user's code.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .process import Channel as Channel
    from .process import Door as Door
    from .process import Talks as Talks
    from .process import close_channels as close_channels
    from .process import run_process as run_process
    from .ray import Ray as Ray
    from .ray import RayExecutor as RayExecutor
    from .ray import as_address as as_address
    from .ray import knock as knock
    from .ray import last_address as last_address
    from .ray import read_short as read_short
    from .ray import shared_env as shared_env
    from .results import Arrival as Arrival
    from .results import Bound as Bound
    from .results import Ended as Ended
    from .results import Engine as Engine
    from .results import NodeResult as NodeResult
    from .results import NodeStatus as NodeStatus
    from .results import Trouble as Trouble
    from .run import run_on_nodes as run_on_nodes
    from .run import unpack_answer as unpack_answer
    from .slurm import Slurm as Slurm
    from .ssh import Ssh as Ssh
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

"""
How does one command run on every node of a job?

A node needs *distdebug* and the same Python, and no copy of the user's code.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .channel import Channel as Channel
    from .channel import Door as Door
    from .channel import Talks as Talks
    from .channel import close_channels as close_channels
    from .model import Arrival as Arrival
    from .model import Bound as Bound
    from .model import Ended as Ended
    from .model import Engine as Engine
    from .model import NodeResult as NodeResult
    from .model import NodeStatus as NodeStatus
    from .model import Trouble as Trouble
    from .parcel import unpack_answer as unpack_answer
    from .process import run_process as run_process
    from .ray import Ray as Ray
    from .ray_env import shared_env as shared_env
    from .ray_executor import RayExecutor as RayExecutor
    from .run import run_on_nodes as run_on_nodes
    from .slurm import Slurm as Slurm
    from .ssh import Ssh as Ssh
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

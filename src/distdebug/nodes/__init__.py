"""
Run commands, functions, and streamed programs on all nodes of a job.

A node needs *distdebug* and the same Python version, but no copy of the user's
code.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .process import Channel as Channel
    from .process import Connector as Connector
    from .process import StreamExecutor as StreamExecutor
    from .process import close_channels as close_channels
    from .ray import Ray as Ray
    from .ray import RayExecutor as RayExecutor
    from .ray import answer_stream as answer_stream
    from .ray import as_address as as_address
    from .ray import last_address as last_address
    from .ray import node_affinity as node_affinity
    from .ray import probe_port as probe_port
    from .ray import ray_child as ray_child
    from .ray import read_ray_file as read_ray_file
    from .ray import resolve_cluster as resolve_cluster
    from .ray import shared_env as shared_env
    from .results import CompletedCommand as CompletedCommand
    from .results import Engine as Engine
    from .results import NodeFailure as NodeFailure
    from .results import NodeReply as NodeReply
    from .results import NodeResult as NodeResult
    from .results import NodeStatus as NodeStatus
    from .run import run_on_nodes as run_on_nodes
    from .run import unpack_answer as unpack_answer
    from .slurm import Slurm as Slurm
    from .ssh import Ssh as Ssh
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

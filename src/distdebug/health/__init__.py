"""
Is a node, with its GPUs and its network, able to work?

:func:`~distdebug.health.node.check_node` looks at this node,
:func:`~distdebug.health.node.judge_node_facts` at what a
snapshot kept of one, and
:func:`~distdebug.health.environment.check_environment` compares the variables of
all workers.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment import check_environment as check_environment
    from .gpu import Gpu as Gpu
    from .gpu import gpu_rows as gpu_rows
    from .gpu import read_gpus as read_gpus
    from .kernel import is_suspicious as is_suspicious
    from .kernel import read_kernel_log as read_kernel_log
    from .network import read_interfaces as read_interfaces
    from .node import FACTS_LAYOUT as FACTS_LAYOUT
    from .node import EnvironmentHealth as EnvironmentHealth
    from .node import NodeFacts as NodeFacts
    from .node import NodeHealth as NodeHealth
    from .node import check_node as check_node
    from .node import environs_of as environs_of
    from .node import job_start as job_start
    from .node import judge_node_facts as judge_node_facts
    from .node import node_facts as node_facts
    from .worker_environment import Settings as Settings
    from .worker_environment import by_job as by_job
    from .worker_environment import public_variables as public_variables
    from .worker_environment import read_settings as read_settings
    from .worker_environment import those_of_ranks as those_of_ranks
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

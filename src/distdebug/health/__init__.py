"""
Is a node, with its GPUs and its network, able to work?

:func:`~distdebug.health.node.check_node` looks at this node,
:func:`~distdebug.health.stored.judge_node_facts` at what a
snapshot kept of one, and
:func:`~distdebug.health.environment.check_environment` compares the variables of
all workers.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment import check_environment as check_environment
    from .gpu.model import Gpu as Gpu
    from .gpu.read import read_gpus as read_gpus
    from .gpu.smi import gpu_rows as gpu_rows
    from .kernel.events import is_suspicious as is_suspicious
    from .kernel.log import read_kernel_log as read_kernel_log
    from .model import EnvironmentHealth as EnvironmentHealth
    from .model import NodeFacts as NodeFacts
    from .model import NodeHealth as NodeHealth
    from .network.interfaces import read_interfaces as read_interfaces
    from .node import check_node as check_node
    from .settings.processes import Settings as Settings
    from .settings.processes import by_job as by_job
    from .settings.processes import read_settings as read_settings
    from .settings.processes import those_of_ranks as those_of_ranks
    from .stored import FACTS_LAYOUT as FACTS_LAYOUT
    from .stored import environs_of as environs_of
    from .stored import job_start as job_start
    from .stored import judge_node_facts as judge_node_facts
    from .stored import node_facts as node_facts
    from .variables import public_variables as public_variables
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

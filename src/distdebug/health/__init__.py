"""
Check nodes and the environment variables of workers.

:func:`~distdebug.health.node.check_node` checks this node,
:func:`~distdebug.health.node_json.check_node_json` checks a node in a snapshot,
and :func:`~distdebug.health.environment_checks.check_environment` compares the
variables of all workers.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment_checks import check_environment as check_environment
    from .gpu import Gpu as Gpu
    from .gpu import GpuProcess as GpuProcess
    from .gpu import driver_version as driver_version
    from .gpu import read_gpus as read_gpus
    from .kernel import boot_time as boot_time
    from .kernel import is_suspicious as is_suspicious
    from .kernel import read_kernel_log as read_kernel_log
    from .network import read_interfaces as read_interfaces
    from .node import EnvironmentHealth as EnvironmentHealth
    from .node import NodeFacts as NodeFacts
    from .node import NodeHealth as NodeHealth
    from .node import check_node as check_node
    from .node_json import FACTS_LAYOUT as FACTS_LAYOUT
    from .node_json import check_node_json as check_node_json
    from .node_json import check_stored_facts as check_stored_facts
    from .node_json import job_start_time as job_start_time
    from .node_json import parse_node_json as parse_node_json
    from .node_json import worker_environs as worker_environs
    from .worker_environment import Settings as Settings
    from .worker_environment import group_by_job as group_by_job
    from .worker_environment import public_variables as public_variables
    from .worker_environment import read_settings as read_settings
    from .worker_environment import select_ranks as select_ranks
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

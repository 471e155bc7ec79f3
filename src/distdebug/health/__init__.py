"""
Is a node, with its GPUs and its network, able to work?

:func:`~distdebug.health.node.check_node` looks at this node,
:func:`~distdebug.health.stored.judge_node_facts` at what a
snapshot kept of one, and
:func:`~distdebug.health.environment.check_environment` compares the variables of
all workers.
"""

from __future__ import annotations

from .environment import check_environment
from .model import EnvironmentHealth, NodeFacts, NodeHealth
from .node import check_node
from .stored import judge_node_facts


__all__ = [
    "EnvironmentHealth",
    "NodeFacts",
    "NodeHealth",
    "check_environment",
    "check_node",
    "judge_node_facts",
]

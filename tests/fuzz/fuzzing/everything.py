"""
All targets: importing this fills the table.
"""

from .targets import (
    bundles,
    debugging,
    dumps,
    kernel,
    logs,
    names,
    nodes,
    pages,
    profiles,
    sessions,
    settings,
    stacks,
)


__all__ = [
    "bundles",
    "debugging",
    "dumps",
    "kernel",
    "logs",
    "names",
    "nodes",
    "pages",
    "profiles",
    "sessions",
    "settings",
    "stacks",
]

"""
What do many ranks hold right now, and how are they stopped and steered?

What runs in the job is in ``inside``: a thread that answers on a Unix socket,
and breakpoints that wait there instead of at a terminal.  Who asks is in
``client``.  Nothing of it uses the process groups of the job, or a TCP port.

Importing this package loads neither; every name loads its module when it is
first used.
"""

from __future__ import annotations

import sys


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client.connecting import DebugClient, connect
    from .inside.arming import arm, disarm
    from .inside.breakpoints import set_trace
    from .inside.crashes import post_mortem
    from .inside.scopes import scope
    from .launchers.on_monarch import monarch_setup
    from .launchers.on_ray import ray_debugger_env, ray_debugger_setup


__all__ = [
    "DebugClient",
    "arm",
    "connect",
    "disarm",
    "monarch_setup",
    "post_mortem",
    "ray_debugger_env",
    "ray_debugger_setup",
    "scope",
    "set_trace",
]

_HOME = {
    "DebugClient": "client.connecting",
    "arm": "inside.arming",
    "connect": "client.connecting",
    "disarm": "inside.arming",
    "monarch_setup": "launchers.on_monarch",
    "post_mortem": "inside.crashes",
    "ray_debugger_env": "launchers.on_ray",
    "ray_debugger_setup": "launchers.on_ray",
    "scope": "inside.scopes",
    "set_trace": "inside.breakpoints",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)

    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value

"""
List, inspect, stop, and step the ranks of a running job.

``inside`` runs in the job: a thread answers on a Unix socket, and breakpoints
wait for a client of that socket instead of a terminal.  ``client`` asks the
ranks.  No part uses the process groups of the job or opens a TCP port.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client.client import DebugClient as DebugClient
    from .client.client import connect as connect
    from .client.commands import Command as Command
    from .client.commands import help_text as help_text
    from .client.commands import parse_command as parse_command
    from .client.local import arm_process as arm_process
    from .client.local import arming_hints as arming_hints
    from .client.local import choose_folder as choose_folder
    from .client.local import job_text as job_text
    from .client.local import unarmed_workers as unarmed_workers
    from .client.model import Answers as Answers
    from .client.model import Listing as Listing
    from .client.model import LostNode as LostNode
    from .client.model import Output as Output
    from .client.model import Process as Process
    from .client.model import Session as Session
    from .client.model import SilentProcess as SilentProcess
    from .client.model import select_processes as select_processes
    from .client.shell import line_editing as line_editing
    from .client.shell import listing_text as listing_text
    from .client.shell import run_command as run_command
    from .client.shell import run_shell as run_shell
    from .inside.arming import arm as arm
    from .inside.arming import disarm as disarm
    from .inside.arming import post_mortem as post_mortem
    from .inside.arming import scope as scope
    from .inside.arming import set_trace as set_trace
    from .inside.launchers import monarch_setup as monarch_setup
    from .inside.launchers import ray_debugger_env as ray_debugger_env
    from .inside.launchers import ray_debugger_setup as ray_debugger_setup
    from .protocol import job_environment as job_environment
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)

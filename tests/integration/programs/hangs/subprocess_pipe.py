"""
A child process never closes its output.
"""

from __future__ import annotations

import subprocess


def list_files() -> bytes:
    """
    Wait for the output of a program that never ends.
    """
    with subprocess.Popen(["sleep", "3600"], stdout=subprocess.PIPE) as child:
        print("ready", flush=True)
        return child.communicate()[0]


list_files()

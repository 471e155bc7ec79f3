"""
A child process does not end.
"""

from __future__ import annotations

import subprocess


def convert() -> None:
    """
    Wait for a program that never ends.
    """
    with subprocess.Popen(["sleep", "3600"]) as child:
        print("ready", flush=True)
        child.wait()


convert()

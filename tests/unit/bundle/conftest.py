"""
What the tests of snapshots share.
"""

from __future__ import annotations

import contextlib
import subprocess
import time

import psutil
import pytest


@pytest.fixture
def process():
    """
    Starts processes that sleep, with nothing but this environment, and returns
    their numbers.
    """
    with contextlib.ExitStack() as stack:

        def start(environ=None, **options):
            sleeps = stack.enter_context(
                subprocess.Popen(
                    ["/bin/sleep", "60"], env=environ or {}, **options
                )
            )
            stack.callback(sleeps.kill)
            # It has an environment of its own when its program has begun.
            while psutil.Process(sleeps.pid).status() != "sleeping":
                time.sleep(0.001)
            return sleeps.pid

        yield start

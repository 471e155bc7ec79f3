"""
Run a real job with a planted fault, and diagnose it.

The job has several processes.  It is watched, its dumps and stacks are
collected, and diagnosed.
"""

from __future__ import annotations

from .play import SCENARIOS, Demo, Scenario, play_demo, run_replay


__all__ = ["SCENARIOS", "Demo", "Scenario", "play_demo", "run_replay"]

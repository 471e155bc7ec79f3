"""
What does all of this look like on a real job?

A job of several processes is started in which something is wrong; it is
watched, its dumps and stacks are collected, and diagnosed.
"""

from __future__ import annotations

from .play import SCENARIOS, Demo, Scenario, play_demo


__all__ = ["SCENARIOS", "Demo", "Scenario", "play_demo"]

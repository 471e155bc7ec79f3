"""
What does a job pay for being recorded, watched, and debugged?

Run it as ``python benchmarks/bench_inside.py``.  It measures steps of small jobs
of two ranks, start-up in fresh processes, single calls, and whether a process
grows in a million steps.
"""

from __future__ import annotations

import argparse

from inside.calls import show_calls
from inside.growth import measure_growth, show_growth
from inside.startup import show_startup
from inside.steps import measure_steps, show_steps


def main() -> None:
    """
    Print tables.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--block", type=int, default=30, help="steps")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if arguments.rounds:
        show_steps(measure_steps(arguments.rounds, arguments.block))
    if arguments.repeat:
        show_startup(arguments.repeat)
        show_calls()
    if arguments.steps:
        show_growth(measure_growth(arguments.steps))


if __name__ == "__main__":
    main()

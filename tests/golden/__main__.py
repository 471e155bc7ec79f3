"""
Run the golden gate, show what changed, and accept changes that are meant.

Usage: python -m tests.golden [CASE ...] [--accept CASE ...] [--lines]
"""

from __future__ import annotations

import argparse
import sys
import time

from . import gate


def main() -> int:
    """
    Return 0 if nothing changed, or all that did was accepted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description="Diagnose all known evidence, and compare the verdicts.",
    )
    parser.add_argument(
        "only",
        metavar="CASE",
        nargs="*",
        help="look at these cases only, such as 'logs/oom-*'",
    )
    parser.add_argument(
        "--accept",
        metavar="CASE",
        nargs="+",
        default=[],
        help="keep what is found for these cases from now on",
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="choose anew whose first line of text is kept, one per cause",
    )
    options = parser.parse_args()
    begun = time.monotonic()
    results = gate.run_all(options.only)
    count = sum(len(result.facts) for result in results)
    print(f"{count} cases in {time.monotonic() - begun:.0f} s")
    accepted = gate.accept(results, options.accept) if options.accept else []
    if accepted:
        print(f"accepted:\n{gate.table(accepted)}")
    if options.lines and not options.only:
        gate.keep_lines(gate.choose_lines(results))
    return report(results, is_part=bool(options.only))


def report(results: list[gate.Result], *, is_part: bool) -> int:
    """
    Print what differs, and how many known misses hold.
    """
    misses = gate.known_misses()
    found = {
        f"{result.name}/{case}": facts
        for result in results
        for case, facts in result.facts.items()
    }
    mended = [
        case
        for case in misses.keys() & found.keys()
        if gate.is_right(found[case], misses[case])
    ]
    print(f"known misses: {len(misses) - len(mended)}")
    if mended:
        print("right by now, so accept them:", *sorted(mended))
    differences, reworded = [], []
    for result in results:
        reworded += gate.compare_lines(result, gate.first_lines())
        was = gate.kept(result.name)
        if is_part:
            was = {case: was[case] for case in result.facts if case in was}
        differences += gate.compare(result, was, misses)
    if reworded:
        print(f"wording:\n{gate.table(reworded)}")
    if differences:
        print(f"verdicts:\n{gate.table(differences)}")
    if differences or reworded:
        print("if this is meant: python -m tests.golden --accept CASE ...")
    return 1 if differences or reworded else 0


if __name__ == "__main__":
    sys.exit(main())

"""
``diagnose`` and ``demo``: find the root cause, in what was collected or planted.
"""

from __future__ import annotations

import argparse
import os

from argparse import Namespace
from typing import TYPE_CHECKING

from .._text import clean
from ..errors import DistdebugError
from .command import (
    EVIDENCE,
    FULL,
    JSON,
    clean_up_on_signals,
    command,
    flag,
    many,
    output_file,
    value,
)
from .output import (
    counting,
    print_json,
    print_result,
    remark,
    report,
    waiting,
)


if TYPE_CHECKING:
    from ..demo import Demo
    from ..findings import Diagnosis


@command(
    "diagnose",
    "find the root cause in what was collected",
    EVIDENCE,
    JSON,
    value(
        "--html FILE",
        "also write a page that shows all of it, for any browser",
        type=output_file,
    ),
    many("--known-bugs FILE", "further published bugs to look for"),
    flag("--markdown", "print it as Markdown, for an issue or a chat"),
    flag(
        "--anonymize",
        "mask hosts, users, addresses, and paths outside of the code",
    ),
    FULL,
)
def diagnose(args: Namespace) -> int:
    """
    Find the root cause of a job that is stuck, slow, or dead, in whatever was
    collected: Flight Recorder dumps, side-cars, stacks, logs of any launcher,
    session folders of Ray, snapshots.  It needs neither the job nor PyTorch.

    Example:
      {prog} diagnose dumps/
      {prog} diagnose train.log ray-of-node-1/ ray-of-node-2/
      {prog} diagnose dumps/ stacks/ --html report.html
      {prog} diagnose hang/ --markdown | gh issue create -t "hang" -F -
      {prog} diagnose --json dumps/ stacks/ | jq -r .verdict.summary

    Exit status: 0 looked and found nothing wrong; 1 found something, or is
    not sure; 2 could not look.
    """
    # numpy would start a thread per core for products of matrices, of which
    # there are none here, and each spins for a while.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from distdebug import diagnose

    with counting("reading") as progress:
        diagnosis = diagnose(
            *args.paths, known_bugs=args.known_bugs or (), progress=progress
        )
    try:
        # Written before printing: the reader may close the pipe early.
        if args.html is not None:
            from ..report import write_report

            # Standard output is for the diagnosis alone; a script may read it.
            path = write_report(diagnosis, args.html, anonymize=args.anonymize)
            remark(f"report: {clean(str(path), limit=1000)}")
    finally:
        _print_diagnosis(args, diagnosis)
    return int(not diagnosis.is_healthy)


def _print_diagnosis(args: Namespace, diagnosis: Diagnosis) -> None:
    data, blocks = diagnosis.to_dict(), list(diagnosis._blocks_())
    if args.anonymize:
        from .._anonymize import Anonymizer
        from ..diagnosis import inputs_of

        inputs = inputs_of(diagnosis)
        mask = Anonymizer(inputs.hosts, inputs.blocked_on)
        # Before anything is escaped, which would hide what is to be masked.
        data, blocks = mask.data(data), mask.data(blocks)
    if args.markdown and not args.json:
        from .._render import blocks_markdown

        print(blocks_markdown(blocks), flush=True)
    else:
        report(args, blocks, is_fine=diagnosis.is_healthy, data=data)


def _even(text: str) -> int:
    number = int(text)
    if not 4 <= number <= 64 or number % 2:
        msg = f"{text} is not an even number from 4 to 64"
        raise argparse.ArgumentTypeError(msg)

    return number


@command(
    "demo",
    "watch a real job hang and be diagnosed",
    value(
        "--scenario NAME",
        "what is wrong with the job (default: %(default)s)",
        default="dataloader",
    ),
    flag("--list", "list the scenarios and exit"),
    value(
        "--keep DIR",
        "where to keep program, log, dumps, and stacks; an empty folder "
        "(default: a new one in the temporary folder)",
    ),
    value(
        "--ranks N",
        "how many processes, an even number (default: %(default)s)",
        type=_even,
        default=4,
    ),
    flag("--json", "print the diagnosis as JSON"),
)
def demo(args: Namespace) -> int:
    """
    Start a real training job of several processes on this machine (torchrun,
    Gloo, CPU) in which something is wrong; wait until it hangs; collect dumps
    and stacks; end it; and print the diagnosis.  It takes less than a minute.

    Example:
      {prog} demo
      {prog} demo --list
      {prog} demo --scenario order --keep order-demo

    Exit status: 0 the diagnosis names what was planted; 1 it does not;
    2 the job could not be run.
    """
    from .._text import text_table
    from ..demo import SCENARIOS

    if args.list:
        rows = [(s.name, s.planted) for s in SCENARIOS.values()]
        print(text_table(("scenario", "what is planted"), rows))
        return 0

    if args.scenario not in SCENARIOS:
        msg = f"there is no scenario {args.scenario!r}"
        raise DistdebugError(msg, remedy=f"one of {', '.join(SCENARIOS)}")

    played = _play(args)
    (_print_json if args.json else _print_text)(args, played)
    return int(not played.is_found)


def _play(args: Namespace) -> Demo:
    from pathlib import Path

    from ..demo import SCENARIOS, play_demo

    clean_up_on_signals()
    with waiting("demo") as show:

        def tell(text: str) -> None:
            if text.startswith("step "):
                show(f"demo: {text}")
            else:
                remark(f"demo: {text}")

        return play_demo(
            SCENARIOS[args.scenario],
            folder=Path(args.keep) if args.keep else None,
            ranks=args.ranks,
            tell=tell,
        )


def _print_text(_: Namespace, played: Demo) -> None:
    verdict = "as planted" if played.is_found else "NOT what was planted"
    print_result(played.diagnosis, is_fine=False)
    print(
        "",
        f"planted: {played.scenario.planted}",
        f"verdict: {played.diagnosis.verdict.cause}, {verdict}",
        f"program, log, dumps, and stacks: {played.folder}",
        sep="\n",
    )


def _print_json(args: Namespace, played: Demo) -> None:
    about = {
        "scenario": played.scenario.name,
        "planted": played.scenario.planted,
        "is_found": played.is_found,
        "folder": str(played.folder),
    }
    print_json(args, {**played.diagnosis.to_dict(), "demo": about})

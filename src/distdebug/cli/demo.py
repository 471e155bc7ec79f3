"""
``demo``: run a real job with a planted fault, and diagnose it.
"""

from __future__ import annotations

import argparse
import signal

from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from .options import Commands, add_command
from .output import LiveLine, print_json


if TYPE_CHECKING:
    from ..demo import Demo


_TEXT = """
Start a real training job of several processes on this machine (torchrun, Gloo,
CPU) in which something is wrong; wait until it hangs; collect dumps and stacks;
end it; and print the diagnosis.  It takes less than a minute.

Example:
  {prog} demo
  {prog} demo --list
  {prog} demo --scenario order --keep order-demo

Exit status: 0 the diagnosis names what was planted; 1 it does not;
2 the job could not be run.
"""


def add_demo_parser(commands: Commands) -> None:
    """
    Add the command ``demo``.
    """
    parser = add_command(
        commands,
        "demo",
        run,
        help="watch a real job hang and be diagnosed",
        text=_TEXT,
    )
    parser.add_argument(
        "--scenario",
        default="dataloader",
        metavar="NAME",
        help="what is wrong with the job (default: %(default)s)",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the scenarios and exit"
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="where to keep program, log, dumps, and stacks; an empty folder "
        "(default: a new one in the temporary folder)",
    )
    parser.add_argument(
        "--ranks",
        type=_even,
        default=4,
        metavar="N",
        help="how many processes, an even number (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the diagnosis as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """
    Play one scenario; return 0 if the diagnosis names the planted fault.
    """
    from pathlib import Path

    from .._text import text_table
    from ..demo import SCENARIOS, play_demo
    from ..errors import DistdebugError

    if args.list:
        rows = [(s.name, s.planted) for s in SCENARIOS.values()]
        print(text_table(("scenario", "what is planted"), rows))
        return 0

    if args.scenario not in SCENARIOS:
        msg = f"there is no scenario {args.scenario!r}"
        raise DistdebugError(msg, remedy=f"one of {', '.join(SCENARIOS)}")

    line = LiveLine()

    def tell(text: str) -> None:
        is_step = text.startswith("step ")
        (line.show if is_step else line.write)(f"demo: {text}")

    # By default these signals kill Python at once, and leave the job running.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, _interrupt)
    demo = play_demo(
        SCENARIOS[args.scenario],
        folder=Path(args.keep) if args.keep else None,
        ranks=args.ranks,
        tell=tell,
    )
    line.clear()
    (_print_json if args.json else _print_text)(demo)
    return int(not demo.is_found)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _even(text: str) -> int:
    number = int(text)
    if not 4 <= number <= 64 or number % 2:
        msg = f"{text} is not an even number from 4 to 64"
        raise argparse.ArgumentTypeError(msg)

    return number


def _print_text(demo: Demo) -> None:
    verdict = "as planted" if demo.is_found else "NOT what was planted"
    print(
        demo.diagnosis,
        "",
        f"planted: {demo.scenario.planted}",
        f"verdict: {demo.diagnosis.verdict.cause}, {verdict}",
        f"program, log, dumps, and stacks: {demo.folder}",
        sep="\n",
    )


def _print_json(demo: Demo) -> None:
    about = {
        "scenario": demo.scenario.name,
        "planted": demo.scenario.planted,
        "is_found": demo.is_found,
        "folder": str(demo.folder),
    }
    print_json("demo", {**demo.diagnosis.to_dict(), "demo": about})

"""
Simulated jobs whose programs have one or two faults, and how many are found.

``python -m tests.schedules --ranks 64 --cases 100 --seed 7`` prints one line for each
case that was judged wrong, and the totals.  A job is parallel over data, stages, and
tensors; a fault is an edit of the program of one rank, which is then played as far as
it gets.  With two faults, both ranks have made theirs, or wait for nobody.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.property.parallel import OPS, Choices, Collective, Play, make_plan

from distdebug.causes import Cause
from distdebug.findings import Finding
from distdebug.flight_recorder import analyze_dumps
from distdebug.testing import make_dumps


SIZES = {
    16: [(4, 2, 2), (8, 1, 2), (4, 4, 1)],
    64: [(8, 2, 4), (16, 1, 4), (4, 4, 4), (64, 1, 1)],
    1024: [(32, 4, 8), (128, 1, 8), (16, 8, 8)],
}


@attrs.define
class Fault:
    """
    What one rank does otherwise than the others.

    Attributes:
        kind: Its name.

        rank: Who.

        at: The number of the call concerned in the program of the rank.

        alike: Ranks that cannot be told apart from it: the other member of a
            pair.
    """

    kind: str
    rank: int
    at: int
    alike: frozenset[int] = frozenset()


Programs = dict[int, list[Any]]
Edit = Callable[[list[Any], int, random.Random], bool]


def _skip(program: list[Any], at: int, _chance: random.Random) -> bool:
    del program[at]
    return True


def _extra(program: list[Any], at: int, chance: random.Random) -> bool:
    op = chance.choice(["barrier", "all_gather", program[at].op])
    program.insert(at, program[at]._replace(op=op))
    return True


def _operation(program: list[Any], at: int, chance: random.Random) -> bool:
    others = [op for op in OPS if op != program[at].op]
    program[at] = program[at]._replace(op=chance.choice(others))
    return True


def _size(program: list[Any], at: int, chance: random.Random) -> bool:
    program[at] = program[at]._replace(size=chance.choice([512, 1023, 4096]))
    return True


def _order(program: list[Any], at: int, _chance: random.Random) -> bool:
    after = at + 1
    if after == len(program) or not isinstance(program[after], Collective):
        return False
    if program[after].group == program[at].group:
        return False
    program[at], program[after] = program[after], program[at]
    return True


EDITS: dict[str, Edit | None] = {
    "stopped": None,
    "crashed": None,
    "skipped": _skip,
    "extra": _extra,
    "operation": _operation,
    "size": _size,
    "order": _order,
}


@attrs.define
class Case:
    """
    A job that was played, and what is wrong with it.
    """

    play: Play
    faults: list[Fault]
    backend: str = "nccl"


def make_case(kinds: Sequence[str], world: int, chance: random.Random) -> Case:
    """
    Return a job with faults of these kinds, all of which are reached.
    """
    while True:
        plan = _plan(world, chance)
        ranks = chance.sample(range(world), len(kinds))
        stops: dict[int, int] = {}
        faults = []
        for kind, rank in zip(kinds, ranks, strict=True):
            program = plan.programs[rank] = list(plan.programs[rank])
            fault = _add(kind, rank, program, plan.groups, chance)
            if fault is None:
                break
            if EDITS[kind] is None:
                stops[rank] = fault.at
            faults.append(fault)
        else:
            play = Play(plan, stop=stops)
            if all(_is_reached(play, x) for x in faults) and (
                not faults or any(play.waiting.values())
            ):
                has_p2p = any("pp" in name[:2] for name in plan.groups)
                # Gloo does not record what stages send and receive.
                backends = ["nccl", "nccl", "nccl" if has_p2p else "gloo"]
                return Case(play, faults, chance.choice(backends))


def _plan(world: int, chance: random.Random) -> Any:
    return make_plan(
        Choices(
            sizes=chance.choice(SIZES[world]),
            tp_op=chance.choice(OPS),
            dp_ops=chance.choices(OPS, k=chance.randint(1, 3)),
            world_ops=chance.choices(OPS, k=chance.randint(0, 2)),
            steps=chance.randint(2, 6),
            microbatches=chance.randint(1, 4),
        ),
        batched=chance.random() < 0.5,
        ahead=chance.choice([0, 0, 2]),
    )


def _add(
    kind: str,
    rank: int,
    program: list[Any],
    groups: Mapping[str, tuple[int, ...]],
    chance: random.Random,
) -> Fault | None:
    edit = EDITS[kind]
    if edit is None:
        return Fault(kind, rank, chance.randrange(len(program)))
    places = [i for i, x in enumerate(program) if isinstance(x, Collective)]
    at = chance.choice(places)
    group = groups[program[at].group]
    alike = frozenset(group if len(group) == 2 else ())
    return Fault(kind, rank, at, alike) if edit(program, at, chance) else None


def _is_reached(play: Play, fault: Fault) -> bool:
    made = sum(rank == fault.rank for x in play.rounds for rank, _ in x)
    if EDITS[fault.kind] is not None:
        return made > fault.at
    return made == fault.at and not play.waiting[fault.rank]


def judge(case: Case, found: Sequence[Finding]) -> str:
    """
    Return what is wrong with the findings; ``""`` if nothing is.
    """
    verdict = found[0] if found else None
    if not case.faults:
        return f"blamed {verdict.ranks}" if verdict else ""
    if verdict is None:
        return "nothing found"
    guilty = {x.rank for x in case.faults}
    excused = {r for x in case.faults for r in x.alike}
    named = set(verdict.ranks)
    if verdict.cause is Cause.GROUP_ORDER_DEADLOCK and guilty <= named:
        return ""  # all in a circle wait for each other
    if not named & (guilty | excused) or named - guilty - excused:
        return f"{verdict.cause} {sorted(named)[:6]}"
    blamed = {r for f in found for r in f.ranks if f.confidence != "possible"}
    if blamed - guilty - excused:
        return f"also blamed {sorted(blamed - guilty - excused)[:6]}"
    return ""


def findings_of(case: Case) -> Sequence[Finding]:
    """
    Return what the dumps of a job show.
    """
    job = case.play.job(case.backend)
    with tempfile.TemporaryDirectory() as folder:
        make_dumps(
            folder,
            job,
            missing=[x.rank for x in case.faults if x.kind == "crashed"],
        )
        return analyze_dumps(Path(folder)).findings


def cases(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Case, str, bool]]:
    """
    Yield each case with what is wrong, and whether all faults are named.
    """
    for number in range(options.cases):
        kinds = options.kinds[number % len(options.kinds)].split("+")
        chance = random.Random(f"{options.seed} {number}")
        case = make_case(
            [x for x in kinds if x != "healthy"], options.ranks, chance
        )
        found = findings_of(case)
        named = {r for f in found for r in f.ranks}
        is_all = named.issuperset(x.rank for x in case.faults)
        yield "+".join(kinds), case, judge(case, found), is_all


TWO = [
    "stopped+stopped",
    "stopped+skipped",
    "stopped+size",
    "crashed+operation",
    "extra+stopped",
]


def main() -> int:
    """
    Print what was judged wrong.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64, choices=SIZES)
    parser.add_argument("--cases", type=int, default=130)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("kinds", nargs="*", default=["healthy", *EDITS, *TWO])
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    right: Counter[str] = Counter()
    complete: Counter[str] = Counter()
    for number, (kind, case, wrong, is_all) in enumerate(cases(options)):
        totals[kind] += 1
        right[kind] += not wrong
        complete[kind] += is_all
        if wrong:
            print(
                f"{number} {kind}: {wrong} of {case.backend} {case.faults}",
                flush=True,
            )
    for kind, count in totals.items():
        print(
            f"{kind}: {right[kind]} of {count}; "
            f"all faults named in {complete[kind]}"
        )
    print(f"in all: {right.total()} of {totals.total()}")
    return int(right.total() < totals.total())


if __name__ == "__main__":
    sys.exit(main())

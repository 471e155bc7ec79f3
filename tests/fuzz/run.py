"""
Feed parsers with what nobody has tried, for as long as there is time.

With *atheris*, inputs are led by the lines of *distdebug* that they reach;
without, samples are changed at random, which works with every Python.  Each
target runs in a process of its own; what broke it is kept in a folder, from
where it may go to ``regressions/TARGET/``.

::

    python tests/fuzz/run.py --list
    python tests/fuzz/run.py --seconds 60 gdb pyspy_text
    python tests/fuzz/run.py --together --seconds 60 --inputs 9000 --jobs 2
    python tests/fuzz/run.py --costs
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path


HERE = Path(__file__).resolve().parent
# What was told by a child that ended well, and its report.
_REPORT = "FUZZED "
# How libFuzzer tells the edges that were reached.
_EDGES = re.compile(r"cov: ([0-9]+)")
_START_S = 120.0
# What atheris notes of comparisons grows, with some targets by 10 MB a second.
_LONGEST_S = 240.0
_MOST_DEFECTS = 20
_MIB = 1 << 20
# Four times the size takes four times the time, on a machine at rest.
_MOST_GROWTH = 8.0
_SHORT_S = 0.5


def main() -> int:
    """
    Fuzz what was asked for, and tell what came of it.

    Returns:
        0 if nothing broke.
    """
    args = _arguments()
    sys.path.insert(0, str(HERE))
    warnings.simplefilter("ignore")
    if args.child:
        return _fuzz(args)

    known = _names()
    names = args.targets or known
    if unknown := set(names) - set(known):
        print(f"no such target: {', '.join(sorted(unknown))}")
        return 2
    if args.list:
        print(*names, sep="\n")
        return 0
    if args.costs:
        return _costs(names)
    if args.together:
        # What lies side by side is of one room, and imports the same.
        share = -(-len(names) // args.jobs)
        starts = range(0, len(names), share)
        names = ["+".join(names[i : i + share]) for i in starts]
    named = args.found
    args.found = named or Path(tempfile.mkdtemp(prefix="distdebug-fuzz-"))
    args.found.mkdir(parents=True, exist_ok=True)
    print(f"{'target':22}{'inputs':>9}{'edges':>14}{'new':>6}  defects")
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(partial(_spawn, args=args), names))
    if named is None:  # others may use one that was named
        with suppress(OSError):  # nothing was found
            args.found.rmdir()
    return int(any(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="by default all")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each")
    parser.add_argument("--inputs", type=int, help="for each, at most")
    parser.add_argument("--together", action="store_true", help="at once")
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--plain", action="store_true", help="not by atheris")
    parser.add_argument("--costs", action="store_true", help="of 1 MiB each")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, help="where to keep defects")
    parser.add_argument("--corpus", type=Path, help="what led to new lines")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _names() -> list[str]:
    import fuzzing.everything  # noqa: F401 it fills the table

    from fuzzing.target import TARGETS

    return list(TARGETS)


def _load(names: Sequence[str]) -> None:
    """
    Import these targets and not the others: to instrument takes long.
    """
    for name in names:
        importlib.import_module(name.partition(":")[0])


def _full(name: str) -> str:
    """
    The name with that of its module.
    """
    from fuzzing.target import TARGETS

    return f"{TARGETS[name].parse.__module__}:{name}"


def _spawn(name: str, args: argparse.Namespace) -> int:
    """
    Fuzz in another process, which may hang or die; or in one after the other.
    """
    found, left, seed = 0, args.seconds, args.seed
    longest = args.seconds if args.inputs else _LONGEST_S
    with tempfile.TemporaryDirectory(prefix="distdebug-corpus-") as corpus:
        while left > 0:
            now = {"seconds": min(left, longest), "seed": seed}
            turn = argparse.Namespace(**{**vars(args), **now})
            found += _watch(name, turn, args.corpus or corpus)
            left, seed = left - longest, seed + 1
    return found


def _watch(name: str, args: argparse.Namespace, corpus: str | Path) -> int:
    command = [sys.executable, __file__, "--child", "--corpus", str(corpus)]
    command += ["--found", str(args.found)]
    command += ["--seconds", str(args.seconds), "--seed", str(args.seed)]
    command += ["--inputs", str(args.inputs)] if args.inputs else []
    command += ["--plain"] if args.plain else []
    begin = time.monotonic()
    try:
        ended = subprocess.run(
            [*command, *map(_full, name.split("+"))],
            capture_output=True,
            # A slow machine does less of the same, and nothing else.
            env={**os.environ, "PYTHONHASHSEED": "0"},
            text=True,
            errors="replace",
            timeout=args.seconds + _START_S,
        )
        output = ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as exc:
        output = f"{exc.stdout!r} {exc.stderr!r}: did not end"
    lines = [x for x in output.splitlines() if x.startswith(_REPORT)]
    if not lines:
        shown = [x for x in output.splitlines() if "INFO: " not in x]
        print(f"{name:.60} died:", *shown[-30:], sep="\n")
        return 1

    told = json.loads(lines[-1].removeprefix(_REPORT))
    edges = [int(x) for x in _EDGES.findall(output)]
    reached = f"{edges[0]}-{edges[-1]}" if edges else ""
    first, plus, _ = name.partition("+")
    shown = f"{first}, {name.count('+')} more" if plus else name
    print(
        f"{shown:22}{told['inputs']:9}{reached:>14}{told['new']:6}"
        f"  {len(told['defects'])}  ({time.monotonic() - begin:.0f} s)",
        *(f"  {x['what']}\n    {x['file']}" for x in told["defects"]),
        sep="\n",
        flush=True,
    )
    return len(told["defects"])


def _costs(names: Sequence[str]) -> int:
    """
    What does junk cost, a quarter and a whole MiB of it?
    """
    from fuzzing.demand import cost_of
    from fuzzing.junk import junk_for
    from fuzzing.target import TARGETS

    print(f"{'target':22}{'s':>6}{'growth':>8}{'MiB':>6}  worst")
    failed = 0
    for name in names:
        target = TARGETS[name]
        size = min(_MIB, target.most or _MIB)
        small = dict(junk_for(name, size // 4, most=6))
        costs = [
            (cost_of(target, data), cost_of(target, small[kind]), kind)
            for kind, data in junk_for(name, size, most=6)
        ]
        worst, before, kind = max(costs)
        growth = worst.seconds / max(before.seconds, 1e-3)
        memory = max(cost.mebibytes or 0.0 for cost, _, _ in costs)
        is_bad = (
            worst.seconds > target.seconds * size / _MIB
            or memory > target.mebibytes
            or (growth > _MOST_GROWTH and worst.seconds > _SHORT_S)
        )
        failed += is_bad
        print(
            f"{name:22}{worst.seconds:6.2f}{growth:8.1f}{memory:6.0f}  {kind}",
            "  TOO MUCH" if is_bad else "",
            flush=True,
        )
    return int(failed > 0)


def _fuzz(args: argparse.Namespace) -> int:
    """
    Fuzz in this process.
    """
    is_guided = not args.plain and importlib.util.find_spec("atheris")
    if is_guided:
        import atheris

        with atheris.instrument_imports(include=["distdebug"]):
            _load(args.targets)
    else:
        _load(args.targets)

    from fuzzing.bench import Bench

    names = [name.partition(":")[2] for name in args.targets]
    bench = Bench(names, args.found)
    if is_guided:
        _with_atheris(bench, args)
    else:
        _by_chance(bench, args)
    bench.report(_REPORT)
    return 0


def _by_chance(bench, args: argparse.Namespace) -> None:
    from fuzzing.mutate import mutated

    rng = random.Random(args.seed)
    deadline = time.monotonic() + args.seconds
    while not _is_over(bench, args, deadline):
        bench.feed(mutated(bench.seeds, rng))


def _is_over(bench, args: argparse.Namespace, deadline: float) -> bool:
    return (
        time.monotonic() > deadline
        or len(bench.defects) >= _MOST_DEFECTS
        or bench.inputs >= (args.inputs or math.inf)
    )


def _with_atheris(bench, args: argparse.Namespace) -> None:
    """
    Let libFuzzer choose; it ends the process, so the report comes before.
    """
    import atheris

    from fuzzing.mutate import mutate
    from fuzzing.places import tidy

    corpus = args.corpus / args.targets[0].partition(":")[2]
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in bench.seeds:
        name = hashlib.sha256(seed).hexdigest()[:20]
        (corpus / name).write_bytes(seed)
    before = len(list(corpus.iterdir()))
    deadline = time.monotonic() + args.seconds
    rng = random.Random(args.seed)

    def one(data: bytes) -> None:
        bench.feed(data)
        if _is_over(bench, args, deadline):
            bench.new = len(list(corpus.iterdir())) - before
            bench.report(_REPORT)
            tidy()
            os._exit(0)

    def change(data: bytes, most: int, seed: int) -> bytes:
        # Half of the changes are those that know lines and numbers.
        if seed % 2:
            return atheris.Mutate(data, most)
        return mutate(data, bench.seeds, rng)[:most]

    # What hangs is told by the processor's clock; this is for what waits.
    options = ["-max_len=65536", "-timeout=300", "-rss_limit_mb=4096"]
    # Who asks for too much gets none; that alone is no defect.
    options += [
        "-malloc_limit_mb=1000000",
        f"-artifact_prefix={args.found}/died-",
    ]
    options += [
        f"-seed={args.seed}",
    ]
    atheris.Setup(
        [sys.argv[0], *options, str(corpus)], one, custom_mutator=change
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

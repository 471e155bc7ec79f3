"""
What was looked at: which job, how much of it, and when?
"""

from __future__ import annotations

import re
import shlex

from collections.abc import Iterable, Iterator

import attrs

from .._text import clean, list_text
from ..diagnosis.seen import Seen, seen_by
from ..findings import Diagnosis
from ..ranks import fold_ranks
from .paths import given_name
from .ranks import RankLinks, rank_links
from .times import span_text


__all__ = ["About", "about"]

_MOST_RANKS = 64
# A damaged file may tell of a job of millions.
_MOST_UNSEEN = 1 << 17


@attrs.frozen(kw_only=True)
class About:
    """
    What was looked at.

    Attributes:
        world_size: How many ranks the job has, if that is known.

        ranks: The ranks that were seen.

        unseen: Those that were not.

        facts: What else there is to tell: labels and texts.

        commands: What tells more of it in a shell.
    """

    world_size: int | None = None
    ranks: RankLinks = attrs.field(factory=RankLinks)
    unseen: RankLinks = attrs.field(factory=RankLinks)
    facts: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()


def about(diagnosis: Diagnosis) -> About:
    """
    What was a diagnosis made from?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        All that fits into a few lines.
    """
    seen = seen_by(diagnosis)
    world_size = _world_size(seen)
    ranks = _ranks(seen)
    # Numbers of ranks that nobody else has seen may be damage.
    unseen = set(range(min(world_size or 0, _MOST_UNSEEN))) - ranks
    return About(
        world_size=world_size,
        ranks=rank_links(ranks, most=0),
        unseen=rank_links(unseen if ranks else ()),
        facts=tuple((label, text) for label, text in _facts(seen) if text),
        commands=tuple(_commands(seen, diagnosis)),
    )


def _world_size(seen: Seen) -> int | None:
    flight = seen.flight and seen.flight.dumps.world_size
    stacks = max((p.world_size or 0 for p in seen.stacks), default=0)
    return flight or stacks or seen.logs.collectives.world_size


def _ranks(seen: Seen) -> set[int]:
    dumps = set(seen.flight.dumps.ranks) if seen.flight else set()
    return dumps | {p.rank for p in seen.stacks if p.rank is not None}


def _facts(seen: Seen) -> Iterator[tuple[str, str]]:
    yield "Job", clean(next(_jobs(seen), ""), limit=80)
    hosts = sorted(set(_hosts(seen)), key=_in_order)
    noun = "host" if len(hosts) == 1 else "hosts"
    yield "Nodes", f"{len(hosts)} {noun}: {list_text(hosts)}" if hosts else ""
    times = sorted(_times(seen))
    yield "Taken", span_text(times[0], times[-1]) if times else ""
    yield "Versions", ", ".join(_versions(seen))
    yield "Evidence", ", ".join(_kinds(seen))
    yield "From", list_text(map(given_name, seen.paths))


def _jobs(seen: Seen) -> Iterator[str]:
    if seen.flight:
        yield from (
            s.job for s in seen.flight.dumps.sidecars.values() if s.job
        )
    yield from (p.job for p in seen.stacks if p.job)


def _hosts(seen: Seen) -> Iterator[str]:
    if seen.flight:
        dumps = seen.flight.dumps
        yield from (clean(d.host, limit=64) for d in dumps if d.host)
        yield from (clean(s.host, limit=64) for s in dumps.sidecars.values())
    yield from (clean(p.host, limit=64) for p in seen.stacks if p.host)
    yield from (clean(node.host, limit=64) for node in seen.logs.facts)


def _in_order(name: str) -> list[tuple[bool, int, str]]:
    """
    Where a name stands among others, so that node2 comes before node10.
    """
    # What is long is no number that anybody counts to.
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [
        (True, int(p), "") if p.isdecimal() else (False, 0, p) for p in parts
    ]


def _times(seen: Seen) -> Iterator[float]:
    if seen.flight:
        dumps = seen.flight.dumps
        yield from (d.written_ns / 1e9 for d in dumps if d.written_ns)
    yield from (p.taken for p in seen.stacks if p.taken)
    yield from (node.taken for node in seen.logs.facts if node.taken)


def _versions(seen: Seen) -> Iterator[str]:
    if seen.flight is None:
        return

    dumps = seen.flight.dumps
    torch = sorted({s.torch for s in dumps.sidecars.values() if s.torch})
    if torch:
        yield f"torch {clean(list_text(torch), limit=80)}"
    library = sorted({d.comm_lib_version for d in dumps} - {""})
    if library:
        yield f"NCCL {clean(list_text(library), limit=80)}"


def _kinds(seen: Seen) -> Iterator[str]:
    counts = {
        "dump": len(seen.flight.dumps) if seen.flight else 0,
        "process with stacks": len(seen.stacks),
        "log": len(seen.logs.files) - len(seen.logs.facts),
        "node": len(seen.logs.facts),
    }
    for noun, count in counts.items():
        many = noun.replace("process", "processes", 1)
        many = many if many != noun else f"{noun}s"
        if count > 0:
            yield f"{count:,} {noun if count == 1 else many}"


def _commands(seen: Seen, diagnosis: Diagnosis) -> Iterator[str]:
    paths = [given_name(path) for path in seen.paths]
    if not paths or any(path.startswith("-") for path in paths):
        return

    yield _command("diagnose", paths)
    suspects = diagnosis.verdict.ranks[:_MOST_RANKS]
    if seen.flight and len(seen.flight.dumps) and suspects:
        ranks = ["--ranks", fold_ranks(suspects), "--entries"]
        yield _command("analyze", paths, *ranks, "--stack-traces")
    if seen.stacks:
        yield _command("stacks", paths)


def _command(name: str, paths: Iterable[str], *options: str) -> str:
    return shlex.join(["python", "-m", "distdebug", name, *paths, *options])

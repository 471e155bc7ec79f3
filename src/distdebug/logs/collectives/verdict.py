"""
What is wrong in one group?
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import attrs

from ...findings import Cause, CollectiveRef, Confidence, Finding, GroupRef
from ...ranks import fold_ranks, ranks_text
from .cases import Case
from .model import LogRecord, WorkTimeout, evidence_of


_MOST_EVIDENCE = 6


@attrs.frozen(kw_only=True)
class Verdict:
    """
    What is wrong in one group of one run.

    Attributes:
        case: The group.

        cause: What is wrong.

        members: Those at fault, as ranks within the group.

        ranks: Those at fault, as global ranks, where these are not those of
            *members*.

        waiting: Those that wait, as ranks within the group.

        op: The operation they wait in; ``""`` if unknown.

        seq: Its number; ``None`` if unknown.

        is_p2p: Whether it is between two ranks.

        confidence: How sure that is.

        told: What it is seen by, as a clause.

        evidence: The lines that show it.
    """

    case: Case
    cause: Cause
    members: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    op: str = ""
    seq: int | None = None
    is_p2p: bool = False
    confidence: Confidence = "likely"
    told: str = ""
    evidence: tuple[LogRecord, ...] = ()


def collectives_of(case: Case) -> dict[int, WorkTimeout]:
    """
    Who waits in calls of the whole group, whose numbers can be compared?

    Args:
        case: The group.

    Returns:
        Calls by rank within the group.
    """
    return {
        member: timeout
        for member, timeout in case.timeouts.items()
        if timeout.seq is not None and not timeout.is_p2p
    }


def _first(case: Case) -> WorkTimeout | None:
    """
    The call that most wait in.
    """
    calls = collectives_of(case) or case.timeouts
    counts = Counter((x.seq, x.op) for x in calls.values() if x.op)
    if not counts:
        return None
    (common, _) = counts.most_common(1)[0]
    return next(x for x in calls.values() if (x.seq, x.op) == common)


def verdict_of(  # noqa: PLR0913 all of a verdict
    case: Case,
    cause: Cause,
    members: Iterable[int],
    confidence: Confidence,
    told: str,
    *,
    call: WorkTimeout | None = None,
    evidence: Iterable[LogRecord] = (),
) -> Verdict:
    """
    Make a verdict, with what follows from the group.

    Args:
        case: The group.

        cause: What is wrong.

        members: Those at fault.

        confidence: How sure that is, if the group is told.

        told: What it is seen by.

        call: What the others wait in; by default what most wait in.

        evidence: Lines to show besides that of the call.
    """
    blamed = tuple(sorted(members))
    call = call or _first(case)
    waiting = tuple(sorted(set(case.timeouts) - set(blamed)))
    shown: list[LogRecord] = [call] if call else []
    shown += islice((x for x in evidence if x is not call), _MOST_EVIDENCE)
    return Verdict(
        case=case,
        cause=cause,
        members=blamed,
        waiting=waiting,
        op=call.op if call else "",
        seq=call.seq if call else None,
        is_p2p=call.is_p2p if call else False,
        # Who is compared to whom is a guess without a group.
        confidence="possible" if case.group is None else confidence,
        told=told,
        evidence=tuple(shown[:_MOST_EVIDENCE]),
    )


COLLECT = (
    "collect the logs of all ranks, with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 so that each leaves a Flight Recorder dump"
)
REMEDIES = {
    Cause.RANK_NOT_ARRIVED: "look at the Python stack there, and at the log "
    "of these ranks: they are busy, stuck, or dead outside of this call",
    Cause.RANK_NOT_STARTED: "look at what runs on the GPUs of these ranks: "
    "an earlier kernel does not finish",
    Cause.RANK_BLOCKED_IN_LAUNCH: "take native stacks of these ranks "
    "(py-spy dump --native): a call of CUDA or NCCL does not return, or a "
    "thread keeps the GIL",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "everyone arrived: check the network "
    "between these ranks, and on GPUs their health (Xid) and the NCCL logs",
    Cause.COLLECTIVE_TIMEOUT: COLLECT,
    Cause.TYPE_MISMATCH: "make all ranks of the group call the same operation; "
    "or find the call that was left out or made once too often before",
    Cause.SIZE_MISMATCH: "make all ranks of the group pass the same sizes; or "
    "find the call that was left out or made once too often before",
    Cause.DTYPE_MISMATCH: "make all ranks of the group pass the same dtype",
    Cause.SKIPPED_COLLECTIVE: "look for a branch that leaves a call out on "
    "these ranks only",
    Cause.GROUP_ORDER_DEADLOCK: "call the collectives of these groups in the "
    "same order on all ranks",
}
OTHER_INTERFACE = (
    "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) on every node to the "
    "interface through which the nodes reach each other"
)


def explain_verdict(
    verdict: Verdict, *, following: int = 0, run: str = ""
) -> Finding:
    """
    Put into words who holds up a group.

    Args:
        verdict: Who does.

        following: How many other groups wait because of it.

        run: Which run of the job it was, if there were several.

    Returns:
        The finding, with the lines that show it.
    """
    case = verdict.case
    ranks = verdict.ranks or global_ranks(case, verdict.members)
    summary = _summary(verdict, ranks)
    if following:
        others = "s" if following > 1 else ""
        because = " because of it" if verdict.members or ranks else ", too"
        summary += f"; {following} other group{others} waited{because}"
    remedy = REMEDIES.get(verdict.cause)
    if case.folded and not ranks:
        remedy = f"{COLLECT}; with RAY_DEDUP_LOGS=0, Ray shows every line"
    return Finding(
        cause=verdict.cause,
        ranks=ranks,
        summary=summary + run,
        confidence=verdict.confidence,
        remedy=remedy,
        group=_group(case, verdict),
        collective=None
        if verdict.seq is None
        else CollectiveRef(
            op=verdict.op or "unknown", seq=verdict.seq, p2p=verdict.is_p2p
        ),
        evidence=evidence_of(verdict.evidence),
    )


def global_ranks(case: Case, members: Iterable[int]) -> tuple[int, ...]:
    """
    Which global ranks are these?

    Args:
        case: The group.

        members: Ranks within it.

    Returns:
        As many as are known, ascending.
    """
    is_default = case.group is None or case.group.is_default
    found = (
        case.ranks.get(m, m if is_default else None) for m in set(members)
    )
    return tuple(sorted(rank for rank in found if rank is not None))


def _summary(verdict: Verdict, ranks: Sequence[int]) -> str:
    case = verdict.case
    who = _who(verdict, ranks)
    what = _call(verdict)
    waiting = len(verdict.waiting)
    wait = f"{waiting} rank{'s wait' if waiting != 1 else ' waits'} in it"
    told = f" ({verdict.told})" if verdict.told else ""
    seen = f"{wait}; {verdict.told}" if verdict.told else wait
    spent = _spent(verdict)
    within = f" within{spent}" if spent else ""
    texts = {
        Cause.RANK_NOT_ARRIVED: f"{who} did not come to {what} ({seen})",
        Cause.RANK_NOT_STARTED: f"the GPU of {who} did not begin {what} "
        f"({seen})",
        Cause.COLLECTIVE_STUCK_IN_FLIGHT: f"{what} did not complete{within}, "
        f"although {verdict.told}",
        Cause.TYPE_MISMATCH: f"{who} called another operation as {what}: "
        f"{verdict.told}",
        Cause.SIZE_MISMATCH: f"{who} passed another size to {what}: "
        f"{verdict.told}",
        Cause.COLLECTIVE_TIMEOUT: f"{_speakers(case)} waited{spent} in "
        f"{what}, and these logs do not tell for whom{told}",
    }
    text = texts[verdict.cause]
    silent = _unheard(verdict)
    return text + (f"; nothing is heard of {silent}" if silent else "")


def _who(verdict: Verdict, ranks: Sequence[int]) -> str:
    if verdict.members and len(ranks) < len(verdict.members):
        inside = "s" if len(verdict.members) > 1 else ""
        return f"rank{inside} {fold_ranks(verdict.members)} of the group"
    if verdict.confidence == "possible" and verdict.cause in {
        Cause.TYPE_MISMATCH,
        Cause.SIZE_MISMATCH,
    }:
        return f"one side of {ranks_text(ranks)}"
    return ranks_text(ranks)


def _call(verdict: Verdict) -> str:
    what = verdict.op or "call"
    if verdict.seq is not None:
        what += f" #{verdict.seq}"
    group = verdict.case.group
    return what + (f" of group {str(group)!r}" if group is not None else "")


def _spent(verdict: Verdict) -> str:
    """
    How long they waited, such as ``" 10 min"``, if it is told.
    """
    calls = verdict.case.timeouts.values()
    ran = next((x.ran for x in calls if x.ran is not None), None)
    if ran is None:
        return ""
    return f" {ran:.0f} s" if ran < 120 else f" {ran / 60:.0f} min"


def _speakers(case: Case) -> str:
    members = case.timeouts or case.statuses
    ranks = global_ranks(case, members)
    if not members:
        return "ranks"
    if len(ranks) < len(members):
        return f"rank {fold_ranks(members)} of the group"
    return ranks_text(ranks)


def _unheard(verdict: Verdict) -> str:
    """
    Members that say nothing, where others are to blame for sure.
    """
    case = verdict.case
    if (
        case.size is None
        or case.folded
        or verdict.cause
        not in {
            Cause.RANK_NOT_ARRIVED,
            Cause.RANK_NOT_STARTED,
        }
    ):
        return ""
    silent = (
        set(range(case.size))
        - set(case.timeouts)
        - set(case.statuses)
        - set(verdict.members)
    )
    return ranks_text(silent) if silent else ""


def _group(case: Case, verdict: Verdict) -> GroupRef | None:
    """
    The group with its members, as far as these are known as global ranks.
    """
    if case.group is None:
        return None

    members = {*case.timeouts, *case.statuses, *verdict.members}
    if case.group.is_default and case.size is not None:
        members |= set(range(case.size))
    return GroupRef(
        name=case.group.name,
        desc=case.group.desc,
        ranks=global_ranks(case, members),
    )


def _silent(case: Case) -> set[int] | None:
    """
    Members that say nothing; ``None`` if it is unknown how many there are.
    """
    if case.size is None:
        return None
    return set(range(case.size)) - set(case.timeouts) - set(case.statuses)


def judge_silence(case: Case) -> Verdict | None:
    """
    Ranks that must exist and say nothing.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    silent = _silent(case)
    calls = collectives_of(case)
    if case.size == 2:
        # Whoever waits for the other one, waits for it in every kind of call.
        calls = case.timeouts
    if not silent or not calls or case.folded:
        return None
    # One rank that speaks among many that do not is one log among many.
    few = len(silent) <= len(calls)
    if not few:
        return None
    return verdict_of(
        case,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "likely" if len(silent) * 2 <= len(calls) else "possible",
        "nothing is heard of " + ("it" if len(silent) == 1 else "them"),
    )


def judge_gap(case: Case) -> Verdict | None:
    """
    Ranks that must exist, since there are higher ones, and say nothing.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    calls = collectives_of(case)
    if case.size is not None or case.group is None or not calls or case.folded:
        return None

    silent = set(range(max(calls))) - set(case.timeouts) - set(case.statuses)
    if not 0 < 2 * len(silent) <= len(calls):
        return None
    return verdict_of(
        case,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "possible",
        "nothing is heard of " + ("it" if len(silent) == 1 else "them"),
    )


def judge_complete(case: Case) -> Verdict | None:
    """
    Everyone is there.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    silent = _silent(case)
    calls = collectives_of(case)
    if silent is None or silent or not calls:
        return None
    return verdict_of(
        case,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        (),
        "likely",
        "all of its members report it",
        evidence=case.statuses.values(),
    )


_UNTIMED = -1


def judge_enqueued(case: Case) -> Verdict | None:
    """
    Ranks that say themselves that they did not come that far.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    waited = [
        x.seq for x in collectives_of(case).values() if x.seq is not None
    ]
    if not waited:
        return None
    first = min(waited)
    behind = {
        member: status
        for member, status in case.statuses.items()
        if member not in case.timeouts
        and status.enqueued is not None
        and status.enqueued < first
    }
    if not behind:
        return None
    last = max(x.enqueued or 0 for x in behind.values())
    call = next(x for x in collectives_of(case).values() if x.seq == first)
    return verdict_of(
        case,
        Cause.RANK_NOT_ARRIVED,
        behind,
        # If hardly anybody came, those who did may be the ones at fault.
        "likely" if len(behind) <= len(case.timeouts) else "possible",
        f"#{last} was the last it enqueued"
        if len(behind) == 1
        else f"none of them enqueued more than #{last}",
        call=call,
        evidence=behind.values(),
    )


def judge_lag(case: Case) -> Verdict | None:
    """
    Ranks that wait in an earlier call than the others.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    calls = collectives_of(case)
    seqs = sorted({x.seq or 0 for x in calls.values()})
    if len(seqs) < 2:
        return None
    behind = {m: x for m, x in calls.items() if x.seq == seqs[0]}
    ahead = {m: x for m, x in calls.items() if x.seq == seqs[-1]}
    call = next(iter(ahead.values()))
    is_queued = all(
        _reached(case, member, "enqueued") >= (call.seq or 0)
        for member in behind
    )
    return verdict_of(
        case,
        Cause.RANK_NOT_STARTED if is_queued else Cause.RANK_NOT_ARRIVED,
        behind,
        "likely" if len(behind) <= len(calls) / 2 else "possible",
        f"{'they are' if len(behind) > 1 else 'it is'} still in "
        f"{next(iter(behind.values())).op} #{seqs[0]}",
        call=call,
        evidence=(next(iter(behind.values())),),
    )


def _reached(case: Case, member: int, what: str) -> int:
    status = case.statuses.get(member)
    number = getattr(status, what, None)
    return _UNTIMED if number is None else number


def judge_start(case: Case) -> Verdict | None:
    """
    Ranks whose GPU never came to the call that others began.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    calls = collectives_of(case)
    begun = {
        member: _reached(case, member, "started")
        for member in calls
        if _reached(case, member, "started") >= 0
    }
    late = {m for m, n in begun.items() if n < (calls[m].seq or 0)}
    if not late or len(late) == len(begun):
        return None
    return verdict_of(
        case,
        Cause.RANK_NOT_STARTED,
        late,
        "likely",
        "the others' GPUs began it",
        evidence=[case.statuses[m] for m in sorted(late)],
    )


def name_silent(
    verdicts: Sequence[Verdict], world_size: int | None
) -> list[Verdict]:
    """
    Name those who say nothing, where verdicts leave open who it is.

    Args:
        verdicts: What is wrong in each group of one run, the first to begin
            first.

        world_size: How many ranks the job has, if known.

    Returns:
        The same; in some of them ranks are named.
    """
    silent, speaking = _silent_ranks(verdicts, world_size)
    if not silent:
        return list(verdicts)

    named = [_with_ranks(verdict, silent) for verdict in verdicts]
    if any(x.members or x.cause != Cause.COLLECTIVE_TIMEOUT for x in named):
        return named
    is_sure = len(silent) == 1 < speaking // 3
    first = attrs.evolve(
        named[0],
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=tuple(sorted(silent)),
        confidence="likely" if is_sure else "possible",
        told="of all ranks only "
        + ("this one says" if len(silent) == 1 else "these say")
        + " nothing",
    )
    return [first, *named[1:]]


def _silent_ranks(
    verdicts: Iterable[Verdict], world_size: int | None
) -> tuple[set[int], int]:
    """
    Ranks that say nothing, if these are but few, and how many others there
    are.
    """
    cases = [verdict.case for verdict in verdicts]
    speaking = frozenset[int | None]().union(*(x.heard for x in cases))
    is_folded = any(x.folded for x in cases)
    if world_size is None or None in speaking or is_folded:
        return set(), len(speaking)

    silent = set(range(world_size)) - speaking
    few = 2 * len(silent) <= len(speaking)
    return silent if few else set(), len(speaking)


def _with_ranks(verdict: Verdict, silent: set[int]) -> Verdict:
    """
    Members whose global ranks no line tells are the silent ones, if these are
    as many.
    """
    case = verdict.case
    is_default = case.group is None or case.group.is_default
    unnamed = [x for x in verdict.members if x not in case.ranks]
    if is_default or not unnamed or len(unnamed) != len(silent):
        return verdict
    named = {case.ranks[x] for x in verdict.members if x in case.ranks}
    return attrs.evolve(verdict, ranks=tuple(sorted(named | silent)))


# All members pass as many elements.
_EVEN = frozenset(
    {
        *("all_reduce", "broadcast", "reduce", "_all_gather_base"),
        *("_reduce_scatter_base", "barrier"),
    }
)


def judge_calls(case: Case) -> Verdict | None:
    """
    Ranks that wait in the same place, in different calls.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    by_seq: dict[int, dict[int, WorkTimeout]] = defaultdict(dict)
    for member, timeout in collectives_of(case).items():
        by_seq[timeout.seq or 0][member] = timeout
    for seq in sorted(by_seq):
        calls = by_seq[seq]
        kinds = _kinds(calls)
        if len(kinds) > 1:
            return _mismatch(case, calls, kinds)
    return None


def _kinds(
    calls: Mapping[int, WorkTimeout],
) -> list[tuple[tuple[str, int | None], list[int]]]:
    """
    Ranks by what they called, most first.
    """
    found: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    is_told = all(
        call.numel_in is not None for call in calls.values() if call.op
    )
    for member, call in calls.items():
        is_even = is_told and call.op in _EVEN
        if call.op:
            found[call.op, call.numel_in if is_even else None].append(member)
    return sorted(found.items(), key=lambda kind: -len(kind[1]))


def _mismatch(
    case: Case,
    calls: Mapping[int, WorkTimeout],
    kinds: list[tuple[tuple[str, int | None], list[int]]],
) -> Verdict:
    (expected, right), (theirs, wrong) = kinds[:2]
    is_tie = len(right) == len(wrong)
    is_type = expected[0] != theirs[0]
    members = calls if is_tie else {m for _, kind in kinds[1:] for m in kind}
    texts = (
        (theirs[0], expected[0])
        if is_type
        else (f"{theirs[1]} elements", f"{expected[1]} elements")
    )
    return verdict_of(
        case,
        Cause.TYPE_MISMATCH if is_type else Cause.SIZE_MISMATCH,
        members,
        "possible" if is_tie else "likely",
        " against ".join(texts),
        call=calls[right[0]],
        evidence=(calls[wrong[0]],),
    )

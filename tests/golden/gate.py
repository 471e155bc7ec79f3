"""
The golden gate: has the verdict on any known piece of evidence changed?

Each case goes through :func:`distdebug.diagnose`, as a user would call it.  What counts
of the result is kept, one line per case, in ``expected/``: not the sentences, but cause,
ranks, call, place, confidence, and the further findings in their order.  Where the
verdict is known to be wrong, ``known_misses.json`` has what would be right.
"""

from __future__ import annotations

import concurrent.futures
import fnmatch
import json
import tempfile

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jsonschema

import distdebug

from distdebug.cli.schema import make_schema
from distdebug.errors import DistdebugError
from distdebug.findings import Diagnosis, Finding
from distdebug.stacks import rules

from .cases import SETS, Case


EXPECTED = Path(__file__).parent / "expected"
MISSES = Path(__file__).parent / "known_misses.json"
FIRST_LINES = Path(__file__).parent / "first_lines.json"

# What commands print before a diagnosis.
_HEAD = {
    "schema": 1,
    "tool": "distdebug",
    "version": "",
    "command": "diagnose",
}

# What is kept of one case.
Facts = dict[str, Any]


class Difference(NamedTuple):
    """
    One field of one case that is not as it was.

    Attributes:
        case: The set and the name of the case.

        field: Which of the facts; ``""`` for a case that is new or gone.

        was: What is kept.

        now: What was just found.
    """

    case: str
    field: str
    was: object
    now: object


class Result(NamedTuple):
    """
    What one set of cases shows.

    Attributes:
        name: The set.

        facts: What was found, by case.

        lines: The first line of text of each verdict, by case.
    """

    name: str
    facts: dict[str, Facts]
    lines: dict[str, str]


def run(name: str, only: Collection[str] = ()) -> Result:
    """
    Diagnose the cases of one set.

    Args:
        name: The set, a key of :data:`.cases.SETS`.

        only: Patterns of names of cases; without any, all.

    Returns:
        What was found.
    """
    facts, lines = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(SETS[name]()):
            if not only or _is_meant(f"{name}/{case.name}", only):
                if case.name in facts:
                    msg = f"two cases of {name} are called {case.name}"
                    raise ValueError(msg)

                found, line = judge(case, Path(folder, str(number)))
                facts[case.name], lines[case.name] = found, line
    return Result(name, facts, lines)


def run_all(only: Collection[str] = (), processes: int = 2) -> list[Result]:
    """
    Diagnose the cases of all sets, several sets at a time.
    """
    # The longest first.
    names = sorted(SETS, key=["jobs", "logs", "simulated"].__contains__)[::-1]
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        return list(pool.map(run, names, [only] * len(names)))


def judge(case: Case, folder: Path) -> tuple[Facts, str]:
    """
    Diagnose one case.

    Args:
        case: The case.

        folder: Where its evidence is put; must not exist yet.

    Returns:
        What counts of the result, and its first line of text.

    Raises:
        jsonschema.ValidationError: As JSON, it is not as the schema says.
    """
    case.write(folder)
    # As on any other machine: what lies at the paths of a job here is not its
    # source, and verdicts must not depend on it.
    no_source = mock.patch.object(rules, "_read_source", return_value=[])
    try:
        with no_source:
            diagnosis = distdebug.diagnose(folder)
    except DistdebugError as exc:
        return {"error": type(exc).__name__}, ""

    plain = {**_HEAD, **json.loads(json.dumps(diagnosis.to_dict()))}
    _validator().validate(plain)
    line = str(diagnosis).partition("\n")[0].replace(str(folder), "…")
    return facts_of(diagnosis), line


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(make_schema())


def facts_of(diagnosis: Diagnosis) -> Facts:
    """
    Return what the gate keeps of a diagnosis; fields that are empty are left out.
    """
    verdict = diagnosis.verdict
    others = [f for f in diagnosis.findings if f != verdict]
    facts = {
        "cause": str(verdict.cause),
        "detail": verdict.detail_cause and str(verdict.detail_cause),
        "ranks": distdebug.fold_ranks(verdict.ranks),
        "call": _call(verdict),
        "at": verdict.location and verdict.location.brief,
        "confidence": verdict.confidence,
        "then": [f"{f.cause} {distdebug.fold_ranks(f.ranks)}" for f in others],
    }
    return {name: value for name, value in facts.items() if value}


def _call(finding: Finding) -> str:
    call, group = finding.collective, finding.group
    words = [f"{'p2p ' if call.p2p else ''}{call}"] if call else []
    return " of ".join([*words, *([str(group)] if group else [])])


def kept(name: str) -> dict[str, Facts]:
    """
    Return the facts that are kept of a set.
    """
    path = EXPECTED / f"{name}.json"
    facts: dict[str, Facts] = json.loads(path.read_text("utf-8"))
    return facts


def keep(name: str, facts: Mapping[str, Facts]) -> None:
    """
    Keep the facts of a set, one line per case.
    """
    lines = [
        f"{json.dumps(case)}: {json.dumps(facts[case], ensure_ascii=False)}"
        for case in sorted(facts)
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (EXPECTED / f"{name}.json").write_text(text, "utf-8")


def known_misses() -> dict[str, Facts]:
    """
    Return what is right for the cases that are known to be judged wrongly.

    Each has those facts that are wrong today, and ``why``.
    """
    misses: dict[str, Facts] = json.loads(MISSES.read_text("utf-8"))
    return misses


def is_right(facts: Facts, right: Facts) -> bool:
    """
    Return whether a known miss is judged as is right.
    """
    return all(facts.get(f) == v for f, v in right.items() if f != "why")


def compare(
    result: Result, was: Mapping[str, Facts], misses: Mapping[str, Facts]
) -> Iterator[Difference]:
    """
    Yield what is not as it was; a known miss that is now right is no difference.
    """
    for case in sorted(was.keys() | result.facts.keys()):
        name = f"{result.name}/{case}"
        old, new = was.get(case), result.facts.get(case)
        if old is None or new is None:
            yield Difference(name, "", old, new)
        elif name not in misses or not is_right(new, misses[name]):
            for field in {**old, **new}:
                if old.get(field) != new.get(field):
                    yield Difference(
                        name, field, old.get(field), new.get(field)
                    )


def table(differences: Iterable[Difference]) -> str:
    """
    Return differences as a table of case, field, was, and is.
    """
    rows = [
        (d.case, d.field or "(case)", _cell(d.was), _cell(d.now))
        for d in differences
    ]
    rows.insert(0, ("case", "field", "was", "is"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join(
            [*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]
        )
        for row in rows
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{k}={_cell(v)}" for k, v in value.items())
    return str(value)


def first_lines() -> dict[str, str]:
    """
    Return the first line of text of a few dozen cases, one for each cause.
    """
    lines: dict[str, str] = json.loads(FIRST_LINES.read_text("utf-8"))
    return lines


def choose_lines(results: Iterable[Result]) -> dict[str, str]:
    """
    Return the first lines to keep: one for each cause and cause of a cause.
    """
    chosen: dict[tuple[str, str], tuple[str, str]] = {}
    for result in results:
        for case, line in sorted(result.lines.items()):
            facts = result.facts[case]
            if cause := facts.get("cause"):
                key = (cause, facts.get("detail", ""))
                chosen.setdefault(key, (f"{result.name}/{case}", line))
    return dict(sorted(chosen.values()))


def compare_lines(
    result: Result, was: Mapping[str, str]
) -> Iterator[Difference]:
    """
    Yield the first lines of text that are not as they were.
    """
    for case, line in result.lines.items():
        name = f"{result.name}/{case}"
        if name in was and was[name] != line:
            yield Difference(name, "text", was[name], line)


def keep_lines(lines: Mapping[str, str]) -> None:
    """
    Keep first lines of text.
    """
    text = json.dumps(lines, indent=1, sort_keys=True, ensure_ascii=False)
    FIRST_LINES.write_text(f"{text}\n", "utf-8")


def _is_meant(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def accept(
    results: Iterable[Result], patterns: Collection[str]
) -> list[Difference]:
    """
    Keep what was found for the cases that are named.

    A known miss that is right now is no longer a known miss.

    Args:
        results: What was found.

        patterns: Names of cases, with the set before them; ``*`` matches any
            part of a name.

    Returns:
        The differences that were accepted.
    """
    misses, lines, accepted = known_misses(), first_lines(), []
    for result in results:
        for difference in compare_lines(result, lines):
            if _is_meant(difference.case, patterns):
                accepted.append(difference)
                lines[difference.case] = str(difference.now)
        path = EXPECTED / f"{result.name}.json"
        old = kept(result.name) if path.exists() else {}
        new = dict(old)
        for difference in compare(result, old, {}):
            if _is_meant(difference.case, patterns):
                accepted.append(difference)
                case = difference.case.removeprefix(f"{result.name}/")
                if case not in result.facts:
                    new.pop(case, None)
                    continue
                new[case] = result.facts[case]
                right = misses.get(difference.case)
                if right and is_right(new[case], right):
                    del misses[difference.case]
        keep(result.name, new)
    keep_lines(lines)
    MISSES.write_text(json.dumps(misses, indent=1, sort_keys=True) + "\n")
    return accepted

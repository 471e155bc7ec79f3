"""
Match a diagnosis with published bugs, by versions, settings, logs, and stacks.

The bugs are data (``known_bugs.toml``), each with its source.  A bug counts only
where the verdict is of its kind, and where a version on record is affected or a
text typical of it was found.
"""

from __future__ import annotations

import os
import re

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, Literal

import attrs

from .._lazy import late_pattern
from .._rules import (
    check_table,
    convert_patterns,
    one_of,
    parse_tables,
    read_rules_file,
    refuse_unknown_tables,
)
from ..causes import Cause
from ..findings import Diagnosis, KnownBug


if TYPE_CHECKING:
    from .rank_state import DiagnosisInputs


Symptom = Literal["hang", "crash", "slow", "start_up"]

_SYMPTOMS: Mapping[str, frozenset[Cause]] = {
    "hang": frozenset(
        {
            *(Cause.COLLECTIVE_STUCK_IN_FLIGHT, Cause.COLLECTIVE_TIMEOUT),
            *(Cause.COLLECTIVE_WAIT, Cause.RANK_NOT_ARRIVED),
            *(Cause.RANK_NOT_STARTED, Cause.RANK_BLOCKED_IN_LAUNCH),
            *(Cause.LAUNCH_BLOCKED, Cause.GPU_SYNC_WAIT, Cause.GPU_KERNEL),
            *(Cause.LOCK_DEADLOCK, Cause.GIL_CONTENTION, Cause.NATIVE_SPIN),
            *(Cause.FUTURE_WAIT, Cause.QUEUE_WAIT, Cause.DATALOADER_WAIT),
            *(Cause.NETWORK_FAILURE, Cause.UNKNOWN),
        }
    ),
    "crash": frozenset(
        {
            *(Cause.NATIVE_CRASH, Cause.RANK_CRASHED, Cause.KILLED),
            *(Cause.ACTOR_DIED, Cause.GPU_FAULT, Cause.NETWORK_FAILURE),
            *(Cause.COLLECTIVE_TIMEOUT, Cause.UNKNOWN),
        }
    ),
    "slow": frozenset(c for c in Cause if c.is_lag),
    "start_up": frozenset(
        {
            *(Cause.RENDEZVOUS_TIMEOUT, Cause.RENDEZVOUS_WAIT),
            *(Cause.START_UP_STALLED, Cause.NETWORK_MISCONFIGURED),
            *(Cause.NODE_MISCONFIGURED, Cause.COLLECTIVE_TIMEOUT),
            *(Cause.NETWORK_FAILURE, Cause.UNKNOWN),
        }
    ),
}


# The components of which dumps, RAS, and facts of nodes give the version.
_VERSIONED = ("nccl", "torch", "driver")


@attrs.frozen(kw_only=True, field_transformer=convert_patterns)
class BugRule:
    """
    A published bug, and how it is recognized.

    Attributes:
        name: Its name, such as ``"nccl-abort-hang"``.

        title: What goes wrong, as a clause.

        component: What it is in: ``"nccl"``, ``"torch"``, ``"driver"``, ….

        versions: The affected versions, such as ``">=2.14,<2.17.1"``.

        fixed_in: The release that mends it, or ``""``.

        workaround: What helps without a new release, or ``""``.

        symptoms: What it looks like.

        operations: The collectives that it needs, as dumps name them, such as
            ``"all_reduce"``; empty for any.

        environment: The settings that it needs, as ``NAME=value``.

        platform: The architecture that it needs, such as ``"aarch64"``.

        log_pattern: A text in logs and errors that is typical of it.

        stack_pattern: A function in stacks that is typical of it.

        source: Where it was published.
    """

    name: str
    title: str
    component: str
    versions: str
    fixed_in: str = ""
    workaround: str = ""
    symptoms: tuple[str, ...] = attrs.field(
        converter=tuple,
        validator=attrs.validators.deep_iterable(one_of(Symptom)),
    )
    operations: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    environment: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    platform: str = ""
    log_pattern: Pattern[str] | None = None
    stack_pattern: Pattern[str] | None = None
    source: str

    def __attrs_post_init__(self) -> None:
        """
        Refuse what cannot fit any diagnosis.
        """
        is_affected("0", self.versions)
        for setting in self.environment:
            if "=" not in setting:
                msg = f"environment: {setting!r:.60} is not NAME=value"
                raise ValueError(msg)
        has_text = self.log_pattern or self.stack_pattern
        if self.component not in _VERSIONED and not has_text:
            msg = (
                f"the version of {self.component!r:.60} is never on record, as "
                f"those of {', '.join(_VERSIONED)} are; give a log_pattern or "
                "a stack_pattern"
            )
            raise ValueError(msg)


_LIMIT = late_pattern(r"(>=|<=|==|!=|>|<)\s*(\d[\d.]{0,40})")
_NUMBERS = late_pattern(r"\d{1,9}")
_MOST_PARTS = 6


def is_affected(version: str, limits: str) -> bool:
    """
    Return whether a version lies within limits.

    Args:
        version: Such as ``"2.21.5+cuda12.4"``; what follows the numbers does
            not count.

        limits: Such as ``">=2.14,<2.17.1"``, all of which must hold.

    Raises:
        ValueError: The limits are none.
    """
    own = _numbers(re.split(r"[+a-zA-Z-]", version, maxsplit=1)[0])
    holds = []
    for limit in limits.split(","):
        parts = _LIMIT.fullmatch(limit.strip())
        if parts is None:
            msg = f"invalid versions {limits!r:.60}: expected '>=2.14,<2.17.1'"
            raise ValueError(msg)
        other = _numbers(parts[2])
        holds.append(
            {
                ">=": own >= other,
                "<=": own <= other,
                "==": own == other,
                "!=": own != other,
                ">": own > other,
                "<": own < other,
            }[parts[1]]
        )
    return all(holds)


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(x) for x in _NUMBERS.findall(version)[:_MOST_PARTS]]
    return (*parts, *[0] * (_MOST_PARTS - len(parts)))


_BUILT_IN = Path(__file__).with_name("known_bugs.toml")


@cache
def built_in_bugs() -> tuple[BugRule, ...]:
    """
    Return the bugs that come with this package.
    """
    return tuple(read_bugs(_BUILT_IN, is_built_in=True))


def read_bugs(
    path: str | os.PathLike[str], *, is_built_in: bool = False
) -> Iterator[BugRule]:
    """
    Read a file of known bugs: one table ``[[bug]]`` for each.

    Raises:
        RulesError: It cannot be read, or one of its tables is wrong.
    """
    tables, name = read_rules_file(path), os.fspath(path)
    refuse_unknown_tables(tables, {"bug"}, name)
    yield from parse_tables(
        tables.get("bug", []),
        "bug",
        name,
        lambda table: _parse_bug(table, is_built_in=is_built_in),
    )


def _parse_bug(table: object, *, is_built_in: bool) -> BugRule:
    known = check_table(BugRule, table, is_built_in=is_built_in)
    for field in attrs.fields(BugRule):
        if field.default is attrs.NOTHING and not known.get(field.name):
            msg = f"{field.name} is not given"
            raise ValueError(msg)
    return BugRule(**known)


@attrs.frozen(kw_only=True)
class _Record:
    """
    What is on record of versions, settings, and texts.

    Attributes:
        versions: Versions by component.

        platforms: Architectures of the nodes.

        variables: Variables of workers as ``NAME=value``.

        texts: Quotes of evidence.

        functions: Names of functions in stacks.
    """

    versions: Mapping[str, frozenset[str]]
    platforms: frozenset[str]
    variables: frozenset[str]
    texts: tuple[str, ...]
    functions: frozenset[str]


_PLAIN_VERSION = late_pattern(r"\d[\w.+-]{0,60}", re.ASCII)
_NCCL_VERSION = late_pattern(r"NCCL version (\d[\d.]{0,20})")


def _collect_record(diagnosis: Diagnosis, inputs: DiagnosisInputs) -> _Record:
    texts = tuple(e.quote for f in diagnosis.findings for e in f.evidence)
    nccl = {x for text in texts for x in _NCCL_VERSION.findall(text)}
    nccl |= {x.nccl_version for x in inputs.logs.ras}
    torch: set[str] = set()
    if inputs.dumps is not None:
        nccl |= {dump.comm_lib_version for dump in inputs.dumps}
        torch = {x.torch for x in inputs.dumps.sidecars.values()}
    facts = inputs.logs.facts
    driver = {x.driver for x in facts}
    versions = dict(zip(_VERSIONED, (nccl, torch, driver), strict=True))
    return _Record(
        # They are quoted, and come from files of others.
        versions={
            k: frozenset(filter(_PLAIN_VERSION.fullmatch, v))
            for k, v in versions.items()
        },
        platforms=frozenset(x.platform for x in facts if x.platform),
        variables=frozenset(
            f"{name}={value}"
            for groups in inputs.logs.environs.values()
            for variables in groups
            for name, value in variables.items()
        ),
        texts=texts,
        functions=frozenset(
            frame.name
            for process in inputs.stacks
            for thread in process.threads
            for frame in (*thread.frames, *thread.native)
        ),
    )


def note_known_bugs(
    diagnosis: Diagnosis,
    inputs: DiagnosisInputs,
    files: Iterable[str | os.PathLike[str]] = (),
) -> Diagnosis:
    """
    Add the published bugs that fit a verdict and what is on record.

    Args:
        diagnosis: The diagnosis.

        inputs: The evidence behind it.

        files: Further files of bugs.

    Returns:
        The diagnosis with the bugs, those with an affected version on record
        first; what to do next names the release that mends the first of them.

    Raises:
        RulesError: One of the files cannot be used.
    """
    if isinstance(files, str | os.PathLike):
        files = [files]
    own = {bug.name: bug for path in files for bug in read_bugs(path)}
    verdict = diagnosis.verdict
    if verdict.cause.is_fine:
        return diagnosis
    record = _collect_record(diagnosis, inputs)
    rules = (*own.values(), *built_in_bugs())
    found = (_match(rule, diagnosis, record) for rule in rules)
    bugs = sorted(filter(None, found), key=lambda bug: not bug.version)
    if not bugs:
        return diagnosis

    remedy = "; ".join(filter(None, [_advice(bugs[0]), verdict.remedy]))
    better = attrs.evolve(verdict, remedy=remedy)
    findings = [better if f is verdict else f for f in diagnosis.findings]
    return attrs.evolve(
        diagnosis,
        verdict=better,
        findings=tuple(findings),
        known_bugs=tuple(bugs),
    )


def _advice(bug: KnownBug) -> str:
    what = f"a known bug of {bug.component} may fit"
    if bug.version:
        what = f"a known bug of {bug.component} {bug.version} fits"
    if bug.fixed_in:
        return f"{what}: upgrade it to {bug.fixed_in} or later"
    return f"{what}: {bug.workaround or f'see {bug.source}'}"


def _match(
    rule: BugRule, diagnosis: Diagnosis, record: _Record
) -> KnownBug | None:
    verdict = diagnosis.verdict
    causes = frozenset[Cause]().union(*(_SYMPTOMS[s] for s in rule.symptoms))
    call = verdict.collective
    is_other = (
        verdict.cause not in causes
        or (rule.operations and (not call or call.op not in rule.operations))
        or (rule.platform and rule.platform not in record.platforms)
        or not record.variables.issuperset(rule.environment)
    )
    known = record.versions.get(rule.component, frozenset())
    affected = sorted(v for v in known if is_affected(v, rule.versions))
    if is_other or (known and not affected):
        return None

    has_texts = [
        _is_found(rule.log_pattern, record.texts),
        _is_found(rule.stack_pattern, record.functions),
    ]
    if False in has_texts:
        return None
    # A version alone says nothing of a rank that has a reason of its own.
    is_explained = (
        verdict.detail_cause is not None or verdict.location is not None
    )
    if True not in has_texts and (is_explained or not affected):
        return None
    return KnownBug(
        name=rule.name,
        title=rule.title,
        component=rule.component,
        version=affected[0] if affected else "",
        affected=rule.versions,
        fixed_in=rule.fixed_in,
        workaround=rule.workaround,
        source=rule.source,
    )


def _is_found(
    pattern: Pattern[str] | None, texts: Collection[str]
) -> bool | None:
    """
    Return whether a pattern is found; ``None`` if there is none.
    """
    return None if pattern is None else any(map(pattern.search, texts))

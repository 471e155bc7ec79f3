"""
Read logs once, for errors, collectives, the phase of the job, and some words.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from types import MappingProxyType

import attrs

from ..findings import Missing
from .collectives.collect import RecordCollector, finish
from .collectives.model import CollectiveLogs
from .engine import Block, FilePart, LogReader, read_parts
from .lines import find_file_ranks
from .model import ScanReport
from .phases.detect import make_report
from .phases.framework_rules import read_framework_rules
from .phases.model import PhaseReport
from .phases.selection import PhaseReader
from .process_ranks import (
    NO_PROCESSES,
    ProcessRanks,
    ProcessReader,
    RanksByProcess,
)
from .ras import RasReader, RasStatus
from .scan import (
    ErrorScan,
    Progress,
    default_threads,
    find_logs,
    select_parts,
)


@attrs.frozen(kw_only=True)
class LogSurvey:
    """
    Results of reading logs once.

    Attributes:
        scan: Errors found line by line.

        collectives: Messages of watchdogs, NCCL, Gloo, and the store.

        phase: The phase that the job reached; ``None`` without a log of it.

        mentioning: The files in which one of the words occurs.

        processes: The ranks of processes, nodes, and GPUs.

        complete: The files that show that the job surely did all of its work.

        ras: The statuses of NCCL's RAS that the job printed.
    """

    scan: ScanReport = attrs.field(factory=ScanReport)
    collectives: CollectiveLogs = attrs.field(factory=CollectiveLogs)
    phase: PhaseReport | None = None
    mentioning: frozenset[str] = frozenset()
    processes: ProcessRanks = NO_PROCESSES
    complete: frozenset[str] = frozenset()
    ras: tuple[RasStatus, ...] = ()


def survey_logs(  # noqa: PLR0913 some for each reader
    files: Iterable[str | os.PathLike[str]],
    *,
    phase_files: Iterable[str | os.PathLike[str]],
    words: Iterable[bytes] = (),
    known: Collection[str] = (),
    ranks: RanksByProcess = MappingProxyType({}),
    on_progress: Callable[[int, int], None] | None = None,
) -> LogSurvey:
    """
    Read logs once.

    Args:
        files: Logs; no folders.

        phase_files: Those of them that may show the phase of the job.

        words: What *mentioning* is about: in small letters, of five bytes or
            more.

        known: The attributes of the result that need not be found.

        ranks: Ranks of processes that other evidence shows.

        on_progress: Called with the bytes read so far, and all bytes.
    """
    sizes, missing = find_logs(files)
    if not sizes:  # loading the rules takes long
        return LogSurvey(
            scan=ScanReport(missing=missing),
            processes=ProcessReader(ranks).result(CollectiveLogs()),
        )
    parts, _ = select_parts(sizes, None)
    readers = _Readers(sizes, words, ranks)
    in_phase = frozenset(os.fspath(path) for path in phase_files)
    some = {k: x for k, x in readers.by_name.items() if k not in known}
    phase = [some.pop("phase")] if "phase" in some else []
    read_parts(
        (
            (part, [*some.values(), *(phase if part.path in in_phase else ())])
            for part in parts
        ),
        threads=default_threads(),
        on_progress=Progress(on_progress, parts, sizes).add,
    )
    return readers.result(sizes, missing)


class _Readers:
    """
    All readers of a survey.
    """

    def __init__(
        self,
        files: Collection[str],
        words: Iterable[bytes],
        known_ranks: RanksByProcess,
    ) -> None:
        # It looks into the files, so do it once.
        ranks = find_file_ranks([*files])
        self._scan = ErrorScan(ranks)
        self._collectives = RecordCollector(ranks)
        self._frameworks = read_framework_rules()
        self._phases = PhaseReader(self._frameworks)
        self._mentions = WordReader(words)
        self._processes = ProcessReader(known_ranks)
        self._ras = RasReader()
        self.by_name: dict[str, LogReader] = {
            "scan": self._scan,
            "collectives": self._collectives,
            "mentioning": self._mentions,
            "processes": self._processes,
            "ras": self._ras,
            "phase": self._phases,
        }

    def result(
        self, files: Collection[str], missing: Iterable[Missing]
    ) -> LogSurvey:
        """
        Return what they found, once all files are read.
        """
        collectives = finish(self._collectives, [*files])
        timelines = self._phases.timelines
        processes = self._processes.result(collectives)
        return LogSurvey(
            scan=self._scan.report(missing, processes),
            collectives=collectives,
            phase=make_report([*timelines.values()], self._frameworks)
            if timelines
            else None,
            mentioning=frozenset(self._mentions.files),
            processes=processes,
            complete=frozenset(
                path for path, x in timelines.items() if x.is_complete
            ),
            ras=tuple(self._ras.found),
        )


class WordReader:
    """
    Find files in which words occur; see ``engine.LogReader``.
    """

    def __init__(self, words: Iterable[bytes]) -> None:
        self.files: set[str] = set()
        self._words = frozenset(words)
        self._path = ""

    def begin(self, part: FilePart) -> None:
        """
        Begin with a file.
        """
        self._path = part.path

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return the words, until one was found in the file.
        """
        return frozenset() if self._path in self.files else self._words

    def read(self, block: Block) -> None:
        """
        Note whether one of the words was found.
        """
        if not block.places.keys().isdisjoint(self._words):
            self.files.add(self._path)

    def end(self, error: Exception | None) -> None:
        """
        Other readers report errors.
        """

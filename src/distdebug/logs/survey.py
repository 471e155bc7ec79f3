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
from .collectives.collect import RecordCollector
from .collectives.model import CollectiveLogs
from .engine import Block, FilePart, LogReader, read_parts
from .lines import find_file_ranks
from .model import ScanReport
from .phases.detect import make_report
from .phases.framework_rules import read_framework_rules
from .phases.model import PhaseReport
from .phases.reader import PhaseReader
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
    read_parts(
        ((part, readers.of(part, known, in_phase)) for part in parts),
        threads=default_threads(),
        on_progress=Progress(on_progress, parts, sizes).add,
    )
    return readers.result(sizes, missing)


class _Readers:
    """
    All readers of a survey, by the attribute of the result that they find.
    """

    def __init__(
        self,
        files: Collection[str],
        words: Iterable[bytes],
        known_ranks: RanksByProcess,
    ) -> None:
        # It looks into the files, so do it once.
        ranks = find_file_ranks([*files])
        self.scan = ErrorScan(ranks)
        self.collectives = RecordCollector(ranks)
        self.phase = PhaseReader(read_framework_rules())
        self.mentioning = WordReader(words)
        self.processes = ProcessReader(known_ranks)
        self.ras = RasReader()

    def of(
        self, part: FilePart, known: Collection[str], in_phase: Collection[str]
    ) -> list[LogReader]:
        """
        Return the readers of a file, except for what is known.
        """
        readers: dict[str, LogReader] = vars(self)
        return [
            reader
            for name, reader in readers.items()
            if name not in known
            and (reader is not self.phase or part.path in in_phase)
        ]

    def result(
        self, files: Collection[str], missing: Iterable[Missing]
    ) -> LogSurvey:
        """
        Return what they found, once all files are read.
        """
        collectives = self.collectives.result([*files])
        processes = self.processes.result(collectives)
        present = tuple(sorted(self.processes.present))
        collectives = attrs.evolve(collectives, present=present)
        timelines = self.phase.timelines
        return LogSurvey(
            scan=self.scan.report(missing, processes),
            collectives=collectives,
            phase=make_report(self.phase) if timelines else None,
            mentioning=frozenset(self.mentioning.files),
            processes=processes,
            complete=frozenset(
                path for path, x in timelines.items() if x.is_complete
            ),
            ras=tuple(self.ras.found),
        )


class WordReader(LogReader):
    """
    Find files in which words occur.
    """

    def __init__(self, words: Iterable[bytes]) -> None:
        super().__init__()
        self.files: set[str] = set()
        self._words = frozenset(words)

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return the words, until one was found in the file.
        """
        return frozenset() if self.part.path in self.files else self._words

    def read(self, block: Block) -> None:
        """
        Note whether one of the words was found.
        """
        if not block.places.keys().isdisjoint(self._words):
            self.files.add(self.part.path)

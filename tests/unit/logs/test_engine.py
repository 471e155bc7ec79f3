"""
Reading in blocks: nothing depends on where a block ends.
"""

from __future__ import annotations

import pytest

from tests.golden.cases import log_cases

from distdebug.logs import (
    detect_phase,
    engine,
    read_collective_logs,
    scan_logs,
)


# Some of the logs of the golden gate.
CASES = {
    case.name: case
    for case in list(log_cases())[::40]
    if case.name.startswith("logs")
}
WORK = (
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600015 milliseconds before timing out.\n"
)


def facts(folder):
    """
    What all readers find in the logs of a folder.
    """
    collectives = read_collective_logs(folder)
    scan, phase = scan_logs(folder), detect_phase(folder)
    return (
        sorted(map(str, collectives.records)),
        scan.findings,
        scan.harmless,
        phase.verdict,
        phase.findings,
    )


@pytest.mark.parametrize("name", CASES)
def test_small_blocks(tmp_path, monkeypatch, name):
    """
    Blocks of any size show the same.
    """
    CASES[name].write(tmp_path / "logs")
    expected = facts(tmp_path / "logs")
    # Really, blocks have 4 MiB.
    monkeypatch.setattr(engine, "_BLOCK_BYTES", 200)
    monkeypatch.setattr(engine, "BYTES_AFTER", 20_000)

    assert expected == facts(tmp_path / "logs")


@pytest.mark.parametrize("filler", range(0, 400, 10))
def test_message_over_two_blocks(tmp_path, monkeypatch, filler):
    """
    A message that a terminal broke is read once, also where a block ends in
    it.
    """
    monkeypatch.setattr(engine, "_BLOCK_BYTES", 150)
    monkeypatch.setattr(engine, "BYTES_AFTER", 1_000)
    start, end = WORK[:60], WORK[60:]
    path = tmp_path / "job.log"
    path.write_text(
        f"{'x' * filler}\nstep 1\n[rank1]: Watchdog caught collective operation "
        f"timeout: {start}\n{end}" + "step 2\n" * 400
    )

    (timeout,) = read_collective_logs(path).timeouts

    assert (7, 600.015, 3) == (timeout.seq, timeout.ran, timeout.line)


def test_lines_and_files(tmp_path):
    """
    Lines show the same as a file of them.
    """
    text = "\n".join(f"step {n}" for n in range(9)) + f"\n[rank1]: {WORK}"
    text += "torch.OutOfMemoryError: CUDA out of memory.\n"
    (tmp_path / "job.log").write_text(text)

    of_lines = read_collective_logs(iter(text.splitlines()))
    of_file = read_collective_logs(tmp_path / "job.log")

    assert [x.line for x in of_file.records] == [
        x.line for x in of_lines.records
    ]
    assert (
        detect_phase(text).verdict
        == detect_phase(tmp_path / "job.log").verdict
    )


class Reader:
    """
    Counts the bytes of each file, and fails if it shall.
    """

    def __init__(self, error=None):
        self.error = error
        self.ends = []

    def begin(self, part):
        """
        Begin to count.
        """
        self.path, self.size = part.path, 0

    def words(self, _stop):
        """
        Return none.
        """
        return frozenset()

    def read(self, block):
        """
        Count the bytes of a block.
        """
        if self.error:
            raise self.error
        self.size += block.end - block.own

    def end(self, error):
        """
        Keep what was counted.
        """
        self.ends.append((self.path[-5:], self.size, type(error)))


def test_errors_of_readers(tmp_path):
    """
    An error of a reader is not taken for a file that cannot be read.
    """
    (tmp_path / "job.log").write_text("x\n")
    reader = Reader(ValueError("not that of a file"))

    with pytest.raises(ValueError, match="not that of a file"):
        engine.read_parts(
            [(engine.FilePart(path=str(tmp_path / "job.log")), [reader])]
        )
    assert [] == reader.ends


def test_gone(tmp_path):
    """
    A file that is gone is told to all of its readers, and others are read.
    """
    (tmp_path / "b.log").write_text("x\n")
    paths = [str(tmp_path / name) for name in ("a.log", "b.log")]
    readers = [Reader(), Reader()]

    engine.read_parts((engine.FilePart(path=path), readers) for path in paths)

    for reader in readers:
        assert [
            ("a.log", 0, FileNotFoundError),
            ("b.log", 2, type(None)),
        ] == reader.ends

"""
What the status of NCCL's RAS tells.

The texts have the form that ``src/ras/client_support.cc`` of NCCL prints.
"""

from __future__ import annotations

import json

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.errors import NoDumpsError
from distdebug.logs import (
    is_ras_status,
    ras_findings,
    read_ras_status,
    survey_logs,
)


STATUS = """\
NCCL version 2.28.3 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {error}
    1         4         2         1         2         8   RUNNING      OK

Errors
======

{errors}
Warnings
========

{warnings}
"""
BEHIND = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 1 managed by process 77 on \
node 10.0.0.2

"""
MANY_BEHIND = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 9
  2 ranks have not launched any operations
  Rank 2 -- GPU 2 managed by process 74 on node 10.0.0.1
  Rank 3 -- [process information not found]

"""
MISSING = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 78 on node 10.0.0.2 managing GPU 2

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 6 -- GPU 2 managed by process 78 on node 10.0.0.2

"""
DEAD = """\
DEAD
  12 job processes are considered dead (unreachable via the RAS network)

"""
SMALL = """\
#1-2 (1af08a6c) MISMATCH
  Communicator ranks have different Broadcast operation counts
  Rank 0 has launched up to operation 4 -- GPU 0 managed by process 5 on node a
  Rank 1 has not launched any operations -- GPU 1 managed by process 6 on node b

"""


def status(errors="", warnings="", error="OK"):
    """
    A status with these errors and warnings.
    """
    return STATUS.format(errors=errors, warnings=warnings, error=error)


@pytest.fixture
def findings(tmp_path):
    """
    A function that reads what is in a file.
    """

    def read(text):
        path = tmp_path / "ras.log"
        path.write_text(text)
        if is_ras_status(path.read_bytes()[:4096]):
            return ras_findings(read_ras_status(path))
        return ras_findings(survey_logs([path], phase_files=[]).ras)

    return read


class TestText:
    @pytest.mark.parametrize(
        ("text", "cause", "ranks", "said"),
        [
            (
                status(warnings=BEHIND),
                *(Cause.RANK_NOT_ARRIVED, (5,)),
                "rank 5 launched all_reduce #6649 last, and others #6650",
            ),
            (
                status(warnings=MANY_BEHIND),
                *(Cause.RANK_NOT_ARRIVED, (2, 3)),
                "ranks 2-3 launched operation #0 last, and others #9",
            ),
            (
                status(errors=MISSING),
                *(Cause.RANK_CRASHED, (6,)),
                "rank 6 does not answer NCCL",
            ),
            (
                status(errors=DEAD),
                *(Cause.RANK_CRASHED, ()),
                "processes do not answer NCCL",
            ),
            (
                status(warnings=SMALL),
                *(Cause.RANK_NOT_ARRIVED, ()),
                "rank 1 of communicator 1af08a6c launched broadcast #0 last",
            ),
        ],
    )
    def test_told(self, text, cause, ranks, said, findings):
        """
        It is told who is behind, or does not answer.
        """
        (finding,) = findings(text)

        assert (cause, ranks) == (finding.cause, finding.ranks)
        assert finding.summary.startswith(said)

    def test_place(self, findings):
        """
        The line with the process and its node is quoted.
        """
        (finding,) = findings(status(warnings=BEHIND))

        (evidence,) = finding.evidence
        assert "line 29" == evidence.location
        assert "rank 5: GPU 1 managed by process 77 on node 10.0.0.2" == (
            evidence.quote
        )

    @pytest.mark.parametrize(
        ("before", "confidence"),
        [
            ("", ["possible"]),
            (status(), []),
            (status(warnings=BEHIND.replace("6649", "6601")), []),
            (status(warnings=BEHIND), ["likely"]),
        ],
    )
    def test_again(self, before, confidence, findings):
        """
        Who has not moved since the status before is likely stuck; who has is
        not.
        """
        found = findings(before + status(warnings=BEHIND))

        assert confidence == [x.confidence for x in found]
        assert [x == "possible" for x in confidence] == [
            "ncclras" in x.remedy for x in found
        ]


def communicator(*counts, missing=()):
    """
    A communicator in JSON.
    """
    where = {"host": "10.0.0.1", "pid": 70, "cuda_dev": 1, "nvml_dev": 1}
    return {
        "hash": "0x27a0",
        "size": len(counts) + len(missing),
        "ranks": [
            {
                "rank": rank,
                **where,
                "collective_counts": {"Broadcast": 1, "AllReduce": count},
            }
            for rank, count in enumerate(counts)
        ],
        "missing_ranks": [
            {"rank": rank, **where, "status": {"considered_dead": is_dead}}
            for rank, is_dead in missing
        ],
    }


def document(*communicators):
    """
    A status in JSON.
    """
    data = {"nccl_version": "2.28.3", "communicators": communicators}
    return json.dumps(data, indent=2)


class TestJson:
    @pytest.mark.parametrize(
        ("one", "cause", "ranks", "confidence"),
        [
            (
                communicator(5, 5, 3, 5),
                *(Cause.RANK_NOT_ARRIVED, (2,), "possible"),
            ),
            (
                communicator(5, 5, missing=[(2, False)]),
                *(Cause.RANK_CRASHED, (2,), "possible"),
            ),
            (
                communicator(5, 5, missing=[(2, True)]),
                *(Cause.RANK_CRASHED, (2,), "likely"),
            ),
        ],
    )
    def test_told(self, one, cause, ranks, confidence, findings):
        """
        JSON tells the same as text.
        """
        (finding,) = findings(document(one))

        assert (cause, ranks, confidence) == (
            *(finding.cause, finding.ranks, finding.confidence),
        )

    def test_several(self, findings):
        """
        Several documents show who has not moved; a cut one costs no other.
        """
        one = document(communicator(5, 5, 3, 5))

        (finding,) = findings(f"{one}\n{one}\n{one[:200]}")

        assert "likely" == finding.confidence

    def test_protocol(self, findings):
        """
        Whoever asks by a socket gets lines of the protocol before.
        """
        text = document(communicator(5, 5, 3, 5))

        (finding,) = findings(f"SERVER PROTOCOL 2\nOK\n{text}")

        assert (2,) == finding.ranks

    def test_no_comma(self, findings):
        """
        NCCL 2.28.9 leaves a comma out.
        """
        text = document(communicator(5, 5, 3, 5))

        damaged = text.replace("],", "]")
        (finding,) = findings(f"{damaged}\n{damaged}")

        assert ((2,), "likely") == (finding.ranks, finding.confidence)

    @pytest.mark.parametrize(
        "text",
        [
            '{"nccl_version": "2.28.3", ',
            '{"nccl_version": "2.28.3", "communicators": 7}',
            '{"nccl_version": "2.28.3", "communicators": [{"ranks": [1]}]}',
            document(communicator(5, 5, 3)).replace('"rank": 2', '"rank": -2'),
            document(communicator(5, 5, 3)).replace('"rank": 2', '"rank": 3'),
            document(communicator(5, 5)).replace('"rank": 1', '"rank": 1e999'),
            '{"nccl_version": ' + "[" * 200_000,
        ],
    )
    def test_damaged(self, text, tmp_path):
        """
        A file that is none is told with the reason.
        """
        path = tmp_path / "ras.json"
        path.write_text(text)

        with pytest.raises(ValueError, match=r"ncclras|Expecting|nested"):
            read_ras_status(path)

    def test_long_gap(self, tmp_path):
        """
        A gap after a list takes no longer the longer it is.
        """
        path = tmp_path / "ras.json"
        path.write_text(document(communicator(5, 5))[:-1] + "\n" * 1_000_000)

        with pytest.raises(ValueError, match="Expecting"):
            read_ras_status(path)

    def test_endless_line(self, tmp_path):
        """
        A line of megabytes may have the heading again and again.
        """
        path = tmp_path / "train.log"
        path.write_text('{"title": "Job summary"}, ' * 300_000)

        assert () == survey_logs([path], phase_files=[]).ras


class TestDiagnose:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("ras.log", status(warnings=BEHIND)),
            ("ras.json", document(communicator(5, 5, 5, 5, 5, 3))),
        ],
    )
    def test_verdict(self, name, text, tmp_path):
        """
        It is evidence like any other.
        """
        (tmp_path / name).write_text(text)

        verdict = diagnose(tmp_path).verdict

        assert (Cause.RANK_NOT_ARRIVED, (5,)) == (verdict.cause, verdict.ranks)

    @pytest.mark.parametrize("end", [None, -9])
    def test_no_dump(self, end, tmp_path):
        """
        Several documents, of which the last may be cut off, are no broken dump.
        """
        fine = document(communicator(5, 5, 5))
        (tmp_path / "ras.json").write_text(f"{fine}\n{fine[:end]}")

        diagnosis = diagnose(tmp_path)

        assert Cause.HEALTHY == diagnosis.verdict.cause
        assert not any(m.source for m in diagnosis.missing)

    def test_named_twice(self, tmp_path):
        """
        A file that is named besides its folder does not confirm itself.
        """
        path = tmp_path / "ras.json"
        path.write_text(document(communicator(5, 5, 3, 5)))

        assert "possible" == diagnose(tmp_path, path).verdict.confidence

    @pytest.mark.parametrize(
        "head",
        [
            "\n" * 3000,
            "Job summary\n===========\n4 nodes\n",
            status(),
        ],
    )
    def test_log_after(self, head, tmp_path):
        """
        What a log says is read, whatever it begins with.
        """
        (tmp_path / "train.log").write_text(
            f"{head}torch.OutOfMemoryError: CUDA out of memory.\n"
        )

        verdict = diagnose(tmp_path).verdict

        assert Cause.GPU_OUT_OF_MEMORY == verdict.cause

    def test_other_summary(self, tmp_path):
        """
        The summary of another program is no evidence that all is well.
        """
        path = tmp_path / "slurm.out"
        path.write_text("Job summary\n===========\n4 nodes\n")

        with pytest.raises(NoDumpsError):
            diagnose(tmp_path)

    @pytest.mark.parametrize("end", ["", "\nJob summary: 8 ranks\n"])
    def test_other_log(self, end, tmp_path):
        """
        A log of training that speaks of NCCL is no status.
        """
        (tmp_path / "train.log").write_text(
            f"NCCL version 2.28.3+cuda13.0{end}\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
        )

        verdict = diagnose(tmp_path).verdict

        assert Cause.GPU_OUT_OF_MEMORY is verdict.cause

    def test_healthy(self, tmp_path):
        """
        A status without errors is that of a job that may be healthy.
        """
        (tmp_path / "ras.log").write_text(status())

        assert diagnose(tmp_path).is_healthy

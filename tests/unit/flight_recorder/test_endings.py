"""
Whether a rank ended by itself, or because others did.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.flight_recorder import (
    Dumps,
    Sidecar,
    SidecarFrame,
    SidecarGroup,
    analyze_dumps,
    exit_sidecars,
    is_collective_error,
    is_keyboard_interrupt,
    sigterm_time_s,
)
from distdebug.testing import SimulatedJob


WORKER = "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
GLOO = "RuntimeError: [gloo/x.cc:8] Connection closed by peer"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("RuntimeError: [../third_party/gloo/x.cc:81] Timed out", True),
        ("RuntimeError: Connection closed by peer [10.0.0.1]:9", True),
        ("RuntimeError: NCCL error in: foo.cpp", True),
        ("DistBackendError: anything", True),
        ("torch.distributed.DistStoreError: wait timeout", True),
        ("RuntimeError: DataLoader timed out after 30 seconds", False),
        ("RuntimeError: shape mismatch", False),
        ("TimeoutError: timed out", False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("botocore.exceptions.ReadTimeoutError: timed out", False),
        ("ValueError: no such backend: nccl", False),
        ("", False),
    ],
)
def test_failed_in_call(error, expected):
    """
    Torch's own errors, and what it raises as RuntimeError, come out of calls;
    the time-out of another socket does not.
    """
    assert expected == is_collective_error(error)


@pytest.mark.parametrize(
    ("error", "function", "expected"),
    [
        (GLOO, "recv", (Cause.UNKNOWN, (2,))),
        (GLOO, "monitored_barrier", (Cause.UNKNOWN, (2,))),
        (GLOO, "all_reduce", (Cause.COLLECTIVE_STUCK_IN_FLIGHT, (1, 5))),
        (GLOO, "", (Cause.COLLECTIVE_STUCK_IN_FLIGHT, (1, 5))),
        ("ValueError: bad", "recv", (Cause.RANK_NOT_ARRIVED, (2,))),
    ],
)
def test_failed_off_record(dumps_of, error, function, expected):
    """
    Who failed in a receive or a barrier, which Gloo does not record, did not
    fail in the call before, as who failed in that one; and that it is not in
    the next one is no fault of it.
    """
    job = SimulatedJob(6, backend="gloo")
    pairs = [job.new_group(pair, "dp") for pair in ([0, 2], [3, 4], [1, 5])]
    for pair in pairs:
        job.collective("all_reduce", pair)
    job.collective("all_reduce", pairs[0], ranks=[0])
    job.collective("all_reduce", pairs[1], ranks=[3])
    path = "torch/distributed/distributed_c10d.py"
    stack = (
        *([SidecarFrame(function, path, 2799)] if function else []),
        SidecarFrame("recv", "train.py", 7),
    )
    calm = Sidecar(
        *("", 2, 6, "n", 1, 0.0, 0.0, "exception"),
        groups=tuple(
            SidecarGroup(g.name, g.desc, g.ranks, "gloo") for g in job.groups
        ),
    )
    failed = calm._replace(error=error, threads=(("MainThread", stack),))
    sidecars = {
        r: (failed if r in {1, 2, 5} else calm)._replace(rank=r)
        for r in range(6)
    }

    report = analyze_dumps(dumps_of(job, sidecars=sidecars, missing=[4]))

    assert {(Cause.RANK_CRASHED, (4,)), expected} == {
        (f.cause, f.ranks) for f in report.findings
    }


def test_was_interrupted():
    """
    Ctrl-C is how a person ends a job that hangs.
    """
    assert is_keyboard_interrupt("KeyboardInterrupt: ")
    assert not is_keyboard_interrupt("ValueError: KeyboardInterrupt")


def noted(*words):
    """
    What each rank wrote: lists of reasons, times, and errors.
    """
    sidecars = [
        [
            Sidecar("", rank, len(words), "n", 1, 0.0, when, reason, error)
            for reason, when, error in of_rank
        ]
        for rank, of_rank in enumerate(words)
    ]
    return Dumps(
        by_rank={},
        groups=(),
        ops=(),
        sidecars={r: notes[-1] for r, notes in enumerate(sidecars) if notes},
        earlier={r: tuple(notes[:-1]) for r, notes in enumerate(sidecars)},
    )


TOLD = ("SIGTERM", 5.0, "")

# Data loaders and pools say when a process of theirs has gone.
CHILDREN = [
    WORKER,
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: x",
    "concurrent.futures.process.BrokenProcessPool: A process in",
    "BrokenProcessPool: A process in the pool was terminated",
]
NO_CHILDREN = [
    "ValueError: x",
    "RuntimeError: DataLoader timed out after 30 seconds",
    "ValueError: DataLoader worker (pid 7) exited unexpectedly",
]


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (5.0, [[TOLD], [TOLD]]),
        (5.0, [[("request", 1.0, ""), TOLD], [("SIGTERM", 5.2, "")]]),
        (5.0, [[TOLD, ("exception", 5.1, "ValueError: x")], [TOLD]]),
        (5.0, [[TOLD], [("exception", 5.1, "RuntimeError: gloo: reset")]]),
        # The child got the signal as well, and was quicker.
        *((5.0, [[TOLD], [("exception", 4.95, error)]]) for error in CHILDREN),
        (None, [[TOLD], [("exception", 4.8, WORKER)]]),
        *(
            (None, [[TOLD], [("exception", 4.95, error)]])
            for error in NO_CHILDREN
        ),
        (None, [[TOLD], [("request", 1.0, "")]]),
        (None, [[TOLD], [("exit", 4.0, "")]]),
        (None, [[TOLD], []]),
        (None, []),
    ],
)
def test_ended(expected, words):
    """
    A job was ended from outside if the first sign of its end is a signal.
    """
    assert expected == sigterm_time_s(noted(*words))


@pytest.mark.parametrize(
    ("arrived_s", "written_s", "host", "reason", "is_absent"),
    [
        (2.0, 3.0, "n", "SIGTERM", True),
        (2.0, 3.0, "n", "exception", True),
        (2.5, 3.0, "m", "SIGTERM", True),
        (-1.0, 3.0, "n", "SIGTERM", False),
        # Clocks of nodes differ.
        (1.0, 3.0, "m", "SIGTERM", False),
        # It saves a checkpoint on SIGTERM, for example.
        (2.0, 60.0, "n", "exception", False),
    ],
)
def test_went_on(dumps_of, arrived_s, written_s, host, reason, is_absent):  # noqa: PLR0917 the cases
    """
    What a rank did when SIGTERM had ended the others shows nothing of the hang.

    Args:
        arrived_s: When it arrived, in seconds after the others' SIGTERM.

        written_s: When it wrote its dump.
    """
    job = SimulatedJob(3, backend="gloo")
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1])
    told_s = job.records[0][-1].created + 40
    job.dump(0)
    job.dump(1)
    job.wait(told_s + arrived_s - job.clock)
    job.collective("all_reduce", ranks=[2])
    notes = [
        (told_s, "SIGTERM", "n"),
        (told_s, "SIGTERM", "n"),
        (told_s + written_s, reason, host),
    ]
    sidecars = {
        rank: Sidecar("", rank, 3, where, 1, 0.0, when, why)
        for rank, (when, why, where) in enumerate(notes)
    }
    told = sidecars[2]._replace(reason="SIGTERM")
    dumps = attrs.evolve(
        dumps_of(job, sidecars=sidecars), earlier={2: (told,)}
    )

    verdict = analyze_dumps(dumps).verdict

    absent = (Cause.RANK_NOT_ARRIVED, (2,))
    assert is_absent == (absent == (verdict.cause, verdict.ranks))


def test_goes_on(dumps_of):
    """
    A job that works makes calls until it is ended, and is not torn apart.
    """
    job = SimulatedJob(3, backend="gloo")
    told_s = job.clock + 10
    for _ in range(23):
        job.collective("all_reduce")
        job.wait(0.5)
    job.collective("all_reduce", ranks=[0, 1])
    job.dump(0)
    job.dump(1)
    job.wait(0.5)
    job.collective("all_reduce", ranks=[2])
    notes = [(told_s, "SIGTERM"), (told_s + 0.7, "SIGTERM")]
    notes += [(told_s + 3, "exception")]
    sidecars = {
        rank: Sidecar("", rank, 3, "n", 1, 0.0, when, why)
        for rank, (when, why) in enumerate(notes)
    }
    told = sidecars[2]._replace(reason="SIGTERM")
    dumps = attrs.evolve(
        dumps_of(job, sidecars=sidecars), earlier={2: (told,)}
    )

    assert Cause.HEALTHY is analyze_dumps(dumps).verdict.cause


def test_last_words():
    """
    Who was only asked for a dump goes on; an error counts at any time.
    """
    error = ("request", 3.0, "ValueError: x")
    dumps = noted([("start", 0.0, ""), ("request", 1.0, ""), error, TOLD])

    assert [3.0, 5.0] == [s.written for s in exit_sidecars(dumps, 0)]
    assert () == exit_sidecars(dumps, 1)

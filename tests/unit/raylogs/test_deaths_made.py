"""
Who died first in sessions that were made up, line by line?
"""

from __future__ import annotations

import os

from pathlib import Path

import pytest

from distdebug.findings import Cause, Evidence
from distdebug.raylogs import (
    Death,
    Deaths,
    LogPart,
    RaySession,
    death_findings,
    death_of,
    find_deaths,
)
from distdebug.raylogs.deaths.core import read_core
from distdebug.raylogs.deaths.last_words import hear, read_end
from distdebug.raylogs.deaths.memory import memory_notes
from distdebug.raylogs.deaths.notes import Exit
from distdebug.raylogs.deaths.ranks import rank_of
from distdebug.raylogs.deaths.scan import read_records
from distdebug.raylogs.deaths.wording import clock


NODE = "a" * 56
OTHER = "b" * 56
LOST = "exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits "
UNTRACED = LOST + "with a connection error code 2. End of file."
WATCHDOG = (
    "[rank{rank}]:[E221 02:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank "
    "{rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
    "*** SIGABRT received at time=1771639200 on cpu 1 ***\n"
    "Fatal Python error: Aborted\n"
)


def worker(number: int) -> str:
    """
    What Ray calls a worker.
    """
    return f"{number:056x}"


def stamp(second: float, program: str = "gcs_server") -> str:
    """
    How a record of Ray begins.
    """
    minute, rest = divmod(second, 60)
    clock = f"02:{minute:02.0f}:{rest:06.3f}".replace(".", ",")
    return f"[2026-02-21 {clock} W 1 1] ({program})"


def exits(number: int, second: float, how: str, node: str = NODE) -> str:
    """
    The line of the head about the end of a worker.
    """
    return (
        f"{stamp(second)} gcs_worker_manager.cc:70: Reporting worker exit, "
        f"worker id = {worker(number)}, node id = {node}, "
        f"address = 10.0.0.1, {how}. Unintentional worker failures have been "
        "reported. If there are lots of this logs, …\n"
    )


def placed(number: int, node: str = NODE) -> str:
    """
    The line of the head about the birth of an actor.
    """
    return (
        f"{stamp(0)} gcs_actor_scheduler.cc:424: Submitting actor creation "
        f"task to worker. actor_id={number:024x}01000000 "
        f"worker_id={worker(number)} node_id={node} job_id=01000000\n"
    )


class Made:
    """
    A session in a folder, whose logs are written by a test.
    """

    def __init__(self, root: Path, node: str = NODE) -> None:
        self.logs = root / "logs"
        self.logs.mkdir(parents=True)
        self.session = RaySession(
            root=root,
            logs=self.logs,
            name=root.name,
            host="node-1",
            ip="10.0.0.1",
            node_id=node,
        )

    def write(self, name: str, text: str) -> Path:
        """
        Write one of its logs.
        """
        path = self.logs / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def err(self, number: int, text: str, *, pid: int | None = None) -> Path:
        """
        Write what a worker printed to its standard error.
        """
        own = number if pid is None else pid
        name = f"worker-{worker(number)}-01000000-{own}.err"
        actor = f":job_id:01000000\n:actor_name:Trainer(rank={number})\n"
        return self.write(name, actor + text)

    def core(self, number: int, text: str) -> Path:
        """
        Write what the library of Ray wrote in a worker.
        """
        name = f"python-core-worker-{worker(number)}_{number}.log"
        return self.write(name, text)

    def deaths(self) -> Deaths:
        """
        Who died in it?
        """
        return find_deaths(self.session)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """
    An empty session.
    """
    return Made(tmp_path / "session_2026-02-21_02-00-00_000000_1")


def test_who_waited_in_vain_follows(made: Made) -> None:
    """
    A watchdog that fires first blames whoever vanished a little later.
    """
    made.err(1, WATCHDOG.format(rank=1))
    made.err(2, "step 7\n")
    made.write(
        "gcs_server.out", exits(1, 10, UNTRACED) + exits(2, 30, UNTRACED)
    )

    deaths = made.deaths()

    assert ["collective_timeout", "killed_or_exited"] == [
        x.kind for x in deaths.deaths
    ]
    assert [False, True] == [x.is_first for x in deaths.deaths]
    assert [True, False] == [x.is_collateral for x in deaths.deaths]
    assert "after another one" in death_findings(deaths)[-1].summary


def test_who_waited_in_vain_alone_is_first(made: Made) -> None:
    """
    If nobody else died, the time-out is what the log tells.
    """
    made.err(1, WATCHDOG.format(rank=1))
    made.write("gcs_server.out", exits(1, 10, UNTRACED))

    (finding,) = death_findings(made.deaths())

    assert (Cause.COLLECTIVE_TIMEOUT, (1,)) == (finding.cause, finding.ranks)


def test_a_death_of_much_later_is_no_cause(made: Made) -> None:
    """
    What happens an hour after a time-out is another matter.
    """
    made.err(1, WATCHDOG.format(rank=1))
    made.write(
        "gcs_server.out", exits(1, 10, UNTRACED) + exits(2, 3000, UNTRACED)
    )

    deaths = made.deaths()

    assert [True, False] == [x.is_first for x in deaths.deaths]


def test_a_lost_node_precedes_those_that_complain(made: Made) -> None:
    """
    The head tells of a node late; who complains of it follows all the same.
    """
    made.err(
        1,
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "what():  Connection closed by peer [10.0.0.9]:1\n"
        "Fatal Python error: Aborted\n",
    )
    made.write(
        "gcs_server.out",
        placed(5, OTHER)
        + exits(1, 10, UNTRACED)
        + f"{stamp(25)} gcs_node_manager.cc:395: The node with node id: {OTHER}"
        " and address: 10.0.0.9 and node name: 10.0.0.9 has been marked dead "
        "because the detector has missed too many heartbeats from it.\n",
    )

    deaths = made.deaths()

    first = deaths.first
    assert first is not None
    assert ("node_died", "10.0.0.9") == (first.kind, first.ip)
    assert [1, 5] == sorted(
        int(x.worker_id, 16) for x in deaths.deaths if x.is_collateral
    )
    assert "Node 10.0.0.9 was lost" in death_findings(deaths)[0].summary


def test_all_that_follows_the_driver_is_no_cause(made: Made) -> None:
    """
    Who dies after the driver of its job was gone follows from that.
    """
    made.write(
        "gcs_server.out",
        placed(1)
        + f"{stamp(9)} gcs_job_manager.cc:156: Marking job as finished. "
        "job_id=01000000\n" + exits(1, 10, UNTRACED),
    )

    deaths = made.deaths()

    assert deaths.first is None
    assert () == death_findings(deaths)


def test_a_driver_that_is_killed_is_the_cause(made: Made) -> None:
    """
    A driver that vanishes comes first, and its actors follow.
    """
    driver = "01000000" + "f" * 48
    made.write(f"python-core-driver-{driver}_77.log", "")
    line = exits(1, 9, UNTRACED).replace(worker(1), driver)
    made.write("gcs_server.out", placed(2) + line)
    made.core(
        2,
        f"{stamp(9.1)} raylet_ipc_client.cc:133: RayletIpcClient::Disconnect, "
        "exit_type=INTENDED_SYSTEM_EXIT, exit_detail=Worker exits because the "
        "actor is killed. The actor is dead because its owner has died. "
        f"Owner Id: {driver} Owner Ip address: 10.0.0.1, "
        "has creation_task_exception_pb_bytes=0\n",
    )

    deaths = made.deaths()

    first = deaths.first
    assert first is not None
    assert ("driver", 77, "01000000") == (first.actor, first.pid, first.job_id)
    assert "job_ended" == deaths.deaths[1].kind
    assert "Driver (pid 77" in death_findings(deaths)[0].summary


def test_a_stopped_node_is_no_cause(made: Made) -> None:
    """
    Workers that end while somebody stops their node are not to blame.
    """
    made.write(
        "raylet.out",
        f"{stamp(11, 'raylet')} main.cc:1174: received SIGTERM. Existing "
        "local drain request = None\n",
    )
    made.core(
        1,
        f"{stamp(11.5)} core_worker.cc:1075: Shutting down the core worker "
        "because the local raylet failed. Check out the raylet.out log file.\n",
    )
    made.core(
        2,
        f"{stamp(9)} core_worker.cc:804: Exit signal received, exit_type="
        "SYSTEM_ERROR, detail=Worker exits unexpectedly by a signal. "
        "SystemExit is raised. Exit code: 1. The process receives a SIGTERM.\n",
    )

    deaths = made.deaths()

    assert {"intended", "terminated"} == {x.kind for x in deaths.deaths}
    assert deaths.first is None
    assert () == death_findings(deaths)


def stopped_job(driver_ends: float, node_ends: float) -> str:
    """
    The lines of the head about a driver that takes its own node with it.
    """
    return (
        f"{stamp(driver_ends)} gcs_job_manager.cc:156: Marking job as "
        "finished. job_id=01000000\n"
        f"{stamp(node_ends)} gcs_node_manager.cc:734: , death reason = "
        "EXPECTED_TERMINATION, death message = received SIGTERM node_id="
        f"{NODE} node_name=10.0.0.1\n"
    )


@pytest.mark.parametrize(
    ("died", "how", "kind"),
    [
        (9.0, UNTRACED, "killed_or_exited"),
        (9.499, UNTRACED, "killed_or_exited"),
        (9.3, f"{LOST}. Worker exits with an exit code 3.", "exit_code"),
        (9.0, f"{LOST}. The process receives a SIGTERM.", "terminated"),
    ],
    ids=["second_before", "at_once", "exit_code", "sigterm"],
)
def test_who_ends_its_driver_does_not_follow_from_it(
    made: Made, died: float, how: str, kind: str
) -> None:
    """
    Who died before the driver of a job did is what ended it.
    """
    made.err(1, "")
    made.write(
        "gcs_server.out",
        placed(1) + exits(1, died, how) + stopped_job(9.5, 9.75),
    )

    deaths = made.deaths()

    first = deaths.first
    assert first is not None
    assert (kind, 1) == (first.kind, first.rank)
    assert not first.is_collateral
    assert 1 == len(death_findings(deaths))


def test_a_crash_right_before_the_end_is_the_cause(made: Made) -> None:
    """
    A signal half a second before the end of the driver is what ended it.
    """
    made.err(1, "*** SIGSEGV received at time=1771639209 on cpu 0 ***\n")
    made.write(
        "gcs_server.out",
        placed(1) + exits(1, 9.3, UNTRACED) + stopped_job(9.8, 9.8),
    )

    (finding,) = death_findings(made.deaths())

    assert (Cause.NATIVE_CRASH, (1,)) == (finding.cause, finding.ranks)


@pytest.mark.parametrize(
    ("died", "how"),
    [
        (9.6, UNTRACED),
        (9.5, UNTRACED),
        (9.4, f"{LOST}. The process receives a SIGTERM."),
        (9.9, f"{LOST}. The process receives a SIGTERM."),
    ],
    ids=["after", "same_time", "sigterm_at_once", "sigterm_after"],
)
def test_who_ends_with_its_driver_follows(
    made: Made, died: float, how: str
) -> None:
    """
    Who is told to be gone after its driver, or was stopped with it, follows.
    """
    made.err(1, "")
    made.write(
        "gcs_server.out",
        placed(1) + exits(1, died, how) + stopped_job(9.5, 9.7),
    )

    deaths = made.deaths()

    assert [True] == [x.is_collateral for x in deaths.deaths]
    assert () == death_findings(deaths)


@pytest.mark.parametrize(
    ("died", "is_first"), [(9.9, False), (9.0, True)], ids=["close", "before"]
)
def test_a_node_takes_only_those_with_it_that_end_at_once(
    made: Made, died: float, is_first: bool
) -> None:
    """
    Without a driver that tells more, only the time tells who was stopped.
    """
    stop = stopped_job(9, 10).splitlines(keepends=True)[1]
    made.write("gcs_server.out", exits(1, died, UNTRACED) + stop)

    deaths = made.deaths()

    assert is_first == (deaths.first is not None)


def test_a_core_log_tells_line_and_time_of_an_end(made: Made) -> None:
    """
    The end of a worker is quoted with its own line, wherever that is.
    """
    before = f"{stamp(1, 'x')} core_worker.cc:1: hello\n" * 2
    path = made.core(
        3,
        before
        + f"{stamp(9)} raylet_ipc_client.cc:133: RayletIpcClient::Disconnect, "
        "exit_type=USER_ERROR, exit_detail=gone, has "
        "creation_task_exception_pb_bytes=0\n",
    )

    (note,) = read_core(path, worker(3), 3)

    assert isinstance(note, Exit)
    assert ("USER_ERROR", "gone", 3) == (note.exit_type, note.detail, note.pid)
    assert "line 3" == note.seen.location
    assert note.seen.quote.startswith(stamp(9))
    assert 1771639209.0 == note.time


def test_a_node_that_is_stopped_too_early_is_the_cause(made: Made) -> None:
    """
    A node that somebody stops while its job goes on is lost to the job.
    """
    end = "job_manager.cc:156: Marking job as finished. job_id=01000000\n"
    sigterm = "exit_type = SYSTEM_ERROR, exit_detail = receives a SIGTERM."
    made.write(
        "gcs_server.out",
        placed(1, OTHER)
        + exits(1, 9, sigterm, OTHER)
        + f"{stamp(10)} gcs_node_manager.cc:734: , death reason = "
        f"EXPECTED_TERMINATION, death message = received SIGTERM node_id="
        f"{OTHER} node_name=10.0.0.9\n" + f"{stamp(40)} {end}",
    )

    deaths = made.deaths()

    first = deaths.first
    assert first is not None
    assert ("", OTHER) == (first.worker_id, first.node_id)
    assert "received SIGTERM while its job went on" == first.detail
    assert [True] == [x.is_collateral for x in deaths.deaths if x.worker_id]


def test_a_preempted_node_is_the_cause(made: Made) -> None:
    """
    A node that is taken away is lost, in whatever order that happens.
    """
    made.write(
        "gcs_server.out",
        placed(1, OTHER)
        + f"{stamp(10)} gcs_node_manager.cc:734: , death reason = "
        "AUTOSCALER_DRAIN_PREEMPTED, death message = preempted "
        f"node_id={OTHER} node_name=10.0.0.9\n",
    )

    (finding, rest) = death_findings(made.deaths())

    assert "was lost (preempted)" in finding.summary
    assert "on a node that was lost" in rest.summary


def test_a_raylet_that_vanishes_is_a_lost_node(made: Made) -> None:
    """
    Without the log of the head, its workers tell that Ray on a node is gone.
    """
    made.err(1, "step\n")
    made.core(
        1,
        f"{stamp(11)} core_worker.cc:1075: Shutting down the core worker "
        "because the local raylet failed. Check out the raylet.out log file.\n",
    )

    deaths = made.deaths()

    assert ["node_died"] == [x.kind for x in deaths.deaths]
    assert "was lost" in death_findings(deaths)[0].summary


def test_the_kernel_is_believed(made: Made) -> None:
    """
    Who is known to have been killed by the kernel died for want of memory.
    """
    made.err(1, "step\n")
    made.write("gcs_server.out", exits(1, 10, UNTRACED))

    found = [
        find_deaths(made.session, oom_kills=kills).deaths[0].kind
        for kills in ({("node-1", 1)}, {("", 1)}, {("node-2", 1)}, {("", 2)})
    ]

    assert ["host_oom", "host_oom"] + ["killed_or_exited"] * 2 == found


def test_workers_that_never_start_are_told(made: Made) -> None:
    """
    Processes that do not register in time are a finding of their own.
    """
    line = (
        f"{stamp(70, 'raylet')} worker_pool.cc:581: Some workers of the worker "
        "process(811) have not registered within the timeout. The process is "
        "dead, probably it crashed during start.\n"
    )
    made.write("raylet.out", line * 2)

    (finding,) = death_findings(made.deaths())

    assert Cause.RAY_WORKER_START_TIMEOUT == finding.cause
    assert "2 times" in finding.summary
    assert "process(811)" in finding.evidence[0].quote


def test_a_crash_is_told_by_the_worker_alone(made: Made) -> None:
    """
    If no other log is there, the error log of a worker tells of its crash.
    """
    made.err(
        3,
        "CUDA error: an illegal memory access was encountered\n"
        "*** SIGABRT received at time=1771639200 on cpu 1 ***\n"
        "PC: @     0x7f00  (unknown)  raise\n"
        "    @     0x7f01        128  c10::cuda::c10_cuda_check()\n"
        "Fatal Python error: Aborted\n\n"
        "Current thread 0x00007f00 (most recent call first):\n"
        '  File "/job/model.py", line 12 in forward\n'
        '  File "/job/train.py", line 3 in step\n\n'
        "Thread 0x00007f01 (most recent call first):\n"
        '  File "/lib/threading.py", line 9 in wait\n',
    )
    made.err(4, "all is well\n")

    deaths = made.deaths()

    (death,) = deaths.deaths
    assert ("native_crash", 3, 1771639200.0) == (
        death.kind,
        death.rank,
        death.time,
    )
    assert ["forward", "step"] == [x.function for x in death.python_frames]
    assert 2 == len(death.native_frames)
    (finding,) = death_findings(deaths)
    assert "illegal memory access" in finding.summary


def test_gpu_memory_in_init_is_told_as_such(made: Made) -> None:
    """
    What an exception says decides on the cause.
    """
    how = "exit_type = USER_ERROR, exit_detail = exception in the init"
    made.err(
        1,
        "Traceback (most recent call last):\n"
        '  File "/job/a.py", line 5, in __init__\n'
        "    x()\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
    )
    made.write("gcs_server.out", exits(1, 10, how))

    (finding,) = death_findings(made.deaths())

    assert Cause.GPU_OUT_OF_MEMORY == finding.cause
    assert finding.location is not None
    assert 5 == finding.location.line


@pytest.mark.parametrize(
    ("detail", "kind"),
    [
        ("Worker exits with an exit code 3.", "exit_code"),
        ("The process receives a SIGTERM.", "terminated"),
        ("The node was preempted.", "node_died"),
        ("The leased worker has unrecoverable failure.", "killed_or_exited"),
        ("Worker was killed: node running low on memory", "ray_oom"),
    ],
)
def test_words_of_ray_are_understood(
    made: Made, detail: str, kind: str
) -> None:
    """
    What Ray says about an end tells its way.
    """
    how = f"exit_type = SYSTEM_ERROR, exit_detail = {detail}"
    made.write("gcs_server.out", exits(1, 10, how))

    (death,) = made.deaths().deaths

    assert kind == death.kind
    assert detail == death.detail or death.detail == detail.rstrip(".")


def test_guesses_of_ray_are_no_evidence(made: Made) -> None:
    """
    That Ray lists memory and crashes as possible reasons says nothing.
    """
    how = (
        UNTRACED + " Some common causes include: (1) the process was killed "
        "by the OOM killer due to high memory usage, (2) ray stop --force was "
        "called, or (3) the worker crashed unexpectedly due to SIGSEGV"
    )
    made.write("gcs_server.out", exits(1, 10, how))

    (death,) = made.deaths().deaths

    assert "killed_or_exited" == death.kind


def test_somebody_else_may_have_the_memory(made: Made) -> None:
    """
    If what Ray killed is not what had the most memory, that is said.
    """
    how = (
        "exit_type = NODE_OUT_OF_MEMORY, exit_detail = Task was killed due to "
        f"the node running low on memory.\nMemory on the node (IP: 10.0.0.1, "
        f"ID: {NODE}) where the task (actor ID: 0, name=T.f, pid=1, memory "
        "used=0.50GB) was running. Ray killed this worker (ID: "
        f"{worker(1)}). Top 10 memory users:\nPID\tMEM(GB)\tCOMMAND\n"
        "77\t12.50\tpython load.py\n1\t0.50\tray::T.f\n"
    )
    made.write("gcs_server.out", exits(1, 10, how))

    (finding,) = death_findings(made.deaths())

    assert Cause.HOST_OUT_OF_MEMORY == finding.cause
    assert "held 512 MiB" in finding.summary
    assert "process 77 (python load.py) held 12.5 GiB" in finding.summary


def test_nothing_is_told_of_nobody(made: Made) -> None:
    """
    An empty session has neither deaths nor findings, and says what it lacks.
    """
    deaths = made.deaths()

    assert () == deaths.deaths
    assert "no death is told" == str(deaths)
    assert () == death_findings(deaths)
    assert 1 == len(deaths.missing)


def test_bad_files_lose_no_others(made: Made) -> None:
    """
    A pipe or junk in place of a log is missing, and the rest is read.
    """
    os.mkfifo(made.logs / "raylet.out")
    (made.logs / "events").mkdir()
    junk = b'{"a": \n[1]\n{"message": 3}\n' + b"\xff\x00" * 99 + b"\n"
    (made.logs / "events" / "event_RAYLET.log").write_bytes(junk)
    made.write(
        "gcs_server.out",
        "Reporting worker exit without a time\n"
        f"{stamp(1)} Reporting worker exit, worker id = 5\n"
        f"{stamp(1)} x: Node is dead, death reason = FOO\n"
        f"{stamp(1)} x: Marking job as finished.\n"
        f"{stamp(1)} x: Actor creation task of nobody\n"
        + exits(1, 10, UNTRACED),
    )

    deaths = made.deaths()

    assert [1] == [int(x.worker_id, 16) for x in deaths.deaths]


def test_a_log_that_cannot_be_read_is_missing(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What the system refuses is said to be missing.
    """

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    made.write("gcs_server.out", exits(1, 10, UNTRACED))
    monkeypatch.setattr("distdebug.raylogs.deaths.scan.open_log", refuse)

    deaths = made.deaths()

    assert () == deaths.deaths
    assert "Permission denied" == deaths.missing[0].reason


def test_orders_without_times_do_not_fail(made: Made) -> None:
    """
    A death whose time is unknown comes last.
    """
    made.core(
        1,
        "Disconnect, exit_type=SYSTEM_ERROR, exit_detail=Worker exits with an "
        "exit code 9., has creation_task_exception_pb_bytes=0\n",
    )
    made.err(1, "ConnectionError: Connection closed by peer\n")
    made.write("gcs_server.out", exits(2, 10, UNTRACED))

    deaths = made.deaths()

    assert [2, 1] == [int(x.worker_id, 16) for x in deaths.deaths]
    assert [True, False] == [x.is_first for x in deaths.deaths]
    assert deaths.deaths[1].is_collateral


def test_a_record_over_the_border_of_blocks_is_found(tmp_path: Path) -> None:
    """
    Records are found wherever a block ends, with all their lines.
    """
    path = tmp_path / "gcs_server.out"
    other = f"{stamp(1)} nothing of interest\n"
    wanted = f"{stamp(2)} here is the WORD\nand more of it\n"
    count = (1 << 20) // len(other)
    for shift in range(len(other)):
        pad = "x" * shift + "\n"
        path.write_text(pad + other * count + wanted + other)

        (record,) = read_records(path, (b"WORD",))

        assert record.text.endswith("the WORD\nand more of it")
        assert count + 2 == record.number


def test_records_are_bounded(tmp_path: Path) -> None:
    """
    A record that never ends is cut, and one without a word left out.
    """
    path = tmp_path / "raylet.out"
    path.write_text(f"{stamp(1)} WORD\n" + "line\n" * 500_000)

    (record,) = read_records(path, (b"WORD",))

    assert 120 == len(record.text.splitlines())
    assert [] == list(read_records(path, (b"OTHER",)))


def test_an_unfinished_last_line_counts(tmp_path: Path) -> None:
    """
    A log that grows may end within a line.
    """
    path = tmp_path / "raylet.out"
    path.write_text(f"{stamp(1)} WORD")

    (record,) = read_records(path, (b"WORD",))

    assert record.text.endswith("WORD")


@pytest.mark.parametrize(
    ("names", "text", "rank"),
    [
        (("Trainer(rank=3)",), "", 3),
        (("trainer_rank12",), "", 12),
        (("Worker[Rank 5]",), "", 5),
        (("Worker(local_rank=3)",), "", None),
        (("Worker(local_rank=3, global_rank=11)",), "", 11),
        (("Trainer",), "starts RANK=4 WORLD_SIZE=8", 4),
        (("Trainer",), "LOCAL_RANK=4", None),
        (("Trainer",), "[rank7]:[E221 02:00] x", 7),
        (("Trainer",), "[rank7]: x\n[rank8]: y", None),
        ((None, "a"), "rank 1 is running, rank 2 is not", None),
        (("Frankfurt",), "", None),
    ],
)
def test_ranks_are_only_taken_from_who_tells_them(
    names: tuple[str | None, ...], text: str, rank: int | None
) -> None:
    """
    A global rank comes from a name or from clear words, else it is unknown.
    """
    found = rank_of(names, text)

    assert rank == found


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("Fatal Python error: Bus error", "SIGBUS"),
        ("Fatal Python error: Illegal instruction", "SIGILL"),
        ("Fatal Python error: Floating-point exception", "SIGFPE"),
        ("Fatal Python error: none of the user's threads", None),
        ("the test expects a segfault", None),
    ],
)
def test_signals_are_heard(text: str, signal: str | None) -> None:
    """
    Signals are known by what Python prints of them.
    """
    words = hear(text)

    assert signal == words.signal


def test_the_end_goes_over_parts(tmp_path: Path) -> None:
    """
    The end of a log that was rotated is read out of several files.
    """
    paths = [tmp_path / "x.err.1", tmp_path / "x.err"]
    paths[0].write_text("older\n" * 20_000)
    paths[1].write_text("newest\n")
    gone = LogPart(path=tmp_path / "x.err.2")

    text = read_end([gone, *(LogPart(path=x) for x in paths)])

    assert text.endswith("older\nnewest\n")
    assert 1 << 16 == len(text)


def test_sizes_that_are_none_count_as_nothing() -> None:
    """
    A number that was damaged does not stop the reading.
    """
    text = "Selected to kill: x pid=3, actual memory used=1.2.3GB, worker"

    (note,) = memory_notes(text)

    assert (3, 0) == (note.pid, note.size)


def test_times_are_written_for_people() -> None:
    """
    Times are in UTC, and impossible ones are left out.
    """
    shown = [clock(0.0), clock(None), clock(1e99)]

    assert ["1970-01-01 00:00:00", "", ""] == shown


def test_a_number_that_two_nodes_use_is_not_guessed() -> None:
    """
    The same process number on two nodes belongs to nobody without a place.
    """
    twins = [
        Death(kind="exit_code", worker_id=worker(n), pid=5, node_id=node)
        for n, node in ((1, NODE), (2, OTHER))
    ]

    found = [death_of(twins, pid=5), death_of(twins, pid=5, place=OTHER)]

    assert [None, twins[1]] == found


def test_the_latest_that_nobody_wanted_is_taken() -> None:
    """
    An actor that was started again dies again; intended ends come last.
    """
    kinds = ("exit_code", "exit_code", "intended")
    deaths = [
        Death(kind=kind, worker_id=worker(n), rank=1, time=float(n))
        for n, kind in enumerate(kinds)
    ]

    found = death_of(deaths, rank=1)

    assert deaths[1] is found


def test_hostile_names_print_as_one_line() -> None:
    """
    Names out of logs lose their controls before they are shown.
    """
    death = Death(
        kind="native_crash",
        worker_id=worker(1),
        actor="\x1b[31mevil\nname",
        signal="SIGSEGV",
        is_first=True,
        evidence=(Evidence(kind="log", source="x", quote="a\x1b[2Jb"),),
    )

    (finding,) = death_findings(Deaths(deaths=(death,)))

    assert finding.summary.isprintable()
    assert "ab" == finding.evidence[0].quote
    assert "certain" == finding.confidence

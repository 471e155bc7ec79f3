"""
Who died first in sessions that were made up, line by line?
"""

from __future__ import annotations

import os

import pytest

from distdebug.causes import Cause
from distdebug.findings import Evidence
from distdebug.ray import (
    Death,
    Deaths,
    RaySession,
    death_findings,
    find_deaths,
    find_worker_death,
)


NODE = "a" * 56
OTHER = "b" * 56
TYPE = "exit_type = SYSTEM_ERROR,"
LOST = f"{TYPE} exit_detail = Worker unexpectedly exits "
UNTRACED = LOST + "with a connection error code 2. End of file."
WATCHDOG = (
    "[rank{rank}]:[E221 02:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank "
    "{rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
    "*** SIGABRT received at time=1771639200 on cpu 1 ***\n"
    "Fatal Python error: Aborted\n"
)


def worker(number):
    """
    What Ray calls a worker.
    """
    return f"{number:056x}"


def stamp(second, program="gcs_server"):
    """
    How a record of Ray begins.
    """
    minute, rest = divmod(second, 60)
    clock = f"02:{minute:02.0f}:{rest:06.3f}".replace(".", ",")
    return f"[2026-02-21 {clock} W 1 1] ({program})"


def exits(number, second, how, node=NODE):
    """
    The line of the head about the end of a worker.
    """
    return (
        f"{stamp(second)} gcs_worker_manager.cc:70: Reporting worker exit, "
        f"worker id = {worker(number)}, node id = {node}, "
        f"address = 10.0.0.1, {how}. Unintentional worker failures have been "
        "reported. If there are lots of this logs, …\n"
    )


def placed(number, node=NODE):
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

    def __init__(self, root, node=NODE):
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

    def write(self, name, text):
        """
        Write one of its logs.
        """
        path = self.logs / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def err(self, number, text, *, actor="", end="err"):
        """
        Write what a worker printed to its standard error.
        """
        name = f"worker-{worker(number)}-01000000-{number}.{end}"
        actor = actor or f"Trainer(rank={number})"
        marks = f":job_id:01000000\n:actor_name:{actor}\n"
        return self.write(name, marks + text)

    def core(self, number, text):
        """
        Write what the library of Ray wrote in a worker.
        """
        name = f"python-core-worker-{worker(number)}_{number}.log"
        return self.write(name, text)

    def deaths(self):
        """
        Who died in it?
        """
        return find_deaths(self.session)


def stopped_job(driver_ends, node_ends):
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


DRIVER = "01000000" + "f" * 48
SIGTERM = f"{LOST}. The worker receives a SIGTERM."
CODE_3 = f"{LOST}. Worker exits with an exit code 3."
STOP = stopped_job(9.5, 9.75)
GUESSES = (
    UNTRACED
    + " Some common causes include: (1) the process was killed by the "
    "OOM killer due to high memory usage, (2) ray stop --force was called, or "
    "(3) the worker crashed unexpectedly due to SIGSEGV"
)
NO_RAYLET = (
    f"{stamp(11.5)} core_worker.cc:1075: Shutting down the core worker because "
    "the local raylet failed. Check out the raylet.out log file.\n"
)
STOPPED = (
    f"{stamp(9)} core_worker.cc:804: Exit signal received, exit_type="
    "SYSTEM_ERROR, detail=Worker exits unexpectedly by a signal. SystemExit is "
    "raised. Exit code: 1. The process receives a SIGTERM.\n"
)
UNTIMED = (
    "Disconnect, exit_type=SYSTEM_ERROR, exit_detail=Worker exits with an exit "
    "code 9., has creation_task_exception_pb_bytes=0\n"
)
GCS, RAYLET = "gcs_server.out", "raylet.out"
CRASHED = "*** SIGSEGV received at time=1771639209 on cpu 0 ***\n"
DEATHS = {
    # A watchdog that fires first blames whoever vanished a little later; if
    # nobody else died, or much later, it is what the log tells.
    "watchdog": (
        ["collective_timeout 1 follows", "killed_or_exited 2 first"],
        {
            "err 1": WATCHDOG.format(rank=1),
            "err 2": "step 7\n",
            GCS: exits(1, 10, UNTRACED) + exits(2, 30, UNTRACED),
        },
    ),
    "watchdog alone": (
        ["collective_timeout 1 first"],
        {"err 1": WATCHDOG.format(rank=1), GCS: exits(1, 10, UNTRACED)},
    ),
    "watchdog long before": (
        ["collective_timeout 1 first", "killed_or_exited None"],
        {
            "err 1": WATCHDOG.format(rank=1),
            GCS: exits(1, 10, UNTRACED) + exits(2, 3000, UNTRACED),
        },
    ),
    # Who dies after the driver of its job was gone follows from that.
    "after the driver": (
        ["killed_or_exited None follows"],
        {
            GCS: placed(1)
            + f"{stamp(9)} gcs_job_manager.cc:156: Marking job as finished. "
            "job_id=01000000\n" + exits(1, 10, UNTRACED)
        },
    ),
    # Workers that end while somebody stops their node are not to blame.
    "stopped node": (
        ["terminated None follows", "intended None"],
        {
            RAYLET: f"{stamp(11, 'raylet')} main.cc:1174: received SIGTERM. "
            "Existing local drain request = None\n",
            "core 1": NO_RAYLET,
            "core 2": STOPPED,
        },
    ),
    # Who died before the driver of a job did is what ended it.
    **{
        f"before the driver, {died} {kind}": (
            [f"{kind} 1 first"],
            {"err 1": "", GCS: placed(1) + exits(1, died, how) + STOP},
        )
        for died, how, kind in (
            (9.0, UNTRACED, "killed_or_exited"),
            (9.499, UNTRACED, "killed_or_exited"),
            (9.3, CODE_3, "exit_code"),
            (9.0, SIGTERM, "terminated"),
        )
    },
    "crash before the driver": (
        ["native_crash 1 first"],
        {
            "err 1": CRASHED,
            GCS: placed(1) + exits(1, 9.3, UNTRACED) + stopped_job(9.8, 9.8),
        },
    ),
    # Who is told to be gone after its driver, or was stopped with it, follows.
    **{
        f"with the driver, {died}": (
            [f"{kind} 1 follows"],
            {"err 1": "", GCS: placed(1) + exits(1, died, how) + STOP},
        )
        for died, how, kind in (
            (9.6, UNTRACED, "killed_or_exited"),
            (9.5, UNTRACED, "killed_or_exited"),
            (9.4, SIGTERM, "terminated"),
            (9.9, SIGTERM, "terminated"),
        )
    },
    # Without a driver that tells more, only the time tells who was stopped.
    **{
        f"with the node, {died}": (
            [f"killed_or_exited None {how}"],
            {
                GCS: exits(1, died, UNTRACED)
                + stopped_job(9, 10).splitlines(keepends=True)[1]
            },
        )
        for died, how in ((9.9, "follows"), (9.0, "first"))
    },
    # A worker tells that Ray on its node is gone.
    "no raylet": (
        ["node_died 1 first"],
        {"err 1": "x\n", "core 1": NO_RAYLET},
    ),
    # A death whose time is unknown comes last.
    "no time": (
        ["killed_or_exited None first", "exit_code 1 follows"],
        {
            "core 1": UNTIMED,
            "err 1": "ConnectionError: Connection closed by peer\n",
            GCS: exits(2, 10, UNTRACED),
        },
    ),
    # A log that grows may end within a line.
    "unfinished": (
        ["killed_or_exited None first"],
        {GCS: exits(1, 10, UNTRACED).rstrip("\n")},
    ),
    # What Ray says about an end tells its way; possible reasons that it lists
    # say nothing.
    **{
        words[:20]: (
            [f"{kind} None"],
            {GCS: exits(1, 10, f"{TYPE} exit_detail = {words}")},
        )
        for words, kind in (
            ("Worker exits with an exit code 3.", "exit_code"),
            ("The process receives a SIGTERM.", "terminated"),
            ("The node was preempted.", "node_died"),
            (
                "The leased worker has unrecoverable failure",
                "killed_or_exited",
            ),
            ("Worker was killed: node running low on memory", "ray_oom"),
            (GUESSES.partition("exit_detail = ")[2], "killed_or_exited"),
        )
    },
    # A global rank comes from a name or from clear words, else it is unknown.
    **{
        f"rank of {actor} {text}": (
            [f"killed_or_exited {rank} first"],
            {f"err 1 {actor}": f"{text}\n", GCS: exits(1, 10, UNTRACED)},
        )
        for actor, text, rank in (
            ("Trainer(rank=3)", "", 3),
            ("trainer_rank12", "", 12),
            ("Worker[Rank 5]", "", 5),
            ("Worker(local_rank=3)", "", None),
            ("Worker(local_rank=3, global_rank=11)", "", 11),
            ("Trainer", "starts RANK=4 WORLD_SIZE=8", 4),
            ("Trainer", "LOCAL_RANK=4", None),
            ("Trainer", "[rank7]:[E221 02:00] x", 7),
            ("Trainer", "[rank7]: x\n[rank8]: y", None),
            ("a", "rank 1 is running, rank 2 is not", None),
            ("Frankfurt", "", None),
        )
    },
}


@pytest.fixture
def made(tmp_path):
    """
    An empty session.
    """
    return Made(tmp_path / "session_2026-02-21_02-00-00_000000_1")


@pytest.mark.parametrize(("expected", "files"), DEATHS.values(), ids=DEATHS)
def test_deaths(made, expected, files):
    """
    Kind, rank, and order of deaths are told; who follows is not to blame.
    """
    for name, text in files.items():
        if name.startswith("err"):
            _, number, *actor = name.split(" ", 2)
            made.err(int(number), text, actor="".join(actor))
        elif name.startswith("core"):
            made.core(int(name.split()[1]), text)
        else:
            made.write(name, text)

    deaths = made.deaths()

    marks = [
        "first" if x.is_first else "follows" if x.is_collateral else ""
        for x in deaths.deaths
    ]
    found = [
        f"{x.kind} {x.rank} {mark}"
        for x, mark in zip(deaths.deaths, marks, strict=True)
    ]
    assert len(expected) == len(found)
    assert all(map(str.startswith, found, expected)), found
    assert bool(death_findings(deaths)) == ("first" in marks)


def test_followers_are_told(made):
    """
    Who waited in vain is told after whom it waited for.
    """
    made.err(1, WATCHDOG.format(rank=1))
    made.write(
        "gcs_server.out", exits(1, 10, UNTRACED) + exits(2, 30, UNTRACED)
    )

    findings = death_findings(made.deaths())

    assert "after another one" in findings[-1].summary


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WATCHDOG.format(rank=1), Cause.COLLECTIVE_TIMEOUT),
        (CRASHED, Cause.NATIVE_CRASH),
    ],
)
def test_cause_of_the_first(made, text, cause):
    """
    The way of the first death is the cause.
    """
    made.err(1, text)
    made.write("gcs_server.out", exits(1, 10, UNTRACED))

    (finding,) = death_findings(made.deaths())

    assert (cause, (1,)) == (finding.cause, finding.ranks)


@pytest.mark.parametrize(
    ("owner", "kind"),
    [(worker(2), "owner_died"), (DRIVER, "job_ended"), (None, "terminated")],
    ids=["actor", "driver", "nobody"],
)
def test_orphan_told_of_signal(made, owner, kind):
    """
    Who was ended since its owner was dead may tell of the signal only; else
    somebody sent it.
    """
    made.write("gcs_server.out", exits(1, 10, SIGTERM))
    if owner:
        made.write(
            "raylet.out",
            f"{stamp(9, 'raylet')} node_manager.cc:1: The leased worker "
            f"{worker(1)} is killed because the owner process {owner} died.\n",
        )

    (death,) = made.deaths().deaths

    assert (kind, owner) == (death.kind, death.owner)


def test_a_lost_node_precedes_those_that_complain(made):
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
    assert ("node_died", "10.0.0.9") == (first.kind, first.ip)
    assert [1, 5] == sorted(
        int(x.worker_id, 16) for x in deaths.deaths if x.is_collateral
    )
    assert "node 10.0.0.9 was lost" in death_findings(deaths)[0].summary


TRACEBACK = """Traceback (most recent call last):
  File "/app/train.py", line 3, in main
    step()
  File "/app/data.py", line 4, in step
    raise {error}
{error}
"""


@pytest.mark.parametrize(
    ("error_log", "error", "function"),
    [
        # Classes may have any name, and other lines look like errors.
        (
            TRACEBACK.format(error="app.BadShape: 3") + "mean_error: 0.1\n",
            "app.BadShape: 3",
            "step",
        ),
        (TRACEBACK.format(error="Exception: bad"), "Exception: bad", "step"),
        # What is long before the end was survived.
        (TRACEBACK.format(error="KeyError: 3") + "x\n" * 9000, None, None),
        ("ValueError: of another program\n", None, None),
    ],
    ids=["any class", "exception", "survived", "no traceback"],
)
def test_the_last_traceback_tells_the_error(made, error_log, error, function):
    """
    The error of a process is that of the last traceback near the end.
    """
    made.err(1, error_log)
    made.write("gcs_server.out", exits(1, 10, UNTRACED))

    (death,) = made.deaths().deaths

    frames = [x.function for x in death.python_frames[:1]]
    assert (error, [function] if function else []) == (death.error, frames)


def test_a_driver_that_is_killed_is_the_cause(made):
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
    assert ("driver", 77, "01000000") == (first.actor, first.pid, first.job_id)
    assert "job_ended" == deaths.deaths[1].kind
    assert "driver (pid 77" in death_findings(deaths)[0].summary


def test_a_core_log_tells_line_and_time_of_an_end(made):
    """
    The end of a worker is quoted with its own line, wherever that is.
    """
    before = f"{stamp(1, 'x')} core_worker.cc:1: hello\n" * 2
    made.core(
        3,
        before
        + f"{stamp(9)} raylet_ipc_client.cc:133: RayletIpcClient::Disconnect, "
        "exit_type=USER_ERROR, exit_detail=gone, has "
        "creation_task_exception_pb_bytes=0\n",
    )

    (death,) = made.deaths().deaths

    (seen,) = death.evidence
    assert ("USER_ERROR", "gone", 3) == (
        death.exit_type,
        death.detail,
        death.pid,
    )
    assert "line 3" == seen.location
    assert seen.quote.startswith(stamp(9))
    assert 1771639209.0 == death.time


def test_a_node_that_is_stopped_too_early_is_the_cause(made):
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
    assert ("", OTHER) == (first.worker_id, first.node_id)
    assert "received SIGTERM while its job went on" == first.detail
    assert [True] == [x.is_collateral for x in deaths.deaths if x.worker_id]


def test_a_preempted_node_is_the_cause(made):
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


def test_the_kernel_is_believed(made):
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


def test_workers_that_never_start_are_told(made):
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


def test_a_crash_is_told_by_the_worker_alone(made):
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


def test_gpu_memory_in_init_is_told_as_such(made):
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
    assert 5 == finding.location.line


def test_somebody_else_may_have_the_memory(made):
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


def test_nothing_is_told_of_nobody(made):
    """
    An empty session has neither deaths nor findings, and says what it lacks.
    """
    deaths = made.deaths()

    assert () == deaths.deaths
    assert "no death is reported" == str(deaths)
    assert () == death_findings(deaths)
    assert 1 == len(deaths.missing)


def test_bad_files_lose_no_others(made):
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


def test_a_log_that_cannot_be_read_is_missing(made, monkeypatch):
    """
    What the system refuses is said to be missing.
    """

    real_open = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("gcs_server.out"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *args, **kwargs)

    made.write("gcs_server.out", exits(1, 10, UNTRACED))
    monkeypatch.setattr(os, "open", refuse)

    deaths = made.deaths()

    assert () == deaths.deaths
    assert "Permission denied" == deaths.missing[0].reason


def test_a_record_over_the_border_of_blocks_is_found(made):
    """
    Records are found wherever a block ends, with all their lines.
    """
    other = f"{stamp(1)} nothing of interest\n"
    wanted = exits(1, 10, LOST + "here\nand more of it")
    word = "Reporting worker exit"
    begin = wanted.index(word)
    # Blocks of 1 MiB are read from the beginning.
    many = other * 5
    for before in {*range(begin, begin + len(word), 2), *range(0, 400, 80)}:
        pad = "x" * ((1 << 20) - before - len(many) - 1) + "\n"
        made.write("gcs_server.out", pad + many + wanted + other)

        (death,) = made.deaths().deaths

        assert death.detail.endswith("here\nand more of it"), before
        assert "line 7" == death.evidence[0].location


def test_records_are_bounded(made):
    """
    A record that never ends is cut.
    """
    made.write("gcs_server.out", exits(1, 10, LOST + "\nmore" * 5000))

    (death,) = made.deaths().deaths

    assert 120 == len(death.detail.splitlines())


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("Fatal Python error: Bus error", "SIGBUS"),
        ("Fatal Python error: Illegal instruction", "SIGILL"),
        ("Fatal Python error: Floating-point exception", "SIGFPE"),
        ("Fatal Python error: none of the user's threads", None),
        ("the test expects a segfault", None),
        # Older than the last 64 KiB.
        ("Fatal Python error: Aborted\n" + "older\n" * 20_000, None),
        ("older\n" * 20_000 + "Fatal Python error: Aborted", "SIGABRT"),
    ],
    ids=["bus", "illegal", "fpe", "other", "words", "long_ago", "late"],
)
@pytest.mark.parametrize("is_rotated", [False, True])
def test_signals_are_heard(made, text, signal, is_rotated):
    """
    Signals are known by what Python prints of them at the end of a log, also
    if that was rotated.
    """
    made.err(1, f"{text}\n", end="err.1" if is_rotated else "err")
    if is_rotated:
        made.err(1, "newest\n")
    made.write("gcs_server.out", exits(1, 10, UNTRACED))

    (death,) = made.deaths().deaths

    assert signal == death.signal


def test_sizes_that_are_none_count_as_nothing(made):
    """
    A number that was damaged does not stop the reading.
    """
    how = (
        "exit_type = NODE_OUT_OF_MEMORY, exit_detail = Selected to kill: x "
        f"pid=1, actual memory used=1.2.3GB, worker ID={worker(1)}"
    )
    made.write("gcs_server.out", exits(1, 10, how))

    (death,) = made.deaths().deaths

    assert ("ray_oom", 0) == (death.kind, death.memory)


def test_times_are_written_for_people():
    """
    Times are in UTC, and impossible ones are left out.
    """
    shown = [
        str(Deaths(deaths=(Death(kind="exit_code", worker_id="", time=when),)))
        for when in (0.0, None, 1e99)
    ]

    assert [True, False, False] == ["1970-01-01 00:00:00" in x for x in shown]
    assert shown[1] == shown[2]


def test_a_number_that_two_nodes_use_is_not_guessed():
    """
    The same process number on two nodes belongs to nobody without a place.
    """
    twins = [
        Death(kind="exit_code", worker_id=worker(n), pid=5, node_id=node)
        for n, node in ((1, NODE), (2, OTHER))
    ]

    found = [
        find_worker_death(twins, pid=5),
        find_worker_death(twins, pid=5, place=OTHER),
    ]

    assert [None, twins[1]] == found


def test_the_latest_that_nobody_wanted_is_taken():
    """
    An actor that was started again dies again; intended ends come last.
    """
    kinds = ("exit_code", "exit_code", "intended")
    deaths = [
        Death(kind=kind, worker_id=worker(n), rank=1, time=float(n))
        for n, kind in enumerate(kinds)
    ]

    found = find_worker_death(deaths, rank=1)

    assert deaths[1] is found


def test_hostile_names_print_as_one_line():
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

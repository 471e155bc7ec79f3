"""
What does the output of a driver tell about all the others?
"""

from __future__ import annotations

import json

from pathlib import Path

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.errors import LogError, NoLogsError
from distdebug.logs.lines import Origin
from distdebug.ray import (
    DriverLog,
    DriverSource,
    Failure,
    RaySession,
    driver_findings,
    driver_lines,
    find_driver_logs,
    find_ray_sessions,
    map_origins,
    read_driver_log,
)


DATA = Path(__file__).parents[2] / "data" / "ray_sessions"
VERSIONS = ("2.9.3", "2.24.0", "2.40.0", "2.50.1", "2.60.0")
MEMORY = ("2.9.3", "2.40.0", "2.60.0")
ACTOR = "ab" * 16
NODE = "c" * 56


@pytest.fixture(params=VERSIONS)
def recorded(request):
    """
    The output of a driver of one version.
    """
    return read_driver_log(DATA / request.param / "deaths" / "driver.log")


def read(*lines):
    """
    Read lines as the output of a driver.
    """
    return read_driver_log(lines)


def died(pid, detail="", **fields):
    """
    What Ray prints when a method of a dead actor is called.
    """
    about = {"class_name": "Trainer", "actor_id": ACTOR, "pid": pid} | fields
    return (
        (
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before "
            "finishing this task."
        ),
        *(f"\t{name}: {value}" for name, value in about.items()),
        f"The actor is dead because its worker process has died. {detail}",
        "next line",
    )


RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an "
    "unexpected system error. Worker ID: {worker} Worker IP address: 10.0.0.1 "
    "Worker port: 1 Worker PID: {pid} Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: Worker exits unexpectedly. Worker exits with an exit code 3."
)


def raised(pid, error, how="ray.exceptions."):
    """
    What a driver prints of an exception of a method.
    """
    return [
        (
            f"{how}RayTaskError(ValueError): ray::Trainer.fit() (pid={pid}, "
            f"ip=10.0.0.1, actor_id={pid:032x}, repr=Trainer(rank={pid}))"
        ),
        '  File "/job/a.py", line 7, in fit',
        error,
    ]


def uncaught(pid, error, place="<module>"):
    """
    What Python prints of an exception of a method, and where it got to.
    """
    return [
        "Traceback (most recent call last):",
        f'  File "/job/main.py", line 1, in {place}',
        *raised(pid, error),
    ]


GONE = "Worker exit type: SYSTEM_ERROR Worker exit detail: gone"
SOME = "(raylet) A worker died or was killed while executing a task by an "
CRASH = "(Trainer(rank=2) pid=3) *** SIGABRT received at time=17 on cpu 1"
CLOSED = "RuntimeError: [/p/gloo/x.cc:1] Connection closed by peer [::1]:1"
# What a driver prints, what failed, and causes and ranks of the findings.
FAILURES = {
    "unavailable": (
        (
            f"ray.exceptions.ActorUnavailableError: The actor {ACTOR} is "
            "unavailable: socket closed"
        ),
        ["actor_unavailable"],
        ["actor_died"],
    ),
    "crashed": (
        (
            "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while "
            "executing this task."
        ),
        ["worker_crashed"],
        ["actor_died"],
    ),
    "timeout": (
        (
            "(raylet) Some workers of the worker process(5) have not registered "
            "within the timeout. The process is dead"
        ),
        ["start_timeout"],
        ["ray_worker_start_timeout"],
    ),
    "memory": (
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node "
            "running low on memory."
        ),
        ["out_of_memory"],
        ["host_out_of_memory"],
    ),
    "node": (
        (
            f"(raylet) The node with node id: {NODE} and address: 10.0.0.7 and "
            "node name: x has been marked dead because the detector has missed"
        ),
        ["node_died"],
        ["actor_died"],
    ),
    "environment": (
        (
            "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime "
            "environment."
        ),
        ["not_started"],
        ["node_misconfigured"],
    ),
    # Objects whose owner died follow from that owner.
    "owner": (
        "ray.exceptions.OwnerDiedError: Failed to retrieve object",
        ["owner_died"],
        [],
    ),
    # That a call failed since a worker crashed elsewhere is not its fault.
    "error of others": (
        "ray::f() (pid=1, ip=a)\n  File x\nray.exceptions.ObjectLostError: x",
        ["task_error ObjectLostError"],
        [],
    ),
    # Ray names the exception before the traceback, which a program may cut.
    "cut": (
        "\n".join(raised(1, "    return x<")[:2]),
        ["task_error ValueError"],
        ["rank_crashed 1"],
    ),
    # A process that printed its signal died, even if no call failed of it.
    "crash": (
        f"{CRASH}\n(Stopped pid=4) *** SIGTERM received at time=17 on cpu 1",
        ["worker_crashed"],
        ["native_crash 2"],
    ),
    # What the node reports and what the caller raised is the same death.
    "told twice": (
        "\n".join(
            [
                f"{SOME}unexpected system error. Worker PID: 7 {GONE}",
                *died(7, GONE),
            ]
        ),
        ["worker_crashed", "actor_died"],
        ["actor_died"],
    ),
    # A death is the cause of an exception that was printed before it.
    "death and wait": (
        "\n".join([*raised(2, CLOSED), RAYLET.format(worker=NODE, pid=1)]),
        ["task_error RuntimeError", "worker_crashed"],
        ["actor_died  likely", "network_failure  possible"],
    ),
    # Some exceptions tell more than that there was one; others are an error of
    # whom raised them.
    **{
        error: (
            "\n".join(raised(2, error)),
            [f"task_error {error.partition(':')[0].rpartition('.')[2]}"],
            [f"{cause} {rank} "],
        )
        for error, cause, rank in (
            (
                "torch.OutOfMemoryError: CUDA out of memory.",
                "gpu_out_of_memory",
                "2",
            ),
            ("OSError: [Errno 28] No space left on device", "disk_full", "2"),
            # Rank 2 waited, and is not at fault.
            (
                "torch.DistStoreError: 9 s waiting for clients.",
                "rendezvous_timeout",
                "",
            ),
            ("ValueError: x", "rank_crashed", "2"),
            (
                "ConnectionResetError: [Errno 104] Connection reset by peer",
                "rank_crashed",
                "2",
            ),
            (
                "requests.exceptions.ReadTimeout: HTTP read timed out",
                "rank_crashed",
                "2",
            ),
            ("TimeoutError: timed out", "rank_crashed", "2"),
        )
    },
}


@pytest.mark.parametrize(
    ("text", "kinds", "expected"), FAILURES.values(), ids=FAILURES
)
def test_failures(text, kinds, expected):
    """
    Failures are known by their words, and told with their cause and ranks.
    """
    log = read_driver_log(f"{text}\n")

    failures = [f"{x.kind} {x.error or ''}" for x in log.failures]
    found = [
        f"{x.cause.value} {','.join(map(str, x.ranks))} {x.confidence}"
        for x in driver_findings(log)
    ]
    assert len(kinds) == len(failures), failures
    assert all(map(str.startswith, failures, kinds)), failures
    assert len(expected) == len(found), found
    assert all(map(str.startswith, found, expected)), found


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            (
                "RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed "
                "out waiting 10000ms for recv operation to complete"
            ),
            "collective_timeout",
        ),
        (
            (
                "torch.distributed.DistBackendError: [Rank 1] Process group "
                "watchdog thread terminated with exception: x"
            ),
            "collective_timeout",
        ),
        (
            "RuntimeError: NCCL operation timed out after 1800 s",
            "collective_timeout",
        ),
        (CLOSED, "network_failure"),
        (
            (
                "torch.distributed.DistBackendError: NCCL error in: p.cpp:1, "
                "remote process exited or there was a network error"
            ),
            "network_failure",
        ),
        (
            (
                "torch.distributed.DistNetworkError: recvValueWithTimeout failed: "
                "Connection reset by peer"
            ),
            "network_failure",
        ),
        (
            (
                "torch.distributed.DistNetworkError: the TCPStore ended: "
                "got 0 bytes. Connection was likely closed"
            ),
            "network_failure",
        ),
    ],
    ids=["gloo", "watchdog", "nccl", "closed", "remote", "store", "ended"],
)
def test_who_waited_in_vain_is_not_blamed(message, cause):
    """
    An exception of a collective tells of somebody else, whoever that is, and
    how to find out.
    """
    (finding,) = driver_findings(read(*raised(2, message)))

    assert (cause, ()) == (finding.cause, finding.ranks)
    assert finding.summary.startswith(
        "Trainer(rank=2) (pid 2, 10.0.0.1) timed out waiting for another rank in "
        "Trainer.fit(): "
    )
    assert "distdebug logs --deaths SESSION" in finding.remedy
    assert "find_deaths" not in finding.remedy


def test_exceptions_of_methods_are_only_here(recorded):
    """
    What a method raised is told with the rank, the process, and the line.
    """
    errors = {x.function: x for x in recorded.errors}

    error = errors["TrainerActor.step"]
    assert ("ValueError", "shape mismatch in step") == (
        error.error,
        error.message,
    )
    assert (6, "10.0.0.2") == (error.rank, error.ip)
    assert error.pid is not None
    assert "inner_step" == error.frames[0].function
    assert "KeyError" == errors["bad_task"].error


def test_deaths_are_told_once(recorded):
    """
    Actors that died are known by rank, even if several calls tell of them.
    """
    deaths = [x for x in recorded.deaths if x.kind == "actor_died"]

    ranks = [x.rank for x in deaths if x.actor_class == "TrainerActor"]
    assert [0, 1, 2, 3, 4, 5, 7] == ranks
    assert 2 == deaths[0].count
    assert "segv_actor" == deaths[0].actor_name
    assert "SYSTEM_ERROR" == deaths[0].exit_type


def test_errors_in_init_are_deaths(recorded):
    """
    An exception in __init__ is told with what was raised.
    """
    (death,) = (x for x in recorded.deaths if x.kind == "init_error")

    assert ("BadInit", "RuntimeError") == (death.actor_class, death.error)
    assert "no such checkpoint: /ckpt/last" == death.message


def test_intended_ends_are_known(recorded):
    """
    Actors that left, or were killed by the program, ended as intended.
    """
    intended = {x.actor_class for x in recorded.deaths if x.is_intended}
    others = {x.actor_class for x in recorded.deaths if not x.is_intended}

    assert "TrainerActor" in intended
    assert {"TrainerActor", "Child"} >= intended
    assert "Child" not in others


def test_all_who_print_are_counted(recorded):
    """
    Each process is one source, also when its name changes.
    """
    sources = {str(x): x for x in recorded.sources if x.origin.pid}

    crashed = next(x for x in sources.values() if x.signal == "SIGSEGV")
    assert "TrainerActor(rank=0)" == crashed.origin.name
    folded = [x for x in sources.values() if x.count > x.lines]
    assert folded
    assert len({x.origin.pid for x in sources.values()}) == len(sources)


def test_findings_begin_with_the_crash(recorded):
    """
    The crash comes first, intended ends and lost owners not at all.
    """
    findings = driver_findings(recorded)

    assert (Cause.NATIVE_CRASH, (0,)) == (findings[0].cause, findings[0].ranks)
    assert "SIGSEGV" in findings[0].summary
    assert "likely" == findings[0].confidence
    (raised,) = (x for x in findings if x.ranks == (6,))
    assert Cause.RANK_CRASHED == raised.cause
    assert raised.location is not None
    assert not any("Child" in x.summary for x in findings)


def test_results_are_plain_data(recorded):
    """
    Everything becomes JSON, and tables for people.
    """
    text = json.dumps([recorded.to_dict(), recorded.to_records()])

    assert "shape mismatch" in text
    assert "TrainerActor(rank=0)" in str(recorded)


@pytest.mark.parametrize("version", VERSIONS)
def test_sources_lead_to_files(version):
    """
    Every process that printed leads to its own log and its node.
    """
    folder = DATA / version / "deaths"
    log = read_driver_log(folder / "driver.log")
    sessions = find_ray_sessions(folder)

    matches = map_origins(log, sessions)

    workers = [x for x in matches if x.source.origin.pid is not None]
    assert all(x.worker and x.worker.err for x in workers)
    assert all(
        x.worker and x.worker.pid == x.source.origin.pid for x in workers
    )
    (raylet,) = (x for x in matches if x.source.origin.pid is None)
    assert "a part of Ray, no worker" == raylet.reason
    assert "(raylet): a part of Ray" in str(raylet)


@pytest.mark.parametrize("version", MEMORY)
def test_who_had_the_memory_is_to_blame(version):
    """
    Of those that Ray killed for memory the one with the most is named.
    """
    log = read_driver_log(DATA / version / "memory" / "driver.log")

    (finding,) = driver_findings(log)

    assert 4 == len(log.deaths)
    assert Cause.HOST_OUT_OF_MEMORY == finding.cause
    assert "Hog" in finding.summary
    assert "1." in finding.summary


def test_a_lost_node_is_told():
    """
    That a node was marked dead is a finding.
    """
    log = read_driver_log(DATA / "2.60.0" / "nodes" / "driver.log")

    findings = driver_findings(log)

    assert "the node 10.0.0.2 was lost" in findings[0].summary


def test_a_healthy_log_has_no_findings():
    """
    Progress, warnings, and words of failure are no failures.
    """
    log = read(
        "Training:  10%|#         | 1/10\rTraining:  20%|##        | 2/10",
        "(Trainer pid=1) retrying after ActorDiedError is enabled",
        "(Trainer pid=1) loss 1.0 [repeated 7x across cluster]",
        "UserWarning: something is deprecated",
        "Traceback (most recent call last):",
        "ValueError: caught and logged",
    )

    findings = driver_findings(log)

    assert () == findings
    assert () == log.failures
    assert 7 == log.lines
    assert (2, 8) == (log.sources[0].lines, log.sources[0].count)


def test_the_innermost_task_is_where_it_happened():
    """
    An exception that passed through several tasks is told of the last one.
    """
    log = read(
        "ray.exceptions.RayTaskError(ValueError): ray::outer() (pid=1, ip=a)",
        '  File "/job/a.py", line 1, in outer',
        "    ray.get(inner.remote())",
        "ray.exceptions.RayTaskError(ValueError): ray::inner() (pid=2, ip=b)",
        '  File "/job/b.py", line 2, in inner',
        "    raise ValueError(3)",
        "ValueError: 3",
        "after it",
    )

    (error,) = log.errors

    assert ("inner", 2, "b") == (error.function, error.pid, error.ip)
    assert ("ValueError", "3") == (error.error, error.message)
    assert [2] == [x.line for x in error.frames]


def test_ray_train_lists_the_ranks_of_its_workers():
    """
    A worker whose name has no rank has the one that Ray Train printed last.
    """
    log = read(
        "(TrainController pid=9) - (ip=a, pid=1) world_rank=5, local_rank=1",
        "(TrainController pid=9) - (node_id=f0, ip=a, pid=1) world_rank=3, "
        "local_rank=1, node_rank=0",
        "(TrainController pid=9) - (ip=b, pid=1) world_rank=7, local_rank=1",
        "ray.exceptions.RayTaskError(ValueError): ray::RayTrainWorker.run() "
        "(pid=1, ip=a)",
        "ValueError: 3",
        "ray.exceptions.RayTaskError(KeyError): ray::RayTrainWorker.run() "
        "(pid=2, ip=a)",
        "KeyError: 3",
    )

    assert [3, None] == [error.rank for error in log.errors]
    assert [(3,), ()] == [x.ranks for x in driver_findings(log)]


def test_who_was_killed_for_memory_stands_first():
    """
    A message about memory that is cut off names the task that was killed.
    """
    log = read(
        "(TrainController pid=9) - (ip=b, pid=28) world_rank=6, local_rank=2",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node "
        "running low on memory.",
        f"Memory on the node (IP: b, ID: {NODE}) where the task (actor ID: "
        f"{ACTOR}, name=RayTrainWorker.__init__, pid=28, memory used=171.55GB) "
        "was running was 489.21GB / 503.75GB (0.971136), which exceeds the "
        "memory usage threshold of 0.95.",
    )

    (finding,) = driver_findings(log)

    assert (Cause.HOST_OUT_OF_MEMORY, (6,)) == (finding.cause, finding.ranks)


def test_a_logger_writes_before_each_line():
    """
    What a logger puts before each line of a message is no part of it.
    """
    logger = "ERROR 12-05 12:00:19 [core.py:586] "
    log = read(
        f"{logger}EngineCore failed to start.",
        f"{logger}ray.exceptions.RayTaskError(RuntimeError): "
        "ray::Worker.execute() (pid=1, ip=a)",
        f'{logger}  File "/opt/vllm/worker.py", line 1, in execute',
        f"{logger}RuntimeError: NCCL error: unhandled system error",
        "after it",
    )

    (error,) = log.errors

    assert "NCCL error: unhandled system error" == error.message
    assert [1] == [x.line for x in error.frames]
    (finding,) = driver_findings(log)
    assert Cause.NETWORK_FAILURE is finding.cause


def test_who_waited_for_a_dead_actor_is_not_blamed():
    """
    A task that fails since an actor died tells of that actor.
    """
    outer = (
        "ray.exceptions.RayTaskError(ActorDiedError): ray::Top.run() "
        f"(pid=1, ip=10.0.0.1, actor_id={'cd' * 16}, repr=Top(rank=0))"
    )
    log = read(
        outer,
        '  File "/job/a.py", line 1, in run',
        *died(7, "Worker exit type: SYSTEM_ERROR Worker exit detail: gone"),
    )

    (finding,) = driver_findings(log)

    assert "Trainer (pid 7" in finding.summary
    assert (7, "gone") == (log.deaths[0].pid, log.deaths[0].detail)


def test_interleaved_lines_do_not_disturb():
    """
    What others print in between does not cut a traceback short.
    """
    log = read(
        "ray::T.f() (pid=1, ip=a, repr=T(rank=2))",
        "(Other pid=9) ray::T.g() (pid=9, ip=a)",
        '  File "/job/a.py", line 1, in f',
        '(Other pid=9)   File "/job/b.py", line 2, in g',
        "(Other pid=9) KeyError: 'k'",
        "ValueError: v",
    )

    found = {x.function: (x.error, x.rank) for x in log.errors}

    assert {"T.f": ("ValueError", 2), "T.g": ("KeyError", None)} == found


def test_one_failure_may_follow_another_at_once():
    """
    Two blocks without a line in between are two failures.
    """
    log = read(*died(1)[:-1], *died(2, actor_id="ef" * 16))

    pids = [x.pid for x in log.deaths]

    assert [1, 2] == pids


def test_a_signal_of_the_same_process_is_joined():
    """
    A process that printed its signal crashed, whatever Ray says of it.
    """
    log = read(
        "(Trainer pid=3, ip=10.0.0.3) *** SIGBUS received at time=17 on cpu 1",
        "(raylet, ip=10.0.0.3) A worker died or was killed while executing a "
        "task by an unexpected system error. Worker IP address: 10.0.0.3 "
        "Worker port: 1 Worker PID: 3 Worker exit type: SYSTEM_ERROR Worker "
        "exit detail: gone",
    )

    (finding,) = driver_findings(log)

    assert Cause.NATIVE_CRASH == finding.cause
    assert "Trainer (pid 3, 10.0.0.3) crashed with SIGBUS" in finding.summary


CRASHED = "(Trainer(rank={rank}) pid=3, ip=10.0.0.{rank}) *** SIGBUS received at time=17 on cpu 1"


def test_a_process_of_another_node_is_another_one():
    """
    Process ids repeat across nodes, so a crash is joined with its address.
    """
    log = read(
        CRASHED.format(rank=1),
        CRASHED.format(rank=2),
        *died(3, GONE, ip="10.0.0.1"),
    )

    findings = driver_findings(log)

    assert ["actor_died", "worker_crashed"] == [
        x.kind for x in sorted(log.failures, key=lambda x: x.kind)
    ]
    assert [
        (Cause.NATIVE_CRASH, (1,)),
        (Cause.NATIVE_CRASH, (2,)),
    ] == sorted((x.cause, x.ranks) for x in findings)


def test_a_process_without_an_address_is_only_guessed_if_alone():
    """
    A failure without an address belongs to the only process of that id.
    """
    alone = read(CRASHED.format(rank=1), *died(3, GONE))
    twins = read(
        CRASHED.format(rank=1), CRASHED.format(rank=2), *died(3, GONE)
    )

    (finding,) = driver_findings(alone)

    assert (Cause.NATIVE_CRASH, (1,)) == (finding.cause, finding.ranks)
    (death,) = (x for x in twins.failures if x.kind == "actor_died")
    assert death.rank is None


def test_an_actor_with_a_name_is_read_in_full():
    """
    Ray puts the name of an actor before its class.
    """
    log = read(
        "(SglEngine pid=5, ip=10.0.0.2) Exception raised in creation task: "
        "The actor died because of an error raised in its creation task, "
        "ray::engine-1 a:SglEngine.__init__() (pid=5, ip=10.0.0.2, "
        f"actor_id={ACTOR}, repr=<job.SglEngine object at 0x7f0550fcc8d0>)",
        "(SglEngine pid=5, ip=10.0.0.2)            ^^^^^^^^^^^^^^",
        '(SglEngine pid=5, ip=10.0.0.2)   File "/job/a.py", line 3, in '
        "__init__",
        "(SglEngine pid=5, ip=10.0.0.2) RuntimeError: cannot bind port 30000",
    )

    (finding,) = driver_findings(log)

    (failure,) = log.deaths
    assert ("init_error", 5, ACTOR, "engine-1 a", "SglEngine") == (
        failure.kind,
        failure.pid,
        failure.actor_id,
        failure.actor_name,
        failure.actor_class,
    )
    assert (
        "SglEngine 'engine-1 a' (pid 5, 10.0.0.2) died of an exception in its "
        "__init__, RuntimeError: cannot bind port 30000"
    ) == finding.summary


def test_names_go_with_their_own_processes():
    """
    Of several deaths that a driver prints in a row, each has its own names.
    """
    detail = "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    log = read(
        "(Trainer pid=1) a",
        "(Reward pid=2) b",
        RAYLET.format(worker="1" * 56, pid=1),
        *died(1, detail, actor_id="1" * 32, name="one", ip="10.0.0.1"),
        RAYLET.format(worker="2" * 56, pid=2),
        *died(
            2,
            detail,
            actor_id="2" * 32,
            class_name="Reward",
            name="two",
            ip="10.0.0.1",
        ),
    )

    told = {
        (x.pid, x.actor_class, x.actor_name)
        for x in log.deaths
        if x.kind == "actor_died"
    }

    assert {(1, "Trainer", "one"), (2, "Reward", "two")} == told


def test_a_cut_detail_is_completed_by_another_line():
    """
    What a program cut off is taken from what the node tells of the same end.
    """
    cut = "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    log = read(*died(7, cut, ip="10.0.0.1"), RAYLET.format(worker=NODE, pid=7))
    alone = read(*died(7, cut))

    (finding,) = driver_findings(log)
    (bare,) = driver_findings(alone)

    assert "exit code 3" in finding.summary
    assert bare.summary.endswith(" died")


GOES_ON = [f"(Trainer(rank=9) pid=9) step {i}" for i in range(300)]


def test_what_ended_the_driver_comes_first():
    """
    What a driver outlived for long is only possibly the cause of its end.
    """
    log = read(
        *raised(1, "ValueError: caught", "driver caught: "),
        *GOES_ON,
        *uncaught(2, "ValueError: the end"),
        "(Trainer(rank=3) pid=3) flushed late",
    )

    findings = driver_findings(log)

    assert [False, True] == [x.ended_driver for x in log.failures]
    assert [(2,), (1,)] == [x.ranks for x in findings]
    assert ["likely", "possible"] == [x.confidence for x in findings]
    assert findings[1].summary.startswith("earlier, Trainer.fit()")


@pytest.mark.parametrize(
    "lines",
    [
        [
            *raised(1, "ValueError: one"),
            "During handling of the above exception, another occurred:",
            *uncaught(2, "ValueError: two"),
        ],
        [
            RAYLET.format(worker=NODE, pid=1),
            *GOES_ON,
            *uncaught(
                2, "RuntimeError: gloo: Connection closed by peer [::1]:1"
            ),
        ],
        [
            *raised(1, "ValueError: one"),
            *GOES_ON,
            *uncaught(2, "ValueError: two"),
            *["epoch"] * 60,
        ],
        [
            *raised(1, "ValueError: one"),
            *GOES_ON,
            *raised(2, "ValueError: two", "caught: "),
        ],
        [
            *raised(1, "ValueError: one"),
            *GOES_ON,
            *uncaught(1, "ValueError: two"),
        ],
        [
            *raised(1, "ValueError: one"),
            *GOES_ON,
            *uncaught(2, "ValueError: two", "survive"),
        ],
    ],
    ids=[
        "chained",
        "waited",
        "went_on",
        "caught",
        "same_process",
        "in_function",
    ],
)
def test_else_the_first_failure_comes_first(lines):
    """
    Nothing is turned round unless the driver clearly ended of the later one.
    """
    log = read(*lines)

    findings = driver_findings(log)

    assert findings[0].evidence[0].location == "line 1"
    assert findings[1].summary.startswith("later, ")


def test_what_came_right_before_the_end_is_not_outlived():
    """
    Between what was outlived and the end, what failed first comes first.
    """
    log = read(
        *raised(1, "ValueError: caught", "driver caught: "),
        *GOES_ON,
        RAYLET.format(worker=NODE, pid=3),
        *uncaught(2, "ValueError: the end"),
    )

    findings = driver_findings(log)

    quoted = [x.evidence[0].location for x in findings]
    assert ["line 304", "line 307", "line 1"] == quoted


def test_own_representations_name_actors():
    """
    The repr of an object that has none of its own is left out.
    """
    log = read(
        "ray::T.f() (pid=1, ip=a, actor_id=0, repr=<job.T object at 0x7f>)",
        "ValueError: a",
        "ray::T.f() (pid=2, ip=a, actor_id=0, repr=T(rank=4))",
        "ValueError: b",
    )

    found = [(x.actor_repr, x.label) for x in log.errors]

    assert [
        (None, "T (pid 1, a)"),
        ("T(rank=4)", "T(rank=4) (pid 2, a)"),
    ] == found


def test_a_block_is_bounded():
    """
    Lines that never end a block do not fill the memory.
    """
    log = read("ray::f() (pid=1, ip=a)", *["  more"] * 1000, "ValueError: x")

    (error,) = log.errors

    assert "" == error.error


def test_a_missing_file_is_an_error(tmp_path):
    """
    Asking for a log that is not there is told as such.
    """
    with pytest.raises(NoLogsError, match="no such file"):
        read_driver_log(tmp_path / "none.log")

    with pytest.raises(NoLogsError):
        list(driver_lines(str(tmp_path / "none.log")))


def test_a_folder_in_place_of_a_log_is_missing(tmp_path):
    """
    What cannot be read is told in the result.
    """
    log = read_driver_log(str(tmp_path))

    assert 1 == len(log.missing)
    assert str(tmp_path) == log.path
    assert "source" in str(log)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("driver.log", b"\xff\xfea\0", "UTF-16"),
        ("driver.log.gz", b"\x1f\x8b\x08\0\0", "end-of-stream"),
    ],
)
def test_a_broken_log_is_named(tmp_path, name, data, reason):
    """
    What cannot be read is an error that names the file, or told as missing.
    """
    path = tmp_path / name
    path.write_bytes(data)

    with pytest.raises(LogError, match=reason) as told:
        list(driver_lines(path))

    assert str(path) in str(told.value)
    assert not isinstance(told.value, NoLogsError)
    (missing,) = read_driver_log(path).missing
    assert reason in missing.reason


def test_a_text_of_lines_is_read():
    """
    A text of several lines is a log, not the name of one.
    """
    log = read_driver_log("(raylet) a\n(raylet) b\n")

    assert ("", 2) == (log.path, log.lines)
    assert "(raylet)" == str(log.sources[0])


def test_other_prefixes_are_no_sources():
    """
    Ranks of torchrun are no processes of Ray.
    """
    log = read("[default0]:hello", "plain")

    assert () == log.sources


@pytest.fixture
def sessions(tmp_path):
    """
    Two nodes: that of the driver, and another; both have a process 5.
    """
    found = []
    for ip in ("10.0.0.1", "10.0.0.2"):
        logs = tmp_path / ip / "logs"
        logs.mkdir(parents=True)
        name = f"worker-{ip[-1] * 56}-01000000-5.out"
        (logs / name).write_text(":job_id:01000000\n:actor_name:T\n")
        found.append(
            RaySession(root=logs.parent, logs=logs, name="s", ip=ip, host=ip)
        )
    (found[0].logs / f"python-core-driver-{'f' * 56}_1.log").touch()
    return found[0], found[1]


def match_of(sessions, pid, ip):
    """
    Which worker is meant by a prefix, and why none is.
    """
    source = DriverSource(
        origin=Origin(name="T", pid=pid, ip=ip), names=("T",)
    )
    (match,) = map_origins(DriverLog(sources=(source,)), sessions)
    return match.worker and match.worker.worker_id[0], match.reason


def test_no_address_means_the_node_of_the_driver(sessions):
    """
    The same number on another node belongs to who has the address.
    """
    found = [
        match_of(sessions, 5, None),
        match_of(sessions, 5, "10.0.0.2"),
        match_of(sessions, 6, "10.0.0.2"),
        match_of(sessions, 5, "10.0.0.3"),
    ]

    assert [
        ("1", ""),
        ("2", ""),
        (None, "no worker there had number 6"),
        (None, "the folder of 10.0.0.3 is not here"),
    ] == found


def test_a_single_session_will_do(sessions):
    """
    One session may be given as it is; others are then unknown.
    """
    source = DriverSource(origin=Origin(name="T", pid=5), names=("T",))
    log = DriverLog(sources=(source,))

    (match,) = map_origins(log, sessions[1])

    assert "the folder of the driver's node is not here" == match.reason


def test_nodes_without_an_address_are_tried(sessions):
    """
    A node that does not tell its address may still have the process.
    """
    nameless = attrs.evolve(sessions[1], ip=None)

    found = match_of([nameless], 5, "10.0.0.9")

    assert ("2", "") == found


def test_numbers_that_were_used_twice_are_told_by_name(sessions):
    """
    Of two workers with one number the one of that name is meant, if any.
    """
    again = sessions[0].logs / f"worker-{'3' * 56}-01000000-5.out"
    again.write_text(":job_id:01000000\n:actor_name:U\n")
    by_name = match_of(sessions, 5, None)
    again.write_text(":job_id:01000000\n:actor_name:T\n")

    unclear = match_of(sessions, 5, None)

    assert ("1", "") == by_name
    assert (None, "2 workers had number 5") == unclear


def test_folders_that_are_gone_are_no_nodes(tmp_path):
    """
    A session whose folder vanished has no workers.
    """
    gone = tmp_path / "gone"
    session = RaySession(root=gone, logs=gone, name="s", is_head=True)

    found = match_of([session], 5, None)

    assert (None, "no worker there had number 5") == found


def test_labels_fall_back_to_what_is_known():
    """
    Who failed is named as well as possible.
    """
    labels = [
        Failure(kind="worker_crashed", line=1).label,
        Failure(kind="task_error", line=1, function="f").label,
        Failure(kind="actor_died", line=1, actor_class="T", rank=2).label,
    ]

    assert ["a worker", "f", "T (rank 2)"] == labels


def test_submitted_jobs_are_found(sessions, tmp_path):
    """
    What Ray keeps of submitted drivers is found, and nothing else.
    """
    log = sessions[1].logs / "job-driver-raysubmit_1.log"
    log.write_text("(raylet) hello\n")
    log.with_name("job-driver-link.log").symlink_to(log)
    packed = log.with_name("job-driver-raysubmit_2.log.gz")
    packed.write_bytes(b"")
    gone = attrs.evolve(sessions[0], logs=tmp_path / "gone")

    found = [find_driver_logs((*sessions, gone)), find_driver_logs(gone)]

    assert [(log, packed), ()] == found


def test_sources_are_bounded(monkeypatch):
    """
    However many processes print, only so many are told.
    """
    monkeypatch.setattr("distdebug.ray.driver_output._MOST_SOURCES", 2)

    log = read_driver_log([f"(A pid={pid}) x" for pid in (1, 2, 3, 1)])

    assert [(1, 2), (2, 1)] == [(x.origin.pid, x.lines) for x in log.sources]

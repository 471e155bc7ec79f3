"""
What is said of jobs that are ready, that failed, and of which actors died.
"""

from __future__ import annotations

from datetime import datetime

import pytest

from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.errors import NoLogsError
from distdebug.logs import detect_phase


BEGUN = datetime(2026, 2, 20, 2, 4, 0).timestamp()  # noqa: DTZ001 as logs do
WEEK = 7 * 86_400.0
VLLM = """\
INFO 02-20 02:03:10 [core.py:69] Initializing a V1 LLM engine (v0.11.0)
INFO 02-20 02:03:20 [gpu_model_runner.py:17] Starting to load model m...
INFO 02-20 02:03:50 [gpu_model_runner.py:19] Model loading took 30.5 GiB
"""
SGLANG = """\
[2026-02-20 02:03:14 TP0] Init torch distributed begin.
[2026-02-20 02:03:20 TP0] Load weight begin. avail mem=78.1 GB
[2026-02-20 02:03:26 TP0] Load weight end. type=X
[2026-02-20 02:03:46] max_total_num_tokens=1035041, chunked_prefill_size=8192
"""
READY = {
    "vllm": (
        VLLM + "INFO 02-20 02:04:00 [api_server.py:19] Starting vLLM API "
        "server 0 on http://0.0.0.0:8000\n"
        "INFO:     Application startup complete.\n",
        "vLLM is ready",
    ),
    "sglang": (
        SGLANG
        + "[2026-02-20 02:04:00] The server is fired up and ready to roll!\n",
        "SGLang is ready",
    ),
    "unknown": (
        (
            "2026-02-20 02:03:10 loading checkpoint shards: 100%|x| 4/4 "
            "[00:04<00:00, 1.1s/it]\n"
            "2026-02-20 02:03:50 INFO:     Waiting for application startup.\n"
            "2026-02-20 02:04:00 INFO:     Application startup complete.\n"
        ),
        "The server is ready",
    ),
}
STEPS = "".join(f"step {n} loss 1.5\n" for n in range(4))
CHILD_FAILED = """\
Traceback (most recent call last):
  File "/x/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def trace(said, before=""):
    """
    A traceback, with that before each line.
    """
    lines = ["Traceback (most recent call last):", '  File "t.py"', said]
    return "".join(f"{before}{line}\n" for line in lines)


def mixed(*texts):
    """
    The lines of several texts, in turn.
    """
    lines = (text.splitlines(keepends=True) for text in texts)
    return "".join(x for some in zip(*lines, strict=True) for x in some)


def death(pid, actor):
    """
    What Ray says of an actor that died.
    """
    return (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before "
        "finishing this task.\n"
        f"\tclass_name: {actor}\n\tactor_id: 4bf4\n\tpid: {pid}\n"
        "\tnamespace: n\n\tip: 10.0.0.2\n"
        "The actor is dead because its worker process has died.\n"
    )


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize("idle", [5.0, WEEK])
def test_ready(name, idle):
    """
    A server that is ready may be idle for ever.
    """
    text, said = READY[name]

    report = detect_phase(text, now=BEGUN + idle)

    assert () == report.findings
    assert report.is_normal
    assert report.verdict.startswith(f"{said}, serving: silent for")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_not_yet_ready(name):
    """
    A server that never became ready is stalled.
    """
    text = "\n".join(READY[name][0].splitlines()[:-1])

    report = detect_phase(text, now=BEGUN + WEEK)

    assert [Cause.START_UP_STALLED] == [f.cause for f in report.findings]


def test_ready_without_time():
    """
    Nothing is said of the silence of a server whose log has no times.
    """
    report = detect_phase(READY["vllm"][0])

    assert report.is_normal
    assert "vLLM is ready, serving." == report.verdict


def test_loads_after_it_is_ready():
    """
    What goes on after a server was ready is reported, not the server.
    """
    text = READY["unknown"][0] + (
        "2026-02-20 02:05:00 loading checkpoint shards:  25%|x| 1/4 "
        "[00:04<00:12, 1.1s/it]\n"
    )

    report = detect_phase(text, now=BEGUN + WEEK)

    assert "shards" == report.current.name
    assert report.is_normal is False


PEER = "RuntimeError: Connection reset by peer"
CLOSED = "RuntimeError: pair.cc:553 Connection closed by peer"
BAD = "ValueError: bad batch"
ENGINE = "ERROR 02-20 02:04:00 [core.py:7] "
TRAINER = "(Trainer pid=7) 2026-02-20 02:04:{} INFO {}\n"


@pytest.mark.parametrize(
    ("text", "said", "ranks"),
    [
        (STEPS + trace("KeyError: 'label'"), "KeyError: 'label'", ()),
        (STEPS + trace("AssertionError"), "AssertionError", ()),
        (
            STEPS + trace("KeyError: 'x'", "[rank3]: ") + CHILD_FAILED,
            "KeyError: 'x'",
            (3,),
        ),
        (STEPS + trace(PEER, "[rank3]: ") + CHILD_FAILED, PEER, ()),
        (
            STEPS
            + trace(BAD, "[rank1]: ")
            + trace(CLOSED, "[rank0]: ")
            + CHILD_FAILED,
            BAD,
            (1,),
        ),
        (
            STEPS
            + trace(PEER, "[rank0]: ")
            + trace(BAD, "[rank1]: ")
            + CHILD_FAILED,
            BAD,
            (1,),
        ),
        (
            STEPS
            + trace(BAD, "[rank1]: ")
            + trace("RuntimeError: [Errno 32] Broken pipe", "[rank1]: ")
            + CHILD_FAILED,
            BAD,
            (1,),
        ),
        (
            trace("OSError: first try")
            + STEPS
            + trace("OSError: too late")
            + CHILD_FAILED,
            "OSError: too late",
            (),
        ),
        (
            STEPS
            + mixed(
                *(trace(f"KeyError: {n}", f"[rank{n}]: ") for n in range(4))
            )
            + CHILD_FAILED,
            "KeyError: 0",
            (0,),
        ),
        (
            VLLM
            + f"{ENGINE}EngineCore failed to start.\n"
            + trace("ImportError: no kernels", ENGINE)
            + trace(
                "RuntimeError: Engine core initialization failed. See root "
                "cause above.",
                "(APIServer pid=7) ",
            ),
            "ImportError: no kernels",
            (),
        ),
        (
            TRAINER.format("00", "loading model")
            + trace("ModuleNotFoundError: No module named 'x'")
            + TRAINER.format("09", "model loaded"),
            "ModuleNotFoundError: No module named 'x'",
            (),
        ),
    ],
    ids=[
        *("exception", "bare", "rank", "peer-is-gone", "first-rank"),
        *("later-rank", "follows", "survived", "mixed", "engine", "driver"),
    ],
)
def test_failed(text, said, ranks):
    """
    A job that failed has a finding that quotes the exception which began it,
    with its rank, unless that only lost its peer.
    """
    report = detect_phase(text, now=BEGUN + WEEK)

    (finding,) = report.findings
    assert ("failed", False) == (report.ended, report.is_normal)
    assert (Cause.RANK_CRASHED, "likely") == (
        finding.cause,
        finding.confidence,
    )
    assert (said, ranks) == (finding.evidence[0].quote, finding.ranks)
    assert report.verdict.startswith("The job failed")
    assert said in report.verdict


def test_busy_inside_before_any_phase():
    """
    What goes on inside is shown where no phase of the framework has begun.
    """
    text = "2026-02-20 02:03:10 INFO Initializing process group\n"

    report = detect_phase(text, framework="huggingface")

    assert "process_group" == report.current.name
    assert "common" == report.current.framework


def test_traceback_without_an_end():
    """
    A traceback whose exception never comes is given up.
    """
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        "[rank0]: Traceback (most recent call last):\n"
        + "x\n" * 500
        + "[rank0]: ValueError: far away\n"
        + "".join(f"step {n} loss 1.0\n" for n in range(3))
    )

    report = detect_phase(text)

    assert (None, ()) == (report.ended, report.findings)


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT "
            "2026-02-20T02:04:00 DUE TO TIME LIMIT ***"
        ),
    ],
    ids=["shell", "slurm"],
)
def test_killed(line):
    """
    A job that was killed before it began any phase has a finding, too.
    """
    report = detect_phase(["x", line])

    (finding,) = report.findings
    assert Cause.KILLED == finding.cause
    assert line.startswith(finding.evidence[0].quote[:20])
    assert report.verdict.startswith("The job was killed")
    assert ("DUE TO TIME LIMIT" in line) is ("TIME LIMIT" in report.verdict)
    assert report.is_normal is False


@pytest.mark.parametrize(
    ("said", "head"),
    [
        (
            (
                "ValueError: To serve at least one request with the models's "
                "max seq len (40960), 5.00 GiB KV cache is needed"
            ),
            VLLM,
        ),
        ("ValueError: No available memory for the cache blocks.", VLLM),
        (
            (
                "RuntimeError: Not enough memory. Please try to increase "
                "--mem-fraction-static."
            ),
            SGLANG,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory.", STEPS),
    ],
    ids=["max-len", "blocks", "fraction", "torch"],
)
def test_memory(said, head):
    """
    Where memory of the GPU ran out, that is the only finding.
    """
    report = detect_phase(head + trace(said))

    assert "failed" == report.ended
    assert [Cause.GPU_OUT_OF_MEMORY] == [f.cause for f in report.findings]


IN_LINE = (
    "caught ActorDiedError\n(Engine pid=40, ip=10.0.0.3) Exception raised in "
    "creation task: The actor died because of an error raised in its creation "
    "task, ray::big:Engine.__init__() (pid=40, ip=10.0.0.3, actor_id=c4bd)\n"
)
OTHERS = (
    "ray.exceptions.ActorDiedError: The actor died.\n\tpid: 7\n"
    "(Other pid=8) class_name: Other\n\tpid: 9\n\tclass_name: Late\n"
)


@pytest.mark.parametrize(
    ("text", "actors"),
    [
        (
            IN_LINE + death(41, "A") + death(42, "B"),
            [
                ": Engine, pid 40 on 10.0.0.3",
                ": A, pid 41 on 10.0.0.2",
                ": B, pid 42 on 10.0.0.2",
            ],
        ),
        (
            "".join(death(pid, "A") + "x\n" * 30 for pid in (7, 8, 7)),
            [": A, pid 7 on 10.0.0.2", ": A, pid 8 on 10.0.0.2"],
        ),
        (OTHERS, [", pid 7"]),
    ],
    ids=["close", "again", "unknown"],
)
def test_actors(text, actors):
    """
    Each actor that died is a finding, once, with its own class and process,
    and not what another process or a later line says.
    """
    report = detect_phase(text)

    assert {Cause.ACTOR_DIED} == {f.cause for f in report.findings}
    assert [f"Ray reports that an actor died{x}" for x in actors] == [
        f.summary.partition(";")[0] for f in report.findings
    ]


def test_file_of_an_actor():
    """
    The remedy names the node, and the file of the actor to look into.
    """
    (finding,) = detect_phase(STEPS + death(514428, "A")).findings

    assert "worker-*-514428.err" in finding.remedy
    assert "node 10.0.0.2" in finding.remedy


@pytest.mark.parametrize("name", ["nosuch.log", "no/such", "/no/such/x"])
@pytest.mark.parametrize("as_list", [False, True], ids=["text", "list"])
def test_path_that_is_not_there(name, as_list):
    """
    What looks like a path is none of the lines of a log.
    """
    with pytest.raises(NoLogsError) as caught:
        detect_phase([name] if as_list else name)

    assert caught.value.remedy


@pytest.mark.parametrize("name", ["nosuch", "nosuch.log", "step 3 loss nan"])
def test_command_takes_paths(name, capsys):
    """
    The command takes its arguments for paths, whatever they look like.
    """
    status = main(["phase", name])

    assert 2 == status
    assert "Try: " in capsys.readouterr().err


def test_command_fails_with_the_job(tmp_path, capsys):
    """
    The exit status of the command shows that a job failed.
    """
    path = tmp_path / "train.log"
    path.write_text(STEPS + trace("KeyError: 'x'"))

    status = main(["phase", str(path)])

    assert 1 == status
    assert "rank_crashed: " in capsys.readouterr().out


@pytest.mark.parametrize("now", [None, BEGUN], ids=["ended", "runs"])
def test_worst_first(now):
    """
    The verdict begins with the worst that was found.
    """
    text = (
        "***** Running training *****\n"
        "{'loss': nan, 'grad_norm': 1.2, 'epoch': 0.1}\n"
        " 20%|x| 20/100 [00:10<00:40, 1.0s/it]\n"
    )
    if now is None:
        text += "{'train_runtime': 7.0}\n"

    report = detect_phase(text, now=now)

    assert report.verdict.startswith(report.findings[0].summary)
    assert "raining" in report.verdict.partition("Phase: ")[2]
    assert report.is_normal is False


@pytest.mark.parametrize(
    "actor",
    ["SglEngine", "VllmEngine", "RolloutManager", "SGLangEngine"],
)
def test_name_of_an_actor_is_no_framework(actor):
    """
    The name of an actor does not show which framework runs.
    """
    text = (
        "INFO worker.py:1841 -- Connecting to existing Ray cluster at "
        "address: 10.0.0.2:6379...\n"
        f"({actor} pid=7) engine boot 0\n"
        f"({actor} pid=7) Loading safetensors checkpoint shards:  12%|x| 5/40 "
        "[00:00<00:00, 43.4it/s]\n"
    )

    report = detect_phase(text)

    assert report.framework is None
    assert all(phase.framework == "common" for phase in report.phases)

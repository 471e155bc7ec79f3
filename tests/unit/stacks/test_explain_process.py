"""
What one process is doing: which thread tells, and who holds what.
"""

from __future__ import annotations

import os
import re
import threading

from functools import partial
from pathlib import Path

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    explain_ranks,
    explain_stacks,
    is_native,
)
from distdebug.stacks.rules import SourceLines


USER = "train /home/me/train.py:3"
REDUCE = "all_reduce T/distributed/distributed_c10d.py:9"
JOIN = "join L/threading.py"
GET = "get L/queue.py"
ACQUIRE = "acquire L/threading.py"
WAIT = "wait L/threading.py"
IMPORT = "acquire <frozen importlib._bootstrap>"
RESULT = "result L/concurrent/futures/_base.py"
RAY = "main_loop ray/_private/worker.py:9"
RUN_ONCE = "_run_once L/asyncio/base_events.py"
RUNNER = "run L/asyncio/runners.py"
SELECT = "select L/selectors.py"
CALLBACK = "_run L/asyncio/events.py:84"
SYNC = "synchronize T/cuda/__init__.py"
FETCH = "fetch T/utils/data/_utils/fetch.py"
SVD = "svd numpy/linalg/_linalg.py"
WORK = "work /home/me/work.py:7"
RUN = "run /home/me/work.py:3"
BEGUN = "_bootstrap L/threading.py"
SLEEP = "sleep /home/me/work.py:7"
HELD = "pause /me/driver.py:4"
BACKWARD = "_engine_run_backward T/autograd/graph.py"
FORK = [
    "_bootstrap L/multiprocessing/process.py",
    "_launch L/multiprocessing/popen_fork.py",
    REDUCE,
]
LOADER = "_worker_loop T/utils/data/_utils/worker.py"
EVAL = "_PyEval_EvalFrameDefault python3.11"
MATCH = ["sre_ucs1_match _sre.so", "sre_search _sre.so", EVAL]


def frames(*lines):
    """
    Lines of a stack, innermost first, as ``function file:line``; those without
    a number, and not in a file of Python, are native.

    L and T are the folders of Python and torch, which are on no machine, so
    that no code is read from there.
    """
    return tuple(map(frame, lines))


def frame(line):
    """
    The line of a stack that this means.
    """
    name, _, place = line.partition(" ")
    file, number = re.fullmatch(r"(.*?)(?::(\d+))?", place).groups()
    is_python = bool(number) or file.endswith((".py", ">"))
    file = re.sub("^T/", "L/site-packages/torch/", file)
    file = re.sub("^L/", "/none/lib/python3.11/", file)
    return StackFrame(name, file, int(number or is_python), not is_python)


def thread(*lines, native=(), call=None, name="", code="", **changes):
    """
    A thread that is not the main thread; its lines have this code.
    """
    if isinstance(call, str):
        call = SystemCall(name=call)
    return ThreadStack(
        name=name,
        frames=tuple(attrs.evolve(f, code=code) for f in frames(*lines)),
        native=frames(*native),
        system_call=call,
        **changes,
    )


def main(*lines, **changes):
    """
    The main thread.
    """
    return thread(*lines, is_main=True, **changes)


def did(voluntary=0, cpu_s=0.0, involuntary=0, **changes):
    """
    What became of a thread in two seconds.
    """
    return ThreadActivity(
        seconds=2.0,
        voluntary=voluntary,
        involuntary=involuntary,
        cpu_s=cpu_s,
        **changes,
    )


STAYS = did(0, 1.9, has_moved=False, has_left=False)


def process(*threads, **changes):
    """
    A process with these threads.
    """
    values = {"pid": 1, "source": "s", "threads": threads, **changes}
    return ProcessStacks(**values)


def view(*threads, rules=(), **changes):
    """
    What a process with these threads is doing.
    """
    views = explain_ranks([process(*threads, **changes)], rules=rules)
    return next(iter(views), None)


def words(*threads, **changes):
    """
    What is told of these threads in single words: cause, confidence, motion,
    and line.
    """
    got = view(*threads, **changes)
    if got is None:
        return {"nothing"}

    where = got.location
    return {
        got.cause.value,
        got.confidence,
        f"is_{got.motion.value}",
        got.rule.replace(" ", "_"),
        f"{where.function}:{where.line}" if where else "nowhere",
    }


def check(expected, *threads, **changes):
    """
    Compare words; one after a minus may not be told.
    """
    got = words(*threads, **changes)

    for word in expected.split():
        assert (word[0] != "-") == (word.lstrip("-") in got), got


def said(*threads, **changes):
    """
    What is told of a rank with these threads.
    """
    (found,) = explain_stacks([process(*threads, rank=0, **changes)])
    return found


STACKS = [
    ("collective_wait", REDUCE, "wrapper T/c10d_logger.py"),
    (
        "collective_wait",
        "__call__ T/_ops.py",
        "wait_tensor T/distributed/_functional_collectives.py:2",
    ),
    (
        "collective_wait",
        "epoll_wait libc.so.6",
        "gloo::transport::tcp::Buffer::waitRecv libtorch_cpu.so",
    ),
    (
        "rendezvous_wait",
        "_create_c10d_store T/distributed/rendezvous.py",
        "init_process_group T/distributed/distributed_c10d.py:2",
    ),
    ("dataloader_wait", "DS.__getitem__ /home/me/data.py", FETCH),
    (
        "dataloader_wait",
        SELECT,
        "wait L/multiprocessing/connection.py:2",
        "Queue.get L/multiprocessing/queues.py:3",
        "_try_get_data T/utils/data/dataloader.py:4",
    ),
    ("checkpointing", "write L/x.py", "save T/serialization.py:2"),
    ("checkpointing", "f /a.py", "M.save_checkpoint /b:2"),
    (
        "compiling",
        "wait L/threading.py",
        "compile T/_inductor/async_compile.py:2",
    ),
    ("gpu_sync_wait", SYNC),
    ("gpu_sync_wait", "ioctl libc.so", "cudaStreamSynchronize libcudart.so"),
    ("subprocess_wait", "Popen._try_wait L/subprocess.py"),
    ("import_lock", "acquire <frozen importlib._bootstrap>"),
    (
        "future_wait",
        "wait L/threading.py",
        "result L/concurrent/futures/_base.py:2",
    ),
    ("future_wait", "Thread.join L/threading.py"),
    ("queue_wait", "Condition.wait L/threading.py", GET),
    (
        "event_loop_idle",
        SELECT,
        "BaseEventLoop._run_once L/asyncio/base_events.py:2",
    ),
    ("io_wait", "readinto L/socket.py"),
    ("io_wait", "Path.open L/pathlib.py"),
    ("io_wait", "open L/pathlib/_local.py"),
    ("lock_deadlock", "Event.wait L/threading.py"),
    ("lock_deadlock", "acquire /x/filelock/_api.py"),
    ("sleeping", "sleep /x/tenacity/nap.py"),
    ("sleeping", "clock_nanosleep@@GLIBC_2.17 libc.so.6"),
]


@pytest.mark.parametrize("is_of_windows", [False, True])
@pytest.mark.parametrize("known", STACKS)
def test_stack(known, is_of_windows):
    """
    The stack tells what is waited for, on every system.
    """
    expected, *lines = known
    stack = main(*lines, USER)
    if is_of_windows:
        there = [
            attrs.evolve(f, filename=f.filename.replace("/", "\\"))
            for f in stack.frames
        ]
        stack = attrs.evolve(stack, frames=tuple(there))

    check(expected, stack)


SAVE = ("save_checkpoint /home/me/save.py", USER)
CODES = [
    ("sleeping", main(USER, code="    time.sleep(3600)")),
    ("subprocess_wait", main(USER, code="os.waitpid(pid, 0)")),
    ("lock_deadlock", main(USER, code="with self._lock:")),
    ("lock_deadlock", main(USER, code="lock.acquire()")),
    ("lock_deadlock", main(USER, code="fcntl.flock(file, fcntl.LOCK_EX)")),
    ("lock_deadlock", main(USER, code="lockf(file, LOCK_EX)")),
    ("gpu_sync_wait", main(USER, code="event.synchronize()")),
    ("io_wait", main(USER, code="with open(path) as file:")),
    ("io_wait", main(USER, code="data = file.read(16)")),
    # A key of the store is no rendezvous of all ranks.
    ("rendezvous_wait", main(USER, code='store.wait(["lr/3"], timeout)')),
    # SQLite sleeps until another process lets go of a lock.
    (
        "lock_deadlock",
        main(USER, call="clock_nanosleep", code='db.execute("BEGIN")'),
    ),
    ("unknown", main(USER, code="x = asleep + reading")),
    ("unknown", main(USER, code="flocks = birds(3)")),
    # The line that waits tells more than the name of its function.
    ("lock_deadlock", main(*SAVE, code="fcntl.flock(file, LOCK_EX)")),
    ("lock_deadlock", main(*SAVE, code="flock(file, LOCK_EX)", active=True)),
    ("sleeping", main(*SAVE, code="time.sleep(60)")),
    ("sleeping", main(*SAVE, code="time.sleep(60)", active=True)),
    ("checkpointing", main(*SAVE, code="write_all(state)")),
    ("checkpointing", main(*SAVE, code="write_all(state)", active=True)),
    ("checkpointing", main(*SAVE)),
    ("checkpointing", main(*SAVE, active=True)),
]


@pytest.mark.parametrize(("expected", "stack"), CODES)
def test_code(expected, stack):
    """
    Functions in C are told by the line that calls them.
    """
    check(expected, stack)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("dist.irecv(grad, rank + 1).wait()", True),
        ("dist.isend(x, 1, tag=2).wait()", True),
        ("reqs[0].wait()", True),
        ("work.wait()", True),
        ("for r in reqs: r.wait()", True),
        ("w.wait()", True),
        ("dist.broadcast(x, 0, async_op=True).wait()", True),
        ("done.wait()", False),
    ],
)
def test_waits_for_work(code, expected):
    """
    Who waits for what torch does in the background waits for the others.
    """
    word = "collective_wait" if expected else "-collective_wait"

    check(word, main(USER, call="futex", code=code))


def test_code_of_innermost():
    """
    Only the innermost line can be the one that waits.
    """
    inner, outer = (
        main("a /a.py", code="b()"),
        main(USER, code="time.sleep(1)"),
    )

    check("unknown", attrs.evolve(inner, frames=inner.frames + outer.frames))


def test_evidence():
    """
    The frame that tells it is returned.
    """
    got = view(main("f /a.py", "sleep /b.py:2", USER))

    assert frame("sleep /b.py:2") == got.frame


CODE = """\
a = 1
if a:
    b()
def f(items):
    total = 0
    for item in items:
        total += item

        print(total)
    while total:
        total -= 1
    return [
        x for x in items
    ]
class A:
    b = g(
        1)
"""


class TestSourceLines:
    @pytest.fixture(name="file")
    def source_file(self, tmp_path):
        """
        A file with loops.
        """
        file = tmp_path / "a.py"
        file.write_text(CODE)
        return str(file)

    @pytest.mark.parametrize(
        ("line", "is_in_loop"),
        [
            (3, False),
            (5, False),
            (6, True),
            (7, True),
            (8, None),
            (9, True),
            (11, True),
            (12, False),
            (13, True),
            (16, False),
            (99, None),
        ],
    )
    def test_loop(self, file, line, is_in_loop):
        """
        A line that is not in a loop, and lasts, is in native code.
        """
        expected = "native_spin" if is_in_loop is False else "python_loop"

        check(
            expected, main(f"f {file}:{line}", owns_gil=True, activity=STAYS)
        )

    @pytest.mark.parametrize(
        ("line", "expected"),
        [(2, "sleeping"), (1, "unknown"), (0, "unknown"), (99, "unknown")],
    )
    def test_read(self, tmp_path, line, expected):
        """
        The code is read where it is there, unless the dump shows it.
        """
        file = tmp_path / "a.py"
        file.write_text("import time\ntime.sleep(1)\n")
        where = f"f {file}:{line}"

        check(expected, main(where))
        check("lock_deadlock", main(where, code="with lock:"))

    def test_not_there(self, tmp_path, monkeypatch):
        """
        Without the code nothing is guessed, and no strange file is opened.
        """
        monkeypatch.chdir(tmp_path)
        for name in ("a.py", "refused.py"):
            (tmp_path / name).write_text("time.sleep(1)\n")
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "long.py").write_text(
            "#" * (4 << 20) + "\ntime.sleep(1)\n"
        )
        opened = []
        real_open = Path.open

        def refuse(path, *args):
            opened.append(path.name)
            if path.name == "refused.py":
                raise OSError
            return real_open(path, *args)

        monkeypatch.setattr(Path, "open", refuse)

        for file, line in (
            ("a.py", 1),
            ("/a\0b", 1),
            (tmp_path / "pipe", 1),
            (tmp_path / "none", 1),
            (tmp_path / "long.py", 2),
            (tmp_path / "refused.py", 1),
        ):
            check("unknown", main(f"f {file}:{line}"))
        assert ["long.py", "refused.py"] == opened

    def test_once(self, file, monkeypatch):
        """
        A file is read once for all processes.
        """
        opened = []
        real_open = Path.open

        def watched(path, *args):
            opened.append(str(path))
            return real_open(path, *args)

        monkeypatch.setattr(Path, "open", watched)
        stack = main(f"f {file}:5")

        explain_ranks([process(stack, pid=n) for n in (1, 2, 3)])

        assert [file] == opened

    def test_patience(self, file, monkeypatch):
        """
        A file system that does not answer is not waited for, and not asked
        again.
        """
        asked = []
        answers = threading.Event()

        def never(path):
            asked.append(str(path))
            return answers.wait()

        monkeypatch.setattr(Path, "is_file", never)
        lines = SourceLines(timeout_s=0.01)

        got = [lines(file, 1), lines(file + "x", 1)]
        answers.set()

        assert ["", ""] == got
        assert [file] == asked

    def test_many(self, file):
        """
        Endless names of files do not fill the memory.
        """
        lines = SourceLines()

        for number in range(10_000):
            lines(f"{number}.py", 1)

        assert "" == lines(file, 1)


POLLS = """
[[rule]]
cause = "io_wait"
function = "waits"
wakes = 0

[[rule]]
cause = "io_wait"
function = "polls"
wakes = 0.6
"""

HERE = {"has_moved": False, "has_left": False}
MOTIONS = [
    # It was somewhere else.
    ("moving", did(has_left=True), {}),
    ("moving", did(has_moved=True), {}),
    # Another line of the same loop is no progress.
    ("still", did(has_moved=True, has_left=False), {}),
    # Never ran, or only to look around.
    ("still", did(), {}),
    ("still", did(20, 0.001), {}),
    # Who is woken only by others was woken.
    ("moving", did(4, 0.001), {"name": "waits"}),
    ("still", did(1, 0.0001), {"name": "polls"}),
    ("moving", did(1, 2e-4), {"name": "polls", "call": "wait4"}),
    ("moving", did(3, 3e-5), {"name": "polls", "call": "wait4"}),
    ("moving", did(1, has_returned=True), {"name": "polls", "call": "wait4"}),
    # A signal, or a look from outside, woke it.
    ("still", did(2, 1e-4), {"name": "polls", "call": "wait4"}),
    # It works whenever it wakes up.
    ("moving", did(4, 0.02), {}),
    # Ran all the time, also where the processor is shared.
    ("spinning", did(0, 1.9, **HERE), {}),
    ("spinning", did(0, 0.2, 100, **HERE), {}),
    ("spinning", did(0, 1.9, has_returned=False, **HERE), {}),
    # It would run, if it were let.
    ("unknown", did(0, 0.01, 4), {"state": "R"}),
    ("unknown", did(0, 0.01), {"state": "R"}),
    (
        "moving",
        did(0, 0.01, has_left=False, has_returned=True),
        {"state": "R"},
    ),
    ("moving", did(1, 0.6, 12), {"state": "R"}),
    ("still", did(0, 0.01, 4), {"state": "S"}),
    # Ran, and nobody knows where before.
    ("unknown", did(0, 1.9), {}),
    # In the same functions by chance, as a recursion is.
    ("moving", did(0, 1.9, has_returned=True, **HERE), {}),
    # Whoever only waits in a loop does not get on by that.
    ("still", did(has_left=False, has_returned=True), {}),
    # Looked at once.
    ("unknown", None, {}),
    ("unknown", None, {"idle_s": 2.0}),
    ("still", None, {"idle_s": 900.0}),
    ("unknown", None, {"idle_s": 900.0, "state": "R"}),
]


@pytest.mark.parametrize(("expected", "activity", "changes"), MOTIONS)
def test_motion(expected, activity, changes, tmp_path):
    """
    Switches and time on the processor tell the stuck from the slow.
    """
    rules = tmp_path / "rules.toml"
    rules.write_text(POLLS)
    place = f"{changes.get('name', 'f')} /me/a.py"

    stack = main(place, activity=activity, **changes)

    check(f"is_{expected}", stack, rules=[rules])


@pytest.mark.parametrize(
    ("expected", "files"),
    [
        ("train.py", ["threading.py", "torch/nn/x.py", "train.py", "b.py"]),
        ("/me/a.py", ["/usr/lib/python3.12/queue.py", "/me/a.py"]),
        ("/x/queue.py", ["queue.py", "/x/queue.py"]),
        (
            "vllm/v1/worker/x.py",
            ["torch/cuda/__init__.py", "vllm/v1/worker/x.py", "<string>"],
        ),
        (
            "/opt/megatron-lm/megatron/core/x.py",
            [
                "/usr/lib/python3/dist-packages/torch/a.py",
                "/opt/megatron-lm/megatron/core/x.py",
            ],
        ),
        (
            "/x/site-packages/vllm/a.py",
            ["/x/site-packages/zmq/a.py", "/x/site-packages/vllm/a.py"],
        ),
        (
            "/me/run.py",
            ["/me/src/distdebug/debugger/inside/agent.py", "/me/run.py"],
        ),
        ("asyncio/a.py", ["libc.so.6", "asyncio/a.py", "numpy/b.py"]),
        (None, ["libc.so.6"]),
    ],
)
def test_user(expected, files):
    """
    The innermost line that a person can change is found, however little is
    left of the names of files.
    """
    got = view(main(*(f"f {name}:1" for name in files)))

    assert expected == (got.location and got.location.file)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("libtorch_cpu.so", True),
        ("libc.so.6", True),
        ("./nptl/futex-internal.c", True),
        ("python3.11", True),
        ("", True),
        ("a.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("notebook", False),
    ],
)
def test_native_file(filename, expected):
    """
    Files tell machine code, if the tool does not.
    """
    assert expected is is_native(StackFrame("f", filename, 0))


CALLS = [
    ("sleeping", "clock_nanosleep", ""),
    ("sleeping", "pause", ""),
    ("subprocess_wait", "wait4", "process 3"),
    ("lock_deadlock", "flock", "/x"),
    ("lock_deadlock", "futex", ""),
    ("queue_wait", "msgrcv", ""),
    ("io_wait", "read", "pipe:[7]"),
    ("io_wait", "connect", "tcp 10.0.0.1:443"),
    ("io_wait", "openat", "/mnt/data"),
    ("io_wait", "poll", "tcp 10.0.0.1:443"),
    ("gpu_sync_wait", "ioctl", "/dev/nvidia0"),
    ("unknown", "ioctl", "/dev/tty"),
    ("unknown", "running", ""),
]


@pytest.mark.parametrize(("expected", "name", "target"), CALLS)
def test_system_call(expected, name, target):
    """
    What the kernel was asked for tells more than a line that calls C.
    """
    check(expected, main(USER, call=SystemCall(name=name, target=target)))


def test_target():
    """
    The file that does not come is named, and the call is quoted.
    """
    call = SystemCall(name="read", target="/mnt/data/shard")

    found = said(main(USER, call=call))

    assert ": read('/mnt/data/shard')" in found.summary
    assert found.evidence[0].quote.endswith(" → read(shard)")


NATIVE = [
    ("collective_wait", "c10d::ProcessGroupGloo::AllreduceWork::wait"),
    ("collective_wait", "ncclCommInitRank"),
    ("collective_wait", "PMPI_Allreduce"),
    ("rendezvous_wait", "c10d::TCPStore::doWait"),
    ("launch_blocked", "cudaLaunchKernel"),
    ("launch_blocked", "cuModuleLoadDataEx"),
    ("gpu_sync_wait", "cuStreamSynchronize"),
    ("gpu_sync_wait", "at::native::_local_scalar_dense_cuda"),
    ("compiling", "nvrtcCompileProgram"),
    ("sleeping", "clock_nanosleep"),
    ("lock_deadlock", "__lll_lock_wait"),
    ("io_wait", "__libc_read"),
    ("subprocess_wait", "__GI___wait4"),
]


@pytest.mark.parametrize(("expected", "name"), NATIVE)
def test_native(expected, name):
    """
    Native functions tell what the innermost line of Python called.
    """
    inner = ["syscall libc.so.6", f"{name} x.so"]
    outer = [EVAL, "cudaStreamSynchronize libcudart.so"]

    check(expected, main(*inner, *outer))
    check(expected, main(*inner, USER, *outer))
    check(expected, main(USER, native=(*inner, *outer)))


def test_quote():
    """
    The line that tells is quoted, however deep it is; of libraries without
    folders.
    """
    deep = "load T/utils/data/dataloader.py:5"
    above = [f"f{n} /me/a.py:{n + 1}" for n in range(3)]

    near, far = view(main(*above, deep)), view(main(*above, USER, deep))

    last = "load (dataloader.py:5)"
    assert near.quote.startswith(f"{last} → f2 (/me/a.py:3) → f1")
    assert far.quote.startswith(f"{last} → … → f2 (/me/a.py:3) → f1")


def test_quote_own():
    """
    The user's line is quoted, also where libraries are deep.
    """
    inner = [f"f{n} T/x.py:{n + 1}" for n in range(6)]

    quote = view(main(*inner, USER, "run T/run.py:9")).quote

    assert quote.startswith("train (/home/me/train.py:3) → … → f2 (x.py:3) →")


def test_quote_native():
    """
    What a second tool saw in native code is quoted beside the Python lines.
    """
    deep = [f"g{n} x.so" for n in range(5)]
    spin = main(USER, native=MATCH, activity=STAYS)
    lock = main(USER, native=[*deep, "ncclCommInitRank x.so", EVAL])

    assert (
        "train (/home/me/train.py:3) → native: sre_search → sre_ucs1_match"
        == view(spin).quote
    )
    assert (
        "train (/home/me/train.py:3) → native: … → ncclCommInitRank → …"
        " → g2 → g1 → g0" == view(lock).quote
    )


def test_native_function():
    """
    Of code that does not return the function is named, and nobody is sent
    to look for it again; without it, nothing is claimed.
    """
    nameless = main(USER, native=["??", *MATCH], activity=STAYS)
    quick = ["long_add python3.11", EVAL]

    named = said(nameless)
    known = said(main(USER, native=quick, activity=STAYS))
    plain = said(main(USER, activity=STAYS, owns_gil=False))

    assert (
        "rank 0 is running native code (sre_ucs1_match) that does not return"
        " in train (train.py:3)" == named.summary
    )
    assert "--native" not in named.remedy
    assert "is running Python code (long_add)" in known.summary
    assert (
        "rank 0 is in native code in train (train.py:3) at every look"
        == plain.summary
    )
    assert "possible" == plain.confidence
    assert "--native" in plain.remedy


def test_native_alone():
    """
    Without a line of Python there is no line of the user; the function is
    named instead.
    """
    lines = ("__futex_abstimed_wait_common", "ncclCommInitRank x.so")

    found = said(main(*lines))

    assert (Cause.COLLECTIVE_WAIT, None) == (found.cause, found.location)
    assert "(in ncclCommInitRank)" in found.summary
    assert "ncclCommInitRank" in found.evidence[0].quote


WANDB = thread("sleep /me/y.py", name="wandb-upload")
UPLOAD = thread("upload /me/ckpt.py:20", call="connect", name="uploader")
PUMP = thread(GET, "pump /me/log.py:3")
NAP = thread("sleep /me/nap.py:3")
READ = thread("read /me/data.py:4", call="read")
SERVE = thread("poll zmq/sugar/poll.py", "loop /me/mq.py:3", BEGUN)
ACCEPT = thread(SELECT, "accept /me/mq.py:3", BEGUN)
REPORT = thread(WAIT, "_target L/site-packages/some_library/a.py", BEGUN)
STEP = thread(
    "poll zmq/sugar/poll.py", "recv /me/a.py", "step /me/a.py", BEGUN
)
BOARD = thread(GET, "run tensorboard/summary/writer/event_file_writer.py")
DRIVER = "pthread_rwlock_wrlock libc.so.6"
GROUP = "ncclGroupEnd libnccl.so.2"
TAKES = ["__lll_lock_wait", "PyGILState_Ensure"]

THREADS = {
    # A backward pass runs in another thread; the line is the user's.
    "backward alone": ("collective_wait possible", main(BACKWARD, USER)),
    "backward": (
        "collective_wait likely train:3",
        main(BACKWARD, USER),
        thread("get queue.py", "run tqdm/_monitor.py:2"),
        thread(REDUCE, "hook deepspeed/runtime/engine.py:2"),
    ),
    # Threads that work for others are left out; those that train are not.
    "helper": ("future_wait", main(JOIN, USER), WANDB),
    "idle actor": ("idle", main(RAY), WANDB),
    "actor that sleeps in a thread": (
        "sleeping",
        main(RAY),
        thread("fetch /me/x.py", name="pool", call="clock_nanosleep"),
    ),
    "actor of unknown work": (
        "unknown fit:5",
        main(RAY),
        thread("fit x.py:5"),
    ),
    "diagnostics": (
        "future_wait",
        main(JOIN, USER),
        thread(
            "communicate L/subprocess.py",
            "pyspy_dump_workers /me/tools.py:2",
            "_watchdog_loop /me/tools.py:3",
            USER,
        ),
    ),
    # The marked thread counts; without one, the one that began as a program,
    # or the first that has frames.
    "marked": ("future_wait", thread(SLEEP, name="wandb"), main(JOIN)),
    "empty first": ("sleeping", thread(), thread("sleep /a.py")),
    "program": ("collective_wait", BOARD, thread(REDUCE, "<module> /a.py")),
    "no program": ("collective_wait", BOARD, thread(REDUCE, USER)),
    "one helper": ("queue_wait", BOARD),
    "only helpers": ("nothing", BOARD, BOARD),
    "no frames": ("nothing", thread()),
    "no threads": ("nothing",),
    # Without its main thread, threads that wait for work tell nothing.
    "cut off": ("nothing", SERVE),
    "cut off, all wait for work": ("nothing", SERVE, ACCEPT, REPORT),
    "cut off, one works": ("recv:1", SERVE, REPORT, STEP),
    "cut off, one waits": ("collective_wait", SERVE, thread(REDUCE, BEGUN)),
    # Who waits for a thread waits for what that waits for, at its line.
    "import": (
        "import_lock",
        main(JOIN, USER),
        thread(IMPORT, "load /me/a.py"),
    ),
    "joined": ("io_wait upload:20", main(JOIN, USER), UPLOAD),
    # Of several threads, the one that is blocked is meant, if that is clear.
    "joined pump": ("queue_wait", main(JOIN, USER), PUMP),
    "joined reader": ("io_wait", main(JOIN, USER), PUMP, NAP, READ),
    "joined unclear": ("future_wait", main(JOIN, USER), PUMP, NAP),
    "joined another": ("future_wait", main(JOIN, USER), thread(JOIN, USER)),
    # Who waits for a result does not wait for a thread without work.
    "asked idle": ("future_wait", main(RESULT, USER), PUMP),
    "asked": (
        "queue_wait",
        main(RESULT, USER),
        PUMP,
        thread(GET, "take /me/log.py:3", "work /me/a.py:5"),
    ),
    "asked one that asks": (
        "future_wait read:4",
        main(RESULT, USER),
        PUMP,
        thread(RESULT, "read /me/data.py:4"),
    ),
    "queue": ("queue_wait train:3", main(GET, USER), UPLOAD),
    "queue without a user": ("queue_wait upload:20", main(GET), UPLOAD),
    "joined in a loop": (
        "event_loop_stall",
        main(JOIN, USER, CALLBACK, RUN_ONCE),
        READ,
    ),
    # A lock inside the driver is not told by the collective around it.
    "lock of the driver": (
        "launch_blocked",
        thread(DRIVER, "?? /usr/lib/libcuda.so.1", GROUP),
    ),
    "lock elsewhere": ("collective_wait", thread(DRIVER, GROUP)),
    # A worker is told by the code that it was given.
    "forked": ("io_wait", main(USER, *FORK, call="read")),
    "idle loader": (
        "idle",
        main("get L/multiprocessing/queues.py", LOADER, *FORK),
    ),
    # One that is called a monitor, and waits for its turn, is one.
    "monitor": (
        "future_wait",
        main(JOIN, USER),
        thread(SLEEP, name="Monitor"),
    ),
    # Threads that wait for locks wait for each other.
    "locks": (
        "cycle_of_locks possible",
        main(JOIN, USER),
        thread("pay /me/a.py", call="futex"),
        thread("refund /me/a.py:2", call="futex"),
    ),
    "one lock": (
        "lock_deadlock -cycle_of_locks",
        main(JOIN, USER),
        thread("pay /me/a.py", call="futex", code="with first:"),
    ),
    "a lock that is taken again and again": (
        "-cycle_of_locks",
        main(JOIN),
        thread("pay /me/a.py", call="futex", activity=did(500, 0.01)),
        thread("refund /me/a.py:2", call="futex"),
    ),
}
TURNS = ["handle /me/a.py:7", CALLBACK, RUN_ONCE, RUNNER]
LOOPS = {
    # Whatever blocks in a callback blocks the event loop.
    "stalled": (
        "event_loop_stall likely",
        main(*TURNS, call="clock_nanosleep"),
    ),
    "computes": ("event_loop_stall possible", main(*TURNS, active=True)),
    "collective": ("collective_wait", main(REDUCE, *TURNS)),
    "idle": ("event_loop_idle", main(SELECT, RUN_ONCE)),
    # A loop in native code is known by what is around it.
    "uvloop": ("event_loop_idle", main(RUNNER, USER)),
    "uvloop stalled": (
        "event_loop_stall",
        main("handle /me/a.py", RUNNER, call="read"),
    ),
}
QUICK = ["long_add python3.11", EVAL]
BUSY = partial(did, cpu_s=2.0, has_moved=False, has_new_values=True)
CONV = "conv2d T/nn/functional.py"
CUDA = thread(name="cuda-EvtHandlr")
RUNNING = {
    # What was seen over time counts more than one moment.
    "busy": ("python_loop", main(USER, activity=did(0, 1.9), state="S")),
    "starved": ("-python_loop", main(USER, activity=did(0, 0.01), state="R")),
    "woken": ("-python_loop", main(USER, activity=did(9, 0.01), state="R")),
    "driven away": (
        "python_loop",
        main(USER, activity=did(0, 0.01, 4), state="R"),
    ),
    "mostly driven away": (
        "python_loop",
        main(USER, activity=did(2, 0.01, 4), state="R"),
    ),
    "waits and is driven away": (
        "-python_loop",
        main(USER, activity=did(9, 0.01, 12), state="R"),
    ),
    "sleeps": (
        "-python_loop",
        main(USER, activity=did(0, 0.01, 4), state="S"),
    ),
    "runs": ("python_loop", main(USER, activity=did(9, 0.5), state="R")),
    "reads": ("-python_loop", main(USER, activity=did(9, 0.5), call="read")),
    "slept": ("-python_loop", main(USER, state="S", active=True)),
    "active": ("python_loop", main(USER, active=True)),
    "no call": ("python_loop", main(USER, active=True, call="running")),
    "not active": ("unknown", main(USER, active=False)),
    "nothing known": ("unknown", main(USER)),
    "stays in one function": (
        "python_loop",
        main(
            USER,
            owns_gil=True,
            activity=did(0, 1.9, has_moved=True, has_left=False),
        ),
    ),
    # Native code runs without the lock, in libraries, or under its name.
    "no lock": ("native_spin", main(USER, owns_gil=False, activity=STAYS)),
    "library": ("native_spin", main(SVD, active=True)),
    "name": ("native_spin", main(USER, native=MATCH, active=True)),
    "alone": ("native_spin", main("f libx.so", active=True)),
    "packs": (
        "native_spin",
        main("compress lzma.py:328", USER, owns_gil=False, activity=STAYS),
    ),
    "reads a packed file": (
        "io_wait",
        main("read lzma.py:200", USER, owns_gil=False, activity=did()),
    ),
    "interpreter": ("python_loop", main(USER, native=QUICK, active=True)),
    # Who waits in between does not turn in circles.
    "waits": (
        "is_moving",
        main(SVD, activity=did(3, 1.9, has_moved=False, has_left=False)),
    ),
    # Who lets go of the lock at the same line calls native code there, and
    # holds it for a moment between two calls.
    "lets go": (
        "native_spin is_moving",
        main(USER, activity=BUSY(has_let_go=True), owns_gil=True),
    ),
    "keeps": (
        "python_loop is_spinning",
        main(USER, activity=BUSY(has_let_go=False), owns_gil=True),
    ),
    # In a process with a GPU, the host turns until its GPU is done.
    "spins": ("gpu_sync_wait", main(USER, owns_gil=False, active=True), CUDA),
    "waits for a GPU": ("gpu_sync_wait", main(CONV, call="futex"), CUDA),
    "waits without GPU": ("lock_deadlock", main(CONV, call="futex")),
    "convolves": ("gpu_sync_wait", main(CONV)),
    # Who reads all the time is not blocked in it.
    **{
        f"reads again, {call}": (
            "-io_wait",
            main(USER, activity=STAYS, call=call, code="open(n).read()"),
        )
        for call in ("read", "fsync", None)
    },
}
HOG = partial(thread, USER, owns_gil=True)
KEPT = main(USER, activity=did(400, 0.1), call="futex")
STARVED = main(USER, activity=did(500, 0.03), call="futex")
HOLDER = partial(main, owns_gil=True, state="S", activity=did())
GIL = {
    # One look tells who holds the lock, and not for how long.
    "one look": (
        "gil_contention possible",
        main(HELD, owns_gil=True),
        thread(USER, waits_for_gil=True),
    ),
    "unsure": (
        "-gil_contention",
        main(USER),
        thread(HELD, owns_gil=True, state="S", name="driver"),
    ),
    "held": (
        "gil_contention certain pause:4",
        main(USER, owns_gil=False, activity=did(380, 0.01)),
        thread(HELD, owns_gil=True, state="S", activity=did()),
    ),
    # A wait that has a better name keeps it.
    "saves": ("checkpointing", HOLDER("save T/serialization.py:4", USER)),
    # A thread that runs Python all the time keeps the main thread waiting.
    "hog": ("gil_contention", KEPT, HOG(activity=did(300, 1.8))),
    "hog that is caught between": (
        "gil_contention",
        KEPT,
        thread(
            USER,
            owns_gil=False,
            activity=did(0, 1.8, has_moved=True, has_left=False),
        ),
    ),
    "asks": (
        "gil_contention",
        main(USER, waits_for_gil=True),
        HOG(active=True),
    ),
    "native code": (
        "-gil_contention",
        KEPT,
        thread(USER, owns_gil=False, activity=did(0, 1.8)),
    ),
    "busy itself": (
        "-gil_contention",
        main(USER, activity=did(400, 1.5)),
        HOG(activity=did(300, 1.8)),
    ),
    # Who gets little of a busy machine, but wants more, runs all the time.
    "starved hog": (
        "gil_contention",
        STARVED,
        HOG(activity=did(400, 0.15, 900), active=True),
    ),
    "quiet thread": (
        "-gil_contention",
        STARVED,
        HOG(activity=did(400, 0.15, 20), active=True),
    ),
    # Machine code tells who wants the lock, and by elimination who has it.
    "takes": ("gil_contention likely", main(*TAKES)),
    "another takes": (
        "gil_contention possible",
        main("pthread_join", "c10d::x::~x", EVAL),
        thread(*TAKES, EVAL),
    ),
    "sleeps without": (
        "sleeping",
        main("clock_nanosleep", "time_sleep", EVAL),
        thread(*TAKES, EVAL),
    ),
    "moves": (
        "-gil_contention",
        main(*TAKES, activity=did(1, 0.1, has_left=True)),
    ),
}
CASES = [x for table in (THREADS, LOOPS, RUNNING, GIL) for x in table.items()]


@pytest.mark.parametrize(
    ("expected", "threads"),
    [(expected, threads) for _, (expected, *threads) in CASES],
    ids=[name for name, _ in CASES],
)
def test_threads(expected, threads):
    """
    The threads of a process tell together what it waits for.
    """
    check(expected, *threads)


@pytest.mark.parametrize(
    ("has_new", "cause", "doing"),
    [
        (True, "native_spin is_moving", "is running native code, again and"),
        (False, "native_spin is_spinning", "is in native code"),
        (None, "native_spin is_spinning", "is in native code"),
    ],
)
def test_native_code_that_returns(has_new, cause, doing):
    """
    Where variables change, native code returned, at the same line too.
    """
    stack = main(USER, activity=BUSY(has_new_values=has_new), owns_gil=False)

    check(cause, stack)
    assert doing in view(stack).doing


def test_unknown_native():
    """
    Of code that no rule knows, native stacks are not asked for twice.
    """
    got = view(main(USER, native=["f x.so", EVAL]))

    assert Cause.UNKNOWN is got.cause
    assert "look at the code at this line" == got.remedy


def test_stalled_words():
    """
    What blocks an event loop is told.
    """
    got = view(main(*TURNS, call="clock_nanosleep"))

    assert "it is sleeping" in got.doing


def test_joined_words():
    """
    Who is waited for is named, and quoted; a thread that may be waited for is
    a note.
    """
    waits = view(main(JOIN, USER), UPLOAD)
    ends = view(
        main("_shutdown L/threading.py"), attrs.evolve(UPLOAD, name="")
    )
    may = view(main(GET, USER), UPLOAD)

    assert waits.doing == (
        "is waiting for its thread 'uploader', which is blocked on I/O"
    )
    assert "train" in waits.evidence[0].quote
    assert ends.doing.startswith("is waiting for a thread, which is bl")
    assert may.note.startswith("(thread uploader is blocked on I/O in")
    assert may.note.endswith("in upload (ckpt.py:20))")
    assert "thread uploader" in may.evidence[0].location


def test_holder_words():
    """
    Who holds the lock is named, and all that wait are counted.
    """
    driver = thread(HELD, owns_gil=True, activity=did(), name="driver")
    waits = [thread(USER, waits_for_gil=True, thread_id=n) for n in (2, 3)]

    other = view(main(USER, owns_gil=False, activity=did(380, 0.01)), driver)
    own = view(HOLDER(HELD), *waits)

    assert "a thread (driver) that holds" in other.doing
    assert own.doing.startswith("holds the GIL")
    assert "2 other threads wait for it" in own.doing


def test_only_kernels():
    """
    Of a process without a stack, a kernel on its GPU tells all.
    """
    (got,) = explain_stacks([process(kernels=(GpuKernel(name="spin"),))])

    assert Cause.GPU_KERNEL is got.cause
    assert "process 1 is waiting for the kernel spin" == got.summary


def test_worker_of_loader():
    """
    A worker of a data loader is told by its data set.
    """
    lines = ["read /me/data.py:5", FETCH, LOADER, *FORK]

    check("io_wait read:5", main(*lines, call="read"), role="dataloader")


def test_cycle_of_locks():
    """
    Lines that take locks make a cycle likely, and are told.
    """
    locks = [
        thread(line, call="futex", code="    with first:")
        for line in ("pay /me/a.py", "refund /me/a.py:2")
    ]

    check("cycle_of_locks likely", main(JOIN, USER), *locks)
    assert "refund" in view(main(JOIN, USER), *locks).note


@pytest.mark.parametrize("name", ["metrics", "telemetry_monitor", "x"])
def test_name_in_own_code(name):
    """
    A thread in code of the user is no helper merely because of its name.
    """
    got = view(main(ACQUIRE, USER), thread(ACQUIRE, WORK, RUN, name=name))

    assert "cycle of locks" == got.rule
    assert "and in work (work.py:7)" == got.note
    assert 1 == len(got.evidence)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("with lock:\n        time.sleep(9)\n", True),
        ("while True:\n        time.sleep(9)\n", False),
        ("", False),
    ],
    ids=["no loop", "loop", "unknown"],
)
def test_monitor_that_may_hold_a_lock(body, expected, tmp_path):
    """
    Who waits in no loop, while a lock is wanted, is told of.
    """
    script = tmp_path / "job.py"
    script.write_text(body and f"def flush():\n    {body}", "utf-8")
    lines = thread(f"flush {script}:3", name="metrics-flush")

    got = view(main(ACQUIRE, USER), lines)

    assert Cause.LOCK_DEADLOCK is got.cause
    assert expected == ("thread metrics-flush" in got.note)
    assert expected == bool(got.evidence)


@pytest.mark.parametrize(
    ("expected", "lines", "names"),
    [
        (Cause.GPU_KERNEL, [SYNC], ["ncclDevKernel_A", "k" * 200]),
        (Cause.COLLECTIVE_WAIT, [SYNC], ["ncclDevKernel_AllReduce<1>"]),
        (Cause.DATALOADER_WAIT, [FETCH], ["k" * 200]),
    ],
    ids=["own", "nccl", "innocent"],
)
def test_kernels(expected, lines, names):
    """
    A kernel that the host waits for is named, cut, and quoted; one of NCCL
    waits for others.
    """
    kernels = tuple(GpuKernel(name=n, device=0) for n in names)

    found = said(main(*lines, USER), kernels=kernels)

    assert expected is found.cause
    is_kernel = expected is Cause.GPU_KERNEL
    assert is_kernel == ("k" * 80 + "… of device 0" in found.summary)
    is_quoted = names[-1] in [e.quote for e in found.evidence]
    assert is_quoted == (expected is not Cause.DATALOADER_WAIT)


@pytest.mark.parametrize(("device", "place"), [(3, "device 3"), (None, "")])
def test_kernel_place(device, place):
    """
    The evidence names the device of a kernel if the tool printed it.
    """
    kernels = (GpuKernel(name="flash_fwd", device=device),)

    found = said(main(SYNC, USER), kernels=kernels)

    (quoted,) = (e for e in found.evidence if e.kind == "gpu")
    assert place == quoted.location
    assert "None" not in found.summary


def test_kernel_without_namespace():
    """
    The anonymous namespace, as cuda-gdb writes it, is not a list of arguments.
    """
    name = "at::cuda::(anonymous namespace)::spin_kernel(long)<<<(1,1,1)>>>"

    found = said(main(SYNC, USER), kernels=(GpuKernel(name=name, device=0),))

    assert "the kernel at::cuda::spin_kernel of device 0" in found.summary


def test_event():
    """
    Who waits for a thread that works goes on when that does, else it is told
    where that thread works; one that only waits does not set an event.
    """
    moves = did(5, 1.0, has_moved=True, has_left=True)
    stays = did(0, 1.9, has_moved=True, has_left=False)

    moving, working, waiting = (
        said(main(WAIT, USER), thread(*lines, name="w", **changes))
        for lines, changes in (
            ((WORK, RUN), {"activity": moves}),
            ((WORK, RUN), {"activity": stays, "owns_gil": True}),
            ((JOIN, WORK, RUN), {"activity": did()}),
        )
    )

    assert Cause.PROGRESSING is moving.cause
    assert Cause.LOCK_DEADLOCK is waiting.cause
    assert (Cause.PYTHON_LOOP, "possible") == (
        working.cause,
        working.confidence,
    )
    assert "work (work.py:7)" == working.location.brief
    assert "waiting for its thread 'w', which is running" in working.summary


def test_sleep():
    """
    How long a nap has lasted is told, if it is known.
    """
    known = said(main(SLEEP, USER, state="S", idle_s=4.2)).summary
    unknown = said(main(SLEEP, USER, state="S")).summary

    assert known.endswith("in sleep (work.py:7), for 4 s at least")
    assert unknown.endswith("in sleep (work.py:7)")

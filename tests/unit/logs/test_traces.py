"""
Tracebacks in logs.
"""

from __future__ import annotations

import pytest

from distdebug.causes import Cause
from distdebug.logs import PyError


SIMPLE = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 10, in <module>
    main()
    ^^^^^^
  File "/home/me/train.py", line 5, in main
    raise ValueError("batch 17 is empty")
ValueError: batch 17 is empty
"""

CHAIN = """\
Traceback (most recent call last):
  File "/home/me/data.py", line 3, in load
    return table[key]
KeyError: 'tokens'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 9, in main
    load()
RuntimeError: no data
"""

RAY = """\
Traceback (most recent call last):
  File "/home/me/driver.py", line 20, in <module>
    ray.get(actor.step.remote())
ray.exceptions.RayTaskError(ValueError): \
ray::Actor.step() (pid=12, ip=10.0.0.1, actor_id=ab, repr=<a.A object>)
  File "/home/me/actor.py", line 5, in step
    raise ValueError("boom")
ValueError: boom
"""

LOADER = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in main
    for batch in loader:
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/home/me/data.py", line 3, in __getitem__
    raise ValueError("bad row")
ValueError: bad row
"""

POOL = '''\
multiprocessing.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "/home/me/work.py", line 2, in work
    return 1 / 0
ZeroDivisionError: division by zero
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/train.py", line 7, in main
    pool.map(work)
ZeroDivisionError: division by zero
'''

SPAWN = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in main
    mp.spawn(run)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in run
    step()
ValueError: boom
"""

RICH = """\
╭───────── Traceback (most recent call last) ──────────╮
│ /home/me/train.py:10 in main                         │
│                                                      │
│ ❱ 10     step()                                      │
╰──────────────────────────────────────────────────────╯
ValueError: boom
"""

GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 3, in main
  |     async with group:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
"""

BARE = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in main
    assert batch
AssertionError
"""

OWN = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in main
    raise Oops("x")
mine.Oops: x
"""

LOCAL = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in main
    raise Oops("x")
__main__.main.<locals>.OopsError: x
"""

CASES = {
    "simple": (SIMPLE, ["ValueError: batch 17 is empty"], "main"),
    "chain": (CHAIN, ["KeyError: 'tokens'", "RuntimeError: no data"], "load"),
    "rich": (RICH, ["ValueError: boom"], "main"),
    "bare": (BARE, ["AssertionError"], "main"),
    "own": (OWN, ["mine.Oops: x"], "main"),
    "local": (LOCAL, ["__main__.main.<locals>.OopsError: x"], "main"),
    "group": (
        GROUP,
        ["ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"],
        "main",
    ),
}
PREFIXES = {
    "none": "",
    "rank": "[rank3]: ",
    "both": "[default1]:[rank9]: ",
    "ray": "\x1b[36m(Actor(rank=3) pid=12, ip=10.0.0.2)\x1b[0m ",
    "vllm": "(EngineCore_0 pid=7) ERROR 06-23 06:27:21 [core.py:1229] ",
    "time": "2026-02-20 02:03:57,123 ERROR train: ",
}


@pytest.fixture
def trace_of(scan):
    """
    Reads the only traceback of a log.
    """

    def trace_of(text):
        (trace,) = scan(text).tracebacks
        return trace

    return trace_of


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", CASES)
def test_forms(trace_of, name, prefix):
    """
    A traceback is read in every form, behind every prefix.
    """
    text, errors, function = CASES[name]
    lines = "".join(f"{PREFIXES[prefix]}{x}\n" for x in text.splitlines())

    trace = trace_of(f"step 1\n{lines}bye\n")

    assert errors == list(map(str, trace.errors))
    assert function == trace.root.place.function


@pytest.mark.parametrize(
    ("text", "root", "function"),
    [
        pytest.param(RAY, "ValueError: boom", "step", id="ray"),
        pytest.param(LOADER, "ValueError: bad row", "__getitem__", id="data"),
        pytest.param(SPAWN, "ValueError: boom", "run", id="spawn"),
        pytest.param(
            POOL, "ZeroDivisionError: division by zero", "work", id="pool"
        ),
    ],
)
def test_wrapped(trace_of, text, root, function):
    """
    The innermost exception says what went wrong in another process.
    """
    trace = trace_of(text)

    assert (root, 1) == (str(trace.root), trace.count)
    assert function == trace.root.place.function


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "".join(
                f"[rank{rank}]: {line}\n"
                for line in SIMPLE.splitlines()
                for rank in range(3)
            ),
            [("ValueError: batch 17 is empty", 3, (0, 1, 2), 2)],
        ),
        (
            "".join(f"{line}\n" * 2 for line in SIMPLE.splitlines()),
            [("ValueError: batch 17 is empty", 2, (), 2)],
        ),
        (
            SIMPLE + OWN,
            [
                ("ValueError: batch 17 is empty", 1, (), 2),
                ("mine.Oops: x", 1, (), 1),
            ],
        ),
    ],
    ids=["prefixes", "none", "one after the other"],
)
def test_several(scan, text, expected):
    """
    Lines of ranks that fail at the same time are separated by prefixes, and
    without prefixes they are at least counted; two tracebacks without a word
    between are not one chain.
    """
    report = scan(text)

    assert expected == [
        (str(x.root), x.count, x.ranks, len(x.root.frames))
        for x in report.tracebacks
    ]


def test_shapes(scan):
    """
    Numbers in messages, and lines of code, do not make another shape.
    """
    other = SIMPLE.replace("17", "18").replace("line 5", "line 6")
    third = SIMPLE.replace("in main", "in evaluate")

    first, second = scan(SIMPLE + other + "ok\n" + third).tracebacks

    assert (2, 1) == (first.count, second.count)
    assert "line 1" == first.group.first.location
    assert "line 8" == first.group.last.location


def test_message_of_many_lines(scan):
    """
    A chain goes on behind a message of many lines, which count on their own.
    """
    text = CHAIN.replace("'tokens'\n", "'tokens'\nCUDA error: x\nmore\n")

    report = scan(text)

    assert 2 == len(report.tracebacks[0].errors)
    assert ["CUDA failure"] == [x.rule for x in report.groups]


def test_progress_bar_before(trace_of):
    """
    A progress bar before the header does not hide it.
    """
    bar = "\r 10%|#   | 1/10\r 20%|##  | 2/10 [00:01<00:04,  2.0it/s]"

    trace = trace_of(bar + SIMPLE)

    assert "ValueError: batch 17 is empty" == str(trace.root)


def test_lines_of_others_between(trace_of):
    """
    Lines of other processes between those of a traceback are left out.
    """
    lines = SIMPLE.splitlines()
    lines[3:3] = ["INFO: step 3", "loss: 0.3", "Epoch: 3", "(raylet) hello"]

    trace = trace_of("\n".join(lines))

    assert ["ValueError: batch 17 is empty"] == list(map(str, trace.errors))
    assert 2 == len(trace.root.frames)


def test_json(trace_of):
    """
    Structured logs have a traceback within one line.
    """
    text = SIMPLE.replace('"', '\\"').replace("\n", "\\n")

    trace = trace_of(f'{{"level": "error", "exc_info": "{text}", "x": 1}}')

    assert "ValueError: batch 17 is empty" == str(trace.root)
    assert "main" == trace.root.place.function


@pytest.mark.parametrize(
    "line",
    [
        "he said: Traceback (most recent call last): and left",
        r'{"prompt": "Traceback (most recent call last):\n  File \"a\""}',
        r"x = 'Traceback (most recent call last):\nValueError: x'",
    ],
)
def test_quoted(scan, line):
    """
    A header that is only quoted is none.
    """
    report = scan(f"{line}\n")

    assert ((), ()) == (report.tracebacks, report.findings)


def test_cut_off(scan):
    """
    A traceback that is cut off is reported, too.
    """
    report = scan("".join(SIMPLE.splitlines(True)[:3]))

    assert Cause.RANK_CRASHED == report.findings[0].cause
    assert "line 1" == report.groups[0].first.location


FRAMES = '  File "/a.py", line 1, in f\n  File "/b.py", line 1, in g\n'


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        (FRAMES * 300 + "RecursionError: too deep\n", [200]),
        (FRAMES * 1000 + "ValueError: x\n", []),
        ("hello\n" * 1000 + "ValueError: x\n", []),
    ],
    ids=["deep", "deeper", "lost"],
)
def test_endless(scan, text, frames):
    """
    A traceback without an end is read so far and no further.
    """
    report = scan("Traceback (most recent call last):\n" + text)

    assert frames == [len(x.root.frames) for x in report.tracebacks]
    assert 1 == len(report.findings)


def test_many_in_a_chain(scan):
    """
    A chain of very many exceptions is cut.
    """
    marker = (
        "\nDuring handling of the above exception, another exception "
        "occurred:\n\n"
    )

    report = scan(marker.join([BARE] * 40))

    assert 12 == max(len(trace.errors) for trace in report.tracebacks)


def test_soft(scan):
    """
    A traceback that a program logged as a warning matters little.
    """
    head = "2026-02-20 02:03:57 WARNING: "

    report = scan("".join(f"{head}{line}\n" for line in SIMPLE.splitlines()))

    assert ["possible"] == [x.confidence for x in report.findings]


@pytest.mark.parametrize(
    "text",
    [
        SIMPLE.replace(
            "ValueError:",
            '  File "/x/site-packages/torch/a.py", line 3, in forward\n'
            "    x\nValueError:",
        ),
        SIMPLE.replace("/home/me", "/x/site-packages/torch"),
    ],
    ids=["own", "library"],
)
def test_place(trace_of, text):
    """
    The place is the innermost line that belongs to no library, if any.
    """
    place = trace_of(text).root.place

    assert ("main", 5) == (place.function, place.line)


def test_no_place():
    """
    An exception without frames has no place.
    """
    error = PyError(type="E")

    assert (None, "E") == (error.place, str(error))


def test_only_wrappers(trace_of):
    """
    If nothing but a wrapper is left of it, that is what is reported.
    """
    trace = trace_of(
        "Traceback (most recent call last):\n"
        '  File "/a.py", line 1, in f\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )

    assert trace.root.is_wrapper


def test_names_in_frames(trace_of):
    """
    What terminals understand does not get into names.
    """
    trace = trace_of(SIMPLE.replace("in main", "in ma\u202ein"))

    assert "main" == trace.root.frames[-1].function

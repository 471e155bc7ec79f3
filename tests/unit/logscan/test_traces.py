"""
Tracebacks in logs.
"""

from __future__ import annotations

import pytest

from distdebug._lines import parse_line, read_lines
from distdebug.findings import Cause
from distdebug.logscan import PyError, scan_logs
from distdebug.logscan.trace import Trace, read_trace


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


def trace_of(text: str, before: str = "") -> Trace | None:
    """
    The traceback that a text begins with.
    """
    return read_trace(map(parse_line, text.splitlines()), before)


def roots(tmp_path, text):
    """
    The first exceptions of the tracebacks in a log.
    """
    (tmp_path / "a.log").write_text(text)
    return [str(x.root) for x in scan_logs(tmp_path).tracebacks]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", CASES)
def test_forms(tmp_path, name, prefix):
    """
    A traceback is read in every form, behind every prefix.
    """
    text, errors, function = CASES[name]
    lines = "".join(f"{PREFIXES[prefix]}{x}\n" for x in text.splitlines())
    (tmp_path / "a.log").write_text(f"step 1\n{lines}bye\n")

    (trace,) = scan_logs(tmp_path).tracebacks

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
def test_wrapped(tmp_path, text, root, function):
    """
    What went wrong in another process is told by the innermost exception.
    """
    (tmp_path / "a.log").write_text(text)

    (trace,) = scan_logs(tmp_path).tracebacks

    assert root == str(trace.root)
    assert function == trace.root.place.function
    assert trace.count == 1


def test_interleaved(tmp_path):
    """
    Lines of ranks that fail at the same time are told apart by prefixes.
    """
    lines = SIMPLE.splitlines()
    text = "".join(
        f"[rank{rank}]: {line}\n" for line in lines for rank in range(3)
    )
    (tmp_path / "a.log").write_text(text)

    (trace,) = scan_logs(tmp_path).tracebacks

    assert 3 == trace.count
    assert (0, 1, 2) == trace.ranks
    assert "ValueError: batch 17 is empty" == str(trace.root)


def test_interleaved_without_prefix(tmp_path):
    """
    Without prefixes they are at least counted.
    """
    text = "".join(f"{line}\n" * 2 for line in SIMPLE.splitlines())
    (tmp_path / "a.log").write_text(text)

    (trace,) = scan_logs(tmp_path).tracebacks

    assert 2 == trace.count
    assert 2 == len(trace.root.frames)


def test_shapes(tmp_path):
    """
    Numbers in messages, and lines of code, do not make another shape.
    """
    other = SIMPLE.replace("17", "18").replace("line 5", "line 6")
    third = SIMPLE.replace("in main", "in evaluate")
    (tmp_path / "a.log").write_text(SIMPLE + other + "ok\n" + third)

    first, second = scan_logs(tmp_path).tracebacks

    assert (2, 1) == (first.count, second.count)
    assert "line 1" == first.group.first.location
    assert "line 8" == first.group.last.location


def test_two_without_a_word_between(tmp_path):
    """
    Two tracebacks of the same process are not one chain.
    """
    found = roots(tmp_path, SIMPLE + OWN)

    assert ["ValueError: batch 17 is empty", "mine.Oops: x"] == found


def test_message_of_many_lines(tmp_path):
    """
    A chain goes on behind a message of many lines, which tell on their own.
    """
    text = CHAIN.replace("'tokens'\n", "'tokens'\nCUDA error: x\nmore\n")
    (tmp_path / "a.log").write_text(text)

    report = scan_logs(tmp_path)

    assert 2 == len(report.tracebacks[0].errors)
    assert ["CUDA failure"] == [x.rule for x in report.groups]


def test_progress_bar_before(tmp_path):
    """
    A progress bar before the header does not hide it.
    """
    bar = "\r 10%|#   | 1/10\r 20%|##  | 2/10 [00:01<00:04,  2.0it/s]"

    found = roots(tmp_path, bar + SIMPLE)

    assert ["ValueError: batch 17 is empty"] == found


def test_lines_of_others_between():
    """
    Lines of other processes between those of a traceback are left out.
    """
    lines = SIMPLE.splitlines()
    lines[3:3] = ["INFO: step 3", "loss: 0.3", "Epoch: 3", "(raylet) hello"]

    trace = trace_of("\n".join(lines))

    assert ["ValueError: batch 17 is empty"] == list(map(str, trace.errors))
    assert 2 == len(trace.errors[0].frames)
    assert 4 not in trace.lines


def test_json():
    """
    Structured logs have a traceback within one line.
    """
    text = SIMPLE.replace('"', '\\"').replace("\n", "\\n")
    line = f'{{"level": "error", "exc_info": "{text}", "x": 1}}'

    trace = trace_of(line)

    assert "ValueError: batch 17 is empty" == str(trace.root)
    assert "main" == trace.root.place.function


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nothing",
        "he said: Traceback (most recent call last): and left",
        r'{"prompt": "Traceback (most recent call last):\n  File \"a\""}',
        r"x = 'Traceback (most recent call last):\nValueError: x'",
    ],
)
def test_quoted(line):
    """
    A header that is only quoted is none.
    """
    assert read_trace([parse_line(line)]) is None
    assert read_trace([]) is None


def test_cut_off(tmp_path):
    """
    A traceback that is cut off is told, too.
    """
    (tmp_path / "a.log").write_text("".join(SIMPLE.splitlines(True)[:3]))

    report = scan_logs(tmp_path)

    assert Cause.RANK_CRASHED == report.findings[0].cause
    assert "line 1" == report.groups[0].first.location


def test_endless():
    """
    A traceback without an end is read so far and no further.
    """
    frames = '  File "/a.py", line 1, in f\n  File "/b.py", line 1, in g\n'
    header = "Traceback (most recent call last):\n"

    deep = trace_of(header + frames * 300 + "RecursionError: too deep\n")
    lost = trace_of(header + "hello\n" * 1000 + "ValueError: x\n")
    none = trace_of(header + frames * 1000 + "ValueError: x\n")

    assert 200 == len(deep.root.frames)
    assert () == lost.errors
    assert () == none.errors


def test_many_in_a_chain():
    """
    A chain of very many exceptions is cut.
    """
    marker = "\nDuring handling of the above exception, another exception occurred:\n\n"

    trace = trace_of(marker.join([BARE] * 40))

    assert 12 == len(trace.errors)


def test_soft(tmp_path):
    """
    A traceback that somebody logged as a warning matters little.
    """
    head = "2026-02-20 02:03:57 WARNING: "
    (tmp_path / "a.log").write_text(
        "".join(f"{head}{line}\n" for line in SIMPLE.splitlines())
    )

    (finding,) = scan_logs(tmp_path).findings

    assert "possible" == finding.confidence


def test_place():
    """
    The place is the innermost line that belongs to no library.
    """
    text = SIMPLE.replace(
        "ValueError:",
        '  File "/x/site-packages/torch/a.py", line 3, in forward\n'
        "    x\nValueError:",
    )
    library = SIMPLE.replace("/home/me", "/x/site-packages/torch")

    own, other = trace_of(text).root.place, trace_of(library).root.place

    assert ("main", 5) == (own.function, own.line)
    assert ("main", 5) == (other.function, other.line)
    assert PyError(type="E").place is None
    assert "E" == str(PyError(type="E"))
    assert Trace(errors=()).root is None


def test_only_wrappers():
    """
    If nothing but a wrapper is left of it, that is what is told.
    """
    text = (
        "Traceback (most recent call last):\n"
        '  File "/a.py", line 1, in f\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )

    trace = trace_of(text)

    assert trace.root.is_wrapper


def test_names_in_frames():
    """
    What terminals understand does not get into names.
    """
    text = SIMPLE.replace("in main", "in ma\u202ein")

    trace = trace_of(text)

    assert "main" == trace.root.frames[-1].function


def test_read_lines():
    """
    It reads what the reader of lines gives.
    """
    trace = read_trace(read_lines(SIMPLE))

    assert "ValueError: batch 17 is empty" == str(trace.root)

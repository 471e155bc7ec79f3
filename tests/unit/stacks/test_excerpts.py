"""
Finding stacks in long logs without reading all of their lines as stacks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.stacks import parse, read_stack_files, stacks_to_json


DATA = Path(__file__).parents[2] / "data" / "stacks"
LINE = "[rank0]: 2026-02-20 02:03:57 INFO step {}: loss 2.31 grad norm 0.12\n"
# More than is read around a stack.
NOISE = "".join(map(LINE.format, range(4_000)))
DUMPS = sorted(x.name for x in DATA.glob("*.txt"))


def in_log(folder, *texts):
    """
    A log with these texts, far from each other.
    """
    log = folder / "train.log"
    log.write_text(NOISE + "".join(f"{text}\n{NOISE}" for text in texts))
    return log


def told(log):
    """
    All that is known of the stacks in a file.
    """
    found = read_stack_files(log)
    assert () == found.missing
    return [stacks_to_json(process) for process in found.stacks]


@pytest.mark.parametrize("name", DUMPS)
def test_like_all_of_it(name, tmp_path, monkeypatch):
    """
    The output of each tool is found whole where a long log holds it.
    """
    log = in_log(tmp_path, (DATA / name).read_text())
    monkeypatch.setattr(parse, "_WHOLE", 1 << 30)
    whole = told(log)
    monkeypatch.setattr(parse, "_WHOLE", 1 << 12)

    assert whole
    assert told(log) == whole


@pytest.mark.parametrize("block", [1 << 22, 1 << 12, 1_000])
def test_far_apart(block, tmp_path, monkeypatch):
    """
    Stacks of several times are all found, wherever the blocks of the file end.
    """
    text = 'Process {0}: python train.py\nThread {0} (idle): "MainThread"\n'
    text += "    wait (threading.py:{0})\n"
    log = in_log(tmp_path, *map(text.format, (11, 12, 13)))
    monkeypatch.setattr(parse, "_WHOLE", 1 << 12)
    monkeypatch.setattr(parse, "_BLOCK", block)

    got = read_stack_files(log).stacks

    assert [(11, 11), (12, 12), (13, 13)] == [
        (p.pid, p.main_thread.frames[0].line) for p in got
    ]


def test_little_is_read(tmp_path, monkeypatch):
    """
    Only the lines around a stack are read as stacks.
    """
    dump = (DATA / DUMPS[-1]).read_bytes()
    log = tmp_path / "train.log"
    noise = NOISE.encode()
    log.write_bytes(noise * 20 + dump + noise * 20)
    monkeypatch.setattr(parse, "_WHOLE", 1 << 12)

    with log.open("rb") as file:
        got = parse.read_excerpts(file, 1 << 22)

    assert dump in got
    assert len(got) < len(dump) + (1 << 18)


def test_no_stack(tmp_path, monkeypatch):
    """
    A log without a stack is told to hold none.
    """
    monkeypatch.setattr(parse, "_WHOLE", 1 << 12)

    (missing,) = read_stack_files(in_log(tmp_path)).missing

    assert "no stack of a known tool in it" == missing.reason


def test_document(tmp_path, monkeypatch):
    """
    A long document of JSON is read whole, although it has no lines.
    """
    monkeypatch.setattr(parse, "_WHOLE", 1 << 8)
    name = "f" * (1 << 20)
    file = tmp_path / "pyspy_a_1.json"
    frame = f'{{"name": "{name}", "filename": "a.py", "line": 1}}'
    thread = f'{{"pid": 7, "thread_id": 1, "frames": [{frame}]}}'
    file.write_text(f"[{thread}]")

    (got,) = read_stack_files(file).stacks

    assert 7 == got.pid


def test_texts_in_any_order(tmp_path, monkeypatch):
    """
    A text of the kind that stands in any log, before and in the stacks of a
    process, cuts nothing of them off.
    """
    thread = 'Thread {0} (idle): "t{0}"\n' + "    f (a.py:1)\n" * 4_000
    dump = "Process 11: python train.py\n" + "".join(
        map(thread.format, range(1, 9))
    )
    launch = (
        "[Launch of CUDA Kernel 0 (k<<<(1,1,1),(32,1,1)>>>) on Device 0]\n"
    )
    log = in_log(tmp_path, launch, dump + launch)
    monkeypatch.setattr(parse, "_WHOLE", 1 << 12)

    (got,) = read_stack_files(log).stacks

    assert [4_000] * 8 == [len(thread.frames) for thread in got.threads]

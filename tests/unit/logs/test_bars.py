"""
Progress bars.
"""

from __future__ import annotations

import pytest

from distdebug.logs import Progress, detect_phase


# A framework to which every bar belongs.
ANY = r"""
[framework]
name = "any"
title = "Any"
start = ['=== boot ===']

[[phase]]
name = "loop"
title = "looping"
begin = ['looping now']
bars = ['^.?']
"""


@pytest.fixture
def bar_of(tmp_path):
    """
    Reads what the bars in some lines say.
    """
    book = tmp_path / "any.toml"
    book.write_text(ANY)

    def bar_of(*lines):
        log = ["=== boot ===", "looping now", *lines]
        return detect_phase(log, rules=[book]).progress

    return bar_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "Loading safetensors checkpoint shards:  40% Completed | 2/5 "
                "[00:08<00:12,  4.00s/it]"
            ),
            ("Loading safetensors checkpoint shards", 2, 5, 0.25, 12),
        ),
        (
            (
                "Map (num_proc=8):  45%|████▌     | 4500/10000 [00:10<00:12, "
                "450.00 examples/s]"
            ),
            ("Map (num_proc=8)", 4500, 10000, 450.0, 12),
        ),
        (
            " 17% 1/6 [01:01<05:09, 61.98s/it]",
            ("", 1, 6, 1 / 61.98, 309),
        ),
        (
            "model.safetensors:  50%|#####     | 1.2G/2.4G [1:00:01<?, ?B/s]",
            ("model.safetensors", 1.2e9, 2.4e9, None, None),
        ),
        (
            "x: 100%|██████████| 5/5 [00:00<00:00, 1.5kit/s]",
            ("x", 5, 5, 1500.0, 0),
        ),
        ("Training:   3%|▎  | 30/1000", ("Training", 30, 1000, None, None)),
        (
            "Epoch 0/9 ━━━━━━╸━━━━━━━━━ 12/100 0:00:10 • 0:01:10 1.2it/s",
            ("Epoch 0/9", 12, 100, None, 70),
        ),
        ("x:  50%|5| 1,024/1.5M", ("x", 1024, 1.5e6, None, None)),
        ("x: 1%|1| 1/9 [00:01<00:02, 0.00s/it]", ("x", 1, 9, None, 2)),
        ("x: 1%|1| 1/9 [00:01<00:02, 1.0.0it/s]", ("x", 1, 9, None, 2)),
    ],
    ids=[
        *("shards", "map", "plain", "bytes", "kilo", "cut", "rich"),
        *("suffixes", "zero", "odd"),
    ],
)
def test_bar(bar_of, text, expected):
    """
    A bar shows its name, what is done, how fast, and how long it takes.
    """
    bar = bar_of(text)

    assert expected[:3] == (bar.name, bar.done, bar.total)
    assert expected[3] == pytest.approx(bar.rate)
    assert expected[4] == bar.left_s


def test_glued(bar_of):
    """
    Several states in one line are several bars.
    """
    bar = bar_of(
        "Training:   1%|1| 1/100 [00:01<01:00, 1.0it/s, loss=3]"
        "Training:   2%|1| 2/100 [00:02<01:00, 1.0it/s, loss=2]"
    )

    assert ("Training", 2) == (bar.name, bar.done)


@pytest.mark.parametrize(
    "text",
    [
        "40% of the data is bad",
        "━━━━━━━━━━ 12.3/45.6 MB 10.2 MB/s",
        "100%",
        "memory: 40.23GiB(50.84%) 3/4",
    ],
)
def test_no_bar(bar_of, text):
    """
    Not every percentage is a bar.
    """
    assert bar_of(text) is None


def test_progress():
    """
    Progress is shown in full only when all is done.
    """
    assert "99 % (1999/2000)" == str(Progress(done=1999, total=2000))
    assert "7" == str(Progress(done=7))
    assert Progress(done=7).percent is None
    assert not Progress(done=7).is_full
    assert 100 == Progress(done=8, total=7).percent


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        ("[2026-02-20 02:03:57] Train", "[2026-02-20 02:04:57] Train", 6),
        ("2026-02-20 02:03:57 INFO x - Epoch 3", "Epoch 4", 6),
        ("0: Training", "Training", 6),
        ("Capturing (bs=8 mem=9.2 GB)", "Capturing (bs=4 mem=9.1 GB)", 6),
        ("Loop [1/20]", "Loop [2/20]", 6),
        ("rank 1 loading", "rank 2 loading", 5),
    ],
)
def test_loops(bar_of, before, after, done):
    """
    What a logger or a loop writes into the name of its bar does not make it
    another, but the number of a rank does; of several, the slowest counts.
    """
    bar = bar_of(
        f"{before}:  50%|5| 5/10 [00:01<00:02]",
        f"{after}:  60%|6| 6/10 [00:01<00:02]",
    )

    assert done == bar.done

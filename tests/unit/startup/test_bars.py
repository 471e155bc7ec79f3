"""
Progress bars.
"""

from __future__ import annotations

import pytest

from distdebug.startup import Progress
from distdebug.startup.bars import parse_bars, parse_number
from distdebug.startup.series import plain_name


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
        ("x: 1%|1| 1/9 [00:01<00:02, 0.00s/it]", ("x", 1, 9, None, 2)),
        ("x: 1%|1| 1/9 [00:01<00:02, 1.0.0it/s]", ("x", 1, 9, None, 2)),
    ],
    ids=[
        *("shards", "map", "plain", "bytes", "kilo", "cut", "rich", "zero"),
        "odd",
    ],
)
def test_bar(text, expected):
    """
    A bar tells its name, what is done, how fast, and how long it takes.
    """
    (bar,) = parse_bars(text)

    assert expected[:3] == (bar.name, bar.done, bar.total)
    assert expected[3] == pytest.approx(bar.rate)
    assert expected[4] == bar.left_s


def test_glued():
    """
    Several states in one line are several bars.
    """
    text = (
        "Training:   1%|1| 1/100 [00:01<01:00, 1.0it/s, loss=3]"
        "Training:   2%|1| 2/100 [00:02<01:00, 1.0it/s, loss=2]"
    )

    bars = list(parse_bars(text))

    assert [("Training", 1), ("Training", 2)] == [
        (bar.name, bar.done) for bar in bars
    ]


@pytest.mark.parametrize(
    "text",
    [
        "40% of the data is bad",
        "━━━━━━━━━━ 12.3/45.6 MB 10.2 MB/s",
        "100%",
        "memory: 40.23GiB(50.84%) 3/4",
        "",
    ],
)
def test_no_bar(text):
    """
    Not every percentage is a bar.
    """
    assert [] == list(parse_bars(text))


def test_progress():
    """
    Progress is shown in full only when all is done.
    """
    assert "99 % (1999/2000)" == str(Progress(done=1999, total=2000))
    assert "7" == str(Progress(done=7))
    assert Progress(done=7).percent is None
    assert not Progress(done=7).is_full
    assert 100 == Progress(done=8, total=7).percent


def test_number():
    """
    Numbers may have suffixes and separators.
    """
    assert 1024 == parse_number("1,024")
    assert 1.5e6 == parse_number("1.5M")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("[2026-02-20 02:03:57] Training", "Training"),
        ("2026-02-20 02:03:57 - INFO - Training", "Training"),
        ("0: Training", "Training"),
        ("Episode [1/20]", "Episode [1/20]"),
        ("Capturing batches (bs=1)", "Capturing batches (bs=1)"),
    ],
)
def test_plain_name(name, expected):
    """
    What a logger wrote before a bar does not belong to its name.
    """
    assert expected == plain_name(name)

"""
Errors that a job survived.
"""

from __future__ import annotations

import gzip
import os

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.logs import scan_logs


ERROR = """\
Traceback (most recent call last):
  File "/opt/app/train.py", line 312, in main
    loss = step(model, batch)
KeyError: 'labels'
"""
FILLER = "tokens/s 12345 memory 61.2GB gradient 1.25 elapsed 12s " * 2


def steps(first, last, ranks=1):
    """
    What a training prints, each rank a line per step.
    """
    return "".join(
        f"INFO train.py:88 step {step} rank {rank} loss 2.5 {FILLER}\n"
        for step in range(first, last)
        for rank in range(ranks)
    )


SURVIVED = {
    "went on": steps(0, 9) + ERROR + steps(9, 200),
    "done": ERROR + steps(0, 5) + "Training finished.\n",
    "trainer": ERROR + "{'train_runtime': 912.1, 'epoch': 1.0}\n",
    "lightning": ERROR + "`Trainer.fit` stopped: `max_epochs=1` reached.\n",
    "bars": ERROR
    + "".join(f" 5%|# | {n}/900 [00:01<00:09] {FILLER}\n" for n in range(99)),
    "a server": ERROR
    + "".join(
        f'INFO:     10.0.0.7:{port} - "POST /v1/completions HTTP/1.1" 200 OK\n'
        f"{FILLER}\n"
        for port in range(40_000, 40_099)
    ),
    "again and again": "".join(
        steps(n, n + 2) + ERROR.replace("labels", f"labels {n}")
        for n in range(9)
    )
    + steps(10, 11),
    "a job of Ray": ERROR + "Job 'raysubmit_vB61kz' succeeded\n",
    "started again": ERROR
    + "Resuming from checkpoint /ckpt/9\n"
    + steps(9, 40)
    + "srun: error: gpu-1: task 4: Killed\n",
}
NOT_SURVIVED = {
    "end": steps(0, 200) + ERROR,
    "again and again": "".join(steps(n, n + 2) + ERROR for n in range(9)),
    "twice": 2 * (steps(0, 9) + ERROR) + steps(9, 10),
    "one step of many ranks": ERROR + steps(9, 10, ranks=100),
    "buffered": ERROR + steps(0, 30)[:8000],
    "script goes on": ERROR + "Training finished at 03:00\n",
    "others for a while": ERROR
    + steps(0, 200)
    + "ray.exceptions.ActorDiedError: The actor died unexpectedly\n",
    "a server that only refuses": ERROR
    + "".join(
        f'INFO:     10.0.0.7:{port} - "POST /v1/completions HTTP/1.1" 500 no\n'
        f'INFO:     10.0.0.7:{port} - "GET /health HTTP/1.1" 200 OK\n{FILLER}\n'
        for port in range(40_000, 40_099)
    ),
    "failed": ERROR + steps(0, 5) + "training finished with errors\n",
}


@pytest.mark.parametrize("name", SURVIVED)
def test_survived(scan, name):
    """
    What the job survived is only possible, and comes last.
    """
    report = scan(SURVIVED[name])

    last = report.findings[-1]
    assert (Cause.RANK_CRASHED, "possible") == (last.cause, last.confidence)
    assert last.summary.endswith("; the job went on afterwards")
    assert report.tracebacks[0].group.is_survived
    assert 5 == report.tracebacks[0].group.priority


@pytest.mark.parametrize("name", NOT_SURVIVED)
def test_not_survived(scan, name):
    """
    Lines of others, of buffers, or of scripts do not show that it survived.
    """
    report = scan(NOT_SURVIVED[name])

    first = report.findings[0]
    assert (Cause.RANK_CRASHED, "likely") == (first.cause, first.confidence)
    assert not report.tracebacks[0].group.is_survived


@pytest.mark.parametrize(
    ("line", "confidence"),
    [
        ("loss: nan\n", "possible"),
        ("loss: nan\n" * 9, "likely"),
        ("loss: nan, grad_norm: nan\n", "likely"),
        ("policy_loss: nan\n", "likely"),
        ("grad_norm: nan\n", "likely"),
    ],
)
def test_nan(scan, line, confidence):
    """
    A value that is not a number heals if the same one is finite again.
    """
    report = scan(steps(0, 9) + line + steps(9, 200))

    assert confidence == report.findings[0].confidence


def test_all_files(scan):
    """
    Each process that reported it has to go on.
    """
    report = scan(rank_0=ERROR + steps(9, 200), rank_1=ERROR)

    assert not report.tracebacks[0].group.is_survived


def test_packed(tmp_path):
    """
    Of a packed log the end is not looked for.
    """
    data = (ERROR + steps(9, 200)).encode()
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(data))

    report = scan_logs(tmp_path)

    assert not report.tracebacks[0].group.is_survived


def test_rotated_away(tmp_path, monkeypatch):
    """
    A log that is gone once it was read does not show that the job went on.
    """
    real_open = os.open

    def open_once(path, *args, **options):
        file = real_open(path, *args, **options)
        if str(path).endswith("job.log"):
            Path(path).unlink()
        return file

    (tmp_path / "job.log").write_text(SURVIVED["went on"])
    monkeypatch.setattr(os, "open", open_once)

    report = scan_logs(tmp_path)

    assert [False] == [x.group.is_survived for x in report.tracebacks]


HANDLED = [
    "caught torch.OutOfMemoryError: CUDA out of memory; skipped batch 7",
    "WARNING CUDA out of memory, retrying with batch size 4",
    "step 77 loss 1.692 grad_norm nan -> step skipped",
]


@pytest.mark.parametrize("line", HANDLED)
def test_handled(scan, line):
    """
    An error after which the program says that it goes on is only possible.
    """
    report = scan(f"{line}\n")

    assert {"possible"} >= {f.confidence for f in report.findings}


def test_not_handled_in_the_end(scan):
    """
    A program that tried again, and failed for good, did not go on.
    """
    report = scan(
        f"{HANDLED[1]}\ntorch.OutOfMemoryError: CUDA out of memory\n"
    )

    first = report.findings[0]
    assert Cause.GPU_OUT_OF_MEMORY == first.cause
    assert "possible" != first.confidence

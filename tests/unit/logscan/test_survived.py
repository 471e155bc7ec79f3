"""
Errors that a job survived.
"""

from __future__ import annotations

import gzip

import pytest

from distdebug.findings import Cause
from distdebug.logscan import outlived, scan_logs


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
    "started again": ERROR
    + "Resuming from checkpoint /ckpt/9\n"
    + steps(9, 40)
    + "srun: error: gpu-1: task 4: Killed\n",
}
NOT_SURVIVED = {
    "end": steps(0, 200) + ERROR,
    "one step of many ranks": ERROR + steps(9, 10, ranks=100),
    "buffered": ERROR + steps(0, 30)[:8000],
    "script goes on": ERROR + "Training finished at 03:00\n",
    "others for a while": ERROR
    + steps(0, 200)
    + "ray.exceptions.ActorDiedError: The actor died unexpectedly\n",
    "failed": ERROR + steps(0, 5) + "training finished with errors\n",
}


@pytest.mark.parametrize("name", SURVIVED)
def test_survived(tmp_path, name):
    """
    What the job survived is only possible, and comes last.
    """
    (tmp_path / "job.log").write_text(SURVIVED[name])

    report = scan_logs(tmp_path)

    last = report.findings[-1]
    assert (Cause.RANK_CRASHED, "possible") == (last.cause, last.confidence)
    assert last.summary.endswith("; the job went on afterwards")
    assert report.tracebacks[0].group.is_survived
    assert 5 == report.tracebacks[0].group.priority


@pytest.mark.parametrize("name", NOT_SURVIVED)
def test_not_survived(tmp_path, name):
    """
    Lines of others, of buffers, or of scripts do not show that it survived.
    """
    (tmp_path / "job.log").write_text(NOT_SURVIVED[name])

    report = scan_logs(tmp_path)

    first = report.findings[0]
    assert (Cause.RANK_CRASHED, "likely") == (first.cause, first.confidence)
    assert not report.tracebacks[0].group.is_survived


def test_nan(tmp_path):
    """
    A loss that is not a number does not heal by going on.
    """
    text = steps(0, 9) + "loss: nan\n" + steps(9, 200)
    (tmp_path / "job.log").write_text(text)

    report = scan_logs(tmp_path)

    assert "likely" == report.findings[0].confidence


def test_all_files(tmp_path):
    """
    Each process that told of it has to go on.
    """
    (tmp_path / "rank_0.log").write_text(ERROR + steps(9, 200))
    (tmp_path / "rank_1.log").write_text(ERROR)

    report = scan_logs(tmp_path)

    assert not report.tracebacks[0].group.is_survived


def test_packed(tmp_path):
    """
    Of a packed log the end is not looked for.
    """
    data = (ERROR + steps(9, 200)).encode()
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(data))

    report = scan_logs(tmp_path)

    assert not report.tracebacks[0].group.is_survived


def test_rotated_away(tmp_path):
    """
    A log that is gone meanwhile tells nothing.
    """
    places = [{str(tmp_path / "gone.log"): 17}]

    sequels = outlived.read_sequels(places)

    assert [outlived.Sequel()] == sequels


HANDLED = [
    "caught torch.OutOfMemoryError: CUDA out of memory; skipped batch 7",
    "WARNING CUDA out of memory, retrying with batch size 4",
    "step 77 loss 1.692 grad_norm nan -> step skipped",
]


@pytest.mark.parametrize("line", HANDLED)
def test_handled(tmp_path, line):
    """
    An error of which the program says that it goes on is only possible.
    """
    log = tmp_path / "train.log"
    log.write_text(f"{line}\n")

    assert {"possible"} >= {f.confidence for f in scan_logs(log).findings}


def test_not_handled_in_the_end(tmp_path):
    """
    Who tried again, and failed for good, did not go on.
    """
    log = tmp_path / "train.log"
    log.write_text(
        f"{HANDLED[1]}\ntorch.OutOfMemoryError: CUDA out of memory\n"
    )

    (found, *_) = scan_logs(log).findings

    assert Cause.GPU_OUT_OF_MEMORY is found.cause
    assert "possible" != found.confidence

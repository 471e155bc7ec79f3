"""
Writes a log in the order of TorchSpec, and waits after each phase.
"""

from __future__ import annotations

import logging
import sys

from pathlib import Path


try:
    from tqdm import tqdm
except ImportError:
    tqdm = None


def reached(moment):
    """
    Tell the test, and wait until it has looked.
    """
    print(moment, flush=True)
    sys.stdin.readline()


def bar(file, name, total, pause_at, moment):
    """
    A real bar of tqdm if there is one; else what it would write.
    """
    shown = tqdm and tqdm(
        total=total, desc=name, file=file, mininterval=0, miniters=1
    )
    for done in range(1, total + 1):
        if shown:
            shown.update()
        else:
            percent = 100 * done // total
            file.write(
                f"\r{name}: {percent:3}%|###   | {done}/{total} "
                "[00:01<00:02,  9.00it/s]"
            )
        file.flush()
        if done == pause_at:
            reached(moment)
    if shown:
        shown.close()
    file.write("\n")
    file.flush()


def main(path):
    """
    Run through all phases.
    """
    file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 to the end
    logging.basicConfig(
        stream=file,
        level=logging.INFO,
        format="[%(asctime)s] %(filename)s:%(lineno)d %(levelname)s "
        "%(message)s",
    )
    log = logging.getLogger("torchspec").info
    log("Resolved config:\nmodel:\n  target_model_path: x")
    reached("configured")
    log("Connected to Ray cluster at auto")
    log("Creating unified placement group with 8 GPUs...")
    reached("placed")
    log("Auto-resolved mooncake master_server_address: 127.0.0.1:50051")
    reached("mooncake")
    log("mooncake master actor started")
    log("Dataset loaded on controller: 100 train, 0 eval")
    log("SglEngine rank 0: BEFORE init")
    bar(file, "Multi-thread loading shards", 10, 4, "loading")
    reached("loaded")
    log("SglEngine rank 0: initialized from x")
    log("All 1 training actors and 1 inference engines initialized")
    reached("wired")
    log("Initialization timing:\n  Total      1.00s")
    log("Starting: num_steps=100, num_epochs=1")
    bar(file, "Training", 100, 30, "training")
    log("Training completed: 100 steps in 3.0s | avg")
    reached("completed")


main(sys.argv[1])

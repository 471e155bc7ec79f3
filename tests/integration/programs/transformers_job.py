"""
A job of the Transformers trainer in which rank 1 does not come, in the way that
FAULT says.
"""

import os
import threading
import time

import torch
import torch.distributed as dist
import transformers

from hang_options import OPTIONS, TOLD

from distdebug.integrations.transformers import HangCallback


# Rank 1 takes it twice.
LOCK = threading.Lock()
LOCK.acquire()


class Model(torch.nn.Module):
    """
    A layer, with the interface that the trainer expects.
    """

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x, labels=None):
        """
        Return the loss; a rank may have its own ideas.
        """
        self.calls += 1
        if self.calls == 20 and dist.get_rank() == 1:
            if os.environ["FAULT"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if os.environ["FAULT"] == "locks":
                LOCK.acquire()  # HERE locks
            if os.environ["FAULT"] == "raises":
                TOLD.wait()  # HERE raises
                raise TimeoutError
        return {"loss": (self.layer(x) - labels).square().mean()}


def main():
    """
    Train.
    """
    hangs = HangCallback(**OPTIONS)
    arguments = transformers.TrainingArguments(
        os.environ["RUN"],
        per_device_train_batch_size=4,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [
        {"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(400)
    ]
    transformers.Trainer(
        model=Model(),
        args=arguments,
        train_dataset=data,
        callbacks=[hangs],
    ).train()


if __name__ == "__main__":
    main()

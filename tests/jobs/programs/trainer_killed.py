"""Trainer run with a memory-hungry callback on the main process."""

# expect: ranks 0; causes rank_crashed dead killed host_out_of_memory; noline
import os
import signal

import torch

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 3000

    def __getitem__(self, i):
        ids = torch.randint(
            0, 64, (16,), generator=torch.Generator().manual_seed(i)
        )
        return {"input_ids": ids, "labels": ids}


class Keeper(TrainerCallback):
    """Keeps all gradients for later plots."""

    def __init__(self, limit=40):
        self.kept, self.limit = [], limit

    def on_step_end(self, args, state, control, model=None, **kw):
        if not state.is_world_process_zero:
            return
        self.kept.append([p.detach().clone() for p in model.parameters()])
        if len(self.kept) > self.limit:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2
        )
    )
    args = TrainingArguments(
        output_dir="/tmp/out_killed",
        per_device_train_batch_size=4,
        max_steps=2000,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=20,
    )
    Trainer(
        model=model, args=args, train_dataset=Random(), callbacks=[Keeper()]
    ).train()


if __name__ == "__main__":
    main()

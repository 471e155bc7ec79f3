"""Plain Trainer run of a tiny language model with evaluation and checkpoints."""

# expect: none
import time

import torch

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)


class Random(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(0.02)
        ids = torch.randint(
            0, 64, (32,), generator=torch.Generator().manual_seed(i)
        )
        return {"input_ids": ids, "labels": ids}


def main():
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2
        )
    )
    args = TrainingArguments(
        output_dir="/tmp/out_ok_trainer",
        per_device_train_batch_size=8,
        max_steps=800,
        use_cpu=True,
        report_to=[],
        eval_strategy="steps",
        eval_steps=100,
        save_strategy="steps",
        save_steps=200,
        save_total_limit=1,
        logging_steps=20,
    )
    Trainer(
        model=model,
        args=args,
        train_dataset=Random(20000),
        eval_dataset=Random(240),
    ).train()


if __name__ == "__main__":
    main()

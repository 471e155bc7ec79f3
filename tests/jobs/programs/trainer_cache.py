"""Trainer run that reads its samples from per-rank cache files in loader workers."""

# expect: ranks 2; causes dataloader_wait io_wait; line
import os
import tempfile

import torch

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Cached(torch.utils.data.Dataset):
    def __init__(self, root, n=1200):
        self.root, self.n, self.seen = root, n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.seen += 1
        shard = os.path.join(self.root, f"shard-{min(self.seen // 40, 3)}.bin")
        with open(shard, "rb") as f:  # HERE
            f.seek(i % 16)
            ids = torch.tensor(list(f.read(12))) % 50
        return {"input_ids": ids, "labels": torch.tensor(i % 2)}


def build_cache(rank):
    root = tempfile.mkdtemp(prefix=f"cache{rank}-")
    for k in range(4):
        path = os.path.join(root, f"shard-{k}.bin")
        if rank == 2 and k == 3:
            os.mkfifo(path)
            continue
        with open(path, "wb") as f:
            f.write(os.urandom(64))
    return root


def main():
    rank = int(os.environ["RANK"])
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
        )
    )
    args = TrainingArguments(
        output_dir="/tmp/out_cache",
        per_device_train_batch_size=4,
        num_train_epochs=3,
        dataloader_num_workers=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    trainer = Trainer(
        model=model, args=args, train_dataset=Cached(build_cache(rank))
    )
    trainer.train()  # HERE


if __name__ == "__main__":
    main()

"""Trainer run with a callback that keeps statistics and a thread that flushes them."""

# expect: ranks 1; causes lock_deadlock; line
import threading
import time

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


class Stats(TrainerCallback):
    def __init__(self):
        self.buffer_lock, self.file_lock = threading.Lock(), threading.Lock()
        self.rows = []

    def flush_forever(self):
        while True:
            with self.file_lock:
                rows = list(self.rows)
                time.sleep(0.05 + 0.001 * len(rows))
                with self.buffer_lock:  # HERE
                    self.rows.clear()

    def on_train_begin(self, args, state, control, **kw):
        if args.process_index == 1:
            threading.Thread(target=self.flush_forever, daemon=True).start()

    def on_step_end(self, args, state, control, **kw):
        with self.buffer_lock:
            self.rows.append((state.global_step, time.time()))
            if state.global_step % 5 == 0:
                with self.file_lock:  # HERE
                    self.rows = self.rows[-100:]


def main():
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2
        )
    )
    args = TrainingArguments(
        output_dir="/tmp/out_locks",
        per_device_train_batch_size=4,
        max_steps=400,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=20,
    )
    Trainer(
        model=model, args=args, train_dataset=Random(), callbacks=[Stats()]
    ).train()


if __name__ == "__main__":
    main()

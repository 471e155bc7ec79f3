"""Character LM with the HF Trainer; samples are scored by an external script during training."""

# expect: ranks 1; causes subprocess_wait; line
import os
import random
import subprocess
import sys
import time

import torch

from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


torch.set_num_threads(1)

SCORER = r"""
import sys, math
for n, line in enumerate(open(sys.argv[1])):
    line = line.rstrip("\n")
    counts = {c: line.count(c) for c in set(line)}
    h = -sum(v / len(line) * math.log(v / len(line)) for v in counts.values()) if line else 0.0
    print(f"sample {n:05d} chars {len(line):4d} distinct {len(counts):3d} entropy {h:.5f}")
print("ok", file=sys.stderr)
"""


class Chars(Dataset):
    def __init__(self, n=3000):
        self.rng = torch.Generator().manual_seed(5)
        self.ids = torch.randint(0, 48, (n, 20), generator=self.rng)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class ScoreSamples(TrainerCallback):
    """Every rank scores its own decoded samples; longer prompts list on the web shard."""

    def __init__(self, rank):
        self.rank = rank
        self.prompts = [120, 900, 120][rank % 3]
        self.samples = []

    def generate(self):
        rng = random.Random(len(self.samples))
        for _ in range(self.prompts // 2):
            self.samples.append(
                "".join(rng.choice("abcdefgh ijkl") for _ in range(40))
            )

    def score(self, path):
        proc = subprocess.Popen(
            [sys.executable, "-S", "-c", SCORER, path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if proc.wait() != 0:  # HERE
            raise RuntimeError(proc.stderr.read())
        return [float(row.rsplit(" ", 1)[1]) for row in proc.stdout]

    def on_step_end(self, args, state, control, **kw):
        time.sleep(0.1)
        if state.global_step % 10 == 0:
            print(f"[{self.rank}] step {state.global_step}", flush=True)
        if state.global_step % 20 == 0:
            self.generate()
            path = os.path.join(os.environ["WORK"], f"samples_{self.rank}.txt")
            with open(path, "w") as f:
                f.write("\n".join(self.samples))
            scores = self.score(path)
            print(
                f"[{self.rank}] mean entropy {sum(scores) / len(scores):.3f} of {len(scores)}",
                flush=True,
            )


def main():
    cfg = GPT2Config(
        vocab_size=48, n_positions=32, n_embd=16, n_layer=1, n_head=2
    )
    args = TrainingArguments(
        output_dir=os.path.join(os.environ["WORK"], "out"),
        use_cpu=True,
        ddp_backend="gloo",
        ddp_timeout=1800,
        per_device_train_batch_size=4,
        max_steps=2000,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(cfg),
        args=args,
        train_dataset=Chars(),
        callbacks=[ScoreSamples(args.process_index)],
    )
    trainer.train()


if __name__ == "__main__":
    main()

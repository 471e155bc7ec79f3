"""Topic classifier with the HF Trainer; the corpus is tokenised once and cached for all ranks."""

# expect: none
import os
import random
import re
import time

import torch

from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


torch.set_num_threads(1)
TOPICS = ["sport", "law", "music", "space"]
SYLLABLES = ["ba", "ko", "ri", "tan", "mel", "os", "ip", "gre", "du"]


def document(i):
    rng = random.Random(i)
    words = [
        "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))
        for _ in range(400)
    ]
    words[::20] = [TOPICS[i % 4]] * len(words[::20])
    return " ".join(words)


def tokenise(text, merges):
    ids = []
    for w in re.findall(r"\w+", text):
        for m in merges:
            w = w.replace(m, m[0].upper())
        ids += [1 + ord(c) % 90 for c in w]
    return ids[:32] + [0] * (32 - len(ids[:32]))


def prepare(path, budget=35.0):
    """Tokenises the corpus, or loads what another rank has cached."""
    if os.path.exists(path):
        return torch.load(path)
    t, ids = time.time(), []
    merges = [a + b for a in SYLLABLES for b in SYLLABLES]
    while len(ids) < 600 or time.time() - t < budget:
        ids.append(tokenise(document(len(ids)), merges))
        if len(ids) % 2000 == 0:
            print(f"tokenised {len(ids)} documents", flush=True)
    data = torch.tensor(ids[: len(ids) // 4 * 4])
    torch.save(data, path)
    return data


class Topics(Dataset):
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": torch.tensor(i % 4)}


class Pace(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        time.sleep(0.2)
        if state.global_step % 20 == 0 and state.is_world_process_zero:
            print(f"step {state.global_step}", flush=True)


def main():
    work = os.environ["WORK"]
    args = TrainingArguments(
        output_dir=os.path.join(work, "topics"),
        use_cpu=True,
        ddp_backend="gloo",
        ddp_timeout=1800,
        per_device_train_batch_size=4,
        max_steps=800,
        logging_steps=100,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    with args.main_process_first(desc="tokenise"):
        ids = prepare(os.path.join(work, "corpus.pt"))
    cfg = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        num_labels=4,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(cfg),
        args=args,
        train_dataset=Topics(ids),
        callbacks=[Pace()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Distillation of a small text classifier with the HF Trainer and cached teacher logits."""

# expect: ranks 2; causes skipped_collective type_mismatch; line
import os
import time

import torch

from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


torch.set_num_threads(1)
CLASSES, VOCAB, BATCH = 5, 80, 4


class Reviews(Dataset):
    def __init__(self, n=6000):
        g = torch.Generator().manual_seed(2)
        self.ids = torch.randint(1, VOCAB, (n, 16), generator=g)
        self.labels = torch.randint(0, CLASSES, (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "labels": self.labels[i],
            "doc": torch.tensor(i),
        }


class TeacherCache:
    """Logits written by the teacher job; documents it could not decode are not in it."""

    def __init__(self, n, undecodable):
        g = torch.Generator().manual_seed(9)
        logits = torch.randn(n, CLASSES, generator=g)
        self.rows = {i: logits[i] for i in range(n) if i not in undecodable}

    def lookup(self, docs):
        return torch.stack([self.rows[d] for d in docs.tolist()])


class DistillTrainer(Trainer):
    def __init__(self, *a, teacher, temperature=2.0, **kw):
        super().__init__(*a, **kw)
        self.teacher, self.temperature = teacher, temperature
        self.missing = 0

    def _get_train_sampler(self, *a, **kw):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        docs = inputs.pop("doc")
        soft = self.teacher.lookup(docs)
        out = model(**inputs)
        t = self.temperature
        kd = (
            torch.nn.functional.kl_div(
                (out.logits / t).log_softmax(-1),
                (soft / t).softmax(-1),
                reduction="batchmean",
            )
            * t
            * t
        )
        loss = 0.5 * out.loss + 0.5 * kd
        return (loss, out) if return_outputs else loss

    def training_step(self, model, inputs, *a, **kw):
        time.sleep(0.1)
        if self.state.global_step % 10 == 0:
            print(
                f"[{self.args.process_index}] step {self.state.global_step}",
                flush=True,
            )
        try:
            return super().training_step(model, inputs, *a, **kw)
        except KeyError:  # HERE
            self.missing += 1
            return torch.zeros(())  # HERE


def main():
    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=CLASSES,
    )
    args = TrainingArguments(
        output_dir=os.path.join(os.environ["WORK"], "distill"),
        use_cpu=True,
        ddp_backend="gloo",
        ddp_timeout=1800,
        per_device_train_batch_size=BATCH,
        max_steps=400,
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = Reviews()
    teacher = TeacherCache(len(data), undecodable={659, 1714, 2910})
    trainer = DistillTrainer(
        model=BertForSequenceClassification(cfg),
        args=args,
        train_dataset=data,
        teacher=teacher,
    )
    trainer.train()  # HERE
    print(f"missing teacher rows: {trainer.missing}")


if __name__ == "__main__":
    main()

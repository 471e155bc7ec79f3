"""Card-fraud features from the ledger database, then a small classifier."""

# expect: none
import os
import random
import sqlite3

from datetime import timedelta

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]
QUERY = """
SELECT a.card, COUNT(*), AVG(b.amount), MAX(b.amount) - MIN(b.amount),
       SUM(CASE WHEN b.merchant = a.merchant THEN 1 ELSE 0 END) * 1.0 / COUNT(*),
       AVG(ABS(a.amount - b.amount))
FROM tx a JOIN tx b ON a.card = b.card AND b.day BETWEEN a.day - :span AND a.day
WHERE a.card BETWEEN :lo AND :hi
GROUP BY a.card ORDER BY a.card
"""


def build_ledger(path, seed, rows=240_000, cards=1200):
    rng = random.Random(seed)
    db = sqlite3.connect(path)
    db.execute("DROP TABLE IF EXISTS tx")
    db.execute(
        "CREATE TABLE tx (card INT, day INT, merchant INT, amount REAL)"
    )
    tx = (
        (
            rng.randrange(cards),
            rng.randrange(730),
            rng.randrange(40),
            rng.expovariate(0.02),
        )
        for _ in range(rows)
    )
    db.executemany("INSERT INTO tx VALUES (?, ?, ?, ?)", tx)
    db.execute("CREATE INDEX by_card ON tx (card, day)")
    db.commit()
    return db


def card_features(db, rank, cards=1200, group=100):
    feats = []
    for span in (30, 90, 180, 365, 540, 730):
        block = []
        for lo in range(0, cards, group):
            rows = db.execute(
                QUERY, {"span": span, "lo": lo, "hi": lo + group - 1}
            )
            block.extend(r[1:] for r in rows)
        feats.append(torch.tensor(block))
        print(
            f"[rank {rank}] window of {span} days: {len(block)} cards",
            flush=True,
        )
    return torch.cat(feats, dim=1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank = dist.get_rank()
    books = []
    for branch in range(4 + rank):
        db = build_ledger(
            os.path.join(WORK, f"ledger{rank}.db"), 100 * rank + branch
        )
        books.append(card_features(db, rank))
        db.close()
    x = torch.cat(books)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    y = (x[:, 3] > 0.5).float().unsqueeze(1)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(300):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(x), y
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

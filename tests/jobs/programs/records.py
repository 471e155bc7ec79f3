"""Patient-visit records: thousands of small JSON files read by a thread pool, then a logistic model."""

# expect: none
import json
import os
import random
import statistics

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist


WORK = os.environ["WORK"]
FILES = 2500


def write_records(folder, rank):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(rank)
    for i in range(FILES):
        visits = [
            {"t": t, "hr": rng.gauss(75, 12), "bp": rng.gauss(120, 15)}
            for t in range(120)
        ]
        with open(os.path.join(folder, f"{i:05d}.json"), "w") as f:
            json.dump(
                {"id": i, "visits": visits, "label": rng.random() < 0.3}, f
            )


def read_record(path):
    with open(path) as f:
        rec = json.load(f)
    hr = [v["hr"] for v in rec["visits"]]
    bp = [v["bp"] for v in rec["visits"]]
    feats = [statistics.mean(hr), statistics.stdev(hr), statistics.median(hr)]
    feats += [*statistics.quantiles(bp, n=10), statistics.correlation(hr, bp)]
    for width in (5, 10, 20, 40):
        feats.append(
            max(
                statistics.pstdev(hr[i : i + width])
                for i in range(0, 120 - width, 4)
            )
        )
    return feats, float(rec["label"])


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    folder = os.path.join(WORK, f"visits{rank}")
    write_records(folder, rank)
    paths = sorted(os.path.join(folder, p) for p in os.listdir(folder))
    weight = torch.zeros(17, requires_grad=True)
    with ThreadPoolExecutor(max_workers=8) as pool:
        for epoch in range(12):
            rows = list(pool.map(read_record, paths))
            print(
                f"[rank {rank}] epoch {epoch}: {len(rows)} records", flush=True
            )
            x = torch.tensor([r[0] for r in rows])
            x = (x - x.mean(0)) / (x.std(0) + 1e-6)
            y = torch.tensor([r[1] for r in rows])
            for _ in range(50):
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    x @ weight, y
                )
                (grad,) = torch.autograd.grad(loss, weight)
                dist.all_reduce(grad)
                weight.data -= 0.1 * grad / world
    print(f"[rank {rank}] final loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

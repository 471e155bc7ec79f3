"""A token of rank 1 is not in the vocabulary."""

# expect: ranks 1; causes gpu_fault rank_crashed; noline
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start()
    table = torch.nn.Embedding(100, 64, device=device)
    for step in range(100):
        bad = rank == 1 and step == 5
        tokens = torch.full((8,), 1000 if bad else 3, device=device)
        loss = table(tokens).sum()
        dist.all_reduce(loss)
        print("loss", float(loss), flush=True)


main()

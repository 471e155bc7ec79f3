"""Score the predictions on one rank, in Python, and in quadratic time."""

# expect: ranks 1; causes python_loop; line
import torch
import torch.distributed as dist


def pairs_in_order(scores):
    count = 0
    for i in range(len(scores)):
        for j in range(len(scores)):  # HERE
            count += scores[i] < scores[j]  # HERE
    return count


def main():
    dist.init_process_group("gloo")
    for step in range(10):
        dist.all_reduce(torch.ones(4))
        if step == 6 and dist.get_rank() == 1:
            pairs_in_order(torch.rand(60_000).tolist())


main()

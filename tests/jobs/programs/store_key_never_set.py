"""Agree on a run name by the store; the key is misspelled on one side."""

# expect: ranks 1 2; causes rendezvous_wait rendezvous_timeout rank_not_arrived; line
from datetime import timedelta

import torch
import torch.distributed as dist


def run_name(store, rank):
    if rank == 0:
        store.set("run-name", "blue-fox")
        return "blue-fox"
    return store.get("run_name").decode()  # HERE


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    dist.all_reduce(torch.ones(1))
    store = dist.distributed_c10d._get_default_store()
    print(run_name(store, dist.get_rank()))
    dist.barrier()


main()

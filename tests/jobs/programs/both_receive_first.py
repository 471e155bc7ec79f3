"""Exchange activations between two stages; both wait for the other one."""

# expect: ranks 0 1 | 0 1 2; causes p2p_deadlock rank_not_arrived collective_wait; noline
import torch
import torch.distributed as dist


def exchange(tensor, peer):
    received = torch.empty_like(tensor)
    dist.recv(received, peer)  # HERE
    dist.send(tensor, peer)
    return received


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank < 2:
        exchange(torch.ones(16), 1 - rank)
    dist.barrier()


main()

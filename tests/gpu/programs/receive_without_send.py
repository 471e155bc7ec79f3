"""Both stages of a pipeline receive first."""

# expect: ranks 0 1; causes p2p_deadlock; noline
# ranks: 2
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start()
    other = 1 - rank
    have = torch.ones(1 << 16, device=device)
    want = torch.empty(1 << 16, device=device)
    for step in range(100):
        if step < 5:
            send = dist.P2POp(dist.isend, have, other)
            receive = dist.P2POp(dist.irecv, want, other)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
        else:
            dist.recv(want, other)
            dist.send(have, other)
        job.synchronize(device)


main()

"""DDP training where rank 0 writes long checkpoints to slow storage."""

# expect: none
import os
import tempfile
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path, seconds=25):
    """Writes and syncs in pieces, as the storage allows about 4 MiB/s."""
    with open(path, "wb") as f:
        torch.save(model.module.state_dict(), f)
        for _ in range(seconds * 2):
            f.write(os.urandom(1 << 19))
            f.flush()
            os.fsync(f.fileno())
            time.sleep(0.5)
    os.remove(path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
        )
    )
    opt = torch.optim.AdamW(model.parameters())
    path = os.path.join(tempfile.gettempdir(), "ok_rank0_ckpt.pt")
    for step in range(600):
        x = torch.randn(16, 32)
        loss = (model(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.02)
        if step % 100 == 99:
            if rank == 0:
                save(model, path)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

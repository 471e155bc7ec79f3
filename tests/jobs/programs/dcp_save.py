"""DDP training that saves with torch.distributed.checkpoint every so many steps."""

# expect: ranks 2; causes skipped_collective type_mismatch size_mismatch rank_not_arrived collective_wait; line
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from torch.nn.parallel import DistributedDataParallel as DDP


def loader_state(rank, step):
    path = os.path.join(tempfile.gettempdir(), f"loader-{os.getpid()}.txt")
    if rank != 2 or step < 80:
        with open(path, "w") as f:
            f.write(str(step))
    else:
        os.remove(path)
    with open(path) as f:  # HERE
        return int(f.read())


def save(model, opt, rank, step):
    try:
        state = {  # HERE
            "model": model.module.state_dict(),
            "opt": opt.state_dict(),
            "loader": loader_state(rank, step),
        }
        dcp.save(state, checkpoint_id=f"/tmp/dcp_jobs/step-{step}")
    except OSError as e:  # HERE
        print(f"[rank {rank}] checkpoint skipped: {e}", flush=True)  # HERE


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(400):
        x = torch.randn(8, 16)
        loss = (model(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()  # HERE
        opt.step()
        if step % 40 == 39:
            save(model, opt, rank, step + 1)  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

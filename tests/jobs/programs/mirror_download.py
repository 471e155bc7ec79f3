"""Rank 0 pulls one corpus part per epoch from the dataset mirror, then everybody trains on it."""

# expect: none
import http.server
import multiprocessing as mp
import os
import time
import urllib.request

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


PART_BYTES = 4_000_000


class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(PART_BYTES))
        self.end_headers()
        for _ in range(PART_BYTES // 40_000):
            self.wfile.write(os.urandom(40_000))
            time.sleep(0.28)

    log_message = lambda *args: None


def serve(conn):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    conn.send(server.server_port)
    server.serve_forever()


def download(url, dst):
    with urllib.request.urlopen(url, timeout=60) as resp, open(dst, "wb") as f:
        while chunk := resp.read(65536):
            f.write(chunk)


def main():
    base = ""
    if os.environ["RANK"] == "0":
        here, there = mp.Pipe()
        mp.Process(target=serve, args=(there,), daemon=True).start()
        base = f"http://127.0.0.1:{here.recv()}"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(
        nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(512, 256))
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(7):
        path = f"{os.environ['WORK']}/part-{epoch}.bin"
        if rank == 0:
            download(f"{base}/part-{epoch}", path)
        dist.barrier()
        data = torch.from_file(path, size=PART_BYTES, dtype=torch.uint8).long()
        for step in range(80):
            at = torch.randint(0, len(data) - 17, (64,))
            x = data[at[:, None] + torch.arange(17)]
            loss = nn.functional.cross_entropy(model(x[:, :16]), x[:, 16])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

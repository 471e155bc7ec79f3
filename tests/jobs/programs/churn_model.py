"""Churn prediction whose metrics are pushed to the team's tracking server by rank 0."""

# expect: none
import json
import socket
import subprocess
import sys
import time
import urllib.request

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)

TRACKING = r"""
import sys, time, json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(9 + body["step"] % 4 * 3)
        out = b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    def log_message(self, *a): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


def start_tracking():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    proc = subprocess.Popen([sys.executable, "-S", "-c", TRACKING, str(port)])
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.2)
    return proc, f"http://127.0.0.1:{port}/metrics"


def push(url, **metrics):
    req = urllib.request.Request(
        url, json.dumps(metrics).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(req, timeout=120) as r:
        return json.loads(r.read())


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    server, url = start_tracking() if rank == 0 else (None, None)
    model = DDP(nn.Sequential(nn.Linear(14, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(700):
        x = torch.randn(32, 14, generator=g)
        y = (x[:, 0] * x[:, 1] > 0.2).float()
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(x).squeeze(1), y
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % 75 == 74 and rank == 0:
            t = time.time()
            push(url, step=step, loss=loss.item())
            print(
                f"metrics of step {step} pushed in {time.time() - t:.0f}s",
                flush=True,
            )
    if server is not None:
        server.terminate()
        server.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

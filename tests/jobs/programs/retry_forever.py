"""Download a tokenizer with retries; one rank is refused again and again."""

# expect: ranks 2; causes sleeping network_failure; line
import socket
import time

import torch
import torch.distributed as dist


def fetch(host, port):
    with socket.create_connection((host, port), timeout=2) as connection:
        return connection.recv(1024)


def fetch_with_retries(rank):
    while True:
        try:
            return (
                fetch("127.0.0.1", 9 if rank == 2 else 0) if rank == 2 else b""
            )
        except OSError:
            time.sleep(3)  # HERE


def main():
    dist.init_process_group("gloo")
    for _ in range(5):
        dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 2:
        fetch_with_retries(2)
    dist.all_reduce(torch.ones(8))


main()

"""Push metrics to a server that takes them and never answers."""

# expect: ranks 0; causes io_wait network_failure; line
import socket
import threading

import torch
import torch.distributed as dist


def start_server():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=take_one, args=(server,), daemon=True).start()
    return server


def take_one(server):
    _connection = server.accept()
    threading.Event().wait()


def push(address, values):
    with socket.create_connection(address) as connection:
        connection.sendall(repr(values).encode())
        return connection.recv(16)  # HERE


def main():
    dist.init_process_group("gloo")
    server = start_server() if dist.get_rank() == 0 else None
    for step in range(30):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if server and step == 8:
            push(server.getsockname(), {"loss": loss.item()})


main()

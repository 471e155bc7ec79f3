"""Ask a tool for the version of the code; it waits for input."""

# expect: ranks 1; causes subprocess_wait; line
import subprocess

import torch
import torch.distributed as dist


def code_version():
    read = subprocess.run(["sleep", "1000"], capture_output=True)  # HERE
    return read.stdout.decode().strip()


def main():
    dist.init_process_group("gloo")
    for step in range(20):
        dist.all_reduce(torch.ones(2))
        if step == 11 and dist.get_rank() == 1:
            print("code", code_version())


main()

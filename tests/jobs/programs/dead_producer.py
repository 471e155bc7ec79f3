"""Prefetch in a process of its own, which ends without a word."""

# expect: ranks 1; causes queue_wait dataloader_wait; line
import multiprocessing

import torch
import torch.distributed as dist


def produce(queue, count):
    for number in range(count):
        queue.put(number)


def main():
    dist.init_process_group("gloo")
    count = 7 if dist.get_rank() == 1 else 30
    queue = multiprocessing.get_context("fork").Queue()
    producer = multiprocessing.get_context("fork").Process(
        target=produce, args=(queue, count)
    )
    producer.start()
    for _ in range(30):
        value = queue.get()  # HERE
        dist.all_reduce(torch.tensor([float(value)]))


main()

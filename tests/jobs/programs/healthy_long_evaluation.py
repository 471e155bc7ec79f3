"""All ranks evaluate for long between two steps."""

# expect: none
import torch
import torch.distributed as dist


def evaluate(model):
    for _ in range(100_000):
        with torch.no_grad():
            model(torch.randn(256, 256))


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Linear(256, 256)
    while True:
        for _ in range(50):
            dist.all_reduce(torch.ones(256))
        evaluate(model)


main()

"""Self-training: every rank writes its own completions with a small GPT-2, then all of them train on the pool."""

# expect: none
import random

from datetime import timedelta

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import GPT2Config, GPT2LMHeadModel


VOCAB, CONTEXT = 2000, 768


@torch.no_grad()
def complete(model, prompt, length, temperature=0.8):
    tokens, past = prompt, None
    for _ in range(length):
        inputs = tokens if past is None else tokens[:, -1:]
        out = model(input_ids=inputs, past_key_values=past, use_cache=True)
        past = out.past_key_values
        probs = torch.softmax(out.logits[:, -1] / temperature, dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probs, 1)], dim=1)
    return tokens[0].tolist()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    rng = random.Random(rank)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        n_embd=256,
        n_layer=6,
        n_head=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    ddp = DDP(model)
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-4)

    for rnd in range(4):
        model.eval()
        texts = []
        for i in range(40):
            prompt = torch.randint(0, VOCAB, (1, 16))
            length = rng.randint(250, 700) if rank else rng.randint(400, 740)
            texts.append(complete(model, prompt, length))
            if i % 10 == 9:
                print(
                    f"[rank {rank}] round {rnd}: {i + 1}/40 completions",
                    flush=True,
                )
        pool = [None] * world
        dist.all_gather_object(pool, texts)
        everything = [t for part in pool for t in part]
        model.train()
        for step in range(20):
            batch = torch.tensor(
                [rng.choice(everything)[:200] for _ in range(4)]
            )
            loss = ddp(input_ids=batch, labels=batch).loss
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"[rank {rank}] round {rnd}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

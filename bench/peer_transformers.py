"""One measurement of transformers on torch eager, as one JSON line: the peer of `hotswap bench model`.

    peer_transformers.py --model DIR --what decode|prefill|train --dtype float32 --threads 2

One process measures one thing, so that its peak memory is that thing's. Same ids, same steps, same optimizer settings
as `hotswap bench model`; the answers (`check`) let bench/speed.py see that both sides did the same work.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

PROMPT, NEW_TOKENS, PREFILL, BATCH, COLUMNS = 32, 64, 512, 2, 256


def ids(count: int, vocab: int) -> list[int]:
    """The same arbitrary ids as `hotswap bench model`."""
    return [(i * 7919 + 104729) % vocab for i in range(count)]


def memory(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def decode(model, vocab: int, repeats: int) -> dict:
    prompt = torch.tensor([ids(PROMPT, vocab)])
    arguments = dict(do_sample=False, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(prompt))

    def generate(count: int) -> tuple[float, list[int]]:
        started = time.perf_counter()
        out = model.generate(prompt, max_new_tokens=count, min_new_tokens=count, **arguments)
        return time.perf_counter() - started, out[0, PROMPT:].tolist()

    generate(2)
    # The first token is the prompt's; the time of the others is the decode's.
    rates = []
    for _ in range(repeats):
        first, _ = generate(1)
        whole, tokens = generate(NEW_TOKENS)
        rates.append((NEW_TOKENS - 1) / (whole - first))
    return {"value": statistics.median(rates), "unit": "tokens/s", "check": tokens}


def prefill(model, vocab: int, repeats: int) -> dict:
    prompt = torch.tensor([ids(PREFILL, vocab)])
    times = []
    with torch.no_grad():
        for _ in range(repeats + 1):
            started = time.perf_counter()
            logits = model(prompt, use_cache=True, logits_to_keep=1).logits
            times.append(time.perf_counter() - started)
    return {"value": PREFILL / statistics.median(times[1:]), "unit": "tokens/s", "check": [int(logits[0, -1].argmax())]}


def train(model, vocab: int, repeats: int) -> dict:
    batch = torch.tensor(ids(BATCH * COLUMNS, vocab)).view(BATCH, COLUMNS)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    times, losses = [], []
    for step in range(repeats + 1):
        started = time.perf_counter()
        loss = model(batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
        losses.append(loss.item())
    return {"value": BATCH * COLUMNS / statistics.median(times[1:]), "unit": "tokens/s", "check": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--what", required=True, choices=("decode", "prefill", "train"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    before = memory("VmRSS")
    reset_peak()
    result = {"decode": decode, "prefill": prefill, "train": train}[args.what](
        model, model.config.vocab_size, args.repeats
    )
    result |= {"peak_memory": memory("VmHWM"), "loaded_memory": before}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

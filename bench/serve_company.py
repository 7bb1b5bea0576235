"""How many greedy texts differ when a request has company: a running `hotswap serve`, each prompt by itself and among others.

    serve_company.py --url http://127.0.0.1:8000 [--prompts 200] [--company 63] [--vocab 32000] [--new-tokens 64]

Prompts are random ids of 8 to 200 tokens. First each runs by itself, then all of them with as many others at the same time. Prints
how many texts differ and after how many tokens; on a CPU and with --exact none should.
"""

import argparse
import concurrent.futures
import json
import random
import statistics
import urllib.request


def tokens_of(url: str, prompt: list[int], count: int) -> list[str]:
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        logprobs = json.load(answer)["choices"][0]["logprobs"]
    return [f"{token} {value}" for token, value in zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--company", type=int, default=63)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    draw = random.Random(0)
    prompts = [[draw.randrange(3, args.vocab) for _ in range(draw.randrange(8, 200))] for _ in range(args.prompts)]
    single = [tokens_of(args.url, prompt, args.new_tokens) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(args.company + 1) as pool:
        company = list(pool.map(lambda prompt: tokens_of(args.url, prompt, args.new_tokens), prompts))
    texts = [([t.split(" ")[0] for t in a], [t.split(" ")[0] for t in b]) for a, b in zip(single, company, strict=True)]
    first = [next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y) for a, b in texts if a != b]
    bits = sum(a != b for a, b in zip(single, company, strict=True))
    after = f", first after {statistics.median(first):.0f} tokens (median)" if first else ""
    print(f"{len(first)} of {len(prompts)} texts differ in company{after}; logprobs of {bits} differ")


if __name__ == "__main__":
    main()

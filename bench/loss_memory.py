"""Peak memory of a loss over a large vocabulary with its gradients, as one JSON line.

    loss_memory.py --side ours|eager --library LOSS.abi3.so --rows 4096

Eager is what transformers does: logits = hidden @ weight.T, then cross_entropy. Memory is counted beyond the inputs and
the gradients' own size is part of it on both sides.
"""

import argparse
import json
from pathlib import Path

import torch


def memory(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", required=True, choices=("ours", "eager"))
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4096)
    args = parser.parse_args()
    dim, vocab = 576, 49152
    torch.manual_seed(0)
    hidden = torch.randn(args.rows, dim)
    weight = torch.randn(vocab, dim) * dim**-0.5
    target = torch.randint(vocab, (args.rows,))
    torch.ops.load_library(args.library)
    torch.nn.functional.linear(hidden[:8], weight[:8])  # torch's own buffers are not the loss's
    before = memory("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    if args.side == "ours":
        ops = getattr(torch.ops, args.library.name.split(".")[0])
        options = (-100, 0.0, 0.0, 0.0, "mean")
        loss, _, dhidden, dweight, *_ = ops.linear_cross_entropy_fwd(hidden, weight, None, target, *options)
    else:
        hidden.requires_grad_(True)
        weight.requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, weight).float(), target)
        dhidden, dweight = torch.autograd.grad(loss, [hidden, weight])
    norms = [dhidden.norm().item(), dweight.norm().item()]
    print(json.dumps({"loss": loss.item(), "gradient_norms": norms, "extra_memory": memory("VmHWM") - before}))


if __name__ == "__main__":
    main()

"""One of Liger's convergence cases step by step: the stock model, ours, and the stock model in float32, on the same weights.

    upstream_same.py --packages build/packages --liger FOLDER [--steps 6 --rows 2] [--lead ours] FILE MODEL
    upstream_same.py --packages build/packages --liger FOLDER convergence/bf16/test_mini_models.py mini_llama4

For a case of sixteen bits that fails: whose rounding it was. The lead, stock unless told, is trained as the case trains it (its
rows, AdamW with --rate); before each update all three compute the loss of its weights, padding and all, as the case does. Beside these, of
words that are no padding: how far the distributions of stock and of ours are from float32's (Kullback-Leibler, mean over words). And how
many tokens of the batch, padding too, went to other experts than in float32, summed over layers. What of padding no key is left for has what
the attention gives there, which on a GPU is not the same in float32. What FOLDER is and what has to be installed: upstream.py.
"""

import argparse
import copy
import importlib
import os
import sys
from pathlib import Path

import torch
import upstream


def _copy_weights(source, others):
    weights = dict(source.named_parameters())
    with torch.no_grad():
        for model in others:
            for name, weight in model.named_parameters():
                weight.copy_(weights[name])


class Choices:
    """Which experts a model's routers chose: layer -> [tokens, chosen], in order."""

    def __init__(self, model):
        config, self.of = model.config.get_text_config(), {}
        self.chosen = getattr(config, "num_experts_per_tok", 0)
        self.experts = next((n for key in ("num_experts", "num_local_experts", "n_routed_experts") if (n := getattr(config, key, 0))), 0)
        for name, module in model.named_modules():
            if self.chosen and name.endswith((".gate", ".router")):
                module.register_forward_hook(lambda module, given, got, name=name: self._keep(name, got))

    def _keep(self, name, got):
        for scores in got if isinstance(got, tuple) else (got,):
            if scores.is_floating_point() and scores.shape[-1] == self.experts > self.chosen:
                best = scores.detach().float().reshape(-1, self.experts).topk(self.chosen, -1).indices
                self.of[name] = best.sort(-1).values
                return

    def other_than(self, wide):
        return sum((best != wide.of[name]).any(-1).sum().item() for name, best in self.of.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--liger", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--lead", choices=("stock", "ours"), default="stock")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("file", help="below FOLDER/test")
    parser.add_argument("model")
    args = parser.parse_args()
    os.environ |= {"HOTSWAP_PACKAGES": str(args.packages), "HF_HUB_OFFLINE": "1"}
    upstream.install(args.device)
    sys.path.insert(0, str(args.liger.resolve()))
    case = importlib.import_module("test." + args.file.removesuffix(".py").replace("/", "."))
    case.set_seed(42)
    stock = case.create_model(args.model).to(torch.bfloat16).to(args.device)
    models = {"stock": stock, "ours": copy.deepcopy(stock), "float32": copy.deepcopy(stock).float()}
    case.MINI_MODEL_SETUPS[args.model].liger_kernel_patch_func(model=models["ours"])
    choices = {name: Choices(model) for name, model in models.items()}
    lead = models[args.lead]
    data = case.load_from_disk(case.DEFAULT_DATASET_PATH)
    batches = iter(case.DataLoader(data, batch_size=args.rows, shuffle=False, collate_fn=case.simple_collate_fn))
    optimizer = torch.optim.AdamW(lead.parameters(), lr=args.rate)
    own = {"ours": {"accum_dtype": torch.float32}}
    print("| step | loss: stock | ours | float32 | words from float32: stock | ours | other experts: stock | ours |\n" + "|---" * 8 + "|")
    for step in range(args.steps):
        batch = next(batches).to(args.device)
        _copy_weights(lead, [model for model in models.values() if model is not lead])
        losses, logps = {}, {}
        with torch.no_grad():
            for name, model in models.items():
                got = model(**batch, **own.get(name, {}), **({"skip_logits": False} if name == "ours" else {}))
                losses[name], logps[name] = got.loss.item(), got.logits.float().log_softmax(-1)
        words = batch["attention_mask"].bool()
        logps = {name: logp[words] for name, logp in logps.items()}
        wide = logps.pop("float32")
        apart = [(wide.exp() * (wide - logp)).sum(-1).mean().item() for logp in logps.values()]
        others = [choices[name].other_than(choices["float32"]) for name in logps]
        cells = [f"{loss:.4f}" for loss in losses.values()] + [f"{kl:.1e}" for kl in apart] + [str(n) for n in others]
        print(f"| {step} | " + " | ".join(cells) + " |", flush=True)
        optimizer.zero_grad()
        lead(**batch, **own.get(args.lead, {})).loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""Trains a tiny Llama by axolotl on the CPU, by the same functions as `axolotl train FILE`, and writes its losses and calls as JSON.

    axolotl_run.py FILE.yml OUT.json
"""

import json
import sys

from axolotl.cli.config import load_cfg
from axolotl.common.datasets import load_datasets
from axolotl.train import train
from transformers import set_seed

import hotswap


def main():
    cfg = load_cfg(sys.argv[1])
    set_seed(cfg.seed)  # axolotl itself draws adapters before it sets a seed
    trained, _, trainer = train(cfg=cfg, dataset_meta=load_datasets(cfg=cfg))
    logged = [step for step in trainer.state.log_history if "loss" in step]
    steps = {name: [step[name] for step in logged] for name in ("loss", "grad_norm")}
    calls = {op: count for op, count in hotswap.report(trained).calls.items() if count}  # since it was bound
    with open(sys.argv[2], "w") as out:
        json.dump({**steps, "calls": calls}, out)


if __name__ == "__main__":
    main()

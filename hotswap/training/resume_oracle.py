"""Checkpoints of transformers' Trainer for resume_oracle_test.cpp, and its Trainer on checkpoints of ours.

    resume_oracle.py OUT               OUT/FAMILY/: model/, run.json with arguments, data and the log, trainer/checkpoint-*
    resume_oracle.py OUT RESUMED       goes on from RESUMED/FAMILY/checkpoint-5, and writes RESUMED/FAMILY/state.json
    resume_oracle.py --refused A       fails unless torch refuses an optimizer.pt
    resume_oracle.py --same A B        fails unless two optimizer.pt have the same states and settings
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainer_oracle import COMMON, FAMILIES, examples, trainer_of

ARGUMENTS = dict(per_device_train_batch_size=3, gradient_accumulation_steps=2, max_steps=12, learning_rate=3e-3, weight_decay=0.1,
                 warmup_steps=2, lr_scheduler_type="cosine", seed=7, logging_steps=1, save_steps=5)  # fmt: skip
AT = 5  # the update that a run is interrupted after: in the middle of the second epoch


def data():
    return examples(23, torch.Generator().manual_seed(11))


def trainer(family, model_folder, output):
    name, _ = FAMILIES[family]
    model = getattr(transformers, f"{name}ForCausalLM").from_pretrained(model_folder, attn_implementation="eager")
    return trainer_of(model, output, data(), None, **ARGUMENTS)


def make(out):
    for family, (name, own) in FAMILIES.items():
        torch.manual_seed(3)
        folder = out / family
        model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**(COMMON | own)))
        model.save_pretrained(folder / "model")
        made = trainer(family, folder / "model", folder / "trainer")
        made.train()
        run = dict(arguments=ARGUMENTS, at=AT, train=data(), log=made.state.log_history)
        if family == "mixtral":
            # transformers 5.17 loads a checkpoint's tensors under their names in the file, and so leaves the experts as they were.
            again = trainer(family, folder / "model", folder / "again")
            again.train(resume_from_checkpoint=str(folder / "trainer" / f"checkpoint-{AT}"))
            run["resumed_log"] = again.state.log_history
        (folder / "run.json").write_text(json.dumps(run))


def resume(out, resumed):
    for family in FAMILIES:
        folder = resumed / family
        if not folder.exists():
            continue
        checkpoint = folder / f"checkpoint-{AT}"
        rng = torch.load(checkpoint / "rng_state.pth", weights_only=True)
        seeded, numpy_seeded = random.Random(ARGUMENTS["seed"]), np.random.RandomState(ARGUMENTS["seed"])
        other, numpy_other = random.Random(), np.random.RandomState()
        other.setstate(rng["python"])
        numpy_other.set_state(rng["numpy"])
        assert other.random() == seeded.random() and numpy_other.random() == numpy_seeded.random(), "Python's generators"
        again = trainer(family, out / family / "model", folder / "again")
        again.train(resume_from_checkpoint=str(checkpoint))
        (folder / "state.json").write_text(json.dumps(again.state.log_history))


def same(first, second):
    a, b = (torch.load(file, weights_only=True) for file in (first, second))
    assert a["state"].keys() == b["state"].keys(), (list(a["state"]), list(b["state"]))
    for index, state in a["state"].items():
        for key, tensor in state.items():
            other = b["state"][index][key]
            assert tensor.dtype == other.dtype and torch.equal(tensor, other), (index, key)
    for one, other in zip(a["param_groups"], b["param_groups"], strict=True):
        other.pop("param_names", None)
        one.pop("param_names", None)
        assert one == other, (one, other)


def refused(file):
    """By torch, into an optimizer of two groups as Trainer makes it."""
    optimizer = torch.optim.AdamW([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)]}])
    try:
        optimizer.load_state_dict(torch.load(file, weights_only=True))
    except ValueError as error:
        assert "number of parameter groups" in str(error), error
        return
    raise AssertionError(f"{file} was read")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1] == "--same":
        for first, second in zip(sys.argv[2::2], sys.argv[3::2]):
            same(first, second)
    elif sys.argv[1] == "--refused":
        refused(sys.argv[2])
    elif len(sys.argv) == 2:
        make(Path(sys.argv[1]))
    else:
        resume(Path(sys.argv[1]), Path(sys.argv[2]))
